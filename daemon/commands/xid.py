"""`gpuwarden xid decode`: the faults of a kernel log as JSON lines.

The fields and their names are a contract with tools outside the project; `daemon.cli` gives the streams.
"""

import os
import sys
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TextIO

import msgspec

from daemon.commands.output import CommandError, ExitCode, complain, settings
from daemon.plain_text import why_no_text
from detectors.classify import classify
from detectors.events import KernelEvent
from detectors.kernel_log import MAX_LINE_BYTES, KernelLogParser, LogStats, bounded_lines
from detectors.secondary import SecondaryTracker
from rules.schema import RuleBook
from rules.vocabulary import FAULT_KINDS, EventKind, FaultAction, FaultClass, Severity

#: Syslog stamps have no year. Any leap year will do: only the time between two records matters here.
_SOME_YEAR = 2024


class FaultLine(msgspec.Struct, frozen=True):
    """One line of the output, in the order of the fields; null is "the record doesn't say"."""

    line: int
    kind: EventKind
    code: int | None
    pci: str | None
    gpu_instance: int | None
    compute_instance: int | None
    pid: int | None
    process: str | None
    severity: Severity
    cause_class: FaultClass
    action: FaultAction
    secondary_to: int | None
    trusted: bool
    text: str


def command(file: Path, driver_version: str | None, config: Path | None) -> int:
    """The command: decode a file, or standard input for `-`, to standard output."""
    try:
        _, rules = settings(config)
        if str(file) == "-":
            return decode(sys.stdin.buffer, sys.stdout, rules, driver_version, notes=sys.stderr)
        with file.open("rb") as lines:
            return decode(lines, sys.stdout, rules, driver_version, notes=sys.stderr)
    except CommandError as error:
        complain(str(error))
        return error.code
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        complain(f"{file} cannot be read: {error.strerror}; give a kernel log, or - for standard input")
        return ExitCode.FILE


def decode(
    lines: BinaryIO, out: TextIO, rules: RuleBook, driver_version: str | None = None, *, notes: TextIO | None = None
) -> int:
    """Writes one JSON object for each fault in a kernel log, in input order, and returns the exit code 0.

    `driver_version` decides how NVLink 5 registers are read; without it, the version is taken from the log's own
    driver-load record, once there is one. What could not be used is told on `notes`, in one line, if there was any.
    """
    parser = KernelLogParser(rules, year=_SOME_YEAR)
    tracker = SecondaryTracker(rules)
    loaded: str | None = None

    def write(event: KernelEvent) -> None:
        nonlocal loaded
        if event.kind is EventKind.DRIVER_LOAD and event.trusted:
            loaded = event.driver_version or loaded
        judged = classify(tracker.mark(event), rules, driver_version or loaded)
        if judged.kind in FAULT_KINDS:
            out.write(msgspec.json.encode(_fault_line(judged)).decode() + "\n")

    source = bounded_lines(lines)
    first = list(islice(source, 1))
    for line in chain(first, source):
        for event in parser.feed(line):
            write(event)
    for event in parser.flush():
        write(event)
    odd = why_no_text(first[0]) if first else ""
    if notes is not None and (unused := _unused(parser.stats, odd)):
        notes.write(unused + "\n")
    return 0


def _unused(stats: LogStats, odd: str) -> str:
    """One line about the input that was not understood; "" where all of it was. `odd` says why it is no text."""
    parts = [odd] if odd else []
    if stats.malformed:
        parts.append(f"{stats.malformed} malformed Xid or SXid records, which give nothing")
    if stats.truncated:
        parts.append(f"{stats.truncated} lines over {MAX_LINE_BYTES} bytes, of which the rest is not read")
    return "xid decode: " + "; ".join(parts) if parts else ""


def _fault_line(event: KernelEvent) -> FaultLine:
    return FaultLine(**{name: getattr(event, name) for name in FaultLine.__struct_fields__})
