"""What one `add` of the spool changes, before it is on the disk. Pure.

A repeat counts in the report of its equal, as long as that was never handed out. What comes after a boundary (a reset,
a driver's load) is news again, so faults and boundaries stay in the order of the log.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

import msgspec

from daemon.agent.segment_format import RECORD_OVERHEAD
from daemon.agent.segments import KEPT, Record
from daemon.agent.spool_records import (
    MAX_COUNT,
    UPDATE,
    Entry,
    Kept,
    State,
    Update,
    encoded,
    entry_of,
    exact_key,
    grown,
    later,
    repacked,
    rough_key,
)
from daemon.agent.wire import Report

#: What the record of a report that grows needs at most.
_UPDATE_BYTES = 96
#: Of one fault of one GPU, so many reports that differ in detail and were not handed out yet.
MAX_VARIANTS = 4


class Fit(Enum):
    """Whether a draft takes a report: yes, in the next draft, or no record can hold it."""

    YES = auto()
    LATER = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a draft: bytes of all records and of one, and reports that are new."""

    size: int
    record: int
    reports: int


@dataclass(slots=True)
class Index:
    """Reports that others may count in: the newest that waits by its key, and of each fault the variants of it.

    `last_key` is that of the last event that came.
    """

    newest: dict[bytes, Entry] = field(default_factory=dict)
    variants: dict[bytes, list[Entry]] = field(default_factory=dict)
    last_key: bytes = b""

    def forget(self, entry: Entry, into: Entry | None) -> None:
        """A report that goes, and the one that it counts in."""
        if self.newest.get(entry.key) is entry:
            del self.newest[entry.key]
            if into is not None and into.key == entry.key:
                self.newest[entry.key] = into


class Draft:
    """Reports that come into the spool together. `log` is the source whose events come in the order of their sequences.

    Of one fault, so many reports that differ in detail (an address, a process) wait by themselves; the others count in
    the last of them.
    """

    def __init__(self, index: Index, next_number: int, log: str, bounds: Bounds) -> None:
        self._index = index
        self._log = log
        self._bounds = bounds
        self._own = Index(last_key=index.last_key)
        self._is_cut = False
        self._new: dict[Entry, tuple[Kept, bytes]] = {}
        self._grown: dict[Entry, tuple[int, datetime | None]] = {}
        self._ids: set[str] = set()
        self._size = 0
        self.state = State(next_number=next_number)
        self.merged = 0

    @property
    def entries(self) -> Sequence[Entry]:
        """The reports that are new."""
        return tuple(self._new)

    def has(self, report: Report) -> bool:
        """Whether a report of this id was taken."""
        return report.id in self._ids

    def take(self, report: Report) -> Fit:
        """One more."""
        event = report.event
        key = exact_key(event)
        is_cut = event.is_boundary and key != self._own.last_key
        equal = None if is_cut else self._equal(key)
        into = equal if equal is not None and not equal.sealed else None if is_cut else self._variant(rough_key(event))
        fit = self._merge(into, report) if into is not None else None
        if fit is None:
            fit = self._keep(report, key, equal, is_cut=is_cut)
        if fit is Fit.YES:
            self._own.last_key = key
            self._ids.add(report.id)
            self.state.learn(event, self._log)
        return fit

    def records(self) -> list[Record]:
        """What goes to the disk for the reports."""
        found = []
        for entry, (kept, payload) in self._new.items():
            now = grown(kept, entry)
            found.append(Record(KEPT, payload if now is kept else repacked(now, len(payload)), entry))
        for entry, (count, last_at) in self._grown.items():
            found.append(Record(UPDATE, msgspec.json.encode(Update(entry.number, count, last_at))))
        return found

    def commit(self) -> None:
        """It is on the disk: let the reports and the index say so."""
        index = self._index
        for entry, (count, last_at) in self._grown.items():
            entry.count, entry.last_at = count, last_at
        if self._is_cut:
            index.newest.clear()
            index.variants.clear()
        index.newest.update(self._own.newest)
        for rough, entries in self._own.variants.items():
            index.variants[rough] = [*_open(index.variants.get(rough, ())), *entries]
        index.last_key = self._own.last_key

    def _equal(self, key: bytes) -> Entry | None:
        return self._own.newest.get(key) or (None if self._is_cut else self._index.newest.get(key))

    def _variant(self, rough: bytes) -> Entry | None:
        """The report for an event whose fault waits in too many variants already."""
        known = () if self._is_cut else self._index.variants.get(rough, ())
        waiting = [*_open(known), *self._own.variants.get(rough, ())]
        return waiting[-1] if len(waiting) >= MAX_VARIANTS else None

    def _merge(self, entry: Entry, report: Report) -> Fit | None:
        """Let the report count in another one; None where that is not allowed."""
        is_old = entry not in self._new
        now = entry.count, entry.last_at
        count, last_at = self._grown.get(entry, now) if is_old else now
        count += report.event.count
        if entry.sealed or count > MAX_COUNT:
            return None
        last_at = later(last_at, report.last_at or report.event.at)
        if not is_old:
            entry.count, entry.last_at = count, last_at
        elif entry in self._grown or self._has_room(_UPDATE_BYTES):
            self._size += 0 if entry in self._grown else _UPDATE_BYTES
            self._grown[entry] = count, last_at
        else:
            return Fit.LATER
        self._own.newest[entry.key] = entry
        self.merged += 1
        return Fit.YES

    def _keep(self, report: Report, key: bytes, equal: Entry | None, *, is_cut: bool) -> Fit:
        kept = Kept(self.state.next_number, report)
        payload = encoded(kept, self._bounds.record)
        if payload is None:
            return Fit.NEVER
        if not self._has_room(RECORD_OVERHEAD + len(payload)) or len(self._new) >= self._bounds.reports:
            return Fit.LATER
        if is_cut:
            self._is_cut = True
            self._own.newest.clear()
            self._own.variants.clear()
        entry = entry_of(kept)
        entry.before = equal
        self.state.next_number += 1
        self._size += RECORD_OVERHEAD + len(payload)
        self._new[entry] = kept, payload
        self._own.newest[key] = entry
        self._own.variants.setdefault(entry.rough_key, []).append(entry)
        return Fit.YES

    def _has_room(self, size: int) -> bool:
        return not self._size or self._size + size <= self._bounds.size


def _open(entries: Iterable[Entry]) -> list[Entry]:
    return [one for one in entries if one.is_here and not one.sealed]
