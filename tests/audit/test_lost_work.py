"""The lost work of an audit: whose it was, as far as metrics tell it, and what it comes to; no guess is a number."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.audit.gangs import Gangs, Hit
from daemon.audit.lost import lost_together, lost_work, stopping
from detectors.findings import Incident
from remediation.decide import Decision, Ruling
from remediation.plan import Plan, Step
from rules.vocabulary import Action, Tier
from tests.decide.incidents import AT, incident
from tests.detect.scene import Place, Scene

LOST = {
    "stops_work", "jobs", "gang_gpus", "since_checkpoint_seconds", "detection_seconds", "restart_seconds",
    "detection_gpu_hours", "gpu_hours_per_hour_of_interval", "gpu_hours",
}  # fmt: skip
TOGETHER = {
    "incidents", "unknown", "gang_gpus", "detection_gpu_hours", "gpu_hours_per_hour_of_interval", "gpu_hours",
}  # fmt: skip

# --------------------------------------------------------------------------------------------------- in a whole audit


def by_cause(report: dict[str, Any], cause: str) -> dict[str, Any]:
    (one,) = [one for one in report["incidents"] if one["cause_class"] == cause]
    found: dict[str, Any] = one["lost_work"]
    return found


@pytest.mark.usefixtures("loaded")
def test_the_report_says_of_each_incident_whose_work_was_lost(report: dict[str, Any]) -> None:
    assert all(set(one["lost_work"]) == LOST for one in report["incidents"])
    lost = by_cause(report, "hardware")
    assert (lost["stops_work"], lost["jobs"], lost["gang_gpus"]) == (True, ["training/llama"], 24)
    assert lost["detection_gpu_hours"] == pytest.approx(24 * lost["detection_seconds"] / 3600)
    idle = by_cause(report, "memory")
    assert (idle["stops_work"], idle["gang_gpus"]) == (True, 0), "the job had crashed, and had not come back"
    program = by_cause(report, "application")
    assert (program["stops_work"], program["gang_gpus"]) == (False, 8), "the job runs on one node by then"
    unknown = [one["lost_work"]["gang_gpus"] for one in report["incidents"] if one["node"] == "gpu004"]
    assert unknown == [None], "no metric of that node ever named a pod"


@pytest.mark.usefixtures("loaded")
def test_what_an_audit_cannot_know_is_null(report: dict[str, Any]) -> None:
    every = [one["lost_work"] for one in report["incidents"]]
    for name in ("since_checkpoint_seconds", "restart_seconds", "gpu_hours"):
        assert {one[name] for one in every} == {None}


@pytest.mark.usefixtures("loaded")
def test_the_summary_adds_up_the_incidents_that_stop_jobs(report: dict[str, Any]) -> None:
    told = report["summary"]["lost_work"]
    assert set(told) == TOGETHER
    assert (told["incidents"], told["unknown"], told["gang_gpus"], told["gpu_hours"]) == (2, 0, 24, None)
    assert told["gpu_hours_per_hour_of_interval"] == 24


# -------------------------------------------------------------------------------------------------------------- gangs

SICK: Place = (0, 3)


def about(scene: Scene, *places: Place, first_signal_at: datetime | None = None, **fields: Any) -> Incident:
    """An incident of these GPUs that opens now."""
    told = {
        "nodes": tuple(sorted({scene.node(node) for node, _ in places})), "opened": scene.now,
        "gpu_uuids": tuple(scene.uuid(*place) for place in places),
        "first_signal_at": first_signal_at or scene.now,
    } | fields  # fmt: skip
    return incident("inc-1", **told)


def fleet() -> Scene:
    """Three nodes of four GPUs: llama on two of them, bert on two GPUs of the third."""
    scene = Scene(nodes=3, gpus=4)
    return scene.run_job("llama", *scene.all_gpus(0), *scene.all_gpus(1)).run_job("bert", (2, 0), (2, 1))


@pytest.mark.parametrize(
    ("places", "fields", "gpus", "jobs"),
    [
        pytest.param([SICK], {}, 8, ("team/llama",), id="a GPU of a job on two nodes"),
        pytest.param([SICK, (2, 0)], {}, 10, ("team/bert", "team/llama"), id="GPUs of two jobs"),
        pytest.param([(2, 2)], {}, 0, (), id="an idle GPU of a node whose metrics name pods"),
        pytest.param([(2, 2)], {"gpu_uuids": ()}, 2, ("team/bert",), id="a whole node"),
        pytest.param([SICK], {"gpu_uuids": ("GPU-none",)}, 0, (), id="a GPU that is not known"),
    ],
)
def test_a_gang_is_every_gpu_of_the_jobs_that_were_hit(
    places: list[Place], fields: dict[str, Any], gpus: int, jobs: tuple[str, ...]
) -> None:
    scene, gangs = fleet(), Gangs()
    snapshot = scene.tick()
    one = about(scene, *places, **fields)
    gangs.take(snapshot, [one])
    assert gangs.hit(one) == Hit(gpus, jobs)


def test_where_no_metric_names_a_pod_nobody_knows() -> None:
    scene, gangs = Scene(nodes=1), Gangs()
    one = about(scene, SICK)
    gangs.take(scene.tick(), [one])
    assert gangs.hit(one) == Hit(None)
    assert gangs.hit(replace(one, id="inc-2")) == Hit(None), "an incident that was never taken"


def test_a_snapshot_that_knows_no_works_at_all() -> None:
    scene, gangs = fleet(), Gangs()
    one = about(scene, SICK)
    gangs.take(replace(scene.tick(), workloads=()), [one])
    assert gangs.hit(one) == Hit(None)


@pytest.mark.parametrize(
    ("ago_s", "silent", "gpus"),
    [
        pytest.param(30, False, 8, id="a tick before"),
        pytest.param(60, False, 8, id="two ticks before"),
        pytest.param(300, False, 0, id="long before: it had ended"),
        pytest.param(300, True, 1, id="long before, but the GPU has said nothing since"),
        pytest.param(2 * 3600, True, 0, id="and not for hours"),
    ],
)
def test_a_job_that_is_gone_when_the_incident_opens_counts_where_the_fault_could_have_killed_it(
    ago_s: float, silent: bool, gpus: int
) -> None:
    scene, gangs = fleet(), Gangs()
    gangs.take(scene.tick(), [])
    scene.run_job("", *scene.all_gpus(0), *scene.all_gpus(1))
    if silent:
        scene.blind(SICK)
    for _ in range(round(ago_s / scene.step_s)):
        snapshot = scene.tick()
        gangs.take(snapshot, [])
    one = about(scene, SICK)
    gangs.take(snapshot, [one])
    assert gangs.hit(one).gpus == gpus


def test_the_first_signal_counts_and_not_the_opening() -> None:
    scene, gangs = fleet(), Gangs()
    gangs.take(scene.tick(), [])
    began = scene.now
    scene.run_job("", *scene.all_gpus(0), *scene.all_gpus(1))
    for _ in range(20):
        gangs.take(scene.tick(), [])
    one = about(scene, SICK, first_signal_at=began)
    gangs.take(scene.tick(), [one])
    assert gangs.hit(one) == Hit(8, ("team/llama",))


def test_an_incident_that_grows_adds_the_jobs_of_what_it_names_later() -> None:
    scene, gangs = fleet(), Gangs()
    one = about(scene, SICK)
    gangs.take(scene.tick(), [one])
    scene.run_job("later", *scene.all_gpus(0), *scene.all_gpus(1))
    gangs.take(scene.tick(), [one])
    assert gangs.hit(one) == Hit(8, ("team/llama",)), "who comes after is not hit"
    wider = replace(one, nodes=("n000", "n002"), gpu_uuids=(*one.gpu_uuids, scene.uuid(2, 1)))
    gangs.take(scene.tick(), [wider])
    assert gangs.hit(wider) == Hit(10, ("team/bert", "team/llama"))


# ------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("tier", "gpus", "hours"),
    [
        pytest.param(Tier.FACT, 24, 2.0, id="of a fact the detection is lost"),
        pytest.param(Tier.FACT, 0, 0.0, id="of an idle GPU nothing is"),
        pytest.param(Tier.FACT, None, None, id="of nobody knows whose job, nobody knows what"),
        pytest.param(Tier.TREND, 24, None, id="with a trend the job computes on"),
        pytest.param(Tier.SUSPICION, 24, None, id="with a suspicion, too"),
    ],
)
def test_what_an_incident_comes_to(tier: Tier, gpus: int | None, hours: float | None) -> None:
    one = incident(first_signal_at=AT - timedelta(minutes=5))
    found = lost_work(one, tier, Hit(gpus), stops_work=True)
    assert (found["detection_seconds"], found["detection_gpu_hours"]) == (300.0, hours)
    assert (found["gang_gpus"], found["gpu_hours_per_hour_of_interval"], found["gpu_hours"]) == (gpus, gpus, None)


HITS = st.lists(st.tuples(st.none() | st.integers(0, 4096), st.booleans(), st.sampled_from(Tier), st.integers(-9, 9)))


@given(HITS)
def test_sums_are_never_below_zero_and_hold_no_unknown(given: list[tuple[int | None, bool, Tier, int]]) -> None:
    each = [
        lost_work(incident(first_signal_at=AT - timedelta(hours=hours)), tier, Hit(gpus), stops_work=stops)
        for gpus, stops, tier, hours in given
    ]
    told = lost_together(each)
    known = [gpus for gpus, stops, _, _ in given if stops and gpus is not None]
    assert told["incidents"] == sum(stops for _, stops, _, _ in given)
    assert told["unknown"] == told["incidents"] - len(known)
    assert told["gang_gpus"] == (sum(known) if known or not told["incidents"] else None)
    for one in (*each, told):
        assert all(value is None or value >= 0 for value in one.values() if not isinstance(value, list))
        assert one["gpu_hours"] is None
    if not any(one["detection_gpu_hours"] is not None and one["stops_work"] for one in each) and told["incidents"]:
        assert told["detection_gpu_hours"] is None


def decided(*steps: Step) -> Decision:
    plan = Plan("inc-1", "n000", "", steps[-1].action, steps, (), (), "")
    return Decision(AT, plan, "observe", Ruling.WAIT, ())


@pytest.mark.parametrize(
    ("steps", "stops"),
    [
        pytest.param([Step(Action.WATCH, "")], False, id="watched"),
        pytest.param([Step(Action.NO_NEW_WORK, ""), Step(Action.CORDON, "")], False, id="kept free of new work"),
        pytest.param([Step(Action.CORDON, ""), Step(Action.DRAIN, "")], True, id="drained, though it has to wait"),
        pytest.param([Step(Action.RESTART_JOB, "")], True, id="restarted"),
        pytest.param([Step(Action.RESET_GPU, "", when_idle=True)], False, id="reset once it is idle"),
        pytest.param([Step(Action.REBOOT_NODE, "")], True, id="rebooted"),
    ],
)
def test_which_plans_stop_jobs(steps: list[Step], stops: bool) -> None:
    assert stopping([decided(*steps)]) == ({"inc-1"} if stops else set())
