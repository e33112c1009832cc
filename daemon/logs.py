"""Kernel-log files as a source of events: whole files for an audit, followed files for the live loop.

Files are read as streams; repeats within a tick become one event with a count, so a flood of 800,000 equal lines
costs no memory. A time that a record does not have is taken from what is known about its node's boots.
"""

import heapq
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from daemon.plain_text import why_no_text
from detectors.events import KernelEvent
from detectors.kernel_framing import read_record
from detectors.kernel_log import MAX_LINE_BYTES, KernelLogParser, LogStats, bounded_lines
from detectors.kernel_time import Calendar
from rules.schema import RuleBook
from rules.vocabulary import EventKind

_MONOTONIC = re.compile(rb"^(?:<\d+>|kern\s*:\w+\s*:\s*)?\[\s*(\d+)(?:\.\d+)?\]|^\d+,\d+,(\d+),")
#: Events by what makes them equal; `fold` fills it and `in_order` reads it.
Folded = dict[tuple[object, ...], KernelEvent]

#: Seconds since boot that go back by more than this belong to the next boot.
_BACKWARDS_S = 60.0
#: What is only known to lie before a boot is put this long before it.
_BEFORE = timedelta(seconds=1)
#: A machine that has been up for a century has a broken stamp.
_LONGEST_UPTIME_S = 3.2e9
#: Enough of a file to tell what it is.
_HEAD_BYTES = 16
#: A log that tells no absolute time in so many lines tells none.
_LINES_TO_A_DATE = 100
#: Events of one log that are held to put them in order.
_LOOK_AHEAD = 256


class LogSourceError(Exception):
    """A kernel log that cannot be read: which file, why, and what to do."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One node's log."""

    node: str
    path: Path


def parse_log_option(text: str) -> LogFile:
    """`NODE=FILE` from the command line. Raises ValueError."""
    node, equals, path = text.partition("=")
    if not (node and equals and path):
        raise ValueError(f"expected NODE=FILE, got {text!r}")
    return LogFile(node, Path(path))


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> LogSourceError:
    """The error for a log that the system would not give us."""
    return LogSourceError(f"kernel log {path} cannot be read: {error.strerror}; check the path and its permissions")


def read_log(
    log: LogFile, rules: RuleBook, *, boots: Sequence[datetime], start: datetime, end: datetime, counts: Counter[str]
) -> Iterator[KernelEvent]:
    """The events of a whole file with times, in the file's order.

    `boots` are the node's boot times in ascending order; stretches of seconds-since-boot are matched with them from
    the end, and a stretch before the first of them lies before it. Records without any time take the time of the
    record before them and are counted as `undated`.
    Raises LogSourceError.
    """
    stretches = _stretches(log)
    last_at = start
    stretch = 0
    with _open(log.path) as stream:
        parser = KernelLogParser(rules, node=log.node, now=end + timedelta(days=1))
        for event in _events(parser, bounded_lines(stream)):
            while stretch + 1 < len(stretches) and event.line >= stretches[stretch + 1]:
                stretch += 1
            at, notes = event.at, event.notes
            if at is None and event.monotonic_s is not None and boots:
                which = len(boots) - max(1, len(stretches)) + stretch
                at = boots[which] + _span(event.monotonic_s) if which >= 0 else boots[0] - _BEFORE
            if at is None:
                counts["log_undated"] += 1
                at, notes = last_at, (*notes, "no time of its own")
            last_at = at
            yield replace(event, at=at, notes=notes)
        _count(counts, parser.stats, LogStats())


def _span(monotonic_s: float) -> timedelta:
    return timedelta(seconds=min(monotonic_s, _LONGEST_UPTIME_S))


def _count(counts: Counter[str], stats: LogStats, told: LogStats) -> None:
    """Add to `counts` what `stats` has more than what was told before."""
    for name in ("lines", "malformed", "truncated", "untrusted", "folded", "clamped"):
        counts[f"log_{name}"] += getattr(stats, name) - getattr(told, name)


def _events(parser: KernelLogParser, lines: Iterable[bytes]) -> Iterator[KernelEvent]:
    for line in lines:
        yield from parser.feed(line)
    yield from parser.flush()


def _stretches(log: LogFile) -> list[int]:
    """Line numbers (1-based) at which a stretch of seconds-since-boot begins; empty for a log without them."""
    starts: list[int] = []
    before = float("inf")
    with _open(log.path) as stream:
        for number, line in enumerate(bounded_lines(stream), 1):
            found = _MONOTONIC.match(line)
            if found is None:
                continue
            seconds = float(found[1]) if found[1] is not None else float(found[2]) / 1e6
            if not starts or seconds < before - _BACKWARDS_S:
                starts.append(number)
            before = seconds
    return starts


class _LookAhead:
    """One log's events in the order of their times, as far as a bounded look ahead can put them in order.

    A single record from a clock that was wrong must not hold back all that follow it.
    """

    def __init__(self, source: Iterator[KernelEvent]) -> None:
        self._source = source
        self._held: list[tuple[float, int, KernelEvent]] = []
        self._taken = 0

    def until(self, end_s: float) -> Iterator[KernelEvent]:
        """Events up to a moment (unix seconds) that were not handed out yet."""
        while True:
            for event in islice(self._source, _LOOK_AHEAD - len(self._held)):
                self._taken += 1
                at_s = event.at.timestamp() if event.at is not None else float("-inf")
                heapq.heappush(self._held, (at_s, self._taken, event))
            if not self._held or self._held[0][0] > end_s:
                return
            yield heapq.heappop(self._held)[2]


class EventQueue:
    """Events of several logs, handed out tick by tick in the order of their times. Nothing is read before the first."""

    def __init__(self, sources: Mapping[str, Iterator[KernelEvent]]) -> None:
        self._sources = [_LookAhead(source) for source in sources.values()]

    def until(self, end: datetime) -> list[KernelEvent]:
        """All events up to `end` that were not handed out yet, repeats folded. Raises what the logs raise."""
        folded: Folded = {}
        for source in self._sources:
            for event in source.until(end.timestamp()):
                fold(folded, event)
        return in_order(folded)


def fold(into: Folded, event: KernelEvent) -> None:
    """Add an event; of its equals within a minute, only the first and the last stand, the last with the others' count.

    Equal is the same place, code and process (registers may differ). What an event does depends on what came before it
    (a reset ends the fault before it and not the one after), and first and last are enough to end in the same state.
    """
    seconds = event.monotonic_s if event.at is None else event.at.timestamp()
    minute = None if seconds is None else seconds // 60
    key = (
        event.node, event.kind, event.code, event.pci, event.gpu_instance, event.place, event.pid, event.trusted,
        event.recovery_value, event.gpu_uuid, event.severity, event.source, event.boot_id,
        _told_in_words(event), minute,
    )  # fmt: skip
    if key not in into:
        into[key] = event
        return
    again = (*key, "again")
    before = into.pop(again, None)
    into[again] = event if before is None else replace(event, count=event.count + before.count)


def _told_in_words(event: KernelEvent) -> str:
    """What only the text tells: which AMD fault it is, and which stretch of a log is lost."""
    match event.kind:
        case EventKind.RAS:
            return event.text[:48]
        case EventKind.COVERAGE_LOST:
            return event.text
        case _:
            return ""


def in_order(folded: Folded) -> list[KernelEvent]:
    """The folded events by time; those without one come as they were read, last."""
    return sorted(folded.values(), key=lambda e: (e.at is None, e.at or _NEVER, e.node, e.line))


_NEVER = datetime.max.replace(tzinfo=UTC)


class FollowedLog:
    """A file that is being written: new lines at each call; rotation and truncation are seen and counted.

    Events come as the file says them: the time of those without one is the reader's to know (`daemon.hearing`). What a
    file holds when it is opened may begin boots ago; seconds since an earlier boot are left out, since they would be
    taken for this one's.
    """

    def __init__(self, log: LogFile, rules: RuleBook, counts: Counter[str]) -> None:
        self.log = log
        self.path = os.fspath(log.path)
        self._rules = rules
        self._counts = counts
        #: what stood under the path at the last look
        self._seen: tuple[int | None, int, int] | None = None
        self._stream: BinaryIO | None = None
        self._inode: int | None = None
        self._parser = KernelLogParser(rules, node=log.node)
        self._told = LogStats()
        self._partial = b""
        self._skipping = False
        #: when the oldest dated record of the present file was written
        self.begins_at: datetime | None = None

    def read(self) -> list[KernelEvent]:
        """Events of the lines that are complete now, in the file's order. Raises LogSourceError.

        Between the two steps of a rotation there may be no file; what was written to the old one comes all the same.
        """
        try:
            return self._look()
        except OSError as error:
            raise unreadable(self.log.path, error) from error
        finally:
            _count(self._counts, self._parser.stats, self._told)
            self._told = replace(self._parser.stats)

    def close(self) -> None:
        """Give the file back."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _look(self) -> list[KernelEvent]:
        state = inode, size, _ = self._state()
        if state == self._seen and inode is not None:
            return []  # with thousands of logs, nearly every look ends here
        self._seen = None
        events = self._since(inode, size)
        self._seen = state
        return events

    def _since(self, inode: int | None, size: int) -> list[KernelEvent]:
        """What came since the last look that went well."""
        if self._stream is None:
            return self._open_anew()
        if inode == self._inode and size < self._stream.tell():
            self._counts["log_truncations"] += 1
            return self._open_anew()
        if inode in (self._inode, None):
            return self._news(self._stream)
        # The old file may have got lines between the last look and the rename.
        self._counts["log_rotations"] += 1
        news = self._news(self._stream)
        if self._partial:
            news += [*self._parser.feed(self._partial), *self._parser.flush()]
        return news + self._open_anew()

    def _state(self) -> tuple[int | None, int, int]:
        """Inode, size and time of change of what stands under the path now; no inode where nothing does."""
        try:
            state = os.stat(self.path)  # noqa: PTH116 - a Path is three times slower, and this is asked all the time
        except FileNotFoundError:
            return None, 0, 0
        return state.st_ino, state.st_size, state.st_mtime_ns

    def _open_anew(self) -> list[KernelEvent]:
        require_text(self.log)
        self.begins_at = begins_at(self.log)
        stretches = _stretches(self.log)
        this_boot = stretches[-1] if stretches else 0
        stream = _open(self.log.path)
        self.close()
        self._stream, self._inode = stream, os.fstat(stream.fileno()).st_ino
        _count(self._counts, self._parser.stats, self._told)
        self._parser, self._told = KernelLogParser(self._rules, node=self.log.node), LogStats()
        self._partial, self._skipping = b"", False
        return [replace(event, monotonic_s=None) if event.line < this_boot else event for event in self._news(stream)]

    def _news(self, stream: BinaryIO) -> list[KernelEvent]:
        """Events of whole lines, repeats folded; the beginning of one that is being written is kept, within bounds."""
        events: Folded = {}
        while chunk := stream.readline(MAX_LINE_BYTES + 1):
            if self._skipping:
                self._skipping = not chunk.endswith(b"\n")
                continue
            line, self._partial = self._partial + chunk, b""
            if chunk.endswith(b"\n"):
                self._take(line, events)
            elif len(line) > MAX_LINE_BYTES:
                self._skipping = True
                self._take(line, events)
            else:
                self._partial = line
        for event in self._parser.flush():
            fold(events, event)
        return sorted(events.values(), key=lambda event: event.line)

    def _take(self, line: bytes, into: Folded) -> None:
        for event in self._parser.feed(line):
            fold(into, event)


def require_text(log: LogFile) -> None:
    """Refuse a compressed or UTF-16 file: read as text, it would pass for a healthy node's. Raises LogSourceError."""
    with _open(log.path) as stream:
        odd = why_no_text(stream.read(_HEAD_BYTES))
    if odd:
        raise LogSourceError(f"kernel log {log.path} cannot be used: {odd}")


def begins_at(log: LogFile) -> datetime | None:
    """When the oldest dated record of a log was written; None where the first lines tell no absolute time.

    Raises LogSourceError.
    """
    with _open(log.path) as stream:
        for line in islice(bounded_lines(stream), _LINES_TO_A_DATE):
            record = read_record(line, Calendar())
            if record is not None and record.stamp.at is not None:
                return record.stamp.at
    return None


def utc(seconds: float) -> datetime:
    """An aware time from unix seconds."""
    return datetime.fromtimestamp(seconds, UTC)
