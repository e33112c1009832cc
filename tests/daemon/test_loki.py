"""Kernel logs by way of Loki in the loop: they wake it, end in a decision, count once, and hold up nobody."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import daemon.loop as loop_module
from daemon.ledger import EntryKind, Ledger
from daemon.logs import utc
from daemon.loki.config import LokiConfig
from daemon.loki.inlet import LokiInlet
from daemon.memory import read_faults
from daemon.metrics import Metrics
from rules.vocabulary import CauseClass
from tests.daemon.conftest import Daemon
from tests.daemon.test_loop_turns import running
from tests.loki.stand_in import S, StandIn
from tests.scripted_prometheus import ScriptedPrometheus

PATIENCE_S = 60.0
QUERY = '{job="journal"}'


@pytest.fixture
def loki() -> Iterator[StandIn]:
    with StandIn().serving() as serving:
        yield serving


@pytest.fixture
def heard(daemon: Daemon, loki: StandIn) -> Daemon:
    """A daemon that reads its nodes' logs from Loki, too."""
    config = LokiConfig.model_validate(
        {"url": loki.url, "query": QUERY, "trusted_labels": {"transport": "kernel"}, "every": 0.5, "sweep": 0.5}
    )
    daemon.other_inlets = lambda ledger: [LokiInlet(config, daemon.rules, ledger, Metrics(), daemon.clock)]
    return daemon


def lose_gpu(daemon: Daemon, loki: StandIn, node: int = 1, slot: int = 5, transport: str = "kernel") -> str:
    """A collector brings the driver's word that a GPU fell off the bus; gives its UUID."""
    gpu = daemon.gpu(node, slot)
    text = f"NVRM: Xid (PCI:{gpu.pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    loki.push(round(daemon.clock() * S), text, job="journal", transport=transport, node=daemon.name(node))
    return gpu.uuid


def opened(daemon: Daemon) -> list[list[str]]:
    return [list(entry.body["gpu_uuids"]) for entry in daemon.entries(EntryKind.INCIDENT_OPENED)]


def wait_for_a_read(daemon: Daemon, loki: StandIn) -> None:
    """Whatever stands in Loki now has been read by the time this returns, and waits for the next tick."""
    seen, deadline_s = len(loki.asked), time.monotonic() + PATIENCE_S
    while len(loki.asked) < seen + 8:
        assert time.monotonic() < deadline_s
        daemon.loop._hearing.listen(utc(daemon.clock()), lambda _: None)
        time.sleep(0.05)


def test_a_fault_in_loki_wakes_the_loop_and_ends_in_a_decision(
    heard: Daemon, loki: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard.start()
    with running(heard, monkeypatch) as next_tick:
        next_tick()
        gpu = lose_gpu(heard, loki)  # the clock stands still: nothing but the line can bring a tick
        next_tick()
    assert opened(heard) == [[gpu]]
    (decision,) = heard.entries(EntryKind.DECISION)
    assert decision.body["plan"]["node"] == heard.name(1)


def test_a_restart_counts_nothing_twice(heard: Daemon, loki: StandIn) -> None:
    heard.start()
    heard.tick()
    lose_gpu(heard, loki)
    wait_for_a_read(heard, loki)
    heard.tick()
    for _ in range(2):
        heard.stop()
        heard.start()
        wait_for_a_read(heard, loki)
        heard.tick()
    assert [fault.count for fault in read_faults(heard.ledgers[-1])] == [1]


def test_what_a_program_wrote_opens_nothing_that_is_acted_on(heard: Daemon, loki: StandIn) -> None:
    heard.start()
    heard.tick()
    lose_gpu(heard, loki, transport="stdout")
    wait_for_a_read(heard, loki)
    heard.tick()
    assert [entry.body["plan"]["action"] for entry in heard.entries(EntryKind.DECISION)] in ([], ["watch"])


def test_a_gap_of_all_nodes_is_a_matter_of_telemetry_and_nothing_is_done_about_it(heard: Daemon, loki: StandIn) -> None:
    heard.start()
    heard.tick(2)
    heard.stop()
    heard.clock.at_s += 8 * 86_400
    heard.prometheus.now_s = heard.clock()
    heard.start()
    wait_for_a_read(heard, loki)
    heard.tick(2)
    incidents = [entry.body for entry in heard.entries(EntryKind.INCIDENT_OPENED)]
    gaps = [one for one in incidents if any("longer ago than loki.retention" in s["text"] for s in one["signals"])]
    assert [one["cause_class"] for one in gaps] == [CauseClass.TELEMETRY.value]
    (about,) = {one["id"] for one in gaps}
    decisions = [entry.body for entry in heard.entries(EntryKind.DECISION) if entry.incident == about]
    assert {one["ruling"] for one in decisions} == {"refuse"}
    failed = {gate["name"] for one in decisions for gate in one["gates"] if not gate["passed"]}
    assert "node_known" in failed


def test_a_loki_that_hangs_holds_up_no_tick(heard: Daemon, loki: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_LEAST_GAP_S", 0.0)
    loki.always = PATIENCE_S
    heard.start()
    gpu = heard.lose_gpu()
    heard.tick(2)
    assert opened(heard) == [[gpu]]


def test_gpuwarden_run_reads_loki(tmp_path: Path, prometheus: ScriptedPrometheus, loki: StandIn, root: Path) -> None:
    """A process of its own, with nothing but its configuration: a line in Loki is an incident in its ledger."""
    path, database = tmp_path / "gpuwarden.yaml", tmp_path / "ledger.db"
    sections = {
        "prometheus": {"url": prometheus.url, "warm_up": 0, "timeout": 5},
        "ledger": {"url": f"sqlite:///{database}"},
        "listen": {"port": 0},
        "loki": {"url": loki.url, "query": QUERY, "trusted_labels": {"transport": "kernel"}, "every": 0.5},
    }
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")
    command = [sys.executable, "-c", "from daemon.cli import main; main()", "run", "--config", str(path)]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not loki.asked:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        text = "NVRM: Xid (PCI:0000:5c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        loki.push(time.time_ns(), text, job="journal", transport="kernel", node="gpu-by-loki")
        with Ledger.open(f"sqlite:///{database}", now=lambda: utc(time.time())) as ledger:
            found = []
            while not found:
                assert time.monotonic() < deadline_s
                found = [e for e in ledger.entries(kind=EntryKind.DECISION) if e.node == "gpu-by-loki"]
                time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said.decode()
