"""What followed: were the chances right, and what would a quarantine of the chronic servers have saved and cost?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from detectors.chronic import ChronicLimits, score
from detectors.hazard import Floats, Record
from tests.chronic.walk import WARM_UP_DAYS, Moment, decayed, five_in_seven, interval, moments

#: How long a server is taken to be away for service, and how far ahead the chances are checked.
MONTH_DAYS = 30.0
CHANCES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0)
FORECASTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, np.inf)


@dataclass(frozen=True, slots=True)
class Bin:
    """Server-weeks whose figure was in [low, high): what was foretold for them and what came, a unit of service.

    In times the fleet's rate, or in outages a week. `any_share`: how many of them had an outage in that time at all.
    """

    low: float
    high: float
    server_weeks: int
    servers: int
    foretold: float
    came: float
    interval: tuple[float, float]
    any_share: float


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    figure: Floats
    expected: Floats
    outages: Floats
    base: Floats


def chance_bins(record: Record, days: Floats, limits: ChronicLimits, nodes: Floats) -> list[Bin]:
    """The rate in the month after, in times the fleet's rate as it was known, by the chance that was told."""
    cells = []
    for moment in moments(record, days, limits):
        end = moment.day + MONTH_DAYS
        base = record.in_service_days(moment.day, end) * moment.columns.fleet_rate_per_day
        ratio = moment.columns.rate_per_day / moment.columns.fleet_rate_per_day
        cells.append(_Cell(moment.columns.chance, ratio * base, record.outages_of(moment.day, end), base))
    return _bins(cells, CHANCES, nodes)


def forecast_bins(record: Record, days: Floats, limits: ChronicLimits, nodes: Floats) -> list[Bin]:
    """Outages in the next week of service, by `hazard_next_week`."""
    cells = []
    for moment in moments(record, days, limits):
        weeks = record.in_service_days(moment.day, moment.day + limits.horizon_days) / limits.horizon_days
        told = moment.columns.hazard_next_week
        cells.append(_Cell(told, told * weeks, record.outages_of(moment.day, moment.day + limits.horizon_days), weeks))
    return _bins(cells, FORECASTS, nodes)


def _bins(cells: Iterable[_Cell], edges: tuple[float, ...], nodes: Floats) -> list[Bin]:
    figure, expected, outages, base = (
        np.array(column)
        for column in zip(*((one.figure, one.expected, one.outages, one.base) for one in cells), strict=True)
    )
    bins = []
    for low, high in pairwise(edges):
        inside = (figure >= low) & ((figure < high) | ((high == edges[-1]) & (figure <= high)))
        if not inside.any():
            continue
        per_node = [(column * inside).sum(axis=0) for column in (outages, base)]
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = (nodes @ per_node[0]) / (nodes @ per_node[1])
        total = base[inside].sum()
        bins.append(
            Bin(low, high, int(inside.sum()), int(inside.any(axis=0).sum()), float(expected[inside].sum() / total),
                float(outages[inside].sum() / total), interval(drawn), float((outages[inside] > 0).mean()))
        )  # fmt: skip
    return bins


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What a rule would have done in a part of the trace, had each server that it fires on been away for a month.

    `prevented_share` is of all outages that began in that part, `service_share` of all days of service;
    `times_fleet` is outages prevented a day of service lost, in times the fleet's rate. `by_month`: quarantines begun
    in each 30 days of the trace.
    """

    rule: str
    part: str
    quarantines: int
    servers: int
    prevented: int
    outages: int
    prevented_share: float
    prevented_interval: tuple[float, float]
    days_lost: float
    service_share: float
    times_fleet: float
    times_fleet_interval: tuple[float, float]
    by_month: tuple[int, ...]


#: Says at a moment which servers it wants away.
Rule = Callable[[Moment], Floats]


def shipped(limits: ChronicLimits) -> Rule:
    """The shipped rule at other limits: what is fitted doesn't depend on them."""
    return lambda moment: score(moment.known, moment.day, moment.fitted, limits).chronic.astype(np.float64)


def rules(limits: ChronicLimits) -> dict[str, Rule]:
    """The shipped rule, its limits one step either way, and the simple ones."""
    told: dict[str, Rule] = {"shipped (defaults)": shipped(limits)}
    for times, chance in ((2, 0.9), (2, 0.95), (3, 0.8), (3, 0.95), (5, 0.8), (5, 0.9)):
        told[f"shipped, {times} x at {chance:g}"] = shipped(replace(limits, times_fleet=times, chance=chance))
    for least in (3, 4):
        told[f"shipped, from {least} outages on"] = shipped(replace(limits, min_outages=least))
    for least in (1.5, 1.8, 1.9, 2.0, 2.5):
        told[f"decay only, 14 d, sum > {least:g}"] = lambda moment, least=least: (decayed(moment, 14.0) > least) * 1.0
    for least in (3, 5):
        told[f"plain count >= {least}"] = lambda moment, least=least: (
            (moment.known.outages_of(-np.inf, moment.day) >= least) * 1.0
        )
    told["any outage"] = lambda moment: (moment.known.outages_of(-np.inf, moment.day) > 0) * 1.0
    told[">= 5 in 7 days"] = five_in_seven
    return told


def quarantines(record: Record, span_days: float, limits: ChronicLimits, nodes: Floats) -> list[Quarantine]:
    """Each rule asked every day. A server comes back after a month, and only a newer outage can send it away again.

    The outages that it would not have had stay in the record that later scores see: nobody knows what would have
    happened instead.
    """
    told = rules(limits)
    servers = len(record.things)
    last_day = span_days - MONTH_DAYS
    days = np.arange(WARM_UP_DAYS, last_day, 1.0)
    back = {name: np.full(servers, -np.inf) for name in told}
    sent: dict[str, list[tuple[float, int]]] = {name: [] for name in told}
    for moment in moments(record, days, limits):
        for name, rule in told.items():
            newer = moment.known.per_thing(moment.known.began >= back[name][moment.known.owner]) > 0
            for server in np.flatnonzero((rule(moment) > 0) & newer & (back[name] <= moment.day)):
                back[name][server] = moment.day + MONTH_DAYS
                sent[name].append((moment.day, int(server)))
    middle = span_days / 2
    parts = {"first half": (WARM_UP_DAYS, middle), "second half": (middle, last_day), "both": (WARM_UP_DAYS, last_day)}
    return [
        _told(record, name, part, [one for one in events if first <= one[0] < last], (first, last), nodes)
        for name, events in sent.items()
        for part, (first, last) in parts.items()
    ]


def _told(
    record: Record, name: str, part: str, events: list[tuple[float, int]], span: tuple[float, float], nodes: Floats
) -> Quarantine:
    outages, service = record.outages_of(*span), record.in_service_days(*span)
    prevented, lost, count = (np.zeros(len(record.things)) for _ in range(3))
    for day, server in events:
        prevented[server] += record.outages_of(day, day + MONTH_DAYS)[server]
        lost[server] += record.in_service_days(day, day + MONTH_DAYS)[server]
        count[server] += 1
    fleet = outages.sum() / service.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (nodes @ prevented) / (nodes @ outages)
        ratios = (nodes @ prevented) / (nodes @ lost) / ((nodes @ outages) / (nodes @ service))
        ratio = float(prevented.sum() / lost.sum() / fleet) if lost.sum() else 0.0
    return Quarantine(
        name, part, len(events), int((count > 0).sum()), int(prevented.sum()), int(outages.sum()),
        float(prevented.sum() / outages.sum()), interval(shares), float(lost.sum()),
        float(lost.sum() / service.sum()), ratio, interval(ratios) if events else (0.0, 0.0),
        tuple(int(one) for one in np.bincount([int(day // MONTH_DAYS) for day, _ in events], minlength=1)),
    )  # fmt: skip
