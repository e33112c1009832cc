"""Inline SVG out of small pure functions that escape every text and attribute. `plotting` and `timeline` use it."""

import math
from collections.abc import Iterable
from itertools import pairwise

from markupsafe import Markup

from daemon.report.model import F64

Attribute = str | float | None


def element(name: str, *children: str | Markup, **attributes: Attribute) -> Markup:
    """One SVG element. `class_` stands for `class`, underscores for hyphens; None leaves the attribute out.

    >>> element("text", "a < b", x=1.25, class_="t")
    Markup('<text x="1.2" class="t">a &lt; b</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value if isinstance(value, str) else pixel(value))
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(children)
    return (
        Markup("<{0}{1}>{2}</{0}>").format(name, written, inner) if inner else Markup("<{0}{1}/>").format(name, written)
    )


def pixel(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")


def picture(size: tuple[float, float], words: tuple[str, str], *children: Markup, ident: str, class_: str) -> Markup:
    """A whole drawing of `size` (width, height) with its `words` (title, description) for screen readers.

    `ident` is unique on the page.
    """
    title, description = words
    named = (element("title", title, id=f"{ident}-t"), element("desc", description, id=f"{ident}-d"))
    return _drawing(size, *named, *children, class_=class_, role="img", aria_labelledby=f"{ident}-t {ident}-d")


def map_of_links(size: tuple[float, float], title: str, *children: Markup, ident: str, class_: str) -> Markup:
    """A whole drawing with links in it: role img would hide them, so it is a named group."""
    named = element("title", title, id=f"{ident}-t")
    return _drawing(size, named, *children, class_=class_, role="group", aria_labelledby=f"{ident}-t")


def _drawing(size: tuple[float, float], *children: Markup, **attributes: Attribute) -> Markup:
    return element("svg", *children, viewBox=f"0 0 {pixel(size[0])} {pixel(size[1])}", **attributes)


def line_path(x: F64, y: F64) -> str:
    """Path data through points of shape (points,); a NaN in `y` ends the line and the next point starts another.

    Steps are relative and in tenths of a pixel, which halves a page of plots. A lone point is a dot: caps are round.
    """
    parts: list[str] = []
    for xs, ys in _runs(x, y):
        parts.append(f"M{xs[0] / 10:g} {ys[0] / 10:g}")
        parts.append(_steps(xs, ys) if len(xs) > 1 else "h0")
    return "".join(parts)


def band_path(x_low: F64, y_low: F64, x_high: F64, y_high: F64) -> str:
    """Path data of the area between two lines, one closed shape for each run of known points.

    Lines whose gaps differ have no area that could be shown truly: the answer is "".
    """
    low, high = _runs(x_low, y_low), _runs(x_high, y_high)
    if len(low) != len(high):
        return ""
    parts: list[str] = []
    for (lx, ly), (hx, hy) in zip(low, high, strict=True):
        xs, ys = lx + hx[::-1], ly + hy[::-1]
        parts.append(f"M{xs[0] / 10:g} {ys[0] / 10:g}{_steps(xs, ys)}z")
    return "".join(parts)


def bars_path(spans: Iterable[tuple[float, float]], top: float, height: float) -> str:
    """Path data of rectangles over pixel spans (from, to); spans less than a pixel apart join, thin ones widen."""
    joined: list[list[float]] = []
    for left, right in sorted(spans):
        if joined and left - joined[-1][1] < 1:
            joined[-1][1] = max(joined[-1][1], right)
        else:
            joined.append([left, max(right, left + 1)])
    return "".join(f"M{pixel(a)} {pixel(top)}h{pixel(b - a)}v{pixel(height)}H{pixel(a)}z" for a, b in joined)


def _runs(x: F64, y: F64) -> list[tuple[list[int], list[int]]]:
    """Runs of known points as tenths of pixels."""
    runs: list[tuple[list[int], list[int]]] = []
    previous_known = False
    for px, py in zip(x.tolist(), y.tolist(), strict=True):
        known = not math.isnan(py)
        if known:
            if not previous_known:
                runs.append(([], []))
            runs[-1][0].append(round(px * 10))
            runs[-1][1].append(round(py * 10))
        previous_known = known
    return runs


def _steps(xs: list[int], ys: list[int]) -> str:
    corners = pairwise(zip(xs, ys, strict=True))
    return "l" + " ".join(f"{(x2 - x1) / 10:g} {(y2 - y1) / 10:g}" for (x1, y1), (x2, y2) in corners)
