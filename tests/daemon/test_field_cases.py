"""Reports from the field that are about reading and keeping kernel-log events (field cases FC038 and FC043)."""

from datetime import timedelta

from daemon.ledger import EntryKind
from daemon.logs import utc
from detectors.findings import GpuState
from rules.vocabulary import CauseClass
from tests.daemon.conftest import POLL_S, Daemon
from tests.daemon.test_loop_without_ledger import locked


def test_fc038_a_log_that_was_rotated_away_unread_is_a_gap_that_is_told_and_no_health(started: Daemon) -> None:
    started.say(1, "something ordinary")
    started.tick()
    last_look = started.clock()
    started.stop()
    started.clock.at_s += 14 * 60
    started.log_of(1).replace(started.folder / "rotated-away.log")
    started.say(1, "the first line that is still there")
    started.start()
    told = started.tick()
    assert told.detection is not None
    (gap,) = [signal for signal in told.detection.signals if signal.rule == "log_gap"]
    assert (gap.node, gap.cause_class, gap.weight) == (started.name(1), CauseClass.TELEMETRY, 0.0)
    assert f"from {utc(last_look):%Y-%m-%dT%H:%M:%SZ} to " in gap.text
    assert gap.since - utc(last_look) == timedelta(minutes=14)
    opened = [entry.body for entry in started.entries(EntryKind.INCIDENT_OPENED)]
    assert [(body["cause_class"], body["nodes"]) for body in opened] == [("telemetry", [started.name(1)])]
    assert all(d.plan.action.value in ("watch", "diagnose") for d in told.decisions)


def test_a_log_that_goes_on_where_it_was_left_has_no_gap(started: Daemon) -> None:
    started.say(1, "before")
    started.tick()
    started.stop()
    started.clock.at_s += 14 * 60
    started.say(1, "after")
    started.start()
    told = started.tick()
    assert told.detection is not None
    assert [signal.rule for signal in told.detection.signals if signal.rule == "log_gap"] == []


def test_fc043_an_event_that_was_read_and_could_not_be_stored_is_read_again_and_stored_once(started: Daemon) -> None:
    with locked(started):
        lost = started.lose_gpu()
        seen = started.tick()
        assert seen.detection is not None
        assert [incident.gpu_uuids for incident in seen.detection.opened] == [(lost,)]
        assert started.entries(EntryKind.INCIDENT_OPENED) == []
    started.start()  # the process died before the ledger came back
    started.clock.at_s += POLL_S
    started.tick(2)
    opened = started.entries(EntryKind.INCIDENT_OPENED)
    assert [entry.body["gpu_uuids"] for entry in opened] == [[lost]]
    assert [fault.count for fault in started.loop.engine.faults.open_faults()] == [1]
    states = {verdict.gpu: verdict.state for verdict in started.tick().verdicts}
    assert states[lost] is GpuState.FAILED
