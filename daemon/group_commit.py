"""Many threads that append to one ledger, one transaction at a time: whoever waits is written by whoever writes next.

A commit costs a write to the disk, whatever it holds. So the loop meets at most one other writer, however many agents
report at once, and a flood of one of them delays the others by one transaction.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from daemon.ledger import Entry, Ledger

#: Entries of one transaction, but for a single request that has more.
MOST_ENTRIES = 2000


@dataclass(slots=True)
class _Waiting:
    """Entries that wait. `woken` is set once they are written or not, or it is this thread's turn to write."""

    entries: Sequence[Entry]
    ids: list[int] | None = None
    error: BaseException | None = None
    woken: threading.Event = field(default_factory=threading.Event)


class GroupCommit:
    """Appends for any number of threads, in the order in which they came."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._is_led = False

    def append(self, entries: Sequence[Entry]) -> list[int]:
        """As `Ledger.append`, which others' entries may be written with. Raises LedgerUnavailable."""
        mine = _Waiting(entries)
        with self._lock:
            self._queue.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.woken.wait()
        if mine.ids is None and mine.error is None:
            self._write()
        if mine.error is not None:
            raise mine.error
        return mine.ids or []

    def _write(self) -> None:
        """What waits longest, which the calling thread's own is the first of; then it is the next one's turn."""
        with self._lock:
            some = self._first()
        try:
            ids = iter(self._ledger.append([entry for one in some for entry in one.entries]))
            for one in some:
                one.ids = list(islice(ids, len(one.entries)))
        except BaseException as error:
            for one in some:
                one.error = error
            raise
        finally:
            with self._lock:
                following = self._queue[0] if self._queue else None
                self._is_led = following is not None
            for one in some:
                one.woken.set()
            if following is not None:
                following.woken.set()

    def _first(self) -> list[_Waiting]:
        some: list[_Waiting] = []
        amount = 0
        while self._queue and (not some or amount + len(self._queue[0].entries) <= MOST_ENTRIES):
            some.append(self._queue.popleft())
            amount += len(some[-1].entries)
        return some
