"""Thresholds and trends: every rule of packs/thresholds against the snapshot, all GPUs (or nodes) at once.

No statistics: a value against a limit (the site's, the model's or the device's own), held for a time, with a way
back that lies on the other side. Holds the memory that needs: latches and windows, no clock and no I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from detectors.findings import Signal
from detectors.identity import GpuRef, same_refs
from detectors.latch import Latch, Window
from detectors.snapshot import ExprResult, Frame, Snapshot
from rules.schema import Condition, MetricSpec, ModelSpec, RuleBook, ThresholdRule, matches_any
from rules.vocabulary import CauseClass, SignalScope

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

#: A share of time needs this part of its window to be known ...
_LEAST_KNOWN = 0.25
#: ... and one sample stands for this part at most, so that a lone sample after a gap decides nothing.
_MOST_OF_ONE_SAMPLE = 0.2


@dataclass(slots=True)
class _Memory:
    latch: Latch = field(default_factory=Latch)
    window: Window | None = None
    known: Window | None = None

    def drop(self, rows: Bools) -> None:
        """Forget rows whose GPU was replaced."""
        for part in (self.latch, self.window, self.known):
            if part is not None:
                part.drop(rows)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What follows for one rule from a GPU's model: does the rule apply, with which limit, and what the model has."""

    applies: Bools
    limit: Floats
    fact: Floats

    def of(self, code: NDArray[np.intp]) -> "_Facts":
        """The same a row, from the rows' model numbers."""
        return _Facts(self.applies[code], self.limit[code], self.fact[code])


class ThresholdWatch:
    """All threshold rules with their memory. `look` takes one snapshot and gives the signals that are on."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = {name: rule for name, rule in sorted(rules.thresholds.items()) if rule.enabled}
        self._metrics = rules.metrics
        self._models = rules.models
        self._memory = {name: _Memory() for name in self._rules}
        self._gpus: tuple[GpuRef, ...] = ()
        self._number: dict[str, int] = {}
        self._code: NDArray[np.intp] = np.empty(0, np.intp)
        self._by_model: dict[str, _Facts] = {}

    def look(self, snapshot: Snapshot) -> list[Signal]:
        """Signals of all rules that are on, in the order of rule names and rows."""
        self._see_models(snapshot.gpus)
        gone = replaced_rows(snapshot)
        exprs: dict[str, list[ExprResult]] = defaultdict(list)
        for result in snapshot.exprs:
            exprs[result.rule].append(result)
        signals: list[Signal] = []
        for name, rule in self._rules.items():
            memory = self._memory[name]
            if gone is not None and rule.scope is SignalScope.GPU:
                memory.drop(gone)
            value, limit, on = self._step(name, rule, memory, snapshot, exprs[name])
            signals.extend(
                self._signal(name, rule, memory, snapshot, int(row), float(value[row]), float(limit[row]))
                for row in np.flatnonzero(on)
            )
        return signals

    # -------------------------------------------------------------- one rule

    def _step(
        self, name: str, rule: ThresholdRule, memory: _Memory, snapshot: Snapshot, exprs: list[ExprResult]
    ) -> tuple[Floats, Floats, Bools]:
        """(value to show, limit, which rows are on), shape (rows,) of the rule's scope."""
        of_gpus = rule.scope is SignalScope.GPU
        frame = snapshot.gpu if of_gpus else snapshot.node
        rows = len(snapshot.gpus) if of_gpus else len(snapshot.nodes)
        facts = self._facts(name, rule).of(self._code if of_gpus else np.zeros(rows, np.intp))
        limit = facts.fact if rule.measure == "below_model" else facts.limit
        if rule.device_limit is not None:
            own = frame.of(rule.device_limit.signal).astype(np.float64) + rule.device_limit.offset
            limit = np.where(np.isnan(own), limit, own)
        holds, over = side_conditions(rule.only_if, frame, rows)
        if rule.job_gpus_min:
            enough = gpus_of_job(snapshot) >= rule.job_gpus_min
            holds, over = holds & enough, over | (~enough & ~snapshot.coverage.gpu_stale)
        applies = facts.applies & holds
        if rule.signal is None:
            value = for_firing = _asked(rule, snapshot, exprs, rows)
        else:
            value, for_firing = _measure(rule, rule.signal, memory, snapshot, frame, applies)
        firing, clearing = _compare(rule, value, for_firing, limit)
        clearing &= applies
        if rule.otherwise == "clear":
            clearing |= over
        firing &= applies
        on = memory.latch.step(snapshot.now, firing, clearing, hold_s=rule.hold, clear_s=rule.clear_for)
        value, limit = memory.latch.keep(firing, value, limit)
        return value, limit, on & facts.applies

    # ---------------------------------------------------------------- models

    def _see_models(self, gpus: tuple[GpuRef, ...]) -> None:
        """Number the model names, so that what follows from a model is worked out once a model, not once a GPU."""
        if same_refs(gpus, self._gpus):
            return
        self._gpus, names = gpus, len(self._number)
        self._code = np.array([self._number.setdefault(gpu.model, len(self._number)) for gpu in gpus], np.intp)
        if len(self._number) != names:
            self._by_model.clear()

    def _facts(self, name: str, rule: ThresholdRule) -> _Facts:
        known = self._by_model.get(name)
        if known is None:
            known = self._by_model[name] = self._work_out(rule)
        return known

    def _work_out(self, rule: ThresholdRule) -> _Facts:
        """What follows from each model seen so far; for a node's rule, one row that always applies."""
        site = rule.above if rule.above is not None else rule.below if rule.below is not None else np.nan
        if rule.scope is SignalScope.NODE:
            return _Facts(np.ones(1, np.bool_), np.array([site]), np.array([np.nan]))
        spec = self._metrics.get(rule.signal) if rule.signal else None
        applies, limits, facts = [], [], []
        for name in self._number:
            applies.append(_applies(rule, spec, name))
            own = [limit for pattern, limit in rule.limits_by_model.items() if matches_any(name, (pattern,))]
            limits.append(own[-1] if own else site)
            model = model_of(self._models, name)
            fact = getattr(model, rule.model_fact) if model is not None and rule.model_fact is not None else None
            facts.append(np.nan if fact is None else float(fact))
        return _Facts(np.array(applies, np.bool_), np.array(limits, np.float64), np.array(facts, np.float64))

    # ---------------------------------------------------------------- telling

    def _signal(
        self, name: str, rule: ThresholdRule, memory: _Memory, snapshot: Snapshot, row: int, value: float, limit: float
    ) -> Signal:
        gpu = snapshot.gpus[row] if rule.scope is SignalScope.GPU else None
        node = gpu.node if gpu is not None else snapshot.nodes[row].name
        spec = self._metrics.get(rule.signal) if rule.signal else None
        return Signal(
            detector="threshold",
            rule=name,
            node=node,
            gpu=gpu.uuid if gpu is not None else "",
            tier=rule.tier,
            cause_class=rule.cause_class,
            action=rule.action,
            weight=rule.weight,
            value=None if not np.isfinite(value) else round(value, 4),
            limit=None if rule.measure == "bits" or not np.isfinite(limit) else limit,
            unit=_unit(rule, spec),
            since=datetime.fromtimestamp(float(memory.latch.since[row]), UTC),
            last=datetime.fromtimestamp(float(memory.latch.last[row]), UTC),
            look=look_at(rule, spec, gpu, node),
            text=rule.summary,
            jobs=jobs_on(snapshot, row) if gpu is not None and rule.cause_class is CauseClass.JOB else (),
        )


def _asked(rule: ThresholdRule, snapshot: Snapshot, exprs: list[ExprResult], rows: int) -> Floats:
    """What a PromQL rule answered. A row it leaves out is all right, if it can be seen and the question went out."""
    of_gpus = rule.scope is SignalScope.GPU
    stale = snapshot.coverage.gpu_stale if of_gpus else snapshot.coverage.node_stale
    value = np.full(rows, np.nan)
    if snapshot.source.ok:
        value[~stale] = -np.inf if rule.above is not None else np.inf
    for result in exprs:
        row = result.gpu if of_gpus else result.node
        if 0 <= row < rows:
            value[row] = result.value
    return value


def _measure(
    rule: ThresholdRule, signal: str, memory: _Memory, snapshot: Snapshot, frame: Frame, applies: Bools
) -> tuple[Floats, Floats]:
    """(value to show, value to fire on), shape (rows,), NaN where unknown."""
    level = frame.of(signal).astype(np.float64)
    if rule.measure in ("increase", "rate", "growth"):
        memory.window = memory.window or Window(rule.window)
        grown = memory.window.add(snapshot.now, frame.of(signal, "increase").astype(np.float64))
        if rule.measure == "rate":
            grown /= rule.window
        grown[np.isnan(level)] = np.nan  # the window runs empty while nothing is known; that is no improvement
        return grown, grown
    if rule.measure in ("bits", "bits_share"):
        known = ~np.isnan(level)
        is_set = np.where(known, level, 0).astype(np.int64) & (rule.bits or 0) != 0
        bits = np.where(known, is_set, np.nan)
        if rule.measure == "bits":
            return bits, bits
        share = _share(rule, memory, snapshot, np.where(applies, bits, np.nan))
        return share, share
    # With a hold, every sample since the last tick must be over the limit; without one, any of them will do.
    extreme = "low" if (rule.above is not None) == (rule.hold > 0) else "high"
    return level, frame.of(signal, extreme).astype(np.float64)


def _share(rule: ThresholdRule, memory: _Memory, snapshot: Snapshot, bits: Floats) -> Floats:
    """Share of the window's known time in which a bit was set; NaN where too little of the window is known."""
    memory.window, memory.known = memory.window or Window(rule.window), memory.known or Window(rule.window)
    step = min(snapshot.interval_s, _MOST_OF_ONE_SAMPLE * rule.window)
    on = memory.window.add(snapshot.now, bits * step)
    known = memory.known.add(snapshot.now, np.where(np.isnan(bits), np.nan, step))
    share: Floats = np.divide(on, known, out=np.full(len(on), np.nan), where=known >= _LEAST_KNOWN * rule.window)
    share[np.isnan(bits)] = np.nan
    return share


def side_conditions(conditions: tuple[Condition, ...], frame: Frame, rows: int) -> tuple[Bools, Bools]:
    """(all are known to hold, one is known not to hold), shape (rows,). What is not known does neither."""
    holds, fails = np.ones(rows, np.bool_), np.zeros(rows, np.bool_)
    for condition in conditions:
        value = frame.of(condition.signal)
        known = ~np.isnan(value)
        met = known.copy()
        with np.errstate(invalid="ignore"):
            if condition.above is not None:
                met &= value > condition.above
            if condition.below is not None:
                met &= value < condition.below
        bits = np.where(known, value, 0).astype(np.int64)
        if condition.bits_any is not None:
            met &= (bits & condition.bits_any) != 0
        if condition.bits_none is not None:
            met &= (bits & condition.bits_none) == 0
        holds &= met
        fails |= known & ~met
    return holds, fails


def replaced_rows(snapshot: Snapshot) -> Bools | None:
    """Which GPU rows belong to a board that another one has taken the place of; None where there is none."""
    old = {before for before, _ in snapshot.replaced}
    return np.array([gpu.uuid in old for gpu in snapshot.gpus], np.bool_) if old else None


def jobs_on(snapshot: Snapshot, row: int) -> tuple[str, ...]:
    """The jobs that use a GPU now, as `namespace/job`."""
    works = snapshot.workloads[row] if row < len(snapshot.workloads) else ()
    return tuple(sorted({f"{work.namespace}/{work.job}" for work in works}))


def gpus_of_job(snapshot: Snapshot) -> NDArray[np.intp]:
    """How many GPUs of its node each GPU's job uses, shape (gpus,); 0 where no job or several are known."""
    keys = [
        (gpu.node, works[0].namespace, works[0].job) if len(works) == 1 else None
        for gpu, works in zip(snapshot.gpus, snapshot.workloads or ((),) * len(snapshot.gpus), strict=True)
    ]
    users = Counter(key for key in keys if key is not None)
    return np.array([users[key] if key is not None else 0 for key in keys], np.intp)


def _compare(rule: ThresholdRule, value: Floats, for_firing: Floats, limit: Floats) -> tuple[Bools, Bools]:
    """(fires, clears) for each row; NaN does neither."""
    with np.errstate(invalid="ignore"):
        if rule.measure == "bits":
            return for_firing == 1.0, for_firing == 0.0
        if rule.below is not None or rule.measure == "below_model":
            way_back = limit if rule.clear is None else np.maximum(limit, rule.clear)
            return for_firing < limit, value >= way_back
        way_back = limit if rule.clear is None else np.minimum(limit, rule.clear)
        return for_firing > limit, value <= way_back


def _applies(rule: ThresholdRule, spec: MetricSpec | None, model: str) -> bool:
    if not matches_any(model, rule.models, empty=True) or matches_any(model, rule.not_models):
        return False
    return spec is None or spec.applies_to(model)


def _unit(rule: ThresholdRule, spec: MetricSpec | None) -> str:
    if rule.measure == "bits":
        return "set"
    if rule.measure == "bits_share":
        return "share of time"
    unit = spec.unit if spec is not None else ""
    return f"{unit}/s" if rule.measure == "rate" else unit


def model_of(models: Mapping[str, ModelSpec], name: str) -> ModelSpec | None:
    """What is known about a GPU model; the longest matching pattern wins."""
    matching = [
        (len(pattern), pattern, spec)
        for spec in models.values()
        for pattern in spec.match
        if matches_any(name, (pattern,))
    ]
    return max(matching, key=lambda item: item[:2])[2] if matching else None


def of_node(node: str) -> str:
    """The matcher for a node's own targets, and for no node whose name merely begins alike."""
    return f'instance=~"{node}(:[0-9]+)?"'


def look_at(rule: ThresholdRule, spec: MetricSpec | None, gpu: GpuRef | None, node: str) -> str:
    """The PromQL that shows what a rule saw."""
    if rule.expr is not None:
        return rule.expr
    metric = spec.aliases[0].metric if spec is not None else rule.signal
    where = f'UUID="{gpu.uuid}"' if gpu is not None else of_node(node)
    selector = f"{metric}{{{where}}}"
    minutes = max(1, round(rule.window / 60))
    if rule.measure in ("increase", "rate"):
        return f"{rule.measure}({selector}[{minutes}m])"
    if rule.measure == "growth":
        return f"delta({selector}[{minutes}m])"
    return selector
