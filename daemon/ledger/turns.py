"""Threads of one process that write to the ledger take turns in the order in which they came.

SQLite lets whoever asks at the right moment go first, so a thread that writes seldom could wait for ever behind ones
that write all the time. `daemon.ledger.store` asks here before it asks the database.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock whose waiters are served first come, first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def one(self, within_s: float) -> Iterator[bool]:
        """A turn for as long as the context lasts; False where it did not come within that time."""
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            if self._waiting[0] is mine:
                mine.set()
        try:
            yield mine.wait(within_s)
        finally:
            with self._lock:
                self._waiting.remove(mine)
                if self._waiting:
                    self._waiting[0].set()
