"""What the commands for people read from the ledger, and how they end: shared by explain, plan, approve and the others.

Read-only. A question never makes a ledger, and names are matched as people type them.
"""

import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import structlog

from daemon.commands.output import CommandError, ExitCode, complain
from daemon.config import Config
from daemon.journal import BREAKER, BreakerMemory, Ended, Journal, Written, read_breaker
from daemon.ledger import Body, EntryError, EntryKind, Ledger, LedgerError, decode_body
from daemon.ledger.engine import parse_url
from daemon.memory import Remembered, read_verdicts
from remediation.limits import Ending
from remediation.people import Said
from remediation.restoring import Restart
from remediation.tickets import Filed
from rules.vocabulary import Action

T = TypeVar("T")

#: Attempts are shown from so far back; no limit counts longer.
HISTORY = timedelta(days=7)
#: Most names that a message lists.
_NAMED = 8


def ended(work: Callable[[], int]) -> int:
    """The exit code of a command's work; what ends it early is told on stderr, and so is what is logged meanwhile."""
    # Looked up at each line: stderr may be another one by then.
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    try:
        return work()
    except CommandError as error:
        complain(str(error))
        return error.code
    except LedgerError as error:
        complain(str(error))
        return ExitCode.LEDGER


def require_ledger(config: Config) -> None:
    """A question must not make a ledger: an empty one would look like a fleet without GPUs. Raises CommandError."""
    url = parse_url(config.ledger.url)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise CommandError(
            f"there is no ledger at {url.database} yet; start `gpuwarden run`, or name its configuration with --config",
            ExitCode.LEDGER,
        )


def remembered(ledger: Ledger) -> Remembered:
    """The newest verdicts. Raises CommandError where there are none, or of another version."""
    try:
        found = read_verdicts(ledger)
    except ValueError as error:
        raise another_version(ledger, "verdicts", error) from error
    if found is None:
        why = f"ledger {ledger.where} holds no verdicts yet; has `gpuwarden run` finished a tick?"
        raise CommandError(why, ExitCode.PROBLEMS)
    return found


def another_version(ledger: Ledger, what: str, error: ValueError) -> CommandError:
    """The error for what this version cannot read."""
    why = f"ledger {ledger.where} holds {what} of another version of gpuwarden ({error}); its next tick renews them"
    return CommandError(why, ExitCode.LEDGER)


def as_values(ledger: Ledger, bodies: Iterable[Body], kind: type[T]) -> list[T]:
    """Bodies as the values that they were made from: all of them, or CommandError."""
    try:
        return [decode_body(body, kind) for body in bodies]
    except EntryError as error:
        raise another_version(ledger, "entries", error) from error


def mode_of_daemon(ledger: Ledger) -> str:
    """How far the daemon went when it began last, "" where none has begun."""
    runs = ledger.entries(kind=EntryKind.RUN_STARTED, newest_first=True, limit=1)
    return next((str(run.body.get("mode", "")) for run in runs), "")


# -------------------------------------------------------------------------------------------------------------- names


def same_node(name: str, asked: str) -> bool:
    """`n1` and `n1.cluster.local` are one node; two long names have to be equal."""
    return name == asked or (("." in name) != ("." in asked) and name.split(".", 1)[0] == asked.split(".", 1)[0])


def node_called(asked: str, known: Collection[str]) -> str | None:
    """Which of the nodes that are known a person means; None for none of them, or for several."""
    if asked in known:
        return asked
    fitting = [name for name in known if same_node(name, asked)]
    return fitting[0] if len(fitting) == 1 else None


def some_of(names: Iterable[str]) -> str:
    """The first few of the names, for a message."""
    ordered = sorted(set(names))
    more = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# ------------------------------------------------------------------------------------------- what was tried, and said


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt with its outcome; `ended` is None, and `detail` "", while it is pending."""

    at: datetime
    incident: str
    node: str
    action: Action
    ending: Ending
    ended: datetime | None
    detail: str


def tried(ledger: Ledger, nodes: Iterable[str], since: datetime) -> list[Tried]:
    """The attempts on these nodes since then, oldest first. Raises LedgerUnavailable, CommandError."""
    found: dict[tuple[str, str, Action, int], Tried] = {}
    kinds = (EntryKind.ATTEMPT, EntryKind.OUTCOME)
    try:
        for node in sorted(set(nodes)):
            for entry in ledger.entries(kind=kinds, node=node, since=since):
                if entry.kind is EntryKind.ATTEMPT:
                    begun = decode_body(entry.body, Written)
                    found[begun.incident, begun.node, begun.action, begun.number] = Tried(
                        entry.at, begun.incident, begun.node, begun.action, Ending.PENDING, None, ""
                    )
                    continue
                came = decode_body(entry.body, Ended)
                name = came.incident, came.node, came.action, came.number
                if name in found:
                    found[name] = replace(found[name], ending=came.ending, ended=entry.at, detail=came.detail)
    except EntryError as error:
        raise another_version(ledger, "attempts", error) from error
    return sorted(found.values(), key=lambda one: one.at)


def restarts_of(ledger: Ledger, nodes: Iterable[str] | None, since: datetime) -> list[Restart]:
    """The restarts of jobs from these nodes (all, where None) since then, as they stand, in the order they began.

    Raises LedgerUnavailable, CommandError.
    """
    newest: dict[str, Restart] = {}
    for node in [None] if nodes is None else sorted(set(nodes)):
        entries = ledger.entries(kind=EntryKind.RESTART, node=node, since=since)
        for one in as_values(ledger, (entry.body for entry in entries), Restart):
            newest[one.id] = one
    return list(newest.values())


def tickets_of(ledger: Ledger, incidents: Iterable[str]) -> list[Filed]:
    """The tickets about these incidents, as they stand. Raises LedgerUnavailable, CommandError."""
    named = sorted(set(incidents))
    entries = ledger.entries(kind=EntryKind.TICKET, incident=named) if named else ()
    return list({one.ticket.id: one for one in as_values(ledger, (entry.body for entry in entries), Filed)}.values())


def what_people_said(ledger: Ledger, now: datetime) -> Said:
    """All that counts. What another version wrote is passed over, and told. Raises LedgerUnavailable."""
    journal = Journal(ledger)
    journal.read(now - HISTORY)
    return journal.said


def breaker_of(ledger: Ledger) -> BreakerMemory | None:
    """The circuit breaker as it was left, None where nothing has looked at a cluster yet.

    Raises LedgerUnavailable, CommandError.
    """
    if ledger.state(BREAKER) is None:
        return None
    try:
        return read_breaker(ledger)
    except ValueError as error:
        raise another_version(ledger, "a circuit breaker", error) from error
