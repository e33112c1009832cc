"""Jobs that name a metric for their checkpoints: the newest time that it gives is theirs, and nothing else is one."""

import json
from collections import Counter
from datetime import UTC, datetime

import pytest

from daemon.config import PrometheusConfig
from daemon.measuring import MOST_JOBS, measured
from daemon.prometheus import Prometheus
from tests.daemon.conftest import START_S
from tests.scripted_prometheus import ScriptedPrometheus, Trouble

AT = datetime(2026, 3, 4, 11, 30, tzinfo=UTC)


def answer(*values: str) -> bytes:
    """What Prometheus says to an instant query with so many series."""
    result = [{"metric": {"rank": str(number)}, "value": [START_S, value]} for number, value in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.fixture
def client(prometheus: ScriptedPrometheus) -> Prometheus:
    return Prometheus(PrometheusConfig(url=prometheus.url))


@pytest.mark.parametrize(
    ("said", "found", "errors"),
    [
        pytest.param(answer(f"{AT.timestamp()}"), AT, {}, id="one series"),
        pytest.param(answer(f"{AT.timestamp() - 60}", f"{AT.timestamp()}"), AT, {}, id="the newest of several"),
        pytest.param(answer("NaN", f"{AT.timestamp()}"), AT, {}, id="beside one that is no number"),
        pytest.param(answer(), None, {"checkpoint_metric": 1}, id="no series"),
        pytest.param(answer("12000"), None, {"checkpoint_metric": 1}, id="a step is no time"),
        pytest.param(answer(f"{1000 * AT.timestamp()}"), None, {"checkpoint_metric": 1}, id="milliseconds are none"),
        pytest.param(b"<html>", None, {"garbage": 1}, id="no answer of Prometheus at all"),
        pytest.param(400, None, {"http_400": 1}, id="an expression that Prometheus refuses"),
    ],
)
def test_what_a_metric_says(
    client: Prometheus, prometheus: ScriptedPrometheus, said: Trouble, found: datetime | None, errors: dict[str, int]
) -> None:
    prometheus.script = lambda _promql: said
    counted: Counter[str] = Counter()
    told = measured(client, {"uid-1": 'max(saved{job="llama"})'}, START_S, counted)
    assert told == ({} if found is None else {"uid-1": found})
    assert sum(counted.values()) == sum(errors.values())
    assert prometheus.asked == ['max(saved{job="llama"})']


def test_no_more_than_a_few_jobs_are_asked_about_in_one_poll(
    client: Prometheus, prometheus: ScriptedPrometheus
) -> None:
    prometheus.script = lambda _promql: answer(f"{AT.timestamp()}")
    told = measured(client, {f"uid-{number:03}": "saved" for number in range(100)}, START_S, Counter())
    assert len(told) == len(prometheus.asked) == MOST_JOBS
