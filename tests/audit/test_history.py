"""Range queries for people's eyes: on a grid, with gaps as gaps, and only about the site that was asked for."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from daemon.config import PrometheusConfig
from daemon.history import History, escape
from daemon.ingest.decode import PrometheusError
from fixtures.fleet.responder import Answers
from tests.audit.conftest import START_S
from tests.scripted_prometheus import DOWN, ScriptedPrometheus, Trouble, always

START = datetime.fromtimestamp(START_S, UTC)
END = START + timedelta(minutes=5)


@pytest.fixture
def serving(answers: Answers) -> Iterator[ScriptedPrometheus]:
    with ScriptedPrometheus(answers, END.timestamp()).serving() as made:
        yield made


@pytest.fixture
def history(serving: ScriptedPrometheus) -> Iterator[History]:
    made = History(PrometheusConfig(url=serving.url, matchers=('cluster="a"',), timeout=2))
    yield made
    made.close()


def matrix(*values: list[object]) -> bytes:
    result = [{"metric": {"gpu": str(row)}, "values": one} for row, one in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


def test_a_series_comes_on_the_grid_and_what_is_no_number_is_a_gap(
    serving: ScriptedPrometheus, history: History
) -> None:
    at = [START_S + 60 * step for step in range(6)]
    serving.script = always(
        matrix([[at[0], "1"], [at[1] + 0.4, "2.5"], [at[3], "NaN"], [at[4], "+Inf"], [at[5], "7"], [at[5], "8"]])
    )
    ((labels, values),) = history.series("x", START, END, 60.0)
    assert labels == {"gpu": "0"}
    np.testing.assert_array_equal(values.to_numpy(), [1.0, 2.5, np.nan, np.nan, np.nan, 7.0])


def test_the_sites_matchers_are_part_of_each_query(serving: ScriptedPrometheus, history: History) -> None:
    serving.script = always(matrix())
    assert history.series('x{node="n1"}', START, END, 60.0) == []
    assert serving.asked == ['x{node="n1",cluster="a"}']


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(DOWN, id="it hangs up"),
        pytest.param(400, id="it refuses"),
        pytest.param(b"<html>", id="a proxy answers"),
        pytest.param(b'{"status":"success","data":{"result":[{"metric":{}}]}}', id="a series without values"),
        pytest.param(b'{"status":"success","data":{"result":[7]}}', id="a series that is none"),
    ],
)
def test_every_trouble_is_one_error(
    serving: ScriptedPrometheus, history: History, monkeypatch: pytest.MonkeyPatch, trouble: Trouble
) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)  # its retries pause
    serving.script = always(trouble)
    with pytest.raises(PrometheusError, match="range query for x failed"):
        history.series("x", START, END, 60.0)


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrometheusError, match="bearer_token_file"):
        History(PrometheusConfig(bearer_token_file=tmp_path / "none"))


@pytest.mark.parametrize(
    ("label", "inside_quotes"),
    [
        pytest.param("n1", "n1", id="nothing special"),
        pytest.param('a"b', 'a\\"b', id="a quote"),
        pytest.param("a\\b", "a\\\\b", id="a backslash"),
        pytest.param("a\nb", "a\\nb", id="a line end"),
    ],
)
def test_a_label_is_escaped(label: str, inside_quotes: str) -> None:
    assert escape(label) == inside_quotes
