"""Open faults together: what explains what, what is trusted, what costs memory, and what survives a restart of ours."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from detectors.events import KernelEvent
from detectors.fault import Fault
from detectors.faults import FaultBook
from detectors.findings import Signal
from rules.schema import RuleBook
from rules.vocabulary import CauseClass, EventKind, FaultAction, Tier
from tests.detect.scene import Scene, minutes


@pytest.fixture
def book(rules: RuleBook) -> FaultBook:
    return FaultBook(rules)


def codes(signals: list[Signal]) -> list[int | None]:
    return [signal.code for signal in signals]


def by_code(signals: list[Signal]) -> dict[int | None, Signal]:
    return {signal.code: signal for signal in signals}


def asks(scene: Scene, value: int, after: timedelta = timedelta(0)) -> KernelEvent:
    """The driver's own request about a GPU."""
    return scene.xid(154, recovery_value=value, at=scene.now + after)


# ------------------------------------------------------------------------------------------------ what explains what


def test_a_consequence_that_outlives_its_cause_speaks_for_itself(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(48), scene.xid(64, at=scene.now + timedelta(seconds=1))]))
    reset = scene.line(EventKind.GPU_RESET, "GPU reset(2) succeeded!", pci=scene.pci(0), at=scene.now + minutes(2))
    book.take(scene.wait(120).tick([reset]))
    signals = book.take(scene.wait(120).tick())
    assert {s.code: (s.secondary_to, s.weight) for s in signals} == {64: (None, 1.0)}


def test_a_consequence_that_is_stronger_than_its_cause_speaks_for_itself(book: FaultBook) -> None:
    scene = Scene()
    signals = book.take(scene.tick([scene.xid(94), scene.xid(64, at=scene.now + timedelta(seconds=1))]))
    assert by_code(signals)[64].secondary_to is None


def test_a_storm_stays_explained_however_long_it_goes_on(book: FaultBook) -> None:
    scene = Scene()
    signals = book.take(scene.tick([scene.xid(120)]))
    for _ in range(10):
        signals = book.take(scene.tick([scene.xid(119, count=20)]))
    assert by_code(signals)[119].secondary_to == 120


def test_a_cause_that_arrives_late_still_explains(book: FaultBook) -> None:
    scene = Scene()
    first = scene.now
    book.take(scene.tick([scene.xid(45, at=first + timedelta(seconds=20))]))
    signals = book.take(scene.tick([scene.xid(62, at=first)]))
    assert by_code(signals)[45].secondary_to == 62


def test_a_cause_that_is_itself_explained_passes_its_root_on(book: FaultBook) -> None:
    scene = Scene()
    first = scene.now
    book.take(scene.tick([scene.xid(45, at=first + timedelta(seconds=20)), scene.xid(62, at=first - minutes(0.5))]))
    signals = book.take(scene.tick([scene.xid(119, at=first)]))
    assert {s.code: s.secondary_to for s in signals} == {62: None, 119: 62, 45: 62}


def test_a_reload_leaves_nothing_behind_that_explains_later_faults(book: FaultBook) -> None:
    scene = Scene()
    events = [scene.xid(62), scene.line(EventKind.DRIVER_LOAD, at=scene.now + timedelta(seconds=5))]
    events.append(scene.xid(45, at=scene.now + timedelta(seconds=9)))
    (signal,) = book.take(scene.tick(events))
    assert (signal.code, signal.secondary_to) == (45, None)


# ----------------------------------------------------------------------------------------------------- RAS, strangers


def ras(scene: Scene, text: str) -> KernelEvent:
    return scene.line(EventKind.RAS, f"amdgpu 0000:10:00.0: amdgpu: {text}", pci=scene.pci(0))


def test_each_kind_of_ras_line_is_a_fault_of_its_own(book: FaultBook) -> None:
    scene = Scene(model="AMD Instinct MI300X")
    lines = ["3 correctable hardware errors detected in umc block", "RAS records:128 exceed threshold:100"]
    signals = book.take(scene.tick([ras(scene, text) for text in lines]))
    assert {s.rule: (s.tier, s.action) for s in signals} == {
        "ras_bad_pages_over_limit": (Tier.FACT, FaultAction.REPLACE),
        "ras_correctable_errors": (Tier.TREND, FaultAction.NONE),
    }
    (left,) = book.take(scene.wait(7200).tick())
    assert left.rule == "ras_bad_pages_over_limit"


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(lambda s: s.xid(999), id="an XID that no pack has"),
        pytest.param(lambda s: ras(s, "something new detected"), id="a RAS line that no pack has"),
    ],
)
def test_a_stranger_is_watched_for_an_hour_and_weighs_as_a_trend(
    book: FaultBook, event: Callable[[Scene], KernelEvent]
) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([event(scene)]))
    assert (signal.tier, signal.cause_class) == (Tier.TREND, CauseClass.UNKNOWN)
    assert book.take(scene.wait(3700).tick()) == []


def test_a_probe_that_failed_is_counted_and_no_fault(book: FaultBook) -> None:
    scene = Scene()
    assert book.take(scene.tick([scene.line(EventKind.PROBE_FAILED)])) == []
    assert book.counts[EventKind.PROBE_FAILED] == 1


# -------------------------------------------------------------------------------------------------- trust and bounds


def test_what_the_kernel_did_not_say_is_shown_and_never_acted_on(book: FaultBook) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([scene.xid(79, trusted=False)]))
    assert (signal.trusted, signal.weight, signal.action) == (False, 0.0, FaultAction.NONE)
    assert book.take(scene.wait(3700).tick()) == []


def test_hearsay_costs_little_memory_and_takes_no_real_faults_room(book: FaultBook) -> None:
    scene = Scene()
    for chunk in range(20):
        noise = [
            scene.xid(1000 + number, trusted=False, pci=f"{chunk:04x}:{number % 256:02x}:00") for number in range(100)
        ]
        signals = book.take(scene.tick([*noise, scene.xid(79)] if chunk == 19 else noise))
    assert len(signals) == 33
    assert [s.code for s in signals if s.trusted] == [79]
    assert book.counts["over_limit"] == 20 * 100 - 32


def test_many_places_cost_no_memory_and_lose_no_fault(book: FaultBook) -> None:
    scene = Scene()
    noise = [scene.xid(74, place=f"link {number}") for number in range(2000)]
    signals = book.take(scene.tick([*noise, scene.xid(79, slot=1)]))
    assert len(signals) == 514
    assert sum(signal.count for signal in signals if signal.code == 74) == 2000
    assert 79 in codes(signals)


def test_the_jobs_of_a_fault_are_bounded(book: FaultBook) -> None:
    scene = Scene()
    for number in range(100):
        scene.run_job(f"job-{number}", (0, 0))
        (signal,) = book.take(scene.tick([scene.xid(48)]))
    assert len(signal.jobs) == 64


def test_occurrences_are_forgotten_once_no_escalation_looks_back_so_far(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(94, slot=slot) for slot in range(8)]))
    assert len(book._repeats._seen) == 8
    book.take(scene.wait(25 * 3600).tick())
    assert book._repeats._seen == {}


def test_repeats_that_ask_for_no_more_than_the_fault_does_change_nothing(book: FaultBook) -> None:
    scene = Scene()
    for _ in range(4):
        scene.wait(3600)
        (signal,) = book.take(scene.tick([scene.xid(94, detail="Contained: SM (0x1). RST: No, D-RST: Yes")]))
    assert (signal.action, signal.tier) == (FaultAction.RESET_GPU, Tier.TREND)
    assert book.open_faults()[0].raised is None


def test_a_double_delivery_changes_no_request(book: FaultBook) -> None:
    scene = Scene()
    event = scene.xid(94)
    for _ in range(5):
        (signal,) = book.take(scene.tick([event]))
    assert signal.action is FaultAction.RESTART_APP


# ------------------------------------------------------------------------------------------- jobs, boards, restarts


def test_a_programs_fault_is_one_a_job(book: FaultBook) -> None:
    scene = Scene()
    for job in ("b", "a"):
        scene.run_job(job, (0, 0))
        signals = book.take(scene.tick([scene.xid(31)]))
    assert sorted(signal.jobs for signal in signals) == [("team/a",), ("team/b",)]


def test_a_replaced_board_takes_all_of_its_faults_with_it(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(64), scene.xid(94), asks(scene, 1, timedelta(seconds=3)), scene.xid(64, slot=1)]))
    (left,) = book.take(scene.swap((0, 0), "GPU-new").tick())
    assert left.gpu == scene.uuid(0, 1)
    assert book.counts["replaced"] == 2


def test_faults_come_back_from_their_stored_form_as_they_were(book: FaultBook, rules: RuleBook) -> None:
    scene = Scene().run_job("llama", (0, 0))
    events = [scene.xid(code, boot_id="B1", at=scene.now + timedelta(seconds=code)) for code in (48, 64, 94)]
    before = book.take(scene.wait(120).tick([*events, asks(scene, 2), scene.line(EventKind.RAS, "GPU reset begin!")]))
    stored = msgspec.json.decode(msgspec.json.encode(list(book.open_faults())), type=list[Fault])
    other = FaultBook(rules)
    other.restore(stored)
    scene.step_s = 0.0
    assert other.take(scene.tick()) == before


def test_what_a_boot_ended_while_nobody_looked_is_not_taken_up_again(book: FaultBook, rules: RuleBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(79), scene.xid(64)]))
    scene.boot[0] = (scene.now + minutes(2)).timestamp()
    other = FaultBook(rules)
    scene.wait(600)
    other.take(scene.tick())
    other.restore(book.open_faults())
    assert codes(other.take(scene.tick())) == [64]


def test_what_a_boot_ended_while_nobody_looked_ends_at_the_first_look(book: FaultBook, rules: RuleBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(79), scene.xid(64)]))
    other = FaultBook(rules)
    other.restore(book.open_faults())
    scene.boot[0] = (scene.now + minutes(2)).timestamp()
    assert codes(other.take(scene.wait(600).tick())) == [64]
