"""The newest sample of every series, aligned: flat arrays that a tick turns into a `Frame`.

A *slot* holds one stream of numbers: one signal of one GPU (or node), or one component of it where an exporter splits
it (CPU modes, network devices). Series come and go under a slot: a pod's labels change, two replicas scrape the same
exporter, an exporter moves. Samples are collected (`absorb`) and put in order at the tick (`settle`), so the order in
which answers arrive means nothing; the slot keeps the newest and sees counters through resets.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daemon.ingest.slots import Arrays, Bools, Combine, Floats, Index, Slots, Sources
from detectors.snapshot import F32, Frame, Reset
from rules.vocabulary import SignalKind

#: DCGM's blanks as they arrive through float64 (sentinels.json of NVIDIA/DCGM: int64, fp64, int32 forms, each + 0..3).
INT64_BLANK = 2.0**62
FP64_BLANK = (140737488355328.0, 140737488355331.0)
INT32_BLANK = (2147483632.0, 2147483635.0)
#: No number of a machine is larger; it leaves a sum of many room within float32.
LARGEST = 1e30

#: The matrices of a frame, in the order of its fields.
MATRICES = ("value", "low", "high", "increase", "age_s")

#: The low bits of a source number are the rank of the alias that a series came under, 0 being the preferred one.
RANKS = 15

#: A source is taken for gone after so many scrape intervals without a sample: one may fail, two may not.
_GONE_AFTER_SCRAPES = 2.5
#: Samples that wait for a tick, at most; a poll of the design point is a quarter of that.
_MOST_WAITING = 4_000_000
#: How fast the estimate of the scrape interval follows, and the spacings that can be one.
_PACE_WEIGHT = 0.3
_PACE_BOUNDS_S = (1.0, 600.0)

_KINDS = tuple(SignalKind)
_COUNTER = _KINDS.index(SignalKind.COUNTER)
_LIFETIME = _KINDS.index(SignalKind.LIFETIME)


class Column(NamedTuple):
    """One signal of the store. `low`/`high` are its physical bounds in its own unit; `fast` tells its cadence."""

    signal: str
    kind: SignalKind
    low: float
    high: float
    fast: bool


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples that wait for the tick; arrays of equal length, values in the signal's unit."""

    slot: Index
    at: Floats
    value: Floats
    source: Sources

    def part(self, chosen: Index | Bools) -> "_Samples":
        return _Samples(self.slot[chosen], self.at[chosen], self.value[chosen], self.source[chosen])

    @staticmethod
    def joined(parts: list["_Samples"]) -> "_Samples":
        if len(parts) == 1:
            return parts[0]
        return _Samples(
            np.concatenate([one.slot for one in parts]),
            np.concatenate([one.at for one in parts]),
            np.concatenate([one.value for one in parts]),
            np.concatenate([one.source for one in parts]),
        )


class Store:
    """Slots of one scope (GPUs or nodes). Rows and columns only grow.

    `slow_interval_s` is how often slow columns are pulled, so that a source isn't taken for gone between two pulls.
    """

    def __init__(self, *, slow_interval_s: float = 300.0) -> None:
        self.columns: list[Column] = []
        self.rows = 0
        self.dropped: Counter[str] = Counter()
        self.resets: list[Reset] = []
        self.interval_s = 30.0
        self._slow_interval_s = slow_interval_s
        self._paced = False
        self._spacings: list[float] = []
        self._waiting: list[_Samples] = []
        self._slots = Slots()
        self._column_of: dict[str, int] = {}
        self._bounds: tuple[Floats, Floats] = (np.empty(0), np.empty(0))
        self._kinds = np.empty(0, np.int8)
        self._fast = np.empty(0, np.bool_)

    # ---------------------------------------------------------------- growing

    def add_row(self) -> int:
        """A new GPU or node; returns its row."""
        self.rows += 1
        self._slots.fit(self.rows, len(self.columns))
        return self.rows - 1

    def column(self, signal: str, make: Column | None = None) -> int | None:
        """The column of a signal, made from `make` where it is new; None where it is new and nothing is given."""
        known = self._column_of.get(signal)
        if known is not None or make is None:
            return known
        self.columns.append(make)
        self._column_of[signal] = len(self.columns) - 1
        low = np.maximum([c.low for c in self.columns], -LARGEST)
        self._bounds = (low, np.minimum([c.high for c in self.columns], LARGEST))
        self._kinds = np.array([_KINDS.index(c.kind) for c in self.columns], np.int8)
        self._fast = np.array([c.fast for c in self.columns], np.bool_)
        self._slots.fit(self.rows, len(self.columns))
        return len(self.columns) - 1

    def slot(self, row: int, col: int, combine: Combine = Combine.NEWEST, component: str = "") -> int:
        """The slot of a cell, or of one component of it."""
        return self._slots.slot(row, col, combine, component)

    def release(self, before: float) -> Index:
        """Give back the slots of components without a sample since `before`; nothing may refer to them any more."""
        self.settle()
        return self._slots.release(before)

    # -------------------------------------------------------------- absorbing

    def absorb(self, slot: Index, at: Floats, raw: Floats, source: Sources, scale: Floats) -> None:
        """Take samples in, any order, any number a slot; arrays of equal length. What is dropped is counted by reason.

        `raw` is as the exporter says it: blanks are told from data before `scale` turns it into the signal's unit.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            value = raw * scale
        keep = self._usable(slot, raw, value) & self._unseen(slot, at, source)
        samples = _Samples(slot, at, value, source)
        samples = samples if keep.all() else samples.part(keep)
        if len(samples.slot):
            self._waiting.append(samples)
            if sum(len(one.slot) for one in self._waiting) > _MOST_WAITING:
                self.settle()

    def _usable(self, slot: Index, raw: Floats, value: Floats) -> Bools:
        finite = np.isfinite(raw)
        blank = finite & (
            (raw >= INT64_BLANK)
            | ((raw >= FP64_BLANK[0]) & (raw <= FP64_BLANK[1]))
            | ((raw >= INT32_BLANK[0]) & (raw <= INT32_BLANK[1]))
        )
        col = self._slots.arrays.col[slot]
        low, high = self._bounds
        with np.errstate(invalid="ignore"):
            outside = finite & ~blank & ((value < low[col]) | (value > high[col]))
        for reason, bad in (("not_finite", ~finite), ("blank", blank), ("impossible", outside)):
            count = int(np.count_nonzero(bad))
            if count:
                self.dropped[reason] += count
        return finite & ~blank & ~outside

    def _unseen(self, slot: Index, at: Floats, source: Sources) -> Bools:
        """Samples newer than what their slot holds, or of the same moment under a better name."""
        slots = self._slots.arrays
        held = slots.at[slot]
        better = (source & RANKS) < (slots.source[slot] & RANKS)
        with np.errstate(invalid="ignore"):
            unseen: Bools = ~((at < held) | ((at == held) & ~better))
        return unseen

    def settle(self) -> None:
        """Bring the samples that wait into their slots, in the order of their times."""
        if self._spacings:
            self._follow(float(np.median(self._spacings)))
            self._spacings.clear()
        if not self._waiting:
            return
        samples = _in_order(_Samples.joined(self._waiting))
        self._waiting.clear()
        starts = np.flatnonzero(np.r_[True, samples.slot[1:] != samples.slot[:-1]])
        counts = np.diff(np.r_[starts, len(samples.slot)])
        if len(starts) == len(samples.slot):
            self._apply(samples)
            return
        for turn in range(int(counts.max())):
            self._apply(samples.part(starts[counts > turn] + turn))

    def _apply(self, samples: _Samples) -> None:
        """One sample a slot, in the order of time."""
        samples = samples.part(self._unseen(samples.slot, samples.at, samples.source))
        slots = self._slots.arrays
        kinds = self._kinds[slots.col[samples.slot]]
        growing = (kinds == _COUNTER) | (kinds == _LIFETIME)
        with np.errstate(invalid="ignore"):
            fell = samples.value < slots.value[samples.slot]
        other = samples.source != slots.source[samples.slot]
        lives = samples.at - slots.at[samples.slot] < self._gone_after()[slots.col[samples.slot]]
        handed = (samples.source & RANKS) - (slots.source[samples.slot] & RANKS)
        # A replica that scraped earlier shows an older counter: not a reset, so the sample is not taken. The same
        # signal under a less preferred name is not taken either, while the better one lives.
        behind = lives & ((growing & fell & other & (handed == 0)) | (handed > 0)) & (slots.source[samples.slot] >= 0)
        if behind.any():
            self.dropped["superseded"] += int(np.count_nonzero(behind))
            take = ~behind
            samples = samples.part(take)
            kinds, growing, fell, other, handed = kinds[take], growing[take], fell[take], other[take], handed[take]
            lives = lives[take]
        slot, value = samples.slot, samples.value
        before = slots.value[slot]
        # Another name may count from another zero, so what changes with the name is no growth.
        growing &= handed == 0
        reset = growing & (kinds == _COUNTER) & fell & (~other | ~lives)
        grown = np.where(fell, np.where(reset, np.maximum(value, 0.0), 0.0), value - before)
        grown = np.where(growing, grown, np.nan)  # NaN too where `before` is NaN: a first sample
        for index in np.flatnonzero(reset):
            row, col = slots.row[slot[index]], slots.col[slot[index]]
            self.resets.append(Reset(int(row), self.columns[col].signal))
        known = slots.increase[slot]
        slots.increase[slot] = np.where(np.isnan(known), grown, np.where(np.isnan(grown), known, known + grown))
        with np.errstate(invalid="ignore"):
            moved = value != before
        slots.changed_at[slot] = np.where(moved, samples.at, slots.changed_at[slot])
        better = handed < 0  # extremes under the lesser name are forgotten with it
        slots.low[slot] = np.where(better, value, np.fmin(slots.low[slot], value))
        slots.high[slot] = np.where(better, value, np.fmax(slots.high[slot], value))
        slots.value[slot], slots.at[slot], slots.source[slot] = value, samples.at, samples.source
        slots.samples[slot] += 1

    def _gone_after(self) -> Floats:
        """Seconds without a sample after which a source of each column counts as gone, shape (columns,)."""
        scrapes = _GONE_AFTER_SCRAPES * self.interval_s
        return np.where(self._fast, scrapes, self._slow_interval_s + scrapes)

    def pace(self, spacing_s: float) -> None:
        """Take a measured spacing of samples (seconds) into the estimate of the scrape interval, at the next tick."""
        if _PACE_BOUNDS_S[0] <= spacing_s <= _PACE_BOUNDS_S[1]:
            self._spacings.append(spacing_s)

    def _follow(self, spacing_s: float) -> None:
        """An outage looks like one long interval, so one tick moves the estimate only so far."""
        if not self._paced:
            self.interval_s = spacing_s
            self._paced = True
            return
        near = min(max(spacing_s, 0.5 * self.interval_s), 2.0 * self.interval_s)
        self.interval_s += _PACE_WEIGHT * (near - self.interval_s)

    # ---------------------------------------------------------------- reading

    def frame(self, now: float, *, stale_fast_s: float, stale_slow_s: float) -> Frame:
        """The aligned matrices as of `now` (unix seconds).

        A value older than its cadence allows is NaN; its age stays.
        """
        self.settle()
        slots = self._slots.used()
        age = now - slots.at
        limit = np.where(self._fast, stale_fast_s, stale_slow_s)
        with np.errstate(invalid="ignore"):
            fresh = age <= limit[slots.col]
        data = {
            "value": np.where(fresh, slots.value, np.nan),
            "low": np.where(fresh, np.fmin(slots.low, slots.value), np.nan),
            "high": np.where(fresh, np.fmax(slots.high, slots.value), np.nan),
            "increase": slots.increase,
            "age_s": age,
        }
        shape = (self.rows, len(self.columns))
        out: dict[str, F32] = {name: np.full(shape, np.nan, np.float32) for name in MATRICES}
        plain = np.flatnonzero(slots.combine == Combine.NEWEST)
        cell = slots.row[plain].astype(np.intp) * len(self.columns) + slots.col[plain]
        for name in MATRICES:
            out[name].reshape(-1)[cell] = data[name][plain]
        if len(plain) < len(age):
            for how in (Combine.SUM, Combine.MAX):
                _combine(how, out, data, slots, np.flatnonzero((slots.combine == how) & fresh))
        value, low, high, increase, age_s = (out[name] for name in MATRICES)
        return Frame(tuple(c.signal for c in self.columns), value, low, high, increase, age_s)

    def newest(self, signal: str) -> Floats:
        """The newest value of a plain signal in full precision, fresh or not, shape (rows,); NaN: never seen."""
        self.settle()
        return self._slots.plain(self.rows, self._column_of.get(signal), self._slots.arrays.value)

    def unchanged_s(self, signal: str, now: float) -> Floats:
        """Seconds since a plain signal's value last changed, shape (rows,); NaN where it was never seen."""
        return now - self._slots.plain(self.rows, self._column_of.get(signal), self._slots.arrays.changed_at)

    def seen(self) -> Bools:
        """Which cells have ever had a sample, shape (rows, signals)."""
        slots = self._slots.used()
        ever = np.zeros((self.rows, len(self.columns)), np.bool_)
        known = np.flatnonzero(np.isfinite(slots.at))
        ever[slots.row[known], slots.col[known]] = True
        return ever

    def samples(self) -> NDArray[np.int32]:
        """Largest number of samples of any signal since the last `next_tick`, shape (rows,)."""
        most = np.zeros(self.rows, np.int32)
        slots = self._slots.used()
        np.maximum.at(most, slots.row, slots.samples)
        return most

    def next_tick(self) -> tuple[Reset, ...]:
        """Forget what belongs to the tick that ends (extremes, increases, sample counts); returns its resets."""
        self._slots.next_tick()
        resets, self.resets = tuple(self.resets), []
        return resets


def _in_order(samples: _Samples) -> _Samples:
    """By slot, then by time; of one moment the best name first, and then anything that is always the same."""
    slot, at = samples.slot, samples.at
    if bool(np.all((slot[1:] > slot[:-1]) | ((slot[1:] == slot[:-1]) & (at[1:] > at[:-1])))):
        return samples
    ordered = samples.part(np.lexsort((at, slot)))
    if bool(np.any((ordered.slot[1:] == ordered.slot[:-1]) & (ordered.at[1:] == ordered.at[:-1]))):
        return samples.part(np.lexsort((samples.value, samples.source, samples.source & RANKS, at, slot)))
    return ordered


def _combine(how: Combine, out: dict[str, F32], data: dict[str, Floats], slots: Arrays, part: Index) -> None:
    """Put the cells that are made of several slots into `out`; `part` are the slots that are fresh."""
    operate = np.add if how == Combine.SUM else np.fmax
    for name in ("value", "low", "high", "increase"):
        known = part[~np.isnan(data[name][part])]
        where = (slots.row[known], slots.col[known])
        out[name][where] = 0.0 if how == Combine.SUM else -np.inf
        operate.at(out[name], where, data[name][known])
    cells = (slots.row[part], slots.col[part])
    out["age_s"][cells] = np.inf
    np.fmin.at(out["age_s"], cells, data["age_s"][part])
