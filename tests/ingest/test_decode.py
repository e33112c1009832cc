"""From bytes to arrays: what Prometheus answers, and what stands in for an answer on a bad day."""

import gc
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.ingest.decode import Batch, PrometheusError, between, by_time, decode, decode_labels
from tests.ingest.builders import T0, TEMP, gpu, matrix, success, vector


def test_a_vector_has_one_sample_a_series() -> None:
    got = decode(vector([(gpu(TEMP, 0), T0, 61), (gpu(TEMP, 1), T0, 62.5)]))
    assert got.series.tolist() == [0, 1]
    assert got.at.tolist() == [T0, T0]
    assert got.value.tolist() == [61.0, 62.5]
    assert decode_labels(got.labels[1]) == gpu(TEMP, 1)


def test_a_matrix_has_any_number_of_samples_a_series() -> None:
    got = decode(matrix([(gpu(TEMP, 0), [(T0, 1), (T0 + 30, 2)]), (gpu(TEMP, 1), []), (gpu(TEMP, 2), [(T0, 3)])]))
    assert got.series.tolist() == [0, 0, 2]
    assert got.value.tolist() == [1.0, 2.0, 3.0]
    assert len(got.hashes) == len(got.labels) == 3


def test_equal_label_sets_have_equal_hashes_and_others_do_not() -> None:
    first, second = (decode(matrix([(gpu(TEMP, n), []) for n in (0, 1)])) for _ in range(2))
    assert np.array_equal(first.hashes, second.hashes)
    assert first.hashes[0] != first.hashes[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("NaN", np.nan, id="not a number is kept and dropped where it is counted"),
        pytest.param("+Inf", np.inf, id="infinity"),
        pytest.param("-Inf", -np.inf, id="minus infinity"),
        pytest.param("9.223372036854776e+18", 2.0**63, id="a blank of 64 bits"),
        pytest.param("0", 0.0, id="zero"),
    ],
)
def test_values_are_texts(text: str, value: float) -> None:
    got = decode(vector([(gpu(TEMP), T0, text)]))
    np.testing.assert_array_equal(got.value, [value])
    assert got.unreadable == 0


def test_a_value_that_is_no_number_is_counted_and_takes_no_other_with_it() -> None:
    got = decode(matrix([(gpu(TEMP), [(T0, "61"), (T0 + 30, "warm"), (T0 + 60, "62")])]))
    np.testing.assert_array_equal(got.value, [61.0, np.nan, 62.0])
    assert got.unreadable == 1


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(-1, id="before 1970"),
        pytest.param(1e18, id="milliseconds and more"),
        pytest.param(253402300800, id="the year 10000"),
    ],
)
def test_a_sample_without_a_possible_time_is_counted_and_left_out(at: float) -> None:
    got = decode(matrix([(gpu(TEMP), [(at, 61), (T0, 62)])]))
    assert (got.value.tolist(), got.at.tolist(), got.series.tolist(), got.unreadable) == ([62.0], [T0], [0], 1)


def test_warnings_come_along() -> None:
    assert decode(matrix([], ["results truncated due to limit"])).warnings == ("results truncated due to limit",)


def test_native_histograms_have_no_samples_here() -> None:
    got = decode(success("matrix", [{"metric": {"__name__": "h"}, "histograms": [[T0, {"count": "1"}]]}]))
    assert (len(got.labels), len(got.at)) == (1, 0)


BAD = [
    pytest.param(b"", "garbage", id="nothing"),
    pytest.param(b"<html><body>502 Bad Gateway</body></html>", "garbage", id="a proxy's page"),
    pytest.param(matrix([(gpu(TEMP), [(T0, 1)])])[:-9], "garbage", id="cut off in the middle"),
    pytest.param(b"\xff\xfe\x00", "garbage", id="bytes that are no text"),
    pytest.param(b"[]", "garbage", id="a list"),
    pytest.param(b"null", "garbage", id="null"),
    pytest.param(b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "garbage", id="a scalar"),
    pytest.param(b'{"status":"success","data":' + b"[" * 100_000, "garbage", id="a nest without a bottom"),
    pytest.param(
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":' + b'{"a":' * 50_000,
        "garbage",
        id="a label set without a bottom",
    ),
    pytest.param(success("vector", [{"metric": {}, "value": [1, 2]}]), "garbage", id="a value that is no text"),
    pytest.param(success("matrix", [{"metric": {}, "values": None}]), "garbage", id="no values"),
    pytest.param(b'{"status":"success"}', "api", id="success without data"),
    pytest.param(b'{"status":"error","errorType":"execution","error":"out of memory"}', "api", id="an error"),
]


@pytest.mark.parametrize(("answer", "kind"), BAD)
def test_what_is_no_answer_is_an_error_with_a_kind(answer: bytes, kind: str) -> None:
    with pytest.raises(PrometheusError) as caught:
        decode(answer)
    assert caught.value.kind == kind
    assert caught.value.detail


def test_an_error_says_what_prometheus_said() -> None:
    with pytest.raises(PrometheusError, match="execution: out of memory"):
        decode(b'{"status":"error","errorType":"execution","error":"out of memory"}')


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"a":1}', id="a number for a value"),
        pytest.param(b'{"a":"\xff"}', id="a value that is no text"),
        pytest.param(b'{"a":' + b"[" * 50_000, id="a nest without a bottom"),
    ],
)
def test_a_label_set_that_is_none_is_an_error(raw: bytes) -> None:
    with pytest.raises(PrometheusError) as caught:
        decode_labels(raw)
    assert caught.value.kind == "garbage"


def test_an_empty_label_is_an_absent_one() -> None:
    assert decode_labels(b'{"a":"","b":"x"}') == {"b": "x"}


def test_the_collector_is_on_again_after_a_good_and_after_a_bad_answer() -> None:
    decode(matrix([]))
    with pytest.raises(PrometheusError):
        decode(b"x")
    assert gc.isenabled()


def _tries(answer: bytes) -> None:
    try:
        got = decode(answer)
    except PrometheusError:
        return
    assert isinstance(got, Batch)
    assert len(got.series) == len(got.at) == len(got.value)
    assert len(got.labels) == len(got.hashes)
    for raw in got.labels:
        try:
            decode_labels(raw)
        except PrometheusError as error:
            assert error.kind == "garbage"  # noqa: PT017 - raising is allowed, not wanted


@given(st.binary(max_size=300))
def test_any_bytes_give_a_batch_or_the_one_error(answer: bytes) -> None:
    _tries(answer)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(_json)
def test_any_json_gives_a_batch_or_the_one_error(value: object) -> None:
    _tries(json.dumps(value).encode())


_field = st.sampled_from(["status", "data", "resultType", "result", "metric", "value", "values", "warnings"])
_almost = st.recursive(
    _json | st.sampled_from(["success", "vector", "matrix"]) | st.tuples(st.floats(), st.text(max_size=5)).map(list),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_field, inner, max_size=4),
    max_leaves=20,
)


@given(metric=_almost, samples=_almost, kind=st.sampled_from(["vector", "matrix", "scalar", ""]))
def test_any_json_where_a_series_belongs_gives_a_batch_or_the_one_error(
    metric: object, samples: object, kind: str
) -> None:
    series = {"metric": metric, "value": samples, "values": samples}
    _tries(json.dumps({"status": "success", "data": {"resultType": kind, "result": [series]}}).encode())


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=30), max_size=6))
def test_any_label_values_come_through_unchanged(labels: dict[str, str]) -> None:
    (raw,) = decode(success("vector", [{"metric": labels, "value": [T0, "1"]}])).labels
    assert decode_labels(raw) == {name: value for name, value in labels.items() if value}


def test_a_span_of_a_batch_is_open_at_its_beginning_and_keeps_all_series() -> None:
    whole = by_time(decode(matrix([(gpu(TEMP, 0), [(T0, 1), (T0 + 60, 3)]), (gpu(TEMP, 1), [(T0 + 30, 2)])])))
    part = between(whole, T0, T0 + 60)
    assert part.value.tolist() == [2.0, 3.0]
    assert part.series.tolist() == [1, 0]
    assert len(part.labels) == 2


def test_a_span_counts_nothing_again_that_was_counted_with_the_whole() -> None:
    whole = by_time(decode(matrix([(gpu(TEMP), [(T0, "x"), (T0 + 30, 1)])])))
    assert whole.unreadable == 1
    assert between(whole, T0 - 1, T0 + 60).unreadable == 0
