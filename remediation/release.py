"""Giving nodes back: which of the nodes that carry our marks should carry them no longer, decided like everything else.

Pure. Recovery is never held up by a limit, a breaker or a window. It is held up by doubt: a node goes back to work when
the record says that its incident has ended and each of its GPUs can be judged and is well. A person may say so instead.

It goes back in stages. Where policy asks for a diagnosis, it has to pass one. Once it has soaked, it is put on
probation: open to work, with a taint that prefers other nodes. When that has gone by without a fault, everything of
ours is taken off. What needs service waits for a person's word.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from detectors.findings import GpuState, Incident, Verdict
from remediation.gates import GateResult
from remediation.objects import INCIDENT, PROBATION_SINCE, NodeView
from remediation.operations import Operation, Result, stands, tries
from remediation.patches import Order, order_of
from remediation.people import Said
from remediation.plan import TAKES_OUT, Plan, Step
from remediation.scene import Scene
from rules.operation_schema import OperationsPolicy
from rules.restore_schema import ReturnPolicy
from rules.schema import Policy
from rules.vocabulary import Action

_WELL = frozenset({GpuState.HEALTHY, GpuState.DEGRADED})


def release_plans(
    scene: Scene, plans: Iterable[Plan], incidents: Sequence[Incident], policy: Policy, now: datetime
) -> tuple[Plan, ...]:
    """A plan for each node that nothing open keeps out any more, by node name. `plans` are those of `incidents`.

    A node on probation has one once that is over.
    """
    still = {incident.id for incident in incidents}
    nodes_of = {incident.id: incident.nodes for incident in incidents}
    kept = {node for plan in plans if plan.does(TAKES_OUT) for node in nodes_of.get(plan.incident, ())}
    wanted, back = [], policy.comeback
    for name, node in sorted(scene.fleet.nodes.items()):
        mark = node.annotation(INCIDENT)
        if not mark or order_of(node) is not Order.NONE:
            continue  # nothing of ours, or a person was faster: see `remediation.patches.forget`
        order = scene.said.given_back(name, mark)
        if order is not None:
            wanted.append(_plan(node, mark, f"given back by {order.source}"))  # without a diagnosis
        elif mark not in still and name not in kept:
            if not node.on_probation:
                first = (_DIAGNOSE,) if _needs_diagnosis(node, policy.operations) else ()
                wanted.append(_plan(node, mark, _ended(node, scene.said, back), first))
            elif (since := probation_since(node)) is None or now - since >= timedelta(seconds=back.probation):
                wanted.append(_plan(node, mark, f"its probation of {back.probation / 3600:g} h has passed"))
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


_DIAGNOSE = Step(Action.DIAGNOSE, "nothing to undo", when_idle=True)


def _plan(node: NodeView, incident: str, reason: str, first: tuple[Step, ...] = ()) -> Plan:
    step = Step(Action.RELEASE, "the next fault takes it out again")
    return Plan(incident, node.name, "", Action.RELEASE, (*first, step), (), (), reason)


def _needs_diagnosis(node: NodeView, policy: OperationsPolicy) -> bool:
    """Whether a node whose incident is over is diagnosed before it soaks; what waits for service is a person's."""
    return policy.diagnose.enabled and policy.diagnose_before_return and not (node.on_probation or node.needs_service)


def release_gates(
    plan: Plan, scene: Scene, verdicts: Sequence[Verdict], policy: Policy, now: datetime
) -> tuple[GateResult, ...]:
    """The gates that only a release has to pass."""
    ordered = scene.said.given_back(plan.node, plan.incident) is not None
    return (
        _incident_over(plan, scene, ordered=ordered),
        _gpus_well(plan, verdicts, ordered=ordered),
        *_diagnosed(plan, scene, policy.operations),
        _soaked(plan, scene, policy.comeback, now, ordered=ordered),
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
    last = _last_diagnosis(plan, scene) if plan.does((Action.DIAGNOSE,)) else None
    since, what = (last.at, "diagnosis") if last is not None and last.at > ended_at else (ended_at, "incident")
    quiet_s = (now - since).total_seconds()
    said = f"its {what} ended {quiet_s:.0f} s ago; it soaks for {policy.soak:.0f} s"
    return GateResult("soak", passed=quiet_s >= policy.soak, reason=said)


def _diagnosed(plan: Plan, scene: Scene, policy: OperationsPolicy) -> tuple[GateResult, GateResult]:
    """It has passed its diagnosis; one that failed, or cannot be made, needs a person."""
    if not plan.does((Action.DIAGNOSE,)):
        return _both("no diagnosis is asked for", done=True)
    before = _diagnoses(plan, scene)
    last = before[-1] if before else None
    if last is None or not stands(before, policy.diagnose):
        waits = "it waits for its diagnosis" if last is None else f"its diagnosis {last.id}: {last.detail}"
        return _both(waits, done=last is not None and last.result is Result.PASSED)
    said = f"its diagnosis {last.id} {last.result}: {last.detail}"
    if last.result is Result.PASSED:
        return _both(said, done=True)
    then = f"; once it is mended, `gpuwarden release {plan.node} --why ...` gives it back"
    return _both(said + then, done=True, good=False)


def _both(reason: str, *, done: bool, good: bool = True) -> tuple[GateResult, GateResult]:
    return GateResult("diagnosed", done, reason), GateResult("diagnosis_passed", good, reason)


def _diagnoses(plan: Plan, scene: Scene) -> list[Operation]:
    """Those that were begun once its incident had ended: what was found before is no news of now."""
    ended_at = scene.ended.get(plan.incident)
    made = tries(scene.operations, plan.incident, plan.node, Action.DIAGNOSE)
    return [one for one in made if ended_at is not None and one.began_at >= ended_at]


def _last_diagnosis(plan: Plan, scene: Scene) -> Operation | None:
    made = _diagnoses(plan, scene)
    return made[-1] if made and not made[-1].is_open else None


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
