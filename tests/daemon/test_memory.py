"""What is kept for the next process: nothing is lost on the way, and a fleet that is well costs next to nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daemon.ledger import Ledger
from daemon.memory import CALM, MOMENT, VERDICTS, Heard, Place, VerdictMemory, pack_heard, read_heard, read_verdicts
from detectors.events import KernelEvent
from detectors.findings import GpuState, Signal, Verdict
from rules.vocabulary import CauseClass, EventKind, FaultAction, Tier

AT = datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=UTC)
SIGNAL = Signal(
    "thresholds", "hot", "n1", "GPU-1", Tier.TREND, CauseClass.THERMAL, FaultAction.INSPECT, 0.4, 91.5, 85.0, "°C", AT,
    AT, "gpu_temp", "Hot", jobs=("a/b",),
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: AT) as opened:
        yield opened


def fleet(gpus: int) -> tuple[tuple[Verdict, ...], dict[str, Place]]:
    verdicts = tuple(
        Verdict(f"n{row // 8}", f"GPU-{row}", GpuState.HEALTHY, 0.0, AT, 0.987, (), "nothing speaks against it")
        for row in range(gpus)
    )
    return verdicts, {v.gpu: (v.node, str(row % 8), f"0000:{row % 8:02x}:00") for row, v in enumerate(verdicts)}


def with_state(verdicts: tuple[Verdict, ...], row: int, **changes: object) -> tuple[Verdict, ...]:
    changed = replace(verdicts[row], **changes)  # type: ignore[arg-type]
    return (*verdicts[:row], changed, *verdicts[row + 1 :])


def test_verdicts_come_back_as_they_were(ledger: Ledger) -> None:
    verdicts, places = fleet(24)
    verdicts = with_state(verdicts, 1, state=GpuState.DEGRADED, score=0.4, signals=(SIGNAL,), reason="Hot")
    verdicts = with_state(verdicts, 2, state=GpuState.UNKNOWN, confidence=0.0, reason="no fresh sample")
    verdicts = with_state(verdicts, 3, score=0.1, signals=(replace(SIGNAL, gpu="GPU-3", weight=0.1),))
    verdicts = with_state(verdicts, 4, state=GpuState.DEGRADED, score=0.2, reason="better, not for long enough")
    ledger.append((), state=VerdictMemory().pack(AT, "the source is gone", verdicts, places))
    found = read_verdicts(ledger)
    assert found is not None
    assert (found.at, found.source) == (AT, "the source is gone")
    assert {v.gpu: v for v in found.verdicts} == {v.gpu: v for v in verdicts}
    assert found.places == places


def test_people_find_gpus_in_the_order_of_their_nodes_and_indices(ledger: Ledger) -> None:
    verdicts, places = fleet(24)
    places |= {"GPU-3": ("n0", "10", "")}
    ledger.append((), state=VerdictMemory().pack(AT, "", tuple(reversed(verdicts)), places))
    found = read_verdicts(ledger)
    assert found is not None
    assert [v.gpu for v in found.verdicts[:8]] == [f"GPU-{row}" for row in (0, 1, 2, 4, 5, 6, 7, 3)]


@pytest.mark.parametrize(
    ("change", "writes_all"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"confidence": 0.986}, False, id="a sample that came late"),
        pytest.param({"state": GpuState.UNKNOWN}, True, id="a GPU that is not seen any more"),
        pytest.param({"state": GpuState.FAILED, "score": 1.0, "signals": (SIGNAL,)}, False, id="a GPU that failed"),
        pytest.param({"node": "n99"}, True, id="a GPU that was moved to another node"),
        pytest.param(
            {"node": "n99", "state": GpuState.FAILED, "signals": (SIGNAL,)}, True, id="a GPU that failed elsewhere"
        ),
        pytest.param({"since": AT + timedelta(seconds=9)}, True, id="a GPU that is well again since a while"),
    ],
)
def test_the_calm_part_is_written_when_it_changes(change: dict[str, object], writes_all: bool) -> None:
    verdicts, places = fleet(24)
    memory = VerdictMemory()
    assert CALM in memory.pack(AT, "", verdicts, places)
    memory.written()
    state = memory.pack(AT + timedelta(minutes=1), "", with_state(verdicts, 5, **change), places)
    assert {MOMENT, VERDICTS} <= set(state)
    assert (CALM in state) is writes_all


def test_a_gpu_that_fails_and_recovers_is_told_of_once_and_as_it_is(ledger: Ledger) -> None:
    verdicts, places = fleet(24)
    failed = with_state(verdicts, 5, state=GpuState.FAILED, score=1.0, signals=(SIGNAL,), since=AT)
    well_again = with_state(verdicts, 5, since=AT + timedelta(hours=1))
    memory = VerdictMemory()
    for now in (verdicts, failed, failed, well_again):
        ledger.append((), state=memory.pack(AT, "", now, places))
        memory.written()
        found = read_verdicts(ledger)
        assert found is not None
        assert sorted(v.gpu for v in found.verdicts) == sorted(v.gpu for v in now)
        assert {v.gpu: v for v in found.verdicts} == {v.gpu: v for v in now}


def test_what_the_ledger_refused_is_given_again() -> None:
    verdicts, places = fleet(8)
    memory = VerdictMemory()
    memory.pack(AT, "", verdicts, places)  # and no word that it was written
    assert CALM in memory.pack(AT, "", verdicts, places)


def test_a_large_fleet_that_is_well_costs_little() -> None:
    verdicts, places = fleet(16_384)
    memory = VerdictMemory()
    first = memory.pack(AT, "", verdicts, places)
    memory.written()
    again = memory.pack(AT + timedelta(seconds=30), "", verdicts, places)
    assert sum(map(len, first.values())) < 1_000_000
    assert sum(map(len, again.values())) < 200


# ---------------------------------------------------------------------------------------------------------- heard


def event(at: datetime, code: int = 79) -> KernelEvent:
    return KernelEvent(EventKind.XID, code, "text", at=at, pci="0000:5c:00", node="n1")


def test_how_far_a_log_was_heard_comes_back(ledger: Ledger) -> None:
    heard = Heard({})
    for taken in (event(AT, 48), event(AT + timedelta(seconds=1), 79), event(AT, 13)):
        heard.take("a.log", taken)
    ledger.append((), state={"heard": pack_heard(heard)})
    again = read_heard(ledger)
    later = AT + timedelta(seconds=1)
    news: Callable[[KernelEvent], bool] = lambda one: again.is_news("a.log", one)  # noqa: E731 - a name for the table
    assert [news(event(AT, 48)), news(event(later, 79)), news(event(later, 48))] == [False, False, True]
    assert news(event(later + timedelta(seconds=1), 79))
    assert again.is_news("b.log", event(AT))


def test_nothing_is_known_before_the_first_run(ledger: Ledger) -> None:
    assert read_verdicts(ledger) is None
    assert read_heard(ledger).is_news("a.log", event(AT))
