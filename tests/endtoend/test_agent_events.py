"""What an agent reports, through the intake of the real process: into the ledger, and from there to the node.

The test is the agent here: it posts with a token that is bound to a pod on the node. `test_agent` has the real one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
import yaml

from daemon.agent.wire import PATH, Batch, Receipt, Report, decode_receipt, encode, report_id
from daemon.ledger import EntryKind
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.cluster.agent_tokens import pod_on, token
from tests.endtoend.acts import (
    decision,
    incident_of,
    is_out,
    ours_on,
    quarantined,
    settled,
    soon,
    start,
    ticks,
    unbound,
)
from tests.endtoend.site import ROOT, USER, Daemon, Site
from tests.testbed.api import Forbidden, Unauthorized
from tests.testbed.settings import ISSUER

BOOT = "0d7f1c1e-0000-4000-8000-000000000001"


class Voice:
    """What is on a node and reports."""

    def __init__(self, site: Site, node: str) -> None:
        self.site, self.node = site, node
        self.token = token(site.plane, pod_on(site.plane, node))

    def fault(self, sequence: int, code: int = 79, gpu: int = 0, **fields: Any) -> Report:
        """A fault of one of its GPUs, as the kernel reported it just now."""
        pci = [one.pci for one in self.site._shape.gpus if self.site._shape.nodes[one.node].name == self.node][gpu]
        about: dict[str, Any] = {
            "kind": EventKind.XID, "code": code, "text": f"NVRM: Xid (PCI:{pci}): {code}, GPU has fallen off the bus.",
            "at": datetime.now(UTC), "pci": pci, "sequence": sequence, "boot_id": BOOT, "source": "kmsg",
        }  # fmt: skip
        event = KernelEvent(**about | fields)
        return Report(report_id(event), event)

    def post(self, daemon: Daemon, *reports: Report, node: str | None = None) -> requests.Response:
        """Report it, in the name of that node."""
        return requests.post(
            f"http://127.0.0.1:{daemon.port}{PATH}", data=encode(Batch(node or self.node, BOOT, "test", reports)),
            headers={"Authorization": f"Bearer {self.token}"}, timeout=30,
        )  # fmt: skip

    def receipt(self, daemon: Daemon, *reports: Report) -> Receipt:
        """The receipt for what has to be taken."""
        answer = self.post(daemon, *reports)
        assert answer.status_code == 200, answer.text
        return decode_receipt(answer.content)


#: How a process is started that hears nothing but agents.
HEARING: dict[str, Any] = {"policy": unbound(), "kernel_logs": [], "intake": {"enabled": True}}


@contextmanager
def asked_for(site: Site) -> Iterator[set[tuple[str, str]]]:
    """(resource, verb) of what gpuwarden asks of the API server about identities meanwhile."""
    mark, found = site.plane.audit_mark(), set[tuple[str, str]]()
    yield found
    groups = {"authentication.k8s.io", "authorization.k8s.io"}
    found |= {(one.resource, one.verb) for one in site.plane.audit_events(mark, USER) if one.group in groups}


def test_a_report_cordons_its_node_and_only_that(site: Site) -> None:
    sick, well = site.nodes[0], site.nodes[1]
    daemon = start(site, **HEARING)
    agent, other = Voice(site, sick), Voice(site, well)
    with asked_for(site) as asked:
        assert agent.receipt(daemon) == Receipt()
        assert agent.post(daemon, agent.fault(1), node=well).status_code == 403
        fault = agent.fault(2)
        assert agent.receipt(daemon, fault).taken == (fault.id,)
        other.receipt(daemon, other.fault(1, trusted=False))
    assert asked == {("tokenreviews", "create"), ("subjectaccessreviews", "create")}
    soon("quarantined", lambda: quarantined(site, sick))
    assert is_out(site, sick)
    assert not any(ours_on(site, name) for name in site.nodes if name != sick)
    assert decision(site, sick)["plan"]["incident"] == incident_of(site, sick)

    assert agent.receipt(daemon, fault).taken == (fault.id,)
    ticks(site, 2)
    assert [one.body["event"]["sequence"] for one in site.entries(EntryKind.EVENT, node=sick)] == [2]
    assert len(site.entries(EntryKind.INCIDENT_OPENED, node=sick)) == 1
    for result, least in (("taken", 4), ("other_node", 1)):
        assert daemon.metric(f'gpuwarden_intake_requests_total{{result="{result}"}}') >= least
    assert daemon.metric('gpuwarden_intake_reports_total{result="known"}') == 1


def test_a_report_that_a_standby_took_is_acted_on_by_the_leader_and_survives_its_end(site: Site) -> None:
    sick, next_one = site.nodes[2], site.nodes[3]
    leader = start(site, "a", **HEARING)
    standby = site.start("b", ready=False, **HEARING)
    soon("it stands by", standby.ready)
    agent, second = Voice(site, sick), Voice(site, next_one)
    agent.receipt(standby, agent.fault(1))
    soon("the leader acts", lambda: is_out(site, sick) and settled(site, sick))
    assert leader.metric('gpuwarden_intake_reports_total{result="taken"}') == 0

    leader.freeze()
    second.receipt(standby, second.fault(1))
    leader.kill()
    soon("the other leads and acts", lambda: is_out(site, next_one) and settled(site, next_one))
    for node in (sick, next_one):
        assert len(site.entries(EntryKind.INCIDENT_OPENED, node=node)) == 1
        assert len(site.entries(EntryKind.EVENT, node=node)) == 1


def test_what_was_acknowledged_right_before_a_kill_is_acted_on_by_the_next_process(site: Site) -> None:
    sick = site.nodes[4]
    daemon = start(site, **HEARING)
    agent = Voice(site, sick)
    agent.receipt(daemon, agent.fault(1))
    daemon.kill()
    start(site, **HEARING)
    soon("it is out", lambda: is_out(site, sick))
    assert len(site.entries(EntryKind.EVENT, node=sick)) == 1


def test_an_api_server_that_is_away_stops_new_agents_and_no_known_one(site: Site) -> None:
    known, new = Voice(site, site.nodes[5]), Voice(site, site.nodes[6])
    daemon = start(site, **HEARING)
    known.receipt(daemon)
    site.plane.api_server.pause()
    try:
        began_s = time.monotonic()
        answer = new.post(daemon, new.fault(1, trusted=False))
        assert answer.status_code == 503
        if time.monotonic() - began_s < 50:  # or its token is not known any more
            known.receipt(daemon, known.fault(1, trusted=False))
    finally:
        site.plane.api_server.resume()
    soon("it is taken then", lambda: new.post(daemon, new.fault(1, trusted=False)).status_code == 200)


def test_what_ships_lets_an_agent_do_nothing_but_report(site: Site) -> None:
    for_us = site.plane.client(Voice(site, site.nodes[7]).token)
    for_the_server = site.plane.client(token(site.plane, None, audience=ISSUER))
    for path in ("/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/gpuwarden/secrets"):
        with pytest.raises(Forbidden):
            for_the_server.request("GET", path)
        with pytest.raises(Unauthorized):  # a token for gpuwarden is none for the API server
            for_us.request("GET", path)
    documents = yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    rules = [one["rules"] for one in documents if one["metadata"]["name"] == "gpuwarden-agent" and "rules" in one]
    assert rules == [[{"apiGroups": ["gpuwarden.io"], "resources": ["agentevents"], "verbs": ["create"]}]]
