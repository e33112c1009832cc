"""The poller against an HTTP server on loopback that behaves in every way a Prometheus and its proxies may."""

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import capture_logs

from daemon.config import LabelMap, PrometheusConfig, Selector
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import PrometheusError
from daemon.ingest.poller import Poller
from daemon.ingest.queries import TARGETS, build
from daemon.prometheus import Prometheus
from detectors.snapshot import SourceState
from rules.schema import RuleBook, ThresholdRule
from tests.ingest.builders import ENERGY, POWER, T0, TEMP, UTIL, gpu, healthy, host, up
from tests.ingest.server import FakePrometheus, Question, Reply, answers, zipped

EXPR = "node_load15 > 4"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    with fake.start():
        yield fake


@pytest.fixture(scope="module")
def with_expr(rules: RuleBook) -> RuleBook:
    """The shipped rules and one in PromQL."""
    rule = ThresholdRule(summary="load", cause_class="job", tier=2, scope="node", expr=EXPR, above=0, source="a test")
    return rules.model_copy(update={"thresholds": {"busy": rule}})


class Live:
    """A poller with its assembler, polled at times that the test gives."""

    def __init__(self, url: str, rules: RuleBook, **config: Any) -> None:
        self.config = PrometheusConfig(url=url, **({"timeout": 5} | config))
        self.assembler = Assembler(rules, LabelMap(), slow_interval_s=self.config.slow_interval)
        self.poller = Poller(Prometheus(self.config), self.config, rules, self.assembler)

    def poll(self, now: float) -> SourceState:
        state, self.exprs = self.poller.poll(now)
        return state


@pytest.fixture
def live(prometheus: FakePrometheus, rules: RuleBook) -> Iterator[Live]:
    one = Live(prometheus.url, rules)
    yield one
    one.poller.close()


def scrapes(count: int, step: float = 30.0, value: float = 60) -> list[tuple[float, float]]:
    """So many scrapes from T0 on, each with another number."""
    return [(T0 + step * n, value + n) for n in range(count)]


def fleet(count: int = 200) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    energy = [(at, 1e9 + 18_000 * n) for n, (at, _) in enumerate(scrapes(count))]
    return [
        (gpu(TEMP), scrapes(count)),
        (gpu(POWER), scrapes(count, value=600)),
        (gpu(ENERGY), energy),
        (gpu("DCGM_FI_DEV_FB_FREE"), scrapes(count, value=9000)),
        (host("node_load1"), scrapes(count, value=3)),
        (up(), [(at, 1) for at, _ in scrapes(count)]),
    ]


# ------------------------------------------------------------------------------------------------- good days


def test_a_poll_brings_what_is_there(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    state = live.poll(T0 + 61)
    assert state.ok
    assert (state.failed_selectors, state.warnings, state.truncated) == ((), (), ())
    assert live.poller.failures == 0
    snapshot = live.assembler.tick(T0 + 61, source=state)
    assert snapshot.gpu.of("gpu_temp").tolist() == [62]
    assert snapshot.node.of("node_load1").tolist() == [5]
    assert snapshot.coverage.exporter_down.tolist() == [False]
    assert state.last_success == snapshot.at


def test_nothing_at_all_is_an_answer_too(live: Live) -> None:
    state = live.poll(T0)
    assert state.ok
    assert live.assembler.tick(T0, source=state).gpus == ()


def test_compressed_answers_are_read(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    usual = FakePrometheus()
    usual.series = prometheus.series
    prometheus.mood = lambda question: zipped(usual.reply(question).body)
    assert live.poll(T0 + 61).ok
    assert live.assembler.tick(T0 + 61).gpu.of("gpu_temp").tolist() == [62]


def test_only_names_that_exist_are_asked_for_and_queries_are_posted(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    live.poll(T0)
    selectors = [question for question in prometheus.asked if "__name__=~" in question.promql]
    asked = " ".join(question.promql for question in selectors)
    assert "DCGM_FI_DEV_GPU_TEMP" in asked
    assert "DCGM_FI_DEV_GPU_TEMP_CELSIUS" not in asked
    assert {question.method for question in selectors} == {"POST"}


def test_slow_signals_are_asked_for_at_their_own_cadence(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    asked = []
    for poll in range(21):
        live.poll(T0 + 30.0 * poll)
        asked.append(any("FB_FREE" in promql for promql in prometheus.queries()))
    assert [poll for poll, slow in enumerate(asked) if slow] == [0, 10, 20]


def test_a_slow_signal_does_not_go_stale_between_two_pulls_and_its_increase_is_whole(
    prometheus: FakePrometheus, live: Live
) -> None:
    metric = "DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS"
    prometheus.series = [(gpu(metric), scrapes(60, value=0)), (gpu(TEMP), scrapes(60))]
    total = 0.0
    for poll in range(1, 46):
        live.poll(T0 + 30.0 * poll)
        snapshot = live.assembler.tick(T0 + 30.0 * poll)
        assert not np.isnan(snapshot.gpu.of("pcie_correctable_errors")[0])
        total += float(np.nan_to_num(snapshot.gpu.of("pcie_correctable_errors", "increase")[0]))
    assert total == 41 - 0


def test_who_is_who_is_asked_seldom_and_at_once_when_a_target_has_only_an_address(
    prometheus: FakePrometheus, live: Live
) -> None:
    prometheus.series = fleet()
    identity = "node_uname_info"
    counts = []
    for poll in range(12):
        if poll == 5:
            prometheus.series.append((gpu(TEMP, 1, Hostname="", instance="10.0.0.9:9400"), scrapes(200)))
            prometheus.series.append(
                ({"__name__": identity, "instance": "10.0.0.9:9100", "nodename": "n1"}, scrapes(200))
            )
        live.poll(T0 + 30.0 * poll)
        counts.append(sum(identity in promql for promql in prometheus.queries()))
    assert [poll for poll, count in enumerate(counts) if count] == [0, 1, 6]
    assert [node.name for node in live.assembler.tick(T0 + 330).nodes if node.resolved] == ["n1"]


def test_new_names_are_found_and_nothing_is_lost_or_counted_twice_meanwhile(
    prometheus: FakePrometheus, live: Live
) -> None:
    """An exporter upgrade brings a name; the queries change, and what is known about their series stays."""
    prometheus.series = fleet()
    total = 0.0
    for poll in range(40):
        now = T0 + 30.0 * poll
        if poll == 15:
            prometheus.series += [(gpu("DCGM_FI_DEV_MEMORY_TEMP"), scrapes(200)), (gpu(UTIL), scrapes(200, value=1))]
        assert live.poll(now).ok
        snapshot = live.assembler.tick(now)
        total += float(np.nan_to_num(snapshot.gpu.of("energy_joules", "increase")[0]))
    assert total == pytest.approx(39 * 18)
    assert snapshot.gpu.of("memory_temp")[0] == 60 + 39
    assert snapshot.coverage.signal_share.tolist() == [1.0]
    assert set(live.assembler._places.known) == {
        query.key for query in build(_all(live), live.config, live.poller._present)
    }


def _all(live: Live) -> Any:
    return live.poller._rules.metrics


def test_names_that_change_are_looked_for_at_once_when_the_old_ones_fall_silent(
    prometheus: FakePrometheus, live: Live
) -> None:
    old = [(gpu(TEMP), scrapes(3)), (gpu("DCGM_FI_DEV_MEMORY_TEMP"), scrapes(3))]
    new = [(gpu("DCGM_FI_DEV_GPU_TEMP_CELSIUS"), scrapes(40)[3:]), (up(), [(at, 1) for at, _ in scrapes(40)])]
    prometheus.series = old + new
    names = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP", "up"]

    def mood(question: Question) -> Reply | None:
        if "label" in question.path and float(question.form["end"]) < T0 + 90:
            return Reply(json.dumps({"status": "success", "data": names}).encode())
        return None

    prometheus.mood = mood
    for poll in range(8):
        live.poll(T0 + 30.0 * poll)
        snapshot = live.assembler.tick(T0 + 30.0 * poll)
    assert snapshot.gpu.of("gpu_temp")[0] == 60 + 7


def test_a_prometheus_that_knows_no_name_yet_is_asked_for_all_and_again(prometheus: FakePrometheus, live: Live) -> None:
    live.poll(T0)
    assert any("DCGM_FI_DEV_GPU_TEMP_CELSIUS" in promql for promql in prometheus.queries())
    prometheus.series = fleet()
    live.poll(T0 + 30)
    assert live.assembler.tick(T0 + 30).gpu.of("gpu_temp").tolist() == [61]


# ------------------------------------------------------------------------------------------------- bad days


def test_a_prometheus_that_is_down_is_said_and_asked_only_once_a_poll(rules: RuleBook) -> None:
    with FakePrometheus().start() as gone:
        url = gone.url
    live = Live(url, rules)
    for failures in (1, 2, 3):
        state = live.poll(T0)
        assert not state.ok
        assert state.failed_selectors
        assert (live.poller.failures, live.poller.answered) == (failures, 0)
    assert live.poller.errors == {"unreachable": 3}
    assert (state.last_success, live.exprs) == (None, [])
    live.poller.close()


def test_a_prometheus_that_does_not_answer_in_time_costs_one_time_out_a_poll(
    prometheus: FakePrometheus, rules: RuleBook
) -> None:
    release = threading.Event()
    prometheus.mood = lambda _question: Reply(b"", wait=release)
    live = Live(prometheus.url, rules, timeout=0.1)
    state = live.poll(T0)
    release.set()
    assert (state.ok, live.poller.errors, len(prometheus.asked)) == (False, {"timeout": 1}, 1)
    live.poller.close()


API_ERROR = '{"status":"error","errorType":"execution","error":"too many samples"}'
MISHAPS = [
    pytest.param(answers(400, API_ERROR), "http", id="400"),
    pytest.param(answers(401, "no"), "http", id="401"),
    pytest.param(answers(422, API_ERROR), "http", id="422"),
    pytest.param(answers(429, "slow down"), "http", id="429"),
    pytest.param(answers(500, "oops"), "http", id="500"),
    pytest.param(answers(503, API_ERROR), "http", id="503"),
    pytest.param(answers(204, ""), "http", id="204"),
    pytest.param(answers(200, API_ERROR), "api", id="an error with status 200"),
    pytest.param(answers(200, "<html><h1>Sign in</h1></html>"), "garbage", id="a sign-in page"),
    pytest.param(answers(200, b"\x00\xff\x00"), "garbage", id="bytes"),
    pytest.param(answers(200, ""), "garbage", id="nothing"),
    pytest.param(
        answers(200, '{"status":"success","data":{"resultType":"matrix","result":['), "garbage", id="half an answer"
    ),
    pytest.param(Reply(b"x" * 5000, drip=True), "unreachable", id="a connection that breaks in the middle"),
    pytest.param(
        answers(200, b"not gzip", **{"Content-Encoding": "gzip"}), "unreachable", id="what only says it is gzip"
    ),
    pytest.param(answers(200, b" " * 2_000_000), "too_large", id="a huge answer"),
    pytest.param(zipped(b" " * 2_000_000), "too_large", id="a small answer that unpacks to a huge one"),
]


@pytest.mark.parametrize(("reply", "kind"), MISHAPS)
def test_whatever_every_call_gives_nothing_raises_and_it_is_counted(
    prometheus: FakePrometheus, with_expr: RuleBook, reply: Reply, kind: str
) -> None:
    live = Live(prometheus.url, with_expr, max_response_bytes=1_000_000)
    prometheus.mood = lambda _question: reply
    state = live.poll(T0)
    assert not state.ok
    assert {"targets", "rule busy"} <= set(state.failed_selectors)
    assert set(live.poller.errors) == {kind}
    assert (live.poller.answered, live.poller.failures) == (0, 1)
    prometheus.mood = lambda _question: None
    prometheus.series = fleet()
    prometheus.expressions[EXPR] = []
    assert live.poll(T0 + 30).ok
    assert live.poller.failures == 0
    live.poller.close()


@pytest.mark.parametrize(("reply", "kind"), MISHAPS)
def test_one_selector_that_fails_takes_no_other_with_it_and_holds_nothing_up(
    prometheus: FakePrometheus, rules: RuleBook, reply: Reply, kind: str
) -> None:
    live = Live(prometheus.url, rules, max_response_bytes=1_000_000)
    prometheus.series = fleet()
    prometheus.mood = lambda question: reply if "DCGM_FI_DEV_GPU_TEMP" in question.promql else None
    state = live.poll(T0 + 61)
    (failed,) = state.failed_selectors
    assert failed.startswith("fast")
    assert not state.ok
    assert live.poller.errors == {kind: 1}
    assert (live.poller.failures, live.poller.next_delay(30)) == (0, 30)
    snapshot = live.assembler.tick(T0 + 61)
    assert snapshot.node.of("node_load1").tolist() == [5]
    assert np.isnan(snapshot.gpu.of("gpu_temp")).all()
    live.poller.close()


def test_a_selector_that_keeps_failing_is_asked_ever_less_often_and_is_said_to_fail_all_the_while(
    prometheus: FakePrometheus, rules: RuleBook
) -> None:
    broken = Selector(match="my_metric", cadence="fast")
    live = Live(prometheus.url, rules, selectors=(broken,), backoff_max=300)
    prometheus.series = fleet()
    prometheus.mood = lambda question: Reply(b"no", 400) if "my_metric" in question.promql else None
    asked = []
    for poll in range(50):
        state = live.poll(T0 + 30.0 * poll)
        assert state.failed_selectors == ("raw my_metric",)
        asked.append(any("my_metric" in promql for promql in prometheus.queries()))
    polls = [poll for poll, hit in enumerate(asked) if hit]
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    assert gaps[:4] == [1, 1, 3, 7]
    assert set(gaps[4:]) == {10}  # 300 s
    assert live.poller.failures == 0
    live.poller.close()


def test_back_off_grows_is_bounded_and_ends_with_the_first_answer(prometheus: FakePrometheus, rules: RuleBook) -> None:
    live = Live(prometheus.url, rules, backoff_max=200)
    prometheus.mood = lambda _question: Reply(b"", 503)
    longest = []
    for _ in range(30):
        live.poll(T0)
        delays = [live.poller.next_delay(30) for _ in range(200)]
        assert min(delays) >= 30
        longest.append(max(delays))
    assert 30 < longest[0] <= 60 < longest[1] <= 120 < longest[2] <= 200
    assert max(longest) <= 200
    prometheus.mood = lambda _question: None
    live.poll(T0 + 9000)
    assert live.poller.next_delay(30) == 30
    live.poller.close()


def test_after_a_gap_the_window_reaches_back_to_the_last_answer_so_that_nothing_is_missed(
    prometheus: FakePrometheus, live: Live
) -> None:
    prometheus.series = [(gpu(TEMP), [*scrapes(4), (T0 + 400, 99), *scrapes(40)[14:]]), *fleet()[2:]]
    live.poll(T0 + 60)
    live.assembler.tick(T0 + 60)
    prometheus.mood = lambda _question: Reply(b"", 503)
    for poll in range(10):
        live.poll(T0 + 90 + 30 * poll)
    prometheus.mood = lambda _question: None
    live.poll(T0 + 1000)
    snapshot = live.assembler.tick(T0 + 1000)
    assert snapshot.gpu.of("gpu_temp", "high")[0] == 99
    assert snapshot.gpu.of("energy_joules", "increase")[0] == pytest.approx(31 * 18)


def test_a_window_is_never_longer_than_an_hour(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    live.poll(T0)
    prometheus.queries()
    live.poll(T0 + 50_000)
    windows = [promql.rpartition("[")[2] for promql in prometheus.queries() if "GPU_TEMP" in promql]
    assert windows == ["3600s]"]


@pytest.mark.parametrize(
    "status", [pytest.param(422, id="422 too many samples"), pytest.param(503, id="503 the query timed out")]
)
def test_a_window_that_asks_for_too_much_is_not_asked_for_ever(
    prometheus: FakePrometheus, live: Live, status: int
) -> None:
    prometheus.series = fleet()

    def mood(question: Question) -> Reply | None:
        window = question.promql.rpartition("[")[2].rstrip("s]")
        return Reply(b"too much", status) if window.isdigit() and int(window) > 200 else None

    live.poll(T0)
    live.assembler.tick(T0)
    prometheus.mood = mood
    for poll in range(5):
        state = live.poll(T0 + 600 + 30 * poll)
    assert state.ok
    snapshot = live.assembler.tick(T0 + 720)
    assert snapshot.gpu.of("energy_joules", "increase")[0] == pytest.approx(24 * 18)


# ------------------------------------------------------------------------------------------------- warnings


def test_warnings_are_in_the_state_and_logged_when_they_begin(prometheus: FakePrometheus, live: Live) -> None:
    structlog.reset_defaults()
    prometheus.series = fleet()
    prometheus.warnings = ["PromQL info: metric might not be a counter"]
    with capture_logs() as logged:
        states = [live.poll(T0 + 30 * poll) for poll in range(3)]
    assert {state.warnings for state in states} == {tuple(prometheus.warnings)}
    assert {(state.ok, state.truncated) for state in states} == {(True, ())}
    assert [line["warning"] for line in logged if line["event"] == "prometheus warns"] == prometheus.warnings


def test_warnings_that_are_new_each_time_are_not_kept(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    for poll in range(20):
        prometheus.warnings = [f"{poll} series of 12345 were left out"]
        live.poll(T0 + 30 * poll)
    assert len(live.poller._warned) == 1


def test_an_answer_that_was_cut_by_a_limit_is_named(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = fleet()
    prometheus.warnings = ["results truncated due to limit"]
    state = live.poll(T0)
    assert state.truncated
    assert all(label in {"targets", "identity"} or label.startswith(("fast", "slow")) for label in state.truncated)


# ------------------------------------------------------------------------------------------------- PromQL rules


def test_a_rule_in_promql_is_brought_to_the_gpu_or_node_that_its_labels_name(
    prometheus: FakePrometheus, with_expr: RuleBook
) -> None:
    live = Live(prometheus.url, with_expr)
    prometheus.series = fleet()
    prometheus.expressions[EXPR] = [
        (host("node_load15"), T0, 7),
        (gpu("x"), T0, 3),
        ({"instance": "nobody:1"}, T0, 5),
    ]
    live.poll(T0)
    assert [(one.rule, one.gpu, one.node, one.value) for one in live.exprs] == [
        ("busy", -1, 0, 7.0),
        ("busy", 0, -1, 3.0),
    ]
    assert live.assembler.counts["expr_unattributed"] == 1
    live.poller.close()


def test_a_rule_whose_answer_has_labels_that_are_none_raises_nothing(
    prometheus: FakePrometheus, with_expr: RuleBook
) -> None:
    live = Live(prometheus.url, with_expr)
    prometheus.series = fleet()
    prometheus.expressions[EXPR] = [({"a": 1}, T0, 7)]  # type: ignore[dict-item]
    assert live.poll(T0).ok
    assert (live.exprs, live.assembler.counts["bad_labels"]) == ([], 1)
    live.poller.close()


def test_targets_are_asked_for_with_the_sites_matchers(prometheus: FakePrometheus, rules: RuleBook) -> None:
    live = Live(prometheus.url, rules, matchers=('cluster="a"',))
    prometheus.series = [(labels | {"cluster": "a"}, points) for labels, points in fleet()]
    assert live.poll(T0).ok
    queries = prometheus.queries()
    assert queries[0] == f'{TARGETS}{{cluster="a"}}[75s]'
    assert all('cluster="a"' in promql for promql in queries)
    live.poller.close()


def test_a_whole_node_comes_through_the_wire(prometheus: FakePrometheus, live: Live) -> None:
    prometheus.series = [(labels, [(T0, value)]) for labels, value in healthy(8)] + [(up(), [(T0, 1)])]
    live.poll(T0 + 1)
    snapshot = live.assembler.tick(T0 + 1)
    assert len(snapshot.gpus) == 8
    assert snapshot.coverage.signal_share.tolist() == [1.0] * 8


def test_no_error_shows_the_password_of_the_url() -> None:
    client = Prometheus(PrometheusConfig(url="http://sre:hunter2@127.0.0.1:1", timeout=1))
    with pytest.raises(PrometheusError) as refused:
        client.query("up", 0.0)
    assert "hunter2" not in str(refused.value)
    assert "sre" in str(refused.value)
