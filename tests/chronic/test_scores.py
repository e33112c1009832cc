"""What makes a thing chronic, what doesn't, and what must hold whatever the past looks like."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from detectors.chronic import ChronicLimits, ChronicScore, Fitted, Prior, fit, replay, score, scores
from detectors.hazard import BUCKETS_DAYS, Exposure, Outage, Record
from rules.restore_schema import ChronicPolicy

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
LIMITS = ChronicLimits()


def outage(thing: str, days_ago: float, hours: float | None = 2.0, cause: str = "hardware") -> Outage:
    """One that ended `days_ago`, after so many hours; None: it began then, and is still open."""
    at = NOW - days_ago * DAY
    return Outage(thing, at if hours is None else at - hours * HOUR, None if hours is None else at, cause)


def fleet(count: int = 60, days: float = 200.0, kind: str = "node", model: str = "") -> list[Exposure]:
    return [Exposure(f"{kind}:{number}", NOW - days * DAY, None, model) for number in range(count)]


#: Some outages here and there: about 0.002 a node-day.
ORDINARY = [outage(f"node:{number}", 8.0 * number - 70) for number in range(10, 34)]


def scored(*outages: Outage, exposures: list[Exposure] | None = None, limits: ChronicLimits = LIMITS):
    told = scores([*ORDINARY, *outages], exposures or fleet(), NOW, limits)
    return {one.thing: one for one in told}


def repeats(thing: str, *days_ago: float) -> list[Outage]:
    return [outage(thing, ago) for ago in days_ago]


@pytest.mark.parametrize(
    ("days_ago", "chronic"),
    [
        pytest.param([], False, id="nothing ever happened"),
        pytest.param([0.5], False, id="one outage is an accident"),
        pytest.param([1, 3, 5, 8], True, id="four within a week"),
        pytest.param([1, 20, 40, 60], False, id="one in three weeks, the old ones forgotten"),
        pytest.param([61, 63, 65, 68], False, id="four within a week, and two good months since"),
    ],
)
def test_a_node_is_chronic_or_not(days_ago, chronic):
    assert scored(*repeats("node:0", *days_ago))["node:0"].chronic is chronic


def test_the_ranking_begins_with_the_likeliest_to_fail():
    told = scores([*ORDINARY, *repeats("node:3", 1, 3, 5), outage("node:4", 0.2)], fleet(), NOW)
    assert {one.thing for one in told[:2]} == {"node:3", "node:4"}
    assert [one.hazard_next_week for one in told] == sorted((one.hazard_next_week for one in told), reverse=True)


def test_a_score_says_why_in_a_sentence():
    told = scored(*repeats("node:0", 1, 3, 5, 8))["node:0"]
    assert told.why.startswith("4 outages, back for 1.0 days: it fails at ")
    assert told.why.endswith("% chance of over 3 x (limit 90 %)")
    assert scored()["node:0"].why == "no outage so far"
    assert "1 outage, out of service now" in scored(outage("node:0", 1, None))["node:0"].why


def test_a_score_keeps_the_facts_that_it_came_from():
    told = scored(outage("node:0", 9), outage("node:0", 2.5), outage("node:0", 0.5, None))["node:0"]
    assert (told.outages, told.out_now, told.last_return) == (3, True, NOW - 2.5 * DAY)
    assert told.weighted_outages == pytest.approx(sum(math.exp(-days / LIMITS.fade_days) for days in (9, 2.5, 0)))
    assert scored()["node:0"].last_return is None


def test_a_swapped_gpu_starts_fresh_and_its_slot_keeps_the_history():
    swapped_at = NOW - 3 * DAY
    days_ago = (4, 6, 8, 9)
    outages = [*repeats("gpu:old", *days_ago), *repeats("slot:n1/0", *days_ago)]
    exposures = [
        *fleet(kind="gpu"), *fleet(kind="slot"), Exposure("slot:n1/0", NOW - 200 * DAY),
        Exposure("gpu:old", NOW - 200 * DAY, swapped_at), Exposure("gpu:new", swapped_at),
    ]  # fmt: skip
    told = {one.thing: one for one in scores(outages, exposures, NOW)}
    assert "gpu:old" not in told
    assert (told["gpu:new"].outages, told["gpu:new"].chronic) == (0, False)
    assert told["slot:n1/0"].chronic


def test_each_kind_of_thing_is_a_fleet_of_its_own():
    told = scored(exposures=[*fleet(), *fleet(kind="gpu")])
    assert told["gpu:0"].fleet_rate_per_day < told["node:0"].fleet_rate_per_day


def test_a_model_is_compared_with_itself_as_far_as_it_is_known():
    old, new = fleet(30, model="A"), [Exposure(f"node:b{number}", NOW - 200 * DAY, None, "B") for number in range(30)]
    bad = [outage(f"node:b{number}", 3.0 * number + 40) for number in range(30)] * 2
    told = {one.thing: one for one in scores([*bad, *ORDINARY[:5]], [*old, *new], NOW)}
    own_of_b, fleet_mean = 30 / (30 * 200), 35 / (60 * 200)
    assert told["node:0"].fleet_rate_per_day < fleet_mean < told["node:b0"].fleet_rate_per_day < own_of_b


@pytest.mark.parametrize("cause", sorted(LIMITS.ignored_causes))
def test_what_says_nothing_about_the_hardware_never_counts(cause):
    bad = [replace(one, cause_class=cause) for one in repeats("node:0", 1, 2, 3, 4, 5, 6)]
    told = scored(*bad)["node:0"]
    assert (told.outages, told.chronic) == (0, False)


def test_what_is_still_to_come_is_not_known():
    told = scored(outage("node:0", -2), Outage("node:1", NOW - DAY, NOW + DAY, "link"))
    assert told["node:0"].outages == 0
    assert told["node:1"].out_now
    assert "node:later" not in scored(exposures=[*fleet(), Exposure("node:later", NOW + DAY)])


@pytest.mark.parametrize(
    ("outages", "exposures"),
    [
        pytest.param([], [], id="nothing at all"),
        pytest.param([], fleet(5), id="no outages"),
        pytest.param([], [Exposure("node:0", NOW)], id="no time"),
        pytest.param(repeats("node:0", 1, 2, 3), [Exposure("node:0", NOW - 9 * DAY)], id="one thing"),
        pytest.param([outage("node:0", 1)], [], id="outages without exposures"),
        pytest.param([outage(f"node:{number}", 1) for number in range(5)], fleet(5), id="all alike"),
        pytest.param([outage("node:0", 50, 50 * 24), outage("node:0", 0, None)], fleet(1, 100), id="always out"),
        pytest.param(repeats("node:0", *range(1, 300)), fleet(1, 300), id="hundreds of outages"),
        pytest.param([Outage("gpu:1", NOW - 5 * DAY, None, "x")],
                     [Exposure("gpu:1", NOW - 9 * DAY, NOW - DAY)], id="only things that are gone"),
    ],
)  # fmt: skip
def test_little_or_odd_data_gives_sane_figures(outages, exposures):
    for one in scores(outages, exposures, NOW):
        assert_sane(one)
        assert one.fleet_rate_per_day > 0


def assert_sane(one: ChronicScore) -> None:
    figures = (one.weighted_outages, one.rate_per_day, one.fleet_rate_per_day, one.chance, one.hazard_next_week)
    assert all(math.isfinite(figure) and figure >= 0 for figure in figures)
    assert one.chance <= 1
    assert not one.chronic or one.outages >= LIMITS.min_outages


def test_without_data_the_prior_is_the_typical_one():
    told = fit(Record.of([], [Exposure("node:0", NOW)], NOW).as_of(0.0), 0.0, LIMITS)
    assert told.fleet.per_day == pytest.approx(LIMITS.typical_rate_per_day)
    assert told.fleet.strength == pytest.approx(LIMITS.typical_strength, rel=0.01)
    assert told.factors == (1.0,) * (len(BUCKETS_DAYS) + 1)
    assert told.of("not seen before") == told.fleet


def test_a_thing_alone_is_never_worse_than_its_like_for_long():
    """It is its own fleet; only what it did lately can stand out of what it always did."""
    told = scores(repeats("node:0", *range(1, 200, 10)), fleet(1), NOW)[0]
    assert not told.chronic


def steady(rates: list[float], days: int = 300) -> tuple[list[Outage], list[Exposure]]:
    """Things with lasting rates of their own."""
    dice = np.random.default_rng(5)
    outages = [
        outage(f"node:{number}", float(ago), 0.5)
        for number, rate in enumerate(rates)
        for ago in dice.uniform(0, days, dice.poisson(rate * days))
    ]
    return outages, fleet(len(rates), days)


def test_the_prior_is_strong_where_things_are_alike_and_weak_where_they_differ():
    strength = {}
    for name, rates in (("alike", [0.02] * 100), ("different", [0.002] * 90 + [0.18] * 10)):
        outages, exposures = steady(rates)
        strength[name] = fit(Record.of(outages, exposures, NOW).as_of(0.0), 0.0, LIMITS).fleet.strength
    assert strength["different"] < 0.5
    assert strength["alike"] > 1.5


def test_things_with_a_lasting_high_rate_are_chronic_and_the_others_are_not():
    outages, exposures = steady([0.002] * 90 + [0.18] * 10)
    chronic = {one.thing for one in scores(outages, exposures, NOW) if one.chronic}
    assert len(chronic & {f"node:{number}" for number in range(90, 100)}) >= 4
    assert len(chronic & {f"node:{number}" for number in range(90)}) <= 1


def test_a_return_that_fails_at_once_more_often_than_later_is_learnt():
    returns = [outage(f"node:{number}", 150 - 2.0 * number) for number in range(60)]
    flaps = [outage(f"node:{number}", 149.6 - 2.0 * number) for number in range(60)]
    factors = fit(Record.of([*returns, *flaps], fleet(), NOW).as_of(0.0), 0.0, LIMITS).factors
    assert factors[0] > 1.2 > factors[-1]


def test_windows_go_back_to_the_first_thing_or_as_far_as_memory():
    record = Record.of([], fleet(2, days=50), NOW).as_of(0.0)
    assert len(replay(record, 0.0, LIMITS).days) == 2 * 7
    assert len(replay(record, 0.0, replace(LIMITS, memory_days=21.0)).days) == 2 * 3


THINGS = ("node:a", "node:b", "node:c")
EXPOSURES = [Exposure(thing, NOW - 120 * DAY) for thing in (*THINGS, "node:quiet")]
#: Fixed, so that one thing's outages don't move the fleet that it is compared with.
FITTED = Fitted(Prior(0.3, 0.004), {}, (2.5, 1.5, 1.2, 1.0, 1.0, 0.9, 0.9, 0.8, 0.8))


@st.composite
def pasts(draw) -> list[Outage]:
    return [
        outage(
            draw(st.sampled_from(THINGS)), draw(st.integers(1, 100 * 24)) / 24, draw(st.none() | st.integers(0, 200))
        )
        for _ in range(draw(st.integers(0, 12)))
    ]


@given(pasts())
def test_figures_are_always_finite_and_chances_between_0_and_1(past):
    for one in scores(past, EXPOSURES, NOW):
        assert_sane(one)


@given(pasts(), st.randoms())
def test_the_order_of_outages_does_not_matter(past, dice):
    shuffled = past[:]
    dice.shuffle(shuffled)
    assert scores(shuffled, EXPOSURES[::-1], NOW) == scores(past, EXPOSURES, NOW)


@given(pasts(), st.floats(0.01, 1.0), st.floats(1.0, 10.0))
def test_a_thing_without_outages_is_never_chronic(past, chance, times):
    limits = replace(LIMITS, chance=chance, times_fleet=times, min_outages=0)
    told = {one.thing: one for one in scores(past, EXPOSURES, NOW, limits)}
    assert not told["node:quiet"].chronic


def columns(past: list[Outage], later_days: float = 0.0) -> dict[str, np.ndarray]:
    record = Record.of(past, EXPOSURES, NOW).as_of(later_days)
    told = score(record, later_days, FITTED, LIMITS)
    return {"rate": told.rate_per_day, "chance": told.chance, "ahead": told.hazard_next_week, "sum": told.weighted}


@given(pasts(), st.integers(1, 2400), st.integers(0, 48))
def test_no_figure_falls_when_an_outage_is_added(past, hours_ago, hours):
    new = outage("node:a", hours_ago / 24, hours)
    around = (new.began - HOUR, new.ended + HOUR)
    assume(all(one.thing != "node:a" or one.began > around[1] or (one.ended or NOW) < around[0] for one in past))
    before, after = columns(past), columns([*past, new])
    for name, figures in before.items():
        assert (after[name] >= figures * (1 - 1e-9) - 1e-12).all(), name


@given(pasts(), st.floats(0.1, 200.0))
def test_each_figure_fades_while_nothing_happens(past, days):
    closed = [one for one in past if one.ended is not None]
    now, later = columns(closed), columns(closed, days)
    for name, figures in now.items():
        assert (later[name] <= figures * (1 + 1e-9) + 1e-12).all(), name


def test_a_chronic_thing_fades_within_about_a_month():
    outages = [*ORDINARY, *repeats("node:0", 1, 3, 5, 8)]
    days = {
        ago: next(one for one in scores(outages, fleet(), NOW + ago * DAY) if one.thing == "node:0") for ago in (0, 30)
    }
    assert days[0].chronic
    assert not days[30].chronic
    assert days[30].weighted_outages < 0.13 * days[0].weighted_outages


def test_the_limits_are_those_of_the_policy() -> None:
    assert ChronicLimits.of(ChronicPolicy()) == ChronicLimits()
    site = ChronicPolicy.model_validate({"times_fleet": 5, "chance": 0.8, "min_outages": 3, "fade": "30d"})
    told = ChronicLimits.of(site)
    assert (told.times_fleet, told.chance, told.min_outages, told.fade_days) == (5, 0.8, 3, 30)
