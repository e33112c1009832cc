"""What the spool lets go of where there is no room for more. Pure, but for the reports that it asks to be read.

Repeats go first, then repeats in all but details: they count in an equal report from then on. Facts go last.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from daemon.agent.segment_format import RECORD_OVERHEAD
from daemon.agent.spool_records import MAX_COUNT, Entry, Kept, Lost, later

#: A report that goes, and the one that it counts in from now on; None where it is dropped.
Victim = tuple[Entry, Entry | None]


@dataclass(slots=True)
class Relief:
    """Reports that go, each with the one that it counts in; what others stand for then; what is dropped for good."""

    gone: dict[Entry, Entry | None] = field(default_factory=dict)
    larger: dict[Entry, tuple[int, datetime | None]] = field(default_factory=dict)
    lost: Lost = field(default_factory=Lost)


def relief(
    entries: Sequence[Entry], most_bytes: int, most_reports: int, read: Callable[[Entry], Kept | None]
) -> Relief:
    """How to get from all reports that wait, oldest first, down to so many bytes and so many reports."""
    size, number = sum(one.length + RECORD_OVERHEAD for one in entries), len(entries)
    found = Relief()
    for entry, into in victims(entries):
        if size <= most_bytes and number <= most_reports:
            break
        kept = read(entry)
        count, last_at = found.larger.get(entry, (entry.count, entry.last_at))
        if into is not None:
            have, known_at = found.larger.get(into, (into.count, into.last_at))
            if have + count > MAX_COUNT:
                continue
            at = kept.report.event.at if kept is not None else None
            found.larger[into] = have + count, later(known_at, last_at or at)
        elif kept is not None:
            found.lost.add(kept.report.event, count, last_at)
        else:
            found.lost.broken += 1
        found.larger.pop(entry, None)
        found.gone[entry] = into
        size -= entry.length + RECORD_OVERHEAD
        number -= 1
    return found


def victims(entries: Sequence[Entry]) -> Iterator[Victim]:
    """What goes where there is no room, oldest first: repeats, then repeats in all but details, then facts.

    Of equal reports that were handed out the first and the last stay; the others count in one. Facts that may be forged
    go before the kernel's own. What tells of losses stays.
    """
    mine = [one for one in entries if one.lost is None]
    gone: set[Entry] = set()
    phases: Iterable[Iterator[Victim]] = (
        _repeats(mine, gone, lambda one: one.key),
        _repeats(mine, gone, lambda one: one.rough_key),
        ((one, None) for one in mine if not one.trusted),
        ((one, None) for one in mine),
    )
    for phase in phases:
        for entry, into in phase:
            if entry not in gone:
                gone.add(entry)
                yield entry, into


def _repeats(entries: Sequence[Entry], gone: set[Entry], key: Callable[[Entry], bytes]) -> Iterator[Victim]:
    here = [one for one in entries if one not in gone]
    last = {key(one): one for one in here}
    first: set[bytes] = set()
    open_: dict[bytes, Entry] = {}
    for one in here:
        name = key(one)
        if not one.sealed:
            into = open_.setdefault(name, one)
            if into is not one:
                yield one, into
        elif name in first and one is not last[name]:
            yield one, None
        first.add(name)
