"""What holds for streams of samples in any order, cut anywhere: one frame, no negative growth, no infinite cell."""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.ingest.slots import Combine
from detectors.snapshot import Frame, Reset
from rules.vocabulary import SignalKind
from tests.ingest.builders import T0
from tests.ingest.store_samples import STALE, Sample, cell, put, series, store_of

# ------------------------------------------------------------------------------------------------- what always holds

_samples = st.lists(
    st.builds(
        Sample,
        at=st.integers(0, 12).map(lambda n: T0 + 10.0 * n),
        value=st.integers(0, 30).map(float),
        source=st.integers(0, 2),
        rank=st.integers(0, 2),
    ),
    max_size=24,
)


def _frame(kind: SignalKind, chunks: Sequence[Sequence[tuple[int, Sample]]]) -> tuple[Frame, tuple[Reset, ...]]:
    store = store_of(kind, rows=2)
    for slot in (0, 1):
        store.slot(slot, 0)
    for chunk in chunks:
        for slot, samples in itertools.groupby(chunk, key=lambda item: item[0]):
            put(store, *(sample for _, sample in samples), slot=slot)
    frame = store.frame(T0 + 121, **STALE)
    return frame, tuple(sorted(store.next_tick()))


@settings(max_examples=200)
@given(
    kind=st.sampled_from(list(SignalKind)),
    samples=_samples,
    other=_samples,
    random=st.randoms(use_true_random=False),
    pieces=st.integers(1, 5),
)
def test_any_order_and_any_cut_of_the_same_samples_gives_the_same_frame(
    kind: SignalKind, samples: list[Sample], other: list[Sample], random, pieces: int
) -> None:
    whole = [(0, sample) for sample in samples] + [(1, sample) for sample in other]
    shuffled = random.sample(whole, len(whole))
    size = max(1, -(-len(whole) // pieces))
    cut = [shuffled[begin : begin + size] for begin in range(0, len(shuffled), size)]
    one, resets = _frame(kind, [whole])
    two, again = _frame(kind, cut)
    for matrix in ("value", "low", "high", "increase", "age_s"):
        np.testing.assert_array_equal(one.of("s", matrix), two.of("s", matrix), matrix)
    assert resets == again


@settings(max_examples=200)
@given(kind=st.sampled_from([SignalKind.COUNTER, SignalKind.LIFETIME]), ticks=st.lists(_samples, max_size=4))
def test_growth_is_never_negative(kind: SignalKind, ticks: list[list[Sample]]) -> None:
    store = store_of(kind)
    for samples in ticks:
        put(store, *samples)
        increase = cell(store, "increase")
        assert np.isnan(increase) or increase >= 0
        store.next_tick()


def _grown(values: Sequence[float]) -> float:
    """Growth of a counter over consecutive samples, resets seen through."""
    return sum(b - a if b >= a else b for a, b in itertools.pairwise(values))


@settings(max_examples=200)
@given(values=st.lists(st.integers(0, 50).map(float), min_size=2, max_size=20), cuts=st.sets(st.integers(1, 19)))
def test_growth_over_all_ticks_is_what_the_counter_grew_by(values: list[float], cuts: set[int]) -> None:
    store = store_of(SignalKind.COUNTER)
    total = 0.0
    samples = series(*values)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(samples)), len(samples)]
    for begin, end in itertools.pairwise(bounds):
        put(store, *samples[begin:end])
        total += np.nan_to_num(cell(store, "increase"))
        store.next_tick()
    assert total == _grown(values)


@given(
    ticks=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50).map(float)), min_size=1, max_size=6), max_size=5
    )
)
def test_growth_of_a_sum_is_that_of_its_parts(ticks: list[list[tuple[str, float]]]) -> None:
    store = store_of(SignalKind.COUNTER)
    seen: defaultdict[str, list[float]] = defaultdict(list)
    at = T0
    total = 0.0
    for tick in ticks:
        for part, value in tick:
            at += 1
            seen[part].append(value)
            put(store, Sample(at, value), slot=store.slot(0, 0, Combine.SUM, part))
        total += np.nan_to_num(store.frame(at, **STALE).of("s", "increase")[0])
        store.next_tick()
    assert total == sum(_grown(values) for values in seen.values())


@given(raw=st.floats(width=64), scale=st.sampled_from([1.0, 1e-9, 1e3, 100.0]))
def test_no_number_at_all_makes_a_cell_that_is_infinite_or_out_of_bounds(raw: float, scale: float) -> None:
    store = store_of(low=-np.inf, high=np.inf)
    put(store, Sample(T0, raw), scale=scale)
    for matrix in ("value", "low", "high"):
        value = cell(store, matrix)
        assert np.isnan(value) or abs(value) < 1e31
