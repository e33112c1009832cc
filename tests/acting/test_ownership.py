"""Who else has a hand on a node, and what counts as out of service."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.objects import (
    CORDONED_BY,
    DECLARED_OFF_BY,
    INCIDENT,
    MANAGED,
    OFF_TAINT,
    OUT_OF_SERVICE,
    OWNER,
    TAINT_KEY,
    Effect,
    NodeView,
    Taint,
)
from remediation.ownership import (
    SENTINEL_STATE,
    UPGRADE_STATE,
    claimed_by_others,
    is_out_for_good,
    opted_out,
    out_because,
)
from tests.acting.views import node

DECLARED = {DECLARED_OFF_BY: OWNER}
ORDINARY = ("nvidia.com/gpu", "node-role.kubernetes.io/*")


def tainted(key: str, effect: str = Effect.NO_SCHEDULE, **fields) -> NodeView:
    return node(taints=(Taint(key, effect),), **fields)


@pytest.mark.parametrize(
    ("given_node", "said"),
    [
        pytest.param(node(), "", id="no label opts it out"),
        pytest.param(node(labels={MANAGED: "false"}), f"{MANAGED}=false", id="our label does"),
        pytest.param(node(labels={MANAGED: "False"}), f"{MANAGED}=False", id="however it is spelled"),
        pytest.param(node(labels={MANAGED: "true"}), "", id="true opts nothing out"),
        pytest.param(node(annotations={MANAGED: "false"}), "", id="an annotation is no label"),
        pytest.param(node(labels={"k8saas.nvidia.com/ManagedByNVSentinel": "false"}),
                     "k8saas.nvidia.com/ManagedByNVSentinel=false", id="the label that keeps NVSentinel away does too"),
    ],
)  # fmt: skip
def test_a_label_opts_a_node_out(given_node: NodeView, said: str) -> None:
    assert opted_out(given_node) == said


@pytest.mark.parametrize(
    ("given_node", "signs"),
    [
        pytest.param(node(), [], id="a node in service is nobody's"),
        pytest.param(node(ours=True), [], id="our own cordon is no sign of others"),
        pytest.param(node(unschedulable=True), ["cordoned by a person or another tool"], id="FC101 a person's cordon"),
        pytest.param(node(unschedulable=True, annotations={CORDONED_BY: "ann"}), ["cordoned by ann"],
                     id="FC101 a cordon with a name on it"),
        pytest.param(node(annotations={CORDONED_BY: OWNER}), ["uncordoned by somebody"],
                     id="a person's uncordon of ours is an order to stop"),
        pytest.param(node(annotations={INCIDENT: "inc-1"}), ["untainted by somebody"], id="so is a taint taken off"),
        pytest.param(tainted("ToBeDeletedByClusterAutoscaler"), ["cluster-autoscaler removes it"],
                     id="cluster-autoscaler's taint"),
        pytest.param(tainted("DeletionCandidateOfClusterAutoscaler", Effect.PREFER_NO_SCHEDULE), ["is about to remove"],
                     id="its softer one"),
        pytest.param(tainted("karpenter.sh/disrupted"), ["Karpenter disrupts it"], id="Karpenter's taint"),
        pytest.param(tainted("karpenter.sh/disruption"), ["Karpenter disrupts it"], id="its older one"),
        pytest.param(tainted("node.kubernetes.io/out-of-service", Effect.NO_EXECUTE), ["declared out of service"],
                     id="a fenced machine"),
        pytest.param(node(taints=(OFF_TAINT,), annotations=DECLARED), [], id="one that we have declared off"),
        pytest.param(node(taints=(OFF_TAINT,), annotations={DECLARED_OFF_BY: "ann"}), ["declared out of service"],
                     id="one that somebody else has signed"),
        pytest.param(tainted(OUT_OF_SERVICE, Effect.NO_EXECUTE, annotations=DECLARED), ["declared out of service"],
                     id="one where another taint stands where ours did"),
        pytest.param(node(taints=(OFF_TAINT, Taint(OUT_OF_SERVICE, Effect.NO_SCHEDULE)), annotations=DECLARED),
                     ["declared out of service"], id="or beside ours"),
        pytest.param(tainted("team"), [], id="a taint of nobody's claims nothing"),
        pytest.param(node(annotations={"karpenter.sh/do-not-disrupt": "true"}), ["do-not-disrupt is true"],
                     id="a node that must not be disrupted"),
        pytest.param(node(annotations={"karpenter.sh/do-not-disrupt": "false"}), [], id="false forbids nothing"),
        pytest.param(node(labels={UPGRADE_STATE: "upgrade-done"}), [], id="a finished driver upgrade"),
        pytest.param(node(labels={UPGRADE_STATE: "upgrade-required"}), ["at upgrade-required"], id="one that waits"),
        pytest.param(node(labels={UPGRADE_STATE: "drain-required"}), ["at drain-required"], id="one at work"),
        pytest.param(node(labels={SENTINEL_STATE: "draining"}), ["NVSentinel has it (draining)"], id="NVSentinel's"),
        pytest.param(node(unschedulable=True, labels={UPGRADE_STATE: "drain-required"}),
                     ["cordoned by a person or another tool", "at drain-required"], id="every sign is told"),
    ],
)  # fmt: skip
def test_what_others_do_with_a_node_is_seen(given_node: NodeView, signs: list[str]) -> None:
    told = claimed_by_others(given_node)
    assert len(told) == len(signs)
    assert all(sign in said for sign, said in zip(signs, told, strict=True))


@pytest.mark.parametrize(
    ("given_node", "because"),
    [
        pytest.param(node(), "", id="a node in service"),
        pytest.param(node(unschedulable=True), "cordoned by a person or another tool", id="cordoned by a person"),
        pytest.param(node(unschedulable=True, annotations={CORDONED_BY: "ann"}), "cordoned by ann", id="by name"),
        pytest.param(node(ours=True), "cordoned by gpuwarden", id="cordoned by us"),
        pytest.param(node(ready=False), "not Ready", id="not Ready"),
        pytest.param(node(ready=None), "its readiness is not known", id="nobody knows whether it is ready"),
        pytest.param(tainted(TAINT_KEY), "quarantined by gpuwarden", id="our own taint"),
        pytest.param(tainted("maintenance"), "tainted maintenance", id="a taint of others"),
        pytest.param(tainted("maintenance", Effect.NO_EXECUTE), "tainted maintenance", id="of either effect"),
        pytest.param(tainted("maintenance", Effect.PREFER_NO_SCHEDULE), "", id="a preference keeps nobody off"),
        pytest.param(tainted("nvidia.com/gpu"), "", id="a taint that healthy nodes carry"),
        pytest.param(tainted("node-role.kubernetes.io/gpu"), "", id="or one of a family of them"),
        pytest.param(node(labels={UPGRADE_STATE: "pod-deletion-required"}),
                     "a driver upgrade is at pod-deletion-required", id="a driver upgrade at work"),
        pytest.param(node(labels={UPGRADE_STATE: "upgrade-required"}), "", id="one that waits leaves it in service"),
        pytest.param(node(labels={SENTINEL_STATE: "quarantined"}), "NVSentinel has it (quarantined)",
                     id="NVSentinel's"),
    ],
)  # fmt: skip
def test_a_node_is_out_whoever_took_it_out(given_node: NodeView, because: str) -> None:
    assert out_because(given_node, ORDINARY) == because


@pytest.mark.parametrize(
    ("given_node", "stays"),
    [
        pytest.param(node(), False, id="a node in service"),
        pytest.param(node(ours=True), True, id="cordoned by us"),
        pytest.param(node(unschedulable=True), True, id="cordoned by a person"),
        pytest.param(tainted(TAINT_KEY), True, id="kept free of new work by us"),
        pytest.param(node(ready=False), False, id="silent: it may be back in a minute"),
        pytest.param(node(ready=None), False, id="nobody knows whether it is ready"),
        pytest.param(node(unschedulable=True, ready=False), True, id="cordoned and silent"),
        pytest.param(tainted("maintenance"), False, id="a taint of others"),
        pytest.param(node(labels={SENTINEL_STATE: "quarantined"}), False, id="a label of others"),
    ],
)
def test_which_nodes_stay_out_until_somebody_changes_it(given_node: NodeView, stays: bool) -> None:
    assert is_out_for_good(given_node) is stays
    assert not stays or out_because(given_node)


@given(st.permutations([Taint("b", "NoSchedule"), Taint("a", "NoExecute"), Taint("a", "NoSchedule")]))
def test_the_order_of_taints_changes_nothing(taints) -> None:
    assert out_because(node(taints=tuple(taints))) == "tainted a, b"
