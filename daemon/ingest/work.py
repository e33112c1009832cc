"""Who uses which GPU: pods by GPU row, as long as samples that carry them keep coming.

Pods come and go all day, so what has ended is forgotten (`tidy`), and a tick in which nothing changed costs nothing.
"""

import numpy as np
from numpy.typing import NDArray

from detectors.identity import Workload

Floats = NDArray[np.float64]
Index = NDArray[np.intp]


class WorkWatch:
    """Uses of GPUs by number. A use is one workload on one GPU row; series refer to it by its number."""

    def __init__(self) -> None:
        self._number: dict[tuple[int, Workload], int] = {}
        self._uses: list[tuple[int, Workload]] = []
        self._seen = np.full(256, -np.inf)
        self._alive = np.empty(0, np.intp)
        self._users: tuple[tuple[Workload, ...], ...] = ()

    def number(self, row: int, workload: Workload) -> int:
        """The number of a use, new or known."""
        known = self._number.get((row, workload))
        if known is not None:
            return known
        number = self._number[row, workload] = len(self._uses)
        self._uses.append((row, workload))
        if number >= len(self._seen):
            self._seen = np.concatenate([self._seen, np.full(len(self._seen), -np.inf)])
        return number

    def saw(self, numbers: Index, at: Floats) -> None:
        """Samples at `at` (unix seconds) show these uses; -1 stands for a sample that shows none."""
        shown = numbers >= 0
        if shown.any():
            np.maximum.at(self._seen, numbers[shown], at[shown])

    def users(self, now: float, stale_s: float, rows: int) -> tuple[tuple[Workload, ...], ...]:
        """The workloads of each of `rows` GPUs, seen within `stale_s` seconds before `now`."""
        alive = np.flatnonzero(now - self._seen[: len(self._uses)] <= stale_s)
        if rows != len(self._users) or not np.array_equal(alive, self._alive):
            users: list[list[Workload]] = [[] for _ in range(rows)]
            for number in alive.tolist():
                row, workload = self._uses[number]
                users[row].append(workload)
            self._alive, self._users = alive, tuple(tuple(sorted(works)) for works in users)
        return self._users

    def tidy(self, before: float, referred: NDArray[np.bool_]) -> Index:
        """Forget uses last seen before a moment that no series refers to; returns the new number of each old one.

        `referred` has shape (uses,), the number of uses that `len` tells; -1 stands for a use that is gone.
        """
        count = len(self._uses)
        stays = referred | (self._seen[:count] >= before)
        renumbered = np.where(stays, np.cumsum(stays) - 1, -1)
        self._uses = [use for use, keep in zip(self._uses, stays.tolist(), strict=True) if keep]
        self._number = {use: number for number, use in enumerate(self._uses)}
        seen = np.full(max(256, 2 * len(self._uses)), -np.inf)
        seen[: len(self._uses)] = self._seen[:count][stays]
        self._seen, self._alive, self._users = seen, np.empty(0, np.intp), ()
        return renumbered

    def __len__(self) -> int:
        """How many uses are remembered."""
        return len(self._uses)
