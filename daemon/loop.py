"""The loop: poll, detect, decide, record, again. One thread decides; everything it needs is given to it.

Level-triggered: each tick works out the present state from what is known now, so a missed tick or a restart changes
nothing. Facts from the kernel log wake it at once. `gpuwarden run` starts it; `health` answers the web's threads.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from daemon.config import Config
from daemon.hearing import Hearing
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import PrometheusError
from daemon.ingest.poller import Poller
from daemon.inlets import Inlet
from daemon.ledger import Entry, EntryKind, Ledger, encode_body
from daemon.logs import utc
from daemon.measuring import measured
from daemon.memory import FAULTS, Before, Place, VerdictMemory, pack_faults
from daemon.metrics import Metrics
from daemon.prometheus import Prometheus
from daemon.pulling import Answers, Pull, TickTimes
from daemon.recorder import Recorder
from daemon.replay import Replay, Span
from daemon.web import Health
from detectors.engine import Detection, Engine
from detectors.events import KernelEvent
from detectors.findings import Verdict
from detectors.snapshot import Snapshot, SourceState
from detectors.verdict import one_a_gpu, still_there, unknown_since
from remediation.decide import Decision, decide
from rules.schema import RuleBook

if TYPE_CHECKING:  # Kubernetes' client takes its time to import, and many run without a cluster
    from daemon.acting import Acting

log = structlog.get_logger()

#: How often followed logs are looked at between polls; many logs less often, so that looking takes a small share.
_LOG_LOOK_S = 0.05
_LOG_LOOK_SHARE = 0.1
#: Between two ticks lies at least this, and as long as a tick takes: a flood of faults is no flood of ticks.
_LEAST_GAP_S = 0.2
_GAP_IN_TICKS = 1.0
#: How often people's words are looked for in the ledger between polls.
_WORD_LOOK_S = 2.0
#: The coarsest step at which the windows are filled from history at the start.
_WARM_UP_STEP_S = 60.0


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick came to.

    `blind` says why nothing could be asked ("" where it could). `snapshot` and `detection` are None where nothing was
    known at all. `verdicts` has one for each GPU, also one with MIG instances.
    """

    at: datetime
    snapshot: Snapshot | None
    detection: Detection | None
    verdicts: tuple[Verdict, ...]
    decisions: tuple[Decision, ...]
    blind: str = ""


@dataclass(frozen=True, slots=True)
class Blindness:
    """Since when, and why, no verdict can be relied on."""

    since: datetime
    why: str

    def __str__(self) -> str:
        return f"{self.why}, since {self.since:%Y-%m-%dT%H:%M:%SZ}; all verdicts are unknown"


class Loop:
    """One fleet, watched. `run` returns when `stop` is set; `tick` can be called by itself (tests, --once)."""

    def __init__(
        self,
        config: Config,
        rules: RuleBook,
        ledger: Ledger,
        *,
        metrics: Metrics,
        acting: "Acting | None" = None,
        inlets: Sequence[Inlet] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._acting = acting
        self._rules, self._modes = rules, config.how_far.able(rules.policy.operations.enabled)
        self._ledger = ledger
        self._clock = clock
        self._started_at = clock()
        self.metrics = metrics
        self.counts: Counter[str] = Counter()
        self.assembler = Assembler(
            rules, config.labels, max_raw_signals=config.prometheus.max_raw_signals,
            slow_interval_s=config.prometheus.slow_interval,
        )  # fmt: skip
        self._client = Prometheus(config.prometheus)
        self.poller = Poller(self._client, config.prometheus, rules, self.assembler)
        self._pull = Pull(self.poller, self.assembler, _LOG_LOOK_S, self._measure)
        self.engine = Engine(rules)
        self._recorder = Recorder(ledger, metrics)
        self._memory = VerdictMemory()
        oldest = utc(self._started_at - config.prometheus.warm_up)
        self._hearing = Hearing(config.kernel_logs, rules, oldest, self.counts, inlets)
        self._before = Before()
        self._has_begun = self._has_ticked = False
        self._in_hand: Sequence[KernelEvent] = ()
        self._verdicts: tuple[Verdict, ...] = ()
        self._places: dict[str, Place] = {}
        self._blind: Blindness | None = None
        self._partial: tuple[str, ...] = ()
        self._beat_at = self._polled_at = self._started_at
        self._times = TickTimes()
        self._rested_s = self._look_s = 0.0

    # ------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Read what was open before a restart and write that a run began. Raises LedgerUnavailable."""
        self._before = Before.read(self._ledger)
        self._verdicts, self._places = self._before.verdicts, dict(self._before.places)
        self._hearing.resume(self._before.heard, self._before.at)
        self._recorder.resume(self._before.incidents, self._before.decisions, self._before.verdicts)
        at = utc(self._clock())
        if self._acting is not None:
            self._acting.take_up(at)
        source = urlsplit(self._config.prometheus.url)
        body = {
            "mode": str(self._config.how_far),
            "rules": self._rules.digest,
            "prometheus": source._replace(netloc=source.netloc.rpartition("@")[2]).geturl(),
        }
        self._recorder.take(Entry(EntryKind.RUN_STARTED, at, encode_body(body), key=f"run/{at.isoformat()}"))
        self._recorder.flush({})

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop, or until another process leads.

        The outermost frame: a bug in one tick is logged and the next one still comes.
        """
        polls = True
        while not stop.is_set() and not self._is_deposed():
            try:
                self.tick(stop, polls=polls)
                polls = self._wait(stop)
            except Exception:  # the outermost frame; see the docstring
                log.exception("tick failed", next="report it with this trace; all verdicts stand as unknown")
                self._broke()
                polls = True
                stop.wait(self._config.prometheus.poll_interval)
        self.close()

    def _is_deposed(self) -> bool:
        return self._acting is not None and bool(self._acting.stands_by())

    @property
    def is_recorded(self) -> bool:
        """Whether the ledger took everything there was to tell."""
        return self._recorder.writable

    def close(self) -> None:
        """Give back threads and files."""
        self._pull.close()
        self._hearing.close()

    def _begin(self, stop: threading.Event) -> None:
        """Fill the windows from history, then take up what was open before: what was recorded wins."""
        self._has_begun = True
        try:
            self._warm_up(stop)
        finally:
            self.engine.faults.restore(self._before.faults)
            self.engine.incidents.restore(self._before.incidents)

    def _warm_up(self, stop: threading.Event) -> None:
        """Play the last hour through the detectors, so that a restart forgets no trend. Nothing is decided in it."""
        config = self._config.prometheus
        if config.warm_up < config.poll_interval:
            return
        now = self._clock()
        span = Span(utc(now - config.warm_up), utc(now), max(config.poll_interval, _WARM_UP_STEP_S))
        replay = Replay(self._client, self._config, self._rules, span, assembler=self.assembler, tries=1)
        try:
            for snapshot in replay.snapshots():
                self.engine.step(snapshot)
                self._beat_at = self._clock()
                if stop.is_set():
                    return
        except PrometheusError as error:
            log.warning("no history", detail=str(error), next="trends are seen again once their windows have filled")

    def _wait(self, stop: threading.Event) -> bool:
        """Sleep until the next poll is due, which it says, or until something comes that cannot wait for it.

        That is a fault in a log, or a person's word: a tick on the answers of the last poll is enough for it.
        """
        until = self._polled_at + self.poller.next_delay(self._config.prometheus.poll_interval)
        word_s = self._rested_s + _WORD_LOOK_S
        while not stop.is_set():
            now = self._clock()
            if not self._polled_at <= now < until:  # due, or the clock was set back
                return True
            began_s = time.perf_counter()
            self._hearing.listen(utc(now), self._pull.boot_at)
            looked_s = time.perf_counter()
            if self._hearing.is_urgent and looked_s >= self._rested_s:
                return False
            if looked_s >= word_s:
                word_s = looked_s + _WORD_LOOK_S
                if self._has_word():
                    return False
            stop.wait(min(until - now, max(_LOG_LOOK_S, (looked_s - began_s) / _LOG_LOOK_SHARE)))
        return True

    def _measure(self, now: float) -> dict[str, datetime]:
        """In the pull's thread: what jobs' own metrics say of their checkpoints."""
        wanted = self._acting.checkpoint_metrics() if self._acting is not None else {}
        return measured(self._client, wanted, now, self.poller.errors)

    def _meanwhile(self) -> None:
        """While answers are awaited."""
        looked_s = time.perf_counter()
        if self._pull.last is None or looked_s < self._look_s:
            return
        self._hearing.listen(utc(self._clock()), self._pull.boot_at)
        if self._hearing.is_urgent and looked_s >= self._rested_s:
            self.tick(polls=False)
        self._look_s = time.perf_counter() + _LOG_LOOK_S

    def _has_word(self) -> bool:
        """Whether a person has said something: an approval or a hold is no matter of half a minute."""
        return self._acting is not None and (self._acting.has_news() or self._is_deposed())

    # ---------------------------------------------------------------- a tick

    def tick(self, stop: threading.Event | None = None, *, polls: bool = True) -> Tick:
        """Poll, detect, decide, record. The first one fills the windows from history before, unless `stop` is set.

        Without `polls` it goes by the answers of the last poll, whose samples are as old as they are.
        """
        if not self._has_begun:
            self._begin(stop or threading.Event())
        now, known = self._clock(), None if polls else self._pull.again()
        if known is None:
            with self.metrics.tick_seconds.labels("poll").time():
                known = self._pull.answers(now, self._meanwhile)
            self._polled_at = now
        at = utc(self._times.next(now, self._clock))
        began_s = time.perf_counter()
        self._hearing.listen(utc(self._clock()), self._pull.boot_at)
        self._in_hand = (*self._hearing.take(at), *(self._acting.own_events() if self._acting is not None else ()))
        with self.metrics.tick_seconds.labels("detect").time():
            tick = self._seeing(at, known) if known.sees else self._unseeing(at, known.state)
        if self._is_deposed():
            return tick  # frozen meanwhile, and another process writes the record now
        with self.metrics.tick_seconds.labels("record").time():
            self._record(tick)
        if self._acting is not None and tick.detection is not None:
            self._acting.carry_out(
                at, tick.decisions, tick.detection.incidents, tick.verdicts, recorded=self._recorder.writable,
                snapshot=tick.snapshot,
            )  # fmt: skip
        elif self._acting is not None:
            self._acting.go_blind(tick.verdicts)
        self._publish(tick)
        if known.is_new:
            self._publish_counts()
        self._has_ticked, self._beat_at = True, self._clock()
        ended_s = time.perf_counter()
        self._rested_s = ended_s + max(_LEAST_GAP_S, _GAP_IN_TICKS * (ended_s - began_s))
        return tick

    def _seeing(self, at: datetime, known: Answers) -> Tick:
        """A tick about which Prometheus said something, if not all."""
        state = known.state
        if self._blind is not None:
            log.info("sees again", blind_since=self._blind.since.isoformat())
        self._blind, self._partial = None, state.failed_selectors
        snapshot, detection, decisions = self._decide(at, known)
        self._verdicts = one_a_gpu(detection.verdicts, snapshot)
        self.metrics.ticks.labels("ok" if state.ok else "partial").inc()
        if state.ok:
            self.metrics.snapshot_at.set(at.timestamp())
        return Tick(at, snapshot, detection, self._verdicts, decisions)

    def _unseeing(self, at: datetime, state: SourceState) -> Tick:
        """A tick about which Prometheus said nothing.

        The kernel log still speaks: its facts are recorded, and the gate of fresh evidence keeps hands off.
        """
        blind = self._go_blind(at, f"Prometheus cannot be asked ({', '.join(state.failed_selectors[:2])})")
        self.metrics.ticks.labels("blind").inc()
        if not self._in_hand:
            return Tick(at, None, None, self._unknown(blind), (), blind.why)
        snapshot, detection, decisions = self._decide(at, Answers(state, ()))
        return Tick(at, snapshot, detection, self._unknown(blind), decisions, blind.why)

    def _decide(self, at: datetime, known: Answers) -> tuple[Snapshot, Detection, tuple[Decision, ...]]:
        events = [self.assembler.renamed(event) for event in self._in_hand]
        snapshot = None if known.is_new else self.assembler.heard(at, events)
        if snapshot is None:
            snapshot = self.assembler.tick(at.timestamp(), events=events, exprs=known.exprs, source=known.state)
        self._in_hand = ()
        detection = self.engine.step(snapshot)
        acting, ended = self._acting, detection.closed
        scene = acting.scene(at, detection.incidents, ended, known.measured, self._places) if acting else None
        decisions = decide(
            detection.incidents, snapshot, still_there(detection.verdicts, snapshot), self._rules.policy,
            now=at, modes=self._modes, ledger_writable=self._recorder.writable, scene=scene,
        )  # fmt: skip
        if acting is not None and scene is not None:
            acting.decided(at, scene, decisions, detection.incidents)
        return snapshot, detection, decisions

    def _go_blind(self, at: datetime, why: str) -> Blindness:
        if self._blind is None:
            self._blind = Blindness(at, why)
            log.error("blind", why=why, next="verdicts are unknown until it answers; nothing is decided from old data")
        return self._blind

    def _unknown(self, blind: Blindness) -> tuple[Verdict, ...]:
        return unknown_since(self._verdicts, blind.since, blind.why)

    def _broke(self) -> None:
        """Keep what was heard and not used yet, and trust nothing until a tick works."""
        self.metrics.ticks.labels("crashed").inc()
        self._hearing.give_back(self._in_hand)
        self._in_hand = ()
        self.metrics.fleet.verdicts = self._unknown(self._go_blind(utc(self._clock()), "the last tick failed"))

    # ----------------------------------------------------------------- telling

    def _record(self, tick: Tick) -> None:
        self._recorder.tick(tick.at, tick.snapshot, tick.detection, tick.decisions, tick.verdicts, tick.blind)
        for gpu in self.assembler.fleet.gpus:
            self._places[gpu.uuid] = (gpu.node, gpu.index, gpu.pci)
        source = "" if self._blind is None else str(self._blind)
        state = self._memory.pack(tick.at, source, tick.verdicts, self._places)
        state |= {FAULTS: pack_faults(self.engine.faults.open_faults())} | self._hearing.memory()
        if self._acting is not None:
            state |= self._acting.memory()
        if self._recorder.flush(state):
            self._memory.written()

    def _publish(self, tick: Tick) -> None:
        metrics = self.metrics
        metrics.fleet.verdicts = tick.verdicts
        if tick.detection is not None:
            metrics.fleet.incidents = tick.detection.incidents
        if tick.snapshot is not None and not tick.blind:
            shares = tick.snapshot.coverage.signal_share
            metrics.coverage.set(float(shares.mean()) if len(shares) else 0.0)
        elif tick.blind:
            metrics.coverage.set(0.0)
        metrics.advance(metrics.kernel_events, "kind", self.engine.faults.counts.items())
        metrics.advance(metrics.kernel_events, "kind", self.counts.items())

    def _publish_counts(self) -> None:
        """What the ingest has counted; not while another thread counts."""
        metrics = self.metrics
        totals = self.assembler.all_counts()
        metrics.advance(metrics.samples, "", [("samples", totals.pop("samples", 0))])
        metrics.advance(metrics.samples_dropped, "reason", totals.items())
        metrics.advance(metrics.poll_errors, "kind", self.poller.errors.items())

    def health(self) -> Health:
        """Alive: the loop still turns. Ready: its verdicts are fresh and its record is kept. For any thread."""
        blind, partial, since = self._blind, self._partial, self._clock() - self._beat_at
        config = self._config.prometheus
        alive = since <= 5 * config.poll_interval + config.backoff_max + 5 * config.timeout
        wrong = []
        if not alive:
            wrong.append(f"no tick for {since:.0f} s")
        if not self._has_ticked:
            wrong.append("the first tick is not done yet")
        if blind is not None:
            wrong.append(str(blind))
        if not self._recorder.writable:
            wrong.append(self._recorder.trouble)
        if wrong:
            return Health(alive, ready=False, why=tuple(wrong))
        told = f"part of the telemetry could not be asked for, so nothing is acted upon: {', '.join(partial)}"
        acting = self._acting.trouble if self._acting is not None else ()
        return Health(alive, ready=True, why=(*((told,) if partial else ()), *acting))
