"""Open faults: what opens them, what they are merged with, and above all what ends them and what does not."""

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

from detectors.events import KernelEvent
from detectors.faults import FaultBook
from detectors.findings import Signal
from rules.schema import RuleBook
from rules.vocabulary import EventKind, FaultAction, Tier
from tests.detect.scene import Scene, hours, minutes


@pytest.fixture
def book(rules: RuleBook) -> FaultBook:
    return FaultBook(rules)


def codes(signals: list[Signal]) -> list[int | None]:
    return [signal.code for signal in signals]


def by_code(signals: list[Signal]) -> dict[int | None, Signal]:
    return {signal.code: signal for signal in signals}


# -------------------------------------------------------------------------------------------------------- boundaries


def reboots(scene: Scene) -> KernelEvent | None:
    scene.boot[0] = (scene.now + minutes(2)).timestamp()
    return None


def reloads(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.DRIVER_LOAD, driver_version="580.1", at=scene.now + minutes(2))


def resets(scene: Scene) -> KernelEvent:
    text = "amdgpu 0000:10:00.0: amdgpu: GPU reset(2) succeeded!"
    return scene.line(EventKind.GPU_RESET, text, pci=scene.pci(0), at=scene.now + minutes(2))


def needs_nothing(scene: Scene) -> KernelEvent:
    return scene.xid(154, recovery_value=0, at=scene.now + minutes(2))


def steps_the_clock(scene: Scene) -> None:
    scene.boot[0] += 3600  # an hour, as NTP does to a node that booted with a wrong clock


def creeps(scene: Scene) -> None:
    scene.boot[0] += 90


def begins_a_reset(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.GPU_RESET, "GPU reset begin", pci=scene.pci(0), at=scene.now + minutes(2))


def resets_another(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.GPU_RESET, "GPU reset done", pci=scene.pci(5), at=scene.now + minutes(2))


def reloads_in_hearsay(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.DRIVER_LOAD, at=scene.now + minutes(2), trusted=False)


def reloads_elsewhere(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.DRIVER_LOAD, node=1, at=scene.now + minutes(2))


def reloaded_before(scene: Scene) -> KernelEvent:
    return scene.line(EventKind.DRIVER_LOAD, at=scene.now - minutes(60))


@pytest.mark.parametrize(
    ("happens", "left"),
    [
        pytest.param(reboots, [64], id="a reboot ends all but what only service ends"),
        pytest.param(reloads, [79, 64], id="a driver reload ends what is the driver's"),
        pytest.param(resets, [79, 64], id="a reset ends what is the GPU's"),
        pytest.param(needs_nothing, [48, 79, 64], id="the driver's None ends what the driver can mend"),
        pytest.param(begins_a_reset, [119, 48, 79, 64], id="a reset that only begins ends nothing"),
        pytest.param(resets_another, [119, 48, 79, 64], id="another GPU's reset ends nothing here"),
        pytest.param(steps_the_clock, [119, 48, 79, 64], id="a clock that is set by an hour is no boot"),
        pytest.param(creeps, [119, 48, 79, 64], id="a clock that creeps is no boot"),
        pytest.param(reloads_in_hearsay, [119, 48, 79, 64], id="a reload that the kernel did not tell ends nothing"),
        pytest.param(reloads_elsewhere, [119, 48, 79, 64], id="another node's reload ends nothing here"),
        pytest.param(reloaded_before, [119, 48, 79, 64], id="a reload before the fault ends nothing"),
    ],
)
def test_boundaries_end_what_their_rules_name(
    book: FaultBook, happens: Callable[[Scene], KernelEvent | None], left: list[int]
) -> None:
    scene = Scene(nodes=2)
    scene.set("node_boot_time_seconds", 1.0, node=0)
    book.take(scene.tick())
    faults = [scene.xid(code, at=scene.now + timedelta(seconds=n)) for n, code in enumerate((119, 48, 79, 64))]
    assert len(book.take(scene.tick(faults))) == 4
    event = happens(scene)
    scene.wait(180)
    signals = book.take(scene.tick([event] if event is not None else []))
    assert sorted(codes(signals)) == sorted(left)


def test_a_clock_that_creeps_for_days_is_never_taken_for_a_boot(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(79)]))
    for _ in range(20):
        scene.boot[0] += 60
        signals = book.take(scene.wait(3600).tick())
    assert codes(signals) == [79]


def test_a_clock_that_was_wrong_at_the_boot_and_is_set_right_is_no_boot(book: FaultBook) -> None:
    scene = Scene(booted_h=1.5)  # it booted half an hour ago, by a clock that is an hour slow
    scene.set("node_boot_time_seconds", 1.0, node=0)
    book.take(scene.tick([scene.xid(79, at=scene.now - minutes(80))]))
    scene.boot[0] += 3600
    assert codes(book.take(scene.tick())) == [79]


def test_after_a_boot_a_log_of_the_boot_before_is_old_news(book: FaultBook) -> None:
    scene = Scene()
    old = scene.xid(79)
    book.take(scene.tick([old]))
    scene.boot[0] = (scene.now + minutes(2)).timestamp()
    assert codes(book.take(scene.wait(300).tick())) == []
    assert codes(book.take(scene.tick([old]))) == []


def test_a_node_without_a_boot_time_keeps_its_faults(book: FaultBook) -> None:
    scene = Scene()
    scene.boot[0] = np.nan
    book.take(scene.tick([scene.xid(79)]))
    assert codes(book.take(scene.wait(7200).tick())) == [79]


def test_the_clusters_boot_id_of_a_node_ends_faults_too(book: FaultBook) -> None:
    scene = Scene()
    scene.boot[0] = np.nan
    scene.node_refs = [node.__class__(node.name, boot_id="B1") for node in scene.node_refs]
    book.take(scene.tick([scene.xid(79)]))
    assert codes(book.take(scene.tick())) == [79]
    scene.node_refs = [node.__class__(node.name, boot_id="B2") for node in scene.node_refs]
    assert codes(book.take(scene.wait(600).tick())) == []


@pytest.mark.parametrize(
    ("fields", "boot_known"),
    [
        pytest.param({"monotonic_s": 30.0}, False, id="the record's seconds since boot tell when"),
        pytest.param({}, True, id="the exporter's boot time tells when"),
        pytest.param({}, False, id="the first record of the new boot is late enough"),
    ],
)
def test_a_new_boot_id_ends_what_was_before_that_boot(book: FaultBook, fields: dict, boot_known: bool) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(79, boot_id="B1")]))
    scene.wait(300)
    if boot_known:
        scene.boot[0] = (scene.now - minutes(1)).timestamp()
    fresh = scene.xid(79, slot=2, boot_id="B2", at=scene.now, **fields)
    signals = book.take(scene.tick([fresh]))
    assert [signal.gpu for signal in signals] == [scene.uuid(0, 2)]


def test_a_record_of_the_boot_before_does_not_bring_it_back(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(48, boot_id="B2")]))
    late = scene.xid(79, boot_id="B1", at=scene.now - hours(1))
    assert codes(book.take(scene.tick([late]))) == [48]
    assert book.counts["before_boot"] == 1


def test_a_fault_is_not_over_because_nothing_more_is_said(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(79), scene.xid(13, slot=1)]))
    assert sorted(codes(book.take(scene.wait(540).tick()))) == [13, 79]
    assert codes(book.take(scene.wait(120).tick())) == [79]
    assert codes(book.take(scene.wait(30 * 86400).tick())) == [79]


def test_a_cancelling_code_ends_its_fault_at_the_same_place_only(book: FaultBook) -> None:
    scene = Scene()
    hot = [scene.line(EventKind.SXID, "", code=10004, pci=f"0000:c{n}:00") for n in range(2)]
    book.take(scene.tick(hot))
    cool = scene.line(EventKind.SXID, "", code=10005, pci="0000:c0:00", trusted=False)
    assert codes(book.take(scene.tick([cool]))) == [10004, 10004]
    cool = scene.line(EventKind.SXID, "", code=10005, pci="0000:c0:00")
    (left,) = book.take(scene.tick([cool]))
    assert "0000:c1:00" in left.rule


# ---------------------------------------------------------------------------------------------- the driver's request


def asks(scene: Scene, value: int, after: timedelta = timedelta(0), **fields) -> KernelEvent:
    return scene.xid(154, recovery_value=value, at=scene.now + after, **fields)


def test_a_request_raises_what_its_fault_asks_for_and_never_lowers_it(book: FaultBook) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([scene.xid(79), asks(scene, 1, timedelta(seconds=1))]))
    assert signal.action is FaultAction.REBOOT_NODE
    (signal,) = book.take(scene.tick([scene.xid(48, slot=1), asks(scene, 2, slot=1)]))[1:]
    assert signal.action is FaultAction.REBOOT_NODE


def test_an_older_request_that_arrives_late_changes_nothing(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(48)]))
    newest = asks(scene, 2, timedelta(seconds=9))
    late = asks(scene, 0, timedelta(seconds=3))
    book.take(scene.tick([newest]))
    (signal,) = book.take(scene.tick([late]))
    assert signal.action is FaultAction.REBOOT_NODE


def test_none_withdraws_no_request_that_is_newer_than_it(book: FaultBook) -> None:
    scene = Scene()
    book.take(scene.tick([scene.xid(48), asks(scene, 0, timedelta(seconds=5))]))
    (signal,) = book.take(scene.wait(60).tick([scene.xid(48)]))
    assert signal.action is FaultAction.RESET_GPU


def test_none_takes_back_no_replacement(book: FaultBook) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([scene.xid(64), asks(scene, 0, timedelta(seconds=5))]))
    assert signal.action is FaultAction.REPLACE


def test_a_request_is_about_its_own_gpu_and_no_programs_fault(book: FaultBook) -> None:
    scene = Scene()
    events = [scene.xid(48), scene.xid(31, slot=1), scene.xid(48, slot=2), asks(scene, 2, timedelta(seconds=1), slot=1)]
    signals = book.take(scene.tick(events))
    asked = {(signal.code, signal.gpu): signal.action for signal in signals}
    assert asked == {
        (48, scene.uuid(0, 0)): FaultAction.RESET_GPU,
        (31, scene.uuid(0, 1)): FaultAction.RESTART_APP,
        (154, scene.uuid(0, 1)): FaultAction.REBOOT_NODE,
        (48, scene.uuid(0, 2)): FaultAction.RESET_GPU,
    }


def test_a_request_before_its_fault_was_told_is_about_that_fault(book: FaultBook) -> None:
    scene = Scene()
    (alone,) = book.take(scene.tick([asks(scene, 2, timedelta(seconds=5))]))
    signals = book.take(scene.tick([scene.xid(62, at=scene.now - timedelta(seconds=27))]))
    assert (alone.code, alone.secondary_to) == (154, None)
    assert {s.code: (s.action, s.secondary_to) for s in signals} == {
        62: (FaultAction.REBOOT_NODE, None),
        154: (FaultAction.REBOOT_NODE, 62),
    }


def test_a_reboot_answers_the_request_also_for_what_outlives_it(book: FaultBook) -> None:
    scene = Scene()
    row = scene.xid(63, detail="Row Remapper: New row marked for remapping, reset gpu to activate")
    book.take(scene.tick([scene.xid(64), asks(scene, 2, timedelta(seconds=1)), row]))
    assert book.open_faults()[0].asked is FaultAction.REBOOT_NODE
    reboots(scene)
    (signal,) = book.take(scene.wait(300).tick())
    assert (signal.code, signal.action) == (64, FaultAction.REPLACE)
    assert [fault.asked for fault in book.open_faults()] == [None]


def test_a_request_in_hearsay_is_nobodys(book: FaultBook) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([scene.xid(48), asks(scene, 2, timedelta(seconds=1), trusted=False)]))
    assert signal.action is FaultAction.RESET_GPU


def test_a_request_for_a_look_opens_nothing_by_itself(book: FaultBook) -> None:
    scene = Scene()
    assert book.take(scene.tick([asks(scene, 3)])) == []


# ----------------------------------------------------------------------------------------- log and exporter, places


@pytest.mark.parametrize("log_first", [True, False], ids=["the log first", "the exporter first"])
@pytest.mark.parametrize("pci_known", [True, False], ids=["with a PCI label", "without a PCI label"])
@pytest.mark.parametrize("together", [True, False], ids=["in one tick", "in two ticks"])
def test_a_log_line_and_the_exporters_edge_are_one_fault(
    book: FaultBook, log_first: bool, pci_known: bool, together: bool
) -> None:
    scene = Scene(pci_known=pci_known)
    lines = [scene.xid(48, slot=3), scene.xid(48, slot=3, at=scene.now + timedelta(seconds=2), pid=7)]
    edge = scene.exported(48, slot=3, at=scene.now + timedelta(seconds=40))
    parts = [lines, [edge]] if log_first else [[edge], lines]
    scene.wait(60)
    for events in [[*parts[0], *parts[1]]] if together else parts:
        signals = book.take(scene.tick(events))
    (signal,) = signals
    assert (signal.gpu, signal.count, signal.since) == (scene.uuid(0, 3), 2, lines[0].at)
    assert signal.last == lines[1].at, "the edge is an echo, its time the scrape's"
    assert book.open_faults()[0].text.startswith("NVRM")


def test_an_exporter_alone_opens_a_fault_too(book: FaultBook) -> None:
    scene = Scene()
    (signal,) = book.take(scene.tick([scene.exported(79, count=2)]))
    assert (signal.gpu, signal.count, signal.tier) == (scene.uuid(0, 0), 2, Tier.FACT)


def test_a_learnt_place_is_remembered_for_every_later_fault(book: FaultBook) -> None:
    scene = Scene(pci_known=False)
    book.take(scene.tick([scene.xid(48, slot=3), scene.exported(48, slot=3)]))
    signals = book.take(scene.wait(86400).tick([scene.xid(79, slot=3)]))
    assert by_code(signals)[79].gpu == scene.uuid(0, 3)


@pytest.mark.parametrize(
    "others",
    [
        pytest.param(lambda s: [s.xid(48, slot=4), s.exported(48, slot=4)], id="two GPUs had the code"),
        pytest.param(lambda s: [s.exported(48, slot=4)], id="two edges, one line"),
        pytest.param(lambda s: [s.xid(48, slot=4)], id="two lines, one edge"),
    ],
)
def test_where_several_gpus_could_be_meant_none_is(
    book: FaultBook, others: Callable[[Scene], list[KernelEvent]]
) -> None:
    scene = Scene(pci_known=False)
    signals = book.take(scene.tick([scene.xid(48, slot=3), scene.exported(48, slot=3), *others(scene)]))
    assert scene.pci(3) in {s.rule.split()[-1] for s in signals if not s.gpu}


@pytest.mark.parametrize(
    ("line", "edge"),
    [
        pytest.param({"code": 48}, {"code": 79}, id="another code"),
        pytest.param({"code": 48}, {"code": 48, "node": 1}, id="another node"),
        pytest.param({"code": 48}, {"code": 48, "after": minutes(4)}, id="four minutes later"),
        pytest.param({"code": 48, "trusted": False}, {"code": 48}, id="a line that the kernel did not write"),
    ],
)
def test_what_is_not_surely_the_same_is_kept_apart(book: FaultBook, line: dict, edge: dict) -> None:
    scene = Scene(nodes=2, pci_known=False)
    at = scene.now + edge.pop("after", timedelta(0))
    events = [scene.xid(slot=3, **line), scene.exported(slot=3, at=at, **edge)]
    signals = book.take(scene.wait(300).tick(events))
    assert len(signals) == 2


def test_a_gpu_whose_place_is_known_gives_no_other_place_its_name(book: FaultBook) -> None:
    scene = Scene(pci_known=False)
    book.take(scene.tick([scene.xid(48, slot=3), scene.exported(48, slot=3)]))
    scene.wait(600)
    signals = book.take(scene.tick([scene.xid(79, slot=5), scene.exported(79, slot=3)]))
    assert [s.gpu for s in signals if s.code == 79 and scene.pci(5) in s.rule] == [""]


def driver_maps(scene: Scene) -> KernelEvent | None:
    return scene.line(EventKind.GPU_MAP, pci=scene.pci(3), gpu_uuid=scene.uuid(0, 3))


def metrics_arrive(scene: Scene) -> None:
    scene.refs = [
        scene.refs[row].__class__(**{**asdict_of(scene.refs[row]), "pci": scene.pci(row)}) for row in range(8)
    ]


def asdict_of(ref: object) -> dict[str, object]:
    return {name: getattr(ref, name) for name in ref.__slots__}


@pytest.mark.parametrize("told", [driver_maps, metrics_arrive], ids=["by the driver's line", "by the exporter's label"])
def test_a_fault_gets_its_gpu_when_somebody_tells_which_one_sits_there(book: FaultBook, told: Callable) -> None:
    scene = Scene(pci_known=False)
    events = [scene.xid(94, slot=3), asks(scene, 1, timedelta(seconds=2), slot=3)]
    (before,) = book.take(scene.tick(events))
    event = told(scene)
    (after,) = book.take(scene.wait(1800).tick([event] if event else []))
    assert (before.gpu, after.gpu) == ("", scene.uuid(0, 3))
    assert (after.since, after.count, after.action) == (before.since, 1, FaultAction.RESET_GPU)
    third = [scene.xid(94, slot=3, at=scene.now + hours(n)) for n in (1, 2)]
    book.take(scene.wait(3 * 3600).tick(third))
    assert book.open_faults()[0].raised is not None, "what was seen at the address counts for the GPU"


def test_a_repeated_map_line_is_no_news(book: FaultBook) -> None:
    scene = Scene()
    mapped = scene.line(EventKind.GPU_MAP, pci=scene.pci(3), gpu_uuid=scene.uuid(0, 3))
    assert len(book.take(scene.tick([scene.xid(48, slot=3), mapped]))) == 1


def test_two_gpus_that_nobody_knows_stay_two_faults(book: FaultBook) -> None:
    scene = Scene(pci_known=False)
    signals = book.take(scene.tick([scene.xid(79, slot=3), scene.xid(79, slot=4)]))
    assert len({signal.key for signal in signals}) == 2
