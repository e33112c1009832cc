"""What survives a restart beside the record itself: the newest verdicts, the faults that are open, what was heard.

Kept in the ledger's state table, replaced in the same transaction as a tick's entries, so a restart never finds the one
without the other. Written by `daemon.loop`; `gpuwarden explain` reads the verdicts.

Most GPUs are healthy and stay so. Those are one compact blob that is written when one of them changes; only GPUs that
there is something to tell about are written anew at each tick, and what is told of one outdoes the blob. At 16,384
GPUs that is the difference between 5 MB and some kB.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import msgspec
import structlog

from daemon.ledger import Body, EntryKind, Ledger, decode_body
from detectors.events import KernelEvent
from detectors.fault import Fault
from detectors.findings import GpuState, Incident, Verdict
from remediation.decide import Decision

log = structlog.get_logger()

T = TypeVar("T")

#: Names in the state table.
MOMENT = "moment"
VERDICTS = "verdicts"
CALM = "verdicts_calm"
FAULTS = "faults"
HEARD = "heard"
CREATED = "node_created"

#: Node, index and PCI address of a GPU, for people who know it by its place.
Place = tuple[str, str, str]
_NOWHERE: Place = ("", "", "")


class Remembered(msgspec.Struct, frozen=True):
    """The newest verdicts and what was wrong with the source then ("" for nothing)."""

    at: datetime
    source: str
    verdicts: tuple[Verdict, ...]
    #: by GPU UUID, also of GPUs that are gone and have no verdict
    places: dict[str, Place]


class _Moment(msgspec.Struct, frozen=True):
    at: datetime
    source: str


class _Told(msgspec.Struct, frozen=True):
    verdicts: tuple[Verdict, ...]
    places: dict[str, Place]


class _Calm(msgspec.Struct, frozen=True, array_like=True):
    """A GPU of which there is nothing to tell: healthy, or unknown without a signal."""

    node: str
    gpu: str
    index: str
    pci: str
    state: GpuState
    since: datetime
    confidence: float
    reason: str


_CALM_STATES = (GpuState.HEALTHY, GpuState.UNKNOWN)


class VerdictMemory:
    """Packs a tick's verdicts; remembers what was written last, so that only what changed is written again."""

    def __init__(self) -> None:
        self._written: dict[tuple[str, str], Verdict] = {}
        self._pending: dict[tuple[str, str], Verdict] | None = None

    def pack(
        self, at: datetime, source: str, verdicts: Sequence[Verdict], places: Mapping[str, Place]
    ) -> dict[str, bytes]:
        """The state entries of this tick. The calm GPUs are among them until `written` has been called about them."""
        calm = {(v.node, v.gpu): v for v in verdicts if not v.signals and v.state in _CALM_STATES}
        told = [v for v in verdicts if v.signals or v.state not in _CALM_STATES]
        state = {
            MOMENT: msgspec.json.encode(_Moment(at, source)),
            VERDICTS: msgspec.json.encode(
                _Told(tuple(told), _gone(places, verdicts) | {v.gpu: places[v.gpu] for v in told if v.gpu in places}),
            ),
        }
        self._pending = None
        if not self._says(calm, told):
            rows = [
                _Calm(v.node, v.gpu, *places.get(v.gpu, _NOWHERE)[1:], v.state, v.since, v.confidence, v.reason)
                for v in calm.values()
            ]
            state[CALM] = zlib.compress(msgspec.json.encode(rows), 1)
            self._pending = calm
        return state

    def _says(self, calm: Mapping[tuple[str, str], Verdict], told: Sequence[Verdict]) -> bool:
        """Whether what was written last still says this of the calm GPUs; one that is told of by now may be in it."""
        told_anew = sum((v.node, v.gpu) in self._written for v in told)
        return (
            bool(self._written)
            and len(self._written) == len(calm) + told_anew
            and all(
                (known := self._written.get(key)) is verdict
                or (known is not None and (known.state, known.since) == (verdict.state, verdict.since))
                for key, verdict in calm.items()
            )
        )

    def written(self) -> None:
        """The ledger took what `pack` returned last."""
        if self._pending is not None:
            self._written = self._pending


def _gone(places: Mapping[str, Place], verdicts: Sequence[Verdict]) -> dict[str, Place]:
    """Where GPUs sat that are not there any more: what they did is the past of their slots."""
    if len(places) <= len(verdicts):
        return {}
    there = {verdict.gpu for verdict in verdicts}
    return {gpu: place for gpu, place in places.items() if gpu not in there}


def read_verdicts(ledger: Ledger) -> Remembered | None:
    """The newest verdicts, or None where the daemon has not written any.

    Raises:
        LedgerUnavailable: the ledger cannot be read.
        ValueError: another version of gpuwarden wrote them in another form.
    """
    moment, told, calm = ledger.state(MOMENT), ledger.state(VERDICTS), ledger.state(CALM)
    if moment is None or told is None or calm is None:
        return None
    try:
        plain = msgspec.json.decode(zlib.decompress(calm), type=list[_Calm])
    except zlib.error as error:
        raise ValueError(f"the verdicts in the ledger cannot be unpacked: {error}") from error
    when = msgspec.json.decode(moment, type=_Moment)
    spoken = msgspec.json.decode(told, type=_Told)
    told_of = {(verdict.node, verdict.gpu) for verdict in spoken.verdicts}
    verdicts = [
        *spoken.verdicts,
        *(
            Verdict(c.node, c.gpu, c.state, 0.0, c.since, c.confidence, (), c.reason)
            for c in plain
            if (c.node, c.gpu) not in told_of
        ),
    ]
    places = {c.gpu: (c.node, c.index, c.pci) for c in plain} | spoken.places
    order = {place: rank for rank, place in enumerate(sorted(places.values(), key=_by_place))}
    verdicts.sort(key=lambda v: (v.node, order.get(places.get(v.gpu, _NOWHERE), -1), v.gpu))
    return Remembered(when.at, when.source, tuple(verdicts), places)


def _by_place(place: Place) -> tuple[str, int, str, str]:
    node, index, pci = place
    return node, len(index), index, pci


def pack_faults(faults: Sequence[Fault]) -> bytes:
    """The state entry that lets faults outlive a restart."""
    return msgspec.json.encode(list(faults))


def read_faults(ledger: Ledger) -> list[Fault]:
    """The faults that were open at the last tick. Raises LedgerUnavailable, ValueError."""
    blob = ledger.state(FAULTS)
    return [] if blob is None else msgspec.json.decode(blob, type=list[Fault])


class Mark(msgspec.Struct, frozen=True):
    """How far a log was taken in: the newest time, and which records of exactly that time."""

    at: datetime
    records: tuple[str, ...]


class Heard:
    """How far each kernel log was taken in, so that what is read again after a restart is no news.

    A log file is read from its beginning when the daemon starts. Without this, each restart would count every fault of
    the last hour once more, and a repeat is evidence.
    """

    def __init__(self, marks: Mapping[str, Mark]) -> None:
        self.before = dict(marks)
        self.marks = dict(marks)

    def is_news(self, log: str, event: KernelEvent) -> bool:
        """Whether an event that was read from a log was not taken in before the restart."""
        mark = self.before.get(log)
        if mark is None or event.at is None or event.at > mark.at:
            return True
        return event.at == mark.at and _record(event) not in mark.records

    def take(self, log: str, event: KernelEvent) -> None:
        """The event goes into a tick."""
        mark = self.marks.get(log)
        if event.at is None or (mark is not None and event.at < mark.at):
            return
        same = mark.records if mark is not None and event.at == mark.at else ()
        record = _record(event)
        if record not in same:
            self.marks[log] = Mark(event.at, (*same, record))


def _record(event: KernelEvent) -> str:
    return f"{event.kind} {event.code} {event.pci} {event.place} {event.pid}"


def pack_heard(heard: Heard) -> bytes:
    """The state entry of what was heard."""
    return msgspec.json.encode(heard.marks)


def read_heard(ledger: Ledger) -> Heard:
    """How far the logs were taken in before a restart. Raises LedgerUnavailable, ValueError."""
    blob = ledger.state(HEARD)
    return Heard({} if blob is None else msgspec.json.decode(blob, type=dict[str, Mark]))


def pack_created(created: Mapping[str, datetime]) -> bytes:
    """The state entry that says since when the cluster has each node: another one of an old name is told from it."""
    return msgspec.json.encode(created)


def read_created(ledger: Ledger) -> dict[str, datetime]:
    """Since when the cluster has each node, as far as anybody has looked. Raises LedgerUnavailable, ValueError."""
    blob = ledger.state(CREATED)
    return {} if blob is None else msgspec.json.decode(blob, type=dict[str, datetime])


@dataclass(frozen=True, slots=True)
class Before:
    """What the ledger knows from before a restart; `at` is when the last tick was recorded."""

    at: datetime | None = None
    verdicts: tuple[Verdict, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    incidents: tuple[Incident, ...] = ()
    decisions: tuple[Decision, ...] = ()
    heard: Heard = field(default_factory=lambda: Heard({}))

    @staticmethod
    def read(ledger: Ledger) -> "Before":
        """All of it. What another version wrote in another form is left out and logged: the next ticks find it anew.

        Raises LedgerUnavailable.
        """
        incidents = _each(ledger.open_incidents(), Incident)
        newest = [newest_decision(ledger, incident.id) for incident in incidents]
        remembered = _or_none("verdicts", lambda: read_verdicts(ledger))
        return Before(
            at=None if remembered is None else remembered.at,
            verdicts=() if remembered is None else remembered.verdicts,
            places={} if remembered is None else remembered.places,
            faults=tuple(_or_none("faults", lambda: read_faults(ledger)) or ()),
            incidents=tuple(incidents),
            decisions=tuple(_each([body for body in newest if body is not None], Decision)),
            heard=_or_none("heard", lambda: read_heard(ledger)) or Heard({}),
        )


def newest_decision(ledger: Ledger, incident: str) -> Body | None:
    """The newest decision that names this incident, be it to act on it or to give a node back after it.

    Raises LedgerUnavailable.
    """
    found = ledger.entries(kind=EntryKind.DECISION, incident=incident, newest_first=True, limit=1)
    return next((entry.body for entry in found), None)


def _each(bodies: Sequence[Body], kind: type[T]) -> list[T]:
    found = [_or_none(kind.__name__, lambda body=body: decode_body(body, kind)) for body in bodies]  # type: ignore[misc]
    return [one for one in found if one is not None]


def _or_none(what: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except ValueError as error:
        log.warning("not taken up from before", what=what, detail=str(error))
        return None
