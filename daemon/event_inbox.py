"""What agents reported, for the loop: read from the ledger in the order in which it was written, each event once.

Whichever replica's intake wrote it, the one that leads finds it here: at once where its own intake rang the bell, and
at the next look where another's wrote it. How far it was taken is kept in the ledger's state, replaced in the same
transaction as the entries of the tick that took it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog

from daemon.agent_events import events_in
from daemon.ledger import Entry, EntryError, EntryKind, Ledger, LedgerUnavailable
from daemon.logs import Folded, fold
from detectors.events import KernelEvent
from detectors.standing import cannot_wait
from rules.schema import RuleBook

log = structlog.get_logger()

#: The name in the state table.
INBOX = "inbox"
#: Another replica may have written something.
_LOOK_S = 0.5
#: A ledger that cannot be read is not asked for longer.
_LATER_S = 5.0
#: Entries that are read in one look, and that are held until a tick takes them.
_AT_ONCE = 1000
_MOST_HELD = 10_000


class _Taken(msgspec.Struct, frozen=True):
    """All events up to the entry with this id were taken."""

    entry: int


@dataclass(frozen=True, slots=True)
class _Held:
    """An entry that was read, with its events; none where they are of no use."""

    entry: int
    events: tuple[KernelEvent, ...]
    is_urgent: bool
    written: datetime | None


class EventInbox:
    """One loop's reading. `bell` is rung by this process's intake; only the loop's thread calls this.

    `lag` is told how many seconds the oldest report that no tick took yet has been in the ledger; 0 for none.
    """

    def __init__(
        self,
        ledger: Ledger,
        rules: RuleBook,
        bell: threading.Event,
        monotonic: Callable[[], float] = time.monotonic,
        lag: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._bell = bell
        self._monotonic = monotonic
        self._lag = lag
        self._taken = self._read = 0
        self._since: datetime | None = None
        self._held: deque[_Held] = deque()
        self._look_s = -float("inf")

    def resume(self, last_tick: datetime | None) -> None:
        """Go on behind what was taken before; where nobody knows how far that was, with what the last tick did not see.

        Raises LedgerUnavailable.
        """
        blob = self._ledger.state(INBOX)
        self._taken, self._since = 0, last_tick
        try:
            if blob is not None:
                self._taken, self._since = msgspec.json.decode(blob, type=_Taken).entry, None
        except ValueError as error:
            log.warning("not taken up from before", what=INBOX, detail=str(error))
        self._read = self._taken
        self._held.clear()

    def look(self, now: datetime, counts: Counter[str]) -> None:
        """Read what was written since the last look, where it is time for one."""
        now_s = self._monotonic()
        if (now_s < self._look_s and not self._bell.is_set()) or len(self._held) >= _MOST_HELD:
            return
        self._bell.clear()  # before it reads: what is written meanwhile rings again
        try:
            found = list(self._ledger.entries(kind=EntryKind.EVENT, after_id=self._read, limit=_AT_ONCE))
        except LedgerUnavailable as error:
            log.warning("events of agents cannot be read", detail=str(error))
            counts["inbox_unreadable"] += 1
            self._look_s = now_s + _LATER_S
            return
        self._look_s = now_s if len(found) == _AT_ONCE else now_s + _LOOK_S
        for entry in found:
            events = self._events(entry, now, counts)
            is_urgent = any(cannot_wait(event, self._rules) for event in events)
            self._held.append(_Held(entry.id, events, is_urgent, entry.written))
            self._read = entry.id
        oldest = self._held[0].written if self._held else None
        self._lag(max(0.0, (now - oldest).total_seconds()) if oldest is not None else 0.0)

    @property
    def is_urgent(self) -> bool:
        """Whether a fact waits that the kernel itself reported, or so much that nothing more is read."""
        return len(self._held) >= _MOST_HELD or any(held.is_urgent for held in self._held)

    def take(self, until: datetime, into: Folded) -> None:
        """Add what happened by `until`, in the order of the entries; the first that happened later holds up the rest.

        An event's time is never later than that of its entry, and so the next tick takes it.
        """
        while self._held and all(event.at is None or event.at <= until for event in self._held[0].events):
            held = self._held.popleft()
            self._taken = held.entry
            for event in held.events:
                fold(into, event)

    def memory(self) -> dict[str, bytes]:
        """How far it was taken, for the ledger's state table."""
        return {INBOX: msgspec.json.encode(_Taken(self._taken))}

    def close(self) -> None:
        """Nothing to give back: the ledger is another's."""

    def _events(self, entry: Entry, now: datetime, counts: Counter[str]) -> tuple[KernelEvent, ...]:
        if self._since is not None and entry.written is not None and entry.written <= self._since:
            return ()
        try:
            return events_in(entry, now)
        except EntryError as error:
            log.warning("event of an agent cannot be used", entry=entry.id, node=entry.node, detail=str(error))
            counts["inbox_malformed"] += 1
            return ()
