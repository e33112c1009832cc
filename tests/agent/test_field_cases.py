"""Reports from the field that are about reading and delivering kernel events: from the log's lines to the ledger.

What the texts mean is in `tests/xid`, what follows from the events in `tests/detect`; here each has to arrive, once.
"""

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from daemon.agent.clock import NOTE_MOVED
from daemon.agent.metrics import AgentMetrics
from daemon.agent.run import Agent, Parts
from daemon.agent.sender import Sender, Who
from daemon.agent.spool import SpoolError, SpoolFull
from daemon.commands.agent import agent as agent_command
from daemon.logs import Folded, fold
from detectors.events import KernelEvent
from rules.vocabulary import EventKind, Severity
from tests.agent.machine import Buffer, xid
from tests.agent.served import NOW
from tests.agent.test_journal import Journal
from tests.agent.test_journal import started as journal_started
from tests.agent.whole_path import NODE_NAME, Life, Node, kmsg_of, living

G1, G2 = "0000:07:00", "0000:18:00"


def after(life: Life, seconds: float) -> None:
    """Time passes, and the agent has a turn."""
    life.machine.let_pass(seconds)
    life.turn()


# ----------------------------------------------------------------------------------------------- repeats and floods


def test_fc002_the_same_fault_twice_is_told_twice_by_the_log(buffer: Buffer, life: Life) -> None:
    life.machine.let_pass(10)
    buffer.say(xid(43, pid=100))
    after(life, 60)
    buffer.say(xid(43, pid=200))
    life.settle()
    told = life.controller.events()
    assert [(event.code, event.pid, event.count) for event in told] == [(43, 100, 1), (43, 200, 1)]
    assert (told[1].at or NOW) - (told[0].at or NOW) == timedelta(seconds=60)


def test_fc034_ten_thousand_equal_lines_a_minute_are_one_message_a_second_and_all_are_counted(
    buffer: Buffer, life: Life
) -> None:
    for _ in range(60):
        for _ in range(167):
            buffer.say(xid(95))
            life.machine.let_pass(0.006)
        life.turn()
    life.settle()
    assert life.controller.times() == {95: 60 * 167}
    assert len(life.controller.entries()) <= 70


def test_fc034_29_kinds_of_lines_while_the_controller_is_away_are_29_messages_and_not_one_more_for_each_repeat(
    buffer: Buffer, life: Life
) -> None:
    life.controller.stop()
    for number in range(20_000):
        buffer.say(xid(95, pci=f"0000:{number % 29:02x}:00"))
        if number % 1000 == 0:
            life.machine.let_pass(2.0)
            life.read()
    life.machine.let_pass(2.0)
    life.read()
    life.controller.start()
    life.settle()
    assert life.controller.times() == {95: 20_000}
    assert len(life.controller.entries()) <= 2 * 29


def test_fc042_the_same_message_each_second_is_one_fault_in_a_window(buffer: Buffer, life: Life) -> None:
    for second in range(60):
        buffer.say(xid(31, pid=5) + f", intr 10000000. MMU Fault at 0x{second:08x}")
        after(life, 1.0)
    life.settle()
    told = life.controller.events()
    assert sum(event.count for event in told) == 60
    window: Folded = {}
    for event in told:
        fold(window, event)
    assert len(window) <= 4  # of each minute that it touches, the first and the last
    assert sum(event.count for event in window.values()) == 60


def test_fc035_six_removals_after_cancelled_jobs_are_six_reports_of_one_code(buffer: Buffer, life: Life) -> None:
    for pid in range(6):
        buffer.say(xid(45, pid=pid))
        after(life, 4 * 3600)
    life.settle()
    assert [(event.code, event.pid) for event in life.controller.events()] == [(45, pid) for pid in range(6)]


def test_fc057_the_timeouts_after_the_first_error_stand_behind_it_as_one_message(buffer: Buffer, life: Life) -> None:
    buffer.say(f"NVRM: Xid (PCI:{G1}): 120, pid=7, name=nv-hostengine, GSP Error: Task 1 raised error code 0x5")
    after(life, 16.0)
    for _ in range(200):
        buffer.say(f"NVRM: Xid (PCI:{G1}): 119, pid=7, name=nv-hostengine, Timeout after 6s of waiting for RPC response"
                   " from GPU0 GSP! Expected function 10 (FREE) (0x5c 0x0).")  # fmt: skip
    life.settle()
    assert life.controller.codes()[0] == 120
    assert life.controller.times() == {120: 1, 119: 200}
    assert len(life.controller.entries()) <= 4


# ------------------------------------------------------------------------------------- lines, pieces and their order


OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize("killed_after", [None, 0, 1], ids=["in one go", "killed after a line", "killed after two"])
def test_fc037_three_lines_that_say_a_gpu_is_gone_are_one_event_and_the_number_another(
    buffer: Buffer, life: Life, killed_after: int | None
) -> None:
    printed_s = life.machine.up_s
    for number, line in enumerate(OFF_BUS):
        buffer.say(line, up_s=printed_s)
        life.turn()
        if number == killed_after:
            after(life, 20.0)  # long enough for the place to be stored
            after(life, 20.0)
            assert life.spool is not None
            assert life.spool.position is not None
            assert life.spool.position.sequence == number + 1
            life.kill()
    buffer.say(xid(79, pci="0000:b3:00"))
    life.settle()
    told = [(event.kind, event.pci, event.count) for event in life.controller.events()]
    assert told == [(EventKind.OFF_BUS, "0000:b3:00", 1), (EventKind.XID, "0000:b3:00", 1)]


def test_fc044_a_line_that_was_cut_off_arrives_with_its_severity(buffer: Buffer, life: Life) -> None:
    buffer.say(f"NVRM: Xid (PCI:{G1}): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0")
    life.settle()
    (event,) = life.controller.events()
    assert (event.code, event.severity, event.place) == (145, Severity.NONFATAL, "link 17")
    assert event.registers[:2] == (0x04084507, 0x4)


def test_fc046_the_instance_of_a_partitioned_gpu_arrives(buffer: Buffer, life: Life) -> None:
    buffer.say("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid=7194, Contained: SM (0x1). RST: No, D-RST: No")
    buffer.say("NVRM: Xid (PCI:0000:01:00 GPU-I:06 GPU-CI:00): 94, pid=7195, Contained: SM (0x1). RST: No, D-RST: No")
    life.settle()
    told = [(one.code, one.pci, one.gpu_instance, one.compute_instance, one.pid) for one in life.controller.events()]
    assert told == [(94, "0000:01:00", 5, 0, 7194), (94, "0000:01:00", 6, 0, 7195)]


def test_fc048_each_word_of_the_driver_about_what_it_needs_arrives_in_its_order(buffer: Buffer, life: Life) -> None:
    changes = ("0x0 (None) to 0x4 (Drain and Reset)", "0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
               "0x1 (GPU Reset Required) to 0x0 (None)")  # fmt: skip
    for change in changes:
        buffer.say(f"NVRM: Xid (PCI:{G1}): 154, GPU recovery action changed from {change}")
    life.settle()
    assert [(event.code, event.recovery_value) for event in life.controller.events()] == [(154, 4), (154, 1), (154, 0)]


def test_fc059_a_chain_within_seconds_arrives_in_the_order_of_the_log(buffer: Buffer, life: Life) -> None:
    for code in (62, 45, 119):
        buffer.say(xid(code, pci=G1))
        after(life, 6.0)
    buffer.say(f"NVRM: Xid (PCI:{G1}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    life.settle()
    assert life.controller.codes() == [62, 45, 119, 154]


@pytest.mark.parametrize("looks", ["after all of it", "after each line"])
def test_fc060_a_storm_of_switch_errors_counts_each_once_and_the_lost_gpu_stands_among_them(
    buffer: Buffer, life: Life, looks: str
) -> None:
    buffer.say(xid(79, pci=G2))
    for switch in range(3):
        for link in (37, 48, 62, 63):
            head = f"nvidia-nvswitch{switch}: SXid (PCI:0000:0{switch + 4}:00.0): 20034"
            for line in (
                f"{head}, Fatal, Link {link} LTSSM Fault Up",
                f"{head}, Severity 1 Engine instance {link} Sub-engine instance 00",
                f"{head}, Data {{0x10000000, 0x10000000, 0x00000000, 0x10000000}}",
            ):
                buffer.say(line)
                if looks == "after each line":
                    life.read()
    life.settle()
    assert life.controller.codes() == [79]
    switches = [event for event in life.controller.events() if event.kind is EventKind.SXID]
    assert sum(event.count for event in switches) == 12
    assert {(event.pci, event.place) for event in switches} == {
        (f"0000:0{switch + 4}:00", f"link {link}") for switch in range(3) for link in (37, 48, 62, 63)
    }


def test_fc066_a_reset_that_begins_arrives_although_nothing_follows(buffer: Buffer, life: Life) -> None:
    buffer.say("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!")
    after(life, 600.0)
    (event,) = life.controller.events()
    assert (event.kind, event.pci) == (EventKind.RAS, "0000:83:00")


def test_fc033_a_load_of_the_driver_arrives_between_the_faults_before_and_after_it(buffer: Buffer, life: Life) -> None:
    buffer.say(xid(119, pci=G1))
    buffer.say("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024")
    buffer.say(xid(119, pci=G1))
    life.settle()
    told = [(event.kind, event.code, event.count) for event in life.controller.events()]
    assert told == [(EventKind.XID, 119, 1), (EventKind.DRIVER_LOAD, None, 1), (EventKind.XID, 119, 1)]


# --------------------------------------------------------------------------------------------------- time and places


@pytest.mark.parametrize("step_s", [-300.0, 300.0], ids=["set back", "set forward"])
def test_fc040_a_clock_that_was_set_moves_no_event_by_more_and_the_order_is_the_kernels(
    buffer: Buffer, life: Life, step_s: float
) -> None:
    buffer.say(f"NVRM: Xid (PCI:{G1}): 31, pid=1")
    after(life, 5.0)
    life.machine.set_clock(step_s)
    life.machine.let_pass(5.0)
    buffer.say(f"NVRM: Xid (PCI:{G1}): 79, GPU has fallen off the bus.")
    set_at = life.machine.now
    life.settle()
    first, second = life.controller.events()
    assert (first.code, second.code) == (31, 79)
    assert (first.sequence or 0) < (second.sequence or 0)
    assert first.at == NOW
    assert second.at == set_at


def test_fc040_a_stamp_that_lies_in_the_future_is_as_late_as_the_look_and_says_so(buffer: Buffer, life: Life) -> None:
    buffer.put(f"4,{buffer.written},9000000000,-;{xid(79)}\n".encode())
    life.turn()
    (event,) = life.controller.events()
    assert event.at == NOW
    assert event.notes == (NOTE_MOVED,)


def test_fc038_a_journal_that_was_rotated_before_the_agent_came_is_a_gap_in_the_ledger(tmp_path: Path) -> None:
    machine = Node(tmp_path)
    journal = Journal(machine)
    journal.say("eth0: link up")
    with living(machine, lambda since: journal_started(journal, since)) as life:
        journal.say(xid(31))
        life.turn()
        begin = life.controller.events()[-1].at
        life.kill()
        for _ in range(14):
            machine.let_pass(60)
            journal.say(xid(79))
        journal.vacuum(len(journal.entries) - 1)
        life.settle()
        (gap,) = life.controller.gaps()
        assert begin is not None
        assert f"log coverage lost from {begin:%Y-%m-%dT%H:%M:%SZ} to " in gap.text
        assert gap.at == begin + timedelta(minutes=14)
        assert life.controller.codes() == [31, 79]


@pytest.mark.parametrize("error", [SpoolFull("no room"), SpoolError("the disk is broken")], ids=["full", "broken"])
def test_fc043_what_could_not_be_stored_once_is_stored_then_and_told_once(
    buffer: Buffer, life: Life, monkeypatch: pytest.MonkeyPatch, error: SpoolError
) -> None:
    monkeypatch.setattr("daemon.agent.run._FIRST_WAIT_S", 0.01)
    assert life.spool is not None
    add, failures = life.spool.add, [error]

    def failing(*args: object) -> None:
        if failures:
            raise failures.pop()
        add(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(life.spool, "add", failing)
    buffer.say(xid(79))
    life.turn()
    life.kill()
    life.settle()
    assert not failures
    assert life.controller.times() == {79: 1}


def test_fc111_a_fault_that_was_printed_once_is_its_boots_however_late_it_arrives(buffer: Buffer, life: Life) -> None:
    first_boot = life.machine.boot_id
    life.controller.stop()
    buffer.say(xid(48))
    life.turn()
    life.kill()
    life.turn()  # the agent came back; the fault is not printed again
    life.kill()
    life.machine.reboot()
    buffer.clear()
    buffer.say("Linux version 6.8", up_s=0.0)
    life.controller.start()
    life.settle()
    told = [event for event in life.controller.events() if event.kind is EventKind.XID]
    assert [(event.code, event.boot_id, event.count) for event in told] == [(48, first_boot, 1)]


def test_fc114_a_line_five_seconds_after_the_start_is_heard_and_one_before_a_restart_too(
    buffer: Buffer, life: Life
) -> None:
    life.machine.let_pass(5.0)
    buffer.say(xid(79))
    life.turn()
    assert life.controller.codes() == [79]
    life.kill()
    buffer.say(xid(48))
    life.machine.let_pass(30.0)
    life.start()
    buffer.say(xid(64))
    life.settle()
    assert life.controller.times() == {79: 1, 48: 1, 64: 1}


@pytest.mark.parametrize(
    ("lookback_s", "heard"), [(0.0, []), (60.0, [48])], ids=["nothing of the past", "the last minute of it"]
)
def test_fc114_the_very_first_start_looks_back_as_far_as_it_is_told_to(
    buffer: Buffer, lookback_s: float, heard: list[int]
) -> None:
    buffer.say(xid(79), up_s=buffer.machine.up_s - 3000)
    buffer.say(xid(48), up_s=buffer.machine.up_s - 30)
    with living(buffer.machine, kmsg_of(buffer, lookback_s)) as life:
        life.settle()
        assert life.controller.codes() == heard


@pytest.mark.parametrize("is_there", [True, False], ids=["a log that is there", "a log that is not"])
def test_fc114_the_agent_tests_whether_it_can_read_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    kernel_log, config = tmp_path / "kern.log", tmp_path / "gpuwarden.yaml"
    if is_there:
        kernel_log.touch()
    config.write_text(f"agent: {{source: file, path: {kernel_log}, spool: {tmp_path / 'spool'}, node: n1}}\n")
    agent_command(config, check=True)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " log: " in line]
    assert line.startswith("ok" if is_there else "FAIL")


# ------------------------------------------------------------------------------------------- nothing waits for others


def test_fc097_a_fault_arrives_while_the_look_at_the_gpus_hangs(buffer: Buffer, life: Life) -> None:
    assert life.source is not None
    assert life.spool is not None
    stop, hangs, ends = threading.Event(), threading.Event(), threading.Event()

    def look() -> tuple[KernelEvent, ...]:
        hangs.set()
        ends.wait(60)
        return ()

    sender = Sender(life.config, Who(NODE_NAME, life.machine.boot_id, "1.0"))
    agent = Agent(Parts(life.source, life.spool, sender, AgentMetrics(), look))
    thread = threading.Thread(target=agent.run, args=(stop,))
    arrived = life.controller.here.bell
    thread.start()
    try:
        assert hangs.wait(60)
        buffer.say(xid(79))
        assert arrived.wait(60)
        assert not ends.is_set()
        assert life.controller.codes() == [79]
    finally:
        stop.set()
        ends.set()
        thread.join(60)
