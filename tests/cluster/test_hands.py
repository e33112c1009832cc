"""The hands on a real API server: what they change, what they leave alone, and what they make of interference."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from remediation.cluster.client import Cluster
from remediation.cluster.hands import Done, Hands
from remediation.objects import CONDITION, CORDONED_BY, TAINT_KEY
from remediation.patches import Order
from remediation.wish import Condition, NodeWish
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import until

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
WISH = NodeWish("", ("inc-a",), "xid_79", NOW, cordon=True, drain=True, quarantine=True)
FOREIGN = {"key": "maintenance.example/by", "value": "alice", "effect": "NoSchedule"}


@pytest.fixture
def node(cluster: ControlPlane) -> str:
    (name,) = cluster.add_nodes(1)
    return name


#: All that the hands may do to nodes; the tests run with no more.
ROLE = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
)
USER = "system:serviceaccount:gpuwarden:hands"


@pytest.fixture
def connection(cluster: ControlPlane) -> Cluster:
    cluster.namespace("gpuwarden")
    token = cluster.service_account("gpuwarden", "hands", cluster_role_rules=ROLE)
    return Cluster.from_kubeconfig(cluster.kubeconfig_for(token, "hands"))


@pytest.fixture
def hands(connection: Cluster) -> Hands:
    return Hands(connection, lambda: True)


def spec(cluster: ControlPlane, node: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.admin.get("Node", node)["spec"]
    return found


def test_mark_taints_cordons_and_marks_in_one_write_and_the_second_time_writes_nothing(
    cluster: ControlPlane, hands: Hands, node: str
) -> None:
    mark = cluster.audit_mark()
    assert hands.mark(node, WISH).done is Done.CHANGED
    assert hands.mark(node, WISH).done is Done.UNCHANGED
    writes = [(e.verb, e.resource) for e in cluster.audit_events(since=mark, user=USER) if e.is_write]
    assert writes == [("patch", "nodes")]
    found = cluster.admin.get("Node", node)
    assert found["spec"]["unschedulable"] is True
    assert {"key": TAINT_KEY, "value": "xid_79", "effect": "NoSchedule"} in found["spec"]["taints"]
    assert found["metadata"]["annotations"][CORDONED_BY] == "gpuwarden"


def test_taints_of_others_survive_marking_and_release(cluster: ControlPlane, hands: Hands, node: str) -> None:
    before = spec(cluster, node).get("taints", [])
    cluster.admin.patch("Node", node, {"spec": {"taints": [*before, FOREIGN]}})
    hands.mark(node, WISH)
    assert FOREIGN in spec(cluster, node)["taints"]
    assert hands.release(node).done is Done.CHANGED
    # The node controller puts a taint of its own on a cordoned node, and takes it back a moment after the cordon.
    until("only what was there before", lambda: spec(cluster, node).get("taints") == [*before, FOREIGN], within_s=20)
    after = cluster.admin.get("Node", node)
    assert not after["spec"].get("unschedulable")
    assert not [name for name in after["metadata"].get("annotations", {}) if name.startswith("gpuwarden.io/")]


def test_a_person_s_cordon_stays(cluster: ControlPlane, hands: Hands, node: str) -> None:
    cluster.admin.patch("Node", node, {"spec": {"unschedulable": True}})
    hands.mark(node, WISH)
    hands.release(node)
    assert spec(cluster, node)["unschedulable"] is True


def test_a_person_s_uncordon_is_an_order(cluster: ControlPlane, hands: Hands, node: str) -> None:
    hands.mark(node, WISH)
    cluster.admin.patch("Node", node, {"spec": {"unschedulable": False}})
    told = hands.mark(node, WISH)
    assert (told.done, told.order) == (Done.ORDERED, Order.UNCORDONED)
    assert not spec(cluster, node).get("unschedulable")
    assert hands.forget(node).done is Done.CHANGED
    assert not [taint for taint in spec(cluster, node).get("taints", []) if taint["key"] == TAINT_KEY]


@pytest.mark.parametrize("does", ["mark", "release"])
def test_a_write_by_somebody_else_in_between_is_a_conflict_and_nothing_of_theirs_is_lost(
    cluster: ControlPlane, connection: Cluster, node: str, does: str
) -> None:
    """FC098: the list of taints is one value, and a patch made from an older one would wipe what came since."""
    interfered: list[bool] = []

    def meddle() -> bool:
        """Somebody adds a taint between our read and our write, once."""
        if not interfered:
            interfered.append(True)
            taints = spec(cluster, node).get("taints", [])
            cluster.admin.patch("Node", node, {"spec": {"taints": [*taints, FOREIGN]}})
        return True

    if does == "release":
        Hands(connection, lambda: True).mark(node, WISH)
    hands = Hands(connection, meddle)
    assert (hands.mark(node, WISH) if does == "mark" else hands.release(node)).done is Done.CHANGED
    keys = [taint["key"] for taint in spec(cluster, node)["taints"]]
    assert FOREIGN["key"] in keys
    assert (TAINT_KEY in keys) is (does == "mark")


def test_a_taint_that_no_cache_has_seen_is_taken_back_all_the_same(
    cluster: ControlPlane, hands: Hands, node: str
) -> None:
    """FC099: what has to go is worked out from the server's own node, and looked for again after the write."""
    hands.mark(node, WISH)
    told = hands.release(node)  # at once: no watch can have told of the taint yet
    assert (told.done, told.detail) == (Done.CHANGED, "done, and read back")
    assert TAINT_KEY not in [taint["key"] for taint in spec(cluster, node).get("taints", [])]


def test_whoever_may_not_act_any_more_writes_nothing(cluster: ControlPlane, connection: Cluster, node: str) -> None:
    mark = cluster.audit_mark()
    assert Hands(connection, lambda: False).mark(node, WISH).done is Done.FAILED
    assert [e for e in cluster.audit_events(since=mark, user=USER) if e.is_write] == []


def test_a_node_that_is_gone_is_told(hands: Hands) -> None:
    assert hands.mark("no-such-node", WISH).done is Done.GONE


def test_the_condition_is_written_when_it_changes_and_keeps_the_kubelet_s(
    cluster: ControlPlane, hands: Hands, node: str
) -> None:
    sick = Condition("False", "GPUMemoryFault", "inc-a: broken")
    assert hands.show(node, sick, NOW).done is Done.CHANGED
    assert hands.show(node, sick, NOW).done is Done.UNCHANGED
    other = replace(sick, message="inc-b: still broken")
    assert hands.show(node, other, NOW.replace(hour=13)).done is Done.CHANGED
    conditions = {one["type"]: one for one in cluster.admin.get("Node", node)["status"]["conditions"]}
    assert conditions[CONDITION]["lastTransitionTime"] == "2026-11-01T12:00:00Z"
    assert conditions[CONDITION]["message"] == "inc-b: still broken"
    assert conditions["Ready"]["status"] == "True"
