"""Prometheus in every kind of trouble: the daemon says that it is blind, decides nothing new, and sees again."""

import pytest

from daemon.ledger import EntryKind
from detectors.findings import GpuState
from remediation.decide import Ruling
from tests.daemon.conftest import Daemon, Metric
from tests.scripted_prometheus import DOWN, SLOW, Trouble, always, only, well

TROUBLES = pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        pytest.param(DOWN, "unreachable", id="it hangs up"),
        pytest.param(SLOW, "timeout", id="it never answers"),
        pytest.param(400, "http", id="it refuses every query"),
        pytest.param(503, "http", id="it is overloaded"),
        pytest.param(b"<html>a proxy's error page</html>", "garbage", id="a proxy answers in its place"),
        pytest.param(b'{"status":"error","errorType":"timeout","error":"slow"}', "api", id="it says that it failed"),
        pytest.param(b"", "garbage", id="it answers nothing"),
    ],
)


@TROUBLES
def test_blind_from_the_start_until_it_answers(daemon: Daemon, metric: Metric, trouble: Trouble, kind: str) -> None:
    daemon.timeout = 0.2
    daemon.prometheus.script = always(trouble)
    daemon.start()
    tick = daemon.tick()
    assert tick.blind
    assert tick.decisions == ()
    health = daemon.loop.health()
    assert (health.alive, health.ready) == (True, False)
    assert "Prometheus cannot be asked" in " ".join(health.why)
    assert metric("gpuwarden_ticks_total", outcome="blind") == 1
    assert metric("gpuwarden_poll_errors_total", kind=kind) >= 1
    daemon.prometheus.script = well
    daemon.prometheus.release.set()
    daemon.timeout = 5.0
    seen = daemon.tick(2)
    assert not seen.blind
    assert {v.state for v in seen.verdicts} == {GpuState.HEALTHY}
    assert daemon.loop.health().ready


@TROUBLES
def test_blind_midway_until_it_answers(started: Daemon, metric: Metric, trouble: Trouble, kind: str) -> None:
    before = metric("gpuwarden_poll_errors_total", kind=kind)
    started.timeout = 0.2
    started.start()
    healthy = started.tick()
    began = started.clock() + 60.0
    started.prometheus.script = always(trouble)
    blind = started.tick(2)
    assert {v.state for v in blind.verdicts} == {GpuState.UNKNOWN}
    assert {v.since.timestamp() for v in blind.verdicts} == {began}, "unknown since the first tick without an answer"
    assert all(v.reason.endswith("was healthy") for v in blind.verdicts)
    assert len(blind.verdicts) == len(healthy.verdicts) == 24
    assert metric("gpuwarden_gpus", state="unknown") == 24
    assert metric("gpuwarden_coverage_ratio") == 0.0
    assert metric("gpuwarden_poll_errors_total", kind=kind) > before
    health = started.loop.health()
    assert (health.alive, health.ready) == (True, False)
    started.prometheus.script = well
    started.prometheus.release.set()
    assert {v.state for v in started.tick().verdicts} == {GpuState.HEALTHY}
    assert started.loop.health().ready


def test_the_longer_it_is_away_the_later_it_is_asked(started: Daemon) -> None:
    started.prometheus.script = always(DOWN)
    delays = []
    for _ in range(8):
        started.tick()
        delays.append(started.loop.poller.next_delay(60.0))
    assert all(60.0 <= delay <= 300.0 for delay in delays)
    assert delays[-1] >= 150.0, "half of the longest, at least"
    started.prometheus.script = well
    started.tick()
    assert started.loop.poller.next_delay(60.0) == 60.0


def test_an_outage_is_one_entry_and_its_end_another_however_many_gpus_there_are(started: Daemon) -> None:
    before = len(started.entries())
    started.prometheus.script = always(DOWN)
    started.tick(3)
    started.prometheus.script = well
    started.tick(3)
    new = started.entries()[before:]
    assert [entry.kind for entry in new] == [EntryKind.COVERAGE, EntryKind.COVERAGE]
    assert "Prometheus cannot be asked" in new[0].body["blind"]
    assert new[1].body["blind"] is None


def test_nobody_acts_on_a_kernel_log_while_prometheus_is_away(started: Daemon) -> None:
    started.prometheus.script = always(DOWN)
    started.tick()
    lost = started.lose_gpu()
    tick = started.tick()
    assert tick.blind
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["gpu_uuids"] == [lost]
    (decided,) = started.entries(EntryKind.DECISION)
    failed = {gate["name"] for gate in decided.body["gates"] if not gate["passed"]}
    assert (decided.body["ruling"], "snapshot_fresh" in failed) == ("wait", True)
    assert {d.ruling for d in tick.decisions} == {Ruling.WAIT}

    started.prometheus.script = well
    seen = started.tick()
    assert not seen.blind
    assert lost in {gpu for incident in seen.detection.incidents for gpu in incident.gpu_uuids}
    assert len(started.entries(EntryKind.INCIDENT_OPENED)) == 1
    assert all("snapshot_fresh" not in failed_gates(d) for d in seen.decisions)


def failed_gates(decision: object) -> set[str]:
    return {gate.name for gate in decision.gates if not gate.passed}  # type: ignore[attr-defined]


def test_one_query_that_fails_makes_a_part_unknown_and_holds_every_hand(started: Daemon, metric: Metric) -> None:
    started.lose_gpu()
    acted = started.tick()
    assert Ruling.ACT in {d.ruling for d in acted.decisions}
    at = metric("gpuwarden_snapshot_timestamp_seconds")
    started.prometheus.script = only("DCGM_FI_DEV_GPU_TEMP", 422)
    tick = started.tick()
    assert not tick.blind
    assert GpuState.HEALTHY in {v.state for v in tick.verdicts}
    assert Ruling.ACT not in {d.ruling for d in tick.decisions}
    assert metric("gpuwarden_ticks_total", outcome="partial") == 1
    assert metric("gpuwarden_snapshot_timestamp_seconds") == at, "no complete snapshot since"
    health = started.loop.health()
    assert (health.alive, health.ready) == (True, True)
    assert "part of the telemetry could not be asked for" in health.why[0]
    assert started.loop.poller.next_delay(60.0) == 60.0, "one bad query slows nothing else down"
    started.prometheus.script = well
    assert Ruling.ACT in {d.ruling for d in started.tick(3).decisions}
    assert started.loop.health().why == ()


def test_a_restart_while_prometheus_is_away_still_knows_the_fleet(started: Daemon) -> None:
    started.lose_gpu()
    started.tick()
    started.prometheus.script = always(DOWN)
    started.start()
    tick = started.tick()
    assert len(tick.verdicts) == 24
    assert {v.state for v in tick.verdicts} == {GpuState.UNKNOWN}
