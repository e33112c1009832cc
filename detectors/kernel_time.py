"""When a log record happened: the spellings of a kernel log's time stamps, all turned into aware UTC.

`detectors.kernel_framing` reads the stamps; `detectors.kernel_log` settles them against what is known about the
machine's clock. A stamp that makes no sense gives None, never an error.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?", re.ASCII
)
#: A syslog stamp without a year may lie this far ahead of `now`: the clocks of machines differ.
_SKEW = timedelta(days=1)
#: Microseconds since 1970 or since boot beyond which a number is no time (year 2286; 317 years of uptime).
_MAX_US = 10**16
_MAX_DIGITS = 17

NOTE_BEFORE_BOOT = "stamp lies before boot; boot time used"
NOTE_IN_FUTURE = "stamp lies in the future; now used"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a record says about its time. `at` is absolute; `monotonic_s` is seconds since boot.

    `ring` says that the record comes out of the running kernel's own buffer (dmesg, /dev/kmsg), so it cannot be
    older than this boot; a file or a journal may hold earlier boots.
    """

    at: datetime | None = None
    monotonic_s: float | None = None
    ring: bool = False


@dataclass(frozen=True, slots=True)
class Calendar:
    """What is known about the clock of the machine whose log is read. All optional; times are aware.

    `boot_time` turns seconds since boot into time. `now` and `year` give a year to syslog's stamps; `year` wins.
    """

    boot_time: datetime | None = None
    now: datetime | None = None
    year: int | None = None

    def yearless(self, month: str, day: int, clock: str) -> datetime | None:
        """A syslog stamp (`Apr 15 07:56:59`), in the year given or else the latest year that is not after `now`."""
        if self.year is not None:
            return _date(self.year, month, day, clock)
        if self.now is None:
            return None
        latest = self.now + _SKEW
        for year in range(latest.year, latest.year - 5, -1):  # four years back reaches a 29 February
            found = _date(year, month, day, clock)
            if found is not None and found <= latest:
                return found
        return None

    def settle(self, stamp: Stamp) -> tuple[datetime | None, tuple[str, ...]]:
        """The record's absolute time, and what had to be corrected about it.

        Seconds since boot beat the absolute stamp beside them where the boot time is known, since dmesg derives
        the latter from the former with a boot time of its own (leptonai/gpud#500).
        """
        at = stamp.at
        if self.boot_time is not None and stamp.monotonic_s is not None and (at is None or stamp.ring):
            at = self.boot_time + timedelta(seconds=stamp.monotonic_s)
        if at is None:
            return None, ()
        if stamp.ring and self.boot_time is not None and at < self.boot_time:
            return self.boot_time, (NOTE_BEFORE_BOOT,)
        if self.now is not None and at > self.now:
            return self.now, (NOTE_IN_FUTURE,)
        return at, ()


def parse_iso(text: str) -> datetime | None:
    """`2025-01-25T10:34:54,859532+00:00` with a comma or a dot, any precision, with or without a zone (then UTC)."""
    found = _ISO.match(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, zone_hour, zone_minute = found.groups()
    microsecond = int((fraction or "0").ljust(6, "0")[:6])
    try:
        at = datetime(int(year), int(month), int(day), int(hour), int(minute), _second(second), microsecond, tzinfo=UTC)
        if sign is None:
            return at
        offset = timedelta(hours=int(zone_hour), minutes=int(zone_minute))
        return at - offset if sign == "+" else at + offset
    except (ValueError, OverflowError):
        return None


def parse_ctime(month: str, day: int, clock: str, year: int) -> datetime | None:
    """`Aug 30 11:43:09 2024`, the stamp of dmesg --ctime, taken as UTC."""
    return _date(year, month, day, clock)


def from_microseconds(text: object) -> datetime | None:
    """Microseconds since 1970 as the journal writes them (a string of digits)."""
    micros = _micros(text)
    return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def seconds_from_micros(text: object) -> float | None:
    """Microseconds since boot as seconds, from a string of digits."""
    micros = _micros(text)
    return None if micros is None else micros / 1e6


def _micros(text: object) -> int | None:
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
        return None
    micros = int(text)
    return micros if micros < _MAX_US else None


def _second(text: str) -> int:
    """A leap second counts as the last one of its minute: datetime has none."""
    return 59 if text == "60" else int(text)


def _date(year: int, month: str, day: int, clock: str) -> datetime | None:
    name = month[:3].lower()
    if name not in _MONTHS:
        return None
    hour, minute, second = clock[:8].split(":")
    fraction = clock[9:15].ljust(6, "0")
    try:
        return datetime(
            year, _MONTHS.index(name) + 1, day, int(hour), int(minute), _second(second), int(fraction), tzinfo=UTC
        )
    except ValueError:
        return None
