"""The desk at which a person's word is checked, written into the ledger and told: for `daemon.commands.people`."""

import getpass
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.commands.explained import in_words
from daemon.commands.output import CommandError, ExitCode, say, settings, show
from daemon.commands.record import (
    HISTORY,
    as_values,
    ended,
    mode_of_daemon,
    node_called,
    remembered,
    require_ledger,
    some_of,
    what_people_said,
)
from daemon.journal import entry_of
from daemon.ledger import EntryKind, Ledger, to_jsonable
from detectors.findings import Incident
from remediation.decide import Decision
from remediation.people import Said, Saying, Word
from rules.schema import Policy


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who says something, through which configuration, and how the answer is printed.

    `by` None is the user of the operating system; `now` None the present.
    """

    config: Path | None
    form: str
    by: str | None = None
    why: str = ""
    now: datetime | None = None


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything that a word is checked against. Open for one command."""

    ledger: Ledger
    policy: Policy
    now: datetime
    by: str
    why: str
    form: str
    incidents: tuple[Incident, ...]
    said: Said
    #: all nodes that the record speaks of
    nodes: frozenset[str]

    def saying(self, word: Word, **about: Any) -> Saying:
        """This word of this person, now."""
        return Saying(self.now, word, self.by, why=self.why, **about)

    def node(self, asked: str) -> str:
        """The node that is meant. Raises CommandError."""
        found = node_called(asked, self.nodes) or node_called(asked, self._nodes_of_the_last_days())
        if found is None:
            raise CommandError(f"no node is called {asked!r}; nodes known: {some_of(self.nodes)}", ExitCode.PROBLEMS)
        return found

    def _nodes_of_the_last_days(self) -> set[str]:
        """Those that something was decided or tried about; telemetry may have lost them since."""
        kinds = (EntryKind.DECISION, EntryKind.ATTEMPT)
        return {entry.node for entry in self.ledger.entries(kind=kinds, since=self.now - HISTORY) if entry.node}

    def on(self, node: str) -> list[Incident]:
        """The open incidents of a node."""
        return [one for one in self.incidents if node in one.nodes]

    def decisions(self, **about: Any) -> list[Decision]:
        """The decisions of the last days, newest first."""
        entries = self.ledger.entries(
            kind=EntryKind.DECISION, since=self.now - HISTORY, newest_first=True, **about
        )  # fmt: skip
        return as_values(self.ledger, (entry.body for entry in entries), Decision)

    def write(self, saying: Saying, lines: Sequence[str] = (), **more: Any) -> int:
        """Write it, then tell it: in a sentence, `lines` and who will hear it, or as data with `more`."""
        self.ledger.append([entry_of(saying)])
        mode = mode_of_daemon(self.ledger)
        if self.form != "table":
            show({"said": to_jsonable(saying), **more, "mode": mode}, self.form)
            return ExitCode.OK
        say(in_words(saying))
        for line in lines:
            say(f"  {line}")
        if mode == "observe":
            say("  gpuwarden runs in mode observe: it decides with this, and changes nothing")
        return ExitCode.OK


def at_desk(speaker: Speaker, work: Callable[[Desk], int], *, speaks: bool = True) -> int:
    """Run `work` with all that it needs. A command that only asks has no speaker."""

    def opened() -> int:
        config, rules = settings(speaker.config)
        require_ledger(config)
        by = _name(speaker.by) if speaks else ""
        now = speaker.now or datetime.now(UTC)
        with Ledger.open(config.ledger.url, now=lambda: now) as ledger:
            incidents = as_values(ledger, ledger.open_incidents(), Incident)
            said = what_people_said(ledger, now)
            verdicts = remembered(ledger).verdicts
            nodes = {v.node for v in verdicts} | {node for one in incidents for node in one.nodes}
            nodes |= {saying.node for saying in said.sayings}
            desk = Desk(
                ledger, rules.policy, now, by, _line(speaker.why), speaker.form, tuple(incidents), said,
                frozenset(nodes - {""}),
            )  # fmt: skip
            return work(desk)

    return ended(opened)


def _name(by: str | None) -> str:
    """Who speaks. Raises CommandError."""
    try:
        name = _line(getpass.getuser() if by is None else by)
    except (KeyError, OSError) as error:
        raise CommandError("this user has no name here; say who you are with --by NAME", ExitCode.USAGE) from error
    if not name:
        raise CommandError("--by is empty; say who you are", ExitCode.USAGE)
    return name


def _line(text: str) -> str:
    """Text as one line that can be stored and printed."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())
