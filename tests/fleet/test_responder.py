"""The look-alike of Prometheus' API: its grammar, its times, its refusals."""

import json

import numpy as np
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from fixtures.fleet import scenarios
from fixtures.fleet.numbers import go_float, go_floats, timestamp_s
from fixtures.fleet.promql import Matcher, Op, QueryError, Selector, parse
from fixtures.fleet.responder import answer

NAME = Matcher("__name__", Op.EQUAL, "up")
PARSED = [
    ("up", Selector((NAME,)), "a bare name"),
    (" up ", Selector((NAME,)), "space around"),
    ("up[5m]", Selector((NAME,), 300_000), "a range"),
    ("up{}[1h30m]", Selector((NAME,), 5_400_000), "a compound duration"),
    ('up{a="b"}', Selector((NAME, Matcher("a", Op.EQUAL, "b"))), "a matcher"),
    ('{__name__="up"}', Selector((NAME,)), "the name as a label"),
    ('up{a!="b",c=~"d|e"}', Selector((NAME, Matcher("a", Op.NOT_EQUAL, "b"), Matcher("c", Op.MATCHES, "d|e"))), "two"),
    ('up{f!~"g",}', Selector((NAME, Matcher("f", Op.NOT_MATCHES, "g"))), "a comma at the end"),
    (r'up{a="x\"y\\z\n"}', Selector((NAME, Matcher("a", Op.EQUAL, 'x"y\\z\n'))), "escapes"),
    ("up{a='b',c=`d\\`}", Selector((NAME, Matcher("a", Op.EQUAL, "b"), Matcher("c", Op.EQUAL, "d\\"))), "other quotes"),
    ('up{a="}"}[90s]', Selector((NAME, Matcher("a", Op.EQUAL, "}")), 90_000), "a brace in a string"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "selector"), [pytest.param(*row[:2], id=row[2]) for row in PARSED])
def test_a_selector_is_understood(text, selector):
    assert parse(text) == selector


REFUSED = [
    "", "{}", '{a=""}', '{a=~".*"}', "rate(up[5m])", "up + 1", "up[5m] offset 1m", "up[5x]", "up[0s]", "up{a}",
    "up{a=b}", 'up{a="b"', 'up{a="b" c="d"}', 'up{a=~"("}', "sum(up)", 'up{a=="b"}', "1", "up[5m:1m]",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused(text):
    with pytest.raises(QueryError):
        parse(text)


@given(st.text(max_size=60))
def test_no_text_crashes_the_parser(text):
    try:
        found = parse(text)
    except QueryError:
        return
    assert found.matchers


def data(responder, path, **form):
    fields = {name: [value] if isinstance(value, str) else value for name, value in form.items()}
    return json.loads(answer(responder.answers, path, fields, int(responder.fleet.end.timestamp() * 1000)))


def test_a_range_holds_its_end_and_not_its_begin(demo_responder):
    query = '{__name__="up",job="node-exporter",node="gpu001"}'
    start = demo_responder.fleet.start_s
    values = data(demo_responder, "/api/v1/query", query=f"{query}[1h]", time=str(start + 3600))["result"][0]["values"]
    assert len(values) == 60
    first = values[0][0]
    spans = {
        "ends at a sample": (first + 60, "60s", 1),
        "just before it": (first + 59.999, "60s", 1),
        "two": (first + 60, "61s", 2),
    }
    for at, length, count in spans.values():
        found = data(demo_responder, "/api/v1/query", query=f"{query}[{length}]", time=str(at))["result"][0]["values"]
        assert len(found) == count
    at_sample = data(demo_responder, "/api/v1/query", query=f"{query}[60s]", time=str(first + 60))["result"][0][
        "values"
    ]
    assert at_sample[0][0] == pytest.approx(first + 60)


def test_matchers_are_anchored_and_absent_labels_are_empty(demo_responder):
    def count(query):
        return len(data(demo_responder, "/api/v1/query", query=query)["result"])

    assert count('up{job=~"node"}') == 0
    assert count('up{job=~"node.*"}') == 8
    assert count('up{nothing=""}') == 16
    assert count('up{nothing!=""}') == 0
    assert count('up{node!~"gpu00[1-4]",job="node-exporter"}') == 4


def test_an_instant_is_gone_as_soon_as_its_target_is_scraped_without_it(demo_responder):
    fleet = demo_responder.fleet
    lost = next(item for item in fleet.planted if item.kind == "off_bus")
    uuid = lost.gpu(fleet.site).uuid
    failed = fleet.start_s + lost.failed_s
    query = f'{{__name__=~"DCGM_FI_DEV_GPU_TEMP",UUID="{uuid}"}}'
    assert data(demo_responder, "/api/v1/query", query=query, time=str(failed - 3600))["result"]
    assert not data(demo_responder, "/api/v1/query", query=query, time=str(failed + 80))["result"]


def test_nothing_is_known_before_the_span_and_five_minutes_after_it(demo_responder):
    fleet = demo_responder.fleet
    for at, there in (
        (fleet.start_s - 1, False),
        (fleet.end.timestamp() + 200, True),
        (fleet.end.timestamp() + 400, False),
    ):
        assert bool(data(demo_responder, "/api/v1/query", query="up", time=str(at))["result"]) is there


def test_times_may_be_written_both_ways(demo_responder):
    unix, text = (
        data(demo_responder, "/api/v1/query", query="up", time=time) for time in ("1772416800", "2026-03-02T02:00:00Z")
    )
    assert unix == text


def test_a_range_query_gives_each_step(demo_responder):
    start = demo_responder.fleet.start_s
    found = data(
        demo_responder,
        "/api/v1/query_range",
        query='node_load1{node="gpu002"}',
        start=str(start + 600),
        end=str(start + 1200),
        step="1m",
    )["result"]
    assert [value[0] for value in found[0]["values"]] == [start + 600 + 60 * step for step in range(11)]


BAD_CALLS = [
    pytest.param("/api/v1/query", {"query": "rate(up[5m])"}, id="a function"),
    pytest.param("/api/v1/query", {}, id="no query"),
    pytest.param("/api/v1/query", {"query": "up", "time": "yesterday"}, id="a time that is none"),
    pytest.param("/api/v1/query", {"query": "up", "time": "2026-03-02T02:00:00"}, id="a time without a zone"),
    pytest.param(
        "/api/v1/query_range", {"query": "up[5m]", "start": "0", "end": "1", "step": "1"}, id="a range in a range"
    ),
    pytest.param(
        "/api/v1/query_range", {"query": "up", "start": "9", "end": "1", "step": "1"}, id="an end before the start"
    ),
    pytest.param("/api/v1/query_range", {"query": "up", "start": "0", "end": "1", "step": "0"}, id="no step"),
    pytest.param(
        "/api/v1/query_range", {"query": "up", "start": "0", "end": "99999", "step": "1"}, id="too many points"
    ),
    pytest.param("/api/v1/series", {}, id="series of nothing"),
]


@pytest.mark.parametrize(("path", "form"), BAD_CALLS)
def test_a_bad_call_is_refused(path, form, demo_responder):
    with pytest.raises(QueryError):
        data(demo_responder, path, **form)


def test_over_http_it_looks_like_prometheus(demo_responder):
    with demo_responder.start() as url, requests.Session() as session:
        assert session.get(f"{url}/-/ready", timeout=10).status_code == 200
        assert session.get(f"{url}/api/v1/nothing", timeout=10).status_code == 404
        posted = session.post(f"{url}/api/v1/query", data={"query": "up"}, timeout=10).json()
        got = session.get(f"{url}/api/v1/query", params={"query": "up"}, timeout=10).json()
        assert posted == got
        assert posted["status"] == "success"
        assert posted["data"]["resultType"] == "vector"
        refused = session.post(f"{url}/api/v1/query", data={"query": "sum(up)"}, timeout=10)
        assert refused.status_code == 400
        assert refused.json()["errorType"] == "bad_data"
        assert "DCGM_FI_DEV_GPU_TEMP" in session.get(f"{url}/api/v1/label/__name__/values", timeout=10).json()["data"]
        assert "UUID" in session.get(f"{url}/api/v1/labels", timeout=10).json()["data"]
        assert session.get(f"{url}/api/v1/status/buildinfo", timeout=10).json()["data"]["version"]
        assert "up" in session.get(f"{url}/api/v1/metadata", timeout=10).json()["data"]
        series = session.get(f"{url}/api/v1/series", params={"match[]": "up"}, timeout=10).json()["data"]
        assert len(series) == 16


def test_a_window_of_everything_has_every_gpu_and_node(demo_responder):
    at = demo_responder.fleet.start_s + 3000
    found = data(demo_responder, "/api/v1/query", query='{__name__=~"DCGM_.+|node_.+|up"}[30m]', time=str(at))["result"]
    assert len({row["metric"]["UUID"] for row in found if "UUID" in row["metric"]}) == 64
    assert all(len(row["values"]) <= 30 for row in found)


FLOATS = [
    (0.0, "0"), (-0.5, "-0.5"), (1e15, "1000000000000000"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
    (1.5e-7, "1.5e-07"), (0.000001, "0.000001"), (67.347, "67.347"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"),
    (float("nan"), "NaN"), (9223372036854775794.0, "9223372036854776000"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), FLOATS)
def test_a_number_is_written_as_go_writes_it(value, text):
    assert go_float(value) == text


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_written_numbers_read_back(values):
    assert [float(text) for text in go_floats(np.array(values, np.float64))] == values


@pytest.mark.parametrize(("milliseconds", "text"), [(1000, "1"), (1001, "1.001"), (1100, "1.100"), (0, "0")])
def test_a_time_has_no_fraction_or_three_digits(milliseconds, text):
    assert timestamp_s(milliseconds) == text


def test_a_fleet_of_weeks_can_be_asked_for_without_being_made():
    fleet = scenarios.weeks(nodes=63, hours=504)
    assert fleet.steps == 30240
    assert next(fleet.blocks()).dcgm_up.shape == (120, 63)
