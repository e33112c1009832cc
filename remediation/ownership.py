"""Who else has a hand on a node, and which nodes are out of service, by us or by anybody.

Pure; `remediation.limits` and the hands ask it of a node that was just read. The names are those of the tools that
mark nodes: cluster-autoscaler, Karpenter, NVIDIA's GPU operator (its driver upgrades) and NVSentinel.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from remediation.objects import CORDONED_BY, MANAGED, OUT_OF_SERVICE, OWNER, TAINT_KEY, Effect, NodeView
from remediation.patches import Order, order_of

#: Taints by which another tool says that it is about to take the node away, or that it has.
FOREIGN_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler removes it",
    "DeletionCandidateOfClusterAutoscaler": "cluster-autoscaler is about to remove it",
    "karpenter.sh/disrupted": "Karpenter disrupts it",
    "karpenter.sh/disruption": "Karpenter disrupts it",
    OUT_OF_SERVICE: "it is declared out of service",
}
#: Annotations by which a person keeps tools from disrupting it; "false" says nothing.
FOREIGN_ANNOTATIONS = ("karpenter.sh/do-not-disrupt",)
#: The GPU operator's driver upgrade: any state but these is one of an upgrade at work or waiting for its turn.
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
_NO_UPGRADE = frozenset({"", "upgrade-done"})
#: The node still works while it waits for its turn.
_UPGRADE_WAITS = "upgrade-required"
#: NVSentinel's state of a node that it is treating; it takes the label off when the node is well.
SENTINEL_STATE = "dgxc.nvidia.com/nvsentinel-state"
#: Labels that opt a node out where they say "false": ours, and the one that keeps NVSentinel away.
OPT_OUT_LABELS = (MANAGED, "k8saas.nvidia.com/ManagedByNVSentinel")
_KEEPS_PODS_OFF = frozenset({Effect.NO_SCHEDULE, Effect.NO_EXECUTE})


def opted_out(node: NodeView) -> str:
    """Which label says that the node is not to be touched, "" where none does."""
    said = [f"{name}={node.label(name)}" for name in OPT_OUT_LABELS if node.label(name).strip().lower() == "false"]
    return ", ".join(said)


def claimed_by_others(node: NodeView) -> tuple[str, ...]:
    """Every sign that somebody else is at work on the node. Nothing of ours is one."""
    signs = []
    if node.unschedulable and not node.cordon_is_ours:
        signs.append(f"cordoned by {node.annotation(CORDONED_BY) or 'a person or another tool'}")
    order = order_of(node)
    if order is not Order.NONE:
        signs.append(f"{order} by somebody after gpuwarden took it out, which is an order to stop")
    foreign = [taint.key for taint in node.taints if not node.is_ours(taint)]
    signs.extend(f"{FOREIGN_TAINTS[key]} (taint {key})" for key in _in_order(foreign) if key in FOREIGN_TAINTS)
    signs.extend(
        f"its annotation {name} is {node.annotation(name)}"
        for name in FOREIGN_ANNOTATIONS
        if node.annotation(name).strip().lower() not in ("", "false")
    )
    if node.label(UPGRADE_STATE) not in _NO_UPGRADE:
        signs.append(f"a driver upgrade is at {node.label(UPGRADE_STATE)}")
    if node.label(SENTINEL_STATE):
        signs.append(f"NVSentinel has it ({node.label(SENTINEL_STATE)})")
    return tuple(signs)


def is_out_for_good(node: NodeView) -> bool:
    """Whether it takes no new work until somebody changes that: cordoned, or tainted by us; not merely silent."""
    return node.unschedulable or node.keeps_new_work_off


def out_because(node: NodeView, ordinary_taints: Iterable[str] = ()) -> str:
    """Why a node takes no new work, whoever caused it; "" where it is in service.

    `ordinary_taints` are keys (globs) that healthy nodes carry as well. A node whose readiness is not known is out:
    a limit that is too strict for a minute harms nobody.
    """
    if node.unschedulable:
        whose = OWNER if node.cordon_is_ours else node.annotation(CORDONED_BY) or "a person or another tool"
        return f"cordoned by {whose}"
    if not node.ready:
        return "not Ready" if node.ready is False else "its readiness is not known"
    keys = _in_order(taint.key for taint in node.taints if taint.effect in _KEEPS_PODS_OFF)
    if TAINT_KEY in keys:
        return "quarantined by gpuwarden"
    patterns = tuple(ordinary_taints)
    odd = [key for key in keys if not any(fnmatchcase(key, pattern) for pattern in patterns)]
    if odd:
        return f"tainted {', '.join(odd)}"
    if node.label(UPGRADE_STATE) not in _NO_UPGRADE | {_UPGRADE_WAITS}:
        return f"a driver upgrade is at {node.label(UPGRADE_STATE)}"
    return f"NVSentinel has it ({node.label(SENTINEL_STATE)})" if node.label(SENTINEL_STATE) else ""


def _in_order(keys: Iterable[str]) -> list[str]:
    """Each key once, in the same order whatever the API server's."""
    return sorted(set(keys))
