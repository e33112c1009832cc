"""Jobs that train on many nodes are stopped and started again as a whole, from their last checkpoint, on good nodes."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from remediation.contract import CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_STEP
from tests.endtoend.acts import (
    decision,
    evicted,
    explained,
    incident_of,
    is_out,
    put_on,
    quarantined,
    reason,
    requests,
    running,
    soon,
    start,
    stopped_by,
    ticks,
    waits_for,
)
from tests.endtoend.jobs import (
    DEGRADED,
    SPACE,
    assert_one_writer,
    assert_went_on,
    begun,
    home,
    level,
    policy,
    restarted,
    restarts,
    stages,
    submit,
)
from tests.endtoend.site import USER, Site
from tests.testbed.api import Object
from tests.testbed.manifests import COMPLETES_AFTER, deployment
from tests.testbed.trainer import Trainer
from tests.testbed.training import indexed_job, job_set, mpi_job, pytorch_job

pytestmark = pytest.mark.usefixtures("workload_controllers")
ASKABLE = {"gpuwarden.io/checkpoint-ask": "annotation"}
WHOLE = ["stopping", "starting", "watching", "done"]


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        pytest.param("JobSet", job_set, id="a JobSet of three nodes"),
        pytest.param("PyTorchJob", pytorch_job, id="a PyTorchJob of a master and two workers"),
        pytest.param("MPIJob", mpi_job, id="an MPIJob of a launcher and two workers"),
        pytest.param("Job", indexed_job, id="an indexed Job of three ranks"),
    ],
)
def test_a_lost_gpu_takes_the_job_to_good_nodes_from_its_checkpoint(
    site: Site, kind: str, make: Callable[..., Object]
) -> None:
    submit(site, make("llama", SPACE))
    with Trainer(site.plane, SPACE, kind, "llama") as trainer:
        begun(trainer)
        daemon = start(site, policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        done = restarted(site)
        soon("quarantined", lambda: quarantined(site, sick))
        soon("it is counted", lambda: daemon.metric('gpuwarden_job_restarts_total{ending="done"}') == 1)
        assert daemon.metric('gpuwarden_job_recovery_seconds_count{cause_class="hardware",level="L4"}') == 1
    assert (done["stage"], level(done)) == ("done", 4), done["detail"]
    assert stages(site) == WHOLE
    assert_went_on(trainer, done)
    assert_one_writer(trainer)
    assert sick not in trainer.incarnations[1].nodes
    assert evicted(site) == []
    audit = site.plane.audit_events(site.audit_from, USER)
    assert {one.verb for one in audit if one.resource == f"{kind.lower()}s"} == {"get", "list", "patch", "watch"}
    told = explained(site, sick)
    assert [one["id"] for one in told["restarts"]] == [done["id"]]
    assert {one["action"]: one["ending"] for one in told["attempts"]}["drain"] == "done"


def test_a_degraded_gpu_has_its_checkpoint_asked_for_before_anything_moves(site: Site) -> None:
    submit(site, job_set("llama", SPACE, annotations=ASKABLE, gpus=7))
    with Trainer(site.plane, SPACE, "JobSet", "llama", checkpoint_every=0, answers_after_s=3) as trainer:
        begun(trainer, checkpoint=False)
        start(site, policy=policy())
        sick = home(site, trainer)
        (beside,) = put_on(site, sick, "others", deployment("beside", "others"))
        site.xid(sick, code=DEGRADED)
        soon("it has answered", lambda: trainer.acknowledged)
        trainer.checkpoint_every = 10  # so that it can be seen to go on
        done = restarted(site)
        soon("quarantined", lambda: quarantined(site, sick))
    assert trainer.acknowledged == [done["id"]]
    assert stages(site) == ["asking", *WHOLE]
    assert (done["stage"], done["answered_at"] is not None) == ("done", True), done["detail"]
    assert_went_on(trainer, done)
    assert_one_writer(trainer)
    assert evicted(site) == [beside]
    patches = requests(site, "patch", "jobsets")
    stopped = next(one.at for one in patches if one.body.get("spec", {}).get("suspend"))
    (moved,) = [one.at for one in requests(site, "create", "pods/eviction")]
    assert stopped < moved


@pytest.mark.parametrize(
    ("every", "ends"),
    [
        pytest.param(5, "done", id="it goes on from the last one, which is fresh"),
        pytest.param(0, "failed", id="it is left running where there is none"),
    ],
)
def test_a_job_that_does_not_answer_in_time(site: Site, every: int, ends: str) -> None:
    submit(site, job_set("llama", SPACE, annotations=ASKABLE))
    with Trainer(site.plane, SPACE, "JobSet", "llama", checkpoint_every=every, deaf=True) as trainer:
        begun(trainer, checkpoint=bool(every))
        trainer.hangs = True  # else its next checkpoint would be an answer too
        start(site, policy=policy(restart={"request_deadline": "6s"}))
        sick = home(site, trainer)
        site.xid(sick, code=DEGRADED)
        soon("it has been asked", lambda: stages(site)[:1] == ["asking"])
        soon("it is waited for no longer", lambda: stages(site)[1:2])
        trainer.hangs = False
        over = restarted(site)
        if ends == "done":
            assert_went_on(trainer, over)
        else:
            assert "a person has to decide" in over["detail"]
            assert len(trainer.incarnations) == 1
            assert trainer.is_running
            assert evicted(site) == []
    assert over["stage"] == ends
    assert_one_writer(trainer)


@pytest.mark.parametrize(
    ("annotations", "why"),
    [
        pytest.param({}, "says nothing of checkpoints", id="whose checkpoints nobody knows"),
        pytest.param(
            {
                CHECKPOINT_AT: "2026-11-01T00:00:00Z",
                CHECKPOINT_STEP: "7",
                CHECKPOINT_LOCATION: "emptyDir:scratch",
            },
            "emptyDir:scratch",
            id="whose checkpoint lies on an emptyDir",
        ),
    ],
)
def test_a_person_is_asked_about_a_job(site: Site, annotations: dict[str, str], why: str) -> None:
    submit(site, job_set("llama", SPACE, annotations=annotations))
    with Trainer(site.plane, SPACE, "JobSet", "llama", checkpoint_every=0) as trainer:
        begun(trainer, checkpoint=False)
        start(site, policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        soon("it waits for a person", lambda: waits_for(site, sick, "checkpoint"))
        soon("no new work comes", lambda: is_out(site, sick))
        ticks(site, 3)
        told = decision(site, sick)
        assert stopped_by(told) == {"checkpoint"}
        assert why in reason(told, "checkpoint")
        assert (restarts(site), evicted(site), len(trainer.incarnations)) == ([], [], 1)
        site.command("approve", incident_of(site, sick), "--by", "erin")
        soon("it runs elsewhere", lambda: len(trainer.incarnations) == 2)
        soon("quarantined", lambda: quarantined(site, sick))
    assert_one_writer(trainer)


def test_a_job_of_kueue_is_never_suspended(site: Site) -> None:
    queued = indexed_job("llama", SPACE)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gold"}
    submit(site, queued)
    with Trainer(site.plane, SPACE, "Job", "llama") as trainer:
        begun(trainer)
        start(site, policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        soon("quarantined", lambda: quarantined(site, sick))
    assert restarts(site) == []
    assert requests(site, "patch", "jobs") == []
    assert len(evicted(site)) == 1


def test_two_faults_that_hit_one_job_at_once_restart_it_once(site: Site) -> None:
    submit(site, job_set("llama", SPACE))
    with Trainer(site.plane, SPACE, "JobSet", "llama") as trainer:
        begun(trainer)
        start(site, policy=policy())
        sick, other = home(site, trainer, 0), home(site, trainer, 1)
        site.xid(sick)
        site.xid(other)
        done = restarted(site)
        soon("both are out", lambda: quarantined(site, sick, other))
    assert done["stage"] == "done", done["detail"]
    assert len(trainer.incarnations) == 2
    assert not trainer.incarnations[1].nodes & {sick, other}
    assert_one_writer(trainer)


def test_a_job_that_finishes_meanwhile_is_left_alone(site: Site) -> None:
    submit(site, indexed_job("llama", SPACE, annotations=ASKABLE, pod_annotations={COMPLETES_AFTER: "25"}))
    with Trainer(site.plane, SPACE, "Job", "llama", deaf=True, checkpoint_every=0) as trainer:
        begun(trainer, checkpoint=False)
        start(site, policy=policy(restart={"request_deadline": "100s"}))
        sick = home(site, trainer)
        site.xid(sick, code=DEGRADED)
        over = restarted(site)
        soon("quarantined", lambda: quarantined(site, sick))
    assert (over["stage"], "ended by itself" in over["detail"]) == ("done", True)
    assert over["stopped_at"] is None
    assert evicted(site) == []


def test_a_job_that_begins_at_step_0_though_it_had_a_checkpoint_is_told(site: Site) -> None:
    submit(site, job_set("llama", SPACE))
    with Trainer(site.plane, SPACE, "JobSet", "llama", forgets=True, checkpoint_every=40) as trainer:
        begun(trainer)
        start(site, policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        soon("it runs again", lambda: len(trainer.incarnations) == 2)
        site.admin.patch(
            "JobSet", "llama", {"metadata": {"annotations": _checkpoint(1)}}, SPACE
        )  # its first one, of step 1
        over = restarted(site)
        soon("told", lambda: "GPUWardenJobFailed" in site.events(sick))
    assert over["stage"] == "failed"
    assert "begun anew" in over["detail"]


def test_a_job_that_a_person_starts_again_meanwhile_is_left_to_them(site: Site) -> None:
    """Its pods take their time to end, and somebody thinks better of it."""
    submit(site, job_set("llama", SPACE, grace_s=60, pod_annotations={"testbed.gpuwarden.io/stops-after": "12"}))
    with Trainer(site.plane, SPACE, "JobSet", "llama") as trainer:
        begun(trainer)
        start(site, policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        soon("it is stopped", lambda: site.admin.get("JobSet", "llama", SPACE)["spec"].get("suspend"))
        site.admin.patch("JobSet", "llama", {"spec": {"suspend": False}}, SPACE)
        over = restarted(site)
    assert over["stage"] == "failed"
    assert "somebody has started it again" in over["detail"]
    assert site.admin.get("JobSet", "llama", SPACE)["spec"]["suspend"] is False


def test_what_is_observed_is_decided_alike_and_stops_no_job(site: Site) -> None:
    submit(site, job_set("llama", SPACE))
    with Trainer(site.plane, SPACE, "JobSet", "llama") as trainer:
        begun(trainer)
        start(site, mode="observe", policy=policy())
        sick = home(site, trainer)
        site.xid(sick)
        soon("decided", lambda: decision(site, sick))
        ticks(site, 3)
        told: Any = decision(site, sick)
        assert "checkpoint of step" in reason(told, "checkpoint")
        assert "drain" in told["allowed"]
    assert site.writes() == []
    assert len(trainer.incarnations) == 1
    assert len(running(site, sick, SPACE)) == 1


def _checkpoint(step: int) -> dict[str, str]:
    return {
        CHECKPOINT_AT: datetime.now(UTC).isoformat(),
        CHECKPOINT_STEP: str(step),
        CHECKPOINT_LOCATION: "s3://checkpoints/llama/1",
    }
