"""The same fault by several roads (agent, followed log, Loki, exporter's codes) is one, whichever comes first."""

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.events import KernelEvent
from detectors.faults import FaultBook
from detectors.standing import cannot_wait
from rules.schema import RuleBook
from rules.vocabulary import EventKind
from tests.detect.scene import Scene


@pytest.fixture
def book(rules: RuleBook) -> FaultBook:
    return FaultBook(rules)


ROADS = ("agent kmsg", "log", "loki", "exporter")


@pytest.mark.parametrize("first", ROADS)
@pytest.mark.parametrize("second", ROADS)
@pytest.mark.parametrize("together", [True, False], ids=["in one tick", "in two ticks"])
def test_the_same_fault_by_two_roads_is_one_with_two_sources(
    book: FaultBook, first: str, second: str, together: bool
) -> None:
    scene = Scene()

    def told(road: str) -> KernelEvent:
        at = scene.now if road != "exporter" else scene.now + timedelta(seconds=20)
        return scene.exported(48, slot=3, at=at) if road == "exporter" else scene.xid(48, slot=3, at=at, source=road)

    events = [told(first), told(second)] if first != second else [told(first)]
    scene.wait(60)
    for part in [events] if together else [[one] for one in events]:
        signals = book.take(scene.tick(part))
    (signal,) = signals
    assert (signal.count, signal.sources) == (1, tuple(sorted({first, second})))
    assert signal.look.startswith("NVRM") is ({first, second} != {"exporter"})


def test_a_fault_counts_as_often_as_the_road_that_told_it_most_often(book: FaultBook) -> None:
    scene = Scene()
    for source, count in (("agent kmsg", 500), ("loki", 480), ("exporter", 3)):
        book.take(scene.tick([scene.xid(31, slot=1, count=count, source=source)]))
    (fault,) = book.open_faults()
    assert fault.count == 500


@pytest.mark.parametrize("late", ["loki", "agent kmsg", "exporter"])
@pytest.mark.parametrize(
    "kind", [EventKind.GPU_RESET, EventKind.DRIVER_LOAD], ids=["a reset of the GPU", "a load of the driver"]
)
def test_what_arrives_by_another_road_after_its_fault_ended_opens_nothing(
    book: FaultBook, late: str, kind: EventKind
) -> None:
    """A line of before the reset that comes seconds after it: nothing is wrong any more."""
    scene = Scene()
    fault = scene.xid(119, slot=3, source="log")
    scene.wait(5)
    end = scene.line(kind, "the driver says so", pci=scene.pci(3) if kind is EventKind.GPU_RESET else None)
    book.take(scene.tick([fault, end]))
    assert book.open_faults() == ()
    # An exporter tells it at its scrape, which may lie after the end of the fault.
    echo = scene.exported(119, slot=3, at=scene.now + timedelta(seconds=20))
    again = echo if late == "exporter" else replace(fault, source=late)
    scene.wait(60)
    assert book.take(scene.tick([again])) == []
    assert book.counts["after_its_end"] == 1
    (signal,) = book.take(scene.tick([scene.xid(119, slot=3)]))
    assert signal.code == 119, "the same again, after the end, is another fault"


@pytest.mark.parametrize(
    ("code", "at_once"),
    [(79, True), (95, True), (119, True), (13, False), (31, False), (43, False), (45, False)],
)
def test_facts_about_hardware_cannot_wait_for_a_poll_and_a_programs_faults_can(
    rules: RuleBook, code: int, at_once: bool
) -> None:
    event = Scene().xid(code)
    assert cannot_wait(event, rules) is at_once
    assert not cannot_wait(replace(event, trusted=False), rules)
