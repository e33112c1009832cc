"""Faults that people who run GPU fleets have reported in public: what a log's lines come to as time passes.

The ids are those of the collected field cases; each test states a report's input in our own lines, and what is right.
What one line says by itself is tested with the parser.
"""

import tracemalloc
from collections.abc import Iterator
from datetime import timedelta

import pytest

from daemon.logs import fold
from detectors.engine import Engine
from detectors.events import KernelEvent
from detectors.findings import GpuState
from detectors.kernel_log import parse_lines
from rules.schema import RuleBook
from rules.vocabulary import Action, CauseClass, EventKind, FaultAction, Tier
from tests.detect.reading import decided, one, recovery, state_of, steps
from tests.detect.scene import START, Scene, hours, minutes

MEGABYTE = 1_000_000


# ------------------------------------------------------------------------------------------------ floods and repeats


def test_fc034_800000_repeats_as_counted_events_are_one_incident_in_50_mb(engine: Engine) -> None:
    scene = Scene()
    opened = []
    tracemalloc.start()
    for _ in range(80):
        flood = [scene.xid(95, detail=f"pid={pid}, Uncontained: LTC TAG.", pid=pid, count=500) for pid in range(20)]
        detection = engine.step(scene.tick(flood))
        opened += detection.opened
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(opened) == 1
    assert one(detection).count == 800_000
    assert peak < 50 * MEGABYTE


def flood_lines(count: int) -> Iterator[bytes]:
    line = "[{:12.6f}] NVRM: Xid (PCI:0000:10:00): 95, pid={}, Uncontained: LTC TAG (0x2,0x1). RST: Yes, D-RST: No"
    for number in range(count):
        yield line.format(1000 + number / 160, 7000 + number % 29).encode()


def test_fc034_a_stream_of_lines_costs_memory_that_does_not_grow_with_it(engine: Engine, rules: RuleBook) -> None:
    # A fiftieth of the report's 800,000: what is asserted is that the later half costs nothing.
    scene, opened, used = Scene(), [], []
    folded: dict[tuple[object, ...], KernelEvent] = {}
    tracemalloc.start()
    for number, event in enumerate(parse_lines(flood_lines(16_000), rules, node=scene.node(0)), 1):
        fold(folded, event)
        if number % 1_600 == 0:
            detection = engine.step(scene.tick(folded.values()))
            opened += detection.opened
            folded.clear()
            used.append(tracemalloc.get_traced_memory()[0])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(opened), one(detection).count) == (1, 16_000)
    assert peak < 5 * MEGABYTE
    assert used[-1] - used[4] < 0.1 * MEGABYTE


def test_fc042_the_same_message_each_second_is_one_fault(engine: Engine) -> None:
    scene = Scene()
    same = [scene.xid(62, at=START + timedelta(seconds=second), pid=second) for second in range(60)]
    scene.now += minutes(2)
    detection = engine.step(scene.tick(same))
    assert len(detection.signals) == 1
    assert one(detection).count == 60


def test_fc035_preemptive_removals_over_a_day_never_become_a_cause(engine: Engine, rules: RuleBook) -> None:
    scene = Scene()
    for job in range(6):
        scene.wait(4 * 3600).run_job(f"churn-{job}", (0, 0))
        detection = engine.step(scene.tick([scene.xid(45, pid=100 + job, detail="Ch 00000010")]))
        assert {i.cause_class for i in detection.incidents} == {CauseClass.APPLICATION}
        assert steps(detection, scene, rules) == {Action.WATCH}
        assert state_of(detection, scene) is GpuState.HEALTHY


def test_fc035_a_removal_after_another_fault_is_part_of_that_fault(engine: Engine) -> None:
    scene = Scene()
    detection = engine.step(scene.tick([scene.xid(48), scene.xid(45, at=scene.now + timedelta(seconds=4))]))
    assert one(detection).cause_class is CauseClass.MEMORY
    assert {s.code: s.secondary_to for s in one(detection).signals} == {48: None, 45: 48}


def test_fc037_a_loss_told_in_words_and_then_by_number_is_one_incident(engine: Engine) -> None:
    scene = Scene()
    words = scene.line(EventKind.OFF_BUS, "NVRM: The NVIDIA GPU has fallen off the bus", code=79, pci=scene.pci(3))
    first = engine.step(scene.tick([words]))
    second = engine.step(scene.tick([scene.xid(79, slot=3)]))
    assert len(first.opened) == 1
    assert second.opened == ()
    assert one(second).id == one(first).id
    assert one(second).gpu_uuids == (scene.uuid(0, 3),)


# ---------------------------------------------------------------------------------------- the driver's own request


def test_fc048_the_newest_request_counts_and_none_withdraws_it_without_erasing_the_cause(engine: Engine) -> None:
    scene = Scene()
    asked = []
    engine.step(scene.tick([scene.xid(48)]))
    for value, words in ((4, "Drain and Reset"), (2, "Node Reboot Required"), (1, "GPU Reset Required"), (0, "None")):
        detection = engine.step(scene.tick([recovery(scene, value, words)]))
        asked.append(one(detection).action)
    assert asked == [FaultAction.RESET_GPU, FaultAction.REBOOT_NODE, FaultAction.RESET_GPU, FaultAction.NONE]
    assert [s.code for s in one(detection).signals] == [48]
    assert state_of(detection, scene) is GpuState.FAILED


def test_fc048_a_request_whose_cause_nobody_saw_stands_for_itself_until_none(engine: Engine) -> None:
    scene = Scene()
    asked = []
    for value, words in ((4, "Drain and Reset"), (2, "Node Reboot Required")):
        detection = engine.step(scene.tick([recovery(scene, value, words)]))
        asked.append(one(detection).action)
    detection = engine.step(scene.tick([recovery(scene, 0, "None")]))
    assert asked == [FaultAction.RESET_GPU, FaultAction.REBOOT_NODE]
    assert [(i.standing, i.action) for i in detection.incidents] == [(False, FaultAction.NONE)]


def test_fc059_a_chain_of_four_is_one_incident_with_the_first_as_root_and_the_last_ones_action(engine: Engine) -> None:
    scene = Scene()
    detection = engine.step(
        scene.tick(
            [
                scene.xid(62),
                scene.xid(45, at=scene.now + timedelta(seconds=4)),
                scene.xid(119, at=scene.now + timedelta(seconds=16)),
                recovery(scene, 2, "Node Reboot Required", timedelta(seconds=20)),
            ]
        )
    )
    incident = one(detection)
    assert (incident.signals[0].code, incident.cause_class, incident.tier) == (62, CauseClass.HARDWARE, Tier.FACT)
    assert {s.code: s.secondary_to for s in incident.signals} == {62: None, 119: 62, 45: 62}
    assert incident.action is FaultAction.REBOOT_NODE


# ------------------------------------------------------------------------------------------------------------ memory


def test_fc049_a_marked_row_plans_a_reset_when_idle_and_no_drain(engine: Engine, rules: RuleBook) -> None:
    scene = Scene().set("row_remap_failure", 0).run_job("llama", *Scene().all_gpus())
    event = scene.xid(63, detail="Row Remapper: New row marked for remapping, reset gpu to activate")
    detection = engine.step(scene.tick([event]))
    (decision,) = decided(detection, scene, rules)
    assert [(step.action, step.when_idle) for step in decision.plan.steps] == [
        (Action.NO_NEW_WORK, False),
        (Action.RESET_GPU, True),
    ]
    assert decision.plan.affected == ()


def test_fc050_a_failed_remap_quarantines_and_no_reset_brings_it_back(engine: Engine, rules: RuleBook) -> None:
    scene = Scene()
    row = scene.xid(
        64, detail="Row Remapper Error: All reserved rows for bank are remapped", at=scene.now + minutes(0.1)
    )
    engine.step(scene.tick([scene.xid(48), row]))
    loads = [scene.line(EventKind.DRIVER_LOAD, at=scene.now + minutes(3)), recovery(scene, 0, "None", minutes(3))]
    scene.now += minutes(5)
    detection = engine.step(scene.tick(loads))
    scene.boot[0] = (scene.now + minutes(4)).timestamp()
    scene.now += minutes(6)
    detection = engine.step(scene.tick())
    (decision,) = decided(detection, scene, rules)
    assert [s.code for s in detection.signals] == [64]
    assert (one(detection).tier, decision.plan.action) == (Tier.FACT, Action.QUARANTINE)
    assert state_of(detection, scene) is GpuState.FAILED


CONTAINED = "Contained: SM (0x1). RST: No, D-RST: No"


def test_fc052_one_contained_error_restarts_the_job_and_keeps_the_gpu(engine: Engine, rules: RuleBook) -> None:
    scene = Scene(nodes=2).run_job("llama", (0, 0), (1, 0)).run_job("other", (0, 1))
    detection = engine.step(scene.tick([scene.xid(94, detail=CONTAINED)]))
    (decision,) = decided(detection, scene, rules)
    assert [step.action for step in decision.plan.steps] == [Action.RESTART_JOB]
    assert decision.plan.affected == ("pod team/llama-0", "pod team/llama-8")
    assert state_of(detection, scene) is GpuState.DEGRADED


def test_fc052_three_contained_errors_in_a_day_ask_for_a_reset(engine: Engine) -> None:
    scene = Scene()
    asked = []
    for _ in range(3):
        detection = engine.step(scene.wait(7 * 3600).tick([scene.xid(94, detail=CONTAINED)]))
        asked.append(one(detection).action)
    assert asked == [FaultAction.RESTART_APP, FaultAction.RESTART_APP, FaultAction.RESET_GPU]


def test_fc052_one_error_told_by_many_lines_and_by_the_exporter_is_one_occurrence(engine: Engine) -> None:
    scene = Scene()
    burst = [scene.xid(94, detail=CONTAINED, at=scene.now + timedelta(seconds=s), count=5) for s in range(5)]
    detection = engine.step(scene.tick([*burst, scene.exported(94, at=scene.now + timedelta(seconds=20))]))
    assert (one(detection).action, one(detection).count) == (FaultAction.RESTART_APP, 25)


def test_fc052_a_contained_error_that_says_reset_is_a_fact(engine: Engine) -> None:
    scene = Scene()
    engine.step(scene.tick([scene.xid(94, detail=CONTAINED)]))
    detection = engine.step(scene.tick([scene.xid(94, detail="Contained: SM (0x1). RST: Yes, D-RST: No")]))
    assert (one(detection).tier, one(detection).action) == (Tier.FACT, FaultAction.RESET_GPU)


def test_fc053_an_uncontained_error_stops_the_work_without_saving_it_and_resets(
    engine: Engine, rules: RuleBook
) -> None:
    scene = Scene().run_job("llama", (0, 0)).run_job("other", (0, 5))
    detail = "pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"
    detection = engine.step(scene.tick([scene.xid(95, detail=detail, pid=7062)]))
    (decision,) = decided(detection, scene, rules)
    ladder = [step.action for step in decision.plan.steps]
    assert ladder == [Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN, Action.RESET_GPU]
    assert "older than the error" in decision.plan.reason
    assert decision.plan.affected == ("pod team/llama-0", "pod team/other-5")


# ------------------------------------------------------------------------------------------------------ boot ids


@pytest.mark.parametrize(
    ("code", "survives"),
    [
        pytest.param(48, False, id="FC111 a memory error is over with the boot"),
        pytest.param(79, False, id="FC111 a lost GPU is over with the boot"),
        pytest.param(119, False, id="FC111 a GSP timeout is over with the boot"),
        pytest.param(64, True, id="FC111 a failed remap is not"),
    ],
)
def test_fc111_a_fault_persists_through_restarts_of_ours_and_ends_with_the_boot(
    rules: RuleBook, code: int, survives: bool
) -> None:
    scene = Scene()
    before, after = Engine(rules), Engine(rules)
    detection = before.step(scene.tick([scene.xid(code, boot_id="B1")]))
    after.faults.restore(before.faults.open_faults())
    after.incidents.restore(detection.incidents)
    restarted = scene.run(after, 3600)
    assert one(restarted).id == one(detection).id
    rebooted = after.step(scene.tick([scene.line(EventKind.DRIVER_LOAD, boot_id="B2")]))
    assert bool(rebooted.signals) is survives


def test_fc111_a_log_that_is_read_again_after_the_boot_opens_nothing(rules: RuleBook) -> None:
    scene = Scene()
    old = scene.xid(79, at=scene.now - hours(5))
    scene.boot[0] = (scene.now - hours(1)).timestamp()
    assert Engine(rules).step(scene.tick([old])).signals == ()
