"""Giving nodes back: which of the nodes that carry our marks should carry them no longer, decided like everything else.

Pure. Recovery is never held up by a limit, a breaker or a window. It is held up by doubt: a node goes back to work when
the record says that its incident has ended and each of its GPUs can be judged and is well. A person may say so instead.

It goes back in stages. Once it has soaked, it is put on probation: open to work, with a taint that prefers other nodes.
When that has gone by without a fault, everything of ours is taken off. What needs service waits for a person's word.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from detectors.findings import GpuState, Incident, Verdict
from remediation.gates import GateResult
from remediation.objects import INCIDENT, PROBATION_SINCE, NodeView
from remediation.patches import Order, order_of
from remediation.people import Said
from remediation.plan import TAKES_OUT, Plan, Step
from remediation.scene import Scene
from rules.restore_schema import ReturnPolicy
from rules.vocabulary import Action

_WELL = frozenset({GpuState.HEALTHY, GpuState.DEGRADED})


def release_plans(
    scene: Scene, plans: Iterable[Plan], incidents: Sequence[Incident], policy: ReturnPolicy, now: datetime
) -> tuple[Plan, ...]:
    """A plan for each node that nothing open keeps out any more, by node name. `plans` are those of `incidents`.

    A node on probation has one once that is over.
    """
    still = {incident.id for incident in incidents}
    nodes_of = {incident.id: incident.nodes for incident in incidents}
    kept = {node for plan in plans if plan.does(TAKES_OUT) for node in nodes_of.get(plan.incident, ())}
    wanted = []
    for name, node in sorted(scene.fleet.nodes.items()):
        mark = node.annotation(INCIDENT)
        if not mark or order_of(node) is not Order.NONE:
            continue  # nothing of ours, or a person was faster: see `remediation.patches.forget`
        order = scene.said.given_back(name, mark)
        if order is not None:
            wanted.append(_plan(node, mark, f"given back by {order.source}"))
        elif mark not in still and name not in kept:
            if not node.on_probation:
                wanted.append(_plan(node, mark, _ended(node, scene.said, policy)))
            elif (since := probation_since(node)) is None or now - since >= timedelta(seconds=policy.probation):
                wanted.append(_plan(node, mark, f"its probation of {policy.probation / 3600:g} h has passed"))
    return tuple(wanted)


def to_probation(node: NodeView, said: Said, policy: ReturnPolicy) -> bool:
    """Whether a node that is to be given back is put on probation first. A person's word gives it back whole."""
    ordered = said.given_back(node.name, node.annotation(INCIDENT)) is not None
    return policy.probation > 0 and not node.on_probation and not ordered


def probation_since(node: NodeView) -> datetime | None:
    """Since when it is on probation; None where its annotation says no time."""
    try:
        return datetime.fromisoformat(node.annotation(PROBATION_SINCE))
    except ValueError:
        return None


def _ended(node: NodeView, said: Said, policy: ReturnPolicy) -> str:
    then = f"; {policy.probation / 3600:g} h of probation follow" if to_probation(node, said, policy) else ""
    return f"its incident has ended{then}"


def _plan(node: NodeView, incident: str, reason: str) -> Plan:
    step = Step(Action.RELEASE, "the next fault takes it out again")
    return Plan(incident, node.name, "", Action.RELEASE, (step,), (), (), reason)


def release_gates(
    plan: Plan, scene: Scene, verdicts: Sequence[Verdict], policy: ReturnPolicy, now: datetime
) -> tuple[GateResult, ...]:
    """The gates that only a release has to pass."""
    ordered = scene.said.given_back(plan.node, plan.incident) is not None
    return (
        _incident_over(plan, scene, ordered=ordered),
        _gpus_well(plan, verdicts, ordered=ordered),
        _soaked(plan, scene, policy, now, ordered=ordered),
        _serviced(plan, scene, ordered=ordered),
        _not_held(plan, scene.said, now),
    )


def _soaked(plan: Plan, scene: Scene, policy: ReturnPolicy, now: datetime, *, ordered: bool) -> GateResult:
    """Its incident ended long enough ago."""
    node = scene.fleet.nodes.get(plan.node)
    if ordered or policy.soak == 0 or (node is not None and node.on_probation):
        return GateResult("soak", passed=True, reason="it need not soak")
    ended_at = scene.ended.get(plan.incident)
    if ended_at is None:
        return GateResult("soak", passed=False, reason=f"when {plan.incident} ended is not known yet")
    quiet_s = (now - ended_at).total_seconds()
    said = f"its incident ended {quiet_s:.0f} s ago; it soaks for {policy.soak:.0f} s"
    return GateResult("soak", passed=quiet_s >= policy.soak, reason=said)


def _serviced(plan: Plan, scene: Scene, *, ordered: bool) -> GateResult:
    """What failed within its probation is given back by a person, who knows what was mended."""
    node = scene.fleet.nodes.get(plan.node)
    if ordered or node is None or not node.needs_service:
        return GateResult("service_done", passed=True, reason="a person says so" if ordered else "it needs no service")
    said = f"it needs service; once it was mended, `gpuwarden release {plan.node} --why ...` gives it back"
    return GateResult("service_done", passed=False, reason=said)


def _incident_over(plan: Plan, scene: Scene, *, ordered: bool) -> GateResult:
    if ordered:
        return GateResult("incident_over", passed=True, reason=plan.reason)
    if plan.incident in scene.over:
        return GateResult("incident_over", passed=True, reason=f"{plan.incident} has ended")
    said = f"the record knows nothing of {plan.incident}; if the node is well, `gpuwarden release {plan.node}`"
    return GateResult("incident_over", passed=False, reason=said)


def _gpus_well(plan: Plan, verdicts: Sequence[Verdict], *, ordered: bool) -> GateResult:
    if ordered:
        return GateResult("gpus_well", passed=True, reason="a person says so")
    states: dict[GpuState, list[str]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.node == plan.node:
            states[verdict.state].append(verdict.gpu)
    bad = {state: gpus for state, gpus in states.items() if state not in _WELL}
    if not states:
        return GateResult("gpus_well", passed=False, reason="none of its GPUs can be seen")
    if bad:
        said = "; ".join(f"{', '.join(gpus)} {state}" for state, gpus in sorted(bad.items()))
        return GateResult("gpus_well", passed=False, reason=said)
    return GateResult(
        "gpus_well", passed=True, reason=f"{sum(map(len, states.values()))} GPUs can be judged, and are well"
    )


def _not_held(plan: Plan, said: Said, now: datetime) -> GateResult:
    held = said.on_hold((plan.node,), now)
    return GateResult("on_hold", passed=not held, reason=held or "it is not on hold")
