"""When does a thing that came back fail again? Outages of GPUs, nodes and slots, and the hazard since their return.

A thing is named by a key that repairs and restarts leave alone: `gpu:<UUID>`, `node:<name>`, `slot:<node>/<slot>`; what
had a node's name before it was created has another key. What stands before the colon is its kind. `detectors.chronic`
scores on top of this, and `gpuwarden chronic` prints the table.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gamma

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Days since the return at which the rows of the table begin; the last row has no end.
BUCKETS_DAYS = (0.0, 1.0, 3.0, 7.0, 14.0, 30.0, 60.0, 120.0)
_DAY = timedelta(days=1)
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Outage:
    """One time that a thing was out of service because of a fault. `ended` None: it still is.

    `cause_class` is a word of `rules.vocabulary.CauseClass`, or what another source calls it. ValueError for a time
    without a zone, and for an end before the beginning.
    """

    thing: str
    began: datetime
    ended: datetime | None
    cause_class: str
    model: str = ""

    def __post_init__(self) -> None:
        _check(f"an outage of {self.thing}", self.began, self.ended)


@dataclass(frozen=True, slots=True)
class Exposure:
    """Since when a thing is known, and until when it was there (None: it still is).

    A swapped GPU is another thing: the old one gets an `until`, the new one begins with nothing, the slot goes on.
    ValueError as for an outage.
    """

    thing: str
    since: datetime
    until: datetime | None = None
    model: str = ""

    def __post_init__(self) -> None:
        _check(f"the exposure of {self.thing}", self.since, self.until)


def kind_of(thing: str) -> str:
    """What stands before the colon: `gpu`, `node`, `slot`; "" without a colon."""
    return thing.partition(":")[0] if ":" in thing else ""


def merged(outages: Iterable[Outage]) -> tuple[Outage, ...]:
    """Outages of one thing that overlap or touch as one, with the cause and model of the first; oldest first."""
    last: dict[str, Outage] = {}
    whole: list[Outage] = []
    for one in sorted(outages, key=_order):
        before = last.get(one.thing)
        if before is None or (before.ended is not None and before.ended < one.began):
            if before is not None:
                whole.append(before)
            last[one.thing] = one
        elif before.ended is not None:
            last[one.thing] = replace(before, ended=None if one.ended is None else max(before.ended, one.ended))
    return tuple(sorted((*whole, *last.values()), key=_order))


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """The outages of many things as columns. Times are days since `origin`; infinity is "still there", "still out".

    `things`, `models`, `since` and `until` have a row for each thing, `owner` (a row of those), `began` and `ended` one
    for each merged outage, sorted by thing and time.
    """

    origin: datetime
    things: tuple[str, ...]
    models: tuple[str, ...]
    since: Floats
    until: Floats
    owner: Ints
    began: Floats
    ended: Floats

    @staticmethod
    def of(outages: Iterable[Outage], exposures: Iterable[Exposure], origin: datetime) -> "Record":
        """A thing without an exposure is known since its first outage; one that has several is one thing."""
        whole = merged(outages)
        known: dict[str, Exposure] = {}
        for new in exposures:
            life = known.get(new.thing, new)
            until = None if life.until is None or new.until is None else max(life.until, new.until)
            known[new.thing] = Exposure(new.thing, min(life.since, new.since), until, life.model or new.model)
        for one in whole:
            life = known.get(one.thing) or Exposure(one.thing, one.began)
            until = None if life.until is None else max(life.until, one.began)
            known[one.thing] = Exposure(one.thing, min(life.since, one.began), until, life.model or one.model)
        row = {thing: index for index, thing in enumerate(sorted(known))}
        lives = [known[thing] for thing in row]
        rows = sorted(whole, key=lambda one: (row[one.thing], one.began))
        return Record(
            origin,
            tuple(row),
            tuple(life.model for life in lives),
            np.array([_days(life.since, origin) for life in lives], np.float64),
            np.array([_days(life.until, origin) for life in lives], np.float64),
            np.array([row[one.thing] for one in rows], np.int64),
            np.array([_days(one.began, origin) for one in rows], np.float64),
            np.array([_days(one.ended, origin) for one in rows], np.float64),
        )

    def as_of(self, day: float) -> "Record":
        """What was known at that time: no later outage, and no end that was still to come."""
        before = self.began < day
        ended = np.where(self.ended > day, math.inf, self.ended)
        until = np.where(self.until > day, math.inf, self.until)
        return replace(self, until=until, owner=self.owner[before], began=self.began[before], ended=ended[before])

    def outages_of(self, first: float, last: float) -> Floats:
        """How many outages of each thing began in [first, last), shape (things,)."""
        return self.per_thing((self.began >= first) & (self.began < last))

    def in_service_days(self, first: float, last: float) -> Floats:
        """How many days of [first, last) each thing was there and not out, shape (things,)."""
        gone = np.minimum(self.until, last)
        there = np.maximum(0.0, gone - np.maximum(self.since, first))
        out = np.minimum(self.ended, gone[self.owner]) - np.maximum(self.began, first)
        served: Floats = np.maximum(0.0, there - self.per_thing(np.maximum(0.0, out)))
        return served

    def per_thing(self, of_outages: Floats | Bools) -> Floats:
        """Sums over the outages of each thing, shape (things,)."""
        sums: Floats = np.bincount(self.owner, of_outages, minlength=len(self.things)).astype(np.float64)
        return sums


@dataclass(frozen=True, slots=True)
class HazardRow:
    """Outages that came `from_day` to `to_day` days after the return, in so many days of service.

    `low_per_day` and `high_per_day` are the exact 95 % interval of a Poisson rate (Garwood). It takes outages as
    independent of each other, which bursts of one sick node are not: read it as the narrowest that it can be.
    """

    from_day: float
    to_day: float
    outages: int
    exposure_days: float
    hazard_per_day: float
    times_fleet: float
    low_per_day: float
    high_per_day: float


@dataclass(frozen=True, slots=True)
class HazardTable:
    """`rows` by the time since the return, `before_first` for things without an outage so far, `fleet` for all days."""

    rows: tuple[HazardRow, ...]
    before_first: HazardRow
    fleet: HazardRow


def hazard_table(
    outages: Iterable[Outage],
    things: Iterable[Exposure],
    span: tuple[datetime, datetime],
    buckets: Sequence[float] = BUCKETS_DAYS,
) -> HazardTable:
    """The hazard by days since the return, within `span`; `buckets` are the first days of the rows, ascending.

    `things` must hold those without an outage too, or the fleet looks worse than it is.
    """
    first, last = 0.0, _days(span[1], span[0])
    record = Record.of(outages, things, span[0]).as_of(last)
    gone = np.minimum(record.until, last)
    total = _row(0.0, math.inf, record.outages_of(first, last).sum(), record.in_service_days(first, last).sum(), 0.0)

    back = np.flatnonzero(np.isfinite(record.ended))
    owner, returned = record.owner[back], record.ended[back]
    following = np.append(record.began, math.inf)[back + 1]
    same = np.append(record.owner, -1)[back + 1] == owner
    again = np.where(same, following, math.inf)
    from_day = np.maximum(returned, first) - returned
    to_day = np.minimum(again, gone[owner]) - returned
    fails = same & (again >= first)
    rows = []
    for low, high in zip(buckets, (*buckets[1:], math.inf), strict=True):
        service = np.maximum(0.0, np.minimum(to_day, high) - np.maximum(from_day, low)).sum()
        failed = fails & (again - returned >= low) & (again - returned < high)
        rows.append(_row(low, high, int(failed.sum()), service, total.hazard_per_day))

    begins = np.append(-1, record.owner)[:-1] != record.owner
    earliest = np.full(len(record.things), math.inf)
    earliest[record.owner[begins]] = record.began[begins]
    service = np.maximum(0.0, np.minimum(earliest, gone) - np.maximum(record.since, first)).sum()
    never = _row(0.0, math.inf, int((begins & (record.began >= first)).sum()), service, total.hazard_per_day)
    return HazardTable(tuple(rows), never, replace(total, times_fleet=1.0))


def _row(low: float, high: float, outages: float, service_days: float, fleet_per_day: float) -> HazardRow:
    """One row; without any service the hazard is not known, which the interval says: 0 to infinity."""
    count, service = int(outages), float(service_days)
    if service <= 0.0:
        return HazardRow(low, high, count, 0.0, 0.0, 0.0, 0.0, math.inf)
    hazard = count / service
    least = float(gamma.ppf(_TAILS[0], count)) / service if count else 0.0
    most = float(gamma.ppf(_TAILS[1], count + 1)) / service
    return HazardRow(low, high, count, service, hazard, hazard / fleet_per_day if fleet_per_day else 0.0, least, most)


def _order(one: Outage) -> tuple[datetime, str, bool, datetime, str, str]:
    return one.began, one.thing, one.ended is None, one.ended or one.began, one.cause_class, one.model


def _days(at: datetime | None, origin: datetime) -> float:
    return math.inf if at is None else (at - origin) / _DAY


def _check(what: str, first: datetime, last: datetime | None) -> None:
    for at in (first, last):
        if at is not None and at.tzinfo is None:
            raise ValueError(f"{what} has the time {at.isoformat()} without a zone: give it one, UTC for instance")
    if last is not None and last < first:
        raise ValueError(f"{what} ends at {last.isoformat()}, before it begins at {first.isoformat()}")
