"""Loki as a road to the loop: a thread of its own asks, the loop's thread takes what came.

How far a tick took it is kept in the ledger's state, in the same transaction as the tick's entries. What was asked for
and not taken is asked for again by the next process. A Loki that is slow, hangs or is away delays nothing but its own
lines.
"""

import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

import structlog

from daemon.ledger import Ledger
from daemon.logs import Folded, fold
from daemon.loki.client import Client, LokiError, Page, Trouble
from daemon.loki.config import LokiConfig
from daemon.loki.cursor import Cursor
from daemon.loki.lines import SOURCE, when
from daemon.loki.reading import Batch, Gap, Reader
from daemon.metrics import Metrics
from detectors.events import KernelEvent
from detectors.standing import cannot_wait
from rules.schema import RuleBook
from rules.vocabulary import EventKind, Severity

log = structlog.get_logger()

#: The name in the state table.
LOKI = "loki"
#: Pages that wait for the loop's thread, and lines that it holds until a tick takes them.
_MOST_PAGES = 4
_MOST_HELD = 50_000
#: Gaps of one kind that are so near to each other are one.
_NEAR_NS = 60_000_000_000
_PUT_S = 0.1
_JOIN_S = 2.0


class LokiInlet:
    """One loop's reading of Loki (`daemon.inlets.Inlet`). Only the loop's thread calls this."""

    def __init__(
        self,
        config: LokiConfig,
        rules: RuleBook,
        ledger: Ledger,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._rules = rules
        self._ledger = ledger
        self._metrics = metrics
        self._clock = clock
        self._taken = Cursor(self._now_ns())
        self._packed: bytes | None = None
        self._held: deque[Batch] = deque()
        self._holds = 0
        self._fact_waits = False
        self._fetch: _Fetch | None = None

    def resume(self, last_tick: datetime | None) -> None:  # noqa: ARG002 - its own cursor says more
        """Go on behind what was taken; where nobody knows, begin now, `loki.lookback` ago. Raises LedgerUnavailable."""
        self.close()
        self._taken = Cursor(self._now_ns() - round(self._config.lookback * 1e9))
        blob = self._ledger.state(LOKI)
        try:
            if blob is not None:
                self._taken = Cursor.unpack(blob)
        except ValueError as error:
            log.warning("not taken up from before", what=LOKI, detail=str(error))
        self._packed = None
        self._held.clear()
        self._holds = 0
        self._fact_waits = False
        self._fetch = _Fetch(self._config, self._rules, self._taken.copy(), self._metrics, self._now_ns)

    def look(self, now: datetime, counts: Counter[str]) -> None:
        """Take over the pages that came."""
        fetch = self._fetch
        while fetch is not None and self._holds < _MOST_HELD:
            try:
                batch = fetch.pages.get_nowait()
            except queue.Empty:
                return
            counts.update(batch.counts)
            counts["log_gaps"] += len(batch.gaps)
            for gap in batch.gaps:
                log.warning("kernel logs in Loki", node=gap.node, detail=text_of(gap))
            events = tuple(
                event if event.at is None or event.at <= now else replace(event, at=now) for event in batch.events
            )
            self._hold(replace(batch, events=events))
            self._fact_waits |= self._is_urgent(events)

    @property
    def is_urgent(self) -> bool:
        """Whether a fact waits that the kernel itself reported, or so much that nothing more is taken over."""
        return self._fact_waits or self._holds >= _MOST_HELD

    def take(self, until: datetime, into: Folded) -> None:
        """Add what happened by `until`, in the order of the pages; the first that happened later holds up the rest.

        An event's time is never later than that of the look that found it, and so the next tick takes it.
        """
        gaps: list[Gap] = []
        while self._held and all(event.at is None or event.at <= until for event in self._held[0].events):
            batch = self._held.popleft()
            self._holds -= len(batch.step.had)
            self._taken.move(batch.step)
            self._packed = None
            for event in batch.events:
                fold(into, event)
            gaps += batch.gaps
        self._fact_waits = any(self._is_urgent(batch.events) for batch in self._held)
        for gap in _joined(gaps):
            into["gap in Loki", gap] = _event_of(gap, until)

    def memory(self) -> dict[str, bytes]:
        """How far it was taken, for the ledger's state table."""
        if self._packed is None:
            self._packed = self._taken.pack()
        return {LOKI: self._packed}

    def close(self) -> None:
        """Stop asking; a request that is under way ends by itself."""
        if self._fetch is not None:
            self._fetch.stop()
            self._fetch = None

    def _is_urgent(self, events: Iterable[KernelEvent]) -> bool:
        return any(cannot_wait(event, self._rules) for event in events)

    def _hold(self, batch: Batch) -> None:
        """Behind what is held; pages without an event that follow each other are one."""
        self._holds += len(batch.step.had)
        last = self._held[-1] if self._held else None
        if last is None or last.events or batch.events or batch.step.edge_ns < last.step.edge_ns:
            self._held.append(batch)
            return
        step = replace(batch.step, had=(*last.step.had, *batch.step.had))
        self._held[-1] = replace(batch, step=step, gaps=_joined((*last.gaps, *batch.gaps)))

    def _now_ns(self) -> int:
        return round(self._clock() * 1e9)


class _Fetch:
    """The thread that asks. Its pages stand in `pages` until the loop's thread takes them."""

    def __init__(
        self, config: LokiConfig, rules: RuleBook, cursor: Cursor, metrics: Metrics, now_ns: Callable[[], int]
    ) -> None:
        self.pages: queue.Queue[Batch] = queue.Queue(_MOST_PAGES)
        self._config = config
        self._metrics = metrics
        self._now_ns = now_ns
        self._client = Client(config)
        self._rules = rules
        self._handed_over = cursor
        self._reader = self._new_reader()
        self._stop = threading.Event()
        self._failures = 0
        self._told = ""
        self._thread = threading.Thread(target=self._turns, name="loki", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Told to stop; what it does after that reaches nobody."""
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _new_reader(self) -> Reader:
        """It goes on behind what was handed over."""
        cursor = self._handed_over.copy()
        return Reader(self._config, self, self._rules, cursor, self._now_ns, time.monotonic)

    def page(self, query: str, start_ns: int, end_ns: int, limit: int) -> Page:
        """What the reader asks for, counted. Raises LokiError."""
        try:
            page = self._client.page(query, start_ns, end_ns, limit)
        except LokiError as error:
            self._metrics.loki_requests.labels(error.trouble.value).inc()
            raise
        self._metrics.loki_requests.labels(Trouble.PARTIAL.value if page.warnings else "ok").inc()
        return page

    def _turns(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = self._turn()
            except Exception:  # the outermost frame of this thread; the loop goes on without it
                log.exception("reading Loki failed", next="report it with this trace; it is tried again")
                self._failures += 1
                wait_s = self._back_off(0.0)
                self._reader = self._new_reader()
            self._stop.wait(wait_s)
        self._client.close()

    def _turn(self) -> float:
        """One round; gives how long to wait for the next."""
        try:
            for batch in self._reader.round():
                self._tell_lag()
                if not self._put(batch):
                    return 0.0
        except LokiError as error:
            self._tell_lag()
            self._failures += 1
            if str(error) != self._told:
                self._told = str(error)
                log.warning("Loki", detail=self._told)
            return self._back_off(error.after_s)
        if self._told:
            log.info("Loki answers again")
        self._failures, self._told = 0, ""
        return self._config.every * random.uniform(0.9, 1.1)  # noqa: S311 - spread in time, no secret

    def _put(self, batch: Batch) -> bool:
        """Hand it over, which waits while the loop's thread has enough; False once it is told to stop."""
        while not self._stop.is_set():
            try:
                self.pages.put(batch, timeout=_PUT_S)
            except queue.Full:
                continue
            self._handed_over.move(batch.step)
            return True
        return False

    def _tell_lag(self) -> None:
        self._metrics.loki_lag.set(max(0.0, (self._now_ns() - self._reader.cursor.covered_ns) / 1e9))

    def _back_off(self, asked_s: float) -> float:
        """Longer after each failure, with jitter, and as long as Loki asks for."""
        most_s = self._config.backoff_max
        wait_s = min(most_s, self._config.every * 2.0 ** min(self._failures, 16))
        return max(wait_s * random.uniform(0.5, 1.0), min(asked_s, most_s))  # noqa: S311 - spread in time, no secret


def _joined(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Gaps, those of one kind that touch as one."""
    found: list[Gap] = []
    for gap in gaps:
        for number, known in enumerate(found):
            is_alike = (known.node, known.why, known.is_mild) == (gap.node, gap.why, gap.is_mild)
            if is_alike and gap.from_ns <= known.to_ns + _NEAR_NS and known.from_ns <= gap.to_ns + _NEAR_NS:
                found[number] = replace(
                    known, from_ns=min(known.from_ns, gap.from_ns), to_ns=max(known.to_ns, gap.to_ns),
                    lines=known.lines + gap.lines,
                )  # fmt: skip
                break
        else:
            found.append(gap)
    return tuple(found)


def text_of(gap: Gap) -> str:
    """A gap in words."""
    begin, end = when(gap.from_ns), when(gap.to_ns)
    many = f"{gap.lines} " if gap.lines else ""
    return f"log coverage lost from {begin:%Y-%m-%dT%H:%M:%SZ} to {end:%Y-%m-%dT%H:%M:%SZ}: {many}{gap.why}"


def _event_of(gap: Gap, until: datetime) -> KernelEvent:
    """A gap as an event of the tick that takes it: what it tells of may be long ago, and that it is lost is news."""
    severity = Severity.INFO if gap.is_mild else Severity.UNKNOWN
    return KernelEvent(
        EventKind.COVERAGE_LOST, None, text_of(gap), at=until, node=gap.node, severity=severity,
        source=SOURCE,
    )  # fmt: skip
