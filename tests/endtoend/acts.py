"""What people and the cluster do in the tests of this folder, and what is asked afterwards."""

import io
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from typing import Any, TypeVar

from daemon.commands.explain import explain
from daemon.journal import entry_of
from daemon.ledger import EntryKind, Ledger
from remediation.objects import CORDONED_BY, INCIDENT, TAINT_KEY
from remediation.people import Saying, Word
from tests.endtoend.site import NAMESPACE, USER, Daemon, Site
from tests.testbed.api import Object
from tests.testbed.audit import AuditEvent
from tests.testbed.waiting import TestbedError, until

T = TypeVar("T")

#: No common cause, no breaker, half of the fleet may go: for tests that are about something else.
UNBOUND: dict[str, Any] = {
    "incidents": {"common_cause": {"min_nodes": 99}},
    "breaker": {"min_nodes": 99},
    "limits": {"max_unavailable_share": 0.5, "max_unavailable_share_of_pool": 0.5},
}
#: So old the view of a quiet cluster may be; before the first list it is infinitely old.
_SEEN_S = 60.0
#: How the cordon of whoever it was shows beside ours; the node controller adds and removes it when it gets to it.
_OF_A_CORDON = "node.kubernetes.io/unschedulable"


def unbound(**policy: Mapping[str, Any]) -> dict[str, Any]:
    """UNBOUND, with these sections over it."""
    return {name: {**UNBOUND.get(name, {}), **policy.get(name, {})} for name in UNBOUND.keys() | policy.keys()}


def soon(what: str, ready: Callable[[], T | None], within_s: float = 120) -> T:
    """`until`, for what takes seconds: asked less often, since two busy cores have better things to do."""
    return until(what, ready, within_s, every_s=0.25)


def start(site: Site, name: str = "a", **how: Any) -> Daemon:
    """`site.start`, once each GPU can be judged and the cluster is known.

    The lease is given back by whoever had it: nobody waits for it to run out.
    """
    if site.admin.find("Lease", "gpuwarden", NAMESPACE) is None:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": ""}}
        site.admin.create(lease | {"metadata": {"name": "gpuwarden", "namespace": NAMESPACE}})
    daemon = site.start(name, **how)
    gpus = len(site.telemetry.fleet.shape.gpus)
    soon("all GPUs are seen", lambda: daemon.metric("gpuwarden_gpus{") >= gpus)
    soon("all are judged", lambda: not daemon.metric('gpuwarden_gpus{state="unknown"}'))
    soon("the cluster is seen", lambda: daemon.metric("gpuwarden_cluster_age_seconds") < _SEEN_S)
    return daemon


def ticks(site: Site, count: int) -> None:
    """Wait for so many more ticks of the process that was started last."""
    daemon = site.daemons[-1]
    began = daemon.metric("gpuwarden_ticks_total")
    soon(f"{count} more ticks", lambda: daemon.metric("gpuwarden_ticks_total") >= began + count)


# ------------------------------------------------------------------------------------------------------------- cluster


def put_on(site: Site, node: str, space: str, *manifests: Object) -> list[str]:
    """Create these and have all their pods run on this node, while the others are closed; returns the pods' names."""
    site.plane.namespace(space)
    others = [name for name in site.nodes if name != node]
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": True}})
    for manifest in manifests:
        site.admin.create(manifest)
    wanted = sum(pods_of(manifest) for manifest in manifests)

    def run_there() -> list[str]:
        here = running(site, node, space)
        return here if len(here) == wanted else []

    try:
        found = soon(f"{wanted} pods of {space} run on {node}", run_there)
    except TestbedError as late:
        seen = [(one["metadata"]["name"], one["spec"].get("nodeName"), one["status"]) for one in _pods(site, space)]
        raise TestbedError(f"{late}; pods: {seen}; taints of {node}: {site.taints(node)}") from late
    for name in others:
        site.admin.patch("Node", name, {"spec": {"unschedulable": None}})
    soon("the others take pods", lambda: not any(_OF_A_CORDON in site.taints(name) for name in others))
    return found


def _pods(site: Site, space: str) -> list[Object]:
    return [one for one in site.admin.list("Pod") if one["metadata"]["namespace"] == space]


def pods_of(manifest: Object) -> int:
    """How many pods a manifest makes on one node."""
    if manifest["kind"] == "PodDisruptionBudget":
        return 0
    return int(manifest["spec"].get("replicas") or manifest["spec"].get("parallelism") or 1)


def running(site: Site, node: str, space: str) -> list[str]:
    """Names of the pods of a namespace that run on a node."""
    return sorted(
        one["metadata"]["name"]
        for one in site.pods_on(node)
        if one["metadata"]["namespace"] == space
        and one["status"].get("phase") == "Running"
        and not one["metadata"].get("deletionTimestamp")
    )


def ours_on(site: Site, node: str) -> set[str]:
    """Keys of what a node carries of ours, be it a taint or an annotation."""
    found = site.node(node)
    annotations = found["metadata"].get("annotations", {})
    keys = {taint["key"] for taint in found["spec"].get("taints", ())} | annotations.keys()
    return {key for key in keys if key.startswith("gpuwarden.io/")}


def is_out(site: Site, node: str) -> bool:
    """Whether a node is cordoned and tainted by us."""
    return site.is_cordoned(node) and {TAINT_KEY, INCIDENT, CORDONED_BY} <= ours_on(site, node)


def out_of(site: Site, nodes: Iterable[str]) -> set[str]:
    """Those of these nodes that carry anything of ours."""
    return {name for name in nodes if ours_on(site, name)}


def settled(site: Site, *nodes: str) -> bool:
    """Whether each attempt on these nodes has its outcome: that comes a moment after what can be seen of it."""
    return all(
        len(site.entries(EntryKind.ATTEMPT, node=name)) == len(site.entries(EntryKind.OUTCOME, node=name))
        for name in nodes
    )


def quarantined(site: Site, *nodes: str) -> bool:
    """Whether all of these have come to the end of being taken out."""
    return all(site.stage(name) == "quarantined" for name in nodes) and settled(site, *nodes)


def given_back(site: Site, node: str) -> bool:
    """Whether it carries nothing of ours any more, and the ledger says so."""
    return not ours_on(site, node) and settled(site, node)


def requests(site: Site, verb: str, resource: str, name: str | None = None) -> list[AuditEvent]:
    """What gpuwarden has asked for of that kind since the start of the test, dry runs left out."""
    return [
        one
        for one in site.plane.audit_events(site.audit_from, USER)
        if (one.verb, one.resource) == (verb, resource) and not one.dry_run and name in (None, one.name)
    ]


def evicted(site: Site) -> list[str]:
    """Pods whose eviction was asked for and granted, in order."""
    return [one.name for one in requests(site, "create", "pods/eviction") if one.succeeded]


# -------------------------------------------------------------------------------------------------------------- people


def say(site: Site, word: Word, node: str = "", incidents: Collection[str] = (), **about: Any) -> Saying:
    """A person says something: an entry of the ledger."""
    saying = Saying(datetime.now(UTC), word, "erin", node, tuple(incidents), **about)
    with book_of(site) as ledger:
        ledger.append([entry_of(saying)])
    return saying


def book_of(site: Site, name: str = "ledger") -> Ledger:
    """One of the site's ledgers, opened: a context manager."""
    return Ledger.open(f"sqlite:///{site.folder / name}.db", now=lambda: datetime.now(UTC), busy_timeout_s=30)


def words(site: Site, node: str) -> list[str]:
    """What was said about a node, by whomever, oldest first."""
    return [str(one.body["word"]) for one in site.entries(EntryKind.HUMAN, node=node)]


# --------------------------------------------------------------------------------------------------- what is explained


def explained(site: Site, node: str, name: str = "a") -> Any:
    """What `gpuwarden explain NODE -o json` prints, without the second that a process takes to start."""
    with redirect_stdout(io.StringIO()) as out:
        assert explain(node, site.folder / f"gpuwarden-{name}.yaml", "json") == 0
    return json.loads(out.getvalue())


def decision(site: Site, node: str) -> Any:
    """The newest decision about a node as `explain` tells it, None where nothing is open."""
    return next(iter(explained(site, node)["decisions"]), None)


def stopped_by(told: Any) -> set[str]:
    """Names of the gates that a decision did not pass."""
    return {gate["name"] for gate in told["gates"] if not gate["passed"]} if told else set()


def reason(told: Any, name: str) -> str:
    """What a gate of a decision says."""
    return str(next(gate["reason"] for gate in told["gates"] if gate["name"] == name))


def newest(site: Site, node: str) -> Any:
    """The newest decision about a node in the ledger, None where there is none: cheaper to ask than `explain`."""
    found = site.decisions(node)
    return found[-1].body if found else None


def waits_for(site: Site, node: str, *gates: str) -> bool:
    """Whether the newest decision about a node is held by all these gates."""
    return set(gates) <= stopped_by(newest(site, node))


def incident_of(site: Site, node: str) -> str:
    """The id of the newest incident that was opened on a node."""
    return str(site.entries(EntryKind.INCIDENT_OPENED, node=node)[-1].incident)


def endings(told: Any) -> dict[str, str]:
    """By action, how the newest attempt at it ended, as `explain` tells it."""
    return {one["action"]: one["ending"] for one in told["attempts"]}
