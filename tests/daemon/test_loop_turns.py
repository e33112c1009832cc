"""The loop as it runs: a fault in a log wakes it, a bug in one tick ends nothing, a clock that jumps hangs nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

import daemon.loop as loop_module
from daemon.ledger import EntryKind
from daemon.loop import Loop, Tick
from daemon.web import Health
from detectors.engine import Detection, Engine
from detectors.findings import GpuState
from detectors.snapshot import Snapshot
from tests.daemon.conftest import POLL_S, START_S, Daemon, Metric
from tests.scripted_prometheus import DOWN, Trouble, always

PATIENCE_S = 20.0


@contextmanager
def running(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The loop in a thread of its own; gives a function that waits for the next tick to end, however it ends."""
    monkeypatch.setattr(loop_module, "_LEAST_GAP_S", 0.0)
    monkeypatch.setattr(loop_module, "_LOG_LOOK_S", 0.01)
    loop, stop, ended = daemon.loop, threading.Event(), threading.Semaphore(0)
    original = loop.tick

    def tick(asked_to_stop: threading.Event | None = None, *, polls: bool = True) -> Tick:
        try:
            return original(asked_to_stop, polls=polls)
        finally:
            ended.release()

    monkeypatch.setattr(loop, "tick", tick)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()

    def next_tick() -> None:
        assert ended.acquire(timeout=PATIENCE_S), "no tick came"

    try:
        yield next_tick
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the loop ends when it is told to"


def test_a_fault_in_a_followed_log_wakes_the_loop_at_once(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.start()
    with running(daemon, monkeypatch) as next_tick:
        next_tick()
        lost = daemon.lose_gpu()  # the clock stands still: nothing but the line can bring a tick
        next_tick()
    (opened,) = daemon.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["gpu_uuids"] == [lost]


def test_a_fault_waits_for_no_answer_of_prometheus(started: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll goes on until the fault is told of, and its own tick comes after the one that came meanwhile."""
    monkeypatch.setattr(loop_module, "_LEAST_GAP_S", 0.0)
    told = threading.Event()

    def answer_once_it_is_told(_promql: str) -> Trouble:
        assert told.wait(PATIENCE_S), "nothing was told while the answer was awaited"
        return None

    original, ticks = started.loop.tick, []

    def tick(*arguments: Any, **options: Any) -> Tick:
        ticks.append(original(*arguments, **options))
        if started.entries(EntryKind.INCIDENT_OPENED):
            told.set()
        return ticks[-1]

    monkeypatch.setattr(started.loop, "tick", tick)
    lost = started.lose_gpu()
    started.prometheus.script = answer_once_it_is_told
    started.tick()
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["gpu_uuids"] == [lost]
    meanwhile, polled = ticks
    assert meanwhile.at < polled.at
    assert meanwhile.snapshot is not None
    assert polled.snapshot is not None
    assert meanwhile.snapshot.telemetry_at is not None
    assert polled.snapshot.telemetry_at is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("EXT4-fs (nvme0n1p2): re-mounted. Quota mode: none.", id="an ordinary line"),
        pytest.param("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.06", id="a driver that loads"),
    ],
)
def test_what_is_no_fault_waits_for_the_next_poll(started: Daemon, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    looked = threading.Semaphore(0)
    original = started.loop._hearing.listen

    def listen(*arguments: object) -> None:
        original(*arguments)  # type: ignore[arg-type]
        looked.release()

    monkeypatch.setattr(started.loop._hearing, "listen", listen)
    with running(started, monkeypatch) as next_tick:
        next_tick()
        started.say(0, text)
        for _ in range(10):
            assert looked.acquire(timeout=PATIENCE_S)
        asked = len(started.prometheus.asked)
        started.clock.at_s += POLL_S
        next_tick()
        assert len(started.prometheus.asked) > asked


def test_a_fault_between_two_polls_is_decided_on_what_the_last_poll_answered(started: Daemon) -> None:
    started.loop.tick()
    asked = len(started.prometheus.asked)
    started.lose_gpu()
    assert started.loop._wait(threading.Event()) is False, "the fault, and not the next poll, ended the wait"
    started.loop.tick(polls=False)
    assert len(started.prometheus.asked) == asked
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["cause_class"] == "hardware"


def test_a_fault_during_a_slow_poll_does_not_wait_for_the_last_answer(
    started: Daemon, monkeypatch: pytest.MonkeyPatch, metric: Metric
) -> None:
    loop = started.loop
    loop.tick()
    before = metric("gpuwarden_ticks_total", outcome="ok")
    original, answered, told = loop.poller._fetch, threading.Event(), threading.Lock()

    def fetch(promql: str, now: float) -> object:
        if told.acquire(blocking=False):  # the first question of this poll, in a thread of its own
            started.lose_gpu()
            assert answered.wait(PATIENCE_S)
        return original(promql, now)

    def step(snapshot: Snapshot) -> Detection:
        answered.set()
        return detect(snapshot)

    detect = loop.engine.step
    monkeypatch.setattr(loop.poller, "_fetch", fetch)
    monkeypatch.setattr(loop.engine, "step", step)
    loop.tick()
    assert metric("gpuwarden_ticks_total", outcome="ok") == before + 2, "one more, in the middle of the poll"
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["cause_class"] == "hardware"


def test_a_flood_of_faults_is_no_flood_of_ticks(started: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_LEAST_GAP_S", 0.3)
    loop = started.loop
    loop.tick()
    started.lose_gpu()
    began_s = time.monotonic()
    loop._wait(threading.Event())
    assert time.monotonic() - began_s >= 0.3


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0], ids=["back by two hours", "ahead by two hours"])
def test_a_clock_that_was_set_ends_the_wait_instead_of_stretching_it(started: Daemon, jump_s: float) -> None:
    started.loop.tick()
    started.clock.at_s += jump_s
    assert started.loop._wait(threading.Event())  # would not return: this clock moves for nobody


# ------------------------------------------------------------------------------------------------------- a bug


class Bug(Exception):
    """Raised by a detector that was broken on purpose."""


def broken(*_arguments: object, **_named: object) -> None:
    raise Bug("on purpose")


@pytest.fixture
def broken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step of the detectors raises."""
    original = Engine.step
    left = [True]

    def step(self: Engine, snapshot: object) -> object:
        if left and left.pop():
            raise Bug("on purpose")
        return original(self, snapshot)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "step", step)


@pytest.mark.usefixtures("broken_once")
def test_a_bug_in_one_tick_is_logged_and_counted_and_the_next_tick_works(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, metric: Metric
) -> None:
    daemon.start()
    pauses: list[float] = []
    with capture_logs() as logged:
        healths = run_two_ticks(daemon, monkeypatch, pauses)
    crash = next(line for line in logged if line["event"] == "tick failed")
    assert (crash["log_level"], crash["exc_info"]) == ("error", True)
    assert pauses == [POLL_S], "a bug that stays must not spin"
    assert healths[0].ready is False
    assert any("the last tick failed" in why for why in healths[0].why)
    assert healths[1].ready is True
    assert metric("gpuwarden_ticks_total", outcome="crashed") == 1
    assert metric("gpuwarden_ticks_total", outcome="ok") == 1


def run_two_ticks(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> list[Health]:
    """Run until the tick after the broken one is over; gives the health after each."""
    loop, healths = daemon.loop, []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            healths.append(loop.health())
            pauses.append(timeout or 0.0)
            return False

    stop = Stop()

    def after(_self: Loop, _stop: threading.Event) -> bool:
        healths.append(loop.health())
        stop.set()
        return True

    monkeypatch.setattr(Loop, "_wait", after)
    loop.run(stop)
    return healths


def test_verdicts_are_unknown_after_a_bug_and_never_the_old_ones(
    started: Daemon, monkeypatch: pytest.MonkeyPatch, metric: Metric
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(started.loop.engine, "step", broken)
        with pytest.raises(Bug):
            started.tick()
    started.loop._broke()
    assert metric("gpuwarden_gpus", state="unknown") == 24
    assert {v.state for v in started.tick().verdicts} == {GpuState.HEALTHY}


def test_a_fault_that_a_broken_assembly_swallowed_is_told_by_the_next_tick(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = started.lose_gpu()
    with monkeypatch.context() as patch:
        patch.setattr(started.loop.assembler, "tick", broken)
        with pytest.raises(Bug):
            started.tick()
    started.loop._broke()
    started.tick()
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["gpu_uuids"] == [lost]


def test_an_incident_that_a_broken_record_lost_is_recorded_by_the_next_tick(
    started: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = started.lose_gpu()
    with monkeypatch.context() as patch:
        patch.setattr(started.loop._recorder, "tick", broken)
        with pytest.raises(Bug):
            started.tick()
    started.loop._broke()
    started.tick()
    (opened,) = started.entries(EntryKind.INCIDENT_OPENED)
    assert opened.body["gpu_uuids"] == [lost]


def test_a_loop_that_has_not_ticked_for_long_is_not_alive(started: Daemon) -> None:
    started.clock.at_s += 3600.0
    health = started.loop.health()
    assert (health.alive, health.ready) == (False, False)
    assert "no tick for 3600 s" in health.why


def test_not_ready_before_the_first_tick(daemon: Daemon) -> None:
    loop = daemon.start()
    assert loop.health() == Health(alive=True, ready=False, why=("the first tick is not done yet",))


# ------------------------------------------------------------------------------------------------------ warm-up


def test_the_first_tick_knows_what_the_last_hour_was_like(daemon: Daemon) -> None:
    daemon.warm_up = 1800.0
    daemon.clock.at_s = START_S + 7200.0
    daemon.start()
    tick = daemon.tick()
    assert {v.state for v in tick.verdicts} == {GpuState.HEALTHY}
    assert all(v.since.timestamp() <= daemon.clock() - 1500 for v in tick.verdicts), "healthy for as long as it looked"
    assert any("[300s]" in promql for promql in daemon.prometheus.asked)
    assert daemon.entries(EntryKind.DECISION, EntryKind.VERDICT_CHANGED) == []


def test_a_history_that_cannot_be_had_delays_nothing(daemon: Daemon) -> None:
    daemon.warm_up = 1800.0
    daemon.prometheus.script = always(DOWN)
    daemon.start()
    with capture_logs() as logged:
        assert daemon.tick().blind
    assert "no history" in {line["event"] for line in logged}


def test_a_stop_ends_the_warm_up(daemon: Daemon) -> None:
    daemon.warm_up = 3600.0
    daemon.start()
    stop = threading.Event()
    stop.set()
    daemon.loop.tick(stop)
    assert sum("[300s]" in promql for promql in daemon.prometheus.asked) <= 12
