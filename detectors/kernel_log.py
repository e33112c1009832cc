"""A kernel log, line by line, as events: the one entrance to everything that reads logs.

`gpuwarden xid decode`, the audit and the log agent feed it lines of any framing. Memory does not grow with the log, and
no input raises: what cannot be understood is counted in `LogStats`. Class, action and secondary faults are added by
`detectors.classify` and `detectors.secondary`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import BinaryIO

from detectors.events import KernelEvent
from detectors.kernel_assembly import Assembler
from detectors.kernel_framing import Record, read_record
from detectors.kernel_text import Lexicon, Malformed, read_text
from detectors.kernel_time import Calendar
from rules.schema import RuleBook

#: A kernel record is at most some 1,000 characters; whatever comes after this many bytes of a line is dropped.
MAX_LINE_BYTES = 16 * 1024

#: A journal entry whose text is not UTF-8 has it as an array of byte values, where no word can be searched.
_BYTE_ARRAY = re.compile(rb'"MESSAGE"\s*:\s*\[')


@dataclass(slots=True)
class LogStats:
    """What was read and what could not be used, since the parser was made.

    `malformed` records begin like a fault and make no sense; `truncated` lines were longer than MAX_LINE_BYTES;
    `untrusted` events did not come from the kernel; `folded` records belonged to an error counted before; `clamped`
    events had an impossible time.
    """

    lines: int = 0
    events: int = 0
    malformed: int = 0
    truncated: int = 0
    untrusted: int = 0
    folded: int = 0
    clamped: int = 0


class KernelLogParser:
    """Turns the lines of one log into events, in input order.

    `node` is whose log it is ("": the log itself says, or nobody knows). `boot_time`, `now` (aware) and `year` are
    what is known of the machine's clock; see `detectors.kernel_time.Calendar`.
    """

    def __init__(
        self,
        rules: RuleBook,
        *,
        node: str = "",
        boot_time: datetime | None = None,
        now: datetime | None = None,
        year: int | None = None,
    ) -> None:
        self.stats = LogStats()
        self._lexicon = Lexicon.of(rules)
        self._node = node
        self._calendar = Calendar(boot_time, now, year)
        self._assembler = Assembler()

    def feed(self, line: bytes, sequence: int | None = None) -> Sequence[KernelEvent]:
        """Takes the next line, with or without its newline, and returns the events that are complete now.

        `sequence` is the line's number where whoever reads the log gives it one. A statement of several lines has that
        of the line that completes it.
        """
        stats = self.stats
        stats.lines += 1
        if len(line) > MAX_LINE_BYTES:
            stats.truncated += 1
            line = line[:MAX_LINE_BYTES]
        if not _may_matter(line):
            return self._assembler.tick(stats.lines) if self._assembler.waiting else ()
        record = read_record(line, self._calendar)
        if record is not None:
            said = read_text(record.text, self._lexicon, trusted=record.trusted)
            if isinstance(said, Malformed):
                stats.malformed += 1
            elif said is not None:
                done = self._assembler.push(self._placed(said.event, record, sequence), said.part)
                stats.folded = self._assembler.folded
                stats.events += len(done)
                return done
        return self._assembler.tick(stats.lines) if self._assembler.waiting else ()

    def flush(self) -> list[KernelEvent]:
        """The events still held back, at the end of a log or of what there is of it so far; more may be fed later."""
        done = self._assembler.flush()
        self.stats.events += len(done)
        return done

    def _placed(self, event: KernelEvent, record: Record, sequence: int | None) -> KernelEvent:
        at, notes = self._calendar.settle(record.stamp)
        self.stats.untrusted += not event.trusted
        self.stats.clamped += bool(notes)
        return replace(
            event,
            line=self.stats.lines,
            at=at,
            monotonic_s=record.stamp.monotonic_s,
            sequence=record.sequence if sequence is None else sequence,
            node=self._node or record.node,
            boot_id=record.boot_id,
            source=record.source,
            notes=notes,
        )


def _may_matter(line: bytes) -> bool:
    """The cheap look at the raw bytes that lets most lines of a log go by unread."""
    if b"NVRM" in line or b"SXid" in line or b"amdgpu" in line:
        return True
    return b'"MESSAGE"' in line and _BYTE_ARRAY.search(line) is not None


def parse_lines(
    lines: Iterable[bytes],
    rules: RuleBook,
    *,
    node: str = "",
    boot_time: datetime | None = None,
    now: datetime | None = None,
    year: int | None = None,
) -> Iterator[KernelEvent]:
    """Every event of a log, in input order; the arguments are those of `KernelLogParser`."""
    parser = KernelLogParser(rules, node=node, boot_time=boot_time, now=now, year=year)
    for line in lines:
        yield from parser.feed(line)
    yield from parser.flush()


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a binary stream, each cut a little above MAX_LINE_BYTES, so a line of any length costs no memory."""
    limit = MAX_LINE_BYTES + 1
    while line := stream.readline(limit):
        yield line
        while len(line) == limit and not line.endswith(b"\n"):
            line = stream.readline(limit)
