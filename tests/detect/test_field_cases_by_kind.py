"""Faults that people who run GPU fleets have reported in public: programs, links, switches and AMD's resets over time.

The ids are those of the collected field cases; each test states a report's input in our own lines, and what is right.
"""

from collections import Counter
from datetime import timedelta

import pytest

from detectors.engine import Engine
from detectors.events import KernelEvent
from detectors.findings import GpuState
from rules.schema import RuleBook
from rules.vocabulary import DISRUPTIVE, Action, CauseClass, EventKind, FaultAction, IncidentScope
from tests.detect.reading import decided, one, state_of, steps
from tests.detect.scene import Scene, minutes

# --------------------------------------------------------------------------------------- application or hardware


def test_fc054_a_code_about_which_vendors_disagree_warns_and_a_site_decides(rules: RuleBook, site) -> None:
    scene = Scene()
    detection = Engine(rules).step(scene.tick([scene.xid(68)]))
    assert steps(detection, scene, rules) == {Action.WATCH}
    assert "sources disagree" in rules.xid[68].source
    strict = site("xid: {68: {incident_class: hardware, tier: 0, action: reset_gpu}}\n")
    scene = Scene()
    assert Action.RESET_GPU in steps(Engine(strict).step(scene.tick([scene.xid(68)])), scene, strict)


def sick_sm(scene: Scene, slot: int = 0) -> KernelEvent:
    return scene.xid(13, slot=slot, detail="Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0)", place="GPC 1 TPC 3")


def test_fc056_the_same_sm_under_three_jobs_wants_a_hardware_test(engine: Engine, rules: RuleBook) -> None:
    scene = Scene()
    classes = []
    for job in ("a", "b", "b", "c"):
        scene.wait(2 * 3600).run_job(job, (0, 0))
        detection = engine.step(scene.tick([sick_sm(scene)]))
        classes.append(one(detection).cause_class)
    assert classes == [CauseClass.APPLICATION] * 3 + [CauseClass.HARDWARE]
    assert one(detection).action is FaultAction.INSPECT
    assert not steps(detection, scene, rules) & DISRUPTIVE
    detection = engine.step(scene.tick(after_s=12 * 3600))
    assert one(detection).cause_class is CauseClass.HARDWARE, "the pattern lasts as long as it takes to be seen"
    assert engine.step(scene.tick(after_s=13 * 3600)).incidents == ()


@pytest.mark.parametrize(
    ("places", "jobs"),
    [
        pytest.param([0] * 4, ["a"] * 4, id="FC056 one job four times on one GPU"),
        pytest.param(list(range(6)), ["a"] * 6, id="FC056 one job on six GPUs"),
    ],
)
def test_fc056_one_job_is_the_owners_matter(
    engine: Engine, rules: RuleBook, places: list[int], jobs: list[str]
) -> None:
    scene = Scene()
    for slot, job in zip(places, jobs, strict=True):
        scene.run_job(job, (0, slot))
        detection = engine.step(scene.tick([sick_sm(scene, slot)]))
    assert one(detection).cause_class is CauseClass.APPLICATION
    assert steps(detection, scene, rules) == {Action.WATCH}
    assert {state_of(detection, scene, 0, slot) for slot in places} == {GpuState.HEALTHY}


def test_fc056_a_program_that_is_started_again_and_again_is_no_sick_gpu(engine: Engine) -> None:
    scene = Scene()
    for pid in range(5):
        detection = engine.step(scene.wait(1800).tick([scene.xid(31, pid=pid)]))
    assert one(detection).cause_class is CauseClass.APPLICATION


def test_fc057_a_gsp_timeout_cordons_and_resets_after_the_jobs(engine: Engine, rules: RuleBook) -> None:
    scene = Scene().run_job("llama", (0, 0))
    hangs = [
        scene.xid(119, detail="Expected function FREE", at=scene.now + timedelta(seconds=16 + s)) for s in range(200)
    ]
    scene.now += minutes(4)
    detection = engine.step(scene.tick([scene.xid(120, at=hangs[0].at - timedelta(seconds=16)), *hangs]))
    (decision,) = decided(detection, scene, rules)
    assert {s.code: s.count for s in one(detection).signals} == {120: 1, 119: 200}
    assert [(s.action, s.when_idle) for s in decision.plan.steps] == [
        (Action.NO_NEW_WORK, False),
        (Action.CORDON, False),
        (Action.RESET_GPU, True),
    ]
    assert "our own stack may be the trigger" in decision.plan.reason


# --------------------------------------------------------------------------------------------------- links, switches


@pytest.mark.parametrize(
    "late", [pytest.param(False, id="FC060 the loss first"), pytest.param(True, id="FC060 the storm first")]
)
def test_fc060_a_lost_gpu_and_its_storm_are_one_node_incident(engine: Engine, rules: RuleBook, late: bool) -> None:
    scene = Scene()
    storm = [
        scene.line(
            EventKind.SXID,
            f"nvidia-nvswitch{switch}: SXid (PCI:0000:c{switch}:00.0): 20034, Fatal, Link {link} LTSSM Fault Up",
            code=20034,
            pci=f"0000:c{switch}:00",
            place=f"link {link}",
            at=scene.now + timedelta(seconds=3 + switch),
        )
        for switch in range(3)
        for link in (37, 48, 62, 63)
    ]
    loss = scene.xid(79, slot=1, at=scene.now + timedelta(seconds=8 if late else 1))
    detection = engine.step(scene.tick([*storm, loss]))
    incident = one(detection)
    (decision,) = decided(detection, scene, rules)
    assert (incident.scope, incident.cause_class) == (IncidentScope.NODE, CauseClass.HARDWARE)
    assert incident.gpu_uuids == (scene.uuid(0, 1),)
    assert Counter(s.code for s in incident.signals) == {79: 1, 20034: 12}
    assert Action.REBOOT_NODE in {step.action for step in decision.plan.steps}
    assert [v.gpu for v in detection.verdicts if v.state is GpuState.FAILED] == [scene.uuid(0, 1)]


def broken_link(scene: Scene, link: int) -> KernelEvent:
    registers = (0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
    detail = f"NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    return scene.xid(74, detail=detail, place=f"link {link}", registers=registers)


def test_fc063_one_link_error_is_watched_and_the_third_of_the_same_link_resets(engine: Engine, rules: RuleBook) -> None:
    scene = Scene()
    taken = []
    for link in (14, 3, 14, 14):
        detection = engine.step(scene.wait(3600).tick([broken_link(scene, link)]))
        taken.append(steps(detection, scene, rules))
    assert taken[:3] == [{Action.WATCH, Action.DIAGNOSE}] * 3
    assert taken[3] == {Action.NO_NEW_WORK, Action.RESET_GPU}
    assert {(s.place, s.count) for s in one(detection).signals} == {("link 14", 3), ("link 3", 1)}


# ---------------------------------------------------------------------------------------------------------- AMD


def amd(scene: Scene, text: str) -> KernelEvent:
    said = f"amdgpu {scene.pci(0)}.0: amdgpu: {text}"
    kind = EventKind.GPU_RESET if "succeeded" in text else EventKind.RAS
    return scene.line(kind, said, pci=scene.pci(0))


def test_fc066_a_reset_that_never_ends_wants_a_reboot(engine: Engine, rules: RuleBook) -> None:
    scene = Scene(model="AMD Instinct MI300X")
    first = engine.step(scene.tick([amd(scene, "GPU reset begin!")]))
    later = scene.run(engine, 540)
    assert {one(first).action, one(later).action} == {FaultAction.INSPECT}
    last = scene.run(engine, 60)
    assert one(last).action is FaultAction.REBOOT_NODE
    assert steps(last, scene, rules) == {Action.NO_NEW_WORK, Action.REBOOT_NODE}


def test_fc066_a_reset_that_ends_is_over(engine: Engine) -> None:
    scene = Scene(model="AMD Instinct MI300X")
    engine.step(scene.tick([amd(scene, "GPU reset begin!")]))
    detection = engine.step(scene.tick([amd(scene, "GPU reset(2) succeeded!")]))
    assert detection.signals == ()


def test_fc066_an_empty_log_is_no_proof_of_health(engine: Engine) -> None:
    scene = Scene(model="AMD Instinct MI300X")
    engine.step(scene.tick())
    scene.blind((0, 0))
    detection = scene.run(engine, 3600)
    assert state_of(detection, scene) is GpuState.UNKNOWN
