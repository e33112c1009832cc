"""How much each node may ask of the intake: buckets that fill with time, and requests that run at once.

Times are seconds of a monotonic clock, given by the caller. Locks are held for arithmetic only, never while anything is
read or written. `daemon.intake` calls it from the web's threads.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Bucket:
    """Holds up to `most`, and fills by `per_s` a second. A new one is full."""

    def __init__(self, most: float, per_s: float, now_s: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = most
        self._at_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much is there; 0 where it is. More than it can hold is there once it is full."""
        self._fill(now_s)
        return max(0.0, (min(amount, self._most) - self._left) / self._per_s)

    def take(self, amount: float, now_s: float) -> None:
        """Take it, which may leave less than nothing."""
        self._fill(now_s)
        self._left -= amount

    def _fill(self, now_s: float) -> None:
        self._left = min(self._most, self._left + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s


class Quotas:
    """The same buckets for everybody, by name. `kinds` gives what each holds, and by how much it fills a second.

    The one that was not asked for longest is forgotten where there are more than `remembered`.
    """

    def __init__(self, kinds: dict[str, tuple[float, float]], remembered: int = 8192) -> None:
        self._kinds = kinds
        self._remembered = remembered
        self._lock = threading.Lock()
        self._of: OrderedDict[str, dict[str, Bucket]] = OrderedDict()

    def take(self, who: str, now_s: float, **amounts: float) -> float:
        """Take all of it or nothing; returns the seconds after which to come back, 0 where it was taken."""
        with self._lock:
            mine = self._mine(who, now_s)
            wait_s = max(mine[kind].wait_s(amount, now_s) for kind, amount in amounts.items())
            if wait_s <= 0:
                for kind, amount in amounts.items():
                    mine[kind].take(amount, now_s)
            return wait_s

    def wait_s(self, who: str, now_s: float, **amounts: float) -> float:
        """As `take`, and nothing is taken."""
        with self._lock:
            mine = self._mine(who, now_s)
            return max(mine[kind].wait_s(amount, now_s) for kind, amount in amounts.items())

    def spend(self, who: str, now_s: float, **amounts: float) -> None:
        """Take it in any case; what was not there has to come back first."""
        with self._lock:
            mine = self._mine(who, now_s)
            for kind, amount in amounts.items():
                mine[kind].take(amount, now_s)

    def __len__(self) -> int:
        return len(self._of)

    def _mine(self, who: str, now_s: float) -> dict[str, Bucket]:
        mine = self._of.get(who)
        if mine is None:
            mine = self._of[who] = {kind: Bucket(most, per_s, now_s) for kind, (most, per_s) in self._kinds.items()}
            while len(self._of) > self._remembered:
                self._of.popitem(last=False)
        self._of.move_to_end(who)
        return mine


class Room(Generic[T]):
    """How many of each run at once, and all together."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._running: Counter[T] = Counter()
        self._all = 0
        self._changed = threading.Condition()

    @contextmanager
    def a_place(self, who: T, within_s: float = 0.0) -> Iterator[bool]:
        """A place for as long as the context lasts; False where there is none, also not within that time.

        Who has as many as one may have does not wait for another.
        """
        with self._changed:
            if self._running[who] >= self._most_of_one:
                has = False
            else:
                self._running[who] += 1
                has = self._changed.wait_for(lambda: self._all < self._most, within_s)
                self._all += has
                if not has:
                    self._leave(who)
        try:
            yield has
        finally:
            if has:
                with self._changed:
                    self._all -= 1
                    self._leave(who)
                    self._changed.notify()

    def _leave(self, who: T) -> None:
        self._running[who] -= 1
        if not self._running[who]:
            del self._running[who]
