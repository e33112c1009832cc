"""Lines of one log on their way to a reading: parsed, put in their place, repeats folded. The sources share it.

A new fault is due at once. A repeat of what was told a moment ago, and a place in the log after lines that say nothing,
wait a second for others like them, so a flood costs one small reading a second and no memory. Nothing is forgotten
meanwhile: the place in the log moves on only with the reading.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from daemon.agent.position import Position, Reading
from detectors.events import KernelEvent
from detectors.kernel_assembly import MAX_LINES
from detectors.kernel_log import KernelLogParser
from rules.schema import RuleBook
from rules.vocabulary import EventKind

#: What a source knows of a line beside its text: its number and its time.
M = TypeVar("M")
Key = tuple[object, ...]

HOLD_S = 1.0
#: A reading with so many events is due at once.
MAX_EVENTS = 256
#: Of one fault of one GPU, so many that differ in detail (another process, another register) stand by themselves.
MAX_VARIANTS = 16
#: So many lines may come before the one that completes their statement.
CONTEXT_LINES = MAX_LINES
NOTE_VARIANTS = "others that differ in detail are counted here"
_REMEMBERED = 1024
#: One record is the whole statement, and what it does depends on no other.
_PLAIN = frozenset({EventKind.XID, EventKind.RAS})
_NUMBERED = frozenset({EventKind.XID, EventKind.SXID})
_XID = re.compile(rb"NVRM: Xid \(PCI:[^)]{4,60}\): [0-9]{1,5},")
_SEVERITY = re.compile(rb"\b(?:non)?fatal\b", re.IGNORECASE)
_NUMBER = re.compile(r"0x[0-9a-fA-F_]+|[0-9]+")


@dataclass(slots=True)
class _Group(Generic[M]):
    """Equal events: the first of them, and where the last one stood."""

    event: KernelEvent
    last: M | None
    count: int


class Gathering(Generic[M]):
    """`settle` gives an event its time, boot and source by the mark of its first line; None leaves the event out."""

    def __init__(
        self, rules: RuleBook, node: str, settle: Callable[[KernelEvent, M], KernelEvent | None], hold_s: float = HOLD_S
    ) -> None:
        #: what could not be used, what was left out, and what happened to the log, by name
        self.counts: Counter[str] = Counter()
        self._parser = KernelLogParser(rules, node=node)
        self._settle = settle
        self._hold_s = hold_s
        self._marks: deque[tuple[int, M]] = deque(maxlen=CONTEXT_LINES + 1)
        self._past: deque[tuple[bytes, M]] = deque(maxlen=2 * CONTEXT_LINES)
        self._groups: list[_Group[M]] = []
        #: the groups that a repeat may still join, by what makes events equal
        self._open: dict[Key, _Group[M]] = {}
        self._variants: dict[Key, list[_Group[M]]] = {}
        #: the same by the line itself, which spares its parsing: a flood is one line over and over
        self._same: dict[tuple[Hashable, bytes] | None, _Group[M]] = {}
        #: and by the part of it that names the fault, where there are too many variants of that already
        self._crowded: dict[tuple[Hashable, bytes], _Group[M]] = {}
        self._told_s: dict[Key, float] = {}
        self._last_key: Key | None = None
        self._urgent = False
        self._moved = False
        self._waits_since_s: float | None = None

    def take(self, line: bytes, sequence: int, mark: M, said: tuple[Hashable, bytes] | None = None) -> None:
        """The log's next line; its sequence is higher than those before. `said`: who wrote which text, where known.

        A flood is one line over and over, or one fault in ever new detail: neither is parsed again and again.
        """
        self._moved = True
        self._leave_past()
        group = self._same.get(said)
        if group is None and self._crowded and said is not None:
            group = self._crowded.get((said[0], _fault_text(said[1])))
        if group is not None:
            group.count += 1
            group.last = mark
            return
        for event in self._feed(line, sequence, mark):
            group = self._add(event)
            if group is not None and event.line == self._parser.stats.lines and event.kind in _PLAIN:
                self._remember(said, group)

    def skip(self, line: bytes, mark: M) -> None:
        """A line that was taken in before: a statement that goes on after it may have begun in it."""
        self._past.append((line, mark))

    def move(self, *, at_once: bool = False) -> None:
        """The place in the log is another one now, though no line says anything; `at_once` if it has to be told."""
        self._moved = True
        self._urgent |= at_once

    def lose(self, event: KernelEvent) -> None:
        """A gap in the log, as an event."""
        self.counts["gaps"] += 1
        self._moved = True
        self._leave_past()
        self._urgent |= _fault(event) not in self._told_s
        self._groups.append(_Group(event, None, 1))
        self._close_groups()

    def pause(self) -> None:
        """There is no more for now: events that only wait for their turn have it."""
        self._leave_past()
        for event in self._parser.flush():
            self._add(event)

    @property
    def is_urgent(self) -> bool:
        """Whether something new waits, or more than a reading holds."""
        return self._urgent or len(self._groups) >= MAX_EVENTS

    def rest_s(self, now_s: float) -> float | None:
        """How long until a reading is due, by a monotonic clock; None where there is nothing to tell."""
        self._told_s = {key: told_s for key, told_s in self._told_s.items() if now_s - told_s < 2 * self._hold_s}
        if not self._moved:
            return None
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        return 0.0 if self.is_urgent else max(0.0, self._waits_since_s + self._hold_s - now_s)

    def hand_over(self, position: Position, now_s: float) -> Reading:
        """What was gathered, as a reading that ends at `position`."""
        events: list[KernelEvent] = []
        last_at: dict[int, datetime] = {}
        for group in self._groups:
            event = group.event
            if group.count > 1 and group.last is not None:
                event = replace(event, count=group.count)
                last = self._settle(event, group.last)
                if last is not None and last.at is not None and event.sequence is not None:
                    last_at[event.sequence] = _later(event.at, last.at)
            events.append(event)
            self._tell(_fault(event), now_s)
        boots = {event.boot_id: number for number, event in reversed(list(enumerate(events)))}
        events.sort(key=lambda event: (boots[event.boot_id], event.sequence or 0))
        self._groups = []
        self._close_groups()
        self._urgent = self._moved = False
        self._waits_since_s = None
        return Reading(tuple(events), position, last_at)

    # --------------------------------------------------------------------------------------------------------- parts

    def _feed(self, line: bytes, sequence: int, mark: M) -> Sequence[KernelEvent]:
        stats = self._parser.stats
        malformed, untrusted = stats.malformed, stats.untrusted
        self._marks.append((stats.lines + 1, mark))
        events = self._parser.feed(line, sequence)
        self.counts["malformed"] += stats.malformed - malformed
        self.counts["untrusted"] += stats.untrusted - untrusted
        return events

    def _leave_past(self) -> None:
        """Parse what was skipped last, and leave out all that it says by itself."""
        if self._past:
            for line, mark in self._past:
                self._marks.append((self._parser.stats.lines + 1, mark))
                self._parser.feed(line)
            self._parser.flush()
            self._past.clear()

    def _mark_of(self, line: int) -> M:
        """The mark of a line that was fed lately."""
        return next((mark for number, mark in reversed(self._marks) if number == line), self._marks[0][1])

    def _add(self, event: KernelEvent) -> _Group[M] | None:
        mark = self._mark_of(event.line)
        settled = self._settle(event, mark)
        if settled is None:
            self.counts["too_old"] += 1
            return None
        key = _key(settled)
        if settled.is_boundary and key != self._last_key:
            # What comes after it is news: the same fault again, after a reset, is another one.
            self._close_groups()
            self._told_s.clear()
        self._last_key = key
        group = self._open.get(key) or self._variant(settled)
        if group is None:
            group = self._open[key] = _Group(replace(settled, line=0), mark, settled.count)
            self._groups.append(group)
            self._variants.setdefault(_fault(settled), []).append(group)
            self._urgent |= _fault(settled) not in self._told_s
        else:
            group.count += settled.count
            group.last = mark
        return group

    def _variant(self, event: KernelEvent) -> _Group[M] | None:
        """The group for an event whose fault has come in too many variants already."""
        variants = self._variants.get(_fault(event), [])
        if len(variants) < MAX_VARIANTS:
            return None
        group = variants[-1]
        if NOTE_VARIANTS not in group.event.notes:
            group.event = replace(group.event, notes=(*group.event.notes, NOTE_VARIANTS))
        return group

    def _remember(self, said: tuple[Hashable, bytes] | None, group: _Group[M]) -> None:
        if said is None or group.event.is_boundary:
            return
        if len(self._same) >= _REMEMBERED:
            self._same.clear()
        self._same[said] = group
        if NOTE_VARIANTS in group.event.notes and (fault := _fault_text(said[1])):
            if len(self._crowded) >= _REMEMBERED:
                self._crowded.clear()
            self._crowded[said[0], fault] = group

    def _tell(self, key: Key, now_s: float) -> None:
        if len(self._told_s) < _REMEMBERED:
            self._told_s[key] = now_s

    def _close_groups(self) -> None:
        self._open.clear()
        self._variants.clear()
        self._same.clear()
        self._crowded.clear()


def _key(event: KernelEvent) -> Key:
    """What makes events of one log equal: the fault, its GPU and its detail, but not when and where in the log.

    Numbers in a fault's text are left out, since an address or a time differs at each repeat; those that say something
    are fields of their own.
    """
    text = _NUMBER.sub("#", event.text) if event.kind in _NUMBERED else event.text
    return (
        *_fault(event), event.kind, event.code, event.pci, event.gpu_uuid, event.compute_instance, event.pid,
        event.place, event.registers, event.recovery_value, text,
    )  # fmt: skip


def _fault(event: KernelEvent) -> Key:
    """Which fault it is of which GPU. All that anybody may have written is one."""
    if not event.trusted:
        return (event.boot_id, False)
    return event.boot_id, True, event.kind, event.code, event.pci, event.gpu_instance, event.severity


def _fault_text(text: bytes) -> bytes:
    """The begin of an XID's text, which says its code and GPU, with its severity where it names one; b"" for others."""
    found = _XID.match(text)
    if found is None:
        return b""
    severity = _SEVERITY.search(text, found.end())
    return found[0] + (severity[0].lower() if severity is not None else b"")


def _later(one: datetime | None, other: datetime) -> datetime:
    return other if one is None else max(one, other)
