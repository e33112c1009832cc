"""How far a log was read: the agent's place in it, and what a source gives for a turn. Values only."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from detectors.events import KernelEvent


@dataclass(frozen=True, slots=True)
class Position:
    """All records up to here were taken in. Which fields count depends on the source.

    kmsg: `boot_id` and `sequence` of the last record. journal: `cursor`. file: `inode` and `offset`, the byte after the
    last whole line, and `fingerprint`, a hash of the file's first bytes. A new boot has another `boot_id`. `at` is when
    the last record was written, as far as that is known: what is lost after it was written later.
    """

    source: str
    boot_id: str = ""
    sequence: int = -1
    cursor: str = ""
    inode: int = 0
    offset: int = 0
    fingerprint: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a log gave: events in the log's order, and the place after them.

    A gap in the log is an event of its own among them (EventKind.COVERAGE_LOST). Each event has `boot_id`, `source` and
    a `sequence` that no other event of this boot and source has, and that it has again when it is read again; of one
    boot and source, sequences grow from event to event and from reading to reading. Equal events are one with a count,
    and `last_at` has the time of the last of them by the event's sequence: read again, the same event may have a higher
    count.
    """

    events: tuple[KernelEvent, ...]
    position: Position
    last_at: Mapping[int, datetime] = field(default_factory=dict)


class SourceError(Exception):
    """A log that cannot be read at all. The text says which, why, and what to do."""


class Source(Protocol):
    """One kernel log, read from a position on. `counts` has its records, and what could not be used of it, by name."""

    counts: Counter[str]

    def read(self, wait_s: float) -> Reading | None:
        """What there is; where there is nothing, wait for it up to `wait_s`. None: nothing came. Raises SourceError."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...
