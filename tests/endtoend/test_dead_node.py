"""A node that is off: its pods hang there, and only a person's word that nothing can write any more frees them."""

import time
from datetime import UTC, datetime

from daemon.journal import entry_of
from daemon.ledger import Ledger
from remediation.people import Saying, Word
from tests.endtoend.site import Site
from tests.testbed.manifests import stateful_set
from tests.testbed.waiting import until

SPACE = "train"
OFF = "node.kubernetes.io/out-of-service"


def test_pods_on_a_dead_node_are_given_up_only_after_a_person_has_said_that_it_is_off(site: Site) -> None:
    sick, *others = site.nodes
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": True}})
    site.plane.namespace(SPACE)
    site.admin.create(stateful_set("db", SPACE, grace_s=1))
    until("the pod runs", lambda: [p for p in site.pods_on(sick) if p["status"].get("phase") == "Running"], within_s=90)
    (uid,) = {p["metadata"]["uid"] for p in site.pods_on(sick)}
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": None}})
    site.start(policy={"drain": {"out_of_service": True, "stuck_after": "2s"}})

    site.plane.lose_node(sick)
    until("silent", lambda: _ready(site, sick) == "Unknown", within_s=30)
    time.sleep(4)  # kwok hears a moment later that this kubelet is not its own any more
    site.xid(sick)
    until("a person is asked", lambda: "GPUWardenDrainNeedsAPerson" in site.events(sick), within_s=120)
    assert OFF not in site.taints(sick)
    assert [p["metadata"]["uid"] for p in site.admin.list("Pod", SPACE)] == [uid]

    with Ledger.open(f"sqlite:///{site.folder / 'ledger.db'}", now=lambda: datetime.now(UTC)) as ledger:
        ledger.append([entry_of(Saying(datetime.now(UTC), Word.FENCED, "alice", sick, why="switched off at the rack"))])
    until("declared off", lambda: OFF in site.taints(sick), within_s=60)
    until("the pod runs elsewhere", lambda: _runs_elsewhere(site, uid, sick), within_s=120)
    until("quarantined", lambda: site.stage(sick) == "quarantined", within_s=60)

    site.plane.find_node(sick)
    site.boots(sick)
    until("given back", lambda: not site.stage(sick), within_s=120)
    assert not {OFF, "gpuwarden.io/quarantine"} & site.taints(sick)
    assert not [name for name in site.node(sick)["metadata"]["annotations"] if name.startswith("gpuwarden.io/")]


def _ready(site: Site, name: str) -> str:
    return str(next(one["status"] for one in site.node(name)["status"]["conditions"] if one["type"] == "Ready"))


def _runs_elsewhere(site: Site, uid: str, sick: str) -> bool:
    found = site.admin.list("Pod", SPACE)
    return any(
        one["metadata"]["uid"] != uid and one["spec"].get("nodeName") not in (None, sick)
        and one["status"].get("phase") == "Running"
        for one in found
    )  # fmt: skip
