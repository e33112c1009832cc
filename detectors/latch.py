"""Hysteresis over many rows at once: when does a condition count as on, and when as over?

Used by thresholds, peers and telemetry, so that nothing in the house can flap faster than its rule allows.
"""

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Latch:
    """One on/off memory a row. Turns on after `hold_s` of unbroken firing, off after `clear_s` of unbroken clearing.

    A row that neither fires nor clears (nothing is known, or the rule does not apply now) keeps its state, but an
    unbroken stretch of firing or clearing has to begin anew. `since` is when the firing began, `last` when it was
    last seen firing; unix seconds.
    """

    def __init__(self) -> None:
        self.on: Bools = np.empty(0, np.bool_)
        self.since: Floats = np.empty(0)
        self.last: Floats = np.empty(0)
        self._clearing_since: Floats = np.empty(0)
        self._kept: tuple[Floats, ...] = ()

    def step(self, now: float, firing: Bools, clearing: Bools, *, hold_s: float, clear_s: float) -> Bools:
        """Take one moment in (arrays of shape (rows,), rows may have grown); returns which rows are on."""
        self._grow(len(firing))
        begins = firing & np.isnan(self.since)
        self.since[begins] = now
        self.last[firing] = now
        broken = ~firing & ~self.on
        self.since[broken] = np.nan
        with np.errstate(invalid="ignore"):
            self.on |= firing & (now - self.since >= hold_s)
        clears = clearing & self.on & ~firing
        self._clearing_since[~clears] = np.nan
        self._clearing_since[clears & np.isnan(self._clearing_since)] = now
        with np.errstate(invalid="ignore"):
            over = clears & (now - self._clearing_since >= clear_s)
        self.on[over] = False
        self.since[over] = np.nan
        self._clearing_since[over] = np.nan
        return self.on.copy()

    def keep(self, firing: Bools, *values: Floats) -> tuple[Floats, ...]:
        """`values` as they were when each row was last seen firing, and as they are now where it never was.

        What a signal shows is what spoke for it, also while it waits to clear. Call once a step, after it.
        """
        kept = []
        for index, value in enumerate(values):
            shown = value.astype(np.float64)
            if index < len(self._kept):
                before = self._kept[index]
                waits = self.on[: len(before)] & ~firing[: len(before)]
                shown[: len(before)][waits] = before[waits]
            kept.append(shown)
        self._kept = tuple(kept)
        return self._kept

    def drop(self, rows: Bools) -> None:
        """Forget rows whose thing was replaced."""
        self._grow(len(rows))
        self.on[rows] = False
        for times in (self.since, self.last, self._clearing_since):
            times[rows] = np.nan

    def _grow(self, rows: int) -> None:
        more = rows - len(self.on)
        if more > 0:
            self.on = np.concatenate([self.on, np.zeros(more, np.bool_)])
            for name in ("since", "last", "_clearing_since"):
                setattr(self, name, np.concatenate([getattr(self, name), np.full(more, np.nan)]))


class Window:
    """A sum over the last `window_s` seconds for each row.

    It is kept in `buckets` steps of time: what falls out of the window is forgotten a bucket at a time, so a sum covers
    up to one bucket less than the window. Single precision: 25 such windows over 16,384 GPUs are 100 MB as it is.
    """

    def __init__(self, window_s: float, buckets: int = 60) -> None:
        self._bucket_s = window_s / buckets
        self._buckets = buckets
        self._data = np.zeros((buckets, 0), np.float32)
        self._head: int | None = None

    def add(self, now: float, amount: Floats) -> Floats:
        """Add one tick's amounts (NaN adds nothing), shape (rows,); returns the sums over the window."""
        self._grow(len(amount))
        head = int(now // self._bucket_s)
        if self._head is not None:
            for passed in range(self._head + 1, min(head, self._head + self._buckets) + 1):
                self._data[passed % self._buckets] = 0.0
        self._head = head
        self._data[head % self._buckets] += np.nan_to_num(amount)
        total: Floats = self._data.sum(axis=0).astype(np.float64)
        return total

    def drop(self, rows: Bools) -> None:
        """Forget rows whose thing was replaced."""
        self._grow(len(rows))
        self._data[:, rows] = 0.0

    def _grow(self, rows: int) -> None:
        more = rows - self._data.shape[1]
        if more > 0:
            self._data = np.hstack([self._data, np.zeros((self._buckets, more), np.float32)])
