"""How each kind of job is stopped and started: one table over all adapters (kinds.py), and what must hold for each."""

from collections import Counter
from datetime import timedelta

import pytest

from remediation.cluster.view import WORKLOADS
from remediation.contract import REQUEST
from remediation.jobs import ADAPTERS, RESTART, RESTARTED, adapter_of, path_of, restarted_whole
from remediation.objects import OwnerRef, WorkloadView
from rules.restore_schema import RestartPolicy
from tests.acting.views import pod
from tests.jobs.kinds import AGAIN, BEFORE, ONE_BY_ONE, ROWS, STOPPED_AT, WHOLE, Row, merged, parsed

EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
EACH_WHOLE = pytest.mark.parametrize("row", WHOLE, ids=lambda row: row.name)
EACH_SUSPENDED = pytest.mark.parametrize(
    "row", [row for row in WHOLE if "Volcano" not in row.describes], ids=lambda row: row.name
)
VOLCANO = next(row for row in WHOLE if "Volcano" in row.describes)
RAY = next(row for row in WHOLE if row.adapter.kind == "RayJob")
TRAIN = next(row for row in WHOLE if row.adapter.kind == "TrainJob")
ID = "gw-0123456789a"
OURS = {"metadata": {"annotations": {RESTART: ID}}}
QUEUED = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gold"}}}
ON = RestartPolicy(enabled=True)


def since(moment, seconds: float):
    return moment + timedelta(seconds=seconds)


# ------------------------------------------------------------------------------------------------------- all kinds


def test_each_adapter_has_a_row_and_each_kind_one_adapter() -> None:
    """Who adds an adapter adds its row to kinds.py."""
    assert Counter(row.adapter for row in ROWS) == Counter(ADAPTERS)
    names = [(adapter.api_version, adapter.kind) for adapter in ADAPTERS]
    assert len(set(names)) == len(names)


@EACH_WHOLE
def test_what_is_restarted_as_a_whole_is_read_by_the_view(row: Row) -> None:
    assert (row.adapter.api_version, row.adapter.kind) in {(version, kind) for version, kind, _ in WORKLOADS}


@EACH
def test_an_adapter_finds_its_own_kind_and_no_other(row: Row) -> None:
    job = row.view()
    assert [adapter for adapter in ADAPTERS if adapter.find(job)] == [row.adapter]
    assert adapter_of(job) is row.adapter


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        pytest.param("batch/v1beta1", "Job", id="another version of a kind"),
        pytest.param("example.com/v1", "JobSet", id="another group's kind of that name"),
        pytest.param("ray.io/v1", "RayCluster", id="a Ray cluster, which its RayJob stops"),
        pytest.param("ray.io/v1", "RayService", id="a Ray service"),
        pytest.param("argoproj.io/v1alpha1", "Workflow", id="a workflow, whose steps cannot go on"),
        pytest.param("kubeflow.org/v1", "TFJob", id="a kind that nobody has added"),
    ],
)
def test_what_has_no_adapter_is_never_restarted(version: str, kind: str) -> None:
    assert adapter_of(WorkloadView(kind, version, "train", "llama", "uid-1", None)) is None


@EACH
def test_a_job_is_described_in_a_line(row: Row) -> None:
    assert row.adapter.describe(row.view()) == row.describes


@EACH
def test_a_checkpoint_is_asked_for_by_an_annotation_of_the_root(row: Row) -> None:
    change = row.adapter.request_checkpoint(row.view(), ID)
    assert (change.body, change.creates) == ({"metadata": {"annotations": {REQUEST: ID}}}, "")
    asked = parsed(merged(row.runs, change.body))
    assert asked.annotation(REQUEST) == ID
    assert asked.suspended == row.view().suspended


@EACH
def test_its_pods_are_found_by_a_label_that_its_controller_gives_them(row: Row) -> None:
    assert row.adapter.pods(row.view()) == row.pods


@pytest.mark.parametrize(
    ("row", "path"),
    [
        pytest.param(WHOLE[0], "/apis/batch/v1/namespaces/train/jobs/llama", id="a Job"),
        pytest.param(VOLCANO, "/apis/batch.volcano.sh/v1alpha1/namespaces/train/jobs/llama", id="a Job of Volcano"),
        pytest.param(TRAIN, "/apis/trainer.kubeflow.org/v1alpha1/namespaces/train/trainjobs/llama", id="a TrainJob"),
    ],
)
def test_where_the_api_server_keeps_it(row: Row, path: str) -> None:
    assert path_of(row.view()) == path


# ------------------------------------------------------------------------------------------- may it be restarted?


@EACH_WHOLE
def test_a_job_that_runs_can_be_restarted_and_so_can_one_that_we_have_stopped(row: Row) -> None:
    assert row.adapter.can_restart(row.view()) == ""
    assert row.adapter.can_restart(row.view(row.foreign, OURS)) == ""
    assert row.adapter.can_restart(row.view(row.suspended(value=True), row.goes, row.gone, OURS)) == ""


@pytest.mark.parametrize(
    ("row", "change", "why"),
    [
        pytest.param(row, change, why, id=f"{row.name} {state}")
        for row in WHOLE
        for state, change, why in (
            ("that somebody else has stopped", row.foreign, "by somebody else"),
            ("that has ended", row.ended, "has ended"),
            ("in a queue of Kueue", QUEUED, "is in Kueue's queue gold"),
            ("of another controller", row.managed, "is managed by kueue.x-k8s.io/multikueue"),
        )
        if change  # Volcano has no managedBy
    ],
)
def test_a_job_is_left_alone(row: Row, change: dict, why: str) -> None:
    said = row.adapter.can_restart(row.view(change))
    assert why in said
    assert "train/llama" in said


@EACH_WHOLE
def test_its_own_controllers_name_in_managed_by_hands_nothing_off(row: Row) -> None:
    own = {
        "batch/v1": "kubernetes.io/job-controller",
        "jobset.x-k8s.io/v1alpha2": "jobset.sigs.k8s.io/jobset-controller",
        "kubeflow.org/v1": "kubeflow.org/training-operator",
        "kubeflow.org/v2beta1": "kubeflow.org/mpi-operator",
        "trainer.kubeflow.org/v1alpha1": "trainer.kubeflow.org/trainjob-controller",
        "ray.io/v1": "ray.io/kuberay-operator",
    }.get(row.adapter.api_version)
    inside = {"managedBy": own}
    for name in reversed(row.suspends[:-1]):
        inside = {name: inside}
    assert row.view(inside).managed_by == ""
    assert row.adapter.can_restart(row.view(inside)) == ""


@pytest.mark.parametrize(
    ("used", "limit", "why"),
    [
        pytest.param(0, 3, "", id="its first restart"),
        pytest.param(1, 3, "", id="the last that it survives"),
        pytest.param(2, 3, "would end for good: it has used 2 of 2 restarts", id="one that takes it to maxRetry"),
        pytest.param(0, 0, "would end for good", id="a job that allows none"),
        pytest.param(5, 100, "", id="a generous one"),
    ],
)
def test_a_volcano_job_pays_for_each_start_with_a_retry(used: int, limit: int, why: str) -> None:
    job = VOLCANO.view({"spec": {"maxRetry": limit}, "status": {"retryCount": used}})
    assert why in VOLCANO.adapter.can_restart(job)
    assert bool(why) == bool(VOLCANO.adapter.can_restart(job))


@EACH_SUSPENDED
def test_counters_of_restarts_that_are_used_up_do_not_stop_one_by_suspension(row: Row) -> None:
    used_up = {"spec": {"backoffLimit": 0, "runPolicy": {"backoffLimit": 0}}, "status": {"failed": 6, "restarts": 9}}
    assert row.adapter.can_restart(row.view(used_up)) == ""


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"shutdownAfterJobFinishes": None}}, id="that leaves its cluster when it ends"),
        pytest.param({"spec": {"shutdownAfterJobFinishes": False}}, id="that says so"),
        pytest.param({"spec": {"clusterSelector": {"ray.io/cluster": "shared"}}}, id="on a cluster of others"),
    ],
)
def test_kuberay_would_refuse_to_suspend_a_ray_job(change: dict) -> None:
    job = RAY.view(change)
    assert "no cluster that KubeRay shuts down for it" in RAY.adapter.can_restart(job)
    assert RAY.adapter.pods(job) == ""


@pytest.mark.parametrize(
    ("row", "change", "policy", "whole"),
    [
        pytest.param(WHOLE[0], {}, ON, True, id="a job"),
        pytest.param(WHOLE[0], {}, RestartPolicy(), False, id="not where the policy is silent, which is the default"),
        pytest.param(WHOLE[0], QUEUED, ON, False, id="not one in a queue of Kueue"),
        pytest.param(WHOLE[0], WHOLE[0].ended, ON, False, id="not one that has ended"),
        pytest.param(ONE_BY_ONE[1], {}, ON, False, id="not a StatefulSet"),
    ],
)
def test_which_pods_go_with_their_job(row: Row, change: dict, policy: RestartPolicy, whole: bool) -> None:
    job = row.view(change)
    owner = OwnerRef(job.api_version, job.kind, job.name, job.uid)
    told = restarted_whole(pod(owner=owner), {job.uid: job}, policy)
    assert told == ((job, row.adapter) if whole else None)


# ---------------------------------------------------------------------------------------------- stopped and started


@EACH_SUSPENDED
def test_a_suspension_says_whose_it_is_in_the_same_patch(row: Row) -> None:
    change = row.adapter.stop(row.view(), ID)
    assert change is not None
    assert change.creates == ""
    assert change.body == row.suspended(value=True) | OURS
    stopped = parsed(merged(row.runs, change.body))
    assert (stopped.suspended, stopped.annotation(RESTART)) == (True, ID)


@EACH_SUSPENDED
def test_a_start_takes_the_mark_off_and_leaves_another_in_the_same_patch(row: Row) -> None:
    stopped = merged(merged(row.runs, row.suspended(value=True)), OURS)
    change = row.adapter.restart(parsed(stopped), ID)
    assert change.creates == ""
    assert change.body == row.suspended(value=False) | {"metadata": {"annotations": {RESTART: None, RESTARTED: ID}}}
    started = parsed(merged(stopped, change.body))
    assert (started.suspended, started.annotation(RESTART), started.annotation(RESTARTED)) == (False, "", ID)


@EACH_WHOLE
def test_it_has_stopped_once_its_controller_counts_nothing_of_it(row: Row) -> None:
    ordered = (row.suspended(value=True), OURS)
    states = [(), ordered, (*ordered, row.goes), (*ordered, row.goes, row.gone)]
    assert [row.adapter.stopped(row.view(*state)) for state in states] == [False, False, False, True]


@EACH_WHOLE
def test_it_runs_again_once_its_controller_has_said_so_since_the_stop(row: Row) -> None:
    ordered = (row.suspended(value=True), OURS)
    gone = (*ordered, row.goes, row.gone)
    started = (*gone, row.suspended(value=False))
    states = [(), ordered, (*ordered, row.goes), gone, (*started, row.back)]
    assert [row.adapter.resumed(row.view(*state), STOPPED_AT) for state in states] == [False] * 4 + [True]
    if row is not VOLCANO:  # Volcano has no field of ours; its phase is all there is
        assert not row.adapter.resumed(row.view(*started), STOPPED_AT)


@EACH_WHOLE
@pytest.mark.parametrize(
    ("moment", "resumed"),
    [
        pytest.param(since(AGAIN, 0), True, id="in the same second"),
        pytest.param(since(AGAIN, 0.9), True, id="later in that second: the API keeps whole ones"),
        pytest.param(since(AGAIN, 1), False, id="in the next"),
        pytest.param(since(BEFORE, 0), True, id="long before"),
    ],
)
def test_a_controllers_word_counts_by_its_time(row: Row, moment, resumed: bool) -> None:
    assert row.adapter.resumed(row.view(row.goes, row.gone, row.back), moment) is resumed


def test_a_train_job_runs_while_its_initializers_have_ended_and_not_while_they_run() -> None:
    counts = {"suspended": 0, "failed": 0}
    fetches = [
        {"name": "dataset-initializer", "active": 1, "ready": 1, "succeeded": 0} | counts,
        {"name": "node", "active": 0, "ready": 0, "succeeded": 0} | counts,
    ]
    conditions = [{"type": "Suspended", "status": "False", "lastTransitionTime": "2026-05-04T12:01:00Z"}]
    job = TRAIN.view({"status": {"jobsStatus": fetches, "conditions": conditions}})
    assert not TRAIN.adapter.resumed(job, STOPPED_AT)
    assert TRAIN.adapter.resumed(TRAIN.view(TRAIN.back), STOPPED_AT)


def test_a_new_ray_cluster_has_another_name() -> None:
    gone = RAY.view(RAY.suspended(value=True), RAY.goes, RAY.gone)
    assert RAY.adapter.pods(gone) == ""
    assert RAY.adapter.pods(RAY.view(RAY.goes, RAY.gone, RAY.back)) == "ray.io/cluster=llama-9b4fq"


# ---------------------------------------------------------------------------------------------------------- Volcano


@pytest.mark.parametrize(("order", "action"), [("stop", "AbortJob"), ("restart", "ResumeJob")])
def test_volcano_is_ordered_by_a_command_that_can_exist_once(order: str, action: str) -> None:
    change = getattr(VOLCANO.adapter, order)(VOLCANO.view(), ID)
    assert change.creates == "/apis/bus.volcano.sh/v1alpha1/namespaces/train/commands"
    body = change.body
    assert (body["kind"], body["action"]) == ("Command", action)
    assert body["metadata"] == {"name": f"{ID}-{action.lower()}", "namespace": "train"}
    target = {key: body["target"][key] for key in ("apiVersion", "kind", "name", "uid")}
    assert target == {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "llama", "uid": "uid-1"}


@pytest.mark.parametrize(
    ("phase", "ended", "stopped"),
    [
        ("Pending", False, False),
        ("Running", False, False),
        ("Restarting", False, False),
        ("Aborting", False, True),
        ("Aborted", False, True),
        ("Completing", True, False),
        ("Completed", True, False),
        ("Terminating", True, False),
        ("Terminated", True, False),
        ("Failed", True, False),
        ("", False, False),
    ],
)
def test_each_phase_of_volcano_is_known(phase: str, ended: bool, stopped: bool) -> None:
    job = VOLCANO.view({"status": {"state": {"phase": phase}}})
    assert (job.finished, job.suspended) == (ended, stopped)


# -------------------------------------------------------------------------------------------- what is moved one by one


@pytest.mark.parametrize("row", ONE_BY_ONE, ids=lambda row: row.name)
def test_what_is_moved_by_eviction_is_never_stopped(row: Row) -> None:
    adapter, job = row.adapter, row.view()
    assert "is moved by eviction" in adapter.can_restart(job)
    assert adapter.stop(job, ID) is None
    assert not adapter.stopped(job)
    with pytest.raises(NotImplementedError, match="is not restarted as a whole"):
        adapter.restart(job, ID)
