"""The kernel logs that the loop follows: what is new in them, once, and with a time that can be relied on.

What comes by other roads, such as the reports of agents, is taken with it (`daemon.inlets`).

A followed file is read from its beginning when the daemon starts. What was taken in before a restart is no news (see
`daemon.memory.Heard`), and a record from before the start that has no time of its own could be of any age: it opens
nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from daemon.config import KernelLog
from daemon.inlets import Inlet
from daemon.logs import Folded, FollowedLog, LogFile, LogSourceError, fold, in_order, utc
from daemon.memory import HEARD, Heard, pack_heard
from detectors.events import KernelEvent
from detectors.standing import cannot_wait
from rules.schema import RuleBook
from rules.vocabulary import EventKind

log = structlog.get_logger()

#: A log may be this much quieter than our ticks before its beginning counts as a gap.
_QUIET = timedelta(seconds=60)
_OF_ANY_AGE = "written before the start, with no time of its own"


class Hearing:
    """All followed logs. `counts` gets what could not be used, by reason; only the loop's thread calls this."""

    def __init__(
        self,
        logs: Sequence[KernelLog],
        rules: RuleBook,
        oldest: datetime,
        counts: Counter[str],
        inlets: Sequence[Inlet] = (),
    ) -> None:
        self.heard = Heard({})
        self._inlets = inlets
        self._rules = rules
        self._oldest = oldest
        self._heard_until: datetime | None = None
        self._counts = counts
        self._logs = [FollowedLog(LogFile(one.node, one.path), rules, counts) for one in logs]
        self._begun: set[str] = set()
        self._silent: set[str] = set()
        self._waiting_for_boot: dict[str, list[KernelEvent]] = defaultdict(list)
        self._waiting: dict[str, Folded] = defaultdict(dict)
        self._fact_waits = False

    def resume(self, heard: Heard, last_tick: datetime | None) -> None:
        """Go on from where the process before this one stopped: whatever was written since is news, however old.

        Raises LedgerUnavailable.
        """
        self.heard = heard
        self._heard_until = last_tick
        if last_tick is not None:
            self._oldest = min(self._oldest, last_tick)
        for inlet in self._inlets:
            inlet.resume(last_tick)

    def listen(self, now: datetime, boot_at: Callable[[str], float | None]) -> None:
        """Read what was written since the last call. `boot_at` gives a node's boot in unix seconds, where known."""
        for inlet in self._inlets:
            inlet.look(now, self._counts)
        for followed in self._logs:
            name = followed.path
            events = self._read(followed, name)
            if not events and name not in self._waiting_for_boot:
                continue
            booted = boot_at(followed.log.node)
            if booted is not None:
                events = [*self._waiting_for_boot.pop(name, ()), *events]
            for event in events:
                self._hear(name, event, now, booted)

    @property
    def is_urgent(self) -> bool:
        """Whether a fact waits that the kernel itself reported: that can't wait for the next poll."""
        return self._fact_waits or any(inlet.is_urgent for inlet in self._inlets)

    def take(self, until: datetime) -> list[KernelEvent]:
        """What was heard and happened by `until`, repeats folded; anything later belongs to the next tick."""
        due: Folded = {}
        waiting, self._waiting, self._fact_waits = self._waiting, defaultdict(dict), False
        for name, held in waiting.items():
            for event in in_order(held):
                if event.at is not None and event.at > until:
                    self._wait(name, event)
                else:
                    self.heard.take(name, event)
                    fold(due, event)
        for inlet in self._inlets:
            inlet.take(until, due)
        return in_order(due)

    def memory(self) -> dict[str, bytes]:
        """How far all of it was taken, for the ledger's state table."""
        state = {HEARD: pack_heard(self.heard)}
        for inlet in self._inlets:
            state |= inlet.memory()
        return state

    def give_back(self, events: Iterable[KernelEvent]) -> None:
        """Events that were taken for a tick that broke before it could use them."""
        for event in events:
            self._wait("", event)

    def close(self) -> None:
        """Give files and threads back."""
        for followed in self._logs:
            followed.close()
        for inlet in self._inlets:
            inlet.close()

    # -------------------------------------------------------------------------- parts

    def _read(self, followed: FollowedLog, name: str) -> list[KernelEvent]:
        try:
            events = followed.read()
        except LogSourceError as error:
            self._counts["log_unreadable"] += 1
            if name not in self._silent:
                self._silent.add(name)
                log.warning("kernel log", node=followed.log.node, detail=str(error))
            return []
        if name in self._silent:
            self._silent.discard(name)
            log.info("kernel log is back", node=followed.log.node, path=name)
        if name in self._begun:
            return events
        self._begun.add(name)
        events = [
            event if event.at is not None else replace(event, notes=(*event.notes, _OF_ANY_AGE)) for event in events
        ]
        return [*self._gap(followed), *events]

    def _gap(self, followed: FollowedLog) -> list[KernelEvent]:
        """An event of its own where the log's oldest record is newer than the last look of the process before this one.

        What was written in between has been rotated away unread: silence there is not health (NVSentinel 1417).
        """
        begins, until = followed.begins_at, self._heard_until
        if begins is None or until is None or begins <= until + _QUIET:
            return []
        self._counts["log_gaps"] += 1
        text = f"log coverage lost from {until:%Y-%m-%dT%H:%M:%SZ} to {begins:%Y-%m-%dT%H:%M:%SZ}"
        log.warning("kernel log", node=followed.log.node, detail=text)
        return [KernelEvent(kind=EventKind.COVERAGE_LOST, code=None, text=text, at=begins, node=followed.log.node)]

    def _hear(self, name: str, event: KernelEvent, now: datetime, booted: float | None) -> None:
        """Give the event its time and queue it, unless it is old, known, or of any age."""
        at = event.at
        if at is None and event.monotonic_s is not None and booted is not None:
            at = utc(booted) + timedelta(seconds=event.monotonic_s)
        if at is None and _OF_ANY_AGE not in event.notes:
            at = now  # it was not there at the last look
        if at is None:
            if event.monotonic_s is not None:
                self._waiting_for_boot[name].append(event)
                self._counts["log_waits_for_boot_time"] += event.count
            else:
                self._counts["log_undated"] += event.count
            return
        event = replace(event, at=min(at, now))
        if name not in self.heard.before and at < self._oldest:
            self._counts["log_too_old"] += event.count
        elif self.heard.is_news(name, event):
            self._wait(name, event)
        else:
            self._counts["log_heard_before"] += event.count

    def _wait(self, name: str, event: KernelEvent) -> None:
        """Until the next tick. It is judged once: it may wait through many looks."""
        fold(self._waiting[name], event)
        self._fact_waits |= cannot_wait(event, self._rules)
