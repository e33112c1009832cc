"""Outages, the days in between, and the hazard since the return."""

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.hazard import Exposure, Outage, Record, hazard_table, kind_of, merged

T0 = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def outage(began: float, ended: float | None, thing: str = "node:a", cause: str = "hardware") -> Outage:
    return Outage(thing, T0 + began * DAY, None if ended is None else T0 + ended * DAY, cause)


def spans(outages) -> list[tuple[str, float, float | None]]:
    return [
        (one.thing, (one.began - T0) / DAY, None if one.ended is None else (one.ended - T0) / DAY) for one in outages
    ]


@pytest.mark.parametrize(
    ("given_outages", "expected"),
    [
        pytest.param([(1, 3), (2, 5)], [(1, 5)], id="two that overlap are one"),
        pytest.param([(1, 5), (2, 3)], [(1, 5)], id="one inside another adds nothing"),
        pytest.param([(1, 2), (2, 3)], [(1, 3)], id="the thing did not come back between two that touch"),
        pytest.param([(1, 2), (2.5, 3)], [(1, 2), (2.5, 3)], id="twelve hours of service keep two apart"),
        pytest.param([(1, None), (2, 3)], [(1, None)], id="what began while it was out belongs to the open one"),
        pytest.param([(1, 3), (2, None)], [(1, None)], id="an open one keeps the whole open"),
        pytest.param([(4, 5), (1, 2)], [(1, 2), (4, 5)], id="the oldest comes first"),
        pytest.param([(1, 1)], [(1, 1)], id="one without any length still is one"),
    ],
)
def test_outages_of_one_thing_are_merged_where(given_outages, expected):
    told = spans(merged(outage(*one) for one in given_outages))
    assert told == [("node:a", *one) for one in expected]


def test_outages_of_different_things_are_never_merged():
    assert len(merged([outage(1, 3), outage(2, 4, "node:b")])) == 2


def test_a_merged_outage_has_the_cause_that_came_first():
    assert merged([outage(2, 4, cause="link"), outage(1, 3, cause="memory")])[0].cause_class == "memory"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(
            lambda: Outage("gpu:1", datetime(2026, 3, 1), None, "memory"),
            "an outage of gpu:1 has the time 2026-03-01T00:00:00 without a zone",
            id="an outage without a zone",
        ),
        pytest.param(
            lambda: outage(2, 1),
            "an outage of node:a ends at 2026-03-02T00:00:00+00:00, before it begins",
            id="an outage that ends before it begins",
        ),
        pytest.param(
            lambda: Exposure("gpu:1", T0, datetime(2026, 3, 2)),
            "the exposure of gpu:1",
            id="an exposure without a zone",
        ),
        pytest.param(
            lambda: Exposure("gpu:1", T0, T0 - DAY), "before it begins", id="an exposure that ends before it begins"
        ),
    ],
)
def test_impossible_times_are_refused_with_the_reason(make, says):
    with pytest.raises(ValueError, match=r"zone|before") as refused:
        make()
    assert says in str(refused.value)


def test_the_kind_is_what_stands_before_the_colon():
    assert [kind_of(one) for one in ("gpu:GPU-1", "slot:n1/3", "nothing")] == ["gpu", "slot", ""]


def record(*outages: Outage, exposures: tuple[Exposure, ...] = ()) -> Record:
    return Record.of(outages, exposures, T0)


@pytest.mark.parametrize(
    ("outages", "exposure", "days"),
    [
        pytest.param([], (0, None), 10, id="all days without an outage"),
        pytest.param([(2, 5)], (0, None), 7, id="less those out"),
        pytest.param([(8, None)], (0, None), 8, id="an open outage lasts"),
        pytest.param([(-3, 1)], (-5, None), 9, id="of an outage from before only what falls into the time"),
        pytest.param([], (4, None), 6, id="only since it is known"),
        pytest.param([], (0, 7), 7, id="only until it was taken away"),
        pytest.param([(5, None)], (0, 7), 5, id="an outage that it was taken away with ends there"),
        pytest.param([(1, 3)], (2, None), 7, id="known at the latest since its first outage"),
    ],
)
def test_days_in_service_are(outages, exposure, days):
    since, until = exposure
    life = Exposure("node:a", T0 + since * DAY, None if until is None else T0 + until * DAY)
    told = record(*(outage(*one) for one in outages), exposures=(life,))
    assert told.in_service_days(0.0, 10.0) == pytest.approx([days])


def test_a_thing_that_was_away_and_came_back_is_one_thing():
    lives = (Exposure("gpu:1", T0, T0 + DAY, "H100"), Exposure("gpu:1", T0 + 3 * DAY))
    told = record(exposures=lives)
    assert (told.things, told.models, list(told.until)) == (("gpu:1",), ("H100",), [math.inf])


def test_as_of_a_day_no_later_outage_or_end_is_known():
    known = record(outage(1, 2), outage(4, 9), outage(6, 7, "node:b")).as_of(5.0)
    assert list(known.began) == [1.0, 4.0]
    assert list(known.ended) == [2.0, math.inf]


def test_the_table_counts_outages_and_days_by_the_time_since_the_return():
    things = [Exposure("node:a", T0), Exposure("node:b", T0)]
    told = hazard_table([outage(2, 3), outage(3.5, 4), outage(14, 15)], things, (T0, T0 + 20 * DAY), (0, 1, 7))
    assert [(row.outages, row.exposure_days) for row in told.rows] == [(1, 2.5), (0, 10.0), (1, 3.0)]
    assert (told.before_first.outages, told.before_first.exposure_days) == (1, 22.0)
    assert (told.fleet.outages, told.fleet.exposure_days) == (3, 37.5)
    assert told.rows[0].times_fleet == pytest.approx((1 / 2.5) / (3 / 37.5))


def test_the_interval_of_a_row_is_the_exact_one_of_a_poisson_count():
    things = [Exposure("node:a", T0)]
    told = hazard_table([outage(1, 1), outage(1.5, 1.5)], things, (T0, T0 + 11 * DAY), (0,)).rows[0]
    assert (told.outages, told.exposure_days) == (1, 10.0)
    assert (told.low_per_day, told.high_per_day) == pytest.approx((0.002532, 0.557164), abs=1e-6)


def test_a_row_that_nothing_is_known_of_says_so_by_its_interval():
    told = hazard_table([], [], (T0, T0 + DAY))
    assert {(row.hazard_per_day, row.low_per_day, row.high_per_day) for row in told.rows} == {(0.0, 0.0, math.inf)}


def test_a_table_of_part_of_the_time_leaves_out_what_came_before():
    outages, things = [outage(2, 3), outage(12, 13)], [Exposure("node:a", T0)]
    told = hazard_table(outages, things, (T0 + 10 * DAY, T0 + 20 * DAY), (0, 7))
    assert [(row.outages, row.exposure_days) for row in told.rows] == [(0, 7.0), (1, 2.0)]
    assert told.before_first.exposure_days == 0.0


HOURS = st.integers(0, 60 * 24)
OUTAGES = st.lists(
    st.builds(
        lambda thing, began, length: outage(began / 24, None if length is None else (began + length) / 24, thing),
        st.sampled_from(["node:a", "node:b", "node:c"]), HOURS, st.none() | st.integers(0, 20 * 24),
    ),
    max_size=12,
)  # fmt: skip


@given(OUTAGES)
def test_merging_twice_changes_nothing_and_leaves_gaps(outages):
    once = merged(outages)
    assert merged(once) == once
    for thing in {one.thing for one in once}:
        mine = [one for one in once if one.thing == thing]
        assert all(one.ended is not None and one.ended < two.began for one, two in pairwise(mine))


@given(OUTAGES, st.integers(1, 90))
def test_the_rows_of_the_table_add_up_to_the_fleet(outages, days):
    told = hazard_table(outages, [Exposure("node:d", T0)], (T0, T0 + days * DAY))
    rows = (*told.rows, told.before_first)
    assert sum(row.outages for row in rows) == told.fleet.outages
    assert sum(row.exposure_days for row in rows) == pytest.approx(told.fleet.exposure_days, abs=1e-6)
    assert all(row.low_per_day <= row.hazard_per_day <= row.high_per_day for row in rows)
