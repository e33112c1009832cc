"""How `gpuwarden explain` is printed for people, and how people's words and attempts read: `plan` prints them alike."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from daemon.commands.output import say, show
from daemon.commands.record import Tried
from daemon.ledger import Body
from daemon.memory import Remembered
from detectors.findings import Signal, Verdict
from detectors.verdict import counts, score_of
from remediation.breaker import BreakerState
from remediation.lost_work import IncidentLoss, Lost, Part, by_incident, span
from remediation.people import Saying, Word
from remediation.restoring import LEVELS, Restart
from remediation.tickets import Filed, TicketState
from rules.schema import RuleBook
from rules.vocabulary import CauseClass

_HEAD = ("  SIGNAL", "TIER", "WEIGHT", "VALUE", "LIMIT", "SINCE (UTC)", "WHERE TO LOOK")
_LOST = ("  JOB", "FOR", "GPUS", "SINCE CHECKPOINT", "DETECTION", "UNTIL STOPPED", "RESTART", "TOTAL")
_TRIED = ("  BEGUN (UTC)", "NODE", "ACTION", "FOR", "ENDED (UTC)", "HOW", "DETAIL")
#: Most attempts that are shown to people.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Told:
    """What `explain` has found.

    `decisions` are the newest about each of `incidents`, `last_decisions` those about each of `closed`. `lost` is what
    each of `restarts` has lost, None where it stopped no job. `breaker` is None where nothing has looked at a cluster
    yet.
    """

    now: datetime
    known: Remembered
    found: tuple[Verdict, ...]
    incidents: tuple[Body, ...]
    decisions: tuple[Body | None, ...]
    closed: tuple[Body, ...]
    last_decisions: tuple[Body | None, ...]
    tickets: tuple[Filed, ...]
    attempts: tuple[Tried, ...]
    restarts: tuple[Restart, ...]
    lost: tuple[Lost | None, ...]
    words: tuple[Saying, ...]
    breaker: BreakerState | None


def print_told(told: Told, rules: RuleBook) -> None:
    """All of it."""
    _print_verdicts(told, rules)
    for incident, decision in zip(told.incidents, told.decisions, strict=True):
        say()
        say(f"{_what(incident)}, opened {incident['opened']}: {incident['why']}")
        if decision is not None:
            _print_decision(decision)
        _print_ticket(incident, told.tickets)
    for incident, decision in zip(told.closed, told.last_decisions, strict=True):
        say()
        ending = incident.get("closed_because") or "it was over"
        say(f"{_what(incident)}, {incident['opened']} to {incident['closed']}: {incident['why']}")
        say(f"  closed: {ending}")
        if decision is not None:
            plan = decision["plan"]
            say(f"  decided last: {plan['action']} ({decision['ruling']}, mode {decision['mode']}): {plan['reason']}")
        _print_ticket(incident, told.tickets)
    print_words(told.words)
    print_attempts(told.attempts)
    _print_restarts(told.restarts)
    _print_lost(told.lost)
    if told.breaker is not None and told.breaker.open_since is not None:
        say()
        say(f"the circuit breaker is open since {moment(told.breaker.open_since)}: {told.breaker.reason}")


def _print_ticket(incident: Body, tickets: Iterable[Filed]) -> None:
    """How far the ticket about an incident has come, where there is one."""
    for one in tickets:
        if one.ticket.id == incident["id"] and one.state is TicketState.WANTED:
            say(f"  ticket: wanted since {moment(one.at)}, not answered yet")
        elif one.ticket.id == incident["id"]:
            say(f"  ticket: {one.state} {moment(one.at)}: {one.detail}")


def print_words(words: Sequence[Saying]) -> None:
    """What people have said that holds, one line each."""
    if words:
        say()
        say("said by people")
    for word in words:
        say(f"  {in_words(word)}")


def print_attempts(attempts: Sequence[Tried]) -> None:
    """What was tried, newest last."""
    if not attempts:
        return
    say()
    left_out = len(attempts) - _SHOWN
    say("tried" + (f" (and {left_out} times before; -o json has them)" if left_out > 0 else ""))
    show(None, "table", _attempt_rows(attempts[-_SHOWN:]), _TRIED)


def _print_restarts(restarts: Sequence[Restart]) -> None:
    """How the jobs that ran here came back to work."""
    if not restarts:
        return
    say()
    say("jobs restarted")
    rows = []
    for one in restarts:
        took = "-" if one.recovery_s is None else f"{one.recovery_s:.0f} s"
        reached = f"L{one.level} {LEVELS[one.level]}" if one.reached else "-"
        rows.append((f"  {moment(one.at)}", str(one.job), one.incident, one.stage.value, reached, took, one.detail))
    show(None, "table", rows, ("  AS OF", "JOB", "FOR", "STAGE", "REACHED", "AFTER THE FAULT", "DETAIL"))


def _print_lost(every: Sequence[Lost | None]) -> None:
    """What these restarts have lost, part by part, and each incident with several of them together."""
    several = [one for one in every if one is not None]
    if not several:
        return
    say()
    say("work lost, in GPU-hours of the whole job")
    rows = [
        (f"  {one.job}", one.incident, str(one.gpus), *(_part(part) for _, part in one.parts), _total(one))
        for one in several
    ]
    show(None, "table", rows, _LOST)
    for incident in by_incident(several):
        if incident.restarts > 1:
            say(f"  {incident.incident}: {_total(incident)} in {incident.restarts} jobs with {incident.gpus} GPUs")


def _part(part: Part) -> str:
    if part.seconds is None:
        return "not known"
    lost = "not known" if part.gpu_hours is None else f"{part.gpu_hours:.1f}"
    return f"{lost} ({span(part.seconds)})"


def _total(one: Lost | IncidentLoss) -> str:
    return f"at least {one.at_least_gpu_hours:.1f}" if one.gpu_hours is None else f"{one.gpu_hours:.1f}"


def in_words(word: Saying) -> str:
    """One saying as a sentence."""
    about = ", ".join(word.incidents)
    match word.word:
        case Word.APPROVE:
            over = f"; overrules {', '.join(word.gates)}" if word.gates else ""
            return f"{about} approved by {word.source}: {', '.join(word.actions)}{over}"
        case Word.REJECT:
            return f"{about} rejected by {word.source}: nothing is done about it"
        case Word.RELEASE:
            return f"{word.node} given back by {word.source}: nothing is done about {about}"
        case Word.RESET_BREAKER:
            return f"the circuit breaker closed by {word.source}"
        case _:
            return _about_node(word)


def _about_node(word: Saying) -> str:
    if word.word is Word.HOLD:
        until = f"until {moment(word.until)}" if word.until else "until somebody ends it"
        return f"{word.node} on hold {until}, by {word.source}"
    if word.word is Word.FENCED:
        return f"{word.node} is off for certain, says {word.source}"
    return f"the hold on {word.node} ended by {word.source}"


def moment(at: datetime) -> str:
    """A time for people, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _what(incident: Body) -> str:
    return f"{incident['id']} {incident['cause_class']}, tier {incident['tier']}"


def _attempt_rows(attempts: Iterable[Tried]) -> Iterable[tuple[str, ...]]:
    for one in attempts:
        until = f"{one.ended.astimezone(UTC):%m-%d %H:%M:%S}" if one.ended is not None else "-"
        begun = f"  {one.at.astimezone(UTC):%m-%d %H:%M:%S}"
        yield begun, one.node, one.action.value, one.incident, until, one.ending.value, one.detail


def _print_decision(decision: Body) -> None:
    plan, allowed = decision["plan"], decision.get("allowed", ())
    say(f"  would {plan['action']} ({decision['ruling']}, mode {decision['mode']}): {plan['reason']}")
    if allowed and decision["ruling"] != "act":
        say(f"  no gate holds back: {', '.join(allowed)}")
    for gate in decision["gates"]:
        say(f"    {'pass' if gate['passed'] else 'STOP'} {gate['name']}: {gate['reason']}")


def _print_verdicts(told: Told, rules: RuleBook) -> None:
    known = told.known
    age_s = (told.now - known.at).total_seconds()
    source = f"; {known.source}" if known.source else ""
    say(f"as of {moment(known.at)} ({age_s:.0f} s ago){source}")
    for verdict in told.found:
        _, index, pci = known.places.get(verdict.gpu, ("", "?", ""))
        score = score_of(verdict.signals, rules.policy.verdict)
        say()
        say(f"{verdict.node} GPU {index} {verdict.gpu} {pci}".rstrip())
        say(
            f"  {verdict.state} since {verdict.since:%Y-%m-%d %H:%M} UTC, score {verdict.score:.2f} "
            f"(evidence {score.evidence:.2f}, suspicion {score.suspicion:.2f}), "
            f"{100 * verdict.confidence:.0f} % of its signals known"
        )
        say(f"  {verdict.reason}")
        if verdict.signals:
            show(None, "table", [_row(signal) for signal in verdict.signals], _HEAD)


def _row(signal: Signal) -> tuple[str, ...]:
    weight = f"{signal.weight:.2f}" if counts(signal) else f"0 ({_why_not(signal)})"
    value = "-" if signal.value is None else f"{signal.value:g} {signal.unit}".rstrip()
    limit = "-" if signal.limit is None else f"{signal.limit:g}"
    since = f"{signal.since:%m-%d %H:%M:%S}"
    return f"  {signal.rule}", str(int(signal.tier)), weight, value, limit, since, signal.look


def _why_not(signal: Signal) -> str:
    if not signal.trusted:
        return "not from the kernel"
    if signal.secondary_to is not None:
        return f"follows from {signal.secondary_to}"
    if signal.cause_class is CauseClass.TELEMETRY:
        return "what can't be seen is no evidence"
    return f"{signal.cause_class} says nothing about hardware"
