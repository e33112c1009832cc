"""The journal as a source: places by cursor, entries that are gone, processes that die, and the real journald."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.clock import measure
from daemon.agent.journal import MISSED, JournalSource
from daemon.agent.journalctl import Ended, Journalctl, Refused
from daemon.agent.position import Position, Reading, SourceError
from daemon.agent.wire import report_id
from rules.vocabulary import EventKind
from tests.agent import fake_journal
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

Fields = fake_journal.Fields


@dataclass
class Journal:
    """The machine's journal in memory, and journalctl over it."""

    machine: Machine
    entries: list[Fields] = field(default_factory=list)
    #: with those that were vacuumed
    said: list[Fields] = field(default_factory=list)
    number: int = 0
    series: int = 1
    followers: list["Following"] = field(default_factory=list)
    #: what journalctl says instead of anything
    refuses: str = ""

    def say(
        self, text: str | list[int], *, transport: str = "kernel", facility: str | None = "0", **fields: object
    ) -> Fields:
        self.number += 1
        machine = self.machine
        received, real = int(machine.up_s * 1e6), int(machine.now.timestamp() * 1e6)
        boot = UUID(int=machine.boots).hex
        entry: Fields = {
            "__CURSOR": f"s={self.series:032x};i={self.number:x};b={boot};m={received:x};t={real:x};x={self.number:x}",
            "__REALTIME_TIMESTAMP": str(real), "__MONOTONIC_TIMESTAMP": str(received), "_BOOT_ID": boot,
            "_SOURCE_MONOTONIC_TIMESTAMP": str(received - 500), "_TRANSPORT": transport, "MESSAGE": text,
            "_HOSTNAME": "n1",
        }  # fmt: skip
        if facility is not None:
            entry["SYSLOG_FACILITY"] = facility
        entry |= fields
        self.entries.append(entry)
        self.said.append(entry)
        return entry

    def vacuum(self, count: int) -> None:
        """The oldest entries go, never the newest."""
        del self.entries[: min(count, len(self.entries) - 1)]

    def ask(self, arguments: Sequence[str]) -> list[bytes]:
        if self.refuses:
            raise Refused(self.refuses)
        try:
            return [json.dumps(entry).encode() for entry in fake_journal.answer(self.entries, arguments)]
        except ValueError as error:
            raise Refused(str(error)) from error

    def follow(self, arguments: Sequence[str]) -> "Following":
        self.followers.append(Following(self, list(arguments)))
        return self.followers[-1]


@dataclass
class Following:
    journal: Journal
    arguments: list[str]
    given: int | None = None
    dies: bool = False
    #: given instead of entries, one a read
    lines: list[bytes] = field(default_factory=list)

    def read(self) -> list[bytes]:
        if self.journal.refuses or self.dies:
            raise Ended(self.journal.refuses or "killed")
        if self.lines:
            return [self.lines.pop(0)]
        if self.given is None:
            found = self.journal.ask(self.arguments)
        else:
            matches = fake_journal.options(self.arguments)[1]
            new = self.journal.said[self.given :]
            found = [json.dumps(one).encode() for one in new if fake_journal.fits(one, matches)]
        self.given = len(self.journal.said)
        return found

    def wait(self, seconds: float) -> None:
        self.journal.machine.wait(seconds)

    def close(self) -> None:
        """Nothing has to be given back."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def journal(machine: Machine) -> Journal:
    made = Journal(machine)
    made.say("eth0: link up")
    return made


def started(journal: Journal, since: Position | None = None, lookback_s: float = 0.0) -> JournalSource:
    machine = journal.machine
    return JournalSource(
        RULES, "n1", since, lookback_s=lookback_s, program=journal, boot_id_path=machine.boot_id_path,
        clock=machine.clock, sleep=machine.wait,
    )  # fmt: skip


def begun(journal: Journal) -> tuple[JournalSource, Position]:
    source = started(journal)
    return source, first_place(source)


# --------------------------------------------------------------------------------------------------- where it begins


def test_the_very_first_start_leaves_the_past_alone(journal: Journal) -> None:
    journal.say(xid(31))
    source, position = begun(journal)
    assert position.cursor == journal.entries[-1]["__CURSOR"]
    journal.say(xid(79))
    (event,) = events(everything(source))
    assert (event.code, event.boot_id, event.source) == (79, journal.machine.boot_id, "journal")


def test_the_very_first_start_takes_in_as_much_of_the_past_as_it_is_told_to(journal: Journal) -> None:
    journal.say(xid(31))
    journal.machine.let_pass(100)
    journal.say(xid(79))
    journal.machine.let_pass(10)
    assert codes(everything(started(journal, lookback_s=60))) == [79]


def test_a_journal_without_any_entry_has_a_beginning_too(machine: Machine) -> None:
    journal = Journal(machine)
    _, position = begun(journal)
    journal.say(xid(79))
    assert codes(everything(started(journal, position))) == [79]


def test_a_restart_goes_on_after_its_place_even_over_a_reboot(journal: Journal) -> None:
    """Unlike the kernel's own buffer, a journal that is kept has the end of the boot before."""
    source, _ = begun(journal)
    journal.say(xid(31))
    position = place(everything(source))
    journal.say(xid(79))
    before, written = journal.machine.boot_id, journal.machine.now
    journal.machine.reboot()
    journal.say("Linux version 6.8", _SOURCE_MONOTONIC_TIMESTAMP="0")
    journal.say(xid(95))
    told = events(everything(started(journal, position)))
    assert [(event.code, event.boot_id) for event in told] == [(79, before), (95, journal.machine.boot_id)]
    assert told[0].at == written


def test_a_place_in_another_log_is_as_good_as_its_time(journal: Journal) -> None:
    journal.say(xid(31))
    journal.machine.let_pass(100)
    elsewhere = Position("kmsg", boot_id=journal.machine.boot_id, sequence=7, at=journal.machine.now)
    journal.machine.let_pass(100)
    journal.say(xid(79))
    assert codes(everything(started(journal, elsewhere))) == [79]


def test_an_entry_that_moved_to_another_file_is_still_the_same(journal: Journal) -> None:
    """As when journald moves its volatile journal to the disk."""
    _, position = begun(journal)
    moved = dict(fake_journal.cursor_of(position.cursor), s="f" * 32, i="999")
    journal.entries[-1]["__CURSOR"] = ";".join(f"{name}={value}" for name, value in moved.items())
    journal.series, journal.number = int("f" * 32, 16), 0x999
    journal.say(xid(79))
    assert codes(everything(started(journal, position))) == [79]


# ------------------------------------------------------------------------------------------------------ what it misses


def test_a_vacuum_while_nobody_read_is_a_gap_with_its_times(journal: Journal) -> None:
    """FC038 (NVSentinel 1417): the journal was rotated before the reader came; 14 minutes are gone."""
    _, position = begun(journal)
    journal.machine.let_pass(60)
    journal.say(xid(79))
    journal.machine.let_pass(14 * 60)
    journal.say(xid(95))
    journal.vacuum(2)
    lost, event = events(everything(started(journal, position)))
    assert lost.kind is EventKind.COVERAGE_LOST
    assert "log coverage lost from 2026-03-01T01:00:00Z to 2026-03-01T01:15:00Z" in lost.text
    assert (event.code, lost.sequence) == (95, (event.sequence or 0) - 1)


def test_no_gap_where_only_the_entry_at_the_place_is_gone(journal: Journal) -> None:
    _, position = begun(journal)
    journal.say(xid(79))
    journal.vacuum(1)
    assert codes(everything(started(journal, position))) == [79]


def test_a_vacuum_before_a_died_journalctl_comes_back_is_a_gap(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.say(xid(31))
    everything(source)
    journal.followers[-1].dies = True
    source.read(0.0)
    journal.say(xid(79))
    journal.say(xid(95))
    journal.vacuum(3)
    journal.machine.let_pass(5)
    readings = everything(source)
    assert (len(gaps(readings)), codes(readings)[-1]) == (1, 95)


def test_a_journal_that_was_lost_with_the_reboot_is_read_from_the_new_boot_on(journal: Journal) -> None:
    """What the old boot said last is a gap, and no part of the new one."""
    _, position = begun(journal)
    journal.entries.clear()
    journal.machine.reboot()
    journal.series += 1
    journal.say("Linux version 6.8", _SOURCE_MONOTONIC_TIMESTAMP="0")
    journal.say(xid(79))
    readings = everything(started(journal, position))
    (lost,) = gaps(readings)
    assert (lost.boot_id, codes(readings)) == (position.boot_id, [None, 79])


def test_a_wrong_clock_after_a_reboot_hides_nothing(journal: Journal) -> None:
    """The new boot's entries are older than the cursor, by a clock that lost its battery."""
    _, position = begun(journal)
    journal.entries.clear()
    journal.machine.reboot()
    journal.machine.set_clock(-400 * 86_400)
    journal.series += 1
    for text in ("noise", xid(79)):
        journal.say(text)
    readings = everything(started(journal, position))
    assert (len(gaps(readings)), codes(readings)[-1]) == (1, 79)


def test_a_place_that_journalctl_does_not_understand_is_a_gap(journal: Journal) -> None:
    journal.say(xid(31))
    odd = Position("journal", boot_id="another", cursor="of another system")
    (lost, event) = events(everything(started(journal, odd)))
    assert (lost.kind, event.code) == (EventKind.COVERAGE_LOST, 31)


def test_what_journald_itself_missed_is_a_gap(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.machine.let_pass(60)
    journal.say("Missed 1234 kernel messages", transport="driver", facility=None, MESSAGE_ID=MISSED)
    journal.say("Journal started", transport="driver", facility=None, MESSAGE_ID="f" * 32)
    (lost,) = events(everything(source))
    assert lost.kind is EventKind.COVERAGE_LOST
    assert "from 2026-03-01T01:00:00Z to 2026-03-01T01:01:00Z: journald says 'Missed 1234 kernel messages'" in lost.text


# ----------------------------------------------------------------------------------------------------------- entries


@pytest.mark.parametrize(
    ("transport", "facility", "trusted"),
    [
        pytest.param("kernel", "0", True, id="the kernel's own entry is trusted"),
        pytest.param("kernel", None, True, id="one without a facility too"),
        pytest.param("kernel", "1", False, id="what a program wrote to the kernel's log is not"),
        pytest.param("syslog", "0", False, id="nor what it wrote to syslog, were it shown"),
    ],
)
def test_only_the_kernel_is_trusted(journal: Journal, transport: str, facility: str | None, trusted: bool) -> None:
    source, _ = begun(journal)
    source.read(0.0)
    journal.followers[-1].arguments.clear()  # a journalctl that shows everything
    journal.say(xid(79), transport=transport, facility=facility)
    (event,) = events(everything(source))
    assert event.trusted is trusted


def test_only_the_kernel_s_entries_are_asked_for(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.say(xid(79), transport="syslog")
    journal.say(xid(79), transport="stdout")
    assert everything(source) == []


def test_a_text_that_is_given_as_bytes_is_read(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.say(list(xid(79).encode() + b"\x01\xff"))
    assert codes(everything(source)) == [79]


def test_each_event_has_a_number_of_its_own_in_its_boot_and_keeps_it(journal: Journal) -> None:
    source, position = begun(journal)
    journal.say(xid(79))
    journal.machine.let_pass(0.001)
    journal.series, journal.number = 77, 0
    journal.say("another series of numbers")
    journal.say(xid(95))
    told = events(everything(source))
    again = events(everything(started(journal, position)))
    assert len({event.sequence for event in told}) == 2
    assert [report_id(event) for event in told] == [report_id(event) for event in again]


@pytest.mark.parametrize(
    ("stamp_s", "at_s"),
    [
        pytest.param(3659.9, 3660.0, id="a stamp that drifts is put right by journald's"),
        pytest.param(3000.0, 3000.0, id="an entry that waited for journald has the kernel's time"),
        pytest.param(9999.0, 3660.0, id="no entry is later than its receipt"),
    ],
)
def test_an_entry_s_time(journal: Journal, stamp_s: float, at_s: float) -> None:
    source, _ = begun(journal)
    journal.machine.let_pass(60)
    journal.say(xid(79), _SOURCE_MONOTONIC_TIMESTAMP=str(int(stamp_s * 1e6)))
    journal.machine.let_pass(5)
    (event,) = events(everything(source))
    assert event.at == BOOT + timedelta(seconds=at_s)


def test_a_clock_that_was_set_moves_the_entries_of_this_boot_with_it(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.say(xid(79))
    journal.machine.set_clock(-300)
    (event,) = events(everything(source))
    assert event.at == BOOT + timedelta(seconds=3300)


def test_a_suspend_moves_only_what_was_written_before_it_and_never_into_the_future(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.say(xid(31))
    journal.machine.suspend(7200)
    journal.machine.let_pass(5)
    journal.say(xid(79))
    first, second = events(everything(source))
    assert first.at is not None
    assert second.at is not None
    assert first.at <= second.at
    assert second.at == BOOT + timedelta(seconds=3605 + 7200)


def test_an_entry_of_another_boot_is_never_in_the_future(journal: Journal) -> None:
    source, position = begun(journal)
    source.close()
    journal.say(xid(79))
    journal.machine.reboot()
    journal.machine.set_clock(-86_400)
    (event,) = events(everything(started(journal, position)))
    assert event.at is not None
    assert event.at <= journal.machine.now


LINES = st.sampled_from(
    [b"-- No entries --", b"{}", b'{"__CURSOR":7}', b'{"__CURSOR":"i=1"}', b'{"__CURSOR":"s=;i=-5"}', b"[[[[", b"\xff"]
)


@given(st.lists(LINES | st.binary(max_size=60), max_size=8))
def test_any_lines_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    journal = Journal(Machine(tmp_path_factory.mktemp("any")))
    source, _ = begun(journal)
    source.read(0.0)
    journal.followers[-1].lines = [*lines, json.dumps(journal.say(xid(79))).encode()]
    journal.entries.clear()
    assert 79 in codes(everything(source))


# ----------------------------------------------------------------------------------------- no event lost, none twice

STEPS = st.lists(
    st.sampled_from(
        ["xid", "xid", "switch", "off bus", "noise", "user", "time", "look", "look", "kill", "kill late", "die"]
    ),
    max_size=40,
)


class Life:
    """An agent and its journalctl, which are killed at any moment and started again."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.source, self.stored = begun(journal)
        self.heard = Heard()

    def do(self, step: str) -> None:
        if step == "time":
            self.journal.machine.let_pass(0.3)
        elif step == "die":
            for follower in self.journal.followers:
                follower.dies = True
        else:
            self.look(store=step != "kill late")
            if step != "look":
                self.source.close()
                self.source = started(self.journal, self.stored)

    def look(self, *, store: bool) -> None:
        with suppress(SourceError):
            reading = self.source.read(0.0)
            if reading is not None:
                self.heard.take(reading)
                if store:
                    self.stored = reading.position


@given(STEPS)
def test_every_event_is_told_once_however_often_agent_and_journalctl_are_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    journal = Journal(Machine(tmp_path_factory.mktemp("life")))
    life = Life(journal)
    waiting: list[tuple[str, str]] = []
    wanted: list[object] = []
    for number, step in enumerate(steps):
        lines = {
            "xid": [xid(1000 + number)], "user": [xid(1000 + number)], "switch": switch_error(1000 + number),
            "noise": ["eth0: link up"], "off bus": off_bus(f"0000:{number:02x}:00.0"),
        }.get(step)  # fmt: skip
        if lines is not None:
            waiting += [(step, line) for line in lines]
            wanted += [f"0000:{number:02x}:00" if step == "off bus" else 1000 + number] * (step != "noise")
        else:
            life.do(step)
        if waiting:  # entries of one statement come one step at a time
            kind, text = waiting.pop(0)
            journal.say(text, facility="1" if kind == "user" else "0")
    for kind, text in waiting:
        journal.say(text, facility="1" if kind == "user" else "0")
    for _ in range(130):
        journal.machine.let_pass(1.0)
        life.look(store=True)
    told = [event.pci if event.kind is EventKind.OFF_BUS else event.code for event in life.heard.values()]
    assert sorted(map(str, told)) == sorted(map(str, wanted))


# ------------------------------------------------------------------------------------------------------- the process


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that answers as journalctl does."""
    path = tmp_path / "journalctl"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_journal.__file__} "$@"\n')
    path.chmod(0o755)
    return path


@dataclass
class OnDisk:
    """A journal that a program of its own reads."""

    journal: Journal
    folder: Path
    program: Path

    def say(self, text: str) -> None:
        entry = self.journal.say(text)
        with (self.folder / "entries").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def started(self, since: Position | None) -> JournalSource:
        return JournalSource(
            RULES, "n1", since, program=Journalctl(str(self.program), self.folder),
            boot_id_path=self.journal.machine.boot_id_path,
        )  # fmt: skip


@pytest.fixture
def on_disk(tmp_path: Path, machine: Machine, program: Path) -> OnDisk:
    folder = tmp_path / "journal"
    folder.mkdir()
    made = OnDisk(Journal(machine), folder, program)
    made.say("Linux version 6.8")
    return made


def until(source: JournalSource, *wanted: int) -> list[Reading]:
    """All readings until the last of these codes was told."""
    readings: list[Reading] = []
    for _ in range(60):
        reading = source.read(0.5)
        readings += [reading] if reading is not None else []
        if set(wanted) <= set(codes(readings)):
            return readings
    raise AssertionError(f"{wanted} not told, but {codes(readings)}")


def test_a_process_is_followed_and_started_again_where_it_was(on_disk: OnDisk) -> None:
    source = on_disk.started(None)
    try:
        first = source.read(5.0)
        assert first is not None
        on_disk.say(xid(31))
        readings = until(source, 31)
        os.kill(source._follower._process.pid, signal.SIGKILL)
        on_disk.say(xid(79))
        readings += until(source, 79)
        assert source.counts["restarts"] == 1
        assert codes(readings) == [31, 79]
    finally:
        source.close()
    on_disk.say(xid(95))
    again = on_disk.started(place(readings))
    try:
        assert codes(until(again, 95)) == [95]
    finally:
        again.close()


def test_a_process_that_says_nothing_but_an_error_is_told_with_it(on_disk: OnDisk) -> None:
    source = on_disk.started(None)
    assert source.read(5.0) is not None
    (on_disk.folder / "die").touch()
    on_disk.say(xid(79))
    source.close()
    (on_disk.folder / "refuse").write_text("No journal files were opened due to insufficient permissions.\n")
    with pytest.raises(SourceError, match="insufficient permissions"):
        until(source, 79)
    (on_disk.folder / "refuse").unlink()
    (on_disk.folder / "die").unlink()
    try:
        assert 79 in codes(until(source, 79))
    finally:
        source.close()


def test_a_journalctl_that_refuses_or_is_not_there_says_what_to_do(on_disk: OnDisk, tmp_path: Path) -> None:
    (on_disk.folder / "refuse").write_text("Failed to open root directory\n")
    with pytest.raises(SourceError, match="Failed to open root directory"):
        on_disk.started(None).read(0.0)
    on_disk.program = tmp_path / "nothing"
    with pytest.raises(SourceError, match=r"set agent\.source to kmsg"):
        on_disk.started(None).read(0.0)


def test_a_process_that_dies_again_and_again_is_started_ever_more_seldom(journal: Journal) -> None:
    source, _ = begun(journal)
    journal.refuses = "No"
    for _ in range(100):
        try:
            source.read(10.0)
        except SourceError:
            journal.machine.let_pass(0.1)
    assert len(journal.followers) <= 30


# -------------------------------------------------------------------------------------------------- the real journald


@dataclass
class Journald:
    """A journald of its own, in a mount namespace where nothing else is. It reads this machine's /dev/kmsg."""

    program: str

    def ctl(self, *arguments: str) -> None:
        subprocess.run([self.program, *arguments], check=True, capture_output=True, timeout=60)

    def say(self, text: str) -> None:
        with Path("/dev/kmsg").open("w") as file:
            file.write(f"<3>test: {text}\n")  # journald takes the first word of a program's text for its name


_SETUP = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/log/journal/$(cat /etc/machine-id)
printf '[Journal]\\nAudit=no\\nStorage=volatile\\n' > /run/systemd/journald.conf.d/test.conf
exec {journald}
"""


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    server = next(filter(os.path.exists, ("/usr/lib/systemd/systemd-journald", "/lib/systemd/systemd-journald")), "")
    missing = [name for name in ("journalctl", "unshare", "nsenter") if shutil.which(name) is None]
    if not server or missing or os.geteuid() != 0 or not os.access("/dev/kmsg", os.W_OK):
        pytest.skip("a journald of one's own needs root, systemd-journald, unshare, and a /dev/kmsg to write to")
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP.format(journald=server)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        program = tmp_path / "journalctl"
        program.write_text(f'#!/bin/sh\nexec nsenter --mount=/proc/{process.pid}/ns/mnt journalctl "$@"\n')
        program.chmod(0o755)
        made = Journald(str(program))
        for _ in range(100):
            found = subprocess.run([program, "-n", "1", "-q", "_TRANSPORT=kernel"], check=False, capture_output=True)
            if found.stdout:
                break
            if process.poll() is not None:
                assert process.stderr is not None
                pytest.skip(f"no journald of one's own starts here ({process.stderr.read().decode().strip()[:100]})")
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)
        if process.stderr is not None:
            process.stderr.close()


def test_the_real_journald_is_read_over_restarts_rotation_and_vacuum(journald: Journald) -> None:
    first_code = 100_000 + os.getpid() % 100_000

    def opened(since: Position | None) -> JournalSource:
        return JournalSource(RULES, "n1", since, program=Journalctl(journald.program))

    before = measure()
    source = opened(None)
    begin = source.read(30.0)
    assert begin is not None
    assert begin.position.cursor
    journald.say(xid(first_code))
    readings = until(source, first_code)
    (event,) = [one for one in events(readings) if one.code == first_code]
    assert not event.trusted
    assert event.at is not None
    assert before.now - timedelta(seconds=1) <= event.at <= datetime.now(UTC)

    journald.ctl("--rotate")
    journald.say(xid(first_code + 1))
    readings = until(source, first_code + 1)
    source.close()

    journald.say(xid(first_code + 2))
    again = opened(place(readings))
    readings = until(again, first_code + 2)
    assert not gaps(readings)
    assert first_code + 1 not in codes(readings)
    again.close()

    journald.say(xid(first_code + 3))
    time.sleep(0.5)
    journald.ctl("--rotate")
    journald.say(xid(first_code + 4))
    time.sleep(0.5)
    journald.ctl("--vacuum-files=1")
    last = opened(place(readings))
    readings = until(last, first_code + 4)
    last.close()
    assert len(gaps(readings)) == 1
    assert first_code + 3 not in codes(readings)
