"""Plots: extremes and gaps survive being made small, lines break at gaps, the limit and the marks are there."""

import re
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.report import sampling, scales, svg
from daemon.report.model import F64, Plot, Series, SeriesKind
from daemon.report.plotting import draw_plot

NAN = float("nan")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def series(*values: float, kind: SeriesKind = SeriesKind.GPU, name: str = "GPU 3") -> Series:
    return Series(name, np.arange(len(values), dtype=np.float64) * 30, np.array(values, np.float64), kind)


def paths(plot: Plot, style: str) -> list[str]:
    return re.findall(rf'<path class="{style}"[^>]* d="([^"]*)"', str(draw_plot(plot, "p").svg))


# -------------------------------------------------------------------------------------------------------- sampling

finite = st.floats(-1e6, 1e6)
#: Runs of values and runs of gaps, long enough that most examples need to be made smaller.
samples = st.lists(
    st.tuples(st.integers(1, 60), st.one_of(st.none(), finite), st.integers(0, 2**32 - 1)), min_size=1, max_size=25
)


def built(runs: list[tuple[int, float | None, int]]) -> tuple[F64, F64]:
    parts = [
        np.full(length, np.nan) if level is None else level + np.random.default_rng(seed).normal(0, 1, length)
        for length, level, seed in runs
    ]
    values = np.concatenate(parts)
    return np.arange(len(values), dtype=np.float64), values


@given(runs=samples, limit=st.integers(sampling.MIN_POINTS, 400))
def test_a_smaller_series_keeps_lowest_highest_ends_and_exactly_the_gaps(
    runs: list[tuple[int, float | None, int]], limit: int
) -> None:
    times, values = built(runs)
    kept_times, kept = sampling.downsample(times, values, limit)
    assert len(kept) <= max(limit, 1)
    assert np.all(np.diff(kept_times) > 0)
    known, still = np.flatnonzero(~np.isnan(values)), ~np.isnan(kept)
    if not len(known):
        assert not still.any()
        return
    place = {float(time): index for index, time in enumerate(times)}
    index = np.array([place[float(time)] for time in kept_times])
    assert np.array_equal(kept, values[index], equal_nan=True)
    assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(values), np.nanmax(values))
    assert (index[still][0], index[still][-1]) == (known[0], known[-1])
    finite_places = np.flatnonzero(still)
    for left, right in pairwise(finite_places):
        gap_before = bool(np.isnan(values[index[left] : index[right]]).any())
        assert (right - left > 1) == gap_before


def test_a_short_series_stays_as_it_is() -> None:
    times, values = np.arange(5.0), np.array([1, NAN, 3, 4, 5])
    assert sampling.downsample(times, values, 16) == (times, values)


def test_too_small_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        sampling.downsample(np.arange(5.0), np.arange(5.0), 3)


@pytest.mark.parametrize(
    ("values", "spans"),
    [
        pytest.param([1, 2, 3], [], id="nothing is missing"),
        pytest.param([1, NAN, 3], [(0, 60)], id="a gap reaches from neighbour to neighbour"),
        pytest.param([NAN, NAN, 3], [(0, 60)], id="what comes before the first sample is missing"),
        pytest.param([1, NAN, NAN], [(0, 60)], id="a line that ends early is missing to the end"),
        pytest.param([NAN, NAN, NAN], [(0, 60)], id="nothing is known at all"),
    ],
)
def test_missing_spans(values: list[float], spans: list[tuple[float, float]]) -> None:
    one = series(*values)
    assert sampling.missing_spans(one.times, one.values, 0, 60) == spans


# ----------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        pytest.param([1, 2, 3, 4], 1, id="a whole line is one path"),
        pytest.param([1, 2, NAN, 4, 5], 2, id="a NaN breaks the line"),
        pytest.param([NAN, 2, NAN, NAN, 5, NAN], 2, id="lone points between gaps are drawn"),
        pytest.param([1, float("inf"), 3], 2, id="an infinite value is a gap"),
        pytest.param([1, 9.2e37, 3], 2, id="an absurd value is a gap and does not flatten the rest"),
    ],
)
def test_a_gap_breaks_the_path(values: list[float], starts: int) -> None:
    (path,) = paths(Plot("t", "u", (series(*values),)), "line g0")
    assert path.count("M") == starts
    assert "nan" not in path.lower()
    assert "inf" not in path.lower()


def test_missing_spans_are_hatched_and_told() -> None:
    drawing = draw_plot(Plot("Temperature", "°C", (series(1, NAN, NAN, 4),)), "p")
    assert 'class="missing"' in drawing.svg
    assert 'fill="url(#p-h)"' in drawing.svg
    assert "1 span without data." in drawing.svg
    assert [entry.text for entry in drawing.legend] == ["GPU 3", "no data"]


def test_a_gap_of_the_peers_alone_is_not_hatched() -> None:
    lines = (series(1, 2, 3), series(1, NAN, 3, kind=SeriesKind.PEERS, name="peers"))
    assert "missing" not in draw_plot(Plot("t", "u", lines), "p").svg


@given(st.lists(st.floats(), max_size=60), st.one_of(st.none(), st.just(NAN), st.floats()))
def test_any_numbers_can_be_drawn(values: list[float], limit: float | None) -> None:
    text = str(draw_plot(Plot("t", "u", (series(*values),), limit), "p").svg)
    coordinates = re.findall(r' (?:d|x|y)="([^"]*)"', text)
    assert not [one for one in coordinates if "nan" in one or "inf" in one]


@pytest.mark.parametrize("count", [pytest.param(0, id="no series"), pytest.param(1, id="a series without samples")])
def test_a_plot_of_nothing_is_drawn_empty(count: int) -> None:
    assert draw_plot(Plot("t", "u", (series(),) * count), "p").svg.startswith("<svg")


def test_a_line_has_at_most_the_points_asked_for() -> None:
    values = np.random.default_rng(1).normal(0, 1, 50_000)
    (path,) = paths(Plot("t", "u", (series(*values.tolist()),)), "line g0")
    assert len(re.findall(r"-?[\d.]+ -?[\d.]+", path)) <= 400


def test_the_band_of_the_peers_is_an_area_between_its_two_edges() -> None:
    low, high = series(1, 1, NAN, 1, 1, kind=SeriesKind.PEER_BAND), series(3, 3, NAN, 3, 3, kind=SeriesKind.PEER_BAND)
    (band,) = paths(Plot("t", "u", (low, high, series(2, 2, 2, 2, 2))), "band")
    assert band.count("z") == 2


def test_edges_whose_gaps_differ_make_no_area() -> None:
    x = np.arange(3.0)
    assert svg.band_path(x, np.array([1, NAN, 1]), x, np.array([3.0, 3, 3])) == ""


# ----------------------------------------------------------------------------------------------------- limit, marks


def test_the_limit_is_a_line_with_its_label() -> None:
    plot = Plot("Temperature", "°C", (series(60, 70, 95),), 87.0, "slowdown")
    (path,) = paths(plot, "limit")
    text = str(draw_plot(plot, "p").svg)
    labels = re.findall(r'class="limit-label \w+" x="[\d.]+" y="([\d.]+)">slowdown 87 °C<', text)
    assert len(labels) == 1
    line_y = float(path.split()[1].split("H")[0])
    assert abs(float(labels[0]) - line_y) <= 14


def test_the_limit_is_inside_the_plot_even_when_no_value_comes_near() -> None:
    (path,) = paths(Plot("t", "", (series(1, 2, 3),), 500.0, ""), "limit")
    assert 30 <= float(path.split()[1].split("H")[0]) <= 164


def test_the_label_of_the_limit_goes_where_the_line_is_not() -> None:
    rising = [60.0] * 50 + [87.0 + 0.1 * n for n in range(50)]
    text = str(draw_plot(Plot("t", "°C", (series(*rising),), 87.0, "slowdown"), "p").svg)
    assert 'class="limit-label start"' in text


def test_without_a_limit_there_is_no_line() -> None:
    assert "limit" not in draw_plot(Plot("t", "u", (series(1, 2),)), "p").svg


@pytest.mark.parametrize(
    ("onset", "detected", "marks"),
    [
        pytest.param(30, 60, {"onset", "detected"}, id="both"),
        pytest.param(None, 60, {"detected"}, id="only the detection is known"),
        pytest.param(None, None, set(), id="neither"),
        pytest.param(-600, 900, {"onset", "detected"}, id="outside the samples, the time axis grows to hold them"),
    ],
)
def test_onset_and_detection_are_marked(onset: float | None, detected: float | None, marks: set[str]) -> None:
    plot = Plot(
        "t",
        "u",
        (series(1, 2, 3),),
        onset=None if onset is None else at(onset),
        detected=None if detected is None else at(detected),
    )
    text = str(draw_plot(plot, "p").svg)
    assert set(re.findall(r'class="moment (\w+)"', text)) == marks
    assert all(42 <= float(x) <= 372 for x in re.findall(r'class="moment \w+" d="M([\d.]+) ', text))
    assert ('class="lead"' in text) == (len(marks) == 2)


# ----------------------------------------------------------------------------------------------------------- series


def test_a_series_of_points_takes_none_as_a_gap() -> None:
    one = Series.of("x", [(0, 1.0), (30, None), (60, 3.0)])
    assert np.array_equal(one.values, [1, NAN, 3], equal_nan=True)


@pytest.mark.parametrize(
    ("times", "values", "message"),
    [
        pytest.param([0.0, 1.0], [1.0], "must be of one length", id="lengths differ"),
        pytest.param([1.0, 0.0], [1.0, 1.0], "must ascend", id="time runs backwards"),
    ],
)
def test_a_series_that_makes_no_sense_is_refused(times: list[float], values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Series("x", np.array(times), np.array(values))


# ----------------------------------------------------------------------------------------------------------- scales


@given(low=st.floats(-1e30, 1e30), high=st.floats(-1e30, 1e30))
def test_a_round_range_holds_what_it_was_made_for(low: float, high: float) -> None:
    low, high = sorted((low, high))
    start, end, marks = scales.round_range(low, high, 4)
    size = max(abs(low), abs(high))
    assert start <= low + 1e-6 * size
    assert end >= high - 1e-6 * size
    assert start < end
    assert 2 <= len(marks) <= 8


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        pytest.param(7 * 86_400, ["1 May", "2 May", "3 May"], id="days over a week"),
        pytest.param(86_400, ["1 May", "03:00", "06:00"], id="hours over a day, midnight by its date"),
        pytest.param(40, ["1 May", "00:00:05", "00:00:10"], id="seconds over less than a minute"),
    ],
)
def test_time_ticks_are_round(seconds: float, labels: list[str]) -> None:
    start = datetime(2026, 5, 1, tzinfo=UTC).timestamp()
    assert [label for _, label in scales.time_ticks(start, start + seconds, 9)][:3] == labels


# -------------------------------------------------------------------------------------------------------------- svg


def test_every_text_and_attribute_is_escaped() -> None:
    made = svg.element("text", "<b>", title='"><script>')
    assert made == '<text title="&#34;&gt;&lt;script&gt;">&lt;b&gt;</text>'


def test_bars_closer_than_a_pixel_are_one() -> None:
    assert svg.bars_path([(0, 10), (10.4, 20), (30, 30.1)], 0, 5) == "M0 0h20v5H0zM30 0h1v5H30z"
