"""One evidence plot as inline SVG: lines, peers, the limit, onset and detection, and what is missing.

`page` calls `draw_plot` once for each plot it shows. Colours and dashes are classes in style.css.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from markupsafe import Markup

from daemon.report import sampling, svg, wording
from daemon.report.model import F64, Plot, Series, SeriesKind
from daemon.report.scales import Scale, round_range, time_ticks

WIDTH, HEIGHT = 380, 184
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 372, 30, 164
_COLOURS = 6
_LETTER = 5.8  # width of an average letter, in pixels
MOST_POINTS = 400
#: Beyond any physical quantity: a number this big would only flatten the plot.
_ABSURD = 1e30


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """What one look in the plot means; `style` is the class of its swatch."""

    style: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished plot: its SVG and what the caption says about it."""

    svg: Markup
    title: str
    unit: str
    legend: tuple[LegendEntry, ...]
    span: str


def draw_plot(plot: Plot, ident: str, points: int = MOST_POINTS) -> Drawing:
    """The plot with at most `points` samples a line. `ident` is unique on the page.

    Spans where a GPU's line has no data are hatched; the peers' gaps only break their lines.
    """
    lines = [_cleaned(one) for one in plot.series]
    start, end = _time_range(plot, lines)
    low, high, y_marks = _value_range(plot, lines)
    x, y = Scale(start, end, _LEFT, _RIGHT), Scale(low, high, _BOTTOM, _TOP)
    missing = [
        span
        for one in lines
        if one.kind == SeriesKind.GPU
        for span in sampling.missing_spans(one.times, one.values, start, end)
    ]
    layers = [
        _grid(x, y, y_marks),
        _hatch(missing, x, ident),
        *_bands(
            [one for one in lines if one.kind == SeriesKind.PEER_BAND], x, y, max(points // 4, sampling.MIN_POINTS)
        ),
        *_lines([one for one in lines if one.kind == SeriesKind.PEERS], x, y, max(points // 2, sampling.MIN_POINTS)),
        *_lines([one for one in lines if one.kind == SeriesKind.GPU], x, y, points),
        _limit(plot, lines, x, y),
        _moments(plot, x),
    ]
    span = f"{wording.utc_minute(_at(start))} to {wording.utc_minute(_at(end))} UTC"
    words = plot.title, _description(plot, lines, span, len(missing))
    picture = svg.picture((WIDTH, HEIGHT), words, *layers, ident=ident, class_="plot")
    legend = _legend(lines) + ((LegendEntry("missing", "no data"),) if missing else ())
    return Drawing(picture, plot.title, plot.unit, legend, span)


def _cleaned(series: Series) -> Series:
    usable = np.isfinite(series.values) & (np.abs(series.values) < _ABSURD)
    return Series(series.name, series.times, np.where(usable, series.values, np.nan), SeriesKind(series.kind))


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _time_range(plot: Plot, lines: Sequence[Series]) -> tuple[float, float]:
    moments = [float(edge) for one in lines if len(one.times) for edge in (one.times[0], one.times[-1])]
    moments += [mark.timestamp() for mark in (plot.onset, plot.detected) if mark is not None]
    if not moments:
        return 0.0, 1.0
    start, end = min(moments), max(moments)
    return (start, end) if end > start else (start - 60, end + 60)


def _value_range(plot: Plot, lines: Sequence[Series]) -> tuple[float, float, list[float]]:
    known = [one.values[~np.isnan(one.values)] for one in lines]
    edges = [float(edge) for values in known if len(values) for edge in (values.min(), values.max())]
    if (limit := _usable_limit(plot)) is not None:
        edges.append(limit)
    return round_range(min(edges), max(edges), 4) if edges else (0.0, 1.0, [])


def _usable_limit(plot: Plot) -> float | None:
    """The limit, unless it is no number or so large that it would flatten the plot."""
    return plot.limit if plot.limit is not None and abs(plot.limit) < _ABSURD else None


def _grid(x: Scale, y: Scale, y_marks: Sequence[float]) -> Markup:
    parts: list[Markup] = []
    for mark in y_marks:
        at = y.px(mark)
        parts.append(svg.element("path", class_="grid", d=f"M{_LEFT} {svg.pixel(at)}H{_RIGHT}"))
        parts.append(svg.element("text", wording.axis_number(mark), class_="tick end", x=_LEFT - 5, y=at + 3.5))
    for moment, label in time_ticks(x.low, x.high, 6):
        at = x.px(moment)
        parts.append(svg.element("path", class_="grid", d=f"M{svg.pixel(at)} {_BOTTOM}v4"))
        anchor = "mid" if at < _RIGHT - 14 else "end"
        parts.append(svg.element("text", label, class_=f"tick {anchor}", x=min(at, _RIGHT), y=_BOTTOM + 15))
    return svg.element("g", *parts)


def _hatch(spans: Sequence[tuple[float, float]], x: Scale, ident: str) -> Markup:
    if not spans:
        return Markup("")
    pattern = svg.element(
        "pattern",
        svg.element("path", class_="hatch", d="M0 0v6"),
        id=f"{ident}-h",
        width=6.0,
        height=6.0,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    shape = svg.bars_path([(x.px(a), x.px(b)) for a, b in spans], _TOP, _BOTTOM - _TOP)
    return svg.element("defs", pattern) + svg.element("path", class_="missing", d=shape, fill=f"url(#{ident}-h)")


def _points(series: Series, x: Scale, y: Scale, points: int) -> tuple[F64, F64]:
    times, values = sampling.downsample(series.times, series.values, points)
    return (
        x.from_px + (times - x.low) / (x.high - x.low) * (x.to_px - x.from_px),
        y.from_px + (values - y.low) / (y.high - y.low) * (y.to_px - y.from_px),
    )


def _lines(lines: Sequence[Series], x: Scale, y: Scale, points: int) -> list[Markup]:
    return [
        svg.element("path", class_=_style(one, index), d=svg.line_path(*_points(one, x, y, points)))
        for index, one in enumerate(lines)
    ]


def _bands(edges: Sequence[Series], x: Scale, y: Scale, points: int) -> list[Markup]:
    return [
        svg.element("path", class_="band", d=svg.band_path(*_points(low, x, y, points), *_points(high, x, y, points)))
        for low, high in zip(edges[::2], edges[1::2], strict=False)
    ]


def _style(series: Series, index: int) -> str:
    return f"line g{index % _COLOURS}" if series.kind == SeriesKind.GPU else "line peers"


def _limit(plot: Plot, lines: Sequence[Series], x: Scale, y: Scale) -> Markup:
    """The limit as a line with its name, at the end and on the side where the name hides the least of the GPUs."""
    if (limit := _usable_limit(plot)) is None:
        return Markup("")
    at = y.px(limit)
    label = wording.short(f"{plot.limit_label or 'limit'} {wording.number(limit)} {plot.unit}".strip(), 50)
    width = min(_LETTER * len(label) + 6, _RIGHT - _LEFT)

    drawn = [_points(one, x, y, MOST_POINTS) for one in lines if one.kind == SeriesKind.GPU]

    def hidden(spot: tuple[str, float]) -> int:
        """How many line segments the name would cover."""
        anchor, base = spot
        left = _RIGHT - width if anchor == "end" else _LEFT
        return sum(
            int(
                np.sum(
                    (px[1:] >= left)
                    & (px[:-1] <= left + width)
                    & (np.maximum(py[:-1], py[1:]) > base - 11)
                    & (np.minimum(py[:-1], py[1:]) < base + 3)
                )
            )
            for px, py in drawn
        )

    rows = [base for base in (at - 4, at + 12) if _TOP + 8 <= base <= _BOTTOM]
    anchor, base = min(((anchor, base) for base in rows for anchor in ("end", "start")), key=hidden)
    return svg.element("path", class_="limit", d=f"M{_LEFT} {svg.pixel(at)}H{_RIGHT}") + svg.element(
        "text", label, class_=f"limit-label {anchor}", x=_RIGHT - 3 if anchor == "end" else _LEFT + 3, y=base
    )


def _moments(plot: Plot, x: Scale) -> Markup:
    """Onset and detection as upright lines with their names above the plot, leaning away from each other."""
    parts: list[Markup] = []
    onset, detected = plot.onset, plot.detected
    if onset is not None and detected is not None:
        left, right = sorted((x.px(onset.timestamp()), x.px(detected.timestamp())))
        parts.append(svg.element("path", class_="lead", d=svg.bars_path([(left, right)], _TOP, _BOTTOM - _TOP)))
    for name, at, anchor, row in (("onset", onset, "end", 24), ("detected", detected, "start", 12)):
        if at is None:
            continue
        px = x.px(at.timestamp())
        leaning = "start" if px < _LEFT + 50 else "end" if px > _RIGHT - 60 else anchor
        shift = 3 if leaning == "start" else -3
        parts.append(svg.element("path", class_=f"moment {name}", d=f"M{svg.pixel(px)} {row - 8}V{_BOTTOM}"))
        parts.append(svg.element("text", name, class_=f"moment-label {leaning}", x=px + shift, y=float(row)))
    return svg.element("g", *parts) if parts else Markup("")


def _legend(lines: Sequence[Series]) -> tuple[LegendEntry, ...]:
    gpus = [one for one in lines if one.kind == SeriesKind.GPU]
    entries = [LegendEntry(_style(one, index), one.name) for index, one in enumerate(gpus)]
    entries += [LegendEntry(_style(one, 0), one.name) for one in lines if one.kind == SeriesKind.PEERS]
    bands = [one for one in lines if one.kind == SeriesKind.PEER_BAND]
    entries += [
        LegendEntry("band", low.name if low.name == high.name else f"{low.name} to {high.name}")
        for low, high in zip(bands[::2], bands[1::2], strict=False)
    ]
    return tuple(entries)


def _description(plot: Plot, lines: Sequence[Series], span: str, gaps: int) -> str:
    told = [f"{plot.title} in {plot.unit or 'its own unit'}, {span}."]
    told += [f"{one.name}: {_extremes(one)}." for one in lines if one.kind != SeriesKind.PEER_BAND]
    if plot.limit is not None:
        told.append(f"{plot.limit_label or 'limit'}: {wording.number(plot.limit)}.")
    for name, at in (("Onset", plot.onset), ("Detected", plot.detected)):
        if at is not None:
            told.append(f"{name} {wording.utc(at)}.")
    if gaps:
        told.append(f"{wording.plural(gaps, 'span')} without data.")
    return " ".join(told)


def _extremes(series: Series) -> str:
    known = series.values[~np.isnan(series.values)]
    if not len(known):
        return "no data"
    return f"{wording.number(float(known.min()))} to {wording.number(float(known.max()))}"
