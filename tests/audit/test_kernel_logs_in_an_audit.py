"""Kernel logs in an audit: whose node a file is about, and when its records happened, in every framing."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daemon.config import Config
from daemon.logs import LogFile
from daemon.prometheus import Prometheus
from daemon.replay import Replay, Span
from detectors.engine import Engine
from detectors.events import KernelEvent
from detectors.findings import Incident
from fixtures.fleet import klog
from fixtures.fleet.faults import Maintenance, OffBus
from fixtures.fleet.responder import Answers
from fixtures.fleet.shape import H100, Framing, Pool, build_shape
from fixtures.fleet.telemetry import Fleet
from fixtures.fleet.workload import Run, WorkKind
from rules.schema import RuleBook
from rules.vocabulary import EventKind
from tests.audit.conftest import HOUR, START_S
from tests.scripted_prometheus import ScriptedPrometheus

STEP_S = 60.0

Heard = Callable[..., tuple[list[KernelEvent], Counter[str]]]


@pytest.fixture
def heard(prometheus: ScriptedPrometheus, rules: RuleBook, fleet: Fleet) -> Heard:
    """The events of a replay with these logs, as the detectors get them, and what was counted."""

    def replay(*logs: LogFile, url: str = "", hours: float = 2) -> tuple[list[KernelEvent], Counter[str]]:
        config = Config.model_validate({"prometheus": {"url": url or prometheus.url}})
        end = datetime.fromtimestamp(fleet.start_s + hours * HOUR, UTC)
        made = Replay(Prometheus(config.prometheus), config, rules, Span(fleet.start, end, STEP_S), logs, tries=1)
        events = [event for snapshot in made.snapshots() for event in snapshot.events if event.source != "exporter"]
        return events, made.counts

    return replay


def planted(fleet: Fleet, node: int) -> list[tuple[int, int]]:
    """(code, unix second) of the XIDs that a node's log holds."""
    return [
        (int(record.text.split("): ", 1)[1].split(",", 1)[0]), round(fleet.start_s + record.at_s))
        for record in klog.log_lines(fleet, fleet.shape.nodes[node])
        if "NVRM: Xid" in record.text
    ]


def coded(events: list[KernelEvent]) -> list[tuple[int, int]]:
    """(code, unix second) of the XIDs among events."""
    return [(e.code or 0, round(e.at.timestamp())) for e in events if e.kind is EventKind.XID and e.at is not None]


@pytest.mark.parametrize("node", [0, 1, 2], ids=["rsyslog's times", "seconds since boot", "the journal's JSON"])
def test_each_framing_gives_each_fault_at_its_time(
    heard: Heard, fleet: Fleet, kernel_logs: dict[str, Path], node: int
) -> None:
    name = fleet.shape.nodes[node].name
    events, counts = heard(LogFile(name, kernel_logs[name]))
    expected = planted(fleet, node)
    assert expected
    assert [code for code, _ in coded(events)] == [code for code, _ in expected]
    assert [at_s for _, at_s in coded(events)] == pytest.approx([at_s for _, at_s in expected], abs=1)
    assert counts["log_undated"] == 0


@pytest.mark.parametrize(
    ("given", "known"),
    [
        pytest.param("gpu001", "gpu001", id="the name that the metrics use"),
        pytest.param("gpu001.cluster.local", "gpu001", id="its long name where the metrics use the short one"),
    ],
)
def test_a_log_belongs_to_the_node_that_the_metrics_know(
    heard: Heard, kernel_logs: dict[str, Path], given: str, known: str
) -> None:
    events, _ = heard(LogFile(given, kernel_logs["gpu001"]))
    assert {event.node for event in events} == {known}


def test_a_short_name_finds_the_long_one_of_the_metrics(
    fleet: Fleet, answers: Answers, kernel_logs: dict[str, Path], heard: Heard
) -> None:
    def lengthen(data: str) -> str:
        return data.replace('"gpu001"', '"gpu001.cluster.local"')

    with ScriptedPrometheus(answers, fleet.end.timestamp(), rewrite=lengthen).serving() as serving:
        events, _ = heard(LogFile("gpu001", kernel_logs["gpu001"]), url=serving.url, hours=1)
    assert {event.node for event in events} == {"gpu001.cluster.local"}


def test_a_node_without_any_metrics_is_heard_and_never_acted_on(
    prometheus: ScriptedPrometheus, rules: RuleBook, fleet: Fleet, tmp_path: Path
) -> None:
    path = tmp_path / "stranger.log"
    stamp = datetime.fromtimestamp(fleet.start_s + 600, UTC).isoformat()
    path.write_text(f"{stamp} stranger kernel: NVRM: Xid (PCI:0000:5c:00): 79, GPU has fallen off the bus.\n")
    config = Config.model_validate({"prometheus": {"url": prometheus.url}})
    span = Span(fleet.start, datetime.fromtimestamp(fleet.start_s + 1200, UTC), STEP_S)
    replay = Replay(Prometheus(config.prometheus), config, rules, span, [LogFile("stranger", path)])
    engine, opened = Engine(rules), list[Incident]()
    for snapshot in replay.snapshots():
        opened.extend(engine.step(snapshot).opened)
    (incident,) = opened
    assert (incident.node, incident.gpu_uuids) == ("stranger", ())
    assert "stranger" not in {node.name for node in snapshot.nodes}, "the gate of known nodes refuses it"


def test_a_log_without_times_is_heard_at_the_start_and_counted(heard: Heard, fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "bare.log"
    path.write_text("NVRM: Xid (PCI:0000:5c:00): 79, GPU has fallen off the bus.\n")
    events, counts = heard(LogFile("gpu001", path), hours=0.5)
    assert coded(events) == [(79, round(fleet.start_s))]
    assert counts["log_undated"] == 1
    assert "no time of its own" in events[0].notes


@pytest.mark.parametrize(
    ("stamp", "counted"),
    [
        pytest.param("2025-12-31T23:00:00+00:00", "log_before_span", id="before the span"),
        pytest.param("2038-01-19T03:14:08+00:00", "log_after_span", id="after it, by a clock that was wrong"),
    ],
)
def test_a_record_from_outside_the_span_is_counted_and_holds_nothing_up(
    heard: Heard, fleet: Fleet, tmp_path: Path, stamp: str, counted: str
) -> None:
    path = tmp_path / "odd.log"
    good = datetime.fromtimestamp(fleet.start_s + 600, UTC).isoformat()
    text = "NVRM: Xid (PCI:0000:5c:00): {}, pid=77, name=python3, oh"
    path.write_text(f"{stamp} gpu001 kernel: {text.format(48)}\n{good} gpu001 kernel: {text.format(79)}\n")
    events, counts = heard(LogFile("gpu001", path), hours=0.5)
    assert coded(events) == [(79, round(fleet.start_s + 600))]
    assert counts[counted] == 1


def test_two_logs_of_one_node_are_both_heard(heard: Heard, fleet: Fleet, tmp_path: Path) -> None:
    logs = []
    for number, code in enumerate((48, 79)):
        path = tmp_path / f"{number}.log"
        stamp = datetime.fromtimestamp(fleet.start_s + 600 + number, UTC).isoformat()
        path.write_text(f"{stamp} gpu001 kernel: NVRM: Xid (PCI:0000:5c:00): {code}, pid=77, name=python3, oh\n")
        logs.append(LogFile("gpu001", path))
    events, _ = heard(*logs, hours=0.5)
    assert [code for code, _ in coded(events)] == [48, 79]


# ------------------------------------------------------------------------------------------------------ reboots


@pytest.fixture(scope="module")
def rebooted() -> Fleet:
    """One node of seconds since boot: a GPU lost before a reboot, another one after it."""
    shape = build_shape(5, (Pool(H100, 1, framings=(Framing.MONOTONIC,)),), START_S)
    run = Run("llama", "training", WorkKind.TRAIN, (0,), 300.0, 3 * HOUR)
    faults = (
        OffBus(node=0, slot=1, at_s=0.5 * HOUR, fading_s=300),
        Maintenance(node=0, at_s=1.0 * HOUR, lasts_s=600),
        OffBus(node=0, slot=6, at_s=2.0 * HOUR, fading_s=300),
    )
    return Fleet(5, shape, (run,), faults, START_S, 3, 60.0)


def test_seconds_since_boot_start_anew_after_a_reboot(rebooted: Fleet, heard: Heard, tmp_path: Path) -> None:
    (path,) = klog.write_logs(rebooted, tmp_path)
    with ScriptedPrometheus(Answers(rebooted), rebooted.end.timestamp()).serving() as serving:
        events, counts = heard(LogFile("gpu001", path), url=serving.url, hours=3)
    expected = planted(rebooted, 0)
    assert len(expected) >= 2
    assert [at_s for _, at_s in coded(events)] == pytest.approx([at_s for _, at_s in expected], abs=1)
    assert counts["log_undated"] == 0


def test_without_boot_times_seconds_since_boot_are_undated_and_said_so(
    answers: Answers, fleet: Fleet, kernel_logs: dict[str, Path], heard: Heard
) -> None:
    with ScriptedPrometheus(answers, fleet.end.timestamp()).serving() as serving:
        serving.script = lambda promql: 400 if promql == "node_boot_time_seconds" else None
        _, counts = heard(LogFile("gpu002", kernel_logs["gpu002"]), url=serving.url, hours=0.5)
    assert counts["boot_times_unknown"] == 1
    assert counts["log_undated"] > 0
