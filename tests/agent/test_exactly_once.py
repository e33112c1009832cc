"""From the log to the ledger, whatever breaks in between: each event once, or a gap that says what is missing.

The agent, its spool, the intake and the ledger are the real ones; the log is a stand-in, or the machine's own device.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.agent.kmsg import KmsgSource
from daemon.agent.position import Position, Source
from rules.vocabulary import EventKind
from tests.agent.agent_process import RingServer
from tests.agent.machine import RESET, RULES, Buffer, Machine, xid
from tests.agent.served import token_of
from tests.agent.test_journal import Journal
from tests.agent.test_journal import started as journal_started
from tests.agent.test_plain_file import Log
from tests.agent.whole_path import NODE_NAME, Controller, Life, Node, file_of, kmsg_of, living

ROOT = Path(__file__).parents[2]
#: A process is waited for at most so long; nothing depends on how long it takes.
PATIENCE_S = 60.0
NOISE = "eth0: link becomes ready"


def overwritten(controller: Controller) -> set[tuple[str, int]]:
    """The records that gaps say are gone, by boot and number."""
    found: set[tuple[str, int]] = set()
    for gap in controller.gaps():
        if "records, " in gap.text:
            first, last = gap.text.partition("records, ")[2].partition(",")[0].split(" to ")
            found |= {(gap.boot_id, number) for number in range(int(first), int(last) + 1)}
    return found


# ------------------------------------------------------------------------------------------- the controller is away


def test_an_hour_without_a_controller_delays_each_event_and_loses_and_doubles_none(buffer: Buffer, life: Life) -> None:
    said: Counter[int] = Counter()
    life.controller.stop()
    for minute in range(60):
        for code in (1000 + minute, *[95] * 20):
            buffer.say(xid(code))
            said[code] += 1
        if minute % 10 == 3:
            buffer.say(RESET)
        life.machine.let_pass(60)
        life.turn()
        if minute in (20, 40):
            life.kill()
    assert life.sent_in_vain >= 55
    life.controller.start()
    life.settle()
    assert life.controller.times() == said
    assert [code for code in life.controller.codes() if code != 95] == [1000 + minute for minute in range(60)]
    assert not life.controller.gaps()


def test_what_the_controller_has_although_its_answer_was_lost_is_not_written_again(
    buffer: Buffer, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process is gone."""

    def killed(_ids: object) -> None:
        raise Killed

    assert life.spool is not None
    with monkeypatch.context() as patch:
        patch.setattr(life.spool, "acknowledge", killed)
        buffer.say(xid(79))
        life.read()
        with pytest.raises(Killed):
            life.send()
    assert life.controller.times() == {79: 1}
    life.kill()
    buffer.say(xid(79))
    buffer.say(xid(48))
    life.settle()
    assert life.controller.times() == {79: 2, 48: 1}


# ------------------------------------------------------------------------------------------------- clocks and boots


@pytest.mark.parametrize("step_s", [-86_400.0, -3600.0, 3600.0, 80_000.0])
def test_a_clock_that_is_set_loses_and_doubles_nothing(buffer: Buffer, life: Life, step_s: float) -> None:
    life.controller.stop()
    buffer.say(xid(79))
    life.turn()
    life.machine.set_clock(step_s)
    buffer.say(xid(48))
    life.turn()
    life.kill()
    life.controller.start()
    buffer.say(xid(79))
    life.settle()
    assert life.controller.times() == {79: 2, 48: 1}
    assert not life.controller.gaps()


def test_a_machine_that_was_suspended_goes_on_where_it_was(buffer: Buffer, life: Life) -> None:
    buffer.say(xid(79))
    life.read()
    life.machine.suspend(8 * 3600)
    buffer.say(xid(48))
    life.settle()
    assert life.controller.times() == {79: 1, 48: 1}
    assert not life.controller.gaps()


def test_the_same_numbers_on_two_boots_are_different_events(buffer: Buffer, life: Life) -> None:
    first = life.machine.boot_id
    life.controller.stop()
    buffer.say(xid(79))
    buffer.say(xid(48))
    life.turn()
    life.kill()
    life.machine.reboot()
    buffer.clear()
    buffer.say("Linux version 6.8", up_s=0.0)
    for code in (79, 64):
        buffer.say(xid(code))
    life.turn()
    life.kill()
    life.controller.start()
    life.settle()
    second = life.machine.boot_id
    told = [(one.boot_id, one.sequence, one.code) for one in life.controller.events() if one.kind is EventKind.XID]
    assert told == [(first, 1, 79), (first, 2, 48), (second, 1, 79), (second, 2, 64)]


# ------------------------------------------------------------------------------------------ the log loses something


def test_an_overrun_of_the_ring_buffer_is_a_gap_of_just_the_records_that_are_gone(buffer: Buffer, life: Life) -> None:
    buffer.size = 20
    buffer.say(xid(1000))
    life.turn()
    boot, said = life.machine.boot_id, {}
    for code in range(1001, 1061):
        said[boot, buffer.say(xid(code))] = code
        if code == 1030:
            life.turn()
    life.settle()
    lost = overwritten(life.controller)
    assert life.controller.times() == {1000: 1} | {code: 1 for place, code in said.items() if place not in lost}
    assert len(lost & said.keys()) == 20


def test_a_journal_that_is_vacuumed_tells_each_entry_that_is_left_once_and_the_gap(tmp_path: Path) -> None:
    machine = Node(tmp_path)
    journal = Journal(machine)
    journal.say("eth0: link up")
    with living(machine, lambda since: journal_started(journal, since)) as life:
        journal.say(xid(1000))
        life.turn()
        life.kill()
        for code in range(1001, 1011):
            machine.let_pass(60)
            journal.say(xid(code))
        journal.vacuum(len(journal.entries) - 3)
        life.turn()
        life.kill()
        journal.say(xid(1011))
        life.settle()
        assert life.controller.times() == dict.fromkeys((1000, 1008, 1009, 1010, 1011), 1)
        (gap,) = life.controller.gaps()
        assert "the entries in between are not in the journal any more" in gap.text


Rotate = Callable[[Log], object]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    (tmp_path / "log").mkdir()
    return Log(Node(tmp_path), tmp_path / "log" / "kern.log")


@pytest.mark.parametrize("reads", [True, False], ids=["while it reads", "while it is down"])
@pytest.mark.parametrize(
    ("rotate", "is_lost"),
    [
        pytest.param(Log.rotate, False, id="another name"),
        pytest.param(lambda log: log.rotate(create=False), False, id="another name and nothing in its place"),
        pytest.param(Log.copy_and_truncate, False, id="a copy, and cut off"),
        pytest.param(lambda log: (log.rotate(), log.compress(1)), True, id="compressed"),
        pytest.param(lambda log: log.path.unlink(), True, id="deleted"),
    ],
)
def test_a_rotated_file_tells_each_line_once_and_a_gap_where_it_is_gone(
    log: Log, rotate: Rotate, is_lost: bool, reads: bool
) -> None:
    with living(log.machine, file_of(log.machine, log.path)) as life:
        said: Counter[int] = Counter()

        def say(code: int) -> None:
            log.say(xid(code))
            said[code] += 1
            log.machine.let_pass(1.0)

        say(1000)
        life.settle()
        if not reads:
            life.kill()
        say(1001)
        log.machine.let_pass(60)
        rotate(log)
        log.machine.let_pass(60)
        say(1002)
        say(95)
        say(95)
        life.settle()
        lost = {} if reads or not is_lost else {1001: 1}  # an open file is read to its end
        assert life.controller.times() == said - Counter(lost)
        assert len(life.controller.gaps()) == len(lost)


# ---------------------------------------------------------------------------------------------------- the disk is full

FULL_DISK = """if True:
    import os, sys, threading
    from pathlib import Path
    from tests.agent.machine import Buffer, Machine, xid
    from tests.agent.whole_path import Life, kmsg_of
    import daemon.agent.run

    daemon.agent.run._READ_WAIT_S = 0.0
    daemon.agent.run._FIRST_WAIT_S = 0.05
    disk, url = Path(sys.argv[1]), sys.argv[2]
    filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)

    def fill():
        size = 1 << 16
        while size:
            try:
                os.write(filler, bytes(size))
            except OSError:
                size //= 2

    class There:
        pass

    machine = Machine(Path(sys.argv[3]))
    buffer = Buffer(machine)
    buffer.say("Linux version 6.8", up_s=0.0)
    there = There()
    there.url = url
    life = Life(disk, machine, there, kmsg_of(buffer), spool_bytes=1 << 20)
    fill()
    life.start()

    # nothing can be stored: the place stays, and nothing is passed over
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    life.agent.read(stop)
    assert life.spool.position is None
    life.kill()

    os.ftruncate(filler, 0)
    os.lseek(filler, 0, os.SEEK_SET)
    life.start()
    life.read()
    assert life.spool.position is not None
    for code in range(1000, 1100):
        fill()
        buffer.say(xid(code))
        machine.let_pass(1.0)
        life.read()
        if code % 10 == 5:
            assert life.send(), life.agent.sending
        if code % 25 == 7:
            life.kill()
            life.start()
    life.settle()
    print("passed")
"""


def test_a_disk_that_is_really_full_delays_and_loses_nothing(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    unshare = shutil.which("unshare")
    ways = [[unshare, "--mount"], [unshare, "--map-root-user", "--mount"]] if unshare else []
    disk, other = tmp_path / "disk", tmp_path / "other"
    for folder in (disk, other):
        folder.mkdir()
    for way in ways:
        if subprocess.run([*way, "sh", "-c", mount, disk, "true"], capture_output=True, check=False).returncode:
            continue
        controller = Controller(tmp_path)
        try:
            ran = subprocess.run(
                [*way, "sh", "-c", mount, disk, sys.executable, "-c", FULL_DISK, disk, controller.url, other],
                cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            assert ran.stdout.splitlines()[-1:] == ["passed"], ran.stderr[-2000:]
            assert controller.times() == dict.fromkeys(range(1000, 1100), 1)
            assert not controller.gaps()
        finally:
            controller.stop()
        return
    pytest.skip("no small tmpfs can be mounted here, so no disk is really full")


# -------------------------------------------------------------------------------- any order of anything, in one process

STEPS = (
    "say", "say", "repeat", "repeat", "reset", "look", "look", "send", "time", "kill", "lose_answer", "leave",
    "come_back", "step_clock", "reboot",
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_whatever_happens_each_event_is_in_the_ledger_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    buffer = Buffer(Node(tmp_path_factory.mktemp("any")))
    buffer.say("Linux version 6.8", up_s=0.0)
    with living(buffer.machine, kmsg_of(buffer)) as life:
        trouble = Trouble(life, buffer)
        for step in steps:
            trouble.takes(step)
        trouble.come_back()
        life.settle()
        assert life.controller.times() == trouble.said
        assert all("the node booted anew" in gap.text for gap in life.controller.gaps())


@dataclass
class Trouble:
    """What may happen to a node and its controller, one step at a time; `said` is what the kernel printed."""

    life: Life
    buffer: Buffer
    said: Counter[int] = field(default_factory=Counter)
    steps: int = 0

    def takes(self, step: str) -> None:
        self.steps += 1
        if self.life.agent is None:
            self.life.start()
        getattr(self, step)()

    def say(self) -> None:
        self._says(1000 + self.steps)

    def repeat(self) -> None:
        self._says(95)

    def _says(self, code: int) -> None:
        self.buffer.say(xid(code))
        self.said[code] += 1

    def reset(self) -> None:
        self.buffer.say(RESET)

    def look(self) -> None:
        self.life.read()

    def send(self) -> None:
        self.life.send()

    def time(self) -> None:
        self.life.machine.let_pass(0.4)

    def step_clock(self) -> None:
        self.life.machine.set_clock((-1) ** self.steps * 600.0)

    def kill(self) -> None:
        self.life.kill()

    def lose_answer(self) -> None:
        """The controller gets some, and the agent dies before it hears so."""
        assert self.life.spool is not None
        for one in self.life.spool.pending(9):
            if self.life.controller.served is not None:
                self.life.controller.served.receipt(NODE_NAME, one)
        self.life.kill()

    def leave(self) -> None:
        if self.life.controller.served is not None:
            self.life.controller.stop()

    def come_back(self) -> None:
        if self.life.controller.served is None:
            self.life.controller.start()

    def reboot(self) -> None:
        self.life.machine.let_pass(1.0)
        self.life.read()  # what was not read before a reboot is gone with it, and a gap says so
        self.life.kill()
        self.life.machine.reboot()
        self.buffer.clear()
        self.buffer.say("Linux version 6.8", up_s=0.0)


# ------------------------------------------------------------------------------- a process that is killed at any moment


@dataclass
class Killed:
    """A process that is started again and again, and what was said to it."""

    controller: Controller
    command: list[str]
    folder: Path
    rng: random.Random
    said: Counter[int] = field(default_factory=Counter)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "agent.log").open("ab") as out:
            process = subprocess.Popen(
                self.command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    def lives(self, says: Callable[[], None], kills: int, between: Callable[[int], None] = lambda _: None) -> None:
        """Killed so often: at once, while it starts, or a moment after it has delivered something."""
        for number in range(kills):
            with self.running() as process:
                has_delivered, until_s = len(self.controller.entries()), time.monotonic() + self.rng.uniform(0.0, 3.0)
                waits = number % 2 == 0
                if waits:
                    until_s = time.monotonic() + PATIENCE_S
                while time.monotonic() < until_s:
                    says()
                    time.sleep(self.rng.uniform(0.0, 0.05))
                    assert process.poll() is None, (self.folder / "agent.log").read_text()[-2000:]
                    if waits and len(self.controller.entries()) > has_delivered:
                        waits, until_s = False, time.monotonic() + self.rng.uniform(0.0, 0.5)
                assert not waits, (self.folder / "agent.log").read_text()[-2000:]
            between(number)

    def ends(self) -> None:
        """It runs until all is delivered that was said."""
        with self.running():
            until_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < until_s and self.controller.times().total() < self.said.total():
                time.sleep(0.1)
            time.sleep(1.5)  # and does not deliver more than that


@contextmanager
def killed(tmp_path: Path, command: Callable[[Controller], list[str]], seed: int) -> Iterator[Killed]:
    controller = Controller(tmp_path, datetime.now(UTC))
    (tmp_path / "token").write_text(token_of(NODE_NAME))
    try:
        yield Killed(controller, command(controller), tmp_path, random.Random(seed))
    finally:
        controller.stop()


@pytest.mark.parametrize("seed", [1, 2])
def test_an_agent_that_is_killed_at_random_moments_tells_each_line_of_a_file_once(tmp_path: Path, seed: int) -> None:
    log, config = tmp_path / "log" / "kern.log", tmp_path / "gpuwarden.yaml"
    log.parent.mkdir()
    log.touch()

    def command(controller: Controller) -> list[str]:
        agent = {
            "node": NODE_NAME, "source": "file", "path": str(log), "spool": str(tmp_path / "spool"), "lookback": "1h",
            "controller": controller.url, "token_file": str(tmp_path / "token"), "backoff_max": "1s",
            "listen": {"port": 0},
        }  # fmt: skip
        config.write_text(yaml.safe_dump({"agent": agent}))
        return [sys.executable, "-c", "from daemon.cli import main; main()", "agent", "--config", str(config)]

    with killed(tmp_path, command, seed) as life:
        numbers = iter(range(1000, 100_000))

        def says() -> None:
            code = 95 if life.rng.random() < 0.3 else next(numbers)
            with log.open("a") as file:
                for text in life.rng.sample([xid(code), NOISE], 2):
                    file.write(f"{datetime.now(UTC).isoformat(timespec='microseconds')} n1 kernel: {text}\n")
            life.said[code] += 1

        def rotates(number: int) -> None:
            if number % 3 == 1:
                log.rename(log.with_name(f"kern.log.{number}"))
                log.touch()

        life.lives(says, 6, rotates)
        life.ends()
        assert life.controller.times() == life.said
        assert not life.controller.gaps()


def wanted(controller: Controller, places: dict[tuple[str, int], int]) -> set[int]:
    """The codes of the records that no gap says are gone."""
    lost, ends = overwritten(controller), dict[str, int]()
    for gap in controller.gaps():
        if "the node booted anew" in gap.text:
            ends[gap.boot_id] = gap.sequence or 0
    return {code for (boot, number), code in places.items()
            if (boot, number) not in lost and number < ends.get(boot, number + 1)}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "size"),
    [pytest.param(1, 10_000, id="a buffer that holds all"), pytest.param(2, 40, id="a buffer that overruns")],
)
def test_an_agent_that_is_killed_at_random_moments_tells_each_record_once_or_that_it_is_gone(
    tmp_path: Path, seed: int, size: int
) -> None:
    (tmp_path / "machine").mkdir()
    buffer = Buffer(Machine(tmp_path / "machine"), size)
    ring = RingServer(buffer, tmp_path / "kmsg")
    machine, places = buffer.machine, dict[tuple[str, int], int]()

    def command(controller: Controller) -> list[str]:
        parts = [tmp_path, ring.path, machine.boot_id_path, controller.url]
        return [sys.executable, "-m", "tests.agent.agent_process", *map(str, parts)]

    def put(text: str) -> int:
        return buffer.say(text, up_s=time.clock_gettime(time.CLOCK_MONOTONIC))

    put("Linux version 6.8")
    with killed(tmp_path, command, seed) as life:
        numbers = iter(range(1000, 100_000))

        def says() -> None:
            for _ in range(life.rng.randrange(1, 5)):
                code = next(numbers)
                with ring.lock:
                    places[machine.boot_id, put(xid(code))] = code
                    put(NOISE)

        def reboots(number: int) -> None:
            if number == 3:
                with ring.lock:
                    machine.reboot()
                    buffer.clear()
                    put("Linux version 6.8")

        with life.running():  # on its very first start it leaves the past alone
            until_s = time.monotonic() + PATIENCE_S
            while not life.controller.times() and time.monotonic() < until_s:
                put(xid(999))
                time.sleep(0.2)
        life.lives(says, 6, reboots)
        with life.running():
            until_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < until_s and not wanted(life.controller, places) <= life.controller.times().keys():
                time.sleep(0.2)
            time.sleep(1.5)
        told = life.controller.times()
        assert {code: times for code, times in told.items() if code != 999 and times != 1} == {}
        assert wanted(life.controller, places) <= told.keys()
        assert any("the node booted anew" in gap.text for gap in life.controller.gaps())
        assert bool(overwritten(life.controller)) == (size == 40)
    ring.close()


# ------------------------------------------------------------------------------------------------- the machine's own


def test_records_of_the_real_device_are_in_the_ledger_once_over_two_kills(kmsg: int, tmp_path: Path) -> None:
    def start(since: Position | None) -> Source:
        return KmsgSource(RULES, NODE_NAME, since)

    controller = Controller(tmp_path, datetime.now(UTC))
    life = Life(tmp_path, Machine(tmp_path), controller, start)
    codes = [200_000 + 10 * (os.getpid() % 50_000) + number for number in range(6)]
    life.machine.wait = lambda _seconds: None  # type: ignore[method-assign]

    def until(wanted: set[int]) -> None:
        stop, until_s = threading.Event(), time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s and not wanted <= controller.times().keys():
            if life.agent is None:
                life.start()
            assert life.agent is not None
            life.agent.read(stop)
            life.send()

    try:
        until(set())
        life.start()
        assert life.agent is not None
        life.agent.read(threading.Event())
        for number, code in enumerate(codes):
            os.write(kmsg, f"<3>{xid(code)}\n".encode())
            if number in (1, 3):
                until(set(codes[:number]))
                life.kill()
        until(set(codes))
        told = controller.times()
        assert {code: told[code] for code in codes} == dict.fromkeys(codes, 1)
        mine = [event for event in controller.events() if event.code in codes]
        assert [event.sequence for event in mine] == sorted(event.sequence or 0 for event in mine)
        assert not any(event.trusted for event in mine), "what a program writes to the device is not the kernel's"
    finally:
        with suppress(OSError):
            life.kill()
        controller.stop()
