"""A restart changes nothing: what was open goes on under its id, nothing is said twice, and what is over closes."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from daemon.ledger import Entry, EntryKind, Ledger
from daemon.logs import utc
from detectors.findings import GpuState
from tests.daemon.conftest import START_S, Daemon
from tests.scripted_prometheus import ScriptedPrometheus

INCIDENTS = (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CHANGED, EntryKind.INCIDENT_CLOSED)


def test_an_open_incident_goes_on_under_its_id_and_its_decision_is_not_told_again(started: Daemon) -> None:
    lost = started.lose_gpu()
    before = started.tick(2)
    entries = started.entries(*INCIDENTS, EntryKind.DECISION, EntryKind.VERDICT_CHANGED)
    started.start()
    after = started.tick(3)
    assert [i.id for i in after.detection.incidents] == [i.id for i in before.detection.incidents]
    assert [i.opened for i in after.detection.incidents] == [i.opened for i in before.detection.incidents]
    assert {v.gpu: v.state for v in after.verdicts}[lost] is GpuState.FAILED
    assert started.entries(*INCIDENTS, EntryKind.DECISION, EntryKind.VERDICT_CHANGED) == entries


def test_a_line_that_was_heard_before_the_restart_is_not_counted_again(started: Daemon) -> None:
    started.lose_gpu()
    started.tick(2)
    (before,) = started.loop.engine.faults.open_faults()
    for _ in range(3):
        started.start()
        started.tick()
    (after,) = started.loop.engine.faults.open_faults()
    assert (after.count, after.first, after.last) == (before.count, before.first, before.last)
    assert started.loop.counts["log_heard_before"] >= 1


def test_a_line_that_was_written_while_nobody_listened_is_heard_however_long_ago(started: Daemon) -> None:
    started.lose_gpu(node=0, slot=1)
    started.tick(2)
    started.stop()
    started.clock.at_s += 300.0
    lost = started.lose_gpu(node=1, slot=6)
    started.clock.at_s += 4500.0  # longer than the horizon of a first start
    started.start()
    tick = started.tick()
    assert lost in {gpu for incident in tick.detection.incidents for gpu in incident.gpu_uuids}


def test_a_first_start_does_not_dig_up_what_is_older_than_the_warm_up(daemon: Daemon) -> None:
    daemon.warm_up = 600.0
    daemon.lose_gpu()
    daemon.clock.at_s += 3600.0
    daemon.start()
    assert daemon.tick().detection.incidents == ()
    assert daemon.loop.counts["log_too_old"] >= 1


def test_an_incident_whose_fault_ended_while_the_daemon_was_away_closes(started: Daemon) -> None:
    started.break_memory()
    (opened,) = started.tick(2).detection.incidents
    started.stop()
    started.clock.at_s += 120.0
    started.reload_driver()
    started.start()
    until_nothing_is_open(started)
    (closed,) = started.entries(EntryKind.INCIDENT_CLOSED)
    assert closed.incident == opened.id
    assert len(started.entries(EntryKind.INCIDENT_OPENED)) == 1
    assert list(started.ledgers[-1].open_incidents()) == []
    started.start()
    assert started.tick().detection.incidents == ()


def test_a_node_that_was_rebooted_while_the_daemon_was_away_has_lost_its_fault(started: Daemon) -> None:
    lost = started.lose_gpu(node=2)
    (opened,) = started.tick(2).detection.incidents
    started.stop()
    started.clock.at_s = START_S + 2.6 * 3600.0
    started.start()
    tick = started.tick()
    assert {v.gpu: v.state for v in tick.verdicts}[lost] is not GpuState.FAILED
    assert all(decision.plan.incident != opened.id for decision in tick.decisions)
    (closed,) = started.entries(EntryKind.INCIDENT_CLOSED)
    assert closed.incident == opened.id


def until_nothing_is_open(daemon: Daemon) -> None:
    for _ in range(30):
        if not daemon.tick().detection.incidents:
            return
    pytest.fail(f"still open: {daemon.loop.tick().detection.incidents}")


def test_a_closing_that_a_broken_tick_did_not_record_is_recorded_by_the_next(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    started.break_memory()
    (opened,) = started.tick(2).detection.incidents
    started.reload_driver()
    with monkeypatch.context() as patch:
        patch.setattr(started.loop._recorder, "tick", lambda *_: None)
        until_nothing_is_open(started)
    assert started.entries(EntryKind.INCIDENT_CLOSED) == []
    started.tick()
    (closed,) = started.entries(EntryKind.INCIDENT_CLOSED)
    assert closed.incident == opened.id
    assert "a tick that failed" in closed.body["closed_because"]


def test_state_of_another_version_is_left_out_and_the_daemon_starts(started: Daemon) -> None:
    lost = started.lose_gpu()
    started.tick(2)
    started.ledgers[-1].append((), state={"faults": b'{"of": "another version"}', "heard": b"[]", "verdicts": b"{"})
    started.start()
    tick = started.tick()
    assert lost in {gpu for incident in tick.detection.incidents for gpu in incident.gpu_uuids}


# ----------------------------------------------------------------------------------------- killed, as it is run


@pytest.fixture
def process(daemon: Daemon) -> Iterator["Process"]:
    made = Process(daemon.prometheus, daemon.folder)
    try:
        yield made
    finally:
        made.kill()


class Process:
    """`gpuwarden run` against the scripted Prometheus, with a clock of its own that starts where the last one ended.

    A poll a second is the most often that a configuration allows, so the process's clock runs sixty times as fast.
    """

    FASTER = 60.0
    CODE = """
import sys, time
from daemon import loop
began, start_s, faster = time.monotonic(), float(sys.argv[1]), float(sys.argv[2])
fast = lambda: start_s + faster * (time.monotonic() - began)
init = loop.Loop.__init__
def with_clock(self, *args, **named):
    init(self, *args, **named | {"clock": fast})
loop.Loop.__init__ = with_clock
loop._LOG_LOOK_S = 0.01
sys.argv = ["gpuwarden", "run", "--config", sys.argv[3]]
from daemon.cli import main
main()
"""

    def __init__(self, prometheus: ScriptedPrometheus, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "gpu.log"
        self.log.touch()
        self.url = f"sqlite:///{folder / 'killed.db'}"
        self.config = folder / "gpuwarden.yaml"
        self.err = folder / "stderr.log"
        self.at_s = START_S + 3600.0
        self.child: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        self.config.write_text(
            yaml.safe_dump(
                {
                    "prometheus": {"url": prometheus.url, "poll_interval": 20, "slow_interval": 300, "warm_up": 0},
                    "ledger": {"url": self.url},
                    "listen": {"port": 0},
                    "kernel_logs": [{"node": "gpu002", "path": str(self.log)}],
                }
            ),
            encoding="utf-8",
        )

    def start(self) -> None:
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", self.CODE, str(self.at_s), str(self.FASTER), str(self.config)]
        with self.err.open("ab") as err:
            self.child = subprocess.Popen(
                command, cwd=root, stdin=subprocess.DEVNULL, stderr=err, env={**os.environ, "PYTHONPATH": str(root)}
            )
        self.began = time.monotonic()

    def kill(self, number: int = signal.SIGKILL) -> int | None:
        if self.child is None:
            return None
        self.at_s += self.FASTER * (time.monotonic() - self.began)
        self.child.send_signal(number)
        code = self.child.wait(30)
        self.child = None
        return code

    def wait_for(self, what: str) -> None:
        """Until the process has logged this text once more than at the call."""
        before = self.said(what)
        deadline = time.monotonic() + 30
        while self.said(what) <= before:
            assert self.child is not None
            assert self.child.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, f"no {what!r} in {self.err.read_text()}"
            time.sleep(0.01)

    def said(self, what: str) -> int:
        return self.err.read_text().count(what)

    def entries(self, *kinds: EntryKind) -> list[Entry]:
        with Ledger.open(self.url, now=lambda: utc(time.time())) as ledger:
            return list(ledger.entries(kind=kinds or None))

    def opened_by_log(self) -> set[str]:
        """Ids of the incidents that the process said it opened."""
        lines = [line for line in self.err.read_text().splitlines() if "incident_opened" in line]
        return {
            part.removeprefix("incident=") for line in lines for part in line.split() if part.startswith("incident=")
        }


def test_a_process_killed_at_any_moment_loses_and_doubles_nothing(daemon: Daemon, process: Process) -> None:
    own = random.Random(5)
    gpus = [daemon.gpu(1, slot) for slot in (0, 3, 6)]
    for gpu, number in zip(gpus, (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM), strict=True):
        process.start()
        process.wait_for("watching")
        stamp = utc(process.at_s + process.FASTER * (time.monotonic() - process.began)).isoformat()
        with process.log.open("a", encoding="utf-8") as file:
            file.write(f"{stamp} gpu002 kernel: NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus.\n")
        process.wait_for("event=decision")
        time.sleep(own.uniform(0, 0.4))  # anywhere within a tick
        code = process.kill(number)
    assert code == 0, "told to stop, it ends well"

    opened = process.entries(EntryKind.INCIDENT_OPENED)
    ids = [entry.incident for entry in opened]
    assert len(set(ids)) == len(ids), "none is opened twice"
    assert process.opened_by_log() <= set(ids) | merged(process), "none that was told is missing"
    assert {gpu for entry in opened for gpu in entry.body["gpu_uuids"]} == {gpu.uuid for gpu in gpus}
    told = [(entry.incident, entry.body["ruling"], gates(entry)) for entry in process.entries(EntryKind.DECISION)]
    assert all(before != after for before, after in itertools.pairwise(told) if before[0] == after[0])


def merged(process: Process) -> set[str]:
    return {str(entry.incident) for entry in process.entries(EntryKind.INCIDENT_CLOSED)}


def gates(entry: Entry) -> tuple[str, ...]:
    return tuple(gate["name"] for gate in entry.body["gates"] if not gate["passed"])
