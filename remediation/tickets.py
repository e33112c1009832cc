"""Tickets for people: which nodes that were taken out only people can mend, and what each of them is told.

Pure. `daemon.tickets` posts them to the site's webhook, once an incident, and keeps in the ledger how far each came.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from detectors.findings import Incident, Signal
from remediation.limits import Attempt, Ending
from remediation.modes import Mode
from rules.vocabulary import Action, FaultAction

if TYPE_CHECKING:
    from remediation.decide import Decision

#: Most observations that a ticket tells, and most characters of each.
_TOLD = 5
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a person is told about one node, as it is posted.

    `id` is the incident's, so a receiver can tell that it knows it already. `at` is when it came due, `gpus` are UUIDs,
    `jobs` those that had work on the node, as namespace/name. `next_step` is what to do, with the command for it.
    """

    id: str
    at: datetime
    node: str
    gpus: tuple[str, ...]
    cause_class: str
    reason: str
    evidence: tuple[str, ...]
    jobs: tuple[str, ...]
    next_step: str


class TicketState(StrEnum):
    """How far a ticket has come. WANTED is to be sent, as often as it takes; the others are final."""

    WANTED = "wanted"
    SENT = "sent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Filed:
    """A ticket as the ledger keeps it: how far it had come at a time, after so many tries of one process.

    `detail` is what the receiver answered, "" before it did.
    """

    state: TicketState
    at: datetime
    ticket: Ticket
    tries: int = 0
    detail: str = ""


def tickets_due(
    decisions: Sequence["Decision"],
    incidents: Sequence[Incident],
    history: Iterable[Attempt],
    filed: Collection[str],
    why: Mapping[str, str] = {},
) -> tuple[Ticket, ...]:
    """The tickets that are due at this moment, but for those incidents that have one (`filed`), by id.

    Due is an open incident that only people can end, once its node has come to the end of being taken out: it is for
    service, or asks for another board, or `why` says by the node's name what else has shown that. What is only observed
    is never due.
    """
    by_id = {incident.id: incident for incident in incidents if incident.closed is None}
    asking = [
        (decision, incident)
        for decision in decisions
        if (incident := by_id.get(decision.plan.incident)) is not None
        and incident.id not in filed
        and _needs_people(decision, incident, why)
    ]
    if not asking:
        return ()
    out = _quarantined(history)
    due = {
        incident.id: _ticket(decision, incident, why.get(decision.plan.node, ""))
        for decision, incident in asking
        if _is_out(decision, out.get(decision.plan.node, frozenset()), by_id)
    }
    return tuple(due.values())


def _needs_people(decision: "Decision", incident: Incident, why: Mapping[str, str]) -> bool:
    plan = decision.plan
    if decision.mode == Mode.OBSERVE or plan.action is not Action.QUARANTINE:
        return False
    return plan.for_service or incident.action is FaultAction.REPLACE or bool(why.get(plan.node))


def _quarantined(history: Iterable[Attempt]) -> dict[str, frozenset[str]]:
    """By node, the incidents for which it came to quarantine since it was given back last."""
    out: dict[str, frozenset[str]] = {}
    for one in sorted(history, key=lambda one: one.at):
        if one.ending is not Ending.DONE:
            continue
        if one.action is Action.QUARANTINE:
            out[one.node] = out.get(one.node, frozenset()) | {one.incident}
        elif one.action is Action.RELEASE:
            out.pop(one.node, None)
    return out


def _is_out(decision: "Decision", out_for: Collection[str], standing: Collection[str]) -> bool:
    """Whether the node is in quarantine for this incident.

    A node is put there once for all that want it, under the name of the strongest: then it is there for the others too.
    """
    if decision.plan.incident in out_for:
        return True
    return Action.QUARANTINE in decision.allowed and any(incident in standing for incident in out_for)


def _ticket(decision: "Decision", incident: Incident, why: str) -> Ticket:
    plan = decision.plan
    jobs = {job for signal in incident.signals for job in signal.jobs}.union(plan.jobs)
    return Ticket(
        id=incident.id,
        at=decision.at,
        node=plan.node,
        gpus=incident.gpu_uuids,
        cause_class=incident.cause_class.value,
        reason=f"{plan.reason}; {why}" if why else plan.reason,
        evidence=_evidence(incident),
        jobs=tuple(sorted(jobs)),
        next_step=(
            f"`gpuwarden explain {plan.node}` says all that is known; once the node was mended, "
            f"`gpuwarden release {plan.node} --why ...` gives it back"
        ),
    )


def _evidence(incident: Incident) -> tuple[str, ...]:
    """What its signals say, the strongest first; what was stronger than anything that stands now stands no more."""
    told = [_said(signal) for signal in incident.signals if _may_stand(signal, incident)]
    return tuple(dict.fromkeys(told))[:_TOLD] or (incident.why[:_LONGEST],)


def _may_stand(signal: Signal, incident: Incident) -> bool:
    return signal.trusted and signal.tier >= incident.tier and signal.action.rank <= incident.action.rank


def _said(signal: Signal) -> str:
    return f"{signal.rule}: {signal.text}"[:_LONGEST]
