"""What agents reported, in the loop: it wakes it, counts once whatever breaks, and is nobody's word about others."""

import threading
from typing import Any

import pytest

import daemon.event_inbox as inbox_module
from daemon.agent.wire import Report, report_id
from daemon.agent_events import entries_of
from daemon.ledger import EntryKind
from daemon.logs import utc
from daemon.memory import read_faults
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.daemon.conftest import Daemon
from tests.daemon.test_loop_turns import broken, running


def lost(daemon: Daemon, node: int = 1, slot: int = 5, *, sequence: int = 1, **fields: Any) -> str:
    """A node's agent reports that a GPU fell off the bus; gives its UUID."""
    gpu = daemon.gpu(node, slot)
    event = KernelEvent(
        **{
            "kind": EventKind.XID, "code": 79, "text": f"NVRM: Xid (PCI:{gpu.pci}): 79, GPU has fallen off the bus.",
            "at": utc(daemon.clock()), "sequence": sequence, "pci": gpu.pci, "boot_id": "b1", "source": "kmsg",
        } | fields
    )  # fmt: skip
    report = Report(report_id(event), event)
    daemon.ledgers[-1].append(entries_of([report], daemon.name(node), "1.0", "", utc(daemon.clock())))
    daemon.bell.set()
    return gpu.uuid


def opened(daemon: Daemon) -> list[list[str]]:
    """The GPUs of each incident that was opened."""
    return [list(entry.body["gpu_uuids"]) for entry in daemon.entries(EntryKind.INCIDENT_OPENED)]


def times_logged(daemon: Daemon) -> list[int]:
    """How often each open fault was seen, as the ledger has it."""
    return [fault.count for fault in read_faults(daemon.ledgers[-1])]


def test_a_report_becomes_an_incident_of_its_gpu(started: Daemon) -> None:
    gpu = lost(started)
    started.tick()
    assert opened(started) == [[gpu]]
    (decision,) = started.entries(EntryKind.DECISION)
    assert decision.body["plan"]["node"] == started.name(1)


def test_a_report_wakes_the_loop_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "_LOOK_S", 1e9)  # the bell alone
    daemon.start()
    with running(daemon, monkeypatch) as next_tick:
        next_tick()
        gpu = lost(daemon)  # the clock stands still: nothing but the report can bring a tick
        next_tick()
    assert opened(daemon) == [[gpu]]


def test_a_report_that_another_replica_took_is_found_without_a_bell(started: Daemon) -> None:
    started.loop.tick()
    lost(started)
    started.bell.clear()
    assert started.loop._wait(threading.Event()) is False, "the report, and not the next poll, ended the wait"


def test_what_a_program_wrote_wakes_nobody_and_takes_nothing_out(started: Daemon) -> None:
    lost(started, trusted=False)
    started.tick()
    assert [entry.body["plan"]["action"] for entry in started.entries(EntryKind.DECISION)] in ([], ["watch"])


def test_a_restart_counts_nothing_twice_and_misses_nothing(started: Daemon) -> None:
    lost(started)
    started.tick()
    assert times_logged(started) == [1]
    started.stop()
    started.start()
    started.tick(2)
    assert times_logged(started) == [1]
    lost(started, sequence=2)
    started.stop()
    started.start()
    started.tick()
    assert times_logged(started) == [2]
    assert len(opened(started)) == 1


def test_what_was_seen_but_not_recorded_is_seen_again_by_the_next_process(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = lost(started)
    with monkeypatch.context() as patch:
        patch.setattr(started.loop._recorder, "flush", broken)
        with pytest.raises(Exception, match="on purpose"):
            started.tick()
    started.stop()
    started.start()
    started.tick()
    assert (opened(started), times_logged(started)) == ([[gpu]], [1])


def test_what_a_broken_tick_swallowed_is_told_by_the_next_and_once(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = lost(started)
    with monkeypatch.context() as patch:
        patch.setattr(started.loop.assembler, "tick", broken)
        with pytest.raises(Exception, match="on purpose"):
            started.tick()
    started.loop._broke()
    started.tick()
    assert (opened(started), times_logged(started)) == ([[gpu]], [1])
    started.stop()
    started.start()
    started.tick()
    assert times_logged(started) == [1]


def test_an_agent_is_not_believed_about_another_nodes_gpu(started: Daemon) -> None:
    other = started.gpu(0, 3).uuid
    lost(started, node=1, pci="0000:ff:00", gpu_uuid=other)
    lost(started, node=1, sequence=2, kind=EventKind.GPU_MAP, code=None, pci="0000:fe:00", gpu_uuid=other)
    lost(started, node=1, sequence=3, pci="0000:fe:00")
    tick = started.tick()
    (verdict,) = [one for one in tick.verdicts if one.gpu == other]
    assert verdict.state == "healthy"
    assert not any(other in gpus for gpus in opened(started))
    assert {entry.node for entry in started.entries(EntryKind.DECISION)} == {started.name(1)}
