"""What each way of ranking would have said at each moment of the trace, knowing only what was known then.

Rankings are arrays of shape (servers,), higher is worse. All that is fitted (prior, factors) is fitted anew each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from detectors.chronic import ChronicLimits, Columns, Fitted, fit, replay, score
from detectors.hazard import Floats, Record

#: Before that there is next to nothing to learn from.
WARM_UP_DAYS = 28.0
WEEK_DAYS = 7.0
#: The servers that a ranking names: 5 % of 400.
TOP = 20
DECAYS_DAYS = (3.0, 7.0, 14.0, 30.0, 60.0)
#: Tried beside the shipped one where the fade is fitted too.
OTHER_FADES_DAYS = (7.0, 30.0)

Scores = dict[str, Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """One ranking moment: what was known, and what was fitted to it."""

    day: float
    known: Record
    fitted: Fitted
    columns: Columns


def moments(record: Record, days: Floats, limits: ChronicLimits) -> Iterator[Moment]:
    for day in days:
        known = record.as_of(float(day))
        fitted = fit(known, float(day), limits)
        yield Moment(float(day), known, fitted, score(known, float(day), fitted, limits))


def ranking_days(span_days: float, offset: int = 0) -> Floats:
    """Every seventh day after the warm-up that has a whole week after it."""
    return np.arange(WARM_UP_DAYS + offset, span_days - WEEK_DAYS + 1e-9, WEEK_DAYS)


def decayed(moment: Moment, fade_days: float) -> Floats:
    """The sum of e to the minus (days since the return / fade), a server that is out counting as just returned."""
    ended = np.minimum(moment.known.ended, moment.day)
    return moment.known.per_thing(np.exp((ended - moment.day) / fade_days))


def deviance(moment: Moment, limits: ChronicLimits) -> float:
    """How badly the past windows are foretold with what was fitted to them; Poisson, up to a constant. One model."""
    windows = replay(moment.known, moment.day, limits)
    prior = moment.fitted.of("")
    rate = (prior.strength + windows.weighted) / (prior.days + windows.weighted_days)
    told = (rate * np.array(moment.fitted.factors)[windows.standing] * windows.days)[windows.days > 0.0]
    return float((told - windows.outages[windows.days > 0.0] * np.log(told)).sum())


def with_fitted_fade(moment: Moment, limits: ChronicLimits) -> Floats:
    """The shipped score with the fade that foretold the past best, instead of the default."""
    tried = [(deviance(moment, limits), limits.fade_days, moment.columns.hazard_next_week)]
    for fade in OTHER_FADES_DAYS:
        other = replace(limits, fade_days=fade)
        fitted = fit(moment.known, moment.day, other)
        again = replace(moment, fitted=fitted, columns=score(moment.known, moment.day, fitted, other))
        tried.append((deviance(again, other), fade, again.columns.hazard_next_week))
    return min(tried, key=lambda one: one[:2])[2]


def rankings(moment: Moment, limits: ChronicLimits) -> Scores:
    """The shipped score with its parts, and what it has to beat."""
    known, day = moment.known, moment.day
    told = {
        "shipped (hazard_next_week)": moment.columns.hazard_next_week,
        "shipped, rate alone": moment.columns.rate_per_day,
        "shipped, chance alone": moment.columns.chance,
        "shipped, fade of 7, 14 or 30 d fitted too": with_fitted_fade(moment, limits),
    }
    told |= {f"decay only, {fade:g} d": decayed(moment, fade) for fade in DECAYS_DAYS}
    told["plain count"] = known.outages_of(-np.inf, day)
    return told


def five_in_seven(moment: Moment) -> Floats:
    """1 for a server with five or more outages in the last seven days."""
    return (moment.known.outages_of(moment.day - WEEK_DAYS, moment.day) >= 5).astype(np.float64)


def named(ranking: Floats, top: int = TOP) -> Floats:
    """How surely each server is among the `top`: 1, 0, or a fair share of the last places where it is tied for them.

    Differences below what arithmetic can tell are ties.
    """
    cut = np.sort(ranking)[::-1][top - 1]
    tied = np.isclose(ranking, cut, rtol=1e-9, atol=0.0)
    above = (ranking > cut) & ~tied
    share = (top - np.count_nonzero(above)) / np.count_nonzero(tied)
    return above + tied * share


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """Of each method: outages on the servers that it named, shape (moments, servers); beside it all outages."""

    days: Floats
    hits: dict[str, Floats]
    named: dict[str, Floats]
    outages: Floats


def walk(record: Record, days: Floats, limits: ChronicLimits) -> Walk:
    """The next week of each ranking moment."""
    picks: dict[str, list[Floats]] = {}
    came: list[Floats] = []
    for moment in moments(record, days, limits):
        came.append(record.outages_of(moment.day, moment.day + WEEK_DAYS))
        for name, ranking in rankings(moment, limits).items():
            picks.setdefault(name, []).append(named(ranking))
        picks.setdefault(">= 5 in 7 days", []).append(five_in_seven(moment))
        picks.setdefault("hindsight (the most there is)", []).append(named(came[-1]))
    outages = np.array(came)
    chosen = {name: np.array(rows) for name, rows in picks.items()}
    return Walk(days, {name: rows * outages for name, rows in chosen.items()}, chosen, outages)


def resampled(moments_count: int, servers: int, repeats: int, seed: int = 1) -> tuple[Floats, Floats]:
    """How often each week and each server is drawn, shapes (repeats, moments) and (repeats, servers).

    Both are drawn anew, which takes in that a sick server's outages hang together and that a bad week hits many. With
    both at once the intervals are rather too wide than too narrow.
    """
    dice = np.random.default_rng(seed)
    weeks = dice.multinomial(moments_count, np.full(moments_count, 1 / moments_count), size=repeats)
    nodes = dice.multinomial(servers, np.full(servers, 1 / servers), size=repeats)
    return weeks.astype(np.float64), nodes.astype(np.float64)


def weighted_sum(table: Floats, weeks: Floats, nodes: Floats) -> Floats:
    """The table's sum in each repeat."""
    total: Floats = ((weeks @ table) * nodes).sum(axis=1)
    return total


def interval(values: Floats) -> tuple[float, float]:
    """The middle 95 % of what the repeats gave."""
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)
