"""Plays a span of Prometheus' history and of kernel logs back as snapshots, tick by tick.

The same assembler and the same selectors as the live poller; only the clock and the window are others. History is
pulled in chunks, so memory does not grow with the span.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import numpy as np

from daemon.config import Config
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import Batch, PrometheusError, between, by_time, decode
from daemon.ingest.poller import attribute
from daemon.ingest.queries import IDENTITY, TARGETS, Query, build, expressions, with_matchers
from daemon.logs import EventQueue, LogFile, read_log, utc
from daemon.prometheus import Prometheus
from detectors.events import KernelEvent
from detectors.snapshot import ExprResult, Snapshot, SourceState
from rules.schema import RuleBook

T = TypeVar("T")

#: Samples that are held at a time, some 30 bytes each, and as many again while they are sorted.
_MOST_SAMPLES = 20_000_000
#: The first chunk is short, since nobody knows yet how much there is in a second.
_FIRST_CHUNK_S = 300.0
_LONGEST_CHUNK_S = 1800.0
_ROUNDING_S = 1e-6
#: A slow signal is looked for in the last two scrapes, and a little longer for those that are late.
_SCRAPES = 2.2
_SLOWEST_SCRAPE_S = 60.0
#: Boot times are looked at this often over the span; two that differ by less are one boot and a clock that was set.
_BOOT_POINTS = 2000
_CLOCK_STEP_S = 120.0
_MOST_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Span:
    """What is replayed: aware times, and the seconds between two ticks."""

    start: datetime
    end: datetime
    step_s: float

    @property
    def seconds(self) -> float:
        """The span's length."""
        return (self.end - self.start).total_seconds()

    def ticks(self) -> int:
        """How many snapshots it makes."""
        return max(1, int(self.seconds // self.step_s))


class Replay:
    """One span of one Prometheus. Iterate `snapshots` once.

    `assembler` is one to go on with (a daemon that fills its windows), `tries` how often a query is asked before the
    span is given up. `errors` and `counts` say afterwards what went wrong and what was dropped.
    """

    def __init__(
        self,
        client: Prometheus,
        config: Config,
        rules: RuleBook,
        span: Span,
        logs: Sequence[LogFile] = (),
        *,
        assembler: Assembler | None = None,
        tries: int = 4,
    ) -> None:
        self._client = client
        self._config = config.prometheus
        self._rules = rules
        self._span = span
        self._logs = logs
        self._tries = tries
        self._expressions = expressions(rules.thresholds)
        self.counts: Counter[str] = Counter()
        self.assembler = assembler or Assembler(
            rules, config.labels, max_raw_signals=config.prometheus.max_raw_signals,
            slow_interval_s=config.prometheus.slow_interval,
        )  # fmt: skip
        self.errors: list[str] = []
        self._slow_at: dict[str, float] = {}

    def snapshots(self) -> Iterator[Snapshot]:
        """Every tick of the span, in order.

        Raises:
            PrometheusError: history can't be had after some tries.
            LogSourceError: a kernel log can't be read.
        """
        with closing_pool(min(2, self._config.concurrency)) as pool:
            yield from self._snapshots(pool)
        self.counts.update(self.assembler.all_counts())

    def _snapshots(self, pool: ThreadPoolExecutor) -> Iterator[Snapshot]:
        start, end, step_s = self._span.start.timestamp(), self._span.end.timestamp(), self._span.step_s
        # None at all: a back end that can't say which there were in a span; then all are asked for, as it is live.
        names = self._patient(lambda: self._client.metric_names(start, end)) or None
        queries = build(self._rules.metrics, self._config, names)
        chunk_s = min(_FIRST_CHUNK_S, self._span.seconds)
        begin = tick_at = start
        events: EventQueue | None = None
        while begin < end:
            until = min(begin + chunk_s, end)
            try:
                chunk = self._chunk(pool, queries, begin, until)
            except PrometheusError as error:
                if error.retryable or chunk_s <= step_s:
                    raise
                chunk_s = max(step_s, chunk_s / 2)  # a limit on samples or bytes: ask for less at a time
                continue
            # Logs are opened only now: which boots a log is about can be told once the nodes have names.
            events = events or self._events()
            since = begin
            while tick_at + step_s <= until + _ROUNDING_S:
                tick_at += step_s
                self._absorb(chunk, since, tick_at)
                heard = [self.assembler.renamed(event) for event in events.until(utc(tick_at))]
                exprs, source = self._evaluate(tick_at, chunk.source(tick_at))
                yield self.assembler.tick(tick_at, events=heard, exprs=exprs, source=source)
                since = tick_at
            self._absorb(chunk, since, until, is_tick=False)  # what lies between the last tick and the chunk's end
            begin = until
            chunk_s = min(_LONGEST_CHUNK_S, max(step_s, chunk_s * min(2.0, _MOST_SAMPLES / max(1, chunk.samples))))

    # ------------------------------------------------------------------ parts

    def _chunk(self, pool: ThreadPoolExecutor, queries: Sequence[Query], begin: float, until: float) -> "_Chunk":
        matchers, window = self._config.matchers, _whole(until - begin)
        self.assembler.learn(self._samples(f"{with_matchers(IDENTITY, matchers)}[{window}s]", until))
        targets = by_time(self._samples(f"{with_matchers(TARGETS, matchers)}[{window}s]", until))
        futures = [
            (query, pool.submit(self._samples, query.over(_whole(until - begin + self._reach(query))), until))
            for query in queries
        ]
        return _Chunk(targets, tuple((query, by_time(future.result())) for query, future in futures))

    def _absorb(self, chunk: "_Chunk", since: float, until: float, *, is_tick: bool = True) -> None:
        """Give the assembler what the live poller would have got by `until`: slow signals only now and then."""
        for query, batch in chunk.batches:
            if query.cadence == "fast":
                self.assembler.absorb(query.key, between(batch, since, until))
            elif is_tick and until - self._slow_at.get(query.key, float("-inf")) >= self._config.slow_interval:
                self._slow_at[query.key] = until
                self.assembler.absorb(query.key, between(batch, until - self._reach(query), until), paced=False)
        self.assembler.targets(between(chunk.targets, since, until))

    def _reach(self, query: Query) -> float:
        """How far before a chunk a query has to reach, in seconds, so that its first tick finds a slow signal."""
        return _SCRAPES * max(self._span.step_s, _SLOWEST_SCRAPE_S) if query.cadence == "slow" else 0.0

    def _samples(self, promql: str, at: float) -> Batch:
        return self._patient(lambda: decode(self._client.query(promql, at)))

    def _patient(self, ask: Callable[[], T]) -> T:
        """Ask again after a failure that may pass; history is only worth having whole."""
        for attempt in range(1, self._tries):
            try:
                return ask()
            except PrometheusError as error:
                if not error.retryable:
                    raise
                self.counts["retries"] += 1
                time.sleep(0.5 * 2 ** (attempt - 1))
        return ask()

    def _evaluate(self, at: float, source: SourceState) -> tuple[list[ExprResult], SourceState]:
        """The raw PromQL rules at a moment, and the state of the source: one that fails is missing, as it is live."""
        found: list[ExprResult] = []
        failed = []
        for name, expr in self._expressions.items():
            try:
                found.extend(attribute(name, decode(self._client.query(expr, at)), self.assembler))
            except PrometheusError as error:
                failed.append(f"rule {name}")
                self.counts["expr_failed"] += 1
                told = f"rule {name}: {error.detail}"
                if told not in self.errors and len(self.errors) < _MOST_ERRORS:
                    self.errors.append(told)
        return found, replace(source, ok=False, failed_selectors=tuple(failed)) if failed else source

    # ------------------------------------------------------------- kernel logs

    def _events(self) -> EventQueue:
        boots = self._boots() if self._logs else None
        # Keyed by place in the list: a node may have several logs.
        return EventQueue({str(number): self._log_events(log, boots) for number, log in enumerate(self._logs)})

    def _log_events(self, log: LogFile, boots: Batch | None) -> Iterator[KernelEvent]:
        """A log's events within the span; the boots come from node_boot_time_seconds where it is known."""
        start, end = self._span.start, self._span.end
        known = self._boots_of(log.node, boots) if boots is not None else []
        for event in read_log(log, self._rules, boots=known, start=start, end=end, counts=self.counts):
            if event.at is not None and event.at < start:
                self.counts["log_before_span"] += event.count
            elif event.at is not None and event.at > end:
                self.counts["log_after_span"] += event.count
            else:
                yield event

    def _boots(self) -> Batch | None:
        """Every node's boot time over the span, asked for once."""
        start, end = self._span.start.timestamp(), self._span.end.timestamp()
        selector = with_matchers("node_boot_time_seconds", self._config.matchers)
        try:
            return decode(self._client.query_range(selector, start, end, max(60.0, (end - start) / _BOOT_POINTS)))
        except PrometheusError as error:
            self.counts["boot_times_unknown"] += 1
            self.errors.append(f"boot times: {error.detail}; records with only seconds since boot cannot be placed")
            return None

    def _boots_of(self, node: str, batch: Batch) -> list[datetime]:
        mine = np.isin(batch.series, list(self.assembler.series_of_node(batch, node)))
        boots: list[datetime] = []
        for value in np.unique(batch.value[mine & np.isfinite(batch.value)]).tolist():
            if not boots or value - boots[-1].timestamp() > _CLOCK_STEP_S:
                boots.append(utc(value))
        return boots


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A stretch of history, pulled at once; every batch is in the order of time."""

    targets: Batch
    batches: tuple[tuple[Query, Batch], ...]

    @property
    def samples(self) -> int:
        """How much of it there is."""
        return sum(len(batch.at) for _, batch in self.batches)

    def source(self, at: float) -> SourceState:
        """How the pull went, as the live poller would tell it at a moment."""
        warnings = tuple(sorted({warning for _, batch in self.batches for warning in batch.warnings}))
        truncated = tuple(warning for warning in warnings if "truncated" in warning or "limit" in warning)
        return SourceState(ok=True, warnings=warnings, truncated=truncated, last_success=utc(at))


@contextmanager
def closing_pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that are given back at once, also where the work ends by an error or is not consumed to its end."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="history")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _whole(seconds: float) -> int:
    """Seconds as PromQL takes them, never less."""
    return max(1, math.ceil(seconds - _ROUNDING_S))
