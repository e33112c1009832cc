"""One agent's turns, with a real spool: what was read is kept before the log moves on, and goes once it is taken."""

import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daemon.agent.metrics import AgentMetrics
from daemon.agent.position import Position, Reading, SourceError
from daemon.agent.run import Agent, Parts
from daemon.agent.sender import Unsent
from daemon.agent.spool import Spool, SpoolError, SpoolFull
from daemon.agent.wire import Receipt, Refused, Report
from detectors.events import KernelEvent
from rules.vocabulary import EventKind

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def event(sequence: int, code: int = 79) -> KernelEvent:
    return KernelEvent(
        EventKind.XID, code, f"Xid {code}", at=AT + timedelta(seconds=sequence), sequence=sequence, boot_id="b",
        source="kmsg", pci="0000:5c:00",
    )  # fmt: skip


class Log:
    """A log that a test fills."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.counts: Counter[str] = Counter()

    def read(self, wait_s: float) -> Reading | None:  # noqa: ARG002 - nobody waits here
        return self.readings.pop(0) if self.readings else None

    def close(self) -> None: ...

    def says(self, *events: KernelEvent) -> None:
        self.readings.append(Reading(events, Position("kmsg", "b", events[-1].sequence or 0)))


class Controller:
    """What a sender is to an agent: away, or with a memory."""

    def __init__(self) -> None:
        self.away = False
        self.never: set[int] = set()
        self.ledger: dict[str, Report] = {}
        self.batches: list[Sequence[Report]] = []

    def send(self, reports: Sequence[Report]) -> Receipt:
        if self.away:
            raise Unsent("away")
        self.batches.append(reports)
        refused = tuple(Refused(one.id, "bad") for one in reports if one.event.code in self.never)
        taken = [one for one in reports if one.event.code not in self.never]
        for one in taken:
            self.ledger.setdefault(one.id, one)
        return Receipt(tuple(one.id for one in taken), refused)


class Node:
    """An agent's parts on one folder, and a clock that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.log, self.controller, self.now_s = Log(), Controller(), 0.0
        self.spool = Spool(folder)
        self.metrics = AgentMetrics()
        parts = Parts(self.log, self.spool, self.controller, self.metrics)  # type: ignore[arg-type]
        self.agent = Agent(parts, lambda: self.now_s)

    def read(self, stop: threading.Event | None = None) -> None:
        self.agent.read(stop or threading.Event())

    def send_all(self) -> None:
        for _ in range(100):
            rest_s = self.agent.send()
            if rest_s is None:
                return
            self.now_s += rest_s

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "spool")


def test_what_the_log_says_is_in_the_spool_with_the_place_after_it(node: Node) -> None:
    node.log.says(event(1), event(2, 31))
    node.read()
    assert [one.event for one in node.spool.pending(9)] == [event(1), event(2, 31)]
    assert node.spool.position == Position("kmsg", "b", 2)
    assert node.count("gpuwarden_agent_events_total", kind="xid", trusted="true") == 2


def test_what_the_controller_has_leaves_the_spool_and_what_it_refuses_is_counted(node: Node) -> None:
    node.controller.never = {31}
    node.log.says(event(1), event(2, 31))
    node.read()
    node.send_all()
    assert len(node.spool) == 0
    told, lost = (one.event for one in node.controller.ledger.values())
    assert told.code == 79
    assert (lost.kind, "refused a report of xid 31: bad" in lost.text) == (EventKind.COVERAGE_LOST, True)
    assert node.count("gpuwarden_agent_reports_total", result="taken") == 2
    assert node.count("gpuwarden_agent_reports_total", result="refused") == 1


def test_an_hour_without_a_controller_loses_nothing_and_a_flood_in_it_is_few_messages(node: Node) -> None:
    node.controller.away = True
    for minute in range(60):
        node.log.says(*(event(100 * minute + number) for number in range(50)))
        node.log.says(event(100 * minute + 60, 31 + minute))
        node.read()
        node.read()
        with pytest.raises(Unsent):
            node.agent.send()
        node.now_s += 60
    node.controller.away = False
    node.send_all()
    assert len(node.spool) == 0
    told = [one.event for one in node.controller.ledger.values()]
    assert sum(one.count for one in told if one.code == 79 and one.text == "Xid 79") >= 60 * 50
    assert {one.code for one in told} >= {31 + minute for minute in range(60)}
    assert len(told) < 300


@pytest.mark.parametrize("trouble", [SpoolFull("no room"), SpoolError("input/output error")], ids=["full", "broken"])
def test_a_spool_that_takes_nothing_is_waited_for_and_the_log_is_not_passed_over(
    node: Node, monkeypatch: pytest.MonkeyPatch, trouble: SpoolError
) -> None:
    full = [True, True]
    add = node.spool.add

    def scarce(*args: object, **kwargs: object) -> None:
        if full:
            full.pop()
            raise trouble
        add(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(node.spool, "add", scarce)
    monkeypatch.setattr("daemon.agent.run._FIRST_WAIT_S", 0.01)
    node.log.says(event(1))
    node.read()
    assert len(node.spool) == 1


def test_a_log_that_cannot_be_read_shows_on_the_metrics_and_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def broken(_wait_s: float) -> Reading | None:
        stop.set()
        raise SourceError("gone; mount it")

    monkeypatch.setattr(node.log, "read", broken)
    node.agent.run(stop)
    assert node.count("gpuwarden_agent_log_readable") == 0


def test_a_receipt_that_names_none_of_what_was_sent_is_no_receipt(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.controller, "send", lambda _: Receipt())
    node.log.says(event(1))
    node.read()
    with pytest.raises(Unsent, match="names none"):
        node.agent.send()
    assert len(node.spool) == 1
