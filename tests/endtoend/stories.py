"""What has to hold of every story, whatever happened to the one that acted in it, and the workloads it is told on."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from daemon.ledger import EntryKind
from remediation.objects import STAGE
from tests.endtoend.acts import ours_on, running
from tests.endtoend.link import Link
from tests.endtoend.site import NAMESPACE, USER, Daemon, Site
from tests.testbed.api import Object
from tests.testbed.audit import AuditEvent
from tests.testbed.manifests import budget, deployment, pod
from tests.testbed.waiting import until

#: A taint of somebody else's that keeps nothing off.
FOREIGN = {"key": "site.example/batch", "value": "x", "effect": "PreferNoSchedule"}
#: The pods of a `crew`.
CREW = 3
#: What is done to a node that has lost a GPU, and at its end.
OUT = ("no_new_work", "cordon", "drain", "quarantine", "release")
_OF_A_CORDON = "node.kubernetes.io/unschedulable"


# ------------------------------------------------------------------------------------------------------------ processes


class Replica:
    """A gpuwarden behind a link of its own; it may be started as often as it ends."""

    def __init__(self, site: Site, name: str, policy: Mapping[str, Any]) -> None:
        self.link = Link(name, site.kubeconfig)
        self.name = name
        self.site = site
        self._policy = policy
        self._daemon: Daemon | None = None
        self.link.act = self.kill

    def start(self, **extra: Any) -> Daemon:
        """Start the process, and wait for nothing."""
        self.link.passed.clear()
        at = {"kubeconfig": str(self.link.kubeconfig)}
        self._daemon = self.site.start(self.name, policy=self._policy, ready=False, kubernetes=at, **extra)
        return self._daemon

    def kill(self) -> None:
        """End the process where it is."""
        self.daemon.kill()

    def freeze(self) -> None:
        """Stop the process where it is."""
        self.daemon.freeze()

    @property
    def daemon(self) -> Daemon:
        """The process that was started last."""
        assert self._daemon is not None
        return self._daemon

    def leads(self) -> bool:
        """Whether it watches and leads."""
        return self.daemon.ready() and self.daemon.metric("gpuwarden_leader") == 1

    def stands_by(self) -> bool:
        """Whether it says that another one leads."""
        return self.daemon.ready() and "standing by" in self.daemon.readiness()


@contextmanager
def replica(site: Site, name: str, policy: Mapping[str, Any]) -> Iterator[Replica]:
    """One with its link open; its process ends with it."""
    made = Replica(site, name, policy)
    with made.link:
        yield made
        for daemon in site.daemons:
            if daemon is made._daemon:
                daemon.end()


def free_lease(site: Site) -> None:
    """As if the lease of a process that is known to be dead had run out."""
    if site.admin.find("Lease", "gpuwarden", NAMESPACE) is not None:
        site.admin.patch("Lease", "gpuwarden", {"spec": {"holderIdentity": ""}}, NAMESPACE)


# ------------------------------------------------------------------------------------------------------------ workloads


def crews(site: Site, homes: Sequence[str], spares: Sequence[str], *, min_available: int = 1) -> None:
    """On each of the homes two pods of a Deployment with a budget, which may move to the spares, and a bare one.

    The namespaces are called like the nodes.
    """
    for name in spares:
        site.admin.patch("Node", name, {"spec": {"unschedulable": True}})
    for name in homes:
        site.plane.namespace(name)
        near = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name, *spares]}
        only = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [near]}]}}
        site.admin.create(deployment("web", name, replicas=2, gpus=0, affinity={"nodeAffinity": only}))
        site.admin.create(budget("web", name, minAvailable=min_available))
        site.admin.create(pod("bare", name, nodeName=name))
    until("crews at home", lambda: all(len(running(site, name, name)) == CREW for name in homes), within_s=90)
    for name in spares:
        site.admin.patch("Node", name, {"spec": {"unschedulable": None}})
    until("spares take pods", lambda: not any(_OF_A_CORDON in site.taints(name) for name in spares), within_s=60)
    until("budgets have counted", lambda: [_healthy(one) for one in _budgets(site, homes)] == [2] * len(homes), 60)


def make_room(site: Site, home: str) -> None:
    """Let one of the two pods at a time go, whatever was said before."""
    site.admin.patch("PodDisruptionBudget", "web", {"spec": {"minAvailable": 1}}, home)


def _budgets(site: Site, spaces: Sequence[str]) -> list[Object]:
    return [one for one in site.admin.list("PodDisruptionBudget") if one["metadata"]["namespace"] in spaces]


def _healthy(one: Object) -> int:
    return int(one.get("status", {}).get("currentHealthy", 0))


@contextmanager
def budgets_watched(site: Site, spaces: Sequence[str]) -> Iterator[None]:
    """At its end: no budget has ever seen fewer healthy pods than one."""
    seen: list[tuple[str, int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            seen.extend((one["metadata"]["namespace"], _healthy(one)) for one in _budgets(site, spaces))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert {space for space, _ in seen} == set(spaces)
    assert min(healthy for _, healthy in seen) >= 1


# ----------------------------------------------------------------------------------------------------------- assertions


def writes(site: Site, since: int | None = None) -> list[AuditEvent]:
    """What gpuwarden has asked to change of nodes and pods, in order."""
    return [
        one
        for one in site.plane.audit_events(site.audit_from if since is None else since, USER)
        if one.is_write and one.resource.partition("/")[0] in ("nodes", "pods")
    ]


def assert_given_back(site: Site, node: str) -> None:
    """A node was taken out once and given back once, whatever happened meanwhile, and all of it is explained."""
    assert not ours_on(site, node)
    assert not site.is_cordoned(node)
    assert site.condition(node) == "True"
    _assert_once(site, node)
    _assert_record_whole(site, node)
    told = site.explain(node)
    assert [(one["action"], one["ending"]) for one in sorted(told["attempts"], key=_place)] == [
        (a, "done") for a in OUT
    ]
    assert all(one["ended"] for one in told["attempts"])
    assert not told["incidents"]
    assert told["breaker"]["open_since"] is None


def _place(attempt: Mapping[str, Any]) -> int:
    return OUT.index(attempt["action"])


def _assert_once(site: Site, node: str) -> None:
    """It was cordoned once, quarantined once, and given back once, however often somebody began to."""
    patches = [one.body for one in writes(site) if (one.resource, one.name, one.succeeded) == ("nodes", node, True)]
    stages = [body["metadata"].get("annotations", {}).get(STAGE, "") for body in patches]
    cordons = [body["spec"]["unschedulable"] for body in patches if "unschedulable" in body.get("spec", {})]
    assert (stages[0], stages.count("quarantined"), stages.count(None)) == ("draining", 1, 1)
    assert cordons == [True, False]


def _assert_record_whole(site: Site, node: str) -> None:
    """Each attempt has one outcome, and each action was attempted once."""
    begun = Counter(_of_attempt(one.body) for one in site.entries(EntryKind.ATTEMPT, node=node))
    ended = Counter(_of_attempt(one.body) for one in site.entries(EntryKind.OUTCOME, node=node))
    assert begun == ended
    assert sorted(action for _, action, _ in begun.elements()) == sorted(OUT)


def _of_attempt(body: Mapping[str, Any]) -> tuple[str, str, int]:
    return body["incident"], body["action"], body["number"]


def assert_one_at_a_time(site: Site) -> None:
    """Whoever wrote to a node or a pod held the lease when the API server got it. Links tell replicas apart."""
    holder = ""
    for one in sorted(site.plane.audit_events(site.audit_from, USER), key=lambda event: event.at):
        if one.resource == "leases" and one.is_write and one.succeeded:
            holder = one.user_agent if one.body["spec"]["holderIdentity"] else ""
        elif one.is_write and one.resource.partition("/")[0] in ("nodes", "pods"):
            assert one.user_agent == holder, f"{one.user_agent} wrote {one.uri} while {holder or 'nobody'} led"
