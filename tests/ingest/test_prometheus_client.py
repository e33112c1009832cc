"""The HTTP edge: what is sent, what is bounded, and which error says what went wrong."""

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.config import PrometheusConfig
from daemon.ingest.decode import PrometheusError
from daemon.prometheus import Prometheus
from tests.ingest.builders import T0
from tests.ingest.server import FakePrometheus, Reply, answers


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    with fake.start():
        yield fake


def client(url: str, **config: Any) -> Prometheus:
    return Prometheus(PrometheusConfig(url=url, **({"timeout": 5} | config)))


def test_headers_and_a_token_are_sent_and_the_token_is_read_each_time(prometheus: FakePrometheus, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    asks = client(prometheus.url, headers={"X-Scope-OrgID": "ml"}, bearer_token_file=token)
    asks.query("up", T0)
    token.write_text("two\n")
    asks.query("up", T0)
    sent = [question.headers for question in prometheus.asked]
    assert [one["Authorization"] for one in sent] == ["Bearer one", "Bearer two"]
    assert {one["X-Scope-OrgID"] for one in sent} == {"ml"}


def test_no_netrc_replaces_the_token(prometheus: FakePrometheus, tmp_path, monkeypatch) -> None:
    token, netrc = tmp_path / "token", tmp_path / "netrc"
    token.write_text("secret")
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    client(prometheus.url, bearer_token_file=token).query("up", T0)
    assert [one.headers["Authorization"] for one in prometheus.asked] == ["Bearer secret"]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: path.unlink(missing_ok=True), "bearer_token_file", id="no token"),
        pytest.param(lambda path: path.write_bytes(b"\xff\xfe"), "bearer_token_file", id="a token that is no text"),
        pytest.param(lambda path: path.write_text("a\nb"), "prometheus.url", id="a token of two lines"),
        pytest.param(lambda path: path.write_text("žluťoučký"), "prometheus.url", id="a token that no header can hold"),
    ],
)
def test_a_token_that_cannot_be_sent_is_the_one_error(prometheus: FakePrometheus, tmp_path, make, reason: str) -> None:
    make(tmp_path / "token")
    with pytest.raises(PrometheusError, match=reason) as caught:
        client(prometheus.url, bearer_token_file=tmp_path / "token").query("up", T0)
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        pytest.param(answers(200, '{"status":"error","error":"no"}'), "api", id="an error"),
        pytest.param(answers(200, "[1]"), "garbage", id="no names"),
        pytest.param(answers(404, "no"), "http", id="a back end that can't say"),
    ],
)
def test_names_that_cannot_be_had_are_an_error(prometheus: FakePrometheus, reply: Reply, kind: str) -> None:
    prometheus.mood = lambda _question: reply
    with pytest.raises(PrometheusError) as caught:
        client(prometheus.url).metric_names(T0, T0 + 1)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        pytest.param(status, again, id=str(status))
        for status, again in ((400, False), (422, False), (429, True), (500, True), (503, True))
    ],
)
def test_only_what_may_get_better_is_worth_another_try(
    prometheus: FakePrometheus, status: int, retryable: bool
) -> None:
    prometheus.mood = lambda _question: Reply(b"no", status)
    with pytest.raises(PrometheusError, match=f"answered {status}: no") as caught:
        client(prometheus.url).query("up", T0)
    assert caught.value.retryable is retryable


def test_a_body_that_stops_coming_is_a_time_out(prometheus: FakePrometheus) -> None:
    release = threading.Event()
    prometheus.mood = lambda _question: Reply(b"", wait=release)
    with pytest.raises(PrometheusError, match=r"within 0\.1 s") as caught:
        client(prometheus.url, timeout=0.1).query("up", T0)
    release.set()
    assert (caught.value.kind, caught.value.retryable) == ("timeout", True)


def test_an_answer_that_trickles_in_ends_at_a_deadline(
    prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("daemon.prometheus.time", SimpleNamespace(monotonic=lambda: next(clock)))
    prometheus.mood = lambda _question: Reply(b" " * 3_000_000)
    with pytest.raises(PrometheusError) as caught:
        client(prometheus.url).query("up", T0)
    assert caught.value.kind == "timeout"


def test_a_range_query_says_its_span_and_step(prometheus: FakePrometheus) -> None:
    prometheus.mood = lambda _question: Reply(b"{}")
    asks = client(prometheus.url + "/")
    asks.query_range("up", T0, T0 + 60, 15)
    (question,) = prometheus.asked
    assert asks.url == prometheus.url
    assert question.path == "/api/v1/query_range"
    assert question.form == {"query": "up", "start": f"{T0:.3f}", "end": f"{T0 + 60:.3f}", "step": "15.000"}


def test_a_certificate_that_is_not_there_is_the_one_error(tmp_path) -> None:
    with pytest.raises(PrometheusError) as caught:
        client("https://127.0.0.1:1", ca_file=tmp_path / "ca.pem").query("up", T0)
    assert caught.value.kind == "unreachable"
