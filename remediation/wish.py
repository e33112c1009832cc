"""The state each node should be in, from the decisions of one tick; nothing of an earlier tick is used.

Pure. `remediation.patches` says what has to change on the node for it, the hands make the change.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from detectors.findings import Incident
from remediation.modes import Mode, Modes
from remediation.objects import Stage
from remediation.people import Said
from remediation.plan import TAKES_OUT
from rules.vocabulary import Action, CauseClass, Tier

if TYPE_CHECKING:  # decide itself needs what a node shows of earlier wishes
    from remediation.decide import Decision

_NOT_A_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_LABEL = 63


@dataclass(frozen=True, slots=True)
class NodeWish:
    """What a node should be: kept free of new work, cordoned, drained, and out until it is released.

    `incidents` are the ones that want it, the strongest first; `reason` and `since` are the strongest's. A node for
    which there is no wish stays as it is: giving it back is a decision of its own (`remediation.release`).
    """

    node: str
    incidents: tuple[str, ...]
    reason: str
    since: datetime
    cordon: bool
    drain: bool
    quarantine: bool
    #: whether the drain has been seen to its end
    drained: bool = False
    #: whether it is certain that the machine is off, so that pods which hang on it may be given up
    off: bool = False
    #: whether its jobs are to be asked for a checkpoint first: not where the GPU has failed already
    asks: bool = False
    #: when what it is about was seen first
    detected_at: datetime | None = None
    #: whether it stays out until a person says that it was mended
    service: bool = False

    @property
    def stage(self) -> Stage:
        """How far it is to have come."""
        if self.quarantine and (self.drained or not self.drain):
            return Stage.QUARANTINED
        if self.drain and not self.drained:
            return Stage.DRAINING
        return Stage.CORDONED if self.cordon else Stage.NO_NEW_WORK

    @property
    def taint_value(self) -> str:
        """The reason in the letters that a taint's value may have."""
        return label_value(self.reason)


def label_value(text: str) -> str:
    """Text as Kubernetes lets it stand in a label or a taint: at most 63 of a-z, 0-9, `-`, `_`, `.`, ends alphanumeric.

    >>> label_value("xid_79 link 3!")
    'xid_79-link-3'
    """
    return _NOT_A_LABEL.sub("-", text)[:_LONGEST_LABEL].strip("-_.")


def carried_out(decision: "Decision", modes: Modes, said: Said) -> tuple[Action, ...]:
    """The steps of a decision that may be done now: no gate holds them, and their mode or a person lets them happen.

    A person who gives a node back has approved of that.
    """
    plan = decision.plan
    ordered = plan.action is Action.RELEASE and said.given_back(plan.node, plan.incident) is not None
    approved = (Action.RELEASE,) if ordered else said.approved(plan.incident)
    return modes.carried_out(decision.allowed, approved)


def wishes(
    decisions: Sequence["Decision"], incidents: Sequence[Incident], modes: Modes, said: Said
) -> dict[str, NodeWish]:
    """What the decisions want of each node, by node name, as far as gates, modes and approvals let it be done now.

    An incident on several nodes is held by its gates, so it wishes for none. A release wishes for nothing.
    """
    by_id = {incident.id: incident for incident in incidents}
    wanted: dict[str, list[tuple[Incident, frozenset[Action]]]] = {}
    asked: set[str] = set()
    service: set[str] = set()
    for decision in decisions:
        incident = by_id.get(decision.plan.incident)
        if incident is None:
            continue
        actions = frozenset(carried_out(decision, modes, said)) & TAKES_OUT
        if actions:
            for node in incident.nodes:
                wanted.setdefault(node, []).append((incident, actions))
            if may_ask(decision, modes, said):
                asked.add(incident.id)
            if decision.plan.for_service:
                service.add(incident.id)
    return {node: _wish(node, parts, asked, service) for node, parts in sorted(wanted.items())}


def may_ask(decision: "Decision", modes: Modes, said: Said) -> bool:
    """Whether the jobs may be asked for a checkpoint: that is no change of a node, but has a mode of its own."""
    if Action.CHECKPOINT not in decision.allowed:
        return False
    return modes.of(Action.CHECKPOINT) is Mode.AUTO or Action.CHECKPOINT in said.approved(decision.plan.incident)


def _wish(
    node: str, parts: Sequence[tuple[Incident, frozenset[Action]]], asked: Collection[str], service: Collection[str]
) -> NodeWish:
    ordered = sorted(parts, key=lambda part: (part[0].tier, part[0].opened, part[0].id))
    strongest = ordered[0][0]
    all_of_them = frozenset(action for _, actions in parts for action in actions)
    return NodeWish(
        node=node,
        incidents=tuple(incident.id for incident, _ in ordered),
        reason=reason_of(strongest),
        since=strongest.opened,
        cordon=bool(all_of_them & {Action.CORDON, Action.DRAIN, Action.QUARANTINE}),
        drain=Action.DRAIN in all_of_them,
        quarantine=Action.QUARANTINE in all_of_them,
        asks=strongest.tier is not Tier.FACT and strongest.id in asked,
        detected_at=strongest.first_signal_at,
        service=any(incident.id in service for incident, _ in ordered),
    )


def reason_of(incident: Incident) -> str:
    """An incident in one word, for taints and annotations: the rule that spoke first of its strongest, or its class."""
    strongest = min(incident.signals, key=lambda s: (s.tier, s.secondary_to is not None, s.since, s.key), default=None)
    return strongest.rule if strongest is not None else incident.cause_class.value


#: The reason of the node condition for each class of cause, in the API's CamelCase.
_CONDITION_REASON: Mapping[CauseClass, str] = {
    CauseClass.HARDWARE: "GPUHardwareFault",
    CauseClass.MEMORY: "GPUMemoryFault",
    CauseClass.LINK: "GPULinkFault",
    CauseClass.THERMAL: "GPUThermalFault",
    CauseClass.POWER: "GPUPowerFault",
    CauseClass.DRIVER: "GPUDriverFault",
    CauseClass.NETWORK: "NetworkFault",
    CauseClass.STORAGE: "StorageFault",
    CauseClass.TELEMETRY: "TelemetryMissing",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """The node condition GPUHealthy: `status` is True, False or Unknown; `message` is for people, 1,024 characters."""

    status: str
    reason: str
    message: str


def condition_of(node: str, incidents: Sequence[Incident], *, is_known: bool) -> Condition:
    """What GPUHealthy should say about a node. Facts and trends make it False; what can't be judged is Unknown."""
    here = sorted((i for i in incidents if node in i.nodes and i.standing), key=lambda i: (i.tier, i.opened, i.id))
    sick = [
        i
        for i in here
        if i.tier is not Tier.SUSPICION
        and i.cause_class not in (CauseClass.APPLICATION, CauseClass.JOB, CauseClass.TELEMETRY, CauseClass.STORAGE)
    ]
    if sick:
        message = f"{sick[0].id}: {sick[0].why}" + (f" (and {len(sick) - 1} more)" if len(sick) > 1 else "")
        return Condition("False", _CONDITION_REASON.get(sick[0].cause_class, "GPUFault"), message[:1024])
    if not is_known:
        return Condition("Unknown", "TelemetryMissing", "its GPUs can't be judged: no fresh telemetry")
    return Condition("True", "GPUsHealthy", "nothing speaks against its GPUs")
