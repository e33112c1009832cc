"""Which fault is the consequence of which: windows, chains, places, trust and bounds."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from detectors.events import KernelEvent
from detectors.secondary import MAX_GPUS, SecondaryTracker
from rules.schema import RuleBook
from rules.vocabulary import EventKind

T0 = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
Mark = Callable[..., list[int | None]]


@pytest.fixture(scope="session")
def book() -> RuleBook:
    """Three codes in a chain (500, 501, 502), a lost GPU (79) and a switch fault that follows from it."""
    fields = {
        "meaning": "a fault",
        "cause_class": "hardware",
        "incident_class": "hardware",
        "tier": 0,
        "action": "reset_gpu",
        "severity": "fatal",
        "source": "this test",
    }
    xid = {
        79: {"mnemonic": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", **fields},
        500: {"mnemonic": "ROOT", **fields},
        501: {"mnemonic": "MIDDLE", "secondary_to": [500], **fields},
        502: {"mnemonic": "END", "secondary_to": [501, 500], "secondary_window": "10s", **fields},
        503: {"mnemonic": "ONLY_END", "secondary_to": [501], **fields},
    }
    sxid = {600: {"mnemonic": "SWITCH", "secondary_to": [79], **fields}}
    return RuleBook.model_validate({"version": 1, "name": "t", "owner": "t", "xid": xid, "sxid": sxid})


@pytest.fixture
def mark(book: RuleBook) -> Mark:
    """The causes that a fresh tracker finds for events, in their order."""

    def run(*events: KernelEvent) -> list[int | None]:
        tracker = SecondaryTracker(book)
        return [tracker.mark(event).secondary_to for event in events]

    return run


def xid(code: int, second: float | None = 0.0, **more: object) -> KernelEvent:
    at = None if second is None else T0 + timedelta(seconds=second)
    event = KernelEvent(EventKind.XID, code, f"{code}", pci="0000:01:00", node="n1", at=at)
    return replace(event, **more)  # type: ignore[arg-type]


def off_bus(second: float = 0.0, **more: object) -> KernelEvent:
    return replace(xid(79, second, **more), kind=EventKind.OFF_BUS)


def sxid(second: float = 0.0, **more: object) -> KernelEvent:
    return xid(600, second, kind=EventKind.SXID, pci="0000:05:00", **more)


@pytest.mark.parametrize(
    ("events", "causes"),
    [
        pytest.param([xid(500), xid(501, 5)], [None, 500], id="one follows from another"),
        pytest.param([xid(501), xid(500, 5)], [None, None], id="a consequence cannot come first"),
        pytest.param([xid(500), xid(500, 5)], [None, None], id="a repeat is no consequence"),
        pytest.param([xid(500), xid(501, 61)], [None, None], id="after the window"),
        pytest.param([xid(500), xid(502, 9), xid(502, 11)], [None, 500, None], id="a window of its own"),
        pytest.param([xid(500), xid(501, 5), xid(503, 9)], [None, 500, 500], id="a chain names its root"),
        pytest.param([xid(501), xid(503, 9)], [None, 501], id="a chain whose root is not there"),
        pytest.param([xid(501), xid(500, 1), xid(502, 2)], [None, None, 501], id="of two causes, the first"),
        pytest.param([xid(500), xid(501, 5, pci="0000:02:00")], [None, None], id="another GPU"),
        pytest.param([xid(500), xid(501, 5, node="n2")], [None, None], id="another node"),
        pytest.param([xid(500), xid(501, 5, boot_id="b2")], [None, None], id="another boot"),
        pytest.param([xid(500, pci=None), xid(501, 5, pci=None)], [None, 500], id="no address on either"),
        pytest.param([xid(500), xid(999, 5)], [None, None], id="a code without a rule"),
        pytest.param([xid(500, trusted=False), xid(501, 5)], [None, None], id="a forged cause hides nothing"),
        pytest.param([xid(500), xid(501, 5, trusted=False)], [None, 500], id="an untrusted consequence"),
        pytest.param(
            [xid(500), xid(500, 1, trusted=False), xid(501, 5)], [None, None, 500], id="a forged repeat hides no cause"
        ),
        pytest.param([xid(79), off_bus(1)], [None, 79], id="the same loss, told without a number"),
        pytest.param([off_bus(), xid(79, 1)], [None, 79], id="the same loss, the number second"),
        pytest.param([off_bus(), xid(79, 1, pci="0000:02:00")], [None, None], id="the loss of another GPU"),
        pytest.param([xid(79), sxid(5), sxid(6)], [None, 79, 79], id="the switches that lost the GPU"),
        pytest.param([off_bus(), sxid(5)], [None, 79], id="the switches, after a loss without a number"),
        pytest.param([sxid(), xid(79, 5)], [None, None], id="a switch fault before the loss"),
        pytest.param([xid(79), sxid(5, node="n2")], [None, None], id="the switch of another node"),
        pytest.param(
            [xid(500), KernelEvent(EventKind.DRIVER_LOAD, None, "", node="n1"), xid(501, 5)],
            [None, None, None],
            id="a fresh driver has no past",
        ),
        pytest.param(
            [xid(500), KernelEvent(EventKind.DRIVER_LOAD, None, "", node="n1", trusted=False), xid(501, 5)],
            [None, None, 500],
            id="a forged driver load wipes nothing",
        ),
    ],
)
def test_a_consequence_names_its_cause(mark: Mark, events: list[KernelEvent], causes: list[int | None]) -> None:
    assert mark(*events) == causes


@pytest.mark.parametrize(
    ("earlier", "later", "cause"),
    [
        pytest.param({"monotonic_s": 100.0}, {"monotonic_s": 150.0}, 500, id="seconds since boot, near"),
        pytest.param({"monotonic_s": 100.0}, {"monotonic_s": 161.0}, None, id="seconds since boot, far"),
        pytest.param({"monotonic_s": 100.0}, {"monotonic_s": 90.0}, None, id="seconds since another boot"),
        pytest.param({"line": 1}, {"line": 201}, 500, id="no time, few lines"),
        pytest.param({"line": 1}, {"line": 202}, None, id="no time, many lines"),
        pytest.param({"monotonic_s": 100.0, "line": 1}, {"line": 5}, 500, id="one without time: lines"),
    ],
)
def test_without_a_clock_other_distances_count(
    mark: Mark, earlier: dict[str, float], later: dict[str, float], cause: int | None
) -> None:
    assert mark(xid(500, None, **earlier), xid(501, None, **later)) == [None, cause]


def test_memory_is_bounded_by_the_number_of_gpus(book: RuleBook) -> None:
    tracker = SecondaryTracker(book)
    for node in range(MAX_GPUS + 100):
        tracker.mark(xid(500, node=f"n{node}"))
    assert len(tracker._seen) <= MAX_GPUS
    assert tracker.mark(xid(501, 5, node="n0")).secondary_to is None
    assert tracker.mark(xid(501, 5, node=f"n{MAX_GPUS + 99}")).secondary_to == 500
