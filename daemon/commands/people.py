"""`gpuwarden approve`, `reject`, `hold`, `release` and `breaker`: what a person has to say, written into the ledger.

The daemon reads it there within seconds, and decides with it; nothing is done to the cluster from here.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from daemon.commands.desk import Desk, Speaker, at_desk
from daemon.commands.explained import in_words, moment
from daemon.commands.output import CommandError, ExitCode, say, show
from daemon.commands.record import HISTORY, breaker_of, node_called, some_of, tried
from daemon.ledger import to_jsonable
from daemon.memory import newest_decision
from detectors.findings import Incident
from remediation.breaker import BreakerState
from remediation.decide import STOPS, Decision, Ruling, ruling_of
from remediation.gates import GateResult
from remediation.limits import Ending
from remediation.modes import HANDS
from remediation.people import Saying, Word
from remediation.plan import TAKES_OUT
from rules.schema import parse_duration
from rules.vocabulary import Action

__all__ = ["Speaker", "approve", "breaker", "fenced", "hold", "reject", "release"]

#: The gate that a new word on an incident passes by itself.
_REJECTED = "rejected"
_OVERRULED = "; overruled by "
#: Steps that change nothing, so nobody has to carry them out.
_LOOKS = frozenset({Action.WATCH})


# ------------------------------------------------------------------------------------------------- about an incident


def approve(thing: str, speaker: Speaker) -> int:
    """Release the newest plan about an incident: its steps, and those of its gates that a person may overrule."""
    return at_desk(speaker, lambda desk: _approve(desk, thing))


def _approve(desk: Desk, thing: str) -> int:
    name, decision = _planned(desk, thing)
    failed = [gate for gate in decision.gates if not gate.passed and gate.name != _REJECTED]
    if ruling_of([gate for gate in failed if gate.name in STOPS]) is Ruling.REFUSE:
        why = "; ".join(f"{gate.name}: {gate.reason}" for gate in failed if _leads_to(gate) is Ruling.REFUSE)
        raise CommandError(f"{name} is refused, and no approval changes that: {why}", ExitCode.PROBLEMS)
    overrules = [gate for gate in failed if _may_overrule(gate)]
    stops = [gate for gate in failed if not _may_overrule(gate)]
    steps = tuple(step.action for step in decision.plan.steps)
    done_by_us = HANDS | _LOOKS | desk.policy.operations.enabled
    # What an earlier approval has overruled shows as passed, and has to stay so.
    still = [gate.name for gate in decision.gates if gate.passed and _OVERRULED in gate.reason]
    gates = tuple(gate.name for gate in decision.gates if not gate.passed or gate.name in still)
    saying = desk.saying(Word.APPROVE, node=decision.plan.node, incidents=(name,), actions=steps, gates=gates)
    lines = [
        f"{decision.plan.action} on {decision.plan.node}: {decision.plan.reason}",
        *(f"overrules {gate.name}: {gate.reason}" for gate in overrules),
        *(f"still stops it, {gate.name} ({_leads_to(gate)}): {gate.reason}" for gate in stops),
        *(f"nobody carries out {action} here: it is up to you" for action in steps if action not in done_by_us),
        *_contradicts(desk, name),
    ]
    if decision.plan.affected:
        lines.append(f"moves {len(decision.plan.affected)} pods: {some_of(decision.plan.affected)}")
    if decision.plan.jobs:
        lines.append(f"jobs there: {some_of(decision.plan.jobs)}")
    told = {"overrules": to_jsonable(overrules), "still_stops": to_jsonable(stops), "plan": to_jsonable(decision.plan)}
    return desk.write(saying, lines, **told)


def _leads_to(gate: GateResult) -> Ruling | None:
    """What a gate that does not pass leads to; None for one that this version doesn't know."""
    stop = STOPS.get(gate.name)
    return None if stop is None else stop.ruling


def _may_overrule(gate: GateResult) -> bool:
    return gate.name in STOPS and STOPS[gate.name].approvable


def _contradicts(desk: Desk, incident: str) -> list[str]:
    """What a person has said before that this takes back."""
    before = desk.said.last_on(incident)
    return [f"takes back: {in_words(before)}"] if before is not None and before.word is not Word.APPROVE else []


def _planned(desk: Desk, thing: str) -> tuple[str, Decision]:
    """The incident that is meant, and its newest plan: of an open one, or of a node that is to be given back."""
    returns = _returns(desk, thing)
    named = [one.id for one in desk.incidents if one.id == thing] or [one for one in returns if one == thing]
    if not named:
        node = desk.node(thing) if not _is_incident(desk, thing) else ""
        named = [one.id for one in desk.on(node)] + [one for one in returns if one not in {i.id for i in desk.on(node)}]
        if not named:
            what = f"no incident is open on {node}" if node else f"{thing} is not open any more"
            raise CommandError(f"{what}: there is nothing to approve", ExitCode.PROBLEMS)
    name = _the_only(desk, named, thing, "approve")
    if name in returns:
        return name, returns[name]
    for decision in desk.decisions(incident=name):
        if decision.plan.action is not Action.RELEASE:
            return name, decision
    raise CommandError(f"nothing has been decided about {name} yet; try again in a minute", ExitCode.PROBLEMS)


def _returns(desk: Desk, thing: str) -> dict[str, Decision]:
    """Decisions to give nodes back after incidents that are over, and that have not been carried out, by incident.

    `thing` is such an incident, or a node.
    """
    is_open = {one.id for one in desk.incidents}
    node = node_called(thing, desk.nodes)
    found: dict[str, Decision] = {}
    for decision in desk.decisions(**({"incident": thing} if node is None else {"node": node})):
        plan = decision.plan
        if plan.incident not in is_open | found.keys() and plan.action is Action.RELEASE:
            done = any(
                one.action is Action.RELEASE and one.ending is Ending.DONE and one.incident == plan.incident
                for one in tried(desk.ledger, (plan.node,), desk.now - HISTORY)
            )
            if not done:
                found[plan.incident] = decision
    return found


def _is_incident(desk: Desk, thing: str) -> bool:
    """Whether the record knows an incident of this name."""
    return next(desk.ledger.entries(incident=thing, limit=1), None) is not None


def _the_only(desk: Desk, names: Sequence[str], thing: str, command: str) -> str:
    """The one of them. Raises CommandError that lists them where there are several."""
    if len(names) == 1:
        return names[0]
    by_id = {one.id: one for one in desk.incidents}
    listed = "\n".join(f"  gpuwarden {command} {name}   {_gist(desk, name, by_id.get(name))}" for name in names)
    raise CommandError(f"{thing} has {len(names)} incidents; which one?\n{listed}", ExitCode.PROBLEMS)


def _gist(desk: Desk, name: str, incident: Incident | None) -> str:
    decision = newest_decision(desk.ledger, name)
    planned = f"{decision['plan']['action']} ({decision['ruling']})" if decision is not None else "nothing decided yet"
    why = incident.why if incident is not None else "it is over"
    return f"{planned}: {why}"


def reject(thing: str, speaker: Speaker) -> int:
    """Have nothing done about an incident."""
    return at_desk(speaker, lambda desk: _reject(desk, thing))


def _reject(desk: Desk, thing: str) -> int:
    named = [one for one in desk.incidents if one.id == thing]
    if not named:
        node = desk.node(thing) if not _is_incident(desk, thing) else ""
        named = desk.on(node)
        if not named:
            what = f"no incident is open on {node}" if node else f"{thing} is not open any more"
            raise CommandError(f"{what}: there is nothing to reject", ExitCode.PROBLEMS)
    name = _the_only(desk, [one.id for one in named], thing, "reject")
    incident = next(one for one in named if one.id == name)
    saying = desk.saying(Word.REJECT, node=incident.node, incidents=(name,))
    lines = [
        *_contradicts(desk, name),
        *(
            f"{node} stays as it is, out of service: `gpuwarden release {node}` gives it back"
            for node in _taken_out(desk, incident.nodes)
        ),
    ]
    return desk.write(saying, lines, nodes=list(incident.nodes))


def _taken_out(desk: Desk, nodes: Iterable[str]) -> list[str]:
    """Those of these nodes that were taken out and not given back since, as far as the ledger knows."""
    found = []
    for node in nodes:
        made = [one for one in tried(desk.ledger, (node,), desk.now - HISTORY) if one.ending is not Ending.FAILED]
        last = next((one for one in reversed(made) if one.action in TAKES_OUT | {Action.RELEASE}), None)
        if last is not None and last.action is not Action.RELEASE:
            found.append(node)
    return found


# ------------------------------------------------------------------------------------------------------ about a node


def hold(thing: str, speaker: Speaker, *, lasts: str | None = None, end: bool = False) -> int:
    """Have a node left alone: for so long, or until somebody ends it; with `end`, end that."""
    return at_desk(speaker, lambda desk: _hold(desk, thing, lasts, end=end))


def _hold(desk: Desk, thing: str, lasts: str | None, *, end: bool) -> int:
    if end and lasts is not None:
        raise CommandError("--for and --end contradict each other; give one of them", ExitCode.USAGE)
    until = _until(desk.now, lasts)
    node = desk.node(thing)
    if end:
        held = desk.said.hold_on(node, desk.now)
        if held is None:
            raise CommandError(f"{node} is not on hold", ExitCode.PROBLEMS)
        return desk.write(desk.saying(Word.RESUME, node=node), [f"it was: {in_words(held)}"])
    saying = desk.saying(Word.HOLD, node=node, until=until)
    lines = ["nothing is done to it until then, what is under way stops, and it is not given back either"]
    return desk.write(saying, lines)


def _until(now: datetime, lasts: str | None) -> datetime | None:
    """The end of a hold; None for no end. Raises CommandError."""
    if lasts is None:
        return None
    try:
        until = now + timedelta(seconds=parse_duration(lasts))
    except (ValueError, OverflowError) as error:
        raise CommandError(f"--for {lasts}: {error}", ExitCode.USAGE) from error
    if until <= now:
        raise CommandError(f"--for {lasts}: a hold lasts some time; --end ends one", ExitCode.USAGE)
    return until


def release(thing: str, speaker: Speaker) -> int:
    """Have a node given back, and left alone as far as its present incidents go."""
    return at_desk(speaker, lambda desk: _release(desk, thing))


def _release(desk: Desk, thing: str) -> int:
    node = desk.node(thing)
    here = desk.on(node)
    # Its marks name one of these: an open incident, one that it was tried to take it out for, or one that is over.
    attempts = reversed(tried(desk.ledger, (node,), desk.now - HISTORY))
    marked = [one.plan.incident for one in desk.decisions(node=node) if one.plan.action is Action.RELEASE]
    names = dict.fromkeys([*(one.id for one in here), *(one.incident for one in attempts), *marked])
    if not names:
        raise CommandError(
            f"gpuwarden has no incident of {node} and has not taken it out; `gpuwarden hold {node}` keeps hands off it",
            ExitCode.PROBLEMS,
        )
    saying = desk.saying(Word.RELEASE, node=node, incidents=tuple(names))
    elsewhere = {one.id: sorted(set(one.nodes) - {node}) for one in here if len(one.nodes) > 1}
    lines = [
        "it is left alone as far as these incidents go; a new one takes it out again",
        *(f"nothing is done about {name} on {some_of(nodes)} any more, either" for name, nodes in elsewhere.items()),
    ]
    held = desk.said.hold_on(node, desk.now)
    if held is not None:
        lines.append(f"it is not given back yet: {in_words(held)}; `gpuwarden hold {node} --end` ends that")
    return desk.write(saying, lines)


def fenced(thing: str, speaker: Speaker) -> int:
    """Say that a node is off for certain: nothing on it can write any more."""
    return at_desk(speaker, lambda desk: _fenced(desk, thing))


def _fenced(desk: Desk, thing: str) -> int:
    node = desk.node(thing)
    lines = ["pods that hang there are given up, and their volumes, once it is being drained and does not answer"]
    if not desk.policy.drain.out_of_service:
        lines = ["nothing comes of it yet: drain.out_of_service is false in the policy"]
    return desk.write(desk.saying(Word.FENCED, node=node), lines)


# ------------------------------------------------------------------------------------------------- the circuit breaker


def breaker(asked: str, speaker: Speaker) -> int:
    """Tell the state of the circuit breaker (`status`), or close it (`reset`)."""
    is_reset = asked == "reset"
    return at_desk(speaker, _reset_breaker if is_reset else _show_breaker, speaks=is_reset)


def _show_breaker(desk: Desk) -> int:
    memory = breaker_of(desk.ledger)
    state = memory.state if memory is not None else BreakerState()
    since = desk.now - timedelta(seconds=desk.policy.breaker.window)
    counted = max(since, state.counts_from) if state.counts_from is not None else since
    taken = [one for one in (memory.taken if memory is not None else ()) if one.at > counted]
    waiting = _reset_to_come(desk, state)
    if desk.form != "table":
        data = {
            "open": state.open_since is not None,
            "open_since": to_jsonable(state.open_since),
            "reason": state.reason,
            "counted": to_jsonable(taken),
            "reset": to_jsonable(waiting),
        }
        show(data, desk.form)
        return ExitCode.OK
    if state.open_since is None:
        say(f"closed: {state.reason}")
    else:
        say(f"open since {moment(state.open_since)}: {state.reason}")
        say("  nothing more is taken out; `gpuwarden breaker reset` closes it, once somebody has looked")
    if waiting is not None:
        say(f"  to be closed at the next tick: {in_words(waiting)}")
    nodes = some_of(one.node for one in taken) or "none"
    say(f"  taken out within the last {desk.policy.breaker.window:.0f} s: {nodes}")
    return ExitCode.OK


def _reset_breaker(desk: Desk) -> int:
    memory = breaker_of(desk.ledger)
    state = memory.state if memory is not None else BreakerState()
    if state.open_since is None:
        raise CommandError(f"the circuit breaker is closed ({state.reason}): nothing to reset", ExitCode.PROBLEMS)
    lines = [f"it was open since {moment(state.open_since)}: {state.reason}"]
    return desk.write(desk.saying(Word.RESET_BREAKER), lines, was=to_jsonable(state))


def _reset_to_come(desk: Desk, state: BreakerState) -> Saying | None:
    """The word that closes an open breaker as soon as the daemon hears it."""
    word = desk.said.breaker_reset()
    return word if state.open_since is not None and word is not None and word.at > state.open_since else None
