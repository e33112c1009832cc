"""Streams of samples as cells: counters through resets, replicas, two names of a signal, parts that vanish, blanks."""

from collections.abc import Sequence

import numpy as np
import pytest

from daemon.ingest.slots import Combine
from detectors.snapshot import Reset
from rules.vocabulary import SignalKind
from tests.ingest.builders import T0
from tests.ingest.store_samples import STALE, Sample, cell, put, series, store_of

# ------------------------------------------------------------------------------------------------- counters


@pytest.mark.parametrize(
    ("values", "increase", "resets"),
    [
        pytest.param((100,), np.nan, 0, id="a first sample says nothing about growth"),
        pytest.param((100, 100), 0, 0, id="a counter that stands has grown by zero"),
        pytest.param((100, 130), 30, 0, id="growth is the difference"),
        pytest.param((91_200, 0), 0, 1, id="a reset to zero"),
        pytest.param((91_200, 7), 7, 1, id="after a reset the new value is what it grew by"),
        pytest.param((10, 15, 3, 4, 1), 5 + 3 + 1 + 1, 2, id="several resets between two ticks"),
    ],
)
def test_a_counter_is_seen_through_its_resets(values: tuple[float, ...], increase: float, resets: int) -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(*values))
    np.testing.assert_equal(cell(store, "increase"), increase)
    assert store.next_tick() == (Reset(0, "s"),) * resets


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=f"{kind}") for kind in SignalKind if kind not in {SignalKind.COUNTER, SignalKind.LIFETIME}],
)
def test_other_kinds_have_no_growth_and_no_resets(kind: SignalKind) -> None:
    store = store_of(kind)
    put(store, *series(5, 9, 2))
    assert np.isnan(cell(store, "increase"))
    assert store.next_tick() == ()


def test_a_lifetime_level_grows_and_a_drop_is_neither_growth_nor_a_reset() -> None:
    store = store_of(SignalKind.LIFETIME)
    put(store, *series(3, 4, 0, 1))
    assert cell(store, "increase") == 2
    assert store.next_tick() == ()


def test_growth_is_that_since_the_last_tick() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(10, 20))
    assert cell(store, "increase") == 10
    store.next_tick()
    assert np.isnan(cell(store, "increase"))
    put(store, Sample(T0 + 60, 23))
    assert cell(store, "increase") == 3


def test_growth_is_exact_where_float32_would_lose_it() -> None:
    store = store_of(SignalKind.COUNTER, high=1e18)
    put(store, *series(4e15, 4e15 + 1))
    assert cell(store, "increase") == 1
    assert store.newest("s")[0] == 4e15 + 1


# ------------------------------------------------------------------------------------------------- replicas


def test_a_replica_that_lags_is_no_reset() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, Sample(T0, 100, 1), Sample(T0 + 10, 90, 2), Sample(T0 + 30, 110, 1), Sample(T0 + 40, 108, 2))
    assert (cell(store), cell(store, "increase")) == (110, 10)
    assert store.next_tick() == ()
    assert store.dropped["superseded"] == 2


def test_a_reset_that_two_replicas_see_is_one() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(100, 110, 3, 5, source=1), *series(105, 2, 4, 6, source=2, begin=T0 + 10))
    assert store.frame(T0 + 200, **STALE).of("s", "increase")[0] == 5 + 5 + 6
    assert store.next_tick() == (Reset(0, "s"),)


def test_a_reset_that_comes_with_a_new_exporter_is_seen_once_the_old_one_is_gone() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(4.5e5, 4.6e5, source=1), *series(12, 13, 14, 15, source=2, begin=T0 + 60))
    assert cell(store) == 15
    assert cell(store, "increase") == 1e4 + 15
    assert store.next_tick() == (Reset(0, "s"),)


def test_gauges_of_two_replicas_alternate() -> None:
    store = store_of()
    put(store, *series(60, 62, source=1), *series(61, 59, source=2, begin=T0 + 10))
    assert (cell(store), cell(store, "low"), cell(store, "high")) == (59, 59, 62)


# ----------------------------------------------------------------------------------------- two names, one signal


@pytest.mark.parametrize(
    "order", [pytest.param((0, 1), id="better name first"), pytest.param((1, 0), id="better name last")]
)
def test_of_two_names_in_one_scrape_the_preferred_one_counts(order: tuple[int, int]) -> None:
    store = store_of()
    named = (series(60, 61, rank=0), series(90, 91, rank=1))
    for rank in order:
        put(store, *named[rank])
    assert (cell(store), cell(store, "low"), cell(store, "high")) == (61, 60, 61)


def test_the_preferred_name_wins_at_the_same_moment_even_a_tick_later() -> None:
    store = store_of()
    put(store, Sample(T0, 90, rank=1))
    store.frame(T0, **STALE)
    put(store, Sample(T0, 60, rank=0))
    assert (cell(store), cell(store, "low"), cell(store, "high")) == (60, 60, 60)


def test_after_a_rename_the_other_name_takes_over_and_what_differs_is_no_growth() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(100, 110, rank=0))
    put(store, *series(5000, 5010, 5020, 5030, rank=1, begin=T0 + 60))
    assert cell(store) == 5030
    assert cell(store, "increase") == 10 + 10
    assert store.next_tick() == ()


def test_the_preferred_name_comes_back_at_once() -> None:
    store = store_of()
    put(store, *series(90, 91, rank=1), *series(60, rank=0, begin=T0 + 60), *series(92, rank=1, begin=T0 + 70))
    assert cell(store) == 60


def test_a_slow_signal_keeps_its_name_between_two_pulls() -> None:
    """Its samples come every five minutes: that is no sign that the better name has gone."""
    store = store_of(SignalKind.COUNTER, fast=False)
    put(store, *series(100, rank=0))
    store.frame(T0, **STALE)
    put(store, *series(7, rank=1, begin=T0 + 290), *series(101, rank=0, begin=T0 + 300))
    assert (cell(store), cell(store, "increase")) == (101, 1)


# ------------------------------------------------------------------------------------------------- components


def test_a_sum_is_over_the_parts_that_are_there() -> None:
    store = store_of(SignalKind.COUNTER)
    first, second = (store.slot(0, 0, Combine.SUM, name) for name in ("eth0", "eth1"))
    put(store, *series(100, 110, 120, 130, 140), slot=first)
    put(store, *series(1000, 1001), slot=second)
    assert cell(store, now=T0 + 60) == 120 + 1001 + 20  # all are fresh, the first is at 140
    frame = store.frame(T0 + 130, **STALE)
    assert frame.of("s")[0] == 140
    assert frame.of("s", "increase")[0] == 40
    assert frame.of("s", "age_s")[0] == 10
    assert store.next_tick() == ()


def test_a_part_that_appears_adds_its_value_and_no_growth() -> None:
    store = store_of(SignalKind.COUNTER)
    put(store, *series(100, 110), slot=store.slot(0, 0, Combine.SUM, "eth0"))
    put(store, Sample(T0 + 30, 1e9), slot=store.slot(0, 0, Combine.SUM, "eth1"))
    frame = store.frame(T0 + 31, **STALE)
    assert frame.of("s")[0] == np.float32(1e9 + 110)
    assert frame.of("s", "increase")[0] == 10


def test_the_largest_of_several_sensors_counts() -> None:
    store = store_of()
    put(store, *series(40, 41), slot=store.slot(0, 0, Combine.MAX, "a"))
    put(store, *series(70, 65), slot=store.slot(0, 0, Combine.MAX, "b"))
    assert (cell(store), cell(store, "high")) == (65, 70)


def test_slots_of_parts_that_are_gone_are_used_again_and_those_that_live_are_not() -> None:
    store = store_of()
    old = store.slot(0, 0, Combine.SUM, "veth1")
    put(store, Sample(T0, 5), slot=old)
    live = store.slot(0, 0, Combine.SUM, "eth0")
    put(store, Sample(T0 + 9000, 7), slot=live)
    assert store.release(T0 + 8000).tolist() == [old]
    assert store.slot(0, 0, Combine.SUM, "veth2") == old
    assert store.slot(0, 0, Combine.SUM, "eth0") == live
    assert store.frame(T0 + 9000, **STALE).of("s")[0] == 7


# ------------------------------------------------------------------------------------------------- what is no data


@pytest.mark.parametrize(
    ("raw", "scale", "reason"),
    [
        pytest.param(9.223372036854776e18, 1e-9, "blank", id="a 64-bit blank, scaled down to a likely number"),
        pytest.param(2147483632.0, 1e-9, "blank", id="a 32-bit blank, scaled"),
        pytest.param(2147483635.0, 1.0, "blank", id="not permissioned"),
        pytest.param(140737488355328.0, 1e-12, "blank", id="a floating-point blank, scaled"),
        pytest.param(140737488355331.0, 1.0, "blank", id="the last floating-point blank"),
        pytest.param(np.nan, 1.0, "not_finite", id="not a number"),
        pytest.param(np.inf, 1.0, "not_finite", id="infinity"),
        pytest.param(-np.inf, 1.0, "not_finite", id="minus infinity"),
        pytest.param(151.0, 1.0, "impossible", id="hotter than possible"),
        pytest.param(-41.0, 1.0, "impossible", id="colder than possible"),
        pytest.param(-1.5e308, 1e3, "impossible", id="beyond any number"),
    ],
)
def test_what_is_no_data_is_dropped_and_counted(raw: float, scale: float, reason: str) -> None:
    store = store_of(low=-40, high=150)
    put(store, Sample(T0, raw), scale=scale)
    assert np.isnan(cell(store))
    assert np.isnan(cell(store, "age_s"))
    assert store.dropped == {reason: 1}
    assert not store.seen()[0, 0]


def test_a_blank_leaves_the_last_value_to_age() -> None:
    store = store_of()
    put(store, *series(60, 61, 2147483632.0, 2147483632.0, 2147483632.0))
    assert np.isnan(cell(store, now=T0 + 121))
    assert cell(store, "age_s", now=T0 + 121) == 91


def test_a_signal_without_bounds_takes_no_number_that_float32_cannot_hold() -> None:
    store = store_of(low=-np.inf, high=np.inf)
    put(store, Sample(T0, 1e300))
    assert np.isnan(cell(store))
    put(store, Sample(T0 + 30, -1e29))
    assert cell(store) == np.float32(-1e29)


# ------------------------------------------------------------------------------------------------- time


def test_low_and_high_span_all_samples_between_two_ticks() -> None:
    store = store_of()
    put(store, *series(60, 95, 41, 62))
    assert (cell(store, "low"), cell(store), cell(store, "high")) == (41, 62, 95)
    store.next_tick()
    assert (cell(store, "low"), cell(store, "high")) == (62, 62)


@pytest.mark.parametrize(
    ("fast", "age", "known"),
    [
        pytest.param(True, 90, True, id="a fast signal of three scrapes ago"),
        pytest.param(True, 91, False, id="a fast signal that is older"),
        pytest.param(False, 390, True, id="a slow signal of one pull and three scrapes ago"),
        pytest.param(False, 391, False, id="a slow signal that is older"),
    ],
)
def test_a_value_is_stale_by_its_cadence_and_its_age_stays(fast: bool, age: float, known: bool) -> None:
    store = store_of(fast=fast)
    put(store, Sample(T0, 60))
    frame = store.frame(T0 + age, **STALE)
    assert np.isnan(frame.of("s")[0]) != known
    assert frame.of("s", "age_s")[0] == age


def test_the_time_of_the_last_change_is_that_of_the_value_not_of_the_sample() -> None:
    store = store_of()
    put(store, *series(60, 60, 61, 61, 61))
    cell(store)
    assert store.unchanged_s("s", T0 + 120).tolist() == [60.0]


@pytest.mark.parametrize(
    ("spacings", "interval_s"),
    [
        pytest.param([15.0], 15.0, id="the first that is measured is believed"),
        pytest.param([60.0, 60.0], 60.0, id="a longer one"),
        pytest.param([30.0, 660.0], 30.0, id="an outage is no interval"),
        pytest.param([30.0, 550.0], 39.0, id="a long gap moves it a little"),
        pytest.param([0.0, 0.5], 30.0, id="samples of one moment say nothing"),
    ],
)
def test_the_scrape_interval_follows_what_is_measured(spacings: Sequence[float], interval_s: float) -> None:
    store = store_of()
    for spacing in spacings:
        store.pace(spacing)
        store.settle()
    assert store.interval_s == pytest.approx(interval_s)
