"""Makes long series short enough for a page without hiding what matters: extremes and gaps. `svg` calls it."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from daemon.report.model import F64

MIN_POINTS = 16


def downsample(times: F64, values: F64, limit: int) -> tuple[F64, F64]:
    """At most `limit` of the samples, in time order; both of shape (kept,).

    Every bucket of time keeps its lowest and highest finite value, and the first and last finite samples stay. Two
    neighbours in the result have a NaN between them exactly where the input has one (or more) between them: no line
    is ever drawn across a gap, and none is broken without one. Raises ValueError for a limit below MIN_POINTS.
    """
    if limit < MIN_POINTS:
        raise ValueError(f"limit {limit}: a plot needs at least {MIN_POINTS} points")
    if len(values) <= limit:
        return times, values
    known = np.isfinite(values)
    finite = np.flatnonzero(known)
    if not len(finite):
        return times[:1], np.full(1, np.nan)
    # Between 2b+2 finite picks there can be 2b+1 gaps.
    buckets = (limit - 2) // 2 if known.all() else (limit - 3) // 4
    picks = _extremes(values[finite], buckets)
    kept = finite[np.unique(np.concatenate(([0], picks, [len(finite) - 1])))]
    gaps_before = np.cumsum(~known)
    broken = gaps_before[kept[1:]] > gaps_before[kept[:-1]]
    holes = np.array([left + int(np.argmin(known[left:])) for left in kept[:-1][broken]], np.int64)
    index = np.sort(np.concatenate((kept, holes)))
    return times[index], np.where(known[index], values[index], np.nan)


def _extremes(values: F64, buckets: int) -> NDArray[np.int64]:
    """Indices of the lowest and highest value in each of up to `buckets` equal runs of finite values."""
    width = -(-len(values) // buckets)
    rows = -(-len(values) // width)
    padding = np.full(rows * width - len(values), values[-1])
    grid = np.concatenate((values, padding)).reshape(rows, width)
    starts = np.arange(rows) * width
    both: NDArray[np.int64] = np.concatenate((starts + grid.argmin(axis=1), starts + grid.argmax(axis=1)))
    return np.minimum(both, len(values) - 1)


def missing_spans(times: F64, values: F64, start: float, end: float) -> list[tuple[float, float]]:
    """Where between `start` and `end` (Unix seconds) the series says nothing, as (from, to), in time order.

    A span reaches from the last known sample before it to the first after it. Before the first sample and after the
    last, anything longer than one and a half sampling steps counts.
    """
    known = np.isfinite(values)
    at = times[known]
    if not len(at):
        return [(start, end)]
    slack = 1.5 * float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    spans = [(start, float(at[0]))] if at[0] - start > slack else []
    index = np.flatnonzero(known)
    spans += [(float(times[i]), float(times[j])) for i, j in pairwise(index) if j - i > 1]
    if end - at[-1] > slack:
        spans.append((float(at[-1]), end))
    return spans
