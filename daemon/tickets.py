"""The desk that posts tickets: one about each node that only people can mend, once an incident, never lost.

`daemon.acting` gives it each tick's decisions, and nobody waits for it: a thread of its own asks the receiver. A ticket
is in the ledger before it is posted first, and the receiver's answer is after it. So whoever takes over goes on with
those that nobody has answered, and sends no other again. Only where a process ends between the answer and its entry
does the receiver see one twice, under the same key.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from daemon.config import TicketsConfig
from daemon.ledger import (
    Entry,
    EntryError,
    EntryKind,
    Ledger,
    LedgerUnavailable,
    decode_body,
    encode_body,
)
from daemon.metrics import Metrics
from daemon.webhook import Answer, Result, post
from detectors.findings import Incident
from remediation.decide import Decision
from remediation.limits import Attempt
from remediation.tickets import Filed, Ticket, TicketState, tickets_due

log = structlog.get_logger()

_AFTER_A_BUG_S = 60.0
#: Beyond the time-out, for an answer's entry in the ledger, when the process ends.
_LAST_WRITE_S = 5.0
_NEXT = (
    "tell people yourself: `gpuwarden explain NODE` has the ticket; then mend tickets.url, the token or the receiver"
)


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait: between tries it doubles up to `longest_s`, with jitter.

    `longest_asked_s` bounds what a receiver may ask for. Every `look_s` it is looked whether anything may be sent.
    """

    first_s: float = 5.0
    longest_s: float = 300.0
    longest_asked_s: float = 3600.0
    look_s: float = 1.0


@dataclass(slots=True)
class _Open:
    """A ticket that nobody has answered. Times are of the monotonic clock."""

    ticket: Ticket
    is_wanted: bool
    due_s: float = 0.0
    tries: int = 0


class TicketDesk:
    """One process' tickets; without a configuration there are none.

    `may_send` is asked right before each post: whether this process leads, and what it decided is in the ledger.
    """

    def __init__(
        self,
        config: TicketsConfig | None,
        ledger: Ledger,
        metrics: Metrics,
        may_send: Callable[[], bool],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        waits: Waits = Waits(),
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._metrics = metrics
        self._may_send = may_send
        self._now = now
        self._waits = waits
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        #: incidents that have a ticket, whatever came of it, and those of them that were answered here
        self._known: set[str] = set()
        self._answered: set[str] = set()
        #: answers that the ledger has not taken yet; the desk's own thread alone touches them
        self._unwritten: list[Filed] = []
        self._quiet_until_s = 0.0
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._turns, name="tickets", daemon=True)

    def start(self) -> None:
        """Begin to post."""
        if self._config is not None:
            self._thread.start()

    def stop(self) -> None:
        """End after what is being posted right now, and wait for it, but not longer than a receiver may take."""
        self._stop.set()
        self._news.set()
        if self._config is not None and self._thread.ident is not None:
            self._thread.join(self._config.timeout + _LAST_WRITE_S)

    def take_up(self) -> None:
        """Go on with what the ledger has: another process may have led before. Raises LedgerUnavailable."""
        if self._config is None:
            return
        filed: dict[str, Filed | None] = {}
        for entry in self._ledger.entries(kind=EntryKind.TICKET):
            filed[str(entry.incident)] = _read(entry)
        wanted = {
            name: one.ticket for name, one in filed.items() if one is not None and one.state is TicketState.WANTED
        }
        with self._lock:
            kept = {name: one for name, one in self._open.items() if name in wanted or name not in filed}
            fresh = wanted.keys() - kept.keys() - self._answered
            self._open = kept | {name: _Open(wanted[name], is_wanted=True) for name in sorted(fresh)}
            self._known |= filed.keys()
        self._news.set()

    def give(self, decisions: Sequence[Decision], incidents: Sequence[Incident], history: Iterable[Attempt]) -> None:
        """What a tick has decided. What is due by it is sent from now on, whatever becomes of the incident."""
        if self._config is None:
            return
        with self._lock:
            due = tickets_due(decisions, incidents, history, self._known)
            self._open |= {ticket.id: _Open(ticket, is_wanted=False) for ticket in due}
            self._known |= {ticket.id for ticket in due}
        if due:
            self._news.set()

    # ------------------------------------------------------------------------------------------- the desk's own thread

    def _turns(self) -> None:
        """The thread's whole life. The outermost frame: a bug is logged, and the next turn still comes."""
        while not self._stop.is_set():
            try:
                rest_s = self._turn()
            except Exception:  # the outermost frame; see the docstring
                log.exception("tickets failed", next="report it with this trace; no ticket is lost by it")
                rest_s = _AFTER_A_BUG_S
            self._news.wait(rest_s)
            self._news.clear()

    def _turn(self) -> float | None:
        """File and post what is due, one after the other; how long to rest then, None: until there is something new."""
        while not self._stop.is_set():
            if not self._write_answers():
                return self._waits.look_s
            with self._lock:
                waiting = tuple(self._open.values())
            if not waiting:
                return None
            if not self._may_send():
                return self._waits.look_s
            now_s = time.monotonic()
            due = [one for one in waiting if self._due_s(one) <= now_s]
            if not due:
                return min(map(self._due_s, waiting)) - now_s
            one = min(due, key=lambda one: (one.is_wanted, one.due_s))
            one.due_s = now_s + self._waits.longest_s  # if this breaks, the others get their turn
            try:
                if one.is_wanted:
                    self._post(one)
                else:
                    self._file(one)
            except LedgerUnavailable as error:
                log.warning("ticket waits for the ledger", ticket=one.ticket.id, detail=str(error))
                one.due_s = now_s + self._waits.look_s
        return None

    def _due_s(self, one: _Open) -> float:
        """When something is to be done about it: to file it never waits for the receiver."""
        return max(one.due_s, self._quiet_until_s) if one.is_wanted else one.due_s

    def _file(self, one: _Open) -> None:
        """Write that it is wanted: whatever happens then, it will be posted. Raises LedgerUnavailable."""
        ticket = replace(one.ticket, jobs=self._jobs_of(one.ticket))
        if self._ledger.append([ticket_entry(Filed(TicketState.WANTED, self._now(), ticket))]) == [0]:
            self._take_over(one)
        else:
            one.ticket, one.is_wanted, one.due_s = ticket, True, 0.0

    def _jobs_of(self, ticket: Ticket) -> tuple[str, ...]:
        """Also those that had work there when it began: a drain is over by now. Raises LedgerUnavailable."""
        jobs = set(ticket.jobs)
        for entry in self._ledger.entries(kind=EntryKind.DECISION, incident=ticket.id):
            jobs.update(map(str, entry.body.get("plan", {}).get("jobs", ())))
        return tuple(sorted(jobs))

    def _take_over(self, one: _Open) -> None:
        """Somebody filed it before: it is as they wrote it, and may have been answered. Raises LedgerUnavailable."""
        name = one.ticket.id
        entry = next(self._ledger.entries(kind=EntryKind.TICKET, incident=name, newest_first=True, limit=1), None)
        filed = _read(entry) if entry is not None else None
        if filed is None or filed.state is not TicketState.WANTED:
            with self._lock:
                self._open.pop(name, None)
            return
        one.ticket, one.is_wanted, one.due_s = filed.ticket, True, 0.0

    def _post(self, one: _Open) -> None:
        """Post it, where that can be written down. Raises LedgerUnavailable."""
        self._ledger.check_writable()
        if self._config is None or self._stop.is_set() or not self._may_send():  # the ledger may have taken its time
            one.due_s = 0.0
            return
        ticket = one.ticket
        answer = post(self._config, ticket, self._now())
        one.tries += 1
        self._metrics.tickets.labels(answer.result.value).inc()
        if answer.result is Result.RETRIED:
            self._put_off(one, answer)
            return
        state = TicketState.SENT if answer.result is Result.SENT else TicketState.REFUSED
        with self._lock:
            self._open.pop(ticket.id, None)
            self._answered.add(ticket.id)
        self._unwritten.append(Filed(state, self._now(), ticket, one.tries, answer.detail))
        self._write_answers()
        about = {"ticket": ticket.id, "node": ticket.node, "tries": one.tries, "detail": answer.detail}
        if state is TicketState.SENT:
            log.info("ticket sent", **about)
        else:
            log.error("ticket refused, and not sent again", **about, next=_NEXT)

    def _put_off(self, one: _Open, answer: Answer) -> None:
        waits = self._waits
        wait_s = min(waits.longest_s, waits.first_s * 2 ** min(one.tries - 1, 30))
        wait_s *= 0.5 + 0.5 * random.random()  # noqa: S311 - jitter is no secret
        asked_s = min(answer.after_s, waits.longest_asked_s)
        now_s = time.monotonic()
        one.due_s = now_s + max(wait_s, asked_s)
        self._quiet_until_s = max(self._quiet_until_s, now_s + asked_s)
        log.warning(
            "ticket not sent yet", ticket=one.ticket.id, node=one.ticket.node, tries=one.tries, detail=answer.detail,
            again_in_s=round(max(wait_s, asked_s), 1),
        )  # fmt: skip

    def _write_answers(self) -> bool:
        """Whether the ledger has all answers."""
        if not self._unwritten:
            return True
        try:
            self._ledger.append([ticket_entry(filed) for filed in self._unwritten])
        except LedgerUnavailable as error:
            log.warning("answers to tickets wait for the ledger", count=len(self._unwritten), detail=str(error))
            return False
        self._unwritten.clear()
        return True


def ticket_entry(filed: Filed) -> Entry:
    """How far a ticket has come, as an entry of the ledger: one for each of its states."""
    ticket = filed.ticket
    key = f"ticket/{ticket.id}/{filed.state}"
    return Entry(EntryKind.TICKET, filed.at, encode_body(filed), ticket.id, ticket.node, None, key)


def _read(entry: Entry) -> Filed | None:
    """None for what another version wrote: it is taken for answered."""
    try:
        return decode_body(entry.body, Filed)
    except EntryError as error:
        log.warning("not taken up from before", entry=entry.id, detail=str(error))
        return None
