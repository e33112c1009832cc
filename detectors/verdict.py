"""A verdict for every GPU: signals fused into a score, the score into a state, with hysteresis both ways.

Fusion is a noisy OR: each signal leaves a share (1 - weight) of doubt and the shares multiply, so the order of
signals does not matter and one more signal never lowers the score. Three caps lie over it: "failed" takes a fact,
however many trends there are; suspicion (tier 2) alone stays below "failing"; and what a state needs to be left
counts as well as what it needs to be entered. `explain` shows the same terms.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from detectors.findings import GpuState, Signal, Verdict
from detectors.identity import GpuRef
from detectors.snapshot import Snapshot
from rules.schema import Policy, VerdictPolicy
from rules.vocabulary import CauseClass, Tier

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_LEVELS = (GpuState.HEALTHY, GpuState.DEGRADED, GpuState.FAILING, GpuState.FAILED)
_UNKNOWN = len(_LEVELS)
_SHOWN = (*_LEVELS, GpuState.UNKNOWN)
#: How far below a limit a capped score stays, so that rounding never carries it over.
_BELOW = 1e-6


@dataclass(frozen=True, slots=True)
class Score:
    """A score with its parts: `evidence` of tiers 0 and 1, `suspicion` of tier 2, capped. `fact`: is there one."""

    total: float
    evidence: float
    suspicion: float
    fact: bool = False


def score_of(signals: Iterable[Signal], policy: VerdictPolicy) -> Score:
    """Fuse a GPU's signals. Untrusted signals, consequences of another fault and application faults weigh nothing."""
    weights: dict[Tier, list[float]] = {tier: [] for tier in Tier}
    for signal in signals:
        if counts(signal):
            weights[signal.tier].append(signal.weight)
    no_failed, no_failing = policy.failed_leave - _BELOW, policy.failing_leave - _BELOW
    trends = min(_fused(weights[Tier.TREND]), no_failed)
    suspicion = min(_fused(weights[Tier.SUSPICION]), policy.suspicion_cap, no_failing)
    if not weights[Tier.FACT]:
        return Score(min(_fused([trends, suspicion]), no_failed), trends, suspicion)
    evidence = _fused([*weights[Tier.FACT], trends])
    return Score(_fused([evidence, suspicion]), evidence, suspicion, fact=True)


def _fused(weights: Sequence[float]) -> float:
    return 1.0 - math.prod(1.0 - weight for weight in sorted(weights))


def counts(signal: Signal) -> bool:
    """Whether a signal takes part in the score at all."""
    return (
        signal.trusted
        and signal.secondary_to is None
        and signal.cause_class not in (CauseClass.APPLICATION, CauseClass.TELEMETRY)
    )


_NO_VERDICT = Verdict("", "", GpuState.UNKNOWN, 0.0, datetime.fromtimestamp(0, UTC), 0.0, (), "not seen yet")


class VerdictTable:
    """The state of every GPU over time: worse at once, better only after `dwell` of being seen to be better.

    A GPU that can't be seen is UNKNOWN at once, unless a fact stands; it is known again only after `dwell` of being
    seen without a break, or one that loses samples would flap. What it was before waits meanwhile, and never improves
    unseen. A GPU that has never been seen becomes known with its first sample.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy.verdict
        self._min_share = policy.telemetry.min_signal_share
        self._level: NDArray[np.intp] = np.empty(0, np.intp)
        self._better_since: Floats = np.empty(0)
        self._shown: NDArray[np.intp] = np.empty(0, np.intp)
        self._since: Floats = np.empty(0)
        self._seen_since: Floats = np.empty(0)
        self._ever_known: Bools = np.empty(0, np.bool_)
        self._last: list[Verdict] = []
        self._gpus: tuple[GpuRef, ...] = ()
        #: what `_last` was made from
        self._told: frozenset[int] = frozenset()
        self._looked: tuple[NDArray[np.intp], Floats, Floats] = (self._shown, self._since, self._since)

    def step(self, snapshot: Snapshot, by_gpu: Mapping[str, Sequence[Signal]]) -> tuple[Verdict, ...]:
        """One verdict a GPU row, from the signals of each GPU UUID."""
        now = snapshot.now
        self._grow(len(snapshot.gpus), now)
        coverage = snapshot.coverage
        blind = coverage.gpu_stale | coverage.gpu_frozen | ~(coverage.signal_share >= self._min_share)
        told = {row: by_gpu[gpu.uuid] for row, gpu in enumerate(snapshot.gpus) if gpu.uuid in by_gpu}
        scores = {row: score_of(signals, self._policy) for row, signals in told.items()}
        score, fact = np.zeros(len(blind)), np.zeros(len(blind), np.bool_)
        for row, fused in scores.items():
            score[row], fact[row] = fused.total, fused.fact
        self._move(score, blind, now)
        self._show(blind, fact & (self._level > 0), now)
        return self._verdicts(snapshot, told, scores)

    def _move(self, score: Floats, blind: Bools, now: float) -> None:
        """Raise levels at once, lower them after `dwell`."""
        target = self._targets(score)
        better = (target < self._level) & ~blind
        self._better_since[~better] = np.nan
        self._better_since[better & np.isnan(self._better_since)] = now
        with np.errstate(invalid="ignore"):
            settled = better & (now - self._better_since >= self._policy.dwell)
        moves = settled | (target > self._level)
        self._level[moves] = target[moves]
        self._better_since[moves] = np.nan

    def _targets(self, score: Floats) -> NDArray[np.intp]:
        """The levels that scores ask for: enter-limits going up, leave-limits going down."""
        policy = self._policy
        enter = np.array([policy.degraded_enter, policy.failing_enter, policy.failed_enter])
        leave = np.array([policy.degraded_leave, policy.failing_leave, policy.failed_leave])
        entered = np.searchsorted(enter, score, side="right")
        kept = np.minimum(self._level, np.searchsorted(leave, score, side="right"))
        return np.maximum(entered, kept)

    def _show(self, blind: Bools, certain: Bools, now: float) -> None:
        """What state is shown; `certain` rows have a fact that stands whether or not the GPU can be seen."""
        self._seen_since[blind] = np.nan
        self._seen_since[~blind & np.isnan(self._seen_since)] = now
        with np.errstate(invalid="ignore"):
            settled = ~blind & ((now - self._seen_since >= self._policy.dwell) | ~self._ever_known)
        known = certain | settled | (~blind & (self._shown != _UNKNOWN))
        self._ever_known |= ~blind
        shown = np.where(known, self._level, _UNKNOWN)
        self._since[shown != self._shown] = now
        self._shown = shown

    def _verdicts(
        self, snapshot: Snapshot, told: Mapping[int, Sequence[Signal]], scores: Mapping[int, Score]
    ) -> tuple[Verdict, ...]:
        """Verdicts of all rows; a row about which nothing new is to be said keeps the one it has."""
        verdicts = self._last + [_NO_VERDICT] * (len(snapshot.gpus) - len(self._last))
        for row in self._rows_with_news(snapshot, told):
            gpu, state = snapshot.gpus[row], _SHOWN[self._shown[row]]
            confidence = round(float(snapshot.coverage.signal_share[row]), 3)
            signals = tuple(sorted(told.get(row, ()), key=lambda s: (s.tier, s.key)))
            total = round(scores[row].total, 4) if row in scores else 0.0
            moment = datetime.fromtimestamp(float(self._since[row]), UTC)
            reason = self._reason(state, signals, snapshot, row)
            verdicts[row] = Verdict(gpu.node, gpu.uuid, state, total, moment, confidence, signals, reason)
        self._last = verdicts
        return tuple(verdicts)

    def _rows_with_news(self, snapshot: Snapshot, told: Mapping[int, Sequence[Signal]]) -> list[int]:
        """Rows whose verdict may say something else than the last one: with signals, unknown, or changed since."""
        share = np.asarray(snapshot.coverage.signal_share, np.float64).round(3)
        rows, before = len(snapshot.gpus), len(self._last)
        shown, since, seen = self._looked
        news = self._shown == _UNKNOWN
        news[before:] = True
        news[:before] |= (self._shown[:before] != shown) | (self._since[:before] != since) | (share[:before] != seen)
        news[[*told, *self._told]] = True
        if self._gpus is not snapshot.gpus:
            moved = (new is not old for new, old in zip(snapshot.gpus, self._gpus, strict=False))
            news[: len(self._gpus)] |= np.fromiter(moved, np.bool_, min(rows, len(self._gpus)))
        self._gpus, self._told = snapshot.gpus, frozenset(told)
        self._looked = self._shown.copy(), self._since.copy(), share
        found: list[int] = np.flatnonzero(news).tolist()
        return found

    def _reason(self, state: GpuState, signals: Sequence[Signal], snapshot: Snapshot, row: int) -> str:
        """One line for people: the strongest signal, or why nothing can be said."""
        if state is GpuState.UNKNOWN:
            return self._why_unknown(snapshot, row)
        telling = [signal for signal in signals if counts(signal)]
        if not telling:
            return "nothing speaks against it" if state is GpuState.HEALTHY else "nothing speaks against it any more"
        return max(telling, key=lambda s: (s.weight, s.key)).text

    def _why_unknown(self, snapshot: Snapshot, row: int) -> str:
        coverage = snapshot.coverage
        if coverage.gpu_frozen[row]:
            return "its feed is frozen: samples arrive and never change"
        if coverage.gpu_stale[row]:
            return "no fresh sample"
        if coverage.signal_share[row] >= self._min_share:
            return "its samples have come back only a short while ago"
        return f"only {100 * float(coverage.signal_share[row]):.0f} % of its signals are fresh"

    def _grow(self, rows: int, now: float) -> None:
        more = rows - len(self._level)
        if more > 0:
            nan = np.full(more, np.nan)
            self._level = np.concatenate([self._level, np.zeros(more, np.intp)])
            self._shown = np.concatenate([self._shown, np.full(more, _UNKNOWN, np.intp)])
            self._since = np.concatenate([self._since, np.full(more, now)])
            self._better_since = np.concatenate([self._better_since, nan])
            self._seen_since = np.concatenate([self._seen_since, nan])
            self._ever_known = np.concatenate([self._ever_known, np.zeros(more, np.bool_)])


def unknown_since(verdicts: Sequence[Verdict], at: datetime, why: str) -> tuple[Verdict, ...]:
    """The last verdicts once the source is gone: all unknown since `at`, each saying what it was."""
    return tuple(
        v
        if v.state is GpuState.UNKNOWN
        else Verdict(v.node, v.gpu, GpuState.UNKNOWN, v.score, at, 0.0, v.signals, f"{why}; was {v.state}")
        for v in verdicts
    )


def share_unknown(verdicts: Sequence[Verdict]) -> float:
    """Share of GPUs about which nothing can be said."""
    return sum(v.state is GpuState.UNKNOWN for v in verdicts) / len(verdicts) if verdicts else 1.0


#: Which verdict speaks for a GPU that has several; unknown only where nothing else is known.
_GRAVITY = {GpuState.UNKNOWN: 0, GpuState.HEALTHY: 1, GpuState.DEGRADED: 2, GpuState.FAILING: 3, GpuState.FAILED: 4}


def still_there(verdicts: Sequence[Verdict], snapshot: Snapshot) -> Sequence[Verdict]:
    """Without the rows of GPUs that others have replaced: nobody waits for those to be seen again."""
    gone = {old for old, _ in snapshot.replaced}
    return [verdict for verdict in verdicts if verdict.gpu not in gone] if gone else verdicts


def one_a_gpu(verdicts: Sequence[Verdict], snapshot: Snapshot) -> tuple[Verdict, ...]:
    """One verdict a GPU: MIG instances share their device's, and a GPU that another replaced has none any more."""
    gone = {old for old, _ in snapshot.replaced}
    worst: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        thing = verdict.node, verdict.gpu
        known = worst.get(thing)
        if known is None or _GRAVITY[verdict.state] > _GRAVITY[known.state]:
            worst[thing] = verdict
    return tuple(verdict for verdict in worst.values() if verdict.gpu not in gone)
