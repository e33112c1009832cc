"""The ledger as the hands and the gates use it: attempts with their outcomes, and what people have said.

Read once when this process begins to act, kept up to date by what it writes itself; only people's words come from
elsewhere, and are looked for at each tick.
"""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
import structlog

from daemon.ledger import Entry, EntryError, EntryKind, Ledger, LedgerUnavailable, decode_body, encode_body
from remediation.breaker import BreakerState, TakenOut
from remediation.limits import Attempt, Ending
from remediation.operations import Operation, Result
from remediation.people import Said, Saying
from remediation.record import RecordUnavailable
from remediation.restoring import Restart, Stage
from rules.vocabulary import Action

log = structlog.get_logger()

#: The name of the breaker's state in the ledger.
BREAKER = "breaker"
#: Incidents that one question to the ledger names at most.
_ASKED_AT_ONCE = 200
#: Who an attempt is about: incident, node, action.
Thing = tuple[str, str, Action]


@dataclass(frozen=True, slots=True)
class Written:
    """An attempt as it stands in the ledger; `number` counts those of the same incident, node and action from 1."""

    incident: str
    node: str
    action: Action
    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An outcome as it stands in the ledger."""

    incident: str
    node: str
    action: Action
    number: int
    ending: Ending
    detail: str


class Journal:
    """One process' view of attempts and words. Safe to use from many threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        #: by number, in the order of the ledger
        self._attempts: dict[Thing, dict[int, Attempt]] = {}
        self._unwritten: deque[Entry] = deque()
        self._sayings: list[Saying] = []
        self._last_word = 0
        self._over: dict[str, datetime] = {}
        self._endings: Counter[tuple[Action, Ending]] = Counter()
        self._in_order: tuple[Attempt, ...] | None = None
        self._restarts: dict[str, Restart] = {}
        self._restarted: list[Restart] = []
        self._operations: dict[str, Operation] = {}
        #: the newest number of each attempt in the ledger, for the incidents that were asked about
        self._numbers: dict[str, dict[Thing, int]] = {}

    def read(self, since: datetime) -> None:
        """Take up the attempts since then, and all that people have said. Raises LedgerUnavailable."""
        kinds = (EntryKind.ATTEMPT, EntryKind.OUTCOME, EntryKind.RESTART, EntryKind.OPERATION)
        entries = list(self._ledger.entries(kind=kinds, since=since))
        with self._lock:
            self._attempts.clear()
            self._numbers.clear()
            self._restarts.clear()
            self._operations.clear()
            self._in_order = None
            for entry in entries:
                self._take(entry)
        self.listen()

    def listen(self) -> int:
        """Read what people have said since the last call, and say how much it was. Raises LedgerUnavailable."""
        before = len(self._sayings)
        for entry in self._ledger.entries(kind=EntryKind.HUMAN, after_id=self._last_word):
            self._last_word = entry.id
            try:
                saying = decode_body(entry.body, Saying)
            except EntryError as error:
                log.warning("a person's word is not understood", entry=entry.id, detail=str(error))
                continue
            with self._lock:
                self._sayings.append(saying)
        return len(self._sayings) - before

    @property
    def said(self) -> Said:
        """What people have said, as far as it was read."""
        with self._lock:
            return Said.of(self._sayings)

    def history(self) -> tuple[Attempt, ...]:
        """All attempts that are known, oldest first."""
        with self._lock:
            if self._in_order is None:
                every = (one for several in self._attempts.values() for one in several.values())
                self._in_order = tuple(sorted(every, key=lambda one: (one.at, one.node, one.incident, one.action)))
            return self._in_order

    def over(self, incidents: Collection[str]) -> dict[str, datetime]:
        """When those of these incidents ended of which the ledger says that they have. Raises LedgerUnavailable."""
        for incident in set(incidents) - self._over.keys():
            closed = next(self._ledger.entries(kind=EntryKind.INCIDENT_CLOSED, incident=incident, limit=1), None)
            if closed is not None:
                self._over[incident] = closed.at
        return {incident: self._over[incident] for incident in incidents if incident in self._over}

    def take_endings(self) -> Counter[tuple[Action, Ending]]:
        """How many attempts have ended how since the last call."""
        with self._lock:
            taken, self._endings = self._endings, Counter()
        return taken

    def take_restarted(self) -> list[Restart]:
        """The restarts that have ended since the last call."""
        with self._lock:
            taken, self._restarted = self._restarted, []
        return taken

    # ------------------------------------------------------------------------------------------------ `Record`

    def pending(self) -> tuple[Attempt, ...]:
        """The attempts that have begun and not ended, oldest first."""
        return tuple(one for one in self.history() if one.ending is Ending.PENDING)

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Write that these begin; where they have all begun before, see that the ledger can be written all the same.

        Raises RecordUnavailable.
        """
        with self._lock:
            new = [one for one in attempts if not self._is_pending(one)]
            if not new and not self._unwritten:
                self._check()
            self._look_back({one.incident for one in new})
            fresh = [(one, self._next_number(one)) for one in new]
            self._append([_entry(one, number) for one, number in fresh])
            for one, number in fresh:
                self._attempts.setdefault(_thing(one), {})[number] = one
            self._in_order = None

    def end(self, endings: Iterable[tuple[Attempt, Ending, str]], at: datetime) -> None:
        """Write how the newest attempts at these ended, as one; an ended one stays as it is."""
        told = []
        with self._lock:
            for attempt, ending, detail in endings:
                if self._is_pending(attempt):
                    self._unwritten.append(self._ended(attempt, ending, detail, at))
                    told.append((attempt, ending, detail))
            try:
                self._append([])
            except RecordUnavailable as error:
                log.warning("outcomes wait for the ledger", count=len(told), detail=str(error))
        for attempt, ending, detail in told:
            level = log.info if ending in (Ending.DONE, Ending.SKIPPED) else log.warning
            level(
                "outcome", incident=attempt.incident, node=attempt.node, action=attempt.action.value,
                ending=ending.value, detail=detail,
            )  # fmt: skip

    def restarts(self) -> dict[str, Restart]:
        """The restarts of jobs that are known, by id, as they were written last."""
        with self._lock:
            return dict(self._restarts)

    def note(self, restarts: Sequence[Restart]) -> None:
        """Write how far these restarts have come. Raises RecordUnavailable."""
        with self._lock:
            self._append([restart_entry(one) for one in restarts])
            self._restarts |= {one.id: one for one in restarts}
            self._restarted += [one for one in restarts if one.moves and not one.stage.is_open]
        for one in restarts:
            told = log.warning if one.stage is Stage.FAILED else log.info
            told("restart", id=one.id, job=str(one.job), stage=one.stage.value, level=one.level, detail=one.detail)

    def operations(self) -> dict[str, Operation]:
        """The work on nodes themselves that is known, by id, as it was written last."""
        with self._lock:
            return dict(self._operations)

    def note_operation(self, operation: Operation) -> None:
        """Write how far it has come. Raises RecordUnavailable."""
        with self._lock:
            self._append([operation_entry(operation)])
            self._operations[operation.id] = operation
        told = log.info if operation.is_open or operation.result is Result.PASSED else log.warning
        result = operation.result.value if operation.result is not None else "under way"
        told("operation", id=operation.id, node=operation.node, result=result, detail=operation.detail)

    def say(self, sayings: Sequence[Saying]) -> None:
        """Write what somebody said; it counts from the next `listen` on. Raises RecordUnavailable."""
        with self._lock:
            self._append([entry_of(saying) for saying in sayings])

    def write_waiting(self) -> bool:
        """Try again to write outcomes that the ledger did not take; whether none waits any more."""
        with self._lock:
            try:
                self._append([])
            except RecordUnavailable:
                return False
            return True

    # --------------------------------------------------------------------------- with the lock held

    def _ended(self, attempt: Attempt, ending: Ending, detail: str, at: datetime) -> Entry:
        several = self._attempts[_thing(attempt)]
        number = max(several)
        several[number] = replace(several[number], ending=ending)
        self._in_order = None
        body = Ended(attempt.incident, attempt.node, attempt.action, number, ending, detail)
        self._endings[attempt.action, ending] += 1
        key = f"outcome/{_name(attempt)}/{number}"
        return Entry(EntryKind.OUTCOME, at, encode_body(body), attempt.incident, attempt.node, None, key)

    def _append(self, entries: Sequence[Entry]) -> None:
        """The outcomes that wait, then these, as one."""
        whole = [*self._unwritten, *entries]
        if not whole:
            return
        try:
            self._ledger.append(whole)
        except LedgerUnavailable as error:
            raise RecordUnavailable(str(error)) from error
        self._unwritten.clear()

    def _check(self) -> None:
        try:
            self._ledger.check_writable()
        except LedgerUnavailable as error:
            raise RecordUnavailable(str(error)) from error

    def _is_pending(self, attempt: Attempt) -> bool:
        several = self._attempts.get(_thing(attempt))
        return several is not None and several[max(several)].ending is Ending.PENDING

    def _look_back(self, incidents: Collection[str]) -> None:
        """Learn how often something was begun for these incidents before what was read at the start."""
        unknown = sorted(set(incidents) - self._numbers.keys())
        for start in range(0, len(unknown), _ASKED_AT_ONCE):
            some = unknown[start : start + _ASKED_AT_ONCE]
            found: dict[str, dict[Thing, int]] = {incident: {} for incident in some}
            try:
                entries = list(self._ledger.entries(kind=EntryKind.ATTEMPT, incident=some))
            except LedgerUnavailable as error:
                raise RecordUnavailable(str(error)) from error
            for entry in entries:
                try:
                    begun = decode_body(entry.body, Written)
                except EntryError:
                    continue  # it was said when the journal was read
                thing = begun.incident, begun.node, begun.action
                found[begun.incident][thing] = max(begun.number, found[begun.incident].get(thing, 0))
            self._numbers |= found

    def _next_number(self, attempt: Attempt) -> int:
        """One that no earlier attempt at this has in the ledger, where an equal one would be taken for the same."""
        thing = _thing(attempt)
        before = self._numbers[attempt.incident].get(thing, 0)
        return max(max(self._attempts.get(thing, {}), default=0), before) + 1

    def _take(self, entry: Entry) -> None:
        try:
            if entry.kind is EntryKind.RESTART:
                restart = decode_body(entry.body, Restart)
                self._restarts[restart.id] = restart
                return
            if entry.kind is EntryKind.OPERATION:
                operation = decode_body(entry.body, Operation)
                self._operations[operation.id] = operation
                return
            if entry.kind is EntryKind.ATTEMPT:
                begun = decode_body(entry.body, Written)
                one = Attempt(entry.at, begun.incident, begun.node, begun.action, Ending.PENDING)
                self._attempts.setdefault(_thing(one), {})[begun.number] = one
                return
            ended = decode_body(entry.body, Ended)
        except EntryError as error:
            log.warning("not taken up from before", entry=entry.id, detail=str(error))
            return
        several = self._attempts.get((ended.incident, ended.node, ended.action), {})
        if ended.number in several:
            several[ended.number] = replace(several[ended.number], ending=ended.ending)


def entry_of(saying: Saying) -> Entry:
    """A person's word as an entry of the ledger."""
    incident = saying.incidents[0] if saying.incidents else None
    return Entry(EntryKind.HUMAN, saying.at, encode_body(saying), incident, saying.node or None)


def restart_entry(restart: Restart) -> Entry:
    """How far a restart has come, as an entry of the ledger."""
    key = f"restart/{restart.id}/{restart.stage}/{restart.level}/{restart.at.isoformat()}"
    return Entry(EntryKind.RESTART, restart.at, encode_body(restart), restart.incident, restart.node, None, key)


def operation_entry(operation: Operation) -> Entry:
    """How far work on a node has come, as an entry of the ledger."""
    key = f"operation/{operation.id}/{operation.created}/{operation.result}"
    body = encode_body(operation)
    return Entry(EntryKind.OPERATION, operation.at, body, operation.incident, operation.node, None, key)


def _entry(attempt: Attempt, number: int) -> Entry:
    body = Written(attempt.incident, attempt.node, attempt.action, number)
    key = f"attempt/{_name(attempt)}/{number}"
    return Entry(EntryKind.ATTEMPT, attempt.at, encode_body(body), attempt.incident, attempt.node, None, key)


def _thing(attempt: Attempt) -> Thing:
    return attempt.incident, attempt.node, attempt.action


def _name(attempt: Attempt) -> str:
    return f"{attempt.incident}/{attempt.node}/{attempt.action}"


class BreakerMemory(msgspec.Struct, frozen=True):
    """What of the circuit breaker survives a restart."""

    state: BreakerState
    taken: tuple[TakenOut, ...]


def read_breaker(ledger: Ledger) -> BreakerMemory:
    """The circuit breaker as it was left. Raises LedgerUnavailable, ValueError."""
    blob = ledger.state(BREAKER)
    return BreakerMemory(BreakerState(), ()) if blob is None else msgspec.json.decode(blob, type=BreakerMemory)
