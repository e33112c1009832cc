"""Peer comparison: a GPU against the others that do the same work, or sit in the same slot of the same model.

Robust on purpose (median and MAD), because the odd one out must not move the yardstick. Statistical, so tier 2: it
may raise suspicion and never drains. Comparing with a GPU's own past instead alarms on nine healthy windows in ten
(GWDG studies B to D); peers take workload and season out.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from detectors.findings import Signal
from detectors.identity import Workload
from detectors.latch import Latch
from detectors.snapshot import Snapshot
from detectors.thresholds import jobs_on, replaced_rows, side_conditions
from rules.schema import PeerRule, RuleBook
from rules.vocabulary import FaultAction, Tier

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Index = NDArray[np.intp]

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
#: The way back: a row is like its peers again below this part of either limit.
_WAY_BACK = 0.7


class Peers(NamedTuple):
    """Each row's cohort: its median, the robust spread (MAD scaled to sigma) and how many had a value."""

    median: Floats
    spread: Floats
    size: Index


def compare_to_peers(value: Floats, cohort: Index) -> Peers:
    """Median and spread of each row's cohort, shape (rows,). Rows with NaN or a cohort below 0 take no part.

    >>> compare_to_peers(np.array([1.0, 2.0, 9.0]), np.array([0, 0, 0])).median
    array([2., 2., 2.])
    """
    median = _group_median(value, cohort)
    return Peers(median, _MAD_TO_SIGMA * _group_median(np.abs(value - median), cohort), _group_size(value, cohort))


def _group_median(value: Floats, cohort: Index) -> Floats:
    """Median of each row's cohort without its NaNs, shape (rows,); NaN below cohort 0 and where nothing is known."""
    grouped = pd.Series(np.where(cohort >= 0, value, np.nan)).groupby(cohort)
    median: Floats = np.array(grouped.transform("median"), np.float64)
    median[cohort < 0] = np.nan
    return median


def _group_size(value: Floats, cohort: Index) -> Index:
    size = np.zeros(len(value), np.intp)
    part = ~np.isnan(value) & (cohort >= 0)
    if part.any():
        counts = np.bincount(cohort[part], minlength=int(cohort.max()) + 1)
        member = cohort >= 0
        size[member] = counts[cohort[member]]
    return size


def job_cohorts(snapshot: Snapshot) -> Index:
    """Cohort number of each GPU by the job that runs on it, -1 where none or several do."""
    numbers: dict[tuple[str, str, str], int] = {}
    cohort = np.full(len(snapshot.gpus), -1, np.intp)
    for row, works in enumerate(snapshot.workloads):
        if len(works) == 1:
            key = works[0].namespace, works[0].job, snapshot.gpus[row].model
            cohort[row] = numbers.setdefault(key, len(numbers))
    return cohort


def slot_cohorts(snapshot: Snapshot) -> Index:
    """Cohort number of each GPU by model, slot and whether it is busy: slots differ in cooling by design."""
    numbers: dict[tuple[str, str, bool], int] = {}
    cohort = np.full(len(snapshot.gpus), -1, np.intp)
    for row, (gpu, busy) in enumerate(zip(snapshot.gpus, are_busy(snapshot), strict=True)):
        if gpu.index:
            cohort[row] = numbers.setdefault((gpu.model, gpu.index, busy), len(numbers))
    return cohort


def node_cohorts(snapshot: Snapshot) -> Index:
    """Cohort number of each GPU by node, model and whether it is busy."""
    numbers: dict[tuple[str, str, bool], int] = {}
    keys = [(gpu.node, gpu.model, busy) for gpu, busy in zip(snapshot.gpus, are_busy(snapshot), strict=True)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.intp)


def are_busy(snapshot: Snapshot) -> list[bool]:
    """Whether each GPU works: a pod uses it, or it says so itself (a fleet may have no pod labels at all)."""
    with np.errstate(invalid="ignore"):
        busy = snapshot.gpu.of("gpu_util_percent") > 0
    if snapshot.workloads:
        busy |= np.fromiter(map(bool, snapshot.workloads), np.bool_, len(busy))
    said: list[bool] = busy.tolist()
    return said


_COHORTS: dict[str, Callable[[Snapshot], Index]] = {
    "job": job_cohorts,
    "model_slot": slot_cohorts,
    "node": node_cohorts,
}


class PeerWatch:
    """All peer rules with their memory."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = {name: rule for name, rule in sorted(rules.peers.items()) if rule.enabled}
        self._metrics = rules.metrics
        self._latches = {name: Latch() for name in self._rules}
        self._jobs: list[tuple[Workload, ...]] = []

    def look(self, snapshot: Snapshot) -> list[Signal]:
        """Signals of all peer rules that are on."""
        if not snapshot.gpus:
            return []
        kinds = {rule.cohort for rule in self._rules.values()}
        cohorts = {kind: make(snapshot) for kind, make in _COHORTS.items() if kind in kinds}
        gone, moved = replaced_rows(snapshot), self._changed_jobs(snapshot)
        signals: list[Signal] = []
        for name, rule in self._rules.items():
            latch = self._latches[name]
            if gone is not None:
                latch.drop(gone)
            if rule.cohort == "job":
                latch.drop(moved)
            value, peers, on = self._step(rule, latch, snapshot, cohorts[rule.cohort])
            signals.extend(
                self._signal(name, rule, snapshot, int(row), float(value[row]), peers) for row in np.flatnonzero(on)
            )
        return signals

    @staticmethod
    def _step(rule: PeerRule, latch: Latch, snapshot: Snapshot, cohort: Index) -> tuple[Floats, Peers, Bools]:
        """(value, its peers, which rows are on), shape (gpus,)."""
        value = snapshot.gpu.of(rule.signal).astype(np.float64)
        applies, _ = side_conditions(rule.only_if, snapshot.gpu, len(value))
        peers = compare_to_peers(np.where(applies, value, np.nan), cohort)
        enough = applies & (peers.size >= rule.min_cohort)
        sign = 1.0 if rule.direction == "above" else -1.0
        off = sign * (value - peers.median)
        with np.errstate(invalid="ignore"):
            distance = off / np.maximum(peers.spread, rule.floor)
            firing = enough & (distance > rule.distance) & (off > rule.min_deviation)
            like_them = (distance < _WAY_BACK * rule.distance) | (off < _WAY_BACK * rule.min_deviation)
        on = latch.step(snapshot.now, firing, enough & like_them, hold_s=rule.hold, clear_s=rule.clear_for)
        value, median, size = latch.keep(firing, value, peers.median, peers.size.astype(np.float64))
        return value, Peers(median, peers.spread, size.astype(np.intp)), on

    def _changed_jobs(self, snapshot: Snapshot) -> Bools:
        """GPUs that work for another job than before, or for none: what was seen among the old peers is over.

        A GPU without a fresh sample tells nothing about its work, so its last job is kept.
        """
        now = list(snapshot.workloads) or [()] * len(snapshot.gpus)
        before = self._jobs + now[len(self._jobs) :]
        silent = snapshot.coverage.gpu_stale
        self._jobs = [old if quiet else new for old, new, quiet in zip(before, now, silent.tolist(), strict=True)]
        pairs = zip(before, self._jobs, strict=True)
        return np.array([old != new and _job_of(old) != _job_of(new) for old, new in pairs], np.bool_)

    def _signal(self, name: str, rule: PeerRule, snapshot: Snapshot, row: int, value: float, peers: Peers) -> Signal:
        gpu = snapshot.gpus[row]
        spec = self._metrics[rule.signal]
        latch = self._latches[name]
        median = float(peers.median[row])
        seen = f": {value:.4g} against a median of {median:.4g} of {int(peers.size[row])} peers"
        return Signal(
            detector="peers",
            rule=name,
            node=gpu.node,
            gpu=gpu.uuid,
            tier=Tier.SUSPICION,
            cause_class=rule.cause_class,
            action=FaultAction.INSPECT,
            weight=rule.weight,
            value=None if np.isnan(value) else round(value, 4),
            limit=None if np.isnan(median) else round(median, 4),
            unit=spec.unit,
            since=datetime.fromtimestamp(float(latch.since[row]), UTC),
            last=datetime.fromtimestamp(float(latch.last[row]), UTC),
            look=f'{spec.aliases[0].metric}{{UUID="{gpu.uuid}"}}',
            text=rule.summary + ("" if np.isnan(value - median) else seen),
            jobs=jobs_on(snapshot, row),
        )


def _job_of(works: tuple[Workload, ...]) -> tuple[str, str] | None:
    return (works[0].namespace, works[0].job) if len(works) == 1 else None
