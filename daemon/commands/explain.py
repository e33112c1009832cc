"""`gpuwarden explain`: why a GPU or node has its verdict, from the ledger, whether the daemon runs or not.

And what has been done about it: what was tried and how it ended, what people said, and which incidents are over.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daemon.commands.explained import Told, print_told
from daemon.commands.output import CommandError, ExitCode, settings, show
from daemon.commands.record import (
    HISTORY,
    breaker_of,
    ended,
    remembered,
    require_ledger,
    restarts_of,
    same_node,
    some_of,
    tickets_of,
    tried,
    what_people_said,
)
from daemon.config import Config
from daemon.ledger import Body, EntryKind, Ledger, to_jsonable
from daemon.memory import Remembered, newest_decision
from detectors.findings import Verdict
from detectors.verdict import score_of
from remediation.lost_work import by_incident, lost_in
from remediation.people import Said, Saying
from remediation.restoring import Restart
from rules.schema import RuleBook

#: A part of a UUID has to be this long, or it would name half the fleet.
_SHORTEST_PART = 4
#: Incidents that have ended within this time are part of the story.
_CLOSED_WITHIN = timedelta(hours=24)


def explain(thing: str, path: Path | None, form: str, *, now: datetime | None = None) -> int:
    """Print the verdict of each GPU that `thing` names, with the terms of its score, and what is done about it."""
    return ended(lambda: _explain(thing, *settings(path), form, now or datetime.now(UTC)))


def _explain(thing: str, config: Config, rules: RuleBook, form: str, now: datetime) -> int:
    require_ledger(config)
    with Ledger.open(config.ledger.url, now=lambda: now) as ledger:
        known = remembered(ledger)
        found = _named(thing, known)
        incidents = [body for body in ledger.open_incidents() if _concerns(body, found, thing)]
        closed = [body for body in _closed(ledger, now) if _concerns(body, found, thing)]
        if not found and not incidents and not closed:
            raise CommandError(_unknown(thing, known), ExitCode.PROBLEMS)
        nodes = {v.node for v in found} | {str(node) for body in (*incidents, *closed) for node in body["nodes"]}
        breaker = breaker_of(ledger)
        restarts = restarts_of(ledger, nodes, now - HISTORY)
        opened = _opened(ledger, restarts)
        told = Told(
            now=now,
            known=known,
            found=tuple(found),
            incidents=tuple(incidents),
            decisions=tuple(newest_decision(ledger, str(body["id"])) for body in incidents),
            closed=tuple(closed),
            last_decisions=tuple(newest_decision(ledger, str(body["id"])) for body in closed),
            tickets=tuple(tickets_of(ledger, (str(body["id"]) for body in (*incidents, *closed)))),
            attempts=tuple(tried(ledger, nodes, now - HISTORY)),
            restarts=tuple(restarts),
            lost=tuple(lost_in(one, opened.get(one.incident)) for one in restarts),
            words=_in_force(what_people_said(ledger, now), nodes, (*incidents, *closed), now),
            breaker=breaker.state if breaker is not None else None,
        )
    if form == "table":
        print_told(told, rules)
    else:
        show(_as_data(told, rules), form)
    return ExitCode.OK


def _named(thing: str, known: Remembered) -> list[Verdict]:
    """The verdicts of a node, of NODE/INDEX, or of the GPUs whose UUID begins like this, with or without `GPU-`."""
    node, _, index = thing.partition("/")
    by_node = [v for v in known.verdicts if same_node(v.node, node)]
    if by_node:
        return [v for v in by_node if not index or known.places.get(v.gpu, ("", "", ""))[1] == index]
    exact = [v for v in known.verdicts if v.gpu == thing]
    part = thing.removeprefix("GPU-")
    if exact or len(part) < _SHORTEST_PART:
        return exact
    return [v for v in known.verdicts if v.gpu.removeprefix("GPU-").startswith(part) or v.gpu.startswith(thing)]


def _unknown(thing: str, known: Remembered) -> str:
    node, _, index = thing.partition("/")
    indices = sorted(place[1] for place in known.places.values() if same_node(place[0], node))
    if index and indices:
        return f"{node} has no GPU {index!r}; it has {', '.join(indices)}"
    if not known.verdicts:
        return f"{thing!r}: the daemon has seen no GPU yet; check prometheus.matchers and that an exporter is scraped"
    return f"{thing!r} names no GPU and no node; nodes known: {some_of(v.node for v in known.verdicts)}"


def _concerns(body: Body, found: Sequence[Verdict], thing: str) -> bool:
    """Whether an incident names one of the GPUs, or, where it names none, their node or the one that was asked for."""
    named = set(body.get("gpu_uuids", ()))
    nodes = {str(one) for one in body.get("nodes", ())}
    if not found:
        return any(same_node(one, thing) for one in nodes)
    return bool(named & {v.gpu for v in found}) if named else bool(nodes & {v.node for v in found})


def _closed(ledger: Ledger, now: datetime) -> list[Body]:
    """The incidents that have ended lately, the oldest end first."""
    ends = ledger.entries(kind=EntryKind.INCIDENT_CLOSED, since=now - _CLOSED_WITHIN)
    return list({entry.incident: entry.body for entry in ends}.values())


def _opened(ledger: Ledger, restarts: Sequence[Restart]) -> dict[str, datetime]:
    """When the incidents of these restarts opened."""
    named = {one.incident for one in restarts}
    entries = ledger.entries(kind=EntryKind.INCIDENT_OPENED, incident=named) if named else ()
    told = {str(entry.incident): entry.body.get("opened") for entry in entries}
    return {incident: datetime.fromisoformat(str(at)) for incident, at in told.items() if at}


def _in_force(said: Said, nodes: set[str], incidents: Sequence[Body], now: datetime) -> tuple[Saying, ...]:
    """The last word on each of the incidents, and the holds on the nodes, oldest first."""
    words = {said.last_on(str(body["id"])) for body in incidents} | {said.hold_on(node, now) for node in nodes}
    opened = [datetime.fromisoformat(str(body["opened"])) for body in incidents]
    words |= {said.fence_of(node, min(opened)) for node in nodes if opened}
    return tuple(sorted((word for word in words if word is not None), key=lambda word: (word.at, word.word)))


def _as_data(told: Told, rules: RuleBook) -> dict[str, Any]:
    return {
        "at": to_jsonable(told.known.at),
        "source": told.known.source,
        "gpus": [_gpu(v, told.known, rules) for v in told.found],
        "incidents": list(told.incidents),
        "decisions": [decision for decision in told.decisions if decision is not None],
        "closed": list(told.closed),
        "tickets": to_jsonable(told.tickets),
        "attempts": to_jsonable(told.attempts),
        "restarts": _restarts(told),
        "lost_work": to_jsonable(by_incident(one for one in told.lost if one is not None)),
        "words": to_jsonable(told.words),
        "breaker": to_jsonable(told.breaker),
    }


def _restarts(told: Told) -> list[dict[str, Any]]:
    """Each restart with what it has lost."""
    plain: Any = to_jsonable(told.restarts)
    return [{**restart, "lost_work": to_jsonable(lost)} for restart, lost in zip(plain, told.lost, strict=True)]


def _gpu(verdict: Verdict, known: Remembered, rules: RuleBook) -> dict[str, Any]:
    score = score_of(verdict.signals, rules.policy.verdict)
    _, index, pci = known.places.get(verdict.gpu, (verdict.node, "", ""))
    told = {"index": index, "pci": pci, "evidence": score.evidence, "suspicion": score.suspicion}
    plain: Any = to_jsonable(verdict)
    return {**plain, **told}
