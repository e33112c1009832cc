"""A plain file as a source: rotation in all its ways, truncation, what is lost by it, and the times of lines."""

import gzip
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.clock import NOTE_MOVED
from daemon.agent.plain_file import NOTE_BEFORE_BOOT, NOTE_UNDATED, FileSource
from daemon.agent.position import Position, Reading, SourceError
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.agent.machine import (
    BOOT,
    RULES,
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


class Log:
    """A log and what rotates it."""

    def __init__(self, machine: Machine, path: Path) -> None:
        self.machine = machine
        self.path = path
        self.path.touch()

    def say(self, text: str, *, end: str = "\n", into: Path | None = None) -> None:
        """A line as rsyslog writes it."""
        self.put(f"{self.machine.now.isoformat(timespec='microseconds')} n1 kernel: {text}{end}", into=into)

    def put(self, raw: str | bytes, into: Path | None = None) -> None:
        with (into or self.path).open("ab") as file:
            file.write(raw.encode() if isinstance(raw, str) else raw)
        self._touch(into or self.path)

    def _touch(self, path: Path) -> None:
        at = self.machine.now.timestamp()
        os.utime(path, (at, at))

    def beside(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def rotate(self, *, create: bool = True) -> None:
        """kern.log becomes kern.log.1, that becomes kern.log.2, and so on."""
        self._make_room()
        self.path.rename(self.beside(1))
        if create:
            self.path.touch()
            self._touch(self.path)

    def _make_room(self) -> None:
        for number in range(50, 0, -1):
            if self.beside(number).exists():
                self.beside(number).rename(self.beside(number + 1))

    def copy_and_truncate(self) -> None:
        self._make_room()
        shutil.copy2(self.path, self.beside(1))
        os.truncate(self.path, 0)

    def compress(self, number: int) -> None:
        plain = self.beside(number)
        packed = plain.with_name(f"{plain.name}.gz")
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        shutil.copystat(plain, packed)
        plain.unlink()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def log(machine: Machine, tmp_path: Path) -> Log:
    (tmp_path / "log").mkdir()
    return Log(machine, tmp_path / "log" / "kern.log")


def started(log: Log, since: Position | None = None, lookback_s: float = 0.0) -> FileSource:
    machine = log.machine
    return FileSource(
        RULES, "n1", since, path=log.path, lookback_s=lookback_s, boot_id_path=machine.boot_id_path,
        clock=machine.clock, sleep=machine.wait,
    )  # fmt: skip


def begun(log: Log) -> tuple[FileSource, Position]:
    source = started(log)
    return source, first_place(source)


# --------------------------------------------------------------------------------------------------- where it begins


def test_the_very_first_start_leaves_the_past_alone(log: Log) -> None:
    log.say(xid(31))
    source, position = begun(log)
    assert position.offset == log.path.stat().st_size
    log.say(xid(79))
    (event,) = events(everything(source))
    assert (event.code, event.source, event.boot_id) == (79, "file", log.machine.boot_id)
    source.close()


def test_a_line_that_is_being_written_at_the_very_first_start_is_news(log: Log) -> None:
    log.say("eth0: link up")
    log.say(xid(79), end="")
    source, _ = begun(log)
    log.put("\n")
    assert codes(everything(source)) == [79]
    source.close()


def test_the_very_first_start_takes_in_as_much_of_the_past_as_it_is_told_to(log: Log) -> None:
    log.say(xid(31))
    log.put(f"{xid(43)}\n")  # nobody knows when
    log.machine.let_pass(100)
    log.say(xid(79))
    log.machine.let_pass(10)
    source = started(log, lookback_s=60)
    assert codes(everything(source)) == [79]
    source.close()


def test_a_restart_goes_on_after_its_place(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    position = place(everything(source))
    source.close()
    log.say(xid(79))
    again = started(log, position)
    assert codes(everything(again)) == [79]
    again.close()


def test_a_place_in_another_log_is_as_good_as_its_time(log: Log) -> None:
    log.say(xid(31))
    elsewhere = Position("kmsg", boot_id=log.machine.boot_id, sequence=7, at=log.machine.now)
    log.machine.let_pass(100)
    log.say(xid(79))
    source = started(log, elsewhere)
    assert codes(everything(source)) == [79]
    source.close()


def test_a_log_that_is_not_there_says_so_until_it_is(log: Log) -> None:
    log.path.unlink()
    source = started(log, Position("file", inode=1, offset=0))
    with pytest.raises(SourceError, match=r"kern\.log cannot be read: No such file"):
        source.read(0.0)
    log.say(xid(79))
    assert codes(everything(source))[-1] == 79
    source.close()


def test_a_compressed_file_is_no_log(log: Log) -> None:
    log.path.write_bytes(gzip.compress(b"NVRM: Xid"))
    source = started(log)
    with pytest.raises(SourceError, match="zcat"):
        source.read(0.0)
    source.close()


# --------------------------------------------------------------------------------------------- rotation, while it reads


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    everything(source)
    log.say(xid(43))
    log.rotate()
    log.say(xid(79))
    readings = everything(source)
    assert codes(readings) == [43, 79]
    assert not gaps(readings)
    source.close()


def test_a_writer_that_has_not_noticed_the_rotation_is_heard(log: Log) -> None:
    source, _ = begun(log)
    log.say("eth0: link up")
    log.rotate()
    assert codes(everything(source)) == []
    log.say(xid(79), into=log.beside(1))
    assert codes(everything(source)) == [79]
    log.say(xid(95))
    log.say(xid(31), into=log.beside(1))
    assert codes(everything(source)) == [31, 95]
    source.close()


def test_no_file_between_the_steps_of_a_rotation_is_no_error(log: Log) -> None:
    source, _ = begun(log)
    log.rotate(create=False)
    log.say(xid(31), into=log.beside(1))
    assert codes(everything(source)) == [31]
    log.say(xid(79))
    assert codes(everything(source)) == [79]
    source.close()


def test_two_rotations_before_the_first_line_of_the_new_file(log: Log) -> None:
    source, _ = begun(log)
    log.say("eth0: link up")
    log.rotate()
    everything(source)
    log.rotate()
    everything(source)
    log.say(xid(79))
    assert codes(everything(source)) == [79]
    source.close()


def test_the_last_line_of_a_rotated_file_needs_no_end(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31), end="")
    assert codes(everything(source)) == []
    log.rotate()
    log.say(xid(79))
    assert codes(everything(source)) == [31, 79]
    source.close()


def test_a_file_that_is_copied_and_truncated_is_read_to_its_end_in_the_copy(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    everything(source)
    log.say(xid(43))
    log.copy_and_truncate()
    log.say(xid(79))
    readings = everything(source)
    assert codes(readings) == [43, 79]
    assert not gaps(readings)
    source.close()


def test_a_truncated_file_that_has_grown_beyond_its_place_is_noticed(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    everything(source)
    log.machine.let_pass(3600)
    log.say(xid(43))
    log.copy_and_truncate()
    for _ in range(9):
        log.say("eth0: link up")
    log.say(xid(79))
    assert codes(everything(source)) == [43, 79]
    source.close()


def test_a_truncated_file_without_a_copy_is_a_gap(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    everything(source)
    log.machine.let_pass(60)
    os.truncate(log.path, 0)
    log.say(xid(79))
    lost, event = events(everything(source))
    assert (lost.kind, event.code) == (EventKind.COVERAGE_LOST, 79)
    assert "kern.log was truncated and no copy of it is there" in lost.text
    assert "from 2026-03-01T01:00:00Z to 2026-03-01T01:01:" in lost.text
    source.close()


def test_the_hole_that_a_writer_leaves_in_a_truncated_file_is_no_line(log: Log) -> None:
    source, _ = begun(log)
    log.say("x" * 3000)
    everything(source)
    hole = log.path.stat().st_size
    log.copy_and_truncate()
    with log.path.open("r+b") as file:
        file.seek(hole)
        file.write(f"{log.machine.now.isoformat()} n1 kernel: {xid(79)}\n".encode())
    assert codes(everything(source)) == [79]
    source.close()


def test_a_deleted_file_is_read_as_long_as_its_writer_has_it(log: Log) -> None:
    source, _ = begun(log)
    with log.path.open("a") as writer:
        log.path.unlink()
        assert everything(source) == []
        writer.write(f"{xid(79)}\n")
        writer.flush()
        assert codes(everything(source)) == [79]
    source.close()


# ----------------------------------------------------------------------------------------- rotation, while nobody reads


def test_a_restart_finds_the_rotated_file_and_all_that_followed(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    position = place(everything(source))
    source.close()
    for code in (43, 79, 95):
        log.machine.let_pass(60)
        log.say(xid(code))
        log.rotate()
    log.machine.let_pass(60)
    log.say(xid(48))
    again = started(log, position)
    readings = everything(again)
    assert codes(readings) == [43, 79, 95, 48]
    assert not gaps(readings)
    again.close()


def test_a_restart_finds_the_copy_of_a_truncated_file(log: Log) -> None:
    source, _ = begun(log)
    for code in (31, 32):
        log.say(xid(code))
    position = place(everything(source))
    source.close()
    log.say(xid(43))
    log.copy_and_truncate()
    log.machine.let_pass(60)
    log.say(xid(79))
    again = started(log, position)
    assert codes(everything(again)) == [43, 79]
    again.close()


def test_a_rotated_file_that_was_compressed_is_a_gap(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    position = place(everything(source))
    source.close()
    log.machine.let_pass(60)
    log.say(xid(43))
    log.rotate()
    log.compress(1)
    log.machine.let_pass(60)
    log.say(xid(79))
    again = started(log, position)
    lost, event = events(everything(again))
    assert (lost.kind, event.code) == (EventKind.COVERAGE_LOST, 79)
    assert "from 2026-03-01T01:00:00Z to 2026-03-01T01:02:0" in lost.text
    again.close()


def test_a_part_in_between_that_was_compressed_is_a_gap(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    position = place(everything(source))
    source.close()
    for code in (43, 79):
        log.machine.let_pass(60)
        log.say(xid(code))
        log.rotate()
    log.compress(1)
    log.machine.let_pass(60)
    log.say(xid(95))
    again = started(log, position)
    readings = everything(again)
    assert [event.code for event in events(readings) if event.kind is EventKind.XID] == [43, 95]
    assert [event.text.partition(": ")[2] for event in gaps(readings)] == ["kern.log.1.gz is compressed"]
    again.close()


def test_somebody_s_copy_beside_the_log_is_not_read_again(log: Log) -> None:
    source, _ = begun(log)
    log.say(xid(31))
    position = place(everything(source))
    source.close()
    log.machine.let_pass(60)
    log.say(xid(43))
    log.rotate()
    log.machine.let_pass(60)
    log.say(xid(79))
    shutil.copy(log.path, log.path.with_name("kern.log.2026"))
    shutil.copy(log.beside(1), log.path.with_name("kern.log.old"))
    log.say(xid(95), into=log.path.with_name("kern.log-of-another-program"))
    again = started(log, position)
    assert codes(everything(again)) == [43, 79]
    again.close()


# ------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("line", "trusted"),
    [
        pytest.param("{iso} n1 kernel: {xid}", True, id="the kernel's"),
        pytest.param("{iso} n1 logger: {xid}", False, id="a program's"),
        pytest.param("<3>{xid}", True, id="the kernel's, by its priority"),
        pytest.param("<11>{xid}", False, id="a program's, by its priority"),
        pytest.param("{iso} n1 sshd[7]: no\r{xid}", False, id="what follows a carriage return is no line of its own"),
    ],
)
def test_whom_to_trust(log: Log, line: str, trusted: bool) -> None:
    source, _ = begun(log)
    log.put(line.format(iso=log.machine.now.isoformat(), xid=xid(79)) + "\n")
    told = events(everything(source))
    assert [event.trusted for event in told] == [trusted]
    source.close()


def test_equal_texts_of_different_writers_are_told_apart_in_a_flood(log: Log) -> None:
    source, _ = begun(log)
    iso = log.machine.now.isoformat()
    for _ in range(5):
        for line in (f"{iso} n1 kernel: {xid(79)}", f"{iso} n1 python: {xid(79)}", f"<3>{xid(79)}", f"<11>{xid(79)}"):
            log.put(f"{line}\n")
    told = events(everything(source))
    assert {(event.trusted, event.count) for event in told} == {(True, 10), (False, 10)}
    source.close()


def test_a_line_without_an_end_costs_no_memory_and_hides_no_other(log: Log) -> None:
    source, _ = begun(log)
    log.put(b"NVRM" + b"x" * 3_000_000)
    assert everything(source) == []
    log.put(b"y" * 1_000_000 + xid(31).encode() + b"\n")
    log.say(xid(79))
    assert codes(everything(source)) == [79]
    source.close()


def test_a_flood_is_a_few_events_and_no_memory(log: Log) -> None:
    """FC034 (NVSentinel 1120): 800,000 lines, 29 of them different."""
    source, _ = begun(log)
    iso = log.machine.now.isoformat()
    for pid in range(29):
        log.put(f"{iso} n1 kernel: {xid(95, pid)}\n" * 27_587)
    tracemalloc.start()
    first = source.read(0.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()  # tracing all of it takes a minute
    assert first is not None
    told = events([first, *everything(source)])
    assert sum(event.count for event in told) == 29 * 27_587
    assert len(told) <= 60
    assert peak < 10e6
    assert len(source._gathering._groups) == 0
    source.close()


@given(st.lists(st.binary(max_size=80) | st.sampled_from([xid(79).encode() + b"\n", b"\n", b"\0\0", b"[ 1.0] NVRM: "])))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    log = Log(Machine(folder), folder / "kern.log")
    source, _ = begun(log)
    for piece in pieces:
        log.put(piece)
        source.read(0.0)
    log.say(xid(95))
    log.say(xid(95))
    assert 95 in codes(everything(source))
    source.close()


@given(
    st.lists(st.sampled_from([xid(79), xid(31), "eth0: link up", *switch_error(9), *off_bus()]), max_size=20), st.data()
)
def test_the_moments_of_the_looks_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    ways = []
    whole = "".join(f"[{3600 + number / 100:.6f}] {line}\n" for number, line in enumerate(lines)).encode()
    cuts = data.draw(st.sets(st.integers(0, len(whole))))
    for places in ([], sorted(cuts)):
        folder = tmp_path_factory.mktemp("looks")
        log = Log(Machine(folder), folder / "kern.log")
        source, _ = begun(log)
        readings: list[Reading] = []
        for begin, end in zip([0, *places], [*places, len(whole)], strict=True):
            log.put(whole[begin:end])
            if end < len(whole) and (reading := source.read(0.0)) is not None:
                readings.append(reading)
        counts: dict[tuple[object, ...], int] = {}
        for event in events([*readings, *everything(source)]):
            key = (event.kind, event.code, event.pci)
            counts[key] = counts.get(key, 0) + event.count
        ways.append(counts)
        source.close()
    assert ways[0] == ways[1]


# -------------------------------------------------------------------------------------------------------------- time

Say = Callable[[Log], str]


@pytest.mark.parametrize(
    ("line", "at_s", "notes"),
    [
        pytest.param("2026-03-01T00:59:00Z n1 kernel: {}", 3540.0, (), id="a dated line stands"),
        pytest.param("2026-03-01T05:00:00+00:00 n1 kernel: {}", 3660.0, (NOTE_MOVED,), id="but not in the future"),
        pytest.param("[ 3655.500000] {}", 3655.5, (), id="seconds since boot are put on the wall clock"),
        pytest.param("[ 9999.000000] {}", 3660.0, (NOTE_MOVED,), id="never in the future either"),
        pytest.param("[  100.000000] {}", 3600.0, (NOTE_MOVED,), id="nor before the look that did not see it"),
        pytest.param(
            "Mar  1 00:59:00 n1 kernel: {}", 3660.0, (), id="without a year and a zone it is as old as the look"
        ),
        pytest.param("{}", 3660.0, (), id="without a time it is as old as the look"),
    ],
)
def test_the_time_of_a_line(log: Log, line: str, at_s: float, notes: tuple[str, ...]) -> None:
    source, _ = begun(log)
    log.machine.let_pass(60)
    log.put(line.format(xid(79)) + "\n")
    reading = source.read(0.0)
    assert reading is not None
    (event,) = reading.events
    assert (event.at, event.notes) == (BOOT + timedelta(seconds=at_s), notes)
    source.close()


def test_a_line_without_a_time_that_waited_for_the_agent_is_marked(log: Log) -> None:
    source, position = begun(log)
    source.close()
    log.put(f"{xid(79)}\n")
    again = started(log, position)
    (event,) = events(everything(again))
    assert event.notes == (NOTE_UNDATED,)
    again.close()


def test_a_clock_that_was_set_moves_seconds_since_boot_with_it(log: Log) -> None:
    source, _ = begun(log)
    log.machine.let_pass(60)
    log.machine.set_clock(-300)
    log.put(f"[ 3655.500000] {xid(79)}\n")
    (event,) = events(everything(source))
    assert event.at == BOOT + timedelta(seconds=3355.5)
    source.close()


def test_a_suspend_moves_nothing_that_is_heard_after_it(log: Log) -> None:
    source, _ = begun(log)
    log.machine.suspend(7200)
    log.machine.let_pass(5)
    log.put(f"[ 3605.000000] {xid(79)}\n")
    reading = source.read(0.0)
    assert reading is not None
    assert reading.events[0].at == log.machine.now
    source.close()


def test_lines_of_the_boot_before_are_told_as_that_boot_s(log: Log) -> None:
    source, _ = begun(log)
    log.say("eth0: link up")
    position = place(everything(source))
    source.close()
    before = log.machine.boot_id
    log.say(xid(79))
    log.machine.reboot()
    log.say(xid(95))
    again = started(log, position)
    told = events(everything(again))
    assert [(event.code, event.boot_id) for event in told] == [(79, before), (95, log.machine.boot_id)]
    again.close()


def test_seconds_since_boot_of_the_boot_before_are_not_taken_for_this_one_s(log: Log) -> None:
    source, _ = begun(log)
    log.put("[ 3598.000000] eth0: link up\n")
    position = place(everything(source))
    source.close()
    before = log.machine.boot_id
    log.put(f"[ 3599.000000] {xid(79)}\n")
    log.machine.reboot(up_s=7200)
    log.put(f"[    0.000000] Linux version 6.8\n[    9.000000] {xid(95)}\n")
    again = started(log, position)
    old, new = events(everything(again))
    assert (old.code, old.boot_id, old.notes) == (79, before, (NOTE_BEFORE_BOOT,))
    assert old.at is not None
    assert old.at < log.machine.clock().booted
    assert (new.code, new.boot_id) == (95, log.machine.boot_id)
    assert new.at is not None
    assert abs((new.at - log.machine.clock().booted).total_seconds() - 9.0) < 0.001
    again.close()


# ----------------------------------------------------------------------------------------- no event lost, none twice

STEPS = st.lists(
    st.sampled_from(
        ["xid", "xid", "half", "noise", "time", "look", "look", "kill", "kill late", "rotate", "rotate late", "copy"]
    ),
    max_size=40,
)


class Life:
    """An agent that is killed at any moment, and a log that is rotated at any moment."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.source, self.stored = begun(log)
        self.heard = Heard()
        self.half = ""

    def say(self, code: int) -> None:
        self.log.say(xid(code))

    def do(self, step: str, code: int) -> None:
        log = self.log
        if step not in ("look", "kill", "kill late", "time"):
            log.put(self.half)  # a line that is begun is ended by whoever writes next
            self.half = ""
        match step:
            case "xid":
                log.say(xid(code))
            case "half":
                log.say(xid(code), end="")
                self.half = "\n"
            case "noise":
                log.say("eth0: link up")
            case "time":
                log.machine.let_pass(0.3)
            case "rotate" | "rotate late":
                log.rotate()
                if step == "rotate late":
                    log.say(xid(code), into=log.beside(1))
            case "copy":
                log.copy_and_truncate()
            case _:
                self.look(store=step != "kill late")
                if step != "look":
                    self.source.close()
                    self.source = started(log, self.stored)
        log.machine.let_pass(0.02)

    def look(self, *, store: bool) -> None:
        reading = self.source.read(0.0)
        if reading is not None:
            self.heard.take(reading)
            if store:
                self.stored = reading.position


@given(STEPS)
def test_every_event_is_told_once_or_a_gap_is(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    folder = tmp_path_factory.mktemp("life")
    log = Log(Machine(folder), folder / "kern.log")
    log.say("a first line, so that the file can be known again by what it holds: " + "x" * 64)
    life = Life(log)
    wanted: dict[int | None, datetime] = {}
    for number, step in enumerate(steps):
        if step in ("xid", "half", "rotate late"):
            wanted[1000 + number] = log.machine.now
        life.do(step, 1000 + number)
    life.do("noise", 0)
    life.do("noise", 0)
    for _ in range(60):
        log.machine.let_pass(2.0)
        life.look(store=True)
    life.source.close()
    told = [event.code for event in life.heard.values() if event.kind is EventKind.XID]
    lost = [ends(event) for event in life.heard.values() if event.kind is EventKind.COVERAGE_LOST]
    assert len(told) == len(set(told))
    assert set(told) <= set(wanted)
    for code in set(wanted) - set(told):
        assert any(begin <= wanted[code] <= end for begin, end in lost)


def ends(gap: KernelEvent) -> tuple[datetime, datetime]:
    """Begin and end of a gap; its text has whole seconds."""
    begin, end = (datetime.fromisoformat(found) for found in re.findall(r"[0-9-]{10}T[0-9:]{8}Z", gap.text))
    return begin, end + timedelta(seconds=1)


@given(st.lists(st.sampled_from(["next", "next", "look", "kill", "kill late"]), max_size=40))
def test_a_statement_of_several_lines_is_told_once_however_often_the_agent_is_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("life")
    log = Log(Machine(folder), folder / "kern.log")
    life = Life(log)
    waiting = [line for number in range(5) for line in (*switch_error(1000 + number), *off_bus(f"0000:0{number}:00.0"))]
    for step in [*steps, *["next"] * len(waiting)]:
        if step != "next":
            life.do(step, 0)  # all in all it takes less than the second that a statement may take
        elif waiting:
            log.say(waiting.pop(0))
    for _ in range(5):
        log.machine.let_pass(2.0)
        life.look(store=True)
    life.source.close()
    told = [(event.code if event.kind is EventKind.SXID else event.pci) for event in life.heard.values()]
    assert sorted(map(str, told)) == sorted([*(str(1000 + n) for n in range(5)), *(f"0000:0{n}:00" for n in range(5))])
