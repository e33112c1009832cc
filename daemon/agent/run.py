"""The agent's life: read the log, keep what it said in the spool, send it, and forget it once the controller has it.

Three threads and no queue between them but the spool: the reader never waits for the network, the sender never for the
log, and neither for what the node says of itself. Whatever is killed in between goes on from the spool and from the
place in the log that is stored beside it.
"""

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from daemon.agent.metrics import AgentMetrics
from daemon.agent.pacing import Pace
from daemon.agent.position import Reading, Source, SourceError
from daemon.agent.sender import Sender, Unsent
from daemon.agent.spool import Spool, SpoolError
from daemon.agent.spool_records import rough_key
from daemon.agent.wire import MAX_REPORTS, Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind

log = structlog.get_logger()

_READ_WAIT_S = 1.0
_FIRST_WAIT_S = 1.0
_UNREADABLE_WAIT_S = 10.0
_AFTER_A_BUG_S = 10.0
_LEAST_REST_S = 0.05
#: The process ends all the same where a thread hangs in a request or in the driver's tool.
_LAST_S = 5.0
#: A place in the log without any event is stored this often.
_STORE_PLACE_S = 10.0
#: Of what the node says of itself, so much is kept while the spool takes nothing.
_MOST_FACTS = 256
#: The source of the events that tell what the controller refused.
_REFUSED, _MOST_TOLD = "refused", 400


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent is made of. `facts` gives what the node says of itself, as events; called now and then."""

    source: Source
    spool: Spool
    sender: Sender | None
    metrics: AgentMetrics
    facts: Callable[[], Sequence[KernelEvent]] = tuple
    look_every_s: float = 60.0
    backoff_max_s: float = 60.0
    boot_id: str = ""


class Agent:
    """One node's agent. `run` returns once `stop` is set."""

    def __init__(self, parts: Parts, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._monotonic = monotonic
        self._news = threading.Event()
        self._lock = threading.Lock()  # over the spool
        self._pace = Pace()
        self._stored_s = -float("inf")
        self._failures = 0
        self._facts: list[Report] = []
        self._counted: Counter[str] = Counter()
        self._told: set[str] = set()
        self.sending = ""  # why nothing can be sent, for /healthz; "" where it can

    def run(self, stop: threading.Event) -> None:
        """Read until told to stop. A log that cannot be read is tried again and again."""
        others = [
            threading.Thread(target=self._turns, args=(turn, stop), name=name, daemon=True)
            for name, turn in (("send", self._send_turn), ("look", self._look_turn))
        ]
        for thread in others:
            thread.start()
        self._turns(self._read_turn, stop)
        self._news.set()
        for thread in others:
            thread.join(_LAST_S)

    def _turns(self, turn: Callable[[threading.Event], None], stop: threading.Event) -> None:
        """A thread's whole life. The outermost frame: a bug in one turn is logged, and the next one still comes."""
        while not stop.is_set():
            try:
                turn(stop)
            except Exception:  # the outermost frame; see the docstring
                log.exception("agent failed", next="report it with this trace; log and spool are as they were")
                stop.wait(_AFTER_A_BUG_S)

    def _read_turn(self, stop: threading.Event) -> None:
        try:
            self.read(stop)
            self._parts.metrics.log_readable.set(1)
        except SourceError as error:
            self._parts.metrics.log_readable.set(0)
            self._say_once("log", str(error))
            stop.wait(_UNREADABLE_WAIT_S)

    def _look_turn(self, stop: threading.Event) -> None:
        self.look()
        stop.wait(self._parts.look_every_s)

    def _send_turn(self, stop: threading.Event) -> None:
        try:
            rest_s = self.send()
            self._failures, self.sending = 0, ""
        except Unsent as unsent:
            self._failures += 1
            self.sending = str(unsent)
            self._parts.metrics.requests.labels("failed").inc()
            self._say_once("send", str(unsent))
            stop.wait(self._wait_s(unsent.after_s))
            return
        self._news.wait(rest_s)
        self._news.clear()

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, stop: threading.Event) -> None:
        """One look at the log: what it gave is durable before the place after it is stored. Raises SourceError."""
        try:
            reading = self._parts.source.read(_READ_WAIT_S)
        finally:
            self._count()
        if reading is None:
            return
        now_s = self._monotonic()
        if not reading.events and now_s - self._stored_s < _STORE_PLACE_S:
            return
        self._stored_s = now_s
        for event in reading.events:
            self._parts.metrics.events.labels(event.kind.value, str(event.trusted).lower()).inc(event.count)
        reports = [Report(report_id(one), one, reading.last_at.get(one.sequence or 0)) for one in reading.events]
        self._keep(reports, reading, stop)

    def _count(self) -> None:
        counts = self._parts.source.counts
        for what in counts - self._counted:
            self._parts.metrics.log.labels(what).inc(counts[what] - self._counted[what])
        self._counted = counts.copy()

    def look(self) -> None:
        """What the node says of itself. What the spool does not take now is added with the next look's."""
        self._facts += [Report(report_id(one), one) for one in self._parts.facts()]
        if self._facts:
            try:
                with self._lock:
                    self._parts.spool.add(self._facts)
            except SpoolError as error:
                self._say_once("spool", str(error))
                del self._facts[:-_MOST_FACTS]
                return
            self._facts.clear()
            self._news.set()

    def _keep(self, reports: Sequence[Report], reading: Reading, stop: threading.Event) -> None:
        """Until the spool has it: what cannot be stored, or on a disk that fails, is not passed over."""
        while True:
            try:
                with self._lock:
                    self._parts.spool.add(reports, reading.position)
                break
            except SpoolError as error:
                self._say_once("spool", str(error))
                if stop.wait(_FIRST_WAIT_S):
                    return
        if reports:
            self._news.set()
        self._show()

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self) -> float | None:
        """Send what is due; how long to rest then, None: until there is something new. Raises Unsent."""
        sender = self._parts.sender
        if sender is None:
            return None
        now_s, spool = self._monotonic(), self._parts.spool
        with self._lock:
            due = spool.pending(MAX_REPORTS, lambda fault: self._pace.is_due(fault, now_s))
            if not due:
                rest_s = self._pace.rest_s(spool.faults, now_s)
                return None if rest_s is None else max(_LEAST_REST_S, rest_s)
        receipt = sender.send(due)
        self._parts.metrics.requests.labels("ok").inc()
        refused = {one.id: one.why for one in receipt.refused}
        answered = [one for one in due if one.id in refused or one.id in receipt.taken]
        if not answered:
            raise Unsent("the controller's receipt names none of the reports that were sent")
        self._forget(answered, refused)
        if any(one.event.is_boundary for one in answered):
            self._pace.begin_anew()
        self._pace.sent((rough_key(one.event) for one in answered), now_s)
        return 0.0

    def _forget(self, answered: Sequence[Report], refused: Mapping[str, str]) -> None:
        """What is in the controller's ledger, or never will be. Where the disk is full it is sent, and known, again."""
        try:
            with self._lock:
                self._parts.spool.acknowledge([one.id for one in answered])
        except SpoolError as error:
            raise Unsent(f"what the controller has cannot be let go: {error}") from error
        for one in answered:
            why = refused.get(one.id)
            self._parts.metrics.reports.labels("taken" if why is None else "refused").inc()
            if why is not None:
                log.error("report refused", report=one.id, detail=why, text=one.event.text[:200])
                self._tell_refused(one, why)
        self._show()

    def _tell_refused(self, report: Report, why: str) -> None:
        """What the controller never takes is missing there, which it is told in words that it does take."""
        event = report.event
        if event.kind is EventKind.COVERAGE_LOST:
            return
        text = f"log coverage lost: the controller refused a report of {event.kind} {event.code or ''}: {why}"[
            :_MOST_TOLD
        ]
        number = int.from_bytes(hashlib.sha256(report.id.encode("utf-8", "replace")).digest()[:6], "big")
        told = KernelEvent(
            EventKind.COVERAGE_LOST, None, text, sequence=number, boot_id=self._parts.boot_id, source=_REFUSED
        )
        try:
            with self._lock:
                self._parts.spool.add([Report(report_id(told), told)])
        except SpoolError as error:
            self._say_once("spool", str(error))

    def _wait_s(self, asked_s: float) -> float:
        longest_s = self._parts.backoff_max_s
        wait_s = min(longest_s, _FIRST_WAIT_S * 2.0 ** min(self._failures - 1, 20))
        return max(wait_s * random.uniform(0.5, 1.0), min(asked_s, longest_s))  # noqa: S311 - jitter is no secret

    def _show(self) -> None:
        with self._lock:
            spool, metrics = self._parts.spool, self._parts.metrics
            metrics.spool_bytes.set(spool.disk_bytes)
            metrics.spool_reports.set(len(spool))
            oldest = spool.oldest_at
        metrics.oldest.set(oldest.timestamp() if oldest is not None else 0.0)

    def _say_once(self, about: str, said: str) -> None:
        if f"{about}: {said}" not in self._told:
            self._told = {one for one in self._told if not one.startswith(f"{about}:")} | {f"{about}: {said}"}
            log.warning("agent", about=about, detail=said)
