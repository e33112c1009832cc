"""Whatever the command line, the files or Prometheus are like, an audit ends with a message and a code that hold."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon import replay as replay_module
from daemon.commands.audit import AuditOptions, audit
from fixtures.fleet.responder import Answers
from fixtures.fleet.telemetry import Fleet
from tests.scripted_prometheus import DOWN, ScriptedPrometheus, always, only

pytestmark = pytest.mark.usefixtures("loaded")


@pytest.fixture
def short(options: AuditOptions, fleet: Fleet, tmp_path: Path) -> AuditOptions:
    """Ten minutes without logs and labels."""
    end = str(fleet.start_s + 600)
    return replace(options, out=tmp_path / "out", end=end, kernel_logs=(), labels=None, step="60s")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries come one after the other without a pause."""
    monkeypatch.setattr(replay_module.time, "sleep", lambda _seconds: None)


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        pytest.param({"start": "yesterday"}, 2, "--start: 'yesterday'", id="a start that is no time"),
        pytest.param({"end": "1e300"}, 2, "--end: '1e300'", id="an end beyond all times"),
        pytest.param({"end": "nan"}, 2, "--end: 'nan'", id="an end that is no number"),
        pytest.param({"start": "2030-01-01T00:00:00Z"}, 2, "after --start", id="an end before the start"),
        pytest.param({"step": "0s"}, 2, "--step", id="a step of nothing"),
        pytest.param({"step": "soon"}, 2, "--step", id="a step that is no duration"),
        pytest.param({"step": "1d"}, 2, "--step", id="a step longer than the span"),
        pytest.param({"prometheus": "ftp://x"}, 2, "--prometheus", id="a URL that is not HTTP"),
        pytest.param({"kernel_logs": ("gpu001.log",)}, 2, "--kernel-log: expected NODE=FILE", id="a log of no node"),
        pytest.param({"kernel_logs": ("gpu001=/no/log",)}, 5, "/no/log cannot be read", id="a log that is not there"),
        pytest.param({"labels": Path("/no/labels.csv")}, 5, "/no/labels.csv", id="labels that are not there"),
        pytest.param({"out": Path("/proc/version/out")}, 5, "--out", id="a folder that cannot be made"),
        pytest.param({"config": Path("/no/gpuwarden.yaml")}, 2, "/no/gpuwarden.yaml", id="no such configuration"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_is_asked(
    short: AuditOptions, capsys: pytest.CaptureFixture[str], prometheus: ScriptedPrometheus, changes: dict[str, Any],
    code: int, says: str,
) -> None:  # fmt: skip
    asked = len(prometheus.asked)
    assert audit(replace(short, **changes)) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.out == ""
    assert len(prometheus.asked) == asked


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        pytest.param(gzip.compress(b"[ 1.0] NVRM: Xid"), "gzip data, not plain text; give what `zcat", id="compressed"),
        pytest.param("NVRM: Xid".encode("utf-16"), "UTF-16 text", id="what PowerShell writes"),
        pytest.param(b"LPKSHHRH\0\0", "journalctl -k -o json --file", id="the journal's own file"),
    ],
)
def test_a_log_that_is_no_plain_text_is_refused(
    short: AuditOptions, capsys: pytest.CaptureFixture[str], tmp_path: Path, begins: bytes, says: str
) -> None:
    log = tmp_path / "kern.log"
    log.write_bytes(begins)
    assert audit(replace(short, kernel_logs=(f"gpu001={log}",))) == 5
    assert says in capsys.readouterr().err


def test_a_log_that_can_be_read_only_once_is_refused(
    short: AuditOptions, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert audit(replace(short, kernel_logs=(f"gpu001={pipe}",))) == 5
    assert "write it to a file first" in capsys.readouterr().err


def test_nodes_that_no_metric_names_are_told_and_noted_on_the_page(
    short: AuditOptions, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("nothing\n")
    labels = tmp_path / "labels.csv"
    rows = "".join(f"typo{number},,hardware,{short.start},\n" for number in range(7))
    labels.write_text(f"node,gpu_uuid,class,onset,failed_at\n{rows}")
    assert audit(replace(short, kernel_logs=(f"gpu01={log}", f"gpu001={log}"), labels=labels)) == 0
    told = capsys.readouterr().err
    assert "--kernel-log: no metric of the span names gpu01; check" in told
    assert "--labels: no metric of the span names typo0, typo1, typo2, typo3, typo4 and 2 more; check" in told
    assert "no metric of the span names gpu01" in (short.out / "report.html").read_text()


def test_series_that_name_no_gpu_are_the_reason_where_there_is_no_other(
    short: AuditOptions, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "gpuwarden.yaml"
    config.write_text("labels: {gpu_uuid: [gpu_id]}\n")
    assert audit(replace(short, config=config)) == 0
    told = capsys.readouterr().err
    assert "of its series say no GPU's UUID" in told
    assert "labels.gpu_uuid (now: gpu_id)" in told


def test_a_prometheus_that_is_not_there_is_code_3(short: AuditOptions, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(replace(short, prometheus="http://127.0.0.1:9", step=None)) == 3
    assert "is prometheus.url right?" in capsys.readouterr().err


def test_a_span_without_gpus_is_said_and_reported_all_the_same(
    short: AuditOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    options = replace(short, start="2020-01-01T00:00:00Z", end="2020-01-01T00:10:00Z")
    assert audit(options) == 0
    assert "has no GPU metrics between 2020-01-01T00:00:00" in capsys.readouterr().err
    summary = json.loads((options.out / "report.json").read_text())["summary"]
    assert (summary["gpus"], summary["episodes"], summary["coverage"]) == (0, 0, 0.0)
    assert (options.out / "report.html").exists()


@pytest.fixture
def spoiled(answers: Answers, fleet: Fleet) -> Any:
    with ScriptedPrometheus(answers, fleet.end.timestamp()).serving() as serving:
        yield serving


def test_history_is_asked_for_again_after_a_failure_that_may_pass(
    short: AuditOptions, spoiled: ScriptedPrometheus
) -> None:
    left = [503, 503]
    spoiled.script = lambda promql: left.pop() if "DCGM" in promql and left else None
    assert audit(replace(short, prometheus=spoiled.url)) == 0
    summary = json.loads((short.out / "report.json").read_text())["summary"]
    assert summary["counts"]["retries"] == 2
    assert summary["coverage"] > 0.9


def test_history_that_cannot_be_had_whole_is_no_audit(
    short: AuditOptions, spoiled: ScriptedPrometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled.script = only("DCGM_FI_DEV_GPU_TEMP", DOWN)
    assert audit(replace(short, prometheus=spoiled.url)) == 3
    assert "unreachable" in capsys.readouterr().err
    assert not (short.out / "report.json").exists()


def test_a_limit_on_what_one_query_may_load_makes_smaller_queries(
    short: AuditOptions, spoiled: ScriptedPrometheus, fleet: Fleet
) -> None:
    spoiled.script = lambda promql: 422 if promql.endswith(("[600s]", "[300s]")) and "DCGM" in promql else None
    options = replace(short, prometheus=spoiled.url, end=str(fleet.start_s + 600))
    assert audit(options) == 0
    assert any(promql.endswith("[150s]") for promql in spoiled.asked)
    assert json.loads((short.out / "report.json").read_text())["summary"]["coverage"] > 0.9


def test_a_refusal_that_smaller_queries_do_not_mend_ends_it(short: AuditOptions, spoiled: ScriptedPrometheus) -> None:
    spoiled.script = only("DCGM", 400)
    assert audit(replace(short, prometheus=spoiled.url)) == 3
    assert len(spoiled.asked) < 100


def test_no_evidence_is_no_reason_to_lose_the_report(
    options: AuditOptions, spoiled: ScriptedPrometheus, fleet: Fleet, tmp_path: Path
) -> None:
    """Range queries for the plots fail; the plots are missing and the page says why."""
    spoiled.script = lambda promql: 400 if "UUID=" in promql else None
    end = str(fleet.start_s + 4200)
    assert audit(replace(options, prometheus=spoiled.url, end=end, out=tmp_path, labels=None)) == 0
    assert json.loads((tmp_path / "report.json").read_text())["incidents"]
    assert "range query" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_result_alone_is_on_stdout(short: AuditOptions, capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert audit(replace(short, output=form)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    if form == "json":
        assert json.loads(captured.out)["report"] == str(short.out / "report.json")
    else:
        assert f"report: {short.out / 'report.json'}" in captured.out


def test_a_password_in_the_url_is_not_written_down(
    short: AuditOptions, spoiled: ScriptedPrometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    url = spoiled.url.replace("http://", "http://scrape:hunter2@")
    assert audit(replace(short, prometheus=url)) == 0
    written = "".join(path.read_text() for path in short.out.iterdir())
    captured = capsys.readouterr()
    assert "hunter2" not in written + captured.out + captured.err


def test_always_down_from_the_first_query_with_a_given_step(short: AuditOptions, spoiled: ScriptedPrometheus) -> None:
    spoiled.script = always(DOWN)
    assert audit(replace(short, prometheus=spoiled.url)) == 3
