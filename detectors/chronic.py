"""Which GPUs, nodes and slots keep failing, whatever is reset or repaired? A rate that fades, against the fleet's.

A thing's outages count by how lately it came back: e to the minus (days since the return / `fade_days`). So do its
days of service. With a Gamma prior from its own kind and model that gives a Gamma posterior of its rate, and so the
chance that it fails at more than so many times the rate of its like. How much a thing's own past is to be believed,
and what the time since its return adds, is fitted to how past weeks turned out. Nothing here is a verdict: policy says
what a chronic thing leads to. Figures on a real trace: docs/chronic.md.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.stats import gamma

from detectors.hazard import BUCKETS_DAYS, Bools, Exposure, Floats, Ints, Outage, Record, kind_of
from rules.restore_schema import NO_OUTAGE, ChronicPolicy

_DAY_S = 86_400.0
_SHIPPED = ChronicPolicy()
#: Where the fit looks for the prior's strength, in outages.
_STRENGTHS = (0.02, 20.0)
#: Where a thing stands that has had no outage: after all rows of the hazard table.
_NEVER = len(BUCKETS_DAYS)


@dataclass(frozen=True, slots=True)
class ChronicLimits:
    """When a thing is chronic, and how much is believed before anything is known.

    A thing is chronic once its rate is over `times_fleet` times that of its like with at least this `chance`, and it
    has had `min_outages`: one is an accident. Three times at 90 % was among the best in the trace's first half.
    `fade_days`: the excess after a return is gone in about a month, so what is a month old counts a tenth.
    `horizon_days`: a week ahead is what a schedule can use. `memory_days`: what the fleet was like before is no guide.
    `ignored_causes` say nothing about the hardware. The rest carries the fit where there is little data: half an outage
    at `typical_rate_per_day` (node or GPU, that half is soon outweighed), a prior worth `typical_strength` outages,
    and weights in outages for the fleet against a model (`model_outages`) and for "no trend" (`trend_outages`).
    """

    times_fleet: float = _SHIPPED.times_fleet
    chance: float = _SHIPPED.chance
    min_outages: int = _SHIPPED.min_outages
    fade_days: float = _SHIPPED.fade / _DAY_S
    horizon_days: float = 7.0
    memory_days: float = 365.0
    ignored_causes: frozenset[str] = NO_OUTAGE
    typical_rate_per_day: float = 0.004
    typical_strength: float = 0.5
    model_outages: float = 10.0
    trend_outages: float = 10.0

    @staticmethod
    def of(policy: ChronicPolicy) -> "ChronicLimits":
        """The limits that a site's policy sets."""
        return ChronicLimits(policy.times_fleet, policy.chance, policy.min_outages, policy.fade / _DAY_S)


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a thing before its own past is looked at: Gamma with the shape `strength`, mean `per_day`.

    `strength` counts as that many outages, in `days` of service.
    """

    strength: float
    per_day: float

    @property
    def days(self) -> float:
        """The rate parameter of the Gamma distribution."""
        return self.strength / self.per_day


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """How forecasts could have turned out: an element for each thing and each past window of `horizon_days`.

    `weighted` and `weighted_days` are what was known when the window began, `standing` the row of the hazard table by
    the time since the return, `outages` and `days` what came in the window.
    """

    weighted: Floats
    weighted_days: Floats
    standing: Ints
    outages: Floats
    days: Floats


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the past of one kind of things says: the prior of each model and of the fleet, the factor of each standing.

    `factors` multiply the rate for the next window; they never rise with the time since the return, and the last is for
    things without an outage.
    """

    fleet: Prior
    models: Mapping[str, Prior]
    factors: tuple[float, ...]

    def of(self, model: str) -> Prior:
        """The prior of a model, the fleet's where it isn't known."""
        return self.models.get(model, self.fleet)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Scores as columns, a row for each thing of a `Record`."""

    weighted: Floats
    rate_per_day: Floats
    fleet_rate_per_day: Floats
    chance: Floats
    hazard_next_week: Floats
    chronic: Bools


@dataclass(frozen=True, slots=True)
class ChronicScore:
    """How chronic a thing is. `last_return` None: it has never come back from an outage.

    `rate_per_day` is the posterior mean, `fleet_rate_per_day` that of its kind and model; outages a day of service.
    `chance` is that of more than `times_fleet` times the latter. `hazard_next_week` ranks: the outages to be expected
    in the next `horizon_days` of service; for a thing that is out, if it came back now.
    """

    thing: str
    outages: int
    out_now: bool
    last_return: datetime | None
    weighted_outages: float
    rate_per_day: float
    fleet_rate_per_day: float
    chance: float
    hazard_next_week: float
    chronic: bool
    why: str


def scores(
    outages: Iterable[Outage], exposures: Iterable[Exposure], now: datetime, limits: ChronicLimits | None = None
) -> tuple[ChronicScore, ...]:
    """All things that are there at `now`, the likeliest to fail next first. Each kind is a fleet of its own.

    `exposures` must hold things without an outage too: they are what the others are compared with.
    """
    limits = limits or ChronicLimits()
    counted = [one for one in outages if one.cause_class not in limits.ignored_causes and one.began < now]
    known = [one for one in exposures if one.since <= now]
    told: list[ChronicScore] = []
    kinds = {kind_of(one.thing) for one in counted} | {kind_of(one.thing) for one in known}
    for kind in sorted(kinds):
        mine = [one for one in counted if kind_of(one.thing) == kind]
        record = Record.of(mine, (one for one in known if kind_of(one.thing) == kind), now).as_of(0.0)
        told += _told(record, score(record, 0.0, fit(record, 0.0, limits), limits), limits)
    return tuple(sorted(told, key=lambda one: (-one.hazard_next_week, one.thing)))


def score(record: Record, day: float, fitted: Fitted, limits: ChronicLimits) -> Columns:
    """The scores of a record as it was known at `day` (of the record's own days)."""
    weighted, days, standing = standings(record, day, limits.fade_days)
    mean = np.array([fitted.of(model).per_day for model in record.models], np.float64)
    strength = fitted.fleet.strength
    shape, prior_and_own_days = strength + weighted, strength / mean + days
    rate = shape / prior_and_own_days
    chance = gamma.sf(limits.times_fleet * mean * prior_and_own_days, shape)
    often = record.outages_of(-math.inf, math.inf) >= limits.min_outages
    ahead = rate * np.array(fitted.factors)[standing] * limits.horizon_days
    return Columns(weighted, rate, mean, chance, ahead, often & (weighted > 0.0) & (chance >= limits.chance))


def standings(record: Record, day: float, fade_days: float) -> tuple[Floats, Floats, Ints]:
    """Weighted outages, weighted days of service and the row of the hazard table, each of shape (things,).

    A thing that is out is taken as coming back at `day`. `record` must be as of `day`.
    """
    ended = np.minimum(record.ended, day)

    def weight(first: Floats, last: Floats) -> Floats:
        """The weights of the days from first to last, summed up."""
        total: Floats = fade_days * (
            np.exp((last - day) / fade_days) - np.exp((np.minimum(first, last) - day) / fade_days)
        )
        return total

    gone = np.minimum(record.until, day)
    there = weight(record.since, gone)
    out = record.per_thing(weight(record.began, np.minimum(ended, gone[record.owner])))
    last = np.full(len(record.things), -math.inf)
    np.maximum.at(last, record.owner, ended)
    rows = np.searchsorted(np.array(BUCKETS_DAYS), day - last, side="right") - 1
    standing = np.where(np.isinf(last), _NEVER, rows)
    return record.per_thing(np.exp((ended - day) / fade_days)), np.maximum(0.0, there - out), standing


def replay(record: Record, day: float, limits: ChronicLimits) -> Windows:
    """All windows that ended by `day`, back to the first thing or as far as memory goes, the newest first."""
    begin = max(float(record.since.min(initial=math.inf)), day - limits.memory_days)
    count = int((day - begin) // limits.horizon_days) if begin < day else 0
    parts: list[tuple[Floats, Floats, Ints, Floats, Floats]] = []
    for number in range(1, count + 1):
        first, last = day - number * limits.horizon_days, day - (number - 1) * limits.horizon_days
        known = standings(record.as_of(first), first, limits.fade_days)
        parts.append((*known, record.outages_of(first, last), record.in_service_days(first, last)))
    columns = [np.concatenate([part[at] for part in parts] or [np.empty(0)]) for at in range(5)]
    return Windows(columns[0], columns[1], columns[2].astype(np.int64), columns[3], columns[4])


def fit(record: Record, day: float, limits: ChronicLimits) -> Fitted:
    """The prior and the factors from everything that is known at `day`; `record` must be as of that day."""
    first = day - limits.memory_days
    counts, days = record.outages_of(first, day), record.in_service_days(first, day)
    fleet_mean = mean_rate(counts, days, limits)
    names = sorted(set(record.models))
    model = np.searchsorted(np.array(names, np.str_), np.array(record.models, np.str_))
    own = np.bincount(model, counts, minlength=len(names)), np.bincount(model, days, minlength=len(names))
    means = (own[0] + limits.model_outages) / (own[1] + limits.model_outages / fleet_mean)
    windows = replay(record, day, limits)
    strength, factors = foretelling(windows, np.resize(means[model], len(windows.days)), limits)
    priors = {name: Prior(strength, float(mean)) for name, mean in zip(names, means, strict=True)}
    return Fitted(Prior(strength, fleet_mean), priors, factors)


def mean_rate(counts: Floats, days: Floats, limits: ChronicLimits) -> float:
    """The fleet's outages a day of service; half an outage is added, so that none at all is no rate of zero."""
    extra = 0.5
    return float((counts.sum() + extra) / (days.sum() + extra / limits.typical_rate_per_day))


def foretelling(windows: Windows, mean: Floats, limits: ChronicLimits) -> tuple[float, tuple[float, ...]]:
    """The strength of the prior and the factor of each standing with which the windows were foretold best.

    `mean` is each element's prior rate a day. Empirical Bayes by the Poisson deviance of the forecasts, which needs
    only their mean to be right. The marginal (negative binomial) likelihood takes a burst of one thing for a lasting
    difference between things; forecasts made with it were twice too high for the worst nodes of the trace. A wide
    log-normal around `typical_strength` decides where there is nothing to learn from: no windows, no outages, one
    thing, things that are all alike.
    """

    def of(strength: float) -> tuple[Floats, Floats]:
        """What was expected in each window, and the factors that it leaves to be explained."""
        expected = (strength + windows.weighted) / (strength / mean + windows.weighted_days) * windows.days
        return expected, recency_factors(windows, expected, limits)

    def badness(log_strength: float) -> float:
        expected, factors = of(math.exp(log_strength))
        told = expected[use] * factors[windows.standing[use]]
        far = log_strength - math.log(limits.typical_strength)
        return float((told - windows.outages[use] * np.log(told)).sum() + far**2 / 2)

    use = windows.days > 0.0
    low, high = (math.log(one) for one in _STRENGTHS)
    strength = math.exp(minimize_scalar(badness, bounds=(low, high), method="bounded").x)
    return strength, tuple(float(factor) for factor in of(strength)[1])


def recency_factors(windows: Windows, expected: Floats, limits: ChronicLimits) -> Floats:
    """What came in the windows over what was expected, for each row of the hazard table and for "no outage yet".

    Shrunk towards 1 by `trend_outages`, and never rising with the time since the return.
    """
    came = np.bincount(windows.standing, windows.outages, minlength=_NEVER + 1) + limits.trend_outages
    due = np.bincount(windows.standing, expected, minlength=_NEVER + 1) + limits.trend_outages
    factors: Floats = isotonic_regression(came / due, weights=due, increasing=False).x
    return factors


def _told(record: Record, columns: Columns, limits: ChronicLimits) -> Iterable[ChronicScore]:
    """The rows of a record as of its origin, in words."""
    counts = record.outages_of(-math.inf, 0.0)
    last = np.full(len(record.things), -math.inf)
    np.maximum.at(last, record.owner, np.where(np.isinf(record.ended), -math.inf, record.ended))
    out = record.per_thing(np.isinf(record.ended)) > 0.0
    for row, thing in enumerate(record.things):
        if math.isfinite(record.until[row]):
            continue
        standing = "out of service now" if out[row] else f"back for {-last[row]:.1f} days"
        returned = None if math.isinf(last[row]) else record.origin + timedelta(days=float(last[row]))
        yield ChronicScore(
            thing, int(counts[row]), bool(out[row]), returned, float(columns.weighted[row]),
            float(columns.rate_per_day[row]), float(columns.fleet_rate_per_day[row]), float(columns.chance[row]),
            float(columns.hazard_next_week[row]), bool(columns.chronic[row]),
            _why(int(counts[row]), standing, columns, row, limits),
        )  # fmt: skip


def _why(count: int, standing: str, columns: Columns, row: int, limits: ChronicLimits) -> str:
    """One sentence for the person on call."""
    if count == 0:
        return "no outage so far"
    ratio = columns.rate_per_day[row] / columns.fleet_rate_per_day[row]
    return (
        f"{count} outage{'s'[: count > 1]}, {standing}: it fails at {ratio:.1f} x the rate of its like by what it did"
        f" lately, with a {100 * columns.chance[row]:.0f} % chance of over {limits.times_fleet:g} x"
        f" (limit {100 * limits.chance:.0f} %)"
    )
