"""Faults that people who run GPU fleets have reported in public: what metrics, and their absence, come to.

The ids are those of the collected field cases; each test states a report's input in our own numbers, and what is right.
"""

import pytest

from detectors.engine import Detection, Engine
from detectors.findings import GpuState
from remediation.plan import Works, plan
from rules.schema import RuleBook
from rules.vocabulary import DISRUPTIVE, Action, CauseClass, FaultAction, Tier
from tests.detect.scene import H100, Scene

T4 = "Tesla T4"


def found(detection: Detection) -> set[str]:
    return {signal.rule for signal in detection.signals}


def state_of(detection: Detection, uuid: str) -> GpuState:
    return next(v.state for v in detection.verdicts if v.gpu == uuid)


def ladders(detection: Detection, scene: Scene, rules: RuleBook) -> set[Action]:
    works = Works.around(scene.tick(after_s=0), {name for i in detection.incidents for name in i.nodes})
    return {step.action for i in detection.incidents for step in plan(i, works, rules.policy).steps}


def busy(scene: Scene, *places: tuple[int, int]) -> Scene:
    """A GPU under load: everything a healthy one shows then."""
    for signal, value in {
        "gpu_util_percent": 99,
        "gr_engine_active": 0.9,
        "tensor_active": 0.4,
        "power_watts": 620,
        "fb_used_mib": 60000,
        "sm_clock_mhz": 1700,
        "clock_event_reasons": 0x4,
        "gpu_temp": 60,
        "pcie_link_gen": 5,
        "pcie_link_width": 16,
    }.items():
        scene.set(signal, value, *places)
    return scene


# -------------------------------------------------------------------------------------------------- clocks and links


def test_fc067_an_idle_gpu_that_clocks_down_is_healthy(engine: Engine) -> None:
    scene = busy(Scene())
    scene.set("sm_clock_mhz", 210, (0, 0)).set("clock_event_reasons", 0x1, (0, 0)).set("gpu_util_percent", 0, (0, 0))
    scene.set("pcie_link_gen", 1, (0, 0)).set("gr_engine_active", 0.0, (0, 0))
    detection = scene.run(engine, 3600)
    assert found(detection) == set()
    assert {v.state for v in detection.verdicts} == {GpuState.HEALTHY}


def test_fc067_low_clocks_with_a_stated_reason_are_no_alarm_and_without_one_they_are(engine: Engine) -> None:
    scene = busy(Scene()).set("sm_clock_mhz", 210, (0, 0), (0, 1)).set("clock_event_reasons", 0x1, (0, 0))
    scene.set("clock_event_reasons", 0x0, (0, 1))
    detection = scene.run(engine, 1800)
    assert [s.gpu for s in detection.signals if s.rule == "clocks_stuck_low"] == [scene.uuid(0, 1)]


def test_fc067_pcie_below_the_models_maximum_under_load_is_a_degradation(engine: Engine) -> None:
    scene = busy(Scene()).set("pcie_link_gen", 3, (0, 4)).set("pcie_link_width", 8, (0, 4))
    detection = scene.run(engine, 1200)
    assert {(s.rule, s.gpu, s.value, s.limit) for s in detection.signals} == {
        ("pcie_gen_low", scene.uuid(0, 4), 3.0, 5.0),
        ("pcie_width_low", scene.uuid(0, 4), 8.0, 16.0),
    }
    assert state_of(detection, scene.uuid(0, 4)) in (GpuState.DEGRADED, GpuState.FAILING)


def test_fc070_88_degrees_are_fine_on_a_t4_and_the_margin_tells_on_an_h100(engine: Engine) -> None:
    t4 = Scene(model=T4).set("gpu_temp", 88).set("slowdown_temp", 93)
    assert found(t4.run(engine, 1200)) == set()
    assert found(t4.set("gpu_temp", 92, (0, 0)).run(engine, 300)) == {"gpu_temp_high"}


def test_fc070_a_margin_of_one_degree_is_an_alarm_whatever_the_temperature(engine: Engine) -> None:
    scene = Scene().set("gpu_temp", 70).set("thermal_margin", 17).set("thermal_margin", 1, (0, 2))
    assert {(s.rule, s.gpu) for s in scene.run(engine, 600).signals} == {("thermal_margin_low", scene.uuid(0, 2))}


@pytest.mark.parametrize(
    ("model", "alarm"),
    [
        pytest.param("NVIDIA A100 80GB PCIe", False, id="FC071 a board without a bridge has no NVLink to lose"),
        pytest.param(H100, True, id="FC072 a board that always has links and uses none under a job"),
    ],
)
def test_fc071_fc072_silent_links_matter_where_the_model_has_links(engine: Engine, model: str, alarm: bool) -> None:
    scene = busy(Scene(model=model, gpus=8)).set("nvlink_bandwidth", 0)
    scene.run_job("allreduce", *scene.all_gpus())
    detection = scene.run(engine, 1800)
    assert ("nvlink_silent" in found(detection)) is alarm
    assert {state_of(detection, v.gpu) for v in detection.verdicts} == {
        GpuState.DEGRADED if alarm else GpuState.HEALTHY
    }


def test_fc071_absent_link_counters_are_not_zero_links(engine: Engine) -> None:
    scene = busy(Scene(model="NVIDIA A100 80GB PCIe")).run_job("allreduce", *Scene().all_gpus())
    assert found(scene.run(engine, 1800)) == set()


# ------------------------------------------------------------------------------------------------------------ memory


def test_fc074_a_repaired_double_bit_error_resets_when_idle_and_keeps_the_gpu_in_service(
    engine: Engine, rules: RuleBook
) -> None:
    scene = busy(Scene()).set("row_remap_failure", 0).set("ecc_dbe_volatile", 0).set("remapped_rows_uncorrectable", 3)
    scene.run(engine, 300)
    scene.grows("ecc_dbe_volatile", 1, (0, 0)).grows("remapped_rows_uncorrectable", 1, (0, 0))
    detection = engine.step(scene.tick())
    (incident,) = detection.incidents
    works = Works.around(scene.tick(after_s=0), incident.nodes)
    wanted = plan(incident, works, rules.policy)
    assert found(detection) == {"ecc_dbe"}
    assert state_of(detection, scene.uuid(0, 0)) is GpuState.DEGRADED
    assert [(s.action, s.when_idle) for s in wanted.steps] == [(Action.NO_NEW_WORK, False), (Action.RESET_GPU, True)]


def test_fc074_the_trend_of_remapped_rows_adds_to_the_score(engine: Engine) -> None:
    scene = busy(Scene()).set("remapped_rows_uncorrectable", 3).set("ecc_dbe_volatile", 0)
    scene.run(engine, 60)
    scores = []
    for _ in range(4):
        scene.grows("remapped_rows_uncorrectable", 1, (0, 0)).grows("ecc_dbe_volatile", 1, (0, 0))
        scores.append(next(v.score for v in scene.run(engine, 30).verdicts if v.gpu == scene.uuid(0, 0)))
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


# --------------------------------------------------------------------------------------------------------- telemetry


def test_fc075_an_exporter_that_is_late_after_a_boot_is_no_fault(engine: Engine) -> None:
    scene = Scene(booted_h=4 / 60).flag("exporter_down", 0).blind(*Scene().all_gpus())
    assert found(scene.run(engine, 600)) == set(), "14 minutes after the boot, in its grace"
    assert found(scene.run(engine, 600)) == {"exporter_down"}


def test_fc075_an_exporter_that_restarts_is_no_fault(engine: Engine) -> None:
    scene = Scene()
    scene.run(engine, 600)
    scene.flag("exporter_down", 0).blind(*scene.all_gpus())
    down = scene.run(engine, 60)
    scene.flag("exporter_down").blind()
    assert (found(down), found(scene.run(engine, 600))) == (set(), set())


def test_fc075_telemetry_that_is_gone_for_good_takes_nothing_out(engine: Engine, rules: RuleBook) -> None:
    scene = Scene().flag("node_stale", 0).blind(*Scene().all_gpus())
    detection = scene.run(engine, 4 * 3600)
    assert found(detection) == {"node_silent"}
    assert {v.state for v in detection.verdicts} == {GpuState.UNKNOWN}
    assert not ladders(detection, scene, rules) & (DISRUPTIVE | {Action.NO_NEW_WORK})


def test_fc076_a_node_whose_gpu_stack_hangs_gets_no_new_work_and_a_probe(engine: Engine, rules: RuleBook) -> None:
    scene = Scene().set("node_load1", 12.0, node=0)
    scene.run(engine, 60)
    scene.flag("exporter_down", 0).blind(*scene.all_gpus())
    first = scene.run(engine, 1500)
    assert ladders(first, scene, rules) == {Action.DIAGNOSE}
    later = scene.run(engine, 2 * 3600)
    (hang,) = (s for s in later.signals if s.rule == "gpu_stack_unresponsive")
    assert (hang.gpu, hang.tier, hang.action) == ("", Tier.SUSPICION, FaultAction.INSPECT)
    assert ladders(later, scene, rules) == {Action.NO_NEW_WORK, Action.DIAGNOSE}
    assert {v.state for v in later.verdicts} == {GpuState.UNKNOWN}, "which GPU it is can't be told"


def test_fc078_an_exporter_without_gpus_is_a_telemetry_fault_and_not_eight_lost_gpus(
    engine: Engine, rules: RuleBook
) -> None:
    scene = Scene()
    scene.run(engine, 60)
    scene.flag("no_gpu_series", 0).blind(*scene.all_gpus())
    detection = scene.run(engine, 3600)
    (signal,) = detection.signals
    assert (signal.rule, signal.cause_class, signal.gpu) == ("no_gpu_series", CauseClass.TELEMETRY, "")
    assert "restart the exporter" in signal.text
    assert {v.state for v in detection.verdicts} == {GpuState.UNKNOWN}
    assert ladders(detection, scene, rules) == {Action.DIAGNOSE}


# ---------------------------------------------------------------------------------------------------------- judgement


def test_fc083_a_hung_checkpoint_is_the_jobs_matter_and_hardly_moves_the_score(engine: Engine, rules: RuleBook) -> None:
    scene = busy(Scene(nodes=2)).run_job("tune", *Scene().all_gpus(0))
    scene.run(engine, 600)
    for slot in range(8):
        scene.set("tensor_active", 0.0, (0, slot)).set("power_watts", 130, (0, slot))
        scene.set("gr_engine_active", 1.0, (0, slot)).set("gpu_util_percent", 100, (0, slot))
    detection = scene.run(engine, 2400)
    (incident,) = detection.incidents
    assert (incident.cause_class, incident.why.split(":")[0]) == (CauseClass.JOB, "job team/tune on 1 node")
    assert {v.state for v in detection.verdicts} == {GpuState.HEALTHY}
    assert max(v.score for v in detection.verdicts) <= 0.2
    assert ladders(detection, scene, rules) == {Action.WATCH}


def test_fc084_another_board_in_the_place_starts_afresh_and_closes_the_old_ones_incidents(engine: Engine) -> None:
    scene = busy(Scene()).set("row_remap_failure", 0)
    scene.set("row_remap_failure", 1, (0, 0))
    bad = engine.step(scene.tick([scene.xid(64)]))
    scene.swap((0, 0), "GPU-new")
    scene.set("row_remap_failure", 0, *scene.all_gpus())
    scene.values["row_remap_failure"][-1] = 0
    scene.values["row_remap_failure"][0] = float("nan")
    swapped = scene.run(engine, 60)
    assert {i.gpu_uuids for i in bad.incidents} == {(scene.uuid(0, 0),)}
    assert swapped.signals == swapped.incidents == ()
    assert state_of(swapped, "GPU-new") is GpuState.HEALTHY
    again = engine.step(scene.tick([scene.xid(48)]))
    assert [s.gpu for s in again.signals] == ["GPU-new"], "the place is the new board's now"


def test_fc084_the_closed_incident_says_by_which_board_it_was_replaced(engine: Engine) -> None:
    scene = Scene()
    (old,) = engine.step(scene.tick([scene.xid(64)])).incidents
    (closed,) = engine.step(scene.swap((0, 0), "GPU-new").tick()).closed
    assert (closed.id, closed.closed_because, closed.closed) == (old.id, "replaced by GPU-new", scene.now)
    assert (closed.tier, closed.action) == (Tier.FACT, FaultAction.REPLACE)


@pytest.mark.parametrize("signal", ["remapped_rows_correctable", "ecc_sbe_volatile"])
def test_fc084_what_the_old_board_grew_by_is_forgotten(engine: Engine, signal: str) -> None:
    scene = Scene().set(signal, 0)
    scene.run(engine, 60)
    assert scene.grows(signal, 5000, (0, 0)).run(engine, 60).incidents
    detection = scene.swap((0, 0), "GPU-new").run(engine, 60)
    assert detection.signals == detection.incidents == ()
