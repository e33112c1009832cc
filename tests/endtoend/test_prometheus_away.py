"""Prometheus is gone in the middle of a story: what was done stays, nothing is begun, and it goes on afterwards."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from daemon.ledger import EntryKind
from remediation.drain import DRAIN_DEADLINE, DRAIN_MODE
from tests.endtoend import acts
from tests.endtoend.acts import (
    decision,
    endings,
    evicted,
    explained,
    incident_of,
    is_out,
    newest,
    ours_on,
    quarantined,
    reason,
    running,
    soon,
    start,
    stopped_by,
    ticks,
    unbound,
)
from tests.endtoend.site import Site, Telemetry, telemetry
from tests.prometheus_server import PrometheusServer
from tests.testbed.manifests import deployment

SPACE = "train"


@pytest.fixture
def seen(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Telemetry]:
    """A Prometheus for one test, since it is going to end."""
    with telemetry(prometheus_binary, tmp_path_factory.mktemp("own")) as served:
        yield served


def goes_away(server: PrometheusServer) -> None:
    server.process.terminate()
    server.process.wait(20)


def comes_back(server: PrometheusServer) -> None:
    """On the same port, with what it had stored."""
    server.process = subprocess.Popen(server.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    soon("Prometheus is back", lambda: requests.get(f"{server.url}/-/ready", timeout=5).ok)


def states(told: Any) -> set[str]:
    return {gpu["state"] for gpu in told["gpus"]}


def test_a_drain_stops_while_prometheus_is_away_and_goes_on_when_it_is_back(site: Site, seen: Telemetry) -> None:
    sick, later, well = site.nodes[2], site.nodes[5], site.nodes[0]
    site.plane.namespace(SPACE)
    waits = {DRAIN_MODE: "evict_after_deadline", DRAIN_DEADLINE: "1h"}
    site.admin.create(deployment("late", SPACE, annotations=waits, nodeSelector={"kubernetes.io/hostname": sick}))
    soon("a pod runs", lambda: running(site, sick, SPACE))
    (late,) = running(site, sick, SPACE)
    daemon = start(site, policy=unbound(limits={**unbound()["limits"], "max_snapshot_age": "8s"}))
    soon("the condition is told", lambda: site.condition(well) == "True")
    site.xid(sick)
    soon("a drain waits for the pod", lambda: ("drain", "pending") in endings(explained(site, sick)).items())

    goes_away(seen.server)
    soon("it is blind", lambda: not daemon.ready())
    soon("what is known is too old", lambda: time.time() > daemon.metric("gpuwarden_snapshot_timestamp_seconds") + 9)
    site.admin.patch("Pod", late, {"metadata": {"annotations": {DRAIN_DEADLINE: "1s"}}}, SPACE)
    ticks(site, 2)
    assert running(site, sick, SPACE) == [late]
    site.xid(later)
    soon("the kernel's word is heard", lambda: newest(site, later))
    ticks(site, 2)

    assert "all verdicts are unknown" in daemon.readiness()
    assert is_out(site, sick)
    assert running(site, sick, SPACE) == [late]
    told = explained(site, sick)
    assert states(told) == {"unknown"}
    assert "Prometheus cannot be asked" in told["source"]
    assert endings(told) == {"no_new_work": "done", "cordon": "done", "drain": "pending"}
    told = explained(site, later)
    (about,) = told["decisions"]
    assert (about["ruling"], about["allowed"]) == ("wait", [])
    assert "snapshot_fresh" in stopped_by(about)
    assert "could not be asked for" in reason(about, "snapshot_fresh")
    assert told["attempts"] == []
    assert not ours_on(site, later)
    soon("the condition is unknown", lambda: site.condition(well) == "Unknown")
    assert {site.condition(name) for name in (sick, later)} == {"False"}
    assert evicted(site) == []
    assert not acts.requests(site, "patch", "nodes", later)
    heard = incident_of(site, later)

    comes_back(seen.server)
    soon("both are quarantined", lambda: quarantined(site, sick, later))
    for name in (sick, later):
        assert set(endings(explained(site, name)).values()) == {"done"}
    assert evicted(site) == [late]
    assert decision(site, later)["plan"]["incident"] == heard
    assert len(site.entries(EntryKind.INCIDENT_OPENED)) == 2
    soon("it can tell again", lambda: site.condition(well) == "True")
