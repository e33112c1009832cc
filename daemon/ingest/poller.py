"""The live source: asks Prometheus at each poll, several selectors at a time, each at its own cadence.

Range selectors in instant queries return raw samples with their own times, so nothing between two polls is missed
and every age is exact. When Prometheus is gone the poller backs off and says since when; it never makes a snapshot up.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import structlog

from daemon.config import PrometheusConfig
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import Batch, PrometheusError, decode, decode_labels
from daemon.ingest.queries import IDENTITY, TARGETS, Query, build, expressions, with_matchers
from daemon.prometheus import Prometheus
from detectors.snapshot import ExprResult, SourceState
from rules.schema import RuleBook

log = structlog.get_logger()

#: Samples are asked for a little further back than the last poll, so that late ones are not lost.
_OVERLAP_S = 15.0
_LONGEST_WINDOW_S = 3600.0
#: The shortest window holds two scrapes, and a little for those that are late.
_SCRAPES = 2.2
#: Kinds of failure that a question causes by asking for too much, and those that every question would meet.
_TOO_MUCH = frozenset({"too_large", "timeout"})
_GONE = frozenset({"unreachable", "timeout"})


@dataclass(slots=True, kw_only=True)
class _Asked:
    """One question and how it went: `last_ok` and `retry_at` in unix seconds, `failures` in a row."""

    label: str
    last_ok: float | None = None
    failures: int = 0
    retry_at: float = 0.0
    asked_too_much: bool = False
    had_series: bool = False


@dataclass(slots=True, kw_only=True)
class _Selector(_Asked):
    query: Query


@dataclass(slots=True, kw_only=True)
class _Rule(_Asked):
    name: str
    expr: str


_A = TypeVar("_A", bound=_Asked)


@dataclass(slots=True)
class _Gathered:
    """What one poll came across."""

    failed: set[str] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)
    truncated: set[str] = field(default_factory=set)

    def note(self, label: str, batch: Batch) -> None:
        """Take over an answer's warnings; one about a limit means that series are missing."""
        self.warnings.update(batch.warnings)
        if any("truncated" in warning or "limit" in warning for warning in batch.warnings):
            self.truncated.add(label)


class Poller:
    """Pulls into an `Assembler`. One instance a process; `poll` is called by the loop only.

    `failures` counts polls in a row in which nothing was answered, `answered` the answers of the last poll, `errors`
    all failed calls by kind. A single selector that fails waits longer by itself and holds nothing else up.
    """

    def __init__(self, client: Prometheus, config: PrometheusConfig, rules: RuleBook, assembler: Assembler) -> None:
        self._client = client
        self._config = config
        self._rules = rules
        self._assembler = assembler
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="poll")
        self._targets = _Asked(label="targets")
        self._identity = _Asked(label="identity")
        self._selectors: dict[str, _Selector] = {}
        self._exprs = [
            _Rule(label=f"rule {name}", name=name, expr=expr) for name, expr in expressions(rules.thresholds).items()
        ]
        self._discover_at = float("-inf")
        self._present: frozenset[str] | None = None
        self._warned: set[str] = set()
        self.failures = 0
        self.answered = 0
        self.last_success: datetime | None = None
        self.errors: Counter[str] = Counter()

    def close(self) -> None:
        """Stop the threads; calls that are under way end by their time-outs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def next_delay(self, interval_s: float) -> float:
        """Seconds until the next poll: the interval, or longer after failures in a row, with jitter."""
        if not self.failures:
            return interval_s
        longest = min(self._config.backoff_max, interval_s * 2.0 ** min(self.failures, 16))
        return max(interval_s, longest * (0.5 + 0.5 * random.random()))  # noqa: S311 - jitter is no secret

    def poll(self, now: float) -> tuple[SourceState, list[ExprResult]]:
        """Pull everything that is due at `now` (unix seconds). Raises nothing: what failed is in the state."""
        self.answered = 0
        state = _Gathered()
        exprs: list[ExprResult] = []
        if self._is_there(now, state):
            self._discover(now)
            self._learn(now, state)
            self._pull(now, state)
            exprs = self._evaluate(now, state)
        else:  # one call that waits in vain is enough to know
            state.failed.update(asked.label for asked in (*self._selectors.values(), *self._exprs))
        ok = not state.failed
        if self.answered:
            self.failures = 0
        else:  # Prometheus as a whole failed: once it answers again, everything is asked for at once
            self.failures += 1
            for asked in (self._identity, *self._selectors.values(), *self._exprs):
                asked.failures, asked.retry_at, asked.asked_too_much = 0, 0.0, False
        if ok:
            self.last_success = datetime.fromtimestamp(now, UTC)
        for warning in state.warnings - self._warned:
            log.warning("prometheus warns", warning=warning)
        self._warned = state.warnings
        failed, warnings, truncated = (tuple(sorted(one)) for one in (state.failed, state.warnings, state.truncated))
        return SourceState(ok, failed, warnings, truncated, self.last_success), exprs

    # ------------------------------------------------------------------ parts

    def _is_there(self, now: float, state: _Gathered) -> bool:
        """Ask for the targets first; whether Prometheus can be asked at all."""
        before = Counter(self.errors)
        self._targets.retry_at = 0.0
        window_s = round(2 * self._config.poll_interval + _OVERLAP_S)
        promql = f"{with_matchers(TARGETS, self._config.matchers)}[{window_s}s]"
        for _, batch in self._gather([(self._targets, promql)], now, state):
            self._assembler.targets(batch)
        return not any(self.errors[kind] > before[kind] for kind in _GONE)

    def _discover(self, now: float) -> None:
        """Learn which metric names exist, so that absent aliases cost nothing; again every slow interval."""
        if now < self._discover_at:
            return
        try:
            # none at all: a Prometheus that has only begun, or one that can't say; then everything is asked for
            self._present = self._client.metric_names(now - self._config.slow_interval, now) or None
            self._discover_at = now + (self._config.slow_interval if self._present else 0.0)
        except PrometheusError as error:
            self.errors[error.kind] += 1
            self._discover_at = now + 2 * self._config.poll_interval
            log.warning("metric names unknown", kind=error.kind, detail=error.detail, next="all names are asked for")
        queries = build(self._rules.metrics, self._config, self._present)
        selectors = {q.key: self._selectors.get(q.key, _Selector(label=q.label, query=q)) for q in queries}
        for query in queries:
            selectors[query.key].query = query
        self._selectors = selectors

    def _learn(self, now: float, state: _Gathered) -> None:
        """Who is who: every slow interval, and when series came that name only an address."""
        asked = self._identity
        if asked.last_ok is None or self._assembler.wants_names or now - asked.last_ok >= self._config.slow_interval:
            promql = with_matchers(IDENTITY, self._config.matchers)
            for _, batch in self._gather([(asked, promql)], now, state, vital=False):
                self._assembler.learn(batch)

    def _pull(self, now: float, state: _Gathered) -> None:
        due: list[tuple[_Selector, str]] = []
        for asked in self._selectors.values():
            wait = 0.0 if asked.query.cadence == "fast" else self._config.slow_interval
            if asked.last_ok is None or now - asked.last_ok >= wait:
                due.append((asked, asked.query.over(self._window(asked, now))))
        for asked, batch in self._gather(due, now, state):
            self._assembler.absorb(asked.query.key, batch, paced=asked.query.cadence == "fast")
            if asked.had_series and not batch.labels:
                self._discover_at = now  # the exporters may use other names now
            asked.had_series = bool(batch.labels)

    def _window(self, asked: _Selector, now: float) -> float:
        """How far back to ask: to the last answer; a slow signal needs only its newest sample.

        After a question that was too big the shortest window is asked for: what lies before is lost, but counters
        still show what they grew by.
        """
        shortest = _SCRAPES * max(self._assembler.gpu.interval_s, self._assembler.node.interval_s)
        shortest = max(shortest, _SCRAPES * self._config.poll_interval)
        if asked.query.cadence == "slow" or asked.last_ok is None or asked.asked_too_much:
            return shortest
        return min(_LONGEST_WINDOW_S, max(shortest, now - asked.last_ok + _OVERLAP_S))

    def _evaluate(self, now: float, state: _Gathered) -> list[ExprResult]:
        """Raw PromQL rules: each result's labels name a GPU or a node."""
        results: list[ExprResult] = []
        for asked, batch in self._gather([(asked, asked.expr) for asked in self._exprs], now, state):
            results.extend(attribute(asked.name, batch, self._assembler))
        return results

    # ----------------------------------------------------------------- asking

    def _fetch(self, promql: str, now: float) -> Batch:
        return decode(self._client.query(promql, now))

    def _gather(
        self, jobs: Sequence[tuple[_A, str]], now: float, state: _Gathered, *, vital: bool = True
    ) -> Iterator[tuple[_A, Batch]]:
        """Ask several questions at a time and give the answers that came; one that waits after failures has failed."""
        futures: list[tuple[_A, Future[Batch]]] = []
        for asked, promql in jobs:
            if now >= asked.retry_at:
                futures.append((asked, self._pool.submit(self._fetch, promql, now)))
            elif vital:
                state.failed.add(asked.label)
        for asked, future in futures:
            try:
                batch = future.result()
            except PrometheusError as error:
                self._note_failure(asked, error, now)
                if vital:
                    state.failed.add(asked.label)
                continue
            self.answered += 1
            asked.failures, asked.last_ok, asked.retry_at, asked.asked_too_much = 0, now, 0.0, False
            state.note(asked.label, batch)
            yield asked, batch

    def _note_failure(self, asked: _Asked, error: PrometheusError, now: float) -> None:
        """Count it, and ask again at the next poll, then later and later."""
        self.errors[error.kind] += 1
        asked.failures += 1
        refused = error.kind in _TOO_MUCH or not error.retryable
        asked.asked_too_much = refused or asked.failures % 2 == 0  # who knows: every other try asks for little
        patience = self._config.poll_interval * (2.0 ** min(asked.failures - 1, 16) - 1.0)
        asked.retry_at = now + min(self._config.backoff_max, patience)
        log.warning("query failed", query=asked.label, kind=error.kind, detail=error.detail, failures=asked.failures)


def attribute(rule: str, batch: Batch, assembler: Assembler) -> list[ExprResult]:
    """The elements of an expression's answer, each on the GPU or node that its labels name; others are counted."""
    found = []
    newest = {series: index for index, series in enumerate(batch.series.tolist())}
    for series, index in newest.items():
        try:
            gpu, node = assembler.find(decode_labels(batch.labels[series]))
        except PrometheusError:
            assembler.counts["bad_labels"] += 1
            continue
        if gpu < 0 and node < 0:
            assembler.counts["expr_unattributed"] += 1
            continue
        found.append(ExprResult(rule, gpu, node, float(batch.value[index])))
    return found
