"""A GPU falls off the bus: from the driver's line to a quarantined node, and back, with the role that ships."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from daemon.ledger import EntryKind
from tests.endtoend.site import ROOT, USER, Site
from tests.testbed.api import Object
from tests.testbed.audit import AuditEvent
from tests.testbed.manifests import budget, daemon_set, deployment, job, pod, stateful_set
from tests.testbed.waiting import until

SPACE = "train"
PODS = 6
#: What a mode that acts needs; restarts of jobs, operations and agents have roles of their own.
ROLES = ("gpuwarden-read", "gpuwarden-act", "gpuwarden-lease", "gpuwarden-events")
THEIRS = {"key": "site.example/batch", "value": "x", "effect": "PreferNoSchedule"}


def one_of_each_on(site: Site, node: str) -> None:
    """A Deployment with a budget, a StatefulSet, a Job, a DaemonSet and a bare pod, all on this node."""
    others = [name for name in site.nodes if name != node]
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": True}})
    site.plane.namespace(SPACE)
    site.admin.create(deployment("web", SPACE, replicas=2))
    site.admin.create(budget("web", SPACE, minAvailable=1))
    site.admin.create(stateful_set("db", SPACE))
    site.admin.create(job("train", SPACE))
    site.admin.create(pod("bare", SPACE))
    site.admin.create(daemon_set("agent", SPACE))

    def all_run() -> bool:
        here = [one for one in site.pods_on(node) if one["metadata"]["namespace"] == SPACE]
        return len(here) == PODS and all(one["status"].get("phase") == "Running" for one in here)

    until("one of each runs", all_run, within_s=90)
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": None}})


def left_of(site: Site, node: str) -> set[str]:
    return {one["metadata"]["name"].rsplit("-", 1)[0] for one in site.pods_on(node)}


def own_state(found: Object) -> Any:
    """What of a node is ours to change, without what the node controller adds for a cordon and takes away later."""
    taints = [t for t in found["spec"].get("taints", ()) if t["key"] != "node.kubernetes.io/unschedulable"]
    annotations = found["metadata"].get("annotations", {})
    return bool(found["spec"].get("unschedulable")), taints, annotations, found["metadata"]["labels"]


@contextmanager
def least_healthy(site: Site) -> Iterator[list[int]]:
    """The fewest healthy pods that the budget has seen."""
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found = site.admin.find("PodDisruptionBudget", "web", SPACE)
            if found is not None and found.get("status", {}).get("expectedPods"):
                seen.append(found["status"]["currentHealthy"])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_a_lost_gpu_takes_its_node_out_and_its_end_gives_it_back(site: Site) -> None:
    sick = site.nodes[0]
    one_of_each_on(site, sick)
    site.admin.patch("Node", sick, {"spec": {"taints": [THEIRS]}})
    site.start()
    until("the condition is told", lambda: site.condition(sick) == "True", within_s=60)
    before = own_state(site.node(sick))

    with least_healthy(site) as healthy:
        site.xid(sick)
        until("quarantined", lambda: site.stage(sick) == "quarantined", within_s=120)

    assert site.is_cordoned(sick)
    assert {THEIRS["key"], "gpuwarden.io/quarantine"} <= site.taints(sick)
    assert left_of(site, sick) == {"agent"}
    assert min(healthy) >= 1
    assert site.condition(sick) == "False"
    assert {site.condition(name) for name in site.nodes[1:]} == {"True"}
    assert site.outcomes(sick) == [(a, "done") for a in ("no_new_work", "cordon", "drain", "quarantine")]
    until("the Events", lambda: {"GPUWardenCordoned", "GPUWardenDraining", "GPUWardenQuarantined"} <= site.events(sick))
    notes = site.node(sick)["metadata"]["annotations"]
    incident = site.entries(EntryKind.INCIDENT_OPENED, node=sick)[0].incident
    assert (notes["gpuwarden.io/incident"], notes["gpuwarden.io/reason"]) == (incident, "xid_79")

    site.boots(sick)
    until("given back", lambda: not site.stage(sick), within_s=120)

    until("as it was", lambda: own_state(site.node(sick)) == before, within_s=30)
    until("well again", lambda: site.condition(sick) == "True", within_s=30)
    until("its release is told", lambda: "GPUWardenReleased" in site.events(sick))
    assert site.outcomes(sick)[-1] == ("release", "done")
    assert not any(site.is_cordoned(name) or "gpuwarden.io/quarantine" in site.taints(name) for name in site.nodes[1:])
    the_ledger_came_first(site, sick)
    used = verbs_used(site.plane.audit_events(site.audit_from, USER))
    assert used == verbs_shipped(*ROLES)


def the_ledger_came_first(site: Site, node: str) -> None:
    """Each patch of the node lies between an attempt's entry and its outcome."""
    patches = [
        event
        for event in site.plane.audit_events(site.audit_from, USER)
        if event.verb == "patch" and event.resource == "nodes" and event.name == node and event.succeeded
    ]
    attempts = site.entries(EntryKind.ATTEMPT, node=node)
    outcomes = site.entries(EntryKind.OUTCOME, node=node)
    decided = site.decisions(node)
    assert len(patches) == 3  # taken out, quarantined, given back
    for patch in patches:
        assert any(entry.written <= patch.at for entry in attempts), patch
        assert any(entry.written >= patch.at for entry in outcomes), patch
    assert decided[0].written <= patches[0].at


def verbs_used(events: list[AuditEvent]) -> set[tuple[str, str]]:
    """(resource, verb) of everything that was asked for, but of kinds that this cluster has not."""
    return {(event.resource, event.verb) for event in events if event.code != 404}


def verbs_shipped(*roles: str) -> set[tuple[str, str]]:
    """(resource, verb) that these roles of deploy/rbac.yaml grant, for kinds that every cluster has."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    everywhere = {"", "policy", "batch", "coordination.k8s.io"}
    return {
        (resource, verb)
        for document in documents
        if document["metadata"]["name"] in roles
        for rule in document.get("rules", ())
        if set(rule["apiGroups"]) <= everywhere
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
