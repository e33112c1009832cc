"""Records on a disk, appended and kept until they are let go: the files of the spool.

The files (slots) have all their room on the disk from the start, so a full disk takes nothing away from what is at
work. A slot holds one segment, groups of records (`daemon.agent.segment_format`); a group is on the disk before the
next one is begun. The oldest segment is emptied first: what is still needed of it is written again at the end, and its
slot is used again. One slot is always free for that. So a record may speak of older ones, and is needed no longer than
they are.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from daemon.agent.disk import Disk, SpoolError
from daemon.agent.segment_format import GROUP_OVERHEAD, RECORD_OVERHEAD, Scan, Stored, packed, scan, unpacked, whole

#: A record that is kept, the first one of each segment, and the one that says which segment is the oldest now.
KEPT, HEAD, OLDEST = b"R", b"H", b"O"
_NUMBER = struct.Struct("<Q")
_SLOT = "slot-"
_LARGEST_SLOT, _SMALLEST_SLOT = 1 << 19, 1 << 15
#: One at work and one free, and one more wherever the disk has room for it.
_LEAST_SLOTS, _USUAL_SLOTS = 2, 3
#: With fewer bytes there are too few slots.
LEAST_BYTES = 4 * _SMALLEST_SLOT
#: Room that the word about the oldest segment needs.
_SPARE = 64


@dataclass(slots=True, eq=False)
class Segment:
    """`number` grows with each segment, `end` is the byte after the last group."""

    number: int
    slot: str
    size: int
    end: int = 0
    live: "dict[Item, None]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Item:
    """A record of kind KEPT that stays until it is let go: where its payload stands."""

    segment: Segment | None = None
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """What is appended; with an item where it is to be kept."""

    kind: bytes
    payload: bytes
    item: Item | None = None

    @property
    def size(self) -> int:
        """What it takes."""
        return RECORD_OVERHEAD + len(self.payload)


@dataclass(slots=True)
class Damage:
    """What a recovery could not read: ends that were cut off while they were written, and places within."""

    torn: int = 0
    broken: int = 0


class Owner(Protocol):
    """Whose records they are."""

    def head(self) -> bytes:
        """All that has to be known beside the records that are kept."""
        ...

    def payload(self, item: Item) -> bytes | None:
        """What an item says now; None where it cannot be read: it is let go."""
        ...


class Segments:
    """All slots of one folder. `recover` comes first."""

    def __init__(self, disk: Disk, limit_bytes: int, owner: Owner) -> None:
        self._disk = disk
        self._owner = owner
        self._slot_bytes = max(_SMALLEST_SLOT, min(_LARGEST_SLOT, limit_bytes // 16)) // 4096 * 4096
        self._most_slots = limit_bytes // self._slot_bytes
        self._segments: deque[Segment] = deque()
        self._free: deque[tuple[str, int]] = deque()
        self._number = 0
        self._suspect = 0
        #: bytes of the records that are kept
        self.live_bytes = 0

    # ------------------------------------------------------------------------------------------------------ measures

    @property
    def longest_group(self) -> int:
        """Records of no more bytes are appended as one: all of them, or none."""
        return self._slot_bytes * 3 // 8

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._segments) + len(self._free)

    @property
    def capacity(self) -> int:
        """Bytes of records that may be kept in the present slots."""
        return self._capacity(self.slots)

    @property
    def disk_bytes(self) -> int:
        """What the slots take of the disk."""
        return sum(one.size for one in self._segments) + sum(size for _, size in self._free)

    @property
    def end(self) -> tuple[int, int]:
        """The number of the newest segment that is on the disk, and where it ends."""
        return next(((one.number, one.end) for one in reversed(self._segments) if one.end), (0, 0))

    def _capacity(self, slots: int) -> int:
        """So few that emptying the oldest segments always makes room for a group."""
        tenths = 6 * (slots - 1) if slots > _USUAL_SLOTS else {_USUAL_SLOTS: 11, _LEAST_SLOTS: 4}.get(slots, 0)
        return self._slot_bytes * tenths // 10

    # ------------------------------------------------------------------------------------------------------ recovery

    def recover(self, take: Callable[[Segment, Stored], None], stamp: tuple[int, int]) -> Damage:
        """Read back what is there, in the order in which it was written. Raises SpoolError.

        `stamp` is the `end` that is known to have been reached: what is missing before it is broken, not torn.
        """
        damage = Damage()
        slots = self._read_slots(damage)
        oldest = max((oldest for _, _, oldest in slots.values()), default=0)
        known = [number for number in sorted(slots) if number >= oldest]
        self._number = newest = max([*known, stamp[0]])
        expected = oldest or min(known, default=newest)
        for number in known:
            found, segment, _ = slots[number]
            is_cut = (found.is_ragged and number < newest) or (number == stamp[0] and found.end < stamp[1])
            broken = found.broken + is_cut + (number != expected)
            damage.torn += found.is_ragged and not is_cut
            damage.broken += broken
            if broken or segment.size != self._slot_bytes:
                self._suspect = number
            if found.is_ragged:
                with suppress(SpoolError):  # the next group does it too
                    self._disk.store(segment.slot, found.end, packed(number, found.end, ()))
            self._segments.append(segment)
            self._read_back(segment, found, take)
            expected = number + 1
        if newest and newest not in known:
            damage.broken += 1
            self._suspect = newest
        for number in slots.keys() - set(known):
            found, segment, _ = slots[number]
            damage.torn += found.groups[0] != 0
            self._release(segment.slot, segment.size)
        return damage

    def _read_slots(self, damage: Damage) -> dict[int, tuple[Scan, Segment, int]]:
        """The newest segment of each slot by its number, with the oldest segment's number that it knows of.

        A slot without any is free.
        """
        slots: dict[int, tuple[Scan, Segment, int]] = {}
        for slot in self._disk.names():
            if not (slot.startswith(_SLOT) and slot.removeprefix(_SLOT).isdecimal()):
                continue
            size = self._disk.size(slot)
            data = self._disk.read(slot, 0, size)
            found = scan(data)
            if found is None or found.number in slots:
                damage.torn += any(data[:GROUP_OVERHEAD])
                self._release(slot, size)
                continue
            slots[found.number] = found, Segment(found.number, slot, size, found.end), _oldest_told(data, found)
        return slots

    def _read_back(self, segment: Segment, found: Scan, take: Callable[[Segment, Stored], None]) -> None:
        data = self._disk.read(segment.slot, 0, segment.size)
        for begin in found.groups:
            for record in unpacked(data, begin):
                if record.kind == HEAD:
                    take(segment, replace(record, payload=record.payload[_NUMBER.size :]))
                elif record.kind != OLDEST:
                    take(segment, record)

    def adopt(self, item: Item, segment: Segment, record: Stored) -> None:
        """Keep a record that was read back; an item that stood elsewhere before stands here now."""
        self._place(item, segment, record.offset, len(record.payload))

    def distrust(self, segment: Segment) -> None:
        """A segment has a record that its owner cannot make out."""
        self._suspect = max(self._suspect, segment.number)

    def renew(self) -> None:
        """Write again what could be read of broken segments, and of those from before the limit was changed.

        Raises SpoolFull and SpoolError.
        """
        while self._segments and self._segments[0].number <= self._suspect:
            self._make_ready()
            self._clean()
        self._suspect = 0

    # ---------------------------------------------------------------------------------------------------- using them

    def append(self, records: Sequence[Record]) -> None:
        """On the disk when this returns, as one where they are no longer than `longest_group`.

        Raises SpoolFull and SpoolError; then nothing of the last group was stored.
        """
        group: list[Record] = []
        size = 0
        for one in records:
            if group and size + one.size > self.longest_group:
                self._append(group, size)
                group, size = [], 0
            group.append(one)
            size += one.size
        if group:
            self._append(group, size)

    def read(self, item: Item) -> bytes | None:
        """An item's payload; None where it cannot be read any more."""
        segment = item.segment
        if segment is None:
            return None
        begin = item.offset - RECORD_OVERHEAD
        try:
            return whole(self._disk.read(segment.slot, begin, RECORD_OVERHEAD + item.length))
        except SpoolError:
            return None

    def let_go(self, item: Item) -> None:
        """An item that is needed no longer."""
        if item.segment is not None:
            del item.segment.live[item]
            item.segment = None
            self.live_bytes -= item.length + RECORD_OVERHEAD

    def compact(self) -> None:
        """Give up segments of which nothing or little is needed. Raises SpoolFull and SpoolError."""
        for _ in range(len(self._segments) - 1):
            used = sum(one.end for one in self._segments)
            is_much = used > 4 * self.live_bytes + 2 * self._slot_bytes or self.slots > self._most_slots
            if len(self._segments) == 1 or (self._segments[0].live and not is_much):
                return
            self._clean()

    def grow(self) -> bool:
        """One more slot; False where the limit or the disk allows none."""
        if self.slots >= self._most_slots:
            return False
        try:
            self._make_slot()
        except SpoolError:
            return False
        return True

    def _make_slot(self) -> None:
        taken = set(self._disk.names())
        slot = next(name for number in range(len(taken) + 1) if (name := f"{_SLOT}{number:03d}") not in taken)
        self._disk.make(slot, self._slot_bytes)
        self._free.append((slot, self._slot_bytes))

    def _append(self, group: Sequence[Record], size: int) -> None:
        self._make_ready()
        for _ in range(2 * len(self._segments) + 4):
            if self._room() >= size:
                break
            if len(self._free) > 1:
                self._open_next()
            else:
                self._clean()
        if self._room() < size:
            self._make_slot()  # all of them are full of what is needed, as after the limit was lowered
            self._open_next()
        self._write(group)

    def _make_ready(self) -> None:
        """One slot at work and one free, also after a crash in the midst of freeing one."""
        while self.slots < _LEAST_SLOTS:
            self._make_slot()
        if self.slots < _USUAL_SLOTS:
            self.grow()
        while not self._free:
            if not self.grow():
                self._clean()

    def _room(self) -> int:
        """For records in a group that comes next in the newest segment."""
        if not self._segments:
            return 0
        segment = self._segments[-1]
        head = 0 if segment.end else len(self._owner.head()) + _NUMBER.size + RECORD_OVERHEAD
        return segment.size - segment.end - 2 * GROUP_OVERHEAD - head - _SPARE

    def _open_next(self) -> None:
        if not self._free:
            self._make_slot()  # beyond the limit, until the next slots are free
        slot, size = self._free.popleft()
        self._number += 1
        self._segments.append(Segment(self._number, slot, size))

    def _write(self, group: Sequence[Record]) -> None:
        segment = self._segments[-1]
        if not segment.end:
            head = _NUMBER.pack(self._segments[0].number) + self._owner.head()
            group = [Record(HEAD, head), *group]
        data = packed(segment.number, segment.end, [(one.kind, one.payload) for one in group])
        end = segment.end + len(data)
        self._disk.store(segment.slot, segment.end, data + packed(segment.number, end, ()))
        at = segment.end + GROUP_OVERHEAD
        for one in group:
            at += RECORD_OVERHEAD
            if one.item is not None:
                self._place(one.item, segment, at, len(one.payload))
            at += len(one.payload)
        segment.end = end

    def _place(self, item: Item, segment: Segment, offset: int, length: int) -> None:
        self.let_go(item)
        item.segment, item.offset, item.length = segment, offset, length
        segment.live[item] = None
        self.live_bytes += length + RECORD_OVERHEAD

    def _clean(self) -> None:
        """Free the oldest segment, and those after it of which nothing is needed."""
        oldest = self._segments[0]
        if oldest is self._segments[-1]:
            self._open_next()
        self._move(oldest)
        dead = next(count for count, one in enumerate(self._segments) if one.live or one is self._segments[-1])
        told = Record(OLDEST, _NUMBER.pack(self._segments[dead].number))
        if self._room() + _SPARE < told.size:
            self._open_next()
        self._write([told])
        for _ in range(dead):
            gone = self._segments.popleft()
            self._release(gone.slot, gone.size)
        while len(self._free) > 1 and self.slots > _USUAL_SLOTS:
            if self.slots <= self._most_slots and self.live_bytes > self._capacity(self.slots - 1) // 2:
                break
            self._remove(self._free.pop()[0])

    def _move(self, segment: Segment) -> None:
        """Write again at the end what is needed of a segment."""
        group: list[Record] = []
        room = self._room()
        for item in list(segment.live):
            payload = self._owner.payload(item)
            if payload is None:
                continue
            record = Record(KEPT, payload, item)
            if record.size > room:
                if group:
                    self._write(group)
                    group = []
                self._open_next()
                room = self._room()
            group.append(record)
            room -= record.size
        if group:
            self._write(group)

    def _release(self, slot: str, size: int) -> None:
        """A slot that is free now; one of another size, from before the limit was changed, goes."""
        if size == self._slot_bytes:
            self._free.append((slot, size))
            return
        self._remove(slot)

    def _remove(self, slot: str) -> None:
        with suppress(SpoolError):  # it only takes room
            self._disk.remove(slot)


def _oldest_told(data: bytes, found: Scan) -> int:
    """The highest number of the oldest segment that this one knows of."""
    records = (record for begin in found.groups for record in unpacked(data, begin))
    return max((_NUMBER.unpack_from(one.payload)[0] for one in records if one.kind in (HEAD, OLDEST)), default=0)
