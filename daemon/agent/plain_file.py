"""A plain file as a source of the agent, such as /var/log/kern.log: by inode and offset, over rotation and truncation.

A rotated file is read to its end before the next one, and for as long as the next one is empty, since the writer may
not have noticed yet. A file that was truncated is looked for among the copies beside it (logrotate's `copytruncate`).
What was rotated away unread and cannot be found, or was compressed, is a gap.

A line's time is what it says. One without a time is as old as the look that found it. Of seconds since boot, those that
were written before a reboot lie before it.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from daemon.agent.clock import BOOT_ID, NOTE_MOVED, Clock, boot_id, measure
from daemon.agent.gap import gap
from daemon.agent.gathering import HOLD_S, Gathering
from daemon.agent.position import Position, Reading, SourceError
from daemon.agent.rotation import (
    Older,
    Part,
    find,
    fingerprint,
    grown,
    is_same,
    last_line_end,
    odd,
    open_part,
    present,
    stands,
    written_after,
)
from detectors.events import KernelEvent
from detectors.kernel_framing import read_record
from detectors.kernel_log import MAX_LINE_BYTES
from detectors.kernel_time import Calendar, Stamp
from rules.schema import RuleBook

SOURCE = "file"
NOTE_UNDATED = "no time of its own"
NOTE_BEFORE_BOOT = "written before the reboot, nobody knows when"
#: Between two looks at a file that says nothing.
_LOOK_S = 0.1
_CHUNK_BYTES = 256 * 1024
_CONTEXT_BYTES = 64 * 1024
_BEFORE = timedelta(seconds=1)
#: Seconds since boot that go back by more are another boot's.
_BACKWARDS_S = 1.0
#: A generation that grows with the time has so many seconds, and comes again after two years.
_GENERATION_S, _GENERATIONS = 16, 1 << 22
_KERNEL_STARTS = re.compile(rb"(?:kernel: |\] |^)Linux version [0-9]")
_DIGITS = b"0123456789"
_OURS = (b"NVRM", b"nvidia-nvswitch", b"amdgpu")


class _Mark(NamedTuple):
    """A line. `backlog`: it was there before us. `old_boot`: as far as the lines say, it is of an earlier boot."""

    line: bytes
    backlog: bool
    old_boot: bool
    not_before_s: float


class FileSource:
    """`since` is where a process before this one stopped, None on the very first start.

    Then only what is younger than `lookback_s` and has a date is taken in.
    """

    def __init__(
        self,
        rules: RuleBook,
        node: str,
        since: Position | None,
        *,
        path: Path,
        lookback_s: float = 0.0,
        boot_id_path: Path = BOOT_ID,
        clock: Clock = measure,
        sleep: Callable[[float], None] = time.sleep,
        hold_s: float = HOLD_S,
    ) -> None:
        self._path = path
        self._clock = clock
        self._sleep = sleep
        self._gathering: Gathering[_Mark] = Gathering(rules, node, self._settle, hold_s)
        self.counts = self._gathering.counts
        self._boot = boot_id(boot_id_path)
        self._since = since
        #: the parts that are still to be read, the present one first; none before the log was found
        self._parts: deque[Part] = deque()
        #: the folder and the log when there was nothing after the part that is read
        self._in_vain: tuple[int, Older | None] | None = None
        #: when the last line was written, or from when on it is listened
        self._last_at = since.at if since is not None else self._clock().now
        self._last_line = b""
        self._past_until: datetime | None = None
        if since is None or since.source != SOURCE:
            known = since.at if since is not None else None
            self._past_until = known or self._clock().now - timedelta(seconds=lookback_s)
        self._from_end = self._past_until is not None and lookback_s == 0 and since is None
        self._backlog = True
        #: what was written before the agent's start may be of an earlier boot: its date says so, or the order of lines
        self._old_boot = since is None or since.source != SOURCE or since.boot_id != self._boot
        self._seconds: float | None = None
        self._end_s = 0.0

    def read(self, wait_s: float) -> Reading | None:
        """What is new since the last call; None where nothing came within `wait_s`. Raises SourceError.

        The first reading on the very first start comes at once, so that the place where the log begins can be stored.
        """
        end_s = self._clock().since_boot_s + wait_s
        while True:
            try:
                more = self._look()
            except OSError as error:
                raise SourceError(
                    f"kernel log {self._path} cannot be read: {error.strerror}; check the path and its permissions"
                ) from error
            self._gathering.pause()
            now_s = self._clock().since_boot_s
            rest_s = self._gathering.rest_s(now_s)
            if rest_s == 0.0 and self._past_until is None:
                return self._gathering.hand_over(self._position(), now_s)
            if now_s >= end_s:
                return None
            if not more:
                self._sleep(min(_LOOK_S, end_s - now_s, rest_s or _LOOK_S))

    def close(self) -> None:
        """Give the files back."""
        while self._parts:
            self._parts.popleft().close()

    def _position(self) -> Position:
        part = self._parts[0]
        return Position(
            SOURCE, boot_id=self._boot, sequence=part.sequence, inode=part.inode, offset=part.offset,
            fingerprint=part.print_of, at=self._written_at(),
        )  # fmt: skip

    def _written_at(self) -> datetime | None:
        """When the last line was written, as far as anybody knows."""
        if self._last_line:
            now = self._clock().now
            self._last_at = min(_stamp(self._last_line).at or now, now)
            self._last_line = b""
        return self._last_at

    # ----------------------------------------------------------------------------------------------- which file it is

    def _look(self) -> bool:
        """Take in some of what there is; False where there is no more for now. Raises OSError, SourceError."""
        if not self._parts:
            self._begin()
        part = self._parts[0]
        if self._advance(part):
            return True
        if len(self._parts) > 1:
            self._finish(part)
            return True
        if not stands(part, self._path) and self._follow(part):
            return True
        self._backlog = False
        self._past_until = None
        self._end_s = self._clock().since_boot_s
        return False

    def _begin(self) -> None:
        """Find the place to begin at. Raises OSError, SourceError."""
        since = self._since
        if since is None or since.source != SOURCE:
            part = self._open(0)
            part.generation = self._new_generation()
            if self._from_end:
                part.offset = last_line_end(part.descriptor)
            self._gathering.move(at_once=True)
            self._parts.append(part)
        else:
            self._resume(since)
        self._recall(self._parts[0])

    def _resume(self, since: Position) -> None:
        generation = since.sequence >> 40 if since.sequence >= 0 else 0
        try:
            state = self._path.stat()
        except FileNotFoundError:
            state = None
        if state is not None and state.st_ino == since.inode:
            part = self._open(since.offset, generation)
            part.print_of = since.fingerprint or part.print_of  # whether it is the same file is seen when it is read
            self._parts.append(part)
            return
        found = find(self._path, since.fingerprint, since.offset, since.inode)
        if found is not None:
            self._parts.append(open_part(found, since.offset, generation))
            return
        part = self._open(0)
        lost = Part(-1, since.inode, since.offset, generation)
        part.generation = max(generation + 1, self._new_generation())
        self._lose(lost, f"the part of {self._path.name} that was read last is gone or compressed", _first_at(part))
        self._parts.append(part)

    def _new_generation(self) -> int:
        """Where it is not known what came before: higher than any that was given out some seconds ago."""
        return int(self._clock().now.timestamp()) // _GENERATION_S % _GENERATIONS

    def _open(self, offset: int, generation: int = 0) -> Part:
        """What stands under the path. Raises OSError, SourceError."""
        why = odd(self._path)
        if why:
            raise SourceError(f"kernel log {self._path} cannot be used: {why}")
        return open_part(self._path, offset, generation)

    def _follow(self, part: Part) -> bool:
        """Add the parts that were written after this one, which is not the log any more; False for none yet.

        The log itself is no such part as long as it is empty: its writer may still have the one before. Raises OSError,
        SourceError.
        """
        log, folder = present(self._path), self._path.parent.stat().st_mtime_ns
        if self._in_vain == (folder, log):
            return False
        try:
            found = written_after(part, self._path, log)
        except FileNotFoundError:
            return False  # a rotation is under way
        self.counts["rotations"] += len(found)
        self._parts.extend(found)
        self._in_vain = None if found else (folder, log)
        part.seen = None  # it may have got lines until now
        return bool(found)

    def _cut(self, part: Part) -> None:
        """The file begins anew under the same inode: what was not read of it may be in a copy."""
        self.counts["truncations"] += 1
        copy = find(self._path, part.print_of, part.offset)
        if copy is not None:
            self._parts[0] = open_part(copy, part.offset, part.generation)
            part.close()
            return
        self._lose(part, f"{self._path.name} was truncated and no copy of it is there", self._clock().now)
        part.generation, part.offset = part.generation + 1, 0
        part.print_of, part.seen, part.scanned = fingerprint(part.descriptor), None, 0

    def _lose(self, part: Part, what: str, end: datetime) -> None:
        end, begin = min(end, self._clock().now), self._written_at()
        self._gathering.lose(gap(begin, end, what, sequence=part.sequence, boot_id=self._boot, source=SOURCE))

    # --------------------------------------------------------------------------------------------------------- lines

    def _advance(self, part: Part) -> bool:
        """Take in some more whole lines; False where there are none. Raises OSError."""
        state = os.fstat(part.descriptor)
        if part.seen == (state.st_size, state.st_mtime_ns):
            return False
        if state.st_size < part.offset or not is_same(part.descriptor, part.print_of):
            self._cut(part)
            return True
        part.print_of = grown(part.descriptor, part.print_of)
        data = os.pread(part.descriptor, _CHUNK_BYTES, part.offset)
        nothing = len(data) - len(data.lstrip(b"\0"))  # a writer that did not notice the truncation leaves a hole
        if nothing:
            part.offset += nothing
            return True
        end = data.rfind(b"\n") + 1
        if not end and len(data) == _CHUNK_BYTES:
            end = self._long_line(part, data)
        elif end:
            for line in _lines(data[:end]):
                self._take(line, part.sequence)
                part.offset += len(line)
        if not end:
            part.seen = state.st_size, state.st_mtime_ns
        return bool(end)

    def _long_line(self, part: Part, begin: bytes) -> int:
        """Take in a line that is longer than any of the kernel's, once it has an end; 0 before that."""
        at = max(part.scanned, part.offset + len(begin))
        while chunk := os.pread(part.descriptor, _CHUNK_BYTES, at):
            found = chunk.find(b"\n")
            if found >= 0:
                self._take(begin[: MAX_LINE_BYTES + 1], part.sequence)
                length = at + found + 1 - part.offset
                part.offset += length
                return length
            at += len(chunk)
        part.scanned = at
        return 0

    def _finish(self, part: Part) -> None:
        """Nothing more will come: a last line without an end is a line too."""
        rest = os.pread(part.descriptor, MAX_LINE_BYTES + 1, part.offset)
        if rest:
            self._take(rest, part.sequence)
        self._parts.popleft().close()
        while self._parts[0].lost:
            gone = self._parts.popleft()
            self._lose(gone, gone.lost, gone.until or self._clock().now)
        self._gathering.move()

    def _take(self, line: bytes, sequence: int) -> None:
        self.counts["records"] += 1
        self._last_line = line
        self._gathering.take(line, sequence, self._mark(line), _said(line))

    def _mark(self, line: bytes) -> _Mark:
        if self._old_boot and self._backlog:
            self._see_reboot(line)
        return _Mark(line, self._backlog, self._old_boot and self._backlog, self._end_s)

    def _see_reboot(self, line: bytes) -> None:
        """A kernel that starts, and seconds since boot that go back, are this boot's, and so is all that follows."""
        seconds = _stamp(line).monotonic_s
        if self._since is None or self._since.source != SOURCE:
            return
        back = seconds is not None and (self._seconds is None or seconds < self._seconds - _BACKWARDS_S)
        if back or _KERNEL_STARTS.search(line):
            self._old_boot = False
        self._seconds = seconds if seconds is not None else self._seconds

    def _recall(self, part: Part) -> None:
        """What lies right before the place: a statement may go on after it."""
        begin = max(0, part.offset - _CONTEXT_BYTES)
        if not is_same(part.descriptor, part.print_of) or os.fstat(part.descriptor).st_size < part.offset:
            return
        data = os.pread(part.descriptor, part.offset - begin, begin)
        old_boot = self._old_boot
        for line in _lines(data)[bool(begin) :]:
            self._gathering.skip(line, self._mark(line))
        self._old_boot = old_boot

    # -------------------------------------------------------------------------------------------------------- events

    def _settle(self, event: KernelEvent, mark: _Mark) -> KernelEvent | None:
        moment = self._clock()
        stamp, boot = _stamp(mark.line), self._boot
        notes: tuple[str, ...] = ()
        if stamp.at is not None:
            at, notes = (stamp.at, ()) if stamp.at <= moment.now else (moment.now, (NOTE_MOVED,))
            boot = self._boot if not mark.old_boot or at >= moment.booted else self._boot_before()
        elif stamp.monotonic_s is None:
            at, notes = moment.now, (NOTE_UNDATED,) if mark.backlog else ()
        elif mark.old_boot:
            at, notes, boot = moment.booted - _BEFORE, (NOTE_BEFORE_BOOT,), self._boot_before()
        else:
            at, notes = moment.place(stamp.monotonic_s, mark.not_before_s)
        if self._past_until is not None and (at <= self._past_until or NOTE_UNDATED in notes):
            return None
        return replace(event, at=at, boot_id=boot, source=SOURCE, notes=notes)

    def _boot_before(self) -> str:
        """The boot of lines that are older than this one: that of the last process, else one without a name."""
        known = self._since.boot_id if self._since is not None else ""
        return known if known and known != self._boot else f"before-{self._boot}"


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends. A carriage return ends none: a program's text may have one."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def _stamp(line: bytes) -> Stamp:
    record = read_record(line, Calendar())
    return record.stamp if record is not None else Stamp()


def _said(line: bytes) -> tuple[Hashable, bytes] | None:
    """Who wrote which text, without its time; None where numbers before the text may say who wrote it."""
    found = [at for word in _OURS if (at := line.find(word)) >= 0]
    frame = line[: min(found, default=0)]
    if not found or b"<" in frame or b"{" in frame or b"," in frame[:12]:
        return None
    return frame.translate(None, _DIGITS), line[min(found) :]


def _first_at(part: Part) -> datetime:
    """When a file was begun, as far as its first line says; else when it was changed last."""
    at = _stamp(os.pread(part.descriptor, MAX_LINE_BYTES, 0).partition(b"\n")[0]).at
    return at or datetime.fromtimestamp(os.fstat(part.descriptor).st_mtime, UTC)
