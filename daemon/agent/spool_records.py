"""What the spool writes down, as values and their JSON: reports, what became of them, and what is known already.

Used by `daemon.agent.spool` and its parts only. Values and pure functions; no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

import msgspec

from daemon.agent.position import Position
from daemon.agent.segments import Item
from daemon.agent.wire import MAX_TEXT, Report
from detectors.events import KernelEvent
from rules.vocabulary import EventKind

T = TypeVar("T")

#: Kinds of records beside the reports: what is known now, a report that stands for more, reports that are let go.
STATE, UPDATE, GONE = b"S", b"U", b"G"
#: A report stands for no more events than this; the controller takes none that says more.
MAX_COUNT = 10**9
#: Numbers in one record of what is let go.
_GONE_AT_ONCE = 200
#: A report's record has so much room for a count and a time that grow, and stays in its length.
_GROWTH = 48
_LONGEST_NAME = 256
#: Of the log that the position is of, the highest sequence of so many boots; of other sources, so many events.
_MARKS, _RECENT = 4, 64
_HEAD_OF_TEXT = 48


class Lost(msgspec.Struct, omit_defaults=True):
    """What the spool could not keep: events by kind, the times between which they were written, broken places."""

    kinds: dict[str, int] = {}
    since: datetime | None = None
    until: datetime | None = None
    broken: int = 0

    def __bool__(self) -> bool:
        return bool(self.kinds or self.broken)

    @property
    def events(self) -> int:
        """How many events."""
        return sum(self.kinds.values())

    def add(self, event: KernelEvent, count: int, last_at: datetime | None) -> None:
        """One more report that is dropped."""
        self.take(Lost({event.kind.value: count}, event.at, later(event.at, last_at)))

    def take(self, other: "Lost") -> None:
        """And what another one says."""
        kinds = self.kinds.keys() | other.kinds.keys()
        self.kinds = {kind: self.kinds.get(kind, 0) + other.kinds.get(kind, 0) for kind in sorted(kinds)}
        times = [at for at in (self.since, other.since) if at is not None]
        self.since = min(times, default=None)
        self.until = later(self.until, other.until)
        self.broken += other.broken

    def text(self) -> str:
        """In a sentence, for the event that tells it."""
        said = []
        if self.kinds:
            by_kind = ", ".join(f"{kind} {count}" for kind, count in self.kinds.items())
            span = f" from {_stamp(self.since)} to {_stamp(self.until)}" if self.since and self.until else ""
            said.append(f"spool full: {self.events} events dropped{span} ({by_kind})")
        if self.broken:
            places = "1 place" if self.broken == 1 else f"{self.broken} places"
            said.append(f"spool broken: {places} could not be read back, what was reported there may be missing")
        return "; ".join(said)


class Kept(msgspec.Struct, omit_defaults=True):
    """A report in the spool. `number` is its place in the order; `lost` is set where it tells what was not kept."""

    number: int
    report: Report
    lost: Lost | None = None


class Update(msgspec.Struct, array_like=True):
    """A report stands for more events now."""

    number: int
    count: int
    last_at: datetime | None


class State(msgspec.Struct, omit_defaults=True):
    """What is known beside the reports, or what of it is new.

    `marks` are the highest sequences of the log by source and boot, `recent` events of other sources.
    """

    position: Position | None = None
    marks: dict[str, int] = {}
    recent: list[str] = []
    next_number: int = 0

    def take(self, other: "State") -> None:
        """What is new."""
        self.position = other.position or self.position
        self.next_number = max(self.next_number, other.next_number)
        for name, mark in other.marks.items():
            self.marks = {one: known for one, known in self.marks.items() if one != name} | {
                name: max(mark, self.marks.get(name, mark))
            }
        self.marks = dict(list(self.marks.items())[-_MARKS:])
        self.recent = list(dict.fromkeys((*self.recent, *other.recent)))[-_RECENT:]

    def knows(self, event: KernelEvent, log: str) -> bool:
        """Whether an event has been in the spool, as far as that is remembered; `log` is the position's source."""
        if event.source == log and event.sequence is not None:
            return event.sequence <= self.marks.get(_boot_of(event), -1)
        return bool(self.recent) and _short(event) in self.recent

    def learn(self, event: KernelEvent, log: str) -> None:
        """An event that is in the spool now."""
        if event.source == log and event.sequence is not None:
            boot = _boot_of(event)
            self.marks[boot] = max(event.sequence, self.marks.get(boot, -1))
        else:
            self.recent.append(_short(event))
            del self.recent[:-_RECENT]


@dataclass(slots=True, eq=False)
class Entry(Item):
    """A report that waits: what has to be at hand of it. The rest is read from the disk when it is asked for.

    `count` and `last_at` are newer than the record's. A sealed one may have been handed out, and never changes again;
    `handed` says how often it was by this process. `before` is an equal one that has to go first.
    """

    number: int = 0
    id: str = ""
    key: bytes = b""
    rough_key: bytes = b""
    trusted: bool = True
    count: int = 1
    last_at: datetime | None = None
    sealed: bool = False
    handed: int = 0
    before: "Entry | None" = None
    lost: Lost | None = None
    is_boundary: bool = False
    is_here: bool = True


def entry_of(kept: Kept) -> Entry:
    """What has to be at hand of a report."""
    report, event = kept.report, kept.report.event
    key, rough = (_digest(report.id), b"") if kept.lost is not None else (exact_key(event), rough_key(event))
    return Entry(
        number=kept.number, id=report.id, key=key, rough_key=rough or key, trusted=event.trusted, count=event.count,
        last_at=report.last_at, lost=kept.lost, is_boundary=event.is_boundary,
    )  # fmt: skip


def exact_key(event: KernelEvent) -> bytes:
    """The same for events that are the same fault again: all but when and where in the log."""
    return _digest((
        event.kind, event.code, event.pci, event.gpu_uuid, event.gpu_instance, event.compute_instance, event.text,
        event.boot_id, event.trusted, event.source,
    ))  # fmt: skip


def rough_key(event: KernelEvent) -> bytes:
    """The same for events of one fault of one GPU that may differ in detail, such as an address or a process.

    What may be forged has the same one whatever it says.
    """
    if not event.trusted:
        return _digest((event.boot_id, event.source, event.kind))
    text = event.text[:_HEAD_OF_TEXT] if event.kind is EventKind.RAS else event.text
    return _digest((
        event.boot_id, event.source, event.kind, event.code, event.pci, event.gpu_uuid, event.gpu_instance,
        event.severity, event.recovery_value, "" if event.kind in (EventKind.XID, EventKind.SXID) else text,
    ))  # fmt: skip


def encoded(kept: Kept, most: int) -> bytes | None:
    """A report's record, with room to grow, in at most so many bytes; None where it cannot be made to fit."""
    return _fitting(kept, most) or _fitting(msgspec.structs.replace(kept, report=_cut(kept.report)), most)


def _fitting(kept: Kept, most: int) -> bytes | None:
    try:
        payload = msgspec.json.encode(kept)
    except UnicodeEncodeError:
        return None
    return payload.ljust(len(payload) + _GROWTH) if len(payload) + _GROWTH <= most else None


def grown(kept: Kept, entry: Entry) -> Kept:
    """The report as it stands now."""
    if kept.report.event.count == entry.count and kept.report.last_at == entry.last_at:
        return kept
    event = replace(kept.report.event, count=entry.count)
    return msgspec.structs.replace(kept, report=replace(kept.report, event=event, last_at=entry.last_at))


def decoded(payload: bytes, kind: type[T]) -> T | None:
    """A record, None where it is none: another version wrote it, or it was damaged beyond its checksum."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (ValueError, RecursionError):
        return None


def repacked(kept: Kept, length: int) -> bytes:
    """The record of a report that has grown, in its old length."""
    return msgspec.json.encode(kept).ljust(length)


def gone_payloads(entries: Sequence[Entry]) -> list[bytes]:
    """Records that say which reports are let go."""
    numbers = [one.number for one in entries]
    return [
        msgspec.json.encode(numbers[begin : begin + _GONE_AT_ONCE]) for begin in range(0, len(numbers), _GONE_AT_ONCE)
    ]


def later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two times, as far as they are known."""
    return one or other if one is None or other is None else max(one, other)


def _cut(report: Report) -> Report:
    """A report whose texts are what UTF-8 can hold, and no longer than the controller takes."""
    event = report.event
    texts = {name: _clean(getattr(event, name)) for name in ("process", "unit", "place", "driver_version")}
    return replace(report, event=replace(event, text=_clean(event.text, MAX_TEXT) or "", notes=(), **texts))  # type: ignore[arg-type]


def _clean(text: str | None, most: int = _LONGEST_NAME) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")[:most]


def _boot_of(event: KernelEvent) -> str:
    return f"{event.source} {event.boot_id}"


def _short(event: KernelEvent) -> str:
    return _digest((event.source, event.boot_id, event.sequence)).hex()[:16]


@lru_cache(maxsize=64)
def _digest(parts: object) -> bytes:
    return blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"
