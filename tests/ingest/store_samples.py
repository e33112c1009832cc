"""A store and samples for it."""

from typing import NamedTuple

import numpy as np

from daemon.ingest.store import RANKS, Column, Store
from rules.vocabulary import SignalKind
from tests.ingest.builders import STEP_S, T0

STALE = {"stale_fast_s": 90.0, "stale_slow_s": 390.0}


class Sample(NamedTuple):
    at: float
    value: float
    source: int = 0
    rank: int = 0


def store_of(
    kind: SignalKind = SignalKind.GAUGE, low: float = 0.0, high: float = 1e12, *, fast: bool = True, rows: int = 1
) -> Store:
    """A store with one signal `s` of so many things."""
    store = Store()
    for _ in range(rows):
        store.add_row()
    store.column("s", Column("s", kind, low, high, fast))
    return store


def put(store: Store, *samples: Sample, slot: int | None = None, scale: float = 1.0) -> None:
    slot = store.slot(0, 0) if slot is None else slot
    size = len(samples)
    store.absorb(
        np.full(size, slot, np.intp),
        np.array([one.at for one in samples], float),
        np.array([one.value for one in samples], float),
        np.array([one.source * (RANKS + 1) + one.rank for one in samples], np.int32),
        np.full(size, scale),
    )


def cell(store: Store, matrix: str = "value", now: float = T0 + 1000) -> float:
    """A cell's number; nothing is stale unless a test says what time it is."""
    limit = {"stale_fast_s": 1e6, "stale_slow_s": 1e6} if now == T0 + 1000 else STALE
    return float(store.frame(now, **limit).of("s", matrix)[0])


def series(*values: float, source: int = 0, rank: int = 0, begin: float = T0, step: float = STEP_S) -> list[Sample]:
    return [Sample(begin + step * index, value, source, rank) for index, value in enumerate(values)]
