"""A drain on a real API server: every kind of pod, a budget that holds, and nothing touched that must not be."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest

from remediation.cluster.answers import Eviction
from remediation.cluster.client import Cluster
from remediation.cluster.evictions import Evictor, PodOutcome
from remediation.cluster.hands import Done, Hands
from remediation.cluster.view import ClusterView
from remediation.drain import Drain, Fate, drain, fates
from remediation.objects import DO_NOT_EVICT
from remediation.wish import NodeWish
from rules.schema import DrainPolicy
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import budget, daemon_set, deployment, job, pod, stateful_set
from tests.testbed.waiting import until

SPACE = "train"
WISH = NodeWish("", ("inc-a",), "xid_79", datetime(2026, 11, 1, tzinfo=UTC), cordon=True, drain=True, quarantine=True)
#: All that marking and draining may do; the tests run with no more.
ROLE = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch"]},
)
USER = "system:serviceaccount:gpuwarden:drainer"


class Drainer:
    """What the daemon will do at each tick, done by hand."""

    def __init__(self, cluster: ControlPlane, connection: Cluster, policy: DrainPolicy) -> None:
        self.cluster = cluster
        self.connection = connection
        self.policy = policy
        self.started = datetime.now(UTC)
        self.least_healthy: list[int] = []

    def round(self, view: ClusterView, evictor: Evictor, node: str) -> tuple[Drain, tuple[PodOutcome, ...]]:
        seen = view.snapshot()
        told = fates(
            seen.pods_by_node.get(node, ()), seen.nodes[node], self.policy, started=self.started, now=seen.as_of
        )
        plan = drain(told, self.policy)
        return plan, evictor.round(plan.evict, seen.pdbs)

    def until_done(self, node: str, within_s: float = 40) -> list[PodOutcome]:
        """Round after round, as ticks would, until the node holds nothing that a drain cares for."""
        outcomes: list[PodOutcome] = []
        with ClusterView(self.connection) as view, Evictor(self.connection, lambda: True) as evictor:
            assert view.wait(20)
            end = time.monotonic() + within_s
            while time.monotonic() < end:
                plan, came_of_it = self.round(view, evictor, node)
                outcomes.extend(came_of_it)
                for one in self.cluster.admin.list("PodDisruptionBudget", SPACE):
                    self.least_healthy.append(one["status"].get("currentHealthy", 0))
                if plan.done:
                    return outcomes
                time.sleep(0.3)
        pytest.fail(f"not drained after {within_s} s: {plan}")


@pytest.fixture
def connection(cluster: ControlPlane) -> Iterator[Cluster]:
    cluster.namespace("gpuwarden")
    cluster.namespace(SPACE)
    token = cluster.service_account("gpuwarden", "drainer", cluster_role_rules=ROLE)
    with closing(Cluster.from_kubeconfig(cluster.kubeconfig_for(token, "drainer"))) as made:
        yield made


def running(cluster: ControlPlane, count: int) -> list[dict[str, Any]]:
    def all_run() -> bool:
        found = cluster.admin.list("Pod", SPACE)
        return len(found) == count and all(one["status"].get("phase") == "Running" for one in found)

    until(f"{count} pods running", all_run, within_s=40)
    return list(cluster.admin.list("Pod", SPACE))


def on(cluster: ControlPlane, node: str) -> set[str]:
    """Names of what still runs on a node, without the random tails of controllers."""
    found = cluster.admin.list("Pod", SPACE)
    return {one["metadata"]["name"] for one in found if one["spec"].get("nodeName") == node}


def test_a_node_with_every_kind_of_pod_is_drained_and_the_budget_holds(
    cluster: ControlPlane, connection: Cluster
) -> None:
    (sick,) = cluster.add_nodes(1)
    cluster.admin.create(deployment("web", SPACE, replicas=2))
    cluster.admin.create(budget("web", SPACE, minAvailable=1))
    cluster.admin.create(stateful_set("db", SPACE))
    cluster.admin.create(job("train", SPACE))
    cluster.admin.create(pod("bare", SPACE))
    cluster.admin.create(daemon_set("agent", SPACE))
    running(cluster, 6)
    cluster.add_nodes(1)
    running(cluster, 7)  # the DaemonSet's pod on the second node
    assert Hands(connection, lambda: True).mark(sick, WISH).done is Done.CHANGED

    drainer = Drainer(cluster, connection, DrainPolicy(allow_unmanaged=True))
    outcomes = drainer.until_done(sick)

    # An evicted pod that has ended stands there for a moment before it is gone.
    until(
        "only the DaemonSet's pod", lambda: {n.rsplit("-", 1)[0] for n in on(cluster, sick)} == {"agent"}, within_s=40
    )
    assert all(one.evicted is None or one.evicted.is_over for one in outcomes), outcomes
    assert min(drainer.least_healthy) >= 1
    until("all of it runs elsewhere", lambda: len(running(cluster, 6)) == 6, within_s=40)


def test_one_pod_that_must_not_move_holds_the_drain_up_and_nothing_is_written(
    cluster: ControlPlane, connection: Cluster
) -> None:
    (node,) = cluster.add_nodes(1)
    cluster.admin.create(deployment("web", SPACE))
    kept = pod("kept", SPACE)
    kept["metadata"].setdefault("annotations", {})[DO_NOT_EVICT] = "true"
    cluster.admin.create(kept)
    running(cluster, 2)
    mark = cluster.audit_mark()
    drainer = Drainer(cluster, connection, DrainPolicy(allow_unmanaged=True))
    with ClusterView(connection) as view, Evictor(connection, lambda: True) as evictor:
        assert view.wait(20)
        plan, outcomes = drainer.round(view, evictor, node)
    assert [one.pod.name for one in plan.asks] == ["kept"]
    assert outcomes == ()
    assert [event for event in cluster.audit_events(since=mark, user=USER) if event.is_write] == []


def test_a_budget_that_never_yields_is_not_asked_again_and_again(cluster: ControlPlane, connection: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    cluster.admin.create(deployment("web", SPACE))
    cluster.admin.create(budget("web", SPACE, minAvailable=1))
    running(cluster, 1)
    mark = cluster.audit_mark()
    drainer = Drainer(cluster, connection, DrainPolicy())
    with ClusterView(connection) as view, Evictor(connection, lambda: True) as evictor:
        assert view.wait(20)
        until("the budget's status", lambda: any(b.current and b.expected for b in view.snapshot().pdbs), within_s=20)
        for _ in range(3):
            plan, (outcome,) = drainer.round(view, evictor, node)
            assert [one.fate for one in plan.evict] == [Fate.EVICT]
            assert outcome.evicted is None
            assert "web" in outcome.detail
    assert [event for event in cluster.audit_events(since=mark, user=USER) if event.is_write] == []
    assert len(on(cluster, node)) == 1


def test_whoever_may_not_act_any_more_evicts_nothing(cluster: ControlPlane, connection: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    cluster.admin.create(deployment("web", SPACE))
    running(cluster, 1)
    with ClusterView(connection) as view, Evictor(connection, lambda: False) as evictor:
        assert view.wait(20)
        _, (outcome,) = Drainer(cluster, connection, DrainPolicy()).round(view, evictor, node)
    assert (outcome.evicted, "not the leader" in outcome.detail) == (None, True)


def test_a_pod_that_was_replaced_under_its_name_is_left_alone(cluster: ControlPlane, connection: Cluster) -> None:
    (node,) = cluster.add_nodes(1)
    cluster.admin.create(stateful_set("db", SPACE))
    running(cluster, 1)
    with ClusterView(connection) as view, Evictor(connection, lambda: True) as evictor:
        assert view.wait(20)
        seen = view.snapshot()
        old = fates(seen.pods_by_node[node], seen.nodes[node], DrainPolicy(), started=seen.as_of, now=seen.as_of)
        cluster.admin.delete("Pod", "db-0", SPACE)
        until("the next db-0", lambda: running(cluster, 1)[0]["metadata"]["uid"] != old[0].pod.uid, within_s=40)
        (outcome,) = evictor.round(old, ())
    assert outcome.evicted is not None
    assert outcome.evicted.result is Eviction.REPLACED
    assert len(on(cluster, node)) == 1
