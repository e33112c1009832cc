"""`python -m tests.chronic.validate`: the chronic score on the real trace, walked forward in time.

At each ranking moment everything is fitted on what was known then. Prints tables, or with `-o json` one object. The
figures of docs/chronic.md come from here.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import gamma

from detectors.chronic import ChronicLimits, Prior
from detectors.hazard import Floats, HazardRow, hazard_table
from tests.chronic.outcomes import MONTH_DAYS, Bin, Quarantine, chance_bins, forecast_bins, quarantines
from tests.chronic.trace import Trace, read
from tests.chronic.walk import TOP, Walk, interval, moments, ranking_days, resampled, walk, weighted_sum

REPEATS = 2000
SHIPPED = "shipped (hazard_next_week)"
AGAINST = (
    "decay only, 7 d",
    "decay only, 14 d",
    "decay only, 30 d",
    "decay only, 60 d",
    "plain count",
    ">= 5 in 7 days",
)


@dataclass(frozen=True, slots=True)
class Share:
    """Of the outages in the weeks after, how many were on the servers that a method named.

    `any_start` is the same averaged over all seven days that a week can begin on. `precision`: of the servers named,
    how many had an outage in the week. `shipped_minus`: the shipped score's share less this one, paired, with interval.
    """

    outages: str
    part: str
    method: str
    weeks: int
    of_outages: int
    share: float
    interval: tuple[float, float]
    any_start: float
    any_start_interval: tuple[float, float]
    precision: float
    shipped_minus: tuple[float, float, float] | None


def parts(days: Floats, span_days: float) -> dict[str, Floats]:
    """Which ranking moments belong to each part of the time."""
    early = days < span_days / 2
    return {"first half": early, "second half": ~early, "both": np.full(len(days), fill_value=True)}


def shares(trace: Trace, label: str, limits: ChronicLimits) -> list[Share]:
    """The walk's result for each method and part of the time."""
    record = trace.record()
    walks = [walk(record, ranking_days(trace.days, offset), limits) for offset in range(7)]
    whole = _together(walks)
    told = []
    for part, chosen in parts(walks[0].days, trace.days).items():
        weeks, nodes = resampled(int(chosen.sum()), len(record.things), REPEATS)
        drawn = {name: _drawn(walks[0], name, chosen, weeks, nodes) for name in walks[0].hits}
        for name in walks[0].hits:
            hits, outages = walks[0].hits[name][chosen].sum(), walks[0].outages[chosen].sum()
            named = walks[0].named[name][chosen]
            hit_nodes = (named * (walks[0].outages[chosen] > 0)).sum()
            paired = drawn[SHIPPED] - drawn[name]
            low, high = interval(paired)
            difference = float(walks[0].hits[SHIPPED][chosen].sum() - hits) / outages
            told.append(
                Share(
                    label, part, name, int(chosen.sum()), int(outages), float(hits / outages), interval(drawn[name]),
                    float(whole.hits[name][chosen].sum() / whole.outages[chosen].sum()),
                    interval(_drawn(whole, name, chosen, weeks, nodes)),
                    float(hit_nodes / named.sum()) if named.sum() else 0.0,
                    (difference, low, high) if name in AGAINST else None,
                )
            )  # fmt: skip
    return told


def _together(walks: Sequence[Walk]) -> Walk:
    """The sums over the starting days; a week that only some starts have is theirs alone."""
    length = len(walks[0].days)

    def padded(table: Floats) -> Floats:
        return np.vstack([table, np.zeros((length - len(table), table.shape[1]))])

    return Walk(
        walks[0].days,
        {name: np.sum([padded(one.hits[name]) for one in walks], axis=0) for name in walks[0].hits},
        walks[0].named,
        np.sum([padded(one.outages) for one in walks], axis=0),
    )


def _drawn(walked: Walk, name: str, chosen: Floats, weeks: Floats, nodes: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        hits = weighted_sum(walked.hits[name][chosen], weeks, nodes)
        return hits / weighted_sum(walked.outages[chosen], weeks, nodes)


def hazards(trace: Trace) -> list[HazardRow]:
    """The rows by time since the return, then "none yet", then all."""
    table = hazard_table(trace.outages, trace.exposures, trace.span)
    return [*table.rows, table.before_first, table.fleet]


def fitted(trace: Trace, limits: ChronicLimits) -> dict[str, Any]:
    """What was fitted by the middle and by the end, and the chance that 1, 2, ... outages of today alone would give."""
    days = np.array([trace.days / 2, trace.days])
    return {
        f"day {one.day:.0f}": {
            "strength": one.fitted.fleet.strength,
            "fleet_per_day": one.fitted.fleet.per_day,
            "factors": list(one.fitted.factors),
            "chance_of_fresh_outages": [_chance(one.fitted.fleet, count, limits) for count in range(1, 6)],
        }
        for one in moments(trace.record(), days, limits)
    }


def _chance(prior: Prior, fresh: int, limits: ChronicLimits) -> float:
    at = limits.times_fleet * prior.per_day * (prior.days + limits.fade_days)
    return float(gamma.sf(at, prior.strength + fresh))


def figures(trace: Trace, limits: ChronicLimits) -> dict[str, Any]:
    """Everything, as plain values."""
    record = trace.record()
    _, nodes = resampled(1, len(record.things), REPEATS)
    weekly = ranking_days(trace.days)
    month = weekly[weekly <= trace.days - MONTH_DAYS]
    gpu = trace.of_class("GPU")
    return {
        "limits": {name: value for name, value in asdict(limits).items() if name != "ignored_causes"},
        "hazard": [asdict(one) for one in hazards(trace)],
        "outages_by_30_days": [
            int(record.outages_of(day, day + MONTH_DAYS).sum()) for day in np.arange(0.0, trace.days, MONTH_DAYS)
        ],
        "fitted": {"all": fitted(trace, limits), "class GPU": fitted(gpu, limits)},
        "shares": [asdict(one) for one in (*shares(trace, "all", limits), *shares(gpu, "class GPU", limits))],
        "forecasts": [asdict(one) for one in forecast_bins(record, weekly, limits, nodes)],
        "chances": [asdict(one) for one in chance_bins(record, month, limits, nodes)],
        "quarantines": [asdict(one) for one in quarantines(record, trace.days, limits, nodes)],
    }


def lines(told: dict[str, Any]) -> Iterable[str]:
    """The figures as tables."""
    yield "\nhazard since the return: from, to (days), outages, days of service, a day, x fleet, 95 % interval a day"
    for row in (HazardRow(**one) for one in told["hazard"]):
        yield (
            f"  {row.from_day:5g} {row.to_day:5g} {row.outages:4d} {row.exposure_days:9.1f} {row.hazard_per_day:.4f}"
            f" {row.times_fleet:6.2f}  {row.low_per_day:.4f}-{row.high_per_day:.4f}"
        )
    yield f"\noutages in each 30 days: {told['outages_by_30_days']}"
    yield f"\nfitted: {json.dumps(told['fitted'])}"
    yield f"\nshare of the next week's outages on the {TOP} servers named; shipped minus this is paired"
    for one in (Share(**one) for one in told["shares"]):
        less = "" if one.shipped_minus is None else " shipped minus this {:+.1f} [{:+.1f}, {:+.1f}]".format(
            *(100 * value for value in one.shipped_minus)
        )  # fmt: skip
        yield (
            f"  {one.outages:9s} {one.part:11s} {one.method:29s} {one.weeks:3d} weeks {one.of_outages:3d} outages"
            f" {_percent(one.share, one.interval)}  any start {_percent(one.any_start, one.any_start_interval)}"
            f"  precision {100 * one.precision:4.1f}{less}"
        )
    for name in ("forecasts", "chances"):
        yield f"\n{name}: from, to, server-weeks, servers, foretold, came, 95 % interval, any outage"
        for one in (Bin(**one) for one in told[name]):
            yield (
                f"  {one.low:5g} {one.high:5g} {one.server_weeks:6d} {one.servers:4d} {one.foretold:8.3f}"
                f" {one.came:7.3f} [{one.interval[0]:.3f}, {one.interval[1]:.3f}] {100 * one.any_share:4.1f} %"
            )
    yield "\nquarantine for a month: times, servers, prevented, service days lost, prevented a day lost x fleet's rate"
    for one in (Quarantine(**one) for one in told["quarantines"]):
        yield (
            f"  {one.rule:28s} {one.part:11s} {one.quarantines:4d} {one.servers:4d}"
            f" {one.prevented:3d} of {one.outages:3d} {_percent(one.prevented_share, one.prevented_interval)}"
            f" {one.days_lost:7.0f} ({100 * one.service_share:.2f} %) {one.times_fleet:5.1f}"
            f" [{one.times_fleet_interval[0]:.1f}, {one.times_fleet_interval[1]:.1f}] by month {one.by_month}"
        )


def _percent(share: float, about: tuple[float, float]) -> str:
    return f"{100 * share:5.1f} % [{100 * about[0]:4.1f}, {100 * about[1]:4.1f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chronic.validate", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    chosen = parser.parse_args(arguments)
    try:
        trace = read()
    except OSError as missing:
        print(f"the trace is not there: {missing}", file=sys.stderr)
        return 1
    told = figures(trace, ChronicLimits())
    print(json.dumps(told, indent=1) if chosen.output == "json" else "\n".join(lines(told)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
