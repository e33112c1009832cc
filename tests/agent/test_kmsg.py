"""The kernel's ring buffer as a source: where it begins, what it misses, whom it trusts, and what time it was."""

import errno
import os
import socket
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.clock import NOTE_MOVED, measure
from daemon.agent.kmsg import Device, KmsgSource
from daemon.agent.position import Position, SourceError
from detectors.events import KernelEvent
from detectors.kernel_log import parse_lines
from rules.vocabulary import EventKind
from tests.agent.machine import (
    BOOT,
    RESET,
    RULES,
    Buffer,
    Heard,
    Machine,
    codes,
    events,
    everything,
    first_place,
    gaps,
    off_bus,
    place,
    switch_error,
    xid,
)

Start = Callable[..., KmsgSource]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def buffer(machine: Machine) -> Buffer:
    made = Buffer(machine)
    made.say("Linux version 6.8", up_s=0.0)
    return made


def started(buffer: Buffer, since: Position | None = None, lookback_s: float = 0.0) -> KmsgSource:
    machine = buffer.machine
    return KmsgSource(
        RULES, "n1", since, lookback_s=lookback_s, boot_id_path=machine.boot_id_path, clock=machine.clock,
        open_ring=buffer.open,
    )  # fmt: skip


def begun(buffer: Buffer) -> tuple[KmsgSource, Position]:
    """A source that has said where the log begins, on its very first start."""
    source = started(buffer)
    return source, first_place(source)


# --------------------------------------------------------------------------------------------------- where it begins


def test_the_very_first_start_leaves_the_past_alone_and_says_where_the_log_begins(buffer: Buffer) -> None:
    buffer.say(xid(79))
    source = started(buffer)
    first = source.read(0.0)
    assert first is not None
    assert (first.events, first.position.sequence, first.position.boot_id) == ((), 1, buffer.machine.boot_id)
    buffer.say(xid(95))
    assert codes(everything(source)) == [95]


def test_the_very_first_start_takes_in_as_much_of_the_past_as_it_is_told_to(buffer: Buffer) -> None:
    for minutes_ago in (30, 9, 1):
        buffer.say(xid(100 + minutes_ago), up_s=3600 - 60 * minutes_ago)
    assert codes(everything(started(buffer, lookback_s=600))) == [109, 101]


def test_an_empty_buffer_has_a_beginning_too(machine: Machine) -> None:
    buffer = Buffer(machine)
    _, position = begun(buffer)
    buffer.say(xid(79))
    assert codes(everything(started(buffer, position))) == [79]


def test_a_new_boot_is_read_from_its_start(buffer: Buffer) -> None:
    """NVSentinel 1532: the XIDs of the seconds before the monitor's start were missed."""
    _, position = begun(buffer)
    buffer.machine.reboot()
    buffer.clear()
    buffer.say("Linux version 6.8", up_s=0.0)
    buffer.say(xid(79), up_s=5.0)
    (reading,) = everything(started(buffer, position))
    lost, event = reading.events
    assert (lost.kind, lost.boot_id, lost.sequence) == ("coverage_lost", position.boot_id, position.sequence + 1)
    assert (event.code, event.sequence, event.boot_id) == (79, 1, buffer.machine.boot_id)
    assert event.at == buffer.machine.now - timedelta(seconds=buffer.machine.up_s - 5.0)


def test_a_restart_on_the_same_boot_goes_on_after_its_place(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(79))
    readings = everything(source)
    source.close()
    buffer.say(xid(95))
    assert codes(everything(started(buffer, place(readings)))) == [95]


def test_a_place_in_another_log_is_as_good_as_its_time(buffer: Buffer) -> None:
    """The site changes `agent.source`: what was said since is news, and what was said before is not."""
    buffer.say(xid(31), up_s=3000)
    buffer.say(xid(79), up_s=3400)
    elsewhere = Position("journal", boot_id=buffer.machine.boot_id, cursor="s=1", at=BOOT + timedelta(seconds=3200))
    assert codes(everything(started(buffer, elsewhere))) == [79]


def test_without_a_boot_id_nothing_is_read(buffer: Buffer) -> None:
    buffer.machine.boot_id_path.write_text("")
    with pytest.raises(SourceError, match="boot"):
        started(buffer)


# ------------------------------------------------------------------------------------------------------ what it misses


def test_records_that_are_overwritten_while_it_reads_are_a_gap_with_times_and_numbers(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(31))  # record 1
    assert codes(everything(source)) == [31]
    buffer.machine.let_pass(57)
    for _ in range(5):
        buffer.say("noise")
    buffer.machine.let_pass(60)
    buffer.say(xid(79))
    buffer.lose(7)
    readings = everything(source)
    lost, event = events(readings)
    assert event.code == 79
    assert lost.kind is EventKind.COVERAGE_LOST
    assert lost.trusted
    assert "from 2026-03-01T01:00:00Z to 2026-03-01T01:02:00Z: 5 records, 2 to 6, were overwritten" in lost.text
    assert (lost.sequence, lost.boot_id, lost.source) == (6, buffer.machine.boot_id, "kmsg")
    assert codes(everything(source)) == []


def test_records_that_are_overwritten_while_nobody_reads_are_a_gap(buffer: Buffer) -> None:
    _, position = begun(buffer)
    for _ in range(5):
        buffer.say("noise")
    buffer.say(xid(79))
    buffer.lose(4)
    lost, event = events(everything(started(buffer, position)))
    assert (lost.kind, event.code) == (EventKind.COVERAGE_LOST, 79)
    assert "3 records, 1 to 3," in lost.text


def test_a_new_boot_whose_start_is_overwritten_has_a_gap_from_its_boot_on(buffer: Buffer) -> None:
    _, position = begun(buffer)
    buffer.machine.reboot(up_s=500)
    buffer.clear()
    for _ in range(5):
        buffer.say("noise", up_s=400)
    buffer.lose(3)
    _, lost = gaps(everything(started(buffer, position)))
    booted = buffer.machine.clock().booted
    assert f"from {booted:%Y-%m-%dT%H:%M:%SZ}" in lost.text
    assert "3 records, 0 to 2" in lost.text


def test_no_gap_where_the_next_record_is_the_oldest_one(buffer: Buffer) -> None:
    _, position = begun(buffer)
    buffer.say(xid(79))
    buffer.lose(1)
    assert codes(everything(started(buffer, position))) == [79]


def test_a_record_that_is_too_long_is_a_gap_of_one(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.errors.append(errno.EINVAL)
    buffer.say("x" * 20_000)
    buffer.say(xid(79))
    source._ring.next = 2  # it is passed over all the same
    lost, event = events(everything(source))
    assert "1 records, 1 to 1" in lost.text
    assert event.code == 79


def test_a_device_that_breaks_is_told_and_opened_again_where_it_was(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(31))
    assert codes(everything(source)) == [31]
    buffer.errors.append(errno.EIO)
    buffer.say(xid(79))
    with pytest.raises(SourceError, match="cannot be read"):
        source.read(0.0)
    assert codes(everything(source)) == [79]
    assert (buffer.opened, source.counts["out_of_order"]) == (2, 0)


def test_a_device_that_is_not_there_says_what_to_do(machine: Machine, tmp_path: Path) -> None:
    source = KmsgSource(
        RULES, "n1", None, path=tmp_path / "kmsg", boot_id_path=machine.boot_id_path, clock=machine.clock
    )
    with pytest.raises(SourceError, match="/dev/kmsg and the capability SYSLOG"):
        source.read(0.0)


# ----------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("priority", "trusted"),
    [
        pytest.param(3, True, id="the kernel's own record is trusted"),
        pytest.param(8 + 3, False, id="a program's record is not"),
        pytest.param(8 * 3 + 3, False, id="a daemon's record is not"),
    ],
)
def test_only_the_kernel_is_trusted(buffer: Buffer, priority: int, trusted: bool) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(79), priority=priority)
    (event,) = events(everything(source))
    assert event.trusted is trusted
    assert source.counts["untrusted"] == (not trusted)


def test_the_dictionary_of_a_record_is_not_its_text(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(79), after=" SUBSYSTEM=pci\n DEVICE=+pci:0000:5c:00.0\n")
    buffer.say("pci 0000:5c:00.0: gone", after=f" KEY={xid(95)}\n")
    (event,) = events(everything(source))
    assert event.text == xid(79)


def test_escapes_are_undone(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(r"NVRM: Xid (PCI:0000:5c:00): 43, pid=7, name=a\x09\xc3\xa9\x5c, Ch 1")
    (event,) = events(everything(source))
    assert event.process == "a é\\"


def test_a_line_in_pieces_is_put_together(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    first = buffer.say("NVRM: Xid (PCI:0000:5c:00): 79, pid=1234, ", flags="c")
    buffer.say("name=python3, ", flags="+")
    buffer.say("GPU has fallen off the bus.", flags="+")
    (event,) = events(everything(source))
    assert (event.code, event.pid, event.process, event.sequence) == (79, 1234, "python3", first)
    assert event.text.endswith("fallen off the bus.")


def test_a_piece_waits_for_its_rest_over_reads_and_restarts_but_not_for_ever(buffer: Buffer) -> None:
    source, position = begun(buffer)
    buffer.say("NVRM: Xid (PCI:0000:5c:00): 79, ", flags="c")
    assert source.read(0.0) is None
    again = started(buffer, position)
    assert again.read(0.0) is None
    buffer.say("pid=1234", flags="+")
    for reader in (source, again):
        (event,) = events(everything(reader))
        assert event.pid == 1234
    buffer.say("NVRM: Xid (PCI:0000:5c:00): 95, ", flags="c")
    assert codes(everything(source)) == [95]


@pytest.mark.parametrize(
    ("flags", "priority", "said"),
    [
        pytest.param("-", 3, "pid=5", id="another record"),
        pytest.param("c", 3, "pid=5", id="a piece that came too late"),
        pytest.param("+", 11, ", pid=5, name=forged", id="a program's piece"),
    ],
)
def test_what_is_no_rest_is_not_put_to_a_line(buffer: Buffer, flags: str, priority: int, said: str) -> None:
    source, _ = begun(buffer)
    buffer.say("NVRM: Xid (PCI:0000:5c:00): 79", flags="c")
    buffer.say(said, flags=flags, priority=priority)
    (event,) = events(everything(source))
    assert (event.code, event.pid) == (79, None)


@given(
    st.lists(st.binary(max_size=80) | st.sampled_from([b"3,1,5,-;NVRM: Xid (PCI:0000:01:00): 79", b"3,9"]), max_size=9)
)
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, records: list[bytes]) -> None:
    buffer = Buffer(Machine(tmp_path_factory.mktemp("any")))
    for raw in records:
        buffer.put(raw)
    readings = everything(started(buffer, Position("kmsg", boot_id="before")))
    for event in events(readings):
        assert event.sequence is not None
        assert event.at is not None


# -------------------------------------------------------------------------------------------------------------- time


def test_a_stamp_is_put_on_the_wall_clock_as_it_is_now(buffer: Buffer) -> None:
    """FC040 (gpud 500): a boot time that was measured once is wrong after the clock was set."""
    source, _ = begun(buffer)
    buffer.machine.let_pass(60)
    buffer.say(xid(31))
    buffer.machine.let_pass(0.5)
    (first,) = events(everything(source))
    buffer.machine.set_clock(-300)
    buffer.machine.let_pass(60)
    buffer.say(xid(79))
    (second,) = events(everything(source, waits_s=0.0))
    assert first.at == BOOT + timedelta(seconds=3660)
    assert second.at == buffer.machine.now
    assert (first.sequence or 0) < (second.sequence or 0)


@pytest.mark.parametrize(
    ("stamp_s", "at_s", "noted"),
    [
        pytest.param(3700.0, 3700.0, False, id="a stamp that fits stands"),
        pytest.param(3659.5, 3660.0, False, id="a stamp a little before the last look is moved there"),
        pytest.param(3300.0, 3660.0, True, id="a clock that drifts behind is put right, with a note"),
        pytest.param(9999.0, 3720.0, True, id="no record is later than now"),
    ],
)
def test_a_record_was_written_since_the_last_look(buffer: Buffer, stamp_s: float, at_s: float, noted: bool) -> None:
    source, _ = begun(buffer)
    buffer.machine.let_pass(60)
    assert source.read(0.0) is None
    buffer.machine.let_pass(60)
    buffer.say(xid(79), up_s=stamp_s)
    reading = source.read(0.0)
    assert reading is not None
    (event,) = reading.events
    assert event.at == BOOT + timedelta(seconds=at_s)
    assert event.notes == ((NOTE_MOVED,) if noted else ())


def test_a_suspend_moves_nothing_that_is_heard_after_it(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.machine.let_pass(10)
    assert source.read(0.0) is None
    buffer.machine.suspend(7200)
    buffer.machine.let_pass(5)
    buffer.say(xid(79))
    reading = source.read(0.0)
    assert reading is not None
    assert reading.events[0].at == buffer.machine.now


def test_what_was_written_before_a_suspend_and_is_read_after_it_is_never_in_the_future(buffer: Buffer) -> None:
    _, position = begun(buffer)
    buffer.machine.let_pass(10)
    buffer.say(xid(79))
    buffer.machine.suspend(7200)
    buffer.machine.let_pass(5)
    (event,) = events(everything(started(buffer, position)))
    assert event.at is not None
    assert event.at <= buffer.machine.now


# ----------------------------------------------------------------------------------------------------------- repeats


def test_a_flood_is_a_few_events_and_no_memory(buffer: Buffer) -> None:
    """Lines of 29 kinds come as fast as they are read; `test_plain_file` has as many as NVSentinel 1120 tells of."""
    source, _ = begun(buffer)
    total, buffer.size = 0, 20_000
    fault = [f"3,{{}},{{}},-;{xid(95, pid)}\n".encode() for pid in range(29)]

    def flood() -> None:
        nonlocal total
        while total < 100_000 and buffer.written - source._known < 10_000:
            stamp = int(buffer.machine.up_s * 1e6)
            text = fault[total // 3_450].replace(b"{}", b"%d", 2) % (buffer.written, stamp)
            buffer.put(text)
            total += 1
        buffer.machine.let_pass(0.2)

    buffer.machine.meanwhile = flood
    readings, peaks = [], list[int]()
    while total < 100_000:
        if total // 10_000 != len(peaks):  # tracing everything takes a minute
            tracemalloc.start()
        if (reading := source.read(0.1)) is not None:
            readings.append(reading)
        if tracemalloc.is_tracing():
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    readings += everything(source)
    told = events(readings)
    assert sum(event.count for event in told) == 100_000
    assert len(told) <= 60
    assert max(peaks) < 10e6


def test_the_first_of_a_flood_does_not_wait_and_the_others_wait_a_second(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    buffer.say(xid(95))
    first = source.read(0.0)
    assert first is not None
    assert first.events[0].count == 1
    for _ in range(9):
        buffer.machine.let_pass(0.05)
        buffer.say(xid(95))
        assert source.read(0.0) is None
    buffer.say(xid(79))
    second = source.read(0.0)
    assert second is not None
    assert [(event.code, event.count) for event in second.events] == [(95, 9), (79, 1)]
    repeated = second.events[0]
    assert repeated.at == BOOT + timedelta(seconds=3600.05)
    assert second.last_at == {repeated.sequence: BOOT + timedelta(seconds=3600.45)}


def test_the_same_fault_after_a_reset_is_another_one(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    for text in (xid(95), xid(95), RESET, xid(95), xid(95)):
        buffer.say(text)
    told = events(everything(source))
    assert [(event.kind, event.count) for event in told] == [
        (EventKind.XID, 2),
        (EventKind.GPU_RESET, 1),
        (EventKind.XID, 2),
    ]
    buffer.say(RESET)
    assert source.read(0.0) is not None
    buffer.say(xid(95))
    assert codes([source.read(0.0)]) == [95]


def test_the_driver_s_newest_advice_is_not_folded_into_an_older_one(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    to = "NVRM: Xid (PCI:0000:5c:00): 154, GPU recovery action changed from 0x0 (None) to {}"
    for action in ("0x4 (Drain and Reset)", "0x0 (None)", "0x4 (Drain and Reset)", "0x4 (Drain and Reset)"):
        buffer.say(to.format(action))
    told = events(everything(source))
    assert [(event.recovery_value, event.count) for event in told] == [(4, 1), (0, 1), (4, 2)]


def test_programs_that_make_up_faults_cost_few_events(buffer: Buffer) -> None:
    source, _ = begun(buffer)
    for number in range(1000):
        buffer.say(xid(number, pci=f"0000:{number % 256:02x}:00"), priority=11)
    told = events(everything(source))
    assert len(told) <= 16
    assert sum(event.count for event in told) == 1000


def test_quiet_lines_move_the_place_once_a_second(buffer: Buffer) -> None:
    source, before = begun(buffer)
    buffer.say("eth0: link up")
    assert source.read(0.5) is None
    reading = source.read(1.0)
    assert reading is not None
    assert (reading.events, reading.position.sequence) == ((), before.sequence + 1)
    assert source.read(5.0) is None


# ----------------------------------------------------------------------------------------- no event lost, none twice

#: What may happen, one after the other: records, time, a look, the agent killed before or after it stored a reading.
STEPS = st.lists(
    st.sampled_from(["xid", "xid", "switch", "off bus", "noise", "user", "time", "look", "look", "kill", "kill late"]),
    max_size=40,
)
NOISE = "eth0: link up"


class Life:
    """An agent that is killed at any moment and started again from what it stored."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.source, self.stored = begun(buffer)
        self.heard = Heard()
        self.steps = 0

    def look(self, *, store: bool = True) -> None:
        reading = self.source.read(0.0)
        if reading is None:
            return
        self.heard.take(reading)
        if store:
            self.stored = reading.position

    def kill(self) -> None:
        self.source.close()
        self.source = started(self.buffer, self.stored)

    def end(self) -> list[KernelEvent]:
        for _ in range(5):
            self.buffer.machine.let_pass(2.0)
            self.look()
        return list(self.heard.values())


def play(life: Life, steps: list[str]) -> list[bytes]:
    """Plays what happens, and gives all that the kernel said."""
    buffer, said = life.buffer, []
    waiting: list[str] = []
    for step in steps:
        life.steps += 1
        number, code = life.steps, 1000 + life.steps
        lines = {
            "xid": [xid(code)], "switch": switch_error(code), "noise": [NOISE],
            "off bus": off_bus(f"0000:{number:02x}:00.0"), "user": [xid(code)],
        }.get(step)  # fmt: skip
        if lines is not None:
            waiting += [(step, line) for line in lines]
        elif step == "time":
            buffer.machine.let_pass(0.3)
        elif step == "look":
            life.look()
        else:
            life.look(store=step == "kill")
            life.kill()
        if waiting:  # records of one statement come one step at a time
            kind, text = waiting.pop(0)
            buffer.say(text, priority=11 if kind == "user" else 3)
            said.append(buffer.records[buffer.written - 1])
    for kind, text in waiting:
        buffer.say(text, priority=11 if kind == "user" else 3)
        said.append(buffer.records[buffer.written - 1])
    return said


def told(found: list[KernelEvent]) -> set[tuple[object, ...]]:
    return {(event.kind, event.code, event.pci, event.sequence, event.trusted) for event in found}


@given(STEPS)
def test_every_event_is_told_once_however_often_the_agent_is_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    buffer = Buffer(Machine(tmp_path_factory.mktemp("life")))
    life = Life(buffer)
    said = play(life, steps)
    found = life.end()
    assert told(found) == told(list(parse_lines(said, RULES)))
    assert len(found) == len(told(found))


@given(STEPS, st.lists(st.integers(1, 6), min_size=3, max_size=10))
def test_what_is_not_told_lies_in_a_declared_gap(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], losses: list[int]
) -> None:
    steps = [step for step in steps if step not in ("switch", "off bus")]
    buffer = Buffer(Machine(tmp_path_factory.mktemp("life")))
    life = Life(buffer)
    said: list[bytes] = []
    for number, loss in enumerate(losses):
        part = steps[number * len(steps) // len(losses) : (number + 1) * len(steps) // len(losses)]
        said += play(life, part)
        buffer.lose(loss)
    found = life.end()
    missing = set[int]()
    for event in found:
        if event.kind is EventKind.COVERAGE_LOST:
            first, last = event.text.partition("records, ")[2].partition(",")[0].split(" to ")
            missing |= set(range(int(first), int(last) + 1))
    heard = {event.sequence for event in found if event.kind is EventKind.XID}
    wanted = {event.sequence for event in parse_lines(said, RULES)}
    assert heard <= wanted
    assert wanted <= heard | missing


@given(st.lists(st.sampled_from(["say", "say", "look", "time", "kill"]), max_size=60))
def test_no_repeat_is_counted_twice_or_forgotten(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """As long as a reading and the place after it are stored together."""
    buffer = Buffer(Machine(tmp_path_factory.mktemp("repeats")))
    life = Life(buffer)
    said = 0
    for step in steps:
        if step == "say":
            buffer.say(xid(95))
            said += 1
        elif step == "look":
            life.look()
        elif step == "time":
            buffer.machine.let_pass(0.4)
        else:
            life.kill()
    assert sum(event.count for event in life.end()) == said


@given(
    st.lists(st.sampled_from([xid(79), xid(31), RESET, NOISE, *switch_error(9), *off_bus()]), max_size=30), st.data()
)
def test_the_moments_of_the_looks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    """But for how repeats are folded: each is counted, and the order of what differs stays."""
    folder = tmp_path_factory.mktemp("looks")
    ways = []
    for looks in (set(), data.draw(st.sets(st.integers(0, 30)))):
        buffer = Buffer(Machine(folder))
        source, _ = begun(buffer)
        readings = []
        for number, line in enumerate(lines):
            if number in looks and (reading := source.read(0.0)) is not None:
                readings.append(reading)
            buffer.say(line)
        unfolded: dict[tuple[object, ...], int] = {}
        for event in events([*readings, *everything(source)]):
            key = (event.kind, event.code, event.pci)
            unfolded[key] = unfolded.get(key, 0) + event.count
        ways.append(unfolded)
    assert ways[0] == ways[1]


# -------------------------------------------------------------------------------------------------- the real device


def test_a_descriptor_gives_one_record_a_read_and_can_be_waited_for() -> None:
    kernel, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    with kernel:
        device = Device(reader.detach())
        assert device.read() is None
        device.wait(0.01)
        kernel.send(b"3,1,5,-;one\n")
        kernel.send(b"3,2,6,-;two\n")
        device.wait(10.0)
        assert [device.read(), device.read(), device.read()] == [b"3,1,5,-;one\n", b"3,2,6,-;two\n", None]
        device.close()


def until_told(source: KmsgSource, code: int) -> KernelEvent:
    """The event of this code; other programs may write to the same device meanwhile."""
    for _ in range(60):
        reading = source.read(1.0)
        found = [event for event in reading.events if event.code == code] if reading is not None else []
        if found:
            return found[0]
    raise AssertionError(f"record {code} was not heard")


def test_a_record_in_the_real_device_is_heard_and_a_program_s_is_not_trusted(kmsg: int) -> None:
    code = 100_000 + os.getpid() % 100_000
    source = KmsgSource(RULES, "n1", None)
    first = source.read(0.0)
    assert first is not None
    before = measure()
    os.write(kmsg, f"<3>{xid(code)} \\ \u00e9\n".encode())  # without its end the kernel would hold it back
    event = until_told(source, code)
    after = datetime.now(UTC)
    source.close()
    assert not event.trusted
    assert event.text == f"{xid(code)} \\ \u00e9"
    assert event.sequence is not None
    assert event.sequence > first.position.sequence
    assert event.at is not None
    assert before.now - timedelta(seconds=1) <= event.at <= after

    os.write(kmsg, f"<3>{xid(code + 1)}\n".encode())
    again = KmsgSource(RULES, "n1", replace(first.position, sequence=event.sequence))
    assert until_told(again, code + 1).sequence > event.sequence
    again.close()
