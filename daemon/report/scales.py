"""Axes: from values and times to pixels, with round ticks. `svg` and `timeline` use it."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

_STEPS_S = (
    *(1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400, 28 * 86_400, 91 * 86_400, 365 * 86_400),
)

#: Below this a number is as good as zero, and its logarithm no guide to a step.
_NO_SIZE = 1e-200


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight line from [low, high] to the pixels [from_px, to_px]; low < high."""

    low: float
    high: float
    from_px: float
    to_px: float

    def px(self, value: float) -> float:
        """The pixel of a value; values outside the range lie outside the pixels."""
        return self.from_px + (value - self.low) / (self.high - self.low) * (self.to_px - self.from_px)


def round_range(low: float, high: float, ticks: int) -> tuple[float, float, list[float]]:
    """A range that holds [low, high] and ends on round numbers, and its ticks. Starts at zero where that is near."""
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, _NO_SIZE):
        margin = 0.1 * size if size > _NO_SIZE else 1.0
        low, high = low - margin, high + margin
    if 0 < low < 0.4 * high:
        low = 0.0
    step = _round_step((high - low) / ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = [index * step for index in range(first, last + 1)]
    return marks[0], marks[-1], marks


def _round_step(least: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= least), 10 * power)


def time_ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
    """Up to `most` round UTC moments between two Unix times, each with its label: a date at midnight, else a time."""
    step = next((step for step in _STEPS_S if (end - start) / step <= most), _STEPS_S[-1])
    first = math.ceil(start / step) * step
    clock = "%H:%M" if step >= 60 else "%H:%M:%S"
    moments = range(first, math.floor(end) + 1, step)
    return [(float(moment), _tick_label(moment, clock)) for moment in moments][:most]


def _tick_label(moment: int, clock: str) -> str:
    at = datetime.fromtimestamp(moment, UTC)
    return f"{at.day} {at:%b}" if moment % 86_400 == 0 else at.strftime(clock)
