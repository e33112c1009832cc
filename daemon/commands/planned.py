"""What `gpuwarden plan` tells about one node, worked out from the decisions of this moment. Pure; `plan` gathers.

Every class is a part of the answer, and its fields are the keys of `-o json`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from daemon.commands.around import Look
from daemon.commands.marks import Marks
from daemon.commands.stakes import AtStake, LostWork, PodShown
from detectors.findings import Incident
from remediation.decide import STOPS, Decision, Ruling, held_by
from remediation.gates import GateResult
from remediation.modes import Mode
from remediation.objects import CORDONED_BY, INCIDENT, PREFIX, STAGE
from remediation.ownership import claimed_by_others, opted_out, out_because
from remediation.wish import Condition, NodeWish, carried_out
from rules.schema import Policy
from rules.vocabulary import Action, CauseClass


@dataclass(frozen=True, slots=True)
class NodeShown:
    """A node in the cluster. `out_because` is "" while it takes new work, `cordoned_by` while it is not cordoned."""

    name: str
    ready: bool | None
    gpus: int
    out_because: str
    cordoned_by: str
    taints: tuple[str, ...]
    marks: Mapping[str, str]
    stage: str
    opted_out: str
    claimed_by: tuple[str, ...]
    hold: str


def shown(look: Look) -> NodeShown:
    """The node as it is now."""
    node = look.node
    cordoned = node.annotation(CORDONED_BY) or "a person or another tool"
    return NodeShown(
        name=node.name,
        ready=node.ready,
        gpus=node.gpus,
        out_because=out_because(node, look.policy.limits.ordinary_taints),
        cordoned_by=cordoned if node.unschedulable else "",
        taints=tuple(
            f"{one.key}{f'={one.value}' if one.value else ''}:{one.effect}" for one in sorted(node.taints)
        ),
        marks={name: value for name, value in node.annotations if name.startswith(PREFIX)},
        stage=node.annotation(STAGE),
        opted_out=opted_out(node),
        claimed_by=claimed_by_others(node),
        hold=look.scene.said.on_hold((node.name,), look.now),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateShown:
    """A gate's answer. `leads_to` is what comes of it where it does not pass; `holds` are the steps that it holds back.

    `approvable`: a person may let the plan go ahead all the same.
    """

    name: str
    passed: bool
    reason: str
    leads_to: Ruling
    approvable: bool
    holds: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class StepShown:
    """A step. `held_by` are the gates that hold it back, `has_hands` whether anything carries it out at all.

    `carried_out`: the daemon does it in this mode, with the approvals that there are. `comes_of_it` says it in words.
    """

    action: Action
    undo: str
    when_idle: bool
    mode: Mode
    has_hands: bool
    held_by: tuple[str, ...]
    carried_out: bool
    comes_of_it: str


@dataclass(frozen=True, slots=True)
class IncidentShown:
    """An open incident; `explain` tells the rest."""

    id: str
    cause_class: CauseClass
    tier: int
    opened: datetime
    why: str
    nodes: tuple[str, ...]
    gpu_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One decision about the node. `about` is its incident; None where the node is to be given back after it."""

    incident: str
    about: IncidentShown | None
    action: Action
    reason: str
    ruling: Ruling
    steps: tuple[StepShown, ...]
    gates: tuple[GateShown, ...]
    affected: tuple[str, ...]
    jobs: tuple[str, ...]


def planned(look: Look) -> tuple[Planned, ...]:
    """The decisions about the node's incidents, strongest first, then one to give it back."""
    by_id = {one.id: one for one in look.here}
    order = {one.id: rank for rank, one in enumerate(look.here)}
    mine = [one for one in look.decisions if one.plan.incident in by_id and one.plan.action is not Action.RELEASE]
    mine.sort(key=lambda one: order[one.plan.incident])
    back = [one for one in look.decisions if one.plan.action is Action.RELEASE and one.plan.node == look.node.name]
    return tuple(_planned(one, by_id.get(one.plan.incident), look) for one in mine) + tuple(
        _planned(one, None, look) for one in back
    )


def _planned(decision: Decision, about: Incident | None, look: Look) -> Planned:
    plan = decision.plan
    return Planned(
        incident=plan.incident,
        about=None if about is None else _incident(about),
        action=plan.action,
        reason=plan.reason,
        ruling=decision.ruling,
        steps=_steps(decision, look),
        gates=tuple(_gate(gate, decision, look.policy) for gate in decision.gates),
        affected=plan.affected,
        jobs=plan.jobs,
    )


def _incident(one: Incident) -> IncidentShown:
    return IncidentShown(one.id, one.cause_class, int(one.tier), one.opened, one.why, one.nodes, one.gpu_uuids)


def _gate(gate: GateResult, decision: Decision, policy: Policy) -> GateShown:
    stop = STOPS[gate.name]
    steps = tuple(step.action for step in decision.plan.steps)
    first = min(
        (index for index, one in enumerate(steps) if one in held_by(gate, decision.plan, policy)), default=len(steps)
    )
    holds = () if gate.passed else steps[first:]
    return GateShown(gate.name, gate.passed, gate.reason, stop.ruling, stop.approvable, holds)


def _steps(decision: Decision, look: Look) -> tuple[StepShown, ...]:
    gates = [_gate(gate, decision, look.policy) for gate in decision.gates]
    done = carried_out(decision, look.modes, look.scene.said)
    told: list[StepShown] = []
    for step in decision.plan.steps:
        held = tuple(gate.name for gate in gates if step.action in gate.holds)
        one = StepShown(
            step.action, step.undo, step.when_idle, look.modes.of(step.action), step.action in look.modes.hands, held,
            step.action in done, "",
        )  # fmt: skip
        told.append(replace(one, comes_of_it=_comes_of_it(one, told, decision)))
    return tuple(told)


def _comes_of_it(step: StepShown, before: Sequence[StepShown], decision: Decision) -> str:
    if step.held_by:
        overrules = all(STOPS[name].approvable for name in step.held_by)
        return f"held back by {', '.join(step.held_by)}{', which an approval overrules' if overrules else ''}"
    if not step.has_hands:
        return "changes nothing" if step.action is Action.WATCH else "nobody carries it out yet: it is up to people"
    if step.carried_out:
        return "the daemon does it"
    waits = next((one for one in before if one.has_hands and not one.carried_out), None)
    if step.mode is Mode.OBSERVE:
        return "mode observe: recorded only"
    if waits is not None and step.mode is Mode.AUTO:
        return f"comes after {waits.action}, which nobody does now"
    return f"waits for `gpuwarden approve {decision.plan.incident}`"


def way_back(look: Look, all_planned: Sequence[Planned], whole: NodeWish | None) -> tuple[str, ...]:
    """What would give the node back, in sentences."""
    name, mark = look.node.name, look.node.annotation(INCIDENT)
    lines = []
    if not mark and whole is None:
        lines.append("nothing of gpuwarden's is on it")
    else:
        ids = [one.id for one in look.here] or [mark]
        quiet_s = look.policy.incidents.close_after
        lines.append(
            f"once {', '.join(ids)} {'has' if len(ids) == 1 else 'have'} ended (quiet for {quiet_s:.0f} s) "
            f"and each of its GPUs can be judged and is well: {_release_by(look)}"
        )
        lines.append(f"`gpuwarden release {name}` at once: then it is left alone as far as these incidents go")
    if look.node.unschedulable and not look.node.cordon_is_ours:
        lines.append("its cordon is not gpuwarden's, and stays")
    if any(one.action is Action.RELEASE for one in all_planned):
        lines.insert(0, "it is to be given back; see the plan above")
    return tuple(lines)


def _release_by(look: Look) -> str:
    match look.modes.of(Action.RELEASE):
        case Mode.AUTO:
            return "by itself"
        case Mode.APPROVE:
            return "after a person approves that, too"
        case Mode.OBSERVE:
            return "mode observe takes nothing back"


@dataclass(frozen=True, slots=True)
class Report:
    """The whole answer. `mode` is the configuration's, `mode_of_daemon` that of the run that began last ("" for none).

    `condition` is what GPUHealthy would say. `source` says what was wrong with the telemetry, "" for nothing.
    """

    at: datetime
    verdicts_at: datetime
    source: str
    mode: str
    mode_of_daemon: str
    node: NodeShown
    condition: Condition | None
    planned: tuple[Planned, ...]
    marks: Marks
    pods: tuple[PodShown, ...]
    held_up: str
    at_stake: AtStake
    lost_work: LostWork
    dry_run: str
    way_back: tuple[str, ...]

    @property
    def lag_s(self) -> float:
        """Seconds since the verdicts were made."""
        return (self.at - self.verdicts_at).total_seconds()


def as_data(report: Report) -> Any:
    """The answer as plain values, in the order of their fields."""
    return msgspec.to_builtins(report, str_keys=True)
