"""The flat arrays under `daemon.ingest.store`: one element a slot, found by cell or by component.

Components have names that come and go (a network device a pod), so their slots are given back and used again.
"""

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Index = NDArray[np.intp]
Sources = NDArray[np.int32]

_FIRST_SIZE = 1024


class Combine(IntEnum):
    """How a cell's slots make one number; UNUSED is a slot that was given back."""

    NEWEST = 0
    SUM = 1
    MAX = 2
    UNUSED = 3


@dataclass(slots=True)
class Arrays:
    """State of slots, arrays of equal length. `at` and `changed_at` (when the value last changed) are unix seconds.

    `low`, `high`, `increase` and `samples` belong to the tick that goes on.
    """

    row: NDArray[np.int32]
    col: NDArray[np.int32]
    combine: NDArray[np.int8]
    at: Floats
    value: Floats
    source: Sources
    changed_at: Floats
    low: Floats
    high: Floats
    increase: Floats
    samples: NDArray[np.int32]

    @staticmethod
    def blank(size: int) -> "Arrays":
        """Slots that have seen nothing."""
        row, col, samples = (np.zeros(size, np.int32) for _ in range(3))
        at, value, changed_at, low, high, increase = (np.full(size, np.nan) for _ in range(6))
        combine, source = np.full(size, Combine.UNUSED, np.int8), np.full(size, -1, np.int32)
        return Arrays(row, col, combine, at, value, source, changed_at, low, high, increase, samples)

    def put(self, where: Index | slice, other: "Arrays") -> None:
        """Overwrite some slots with those of `other`."""
        for one in fields(self):
            getattr(self, one.name)[where] = getattr(other, one.name)

    def first(self, count: int) -> "Arrays":
        """The first slots, as views."""
        return Arrays(*(getattr(self, one.name)[:count] for one in fields(self)))


class Slots:
    """Hands slots out and finds them again; what they hold is in `arrays`."""

    def __init__(self) -> None:
        self.arrays = Arrays.blank(_FIRST_SIZE)
        self._count = 0
        self._cells = np.full((64, 16), -1, np.int32)
        self._components: dict[tuple[int, int, str], int] = {}
        self._key_of: dict[int, tuple[int, int, str]] = {}
        self._free: list[int] = []

    def fit(self, rows: int, columns: int) -> None:
        """Make room for so many cells."""
        while rows > len(self._cells):
            self._cells = np.vstack([self._cells, np.full_like(self._cells, -1)])
        while columns > self._cells.shape[1]:
            self._cells = np.hstack([self._cells, np.full_like(self._cells, -1)])

    def slot(self, row: int, col: int, combine: Combine, component: str) -> int:
        """The slot of a cell, or of one component of it; made where it is new."""
        is_plain = combine is Combine.NEWEST
        key = row, col, component
        known = int(self._cells[row, col]) if is_plain else self._components.get(key, -1)
        if known >= 0:
            return known
        slot = self._free.pop() if self._free else self._new()
        self.arrays.row[slot], self.arrays.col[slot], self.arrays.combine[slot] = row, col, combine
        if is_plain:
            self._cells[row, col] = slot
        else:
            self._components[key] = slot
            self._key_of[slot] = key
        return slot

    def _new(self) -> int:
        if self._count >= len(self.arrays.at):
            bigger = Arrays.blank(2 * self._count)
            bigger.put(slice(0, self._count), self.arrays)
            self.arrays = bigger
        self._count += 1
        return self._count - 1

    def release(self, before: float) -> Index:
        """Give back the slots of components whose last sample lies before a moment, and return them."""
        used = self.used()
        with np.errstate(invalid="ignore"):
            idle = ((used.combine == Combine.SUM) | (used.combine == Combine.MAX)) & ~(used.at >= before)
        gone = np.flatnonzero(idle)
        for slot in gone.tolist():
            del self._components[self._key_of.pop(slot)]
        self.arrays.put(gone, Arrays.blank(len(gone)))
        self._free.extend(gone.tolist())
        return gone

    def used(self) -> Arrays:
        """Views of the slots that exist."""
        return self.arrays.first(self._count)

    def plain(self, rows: int, col: int | None, data: Floats) -> Floats:
        """One plain column of an array over slots, shape (rows,); NaN where there is no slot."""
        result = np.full(rows, np.nan)
        if col is not None:
            slot = self._cells[:rows, col]
            known = slot >= 0
            result[known] = data[slot[known]]
        return result

    def next_tick(self) -> None:
        """Forget what belongs to the tick that ends."""
        used = self.used()
        for extreme in (used.low, used.high, used.increase):
            extreme[:] = np.nan
        used.samples[:] = 0
