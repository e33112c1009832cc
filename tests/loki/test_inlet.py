"""The road by Loki as the loop sees it: over HTTP, from a thread of its own, which holds up nobody."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import daemon.loki.inlet as inlet_module
from daemon.ledger import Ledger
from daemon.logs import Folded, in_order, utc
from daemon.loki.inlet import LOKI, LokiInlet
from daemon.metrics import Metrics
from detectors.events import KernelEvent
from rules.schema import RuleBook
from rules.vocabulary import EventKind
from tests.loki.life import KERNEL, config, xid
from tests.loki.stand_in import S, StandIn

PATIENCE_S = 20.0
BEGIN_S = 1_800_000_000.0


class Desk:
    """A ledger, a Loki over HTTP, and the inlets of one process after the other, on a clock as fast as the real one."""

    def __init__(self, folder: Path, rules: RuleBook, loki: StandIn, **keys: Any) -> None:
        self.loki, self.rules = loki, rules
        self.config = config(url=loki.url, **{"every": 0.5, "sweep": 0.5, "backoff_max": 1, "timeout": 5} | keys)
        self.ledger = Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=lambda: utc(self.clock()))
        self.began_s = time.monotonic()
        self.metrics, self.counts = Metrics(), Counter[str]()
        self.restart()

    def clock(self) -> float:
        return BEGIN_S + time.monotonic() - self.began_s

    def restart(self) -> None:
        self.inlet = LokiInlet(self.config, self.rules, self.ledger, self.metrics, self.clock)
        self.inlet.resume(None)

    def push(self, line: str, *, at_s: float | None = None, **labels: str) -> None:
        at_ns = round((self.clock() if at_s is None else at_s) * S)
        self.loki.push(at_ns, line, **(KERNEL | {"node": "n1"} | labels))

    def take(self) -> list[KernelEvent]:
        """One look and one tick; the ledger takes its state with it."""
        self.inlet.look(utc(self.clock()), self.counts)
        due: Folded = {}
        self.inlet.take(utc(self.clock()), due)
        self.ledger.append([], state=self.inlet.memory())
        return in_order(due)

    def until(self, done: Callable[[list[KernelEvent]], object]) -> list[KernelEvent]:
        """Ticks until what they took is enough."""
        taken: list[KernelEvent] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while not done(taken):
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s; taken: {taken}"
            taken += self.take()
            time.sleep(0.02)
        return taken

    def requests(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("gpuwarden_loki_requests_total", {"result": result}) or 0.0

    def close(self) -> None:
        self.inlet.close()
        self.ledger.close()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent


@pytest.fixture
def loki() -> Iterator[StandIn]:
    with StandIn().serving() as serving:
        yield serving


Make = Callable[..., Desk]


@pytest.fixture
def make(tmp_path: Path, rules: RuleBook, loki: StandIn) -> Iterator[Make]:
    """Makes desks and closes them."""
    made: list[Desk] = []

    def build(**keys: Any) -> Desk:
        made.append(Desk(tmp_path, rules, loki, **keys))
        return made[-1]

    yield build
    for desk in made:
        desk.close()


def test_a_line_comes_once_and_a_fault_is_urgent(make: Make) -> None:
    desk = make()
    desk.push(xid(1))
    deadline_s = time.monotonic() + PATIENCE_S
    while not desk.inlet.is_urgent:
        desk.inlet.look(utc(desk.clock()), desk.counts)
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    (event,) = desk.take()
    assert (event.pid, event.source, event.trusted) == (1, "loki", True)
    assert not desk.inlet.is_urgent
    desk.push(xid(2), transport="stdout")
    (untrusted,) = desk.until(len)
    assert not untrusted.trusted
    seen = len(desk.loki.asked)
    desk.until(lambda _: len(desk.loki.asked) > seen + 4)
    assert desk.requests("ok") > 4


def test_an_untrusted_fault_wakes_nobody(make: Make) -> None:
    desk = make()
    desk.push(xid(1), transport="stdout")
    deadline_s = time.monotonic() + PATIENCE_S
    while not any(batch.events for batch in desk.inlet._held):
        desk.inlet.look(utc(desk.clock()), desk.counts)
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert not desk.inlet.is_urgent


def test_a_process_that_dies_before_its_tick_is_recorded_costs_nothing(make: Make) -> None:
    desk = make()
    desk.push(xid(1))
    desk.until(len)
    desk.push(xid(2))
    deadline_s = time.monotonic() + PATIENCE_S
    while not desk.inlet.is_urgent:
        desk.inlet.look(utc(desk.clock()), desk.counts)
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    desk.inlet.take(utc(desk.clock()), {})  # and the ledger never hears of it
    desk.inlet.close()
    desk.restart()
    (event,) = desk.until(len)
    assert event.pid == 2


def test_what_the_state_table_has_of_another_version_is_left_alone(make: Make) -> None:
    desk = make()
    desk.inlet.close()
    desk.ledger.append([], state={LOKI: b"\xff something else"})
    desk.push(xid(1))
    time.sleep(0.01)
    desk.restart()
    desk.push(xid(2))
    (event,) = desk.until(len)
    assert event.pid == 2


def test_who_asks_says_who_it_is(make: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    desk = make(tenant="a|b", bearer_token_file=token)
    desk.until(lambda _: desk.loki.headers)
    assert desk.loki.headers[0]["X-Scope-OrgID"] == "a|b"
    assert desk.loki.headers[0]["Authorization"] == "Bearer s3cret"
    token.write_text("other")
    desk.until(lambda _: desk.loki.headers[-1]["Authorization"] == "Bearer other")
    token.unlink()
    desk.until(lambda _: desk.requests("unreachable"))


@pytest.mark.parametrize(
    ("keys", "answer", "result"),
    [
        pytest.param({}, (429, b"slow down", {"Retry-After": "1"}), "throttled", id="throttled"),
        pytest.param({}, (503, b"", {}), "http", id="an error"),
        pytest.param({}, (404, b"page not found", {}), "refused", id="another server"),
        pytest.param({}, (200, b"{}", {}), "garbage", id="no answer of Loki's"),
        pytest.param({"max_response_bytes": 2048}, (200, b" " * 5000, {}), "too_large", id="an endless answer"),
        pytest.param({"timeout": 0.3}, 30.0, "timeout", id="a Loki that hangs"),
    ],
)
def test_trouble_is_counted_told_once_and_over_when_it_is_over(make: Make, keys, answer, result: str) -> None:
    with capture_logs() as logged:
        desk = make(**keys)
        desk.loki.always = answer
        desk.push(xid(1))
        desk.until(lambda _: desk.requests(result) >= 2)
        began_s = time.monotonic()
        desk.take()
        assert time.monotonic() - began_s < PATIENCE_S, "nobody waits for it"
        desk.loki.always = None
        desk.loki.release.set()
        (event,) = desk.until(len)
        words = [line["event"] for line in logged]
        desk.until(lambda _: "Loki" not in words or any(line["event"] == "Loki answers again" for line in logged))
    assert event.pid == 1
    assert event.kind is EventKind.XID
    assert sum(line["event"] == "Loki" for line in logged) <= 2


def test_a_loki_that_is_not_there_is_waited_for(make: Make) -> None:
    desk = make(timeout=1)
    address = desk.loki.url
    desk.inlet.close()
    desk.config = desk.config.model_copy(update={"url": "http://127.0.0.1:1"})
    desk.restart()
    desk.until(lambda _: desk.requests("unreachable") >= 2)
    lag = desk.metrics.registry.get_sample_value("gpuwarden_loki_lag_seconds") or 0.0
    assert lag > 0
    desk.push(xid(1))
    desk.take()
    desk.inlet.close()
    desk.config = desk.config.model_copy(update={"url": address})
    desk.restart()
    assert [event.pid for event in desk.until(len)] == [1]


def test_a_flood_is_a_few_events_and_waits_in_bounded_room(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inlet_module, "_MOST_HELD", 5000)
    desk = make(limit=1000)
    begin_s = desk.clock() - 0.0
    for number in range(20_000):
        desk.push(f"{number} {xid(1)}", at_s=begin_s + number / 1e5)
    for number in range(200):
        desk.push(xid(1000 + number), at_s=begin_s + 0.3 + number / 1e5)
    deadline_s = time.monotonic() + PATIENCE_S
    while desk.inlet._fetch is not None and desk.inlet._holds < 5000 and time.monotonic() < deadline_s:
        desk.inlet.look(utc(desk.clock()), desk.counts)
        time.sleep(0.02)
    assert desk.inlet.is_urgent
    taken = desk.until(lambda taken: {event.pid for event in taken} >= set(range(1000, 1200)))
    assert len(taken) < 300


def test_gaps_come_as_events_and_are_counted(make: Make) -> None:
    desk = make(settle=1, watch=3600)
    desk.until(lambda _: desk.requests("ok") > 4 and desk.clock() > BEGIN_S + 2.5)
    desk.push(xid(1), at_s=BEGIN_S + 0.1)
    desk.push(xid(2), at_s=BEGIN_S + 0.2)
    (gap,) = desk.until(len)
    assert (gap.kind, gap.node, gap.source) == (EventKind.COVERAGE_LOST, "n1", "loki")
    assert "log coverage lost from 2027-01-15T08:00:00Z to 2027-01-15T08:00:00Z: " in gap.text
    assert "lines that came later than loki.settle" in gap.text
    assert desk.counts["log_gaps"] >= 1


def test_a_bug_in_its_thread_ends_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Event()

    def once(*_: object) -> None:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("on purpose")

    monkeypatch.setattr(inlet_module._Fetch, "_tell_lag", once)
    desk = make()
    desk.push(xid(1))
    desk.until(len)
    assert broken.is_set()


def test_closing_does_not_wait_for_a_loki_that_hangs(make: Make) -> None:
    desk = make(timeout=60)
    desk.loki.always = 60.0
    desk.until(lambda _: len(desk.loki.asked) > 0)
    desk.loki.always = 60.0
    began_s = time.monotonic()
    desk.inlet.close()
    assert time.monotonic() - began_s < 30
