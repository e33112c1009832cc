"""The journal as a source of the agent: the kernel's entries, by journalctl and its cursors.

A place is the cursor of the last entry that was taken in. journalctl goes on at the next one it has where that entry is
gone, and says nothing, so each start asks for the entry itself first: what comes instead of it comes after a gap.

journald reads /dev/kmsg, and what it missed there it says in an entry of its own; that is a gap too. Only entries of
transport `kernel` and facility 0 are trusted (`detectors.kernel_framing`). The journal may hold several boots.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.agent.clock import BOOT_ID, NOTE_MOVED, Clock, boot_id, dashed, measure
from daemon.agent.gap import gap, reboot_gap
from daemon.agent.gathering import CONTEXT_LINES, HOLD_S, Gathering
from daemon.agent.journalctl import Ended, Follower, Journalctl, Program, Refused
from daemon.agent.position import Position, Reading, SourceError
from detectors.events import KernelEvent
from detectors.kernel_time import from_microseconds, seconds_from_micros
from rules.schema import RuleBook

SOURCE = "journal"
#: "Journal messages have been missed", the id of journald's own word for it (systemd's sd-messages.h).
MISSED = "e9bf28e6e834481bb6f48f548ad13606"
#: The clock of the kernel's stamps is at most so far off (100 parts in a million).
_DRIFT = 1e-4
#: A boot whose first record has a stamp below this is there from its begin.
_BEGIN_S = 1.0
_LONGEST_REST_S = 60.0


class _Fields(msgspec.Struct):
    """What of an entry is needed here. A field that is given twice is an array, hence `object`."""

    cursor: str = msgspec.field(name="__CURSOR")
    realtime: object = msgspec.field(name="__REALTIME_TIMESTAMP", default=None)
    received: object = msgspec.field(name="__MONOTONIC_TIMESTAMP", default=None)
    stamp: object = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default=None)
    transport: object = msgspec.field(name="_TRANSPORT", default=None)
    facility: object = msgspec.field(name="SYSLOG_FACILITY", default=None)
    message: msgspec.Raw = msgspec.field(name="MESSAGE", default=msgspec.Raw(b""))
    message_id: object = msgspec.field(name="MESSAGE_ID", default=None)


class _Entry(NamedTuple):
    """An entry's place and times. `sequence` is unique in its boot, `received_s` and `stamp_s` are since boot."""

    cursor: str
    sequence: int
    boot: str
    realtime: datetime | None
    received_s: float | None
    stamp_s: float | None


_FIELDS = msgspec.json.Decoder(_Fields)


class JournalSource:
    """`since` is where a process before this one stopped, None on the very first start.

    Then only what is younger than `lookback_s` is taken in. `path` is the folder of the journal's files, None for the
    machine's own.
    """

    def __init__(
        self,
        rules: RuleBook,
        node: str,
        since: Position | None,
        *,
        path: Path | None = None,
        lookback_s: float = 0.0,
        program: Program | None = None,
        boot_id_path: Path = BOOT_ID,
        clock: Clock = measure,
        sleep: Callable[[float], None] = time.sleep,
        hold_s: float = HOLD_S,
    ) -> None:
        self._program = program if program is not None else Journalctl(folder=path)
        self._clock = clock
        self._sleep = sleep
        self._gathering: Gathering[_Entry] = Gathering(rules, node, self._settle, hold_s)
        self.counts = self._gathering.counts
        self._boot = boot_id(boot_id_path)
        self._since = since
        self._lookback_s = lookback_s
        #: the place to begin at, once it is known, and the entry that was taken in last since then
        self._begin: Position | None = None
        self._last: _Entry | None = None
        #: the entry that has to come first, since it was taken in; "" where any may
        self._awaited = ""
        #: the entry is gone, and with it its boot: the present one is read from its begin
        self._anew = False
        self._follower: Follower | None = None
        self._spoke = False
        self._failures = 0
        self._rest_until_s = float("-inf")

    def read(self, wait_s: float) -> Reading | None:
        """What is new since the last call; None where nothing came within `wait_s`. Raises SourceError.

        The first reading on the very first start comes at once, so that the place where the log begins can be stored.
        """
        end_s = self._clock().since_boot_s + wait_s
        while True:
            more = self._look()
            now_s = self._clock().since_boot_s
            rest_s = self._gathering.rest_s(now_s)
            if rest_s == 0.0 and (position := self._position()) is not None:
                return self._gathering.hand_over(position, now_s)
            if now_s >= end_s:
                return None
            if not more:
                self._wait(end_s - now_s if rest_s is None else min(end_s - now_s, rest_s))

    def close(self) -> None:
        """End journalctl."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    # --------------------------------------------------------------------------------------------------- the process

    def _look(self) -> bool:
        """Take in what there is, some at a time; False where there is no more for now."""
        if self._follower is None:
            if self._clock().since_boot_s < self._rest_until_s:
                return False
            self._start()
        try:
            lines = self._follower.read() if self._follower is not None else []
        except Ended as ended:
            self._follower = None
            self._stumble(str(ended))
            return False
        for line in lines:
            self._line(line)
        self._gathering.pause()
        return bool(lines)

    def _start(self) -> None:
        try:
            if self._begin is None:
                self._begin = self._first()
            self._spoke = False
            self._awaited = self._last.cursor if self._last is not None else self._begin.cursor
            boot = (f"_BOOT_ID={self._boot.replace('-', '')}",) if self._anew else ()
            at = (f"--cursor={self._awaited}",) if self._awaited and not self._anew else ()
            self._follower = self._program.follow([*at, *_matches(boot)])
        except (Refused, SourceError) as error:
            self._rest()
            raise SourceError(f"the journal cannot be read: {error}") from error

    def _stumble(self, said: str) -> None:
        """The process ended. Once is nothing; where it never said anything, somebody has to know."""
        self.counts["restarts"] += 1
        self._rest()
        if not self._spoke:
            raise SourceError(f"journalctl ended before it said anything: {said}; it is started again")

    def _rest(self) -> None:
        rest_s = min(_LONGEST_REST_S, 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._rest_until_s = self._clock().since_boot_s + rest_s

    def _wait(self, seconds: float) -> None:
        if self._follower is not None:
            self._follower.wait(seconds)
        else:
            self._sleep(seconds)

    # -------------------------------------------------------------------------------------------------- where it begins

    def _first(self) -> Position:
        """The place to begin at; what lies right before it gives its context. Raises Refused, SourceError."""
        since = self._since
        backwards = ("--reverse", f"--lines={2 * CONTEXT_LINES}")
        if since is not None and since.source == SOURCE:
            if since.cursor:
                try:
                    found = self._entries([*backwards, f"--cursor={since.cursor}", *_matches()])
                except Refused:
                    found = []
                self._skip(found)
                is_there = bool(found) and _same(found[0][1].cursor, since.cursor)
                self._anew = not is_there and since.boot_id != self._boot
            return since
        until = self._until(since)
        found = self._entries([*backwards, *until, *_matches()])
        self._skip(found)
        self._gathering.move(at_once=True)
        self._last = found[0][1] if found else None
        return self._position() or Position(SOURCE, boot_id=self._boot, at=self._clock().now)

    def _until(self, since: Position | None) -> tuple[str, ...]:
        """What is older is the past."""
        if since is not None and since.at is not None:
            return (f"--until=@{int(since.at.timestamp())}",)
        if self._lookback_s > 0:
            return (f"--until=@{int(self._clock().now.timestamp() - self._lookback_s)}",)
        return ()

    def _entries(self, arguments: Sequence[str]) -> list[tuple[bytes, _Entry]]:
        lines = self._program.ask(arguments)
        return [(line, entry) for line in lines if (entry := _entry(_fields(line))) is not None]

    def _skip(self, newest_first: Sequence[tuple[bytes, _Entry]]) -> None:
        for line, entry in reversed(newest_first):
            self._gathering.skip(line, entry)

    # ------------------------------------------------------------------------------------------------------- entries

    def _line(self, line: bytes) -> None:
        fields = _fields(line)
        entry = _entry(fields)
        if fields is None or entry is None:
            self.counts["malformed"] += bool(line.strip())
            return
        self.counts["records"] += 1
        self._spoke = True
        if self._awaited:
            awaited, self._awaited, anew, self._anew = self._awaited, "", self._anew, False
            if _same(entry.cursor, awaited):
                return
            if anew and self._is_begin(entry) and self._since is not None:
                self._gathering.lose(reboot_gap(self._since, self._clock().booted, SOURCE))
            elif not _follows(entry, awaited):
                self._lose(entry, "the entries in between are not in the journal any more", max(0, entry.sequence - 1))
        self._failures = 0
        if fields.transport == "driver" and fields.message_id == MISSED:
            said = msgspec.json.decode(fields.message) if fields.message else ""
            self._lose(entry, f"journald says {said!r}", entry.sequence)
        else:
            said = (str(fields.transport), str(fields.facility)), bytes(fields.message).removeprefix(b'"')
            self._gathering.take(line, entry.sequence, entry, said)
        self._last = entry

    def _is_begin(self, entry: _Entry) -> bool:
        """Whether the present boot's log begins with this entry: only the end of another boot's is lost then."""
        return entry.boot == self._boot and entry.stamp_s is not None and entry.stamp_s < _BEGIN_S

    def _lose(self, entry: _Entry, what: str, sequence: int) -> None:
        before = self._position()
        begin = before.at if before is not None else None
        self._gathering.lose(
            gap(begin, self._placed(entry)[0], what, sequence=sequence, boot_id=entry.boot, source=SOURCE)
        )

    def _position(self) -> Position | None:
        """The place after all that was taken in; None before it is known where to begin."""
        last = self._last
        if last is None:
            return self._begin
        return Position(SOURCE, boot_id=last.boot, sequence=last.sequence, cursor=last.cursor, at=self._placed(last)[0])

    def _placed(self, entry: _Entry) -> tuple[datetime, tuple[str, ...]]:
        """The entry's time: by this boot's clock as it is now, else as it was written down, but never later than now.

        journald's own stamp keeps step with the clock that is read here; the kernel's is the earlier one of an entry
        that had to wait for journald.
        """
        moment = self._clock()
        if entry.boot == self._boot and entry.received_s is not None:
            waited = entry.stamp_s is not None and entry.received_s - entry.stamp_s > entry.received_s * _DRIFT
            return moment.place(entry.stamp_s if waited and entry.stamp_s is not None else entry.received_s)
        if entry.realtime is None or entry.realtime > moment.now:
            return moment.now, (NOTE_MOVED,)
        return entry.realtime, ()

    def _settle(self, event: KernelEvent, entry: _Entry) -> KernelEvent:
        at, notes = self._placed(entry)
        return replace(event, at=at, boot_id=entry.boot, source=SOURCE, notes=notes)


def _matches(both: Sequence[str] = ()) -> tuple[str, ...]:
    """The kernel's entries, and what journald says of those that it missed."""
    return (*both, "_TRANSPORT=kernel", "+", *both, "_TRANSPORT=driver", f"MESSAGE_ID={MISSED}")


def _fields(line: bytes) -> _Fields | None:
    try:
        return _FIELDS.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None


def _entry(fields: _Fields | None) -> _Entry | None:
    """The entry's place and times; None for one without a cursor that makes sense."""
    if fields is None:
        return None
    parts = _parts(fields.cursor)
    sequence = _sequence(parts)
    if sequence is None:
        return None
    return _Entry(
        fields.cursor, sequence, dashed(parts.get("b", "")), from_microseconds(fields.realtime),
        seconds_from_micros(fields.received), seconds_from_micros(fields.stamp),
    )  # fmt: skip


def _parts(cursor: str) -> dict[str, str]:
    """`s` is the series of numbers, `i` the number, `b` the boot, `m` and `t` the times, `x` a sum of the content."""
    return dict(part.partition("=")[::2] for part in cursor.split(";"))


def _sequence(parts: dict[str, str]) -> int | None:
    """A number that grows with the boot: when journald got the entry, in microseconds, and the end of its own number.

    The entry's own number alone does not: journald may begin a new series at any time.
    """
    try:
        received_us, number = int(parts["m"], 16), int(parts["i"], 16)
    except (KeyError, ValueError):
        return None
    if not (0 <= received_us < 1 << 48 and number >= 0):
        return None
    return received_us << 14 | number % (1 << 14)


def _same(one: str, other: str) -> bool:
    """Whether two cursors are of one entry; one that moved to another file has another number there."""
    ours, theirs = _parts(one), _parts(other)
    return one == other or all(ours.get(name, "") == theirs.get(name) for name in ("b", "m", "t", "x"))


def _follows(entry: _Entry, cursor: str) -> bool:
    """Whether there is no number between the two in journald's series."""
    ours, theirs = _parts(entry.cursor), _parts(cursor)
    try:
        return ours["s"] == theirs["s"] and int(ours["i"], 16) == int(theirs["i"], 16) + 1
    except (KeyError, ValueError):
        return False
