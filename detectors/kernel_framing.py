"""What stands around a kernel message: who wrote it, when, and where the message itself begins.

A log reaches us as dmesg prints it, as /dev/kmsg gives it, as syslog files hold it or as journalctl exports it. Each
of these is a frame around the same text. `detectors.kernel_log` calls `read_record` for the lines that look like ours.

Trust is decided here. The kernel's own records are trusted; text that any program may write to the log is not, so a
user's `logger "NVRM: Xid ..."` never takes a machine out of service. A line without any frame counts as the kernel's.
"""

import re
from dataclasses import dataclass

import msgspec

from detectors.kernel_time import Calendar, Stamp, from_microseconds, parse_ctime, parse_iso, seconds_from_micros

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-Z\\-_])")
_UNPRINTED = str.maketrans({"\x00": None, "\r": None, "\ufeff": None, "\t": " "})
_KMSG = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;\n]{0,80};(.*)", re.DOTALL)
_KMSG_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
_KMSG_DICTIONARY = re.compile(r" [A-Z][A-Z0-9_]*=")
_SYSLOG5 = re.compile(r"<(\d{1,3})>1 (\S+) (\S+) (\S+) \S+ \S+ (?:-|\[(?:[^\]\\]|\\.)*\]) ?(.*)", re.DOTALL)
_LEVEL = r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|debug)"
_MONO = r"\[\s*(?P<{0}>\d{{1,10}}(?:\.\d{{1,9}})?)\](?:\[\s*[TC]\d+\])?\s*"
_ISO_TEXT = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\s?(?:Z|UTC|[+-]\d\d:?\d\d)?"
_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,6})?"
_FRAME = re.compile(
    r"\s*"
    r"(?:<(?P<priority>\d{1,3})>\s*)?"
    # talosctl dmesg prints `10.0.0.1: kern: warning: [time]: `, dmesg --decode `kern  :warn  : time `
    rf"(?:(?:[^\s\[\]]+:\s+)?(?P<facility>[a-z0-9]+)\s*:\s*{_LEVEL}\s*:\s+)?"
    r"(?:"
    rf"\[[^\W\d]{{2,9}}\.?\s+(?P<cmonth>[^\W\d]{{3,9}})\.?\s+(?P<cday>\d{{1,2}})\s+(?P<cclock>{_CLOCK})\s+(?P<cyear>\d{{4}})\]:?\s*"
    rf"|(?:[^\W\d]{{2,9}} )?(?P<bracket>\[)?(?P<iso>{_ISO_TEXT})\]?:?\s*"
    rf"|(?P<month>[^\W\d]{{3,9}})\.?\s+(?P<day>\d{{1,2}})\s+(?P<clock>{_CLOCK})\s+"
    rf"|{_MONO.format('mono1')}"
    r"|\[\s*[+<][\s\d.<>+]*\]\s*"
    r")?"
    r"(?:(?P<host>[^\s\[\]:]+)\s+(?=kernel:))?"
    r"(?P<kernel>kernel:\s*)?"
    rf"(?:{_MONO.format('mono2')})?"
    r"(?P<text>.*)",
    re.DOTALL,
)
#: Facility 0 is the kernel's; a priority is the facility times 8 plus the level (RFC 5424, section 6.2.1).
_KERNEL_PRIORITIES = range(8)


@dataclass(frozen=True, slots=True)
class Record:
    """One log record without its frame. `trusted` is True where nothing in the frame speaks against the kernel."""

    text: str
    trusted: bool
    stamp: Stamp
    source: str = "log"
    sequence: int | None = None
    node: str = ""
    boot_id: str = ""


class _JournalEntry(msgspec.Struct):
    """The fields of `journalctl -o json` that matter. A field given twice is an array there, hence `object`."""

    message: object = msgspec.field(name="MESSAGE", default=None)
    transport: object = msgspec.field(name="_TRANSPORT", default=None)
    facility: object = msgspec.field(name="SYSLOG_FACILITY", default=None)
    realtime: object = msgspec.field(name="__REALTIME_TIMESTAMP", default=None)
    source_monotonic: object = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default=None)
    boot_id: object = msgspec.field(name="_BOOT_ID", default=None)
    host: object = msgspec.field(name="_HOSTNAME", default=None)


_JOURNAL = msgspec.json.Decoder(_JournalEntry)


def read_record(line: bytes, calendar: Calendar) -> Record | None:
    """The record that a line holds, or None where it holds none (a dictionary line of /dev/kmsg).

    Any bytes are accepted: what no frame explains stays in `text`, for the text's own parser to judge.
    """
    kmsg = _KMSG.match(line)
    if kmsg is not None:
        return _from_kmsg(kmsg)
    text = clean(line.decode("utf-8", "replace"))
    if text.lstrip().startswith("{"):
        record = _from_journal(text)
        if record is not None:
            return record
    if _KMSG_DICTIONARY.match(text):
        return None
    return _from_syslog5(text) or _from_frame(text, calendar)


def clean(text: str) -> str:
    """Text without terminal colours, NULs, carriage returns and byte order marks; tabs become spaces."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.translate(_UNPRINTED).strip("\n")


def _from_kmsg(found: re.Match[bytes]) -> Record:
    """`priority,sequence,microseconds,flags;text` (Documentation/ABI/testing/dev-kmsg): text escaped byte by byte."""
    raw = _KMSG_ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), found[4].rstrip(b"\r\n"))
    stamp = Stamp(monotonic_s=seconds_from_micros(found[3].decode()), ring=True)
    return Record(
        text=clean(raw.decode("utf-8", "replace")).lstrip(),
        trusted=int(found[1]) in _KERNEL_PRIORITIES,
        stamp=stamp,
        source="kmsg",
        sequence=int(found[2]),
    )


def _from_journal(text: str) -> Record | None:
    try:
        entry = _JOURNAL.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    message = _message(entry.message)
    if message is None:
        return None
    # The journal also reads what programs write to /dev/kmsg; it keeps their facility.
    return Record(
        text=clean(message).lstrip(),
        trusted=entry.transport == "kernel" and entry.facility in (None, "0"),
        stamp=Stamp(at=from_microseconds(entry.realtime), monotonic_s=seconds_from_micros(entry.source_monotonic)),
        source="journal",
        node=entry.host if isinstance(entry.host, str) else "",
        boot_id=entry.boot_id if isinstance(entry.boot_id, str) else "",
    )


def _message(value: object) -> str | None:
    """MESSAGE is text, or an array of byte values where the text is not UTF-8 or not printable."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    try:
        return bytes(value).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return None


def _from_syslog5(text: str) -> Record | None:
    """RFC 5424: `<3>1 time host kernel - - - text`."""
    found = _SYSLOG5.match(text)
    if found is None:
        return None
    inner = _frame(found[5])
    return Record(
        text=inner["text"],
        trusted=int(found[1]) in _KERNEL_PRIORITIES and found[4] == "kernel",
        stamp=Stamp(at=parse_iso(found[2]), monotonic_s=_seconds(inner["mono1"] or inner["mono2"])),
        node="" if found[3] == "-" else found[3],
    )


def _from_frame(text: str, calendar: Calendar) -> Record:
    found = _frame(text)
    at = None
    if found["iso"]:
        at = parse_iso(found["iso"])
    elif found["cmonth"]:
        at = parse_ctime(found["cmonth"], int(found["cday"]), found["cclock"], int(found["cyear"]))
    elif found["month"]:
        at = calendar.yearless(found["month"], int(found["day"]), found["clock"])
    priority, facility = found["priority"], found["facility"]
    return Record(
        text=found["text"],
        trusted=(priority is None or int(priority) in _KERNEL_PRIORITIES) and facility in (None, "kern"),
        # A host or a `kernel:` tag is syslog's; without them the stamps are the kernel buffer's own.
        stamp=Stamp(at, _seconds(found["mono1"] or found["mono2"]), ring=not (found["kernel"] or found["month"])),
        node=found["host"] or "",
    )


def _frame(text: str) -> re.Match[str]:
    """The frame at the text's begin; there always is one, since every part of the pattern may be absent."""
    return next(_FRAME.finditer(text))


def _seconds(text: str | None) -> float | None:
    return None if text is None else float(text)
