"""How the page writes numbers, times and long texts. Template filters and SVG labels call it; everything is pure."""

import math
from datetime import UTC, datetime
from urllib.parse import urlsplit, urlunsplit

_UNITS_OF_TIME = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_MINUS = "\N{MINUS SIGN}"
_POWERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def utc(at: datetime | None) -> str:
    """`2026-05-03 14:05:09Z`, or a dash for no time."""
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def rfc3339(at: datetime) -> str:
    """For the `datetime` attribute of a time element."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_minute(at: datetime | None) -> str:
    """`2026-05-03 14:05`, for tables whose heading says UTC."""
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def duration(seconds: float | None) -> str:
    """The two largest units.

    >>> duration(7_384), duration(-90), duration(0.4)
    ('2 h 3 min', '\u22121 min 30 s', '0.4 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    sign, left = (_MINUS if seconds < 0 else ""), abs(seconds)
    if 0 < left < 1:
        return f"{sign}{left:.1g} s"
    left = round(left)
    for index, (size, unit) in enumerate(_UNITS_OF_TIME):
        if left >= size:
            whole, rest = divmod(left, size)
            smaller = _UNITS_OF_TIME[index + 1 : index + 2]
            part = rest // smaller[0][0] if smaller else 0
            return f"{sign}{whole} {unit}" + (f" {part} {smaller[0][1]}" if part else "")
    return "0 s"


def number(value: float | None) -> str:
    """Four significant digits, thousands grouped, a dash for None or NaN.

    >>> number(12345.6), number(0.00012345), number(None)
    ('12,346', '0.0001234', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else _MINUS + "∞"
    size = abs(value)
    if size >= 1e15:
        text = f"{value:.3e}"
    elif size >= 1000 or float(value).is_integer():
        text = f"{value:,.0f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", _MINUS) if text.startswith("-") else text


def axis_number(value: float) -> str:
    """A tick's label, short.

    >>> axis_number(250_000), axis_number(-0.5), axis_number(80.0)
    ('250k', '\u22120.5', '80')
    """
    size, suffix, factor = abs(value), "", 1.0
    for power, letter in _POWERS:
        if size >= power:
            suffix, factor = letter, power
            break
    return f"{value / factor:.4g}{suffix}".replace("-", _MINUS, 1 if value < 0 else 0)


def percent(share: float | None) -> str:
    """A share as a percentage that never rounds to a clean 0 % or 100 % which isn't.

    >>> percent(0.98234), percent(0.99999), percent(0.00001), percent(1.0)
    ('98.2 %', '> 99.9 %', '< 0.1 %', '100 %')
    """
    if share is None or not math.isfinite(share):
        return "–"
    if 0.999 < share < 1:
        return "> 99.9 %"
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.3g} %"


def short(text: str, limit: int) -> str:
    """The text, cut at `limit` characters with a word about how much is missing, unless that is as long."""
    cut = f"{text[:limit].rstrip()} … ({len(text) - limit:,} more characters)"
    return cut if len(text) > max(limit, len(cut)) else text


def plural(count: int, noun: str) -> str:
    """`1 node`, `2,048 nodes`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def without_credentials(url: str) -> str:
    """The URL without user, password, query and fragment, since reports are passed around."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
