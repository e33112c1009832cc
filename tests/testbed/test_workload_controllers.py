"""Training jobs as their real controllers make, suspend, resume and fail them, and controllers that leave no trace.

The behaviour that stands here is JobSet's 0.10 and the Kubeflow training operator's 1.8. A job that is suspended says
so at once, while its pods still stop: whoever resumes it then gets two writers of one checkpoint, or a job that has
failed for good.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.api import Forbidden, Object
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import STOPS_AFTER
from tests.testbed.test_control_plane import lives
from tests.testbed.trainer import LABELS, Trainer
from tests.testbed.training import indexed_job, job_set, mpi_job, pytorch_job
from tests.testbed.waiting import until
from tests.testbed.workload_controllers import WorkloadControllers

NAMESPACE = "train"
NAME = "llama"
KUBEFLOW = "training.kubeflow.org"

pytestmark = pytest.mark.usefixtures("workload_controllers")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of training job: how to make one of three pods, where its switch is, what is between it and its pods."""

    name: str
    make: Callable[..., Object]
    switch: tuple[str, ...]
    chain: tuple[str, ...] = ()

    def suspend(self, cluster: ControlPlane, suspended: bool) -> None:
        body: Any = suspended
        for field in reversed(self.switch):
            body = {field: body}
        cluster.admin.patch(self.name, NAME, body, NAMESPACE)

    def pods(self, cluster: ControlPlane) -> list[Object]:
        return cluster.admin.list("Pod", NAMESPACE, labels=f"{LABELS[self.name]}={NAME}")

    def run(self, cluster: ControlPlane, **settings: Any) -> list[Object]:
        """Create it; its three pods once they run."""
        cluster.namespace(NAMESPACE)
        cluster.admin.create(self.make(NAME, NAMESPACE, **settings))
        return self.running(cluster)

    def running(self, cluster: ControlPlane, but: frozenset[str] = frozenset()) -> list[Object]:
        """Its three pods once they run, none of them among these UIDs."""

        def found() -> list[Object] | None:
            pods = self.pods(cluster)
            states = [(pod["status"].get("phase"), "deletionTimestamp" in pod["metadata"]) for pod in pods]
            return pods if states == [("Running", False)] * 3 and not uids(pods) & but else None

        return until(f"three pods of the {self.name}", found, 60)

    def conditions(self, cluster: ControlPlane) -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        status = cluster.admin.get(self.name, NAME, NAMESPACE).get("status", {})
        return {c["type"]: (c["status"], c.get("reason", "")) for c in status.get("conditions", ())}

    def becomes(self, cluster: ControlPlane, condition: str, reason: str, status: str = "True") -> None:
        until(f"{self.name} {condition}", lambda: self.conditions(cluster).get(condition) == (status, reason), 60)


JOB = Kind("Job", indexed_job, ("spec", "suspend"))
JOB_SET = Kind("JobSet", job_set, ("spec", "suspend"), ("Job",))
PYTORCH_JOB = Kind("PyTorchJob", pytorch_job, ("spec", "runPolicy", "suspend"))
MPI_JOB = Kind("MPIJob", mpi_job, ("spec", "runPolicy", "suspend"))
each_kind = pytest.mark.parametrize("kind", [JOB, JOB_SET, PYTORCH_JOB, MPI_JOB], ids=lambda kind: kind.name)


def uids(pods: list[Object]) -> frozenset[str]:
    return frozenset(pod["metadata"]["uid"] for pod in pods)


def evict(cluster: ControlPlane, pod: Object) -> None:
    cluster.admin.evict(pod["metadata"]["name"], NAMESPACE)


def hold(cluster: ControlPlane, *pods: Object) -> None:
    """Keep pods after their end until the test's, for a controller that would else see it or miss it by chance."""
    for pod in pods:
        body = {"metadata": {"finalizers": ["testbed.gpuwarden.io/look"]}}
        cluster.admin.patch("Pod", pod["metadata"]["name"], body, NAMESPACE)


# ------------------------------------------------------------------------------------------------------------ what runs


@each_kind
def test_all_pods_run_on_whole_nodes_and_belong_to_the_root(cluster: ControlPlane, kind: Kind):
    nodes = cluster.add_nodes(3)
    pods = kind.run(cluster, annotations={"gpuwarden.io/checkpoint-at": "2026-01-01T00:00:00Z"})
    whole = [pod["spec"]["nodeName"] for pod in pods if pod["spec"]["containers"][0]["resources"]]
    assert sorted(whole) == (nodes if kind is not MPI_JOB else sorted({*whole})), "one pod a node"
    for pod in pods:
        assert owners(cluster, pod) == [*kind.chain, kind.name]
    root = cluster.admin.get(kind.name, NAME, NAMESPACE)
    assert root["metadata"]["annotations"]["gpuwarden.io/checkpoint-at"] == "2026-01-01T00:00:00Z"


def owners(cluster: ControlPlane, made: Object) -> list[str]:
    """The kinds of the controllers above an object, the nearest first."""
    for owner in made["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            above = cluster.admin.get(owner["kind"], owner["name"], NAMESPACE)
            assert above["metadata"]["uid"] == owner["uid"]
            return [owner["kind"], *owners(cluster, above)]
    return []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JOB_SET, {"jobset.sigs.k8s.io/restart-attempt": {"0"}, "batch.kubernetes.io/job-name": {"llama-workers-0"}}),
        (JOB, {"batch.kubernetes.io/job-completion-index": {"0", "1", "2"}}),
        (PYTORCH_JOB, {f"{KUBEFLOW}/replica-type": {"master", "worker"}, f"{KUBEFLOW}/replica-index": {"0", "1"}}),
        (MPI_JOB, {f"{KUBEFLOW}/replica-type": {"launcher", "worker"}, f"{KUBEFLOW}/job-role": {"master"}}),
    ],
    ids=["JobSet", "Job", "PyTorchJob", "MPIJob"],
)
def test_pods_carry_the_labels_of_their_controller(cluster: ControlPlane, kind: Kind, expected: dict[str, set[str]]):
    cluster.add_nodes(3)
    labels = [pod["metadata"]["labels"] for pod in kind.run(cluster)]
    assert {key: {each[key] for each in labels if key in each} for key in expected} == expected


# --------------------------------------------------------------------------------------------------- suspend and resume

SUSPENDED = {"Job": "JobSuspended", "JobSet": "SuspendedJobs"}
RESUMED = {"Job": "JobResumed", "JobSet": "ResumeJobs"}


@each_kind
def test_a_suspended_job_loses_its_pods_and_resumes_from_its_checkpoint_in_new_ones(cluster: ControlPlane, kind: Kind):
    cluster.add_nodes(4)
    before = uids(kind.run(cluster, pod_annotations={STOPS_AFTER: "1"}))
    with Trainer(cluster, NAMESPACE, kind.name, NAME, checkpoint_every=5) as trainer:
        until("a step after a checkpoint", lambda: (trainer.checkpoint_step or trainer.step) < trainer.step)
        kind.suspend(cluster, True)
        kind.becomes(cluster, "Suspended", SUSPENDED.get(kind.name, f"{kind.name}Suspended"))
        until("no pods", lambda: not kind.pods(cluster) and not trainer.is_running)
        saved = trainer.checkpoint_step
        kind.suspend(cluster, False)
        kind.becomes(cluster, "Suspended", RESUMED.get(kind.name, f"{kind.name}Resumed"), "False")
        kind.running(cluster, but=before)
        until("a step beyond the checkpoint", lambda: trainer.step > (saved or 0) and trainer.is_running)
    first, second = trainer.incarnations
    assert (first.pods, first.started_at_step) == (before, 0)
    assert second.started_at_step == saved
    assert not first.pods & second.pods
    assert trainer.overlaps == []
    status = cluster.admin.get(kind.name, NAME, NAMESPACE)["status"]
    assert (status.get("restarts", 0), status.get("failed", 0)) == (0, 0), "it costs no restart"


@pytest.mark.parametrize("kind", [PYTORCH_JOB, MPI_JOB], ids=lambda kind: kind.name)
def test_kubeflow_says_running_until_suspended_and_again_when_resumed(cluster: ControlPlane, kind: Kind):
    cluster.add_nodes(3)
    kind.run(cluster, pod_annotations={STOPS_AFTER: "2"})
    kind.becomes(cluster, "Running", f"{kind.name}Running")
    started = cluster.admin.get(kind.name, NAME, NAMESPACE)["status"]["startTime"]
    kind.suspend(cluster, True)
    kind.becomes(cluster, "Running", f"{kind.name}Suspended", "False")
    until("no pods", lambda: not kind.pods(cluster))
    replicas = cluster.admin.get(kind.name, NAME, NAMESPACE)["status"]["replicaStatuses"]
    assert [each.get("active", 0) for each in replicas.values()] == [0, 0]
    kind.suspend(cluster, False)
    kind.becomes(cluster, "Running", f"{kind.name}Running")
    assert cluster.admin.get(kind.name, NAME, NAMESPACE)["status"]["startTime"] > started


@pytest.mark.parametrize("kind", [JOB, JOB_SET], ids=lambda kind: kind.name)
def test_a_job_that_is_resumed_while_its_pods_still_stop_has_two_writers(cluster: ControlPlane, kind: Kind):
    cluster.add_nodes(6)
    before = uids(kind.run(cluster, pod_annotations={STOPS_AFTER: "20"}))
    with Trainer(cluster, NAMESPACE, kind.name, NAME) as trainer:
        until("a step", lambda: trainer.step)
        kind.suspend(cluster, True)
        kind.becomes(cluster, "Suspended", SUSPENDED[kind.name])
        assert uids(kind.pods(cluster)) == before, "it is called suspended, and all its pods are still there"
        kind.suspend(cluster, False)
        overlap = until("two writers", lambda: trainer.overlaps)[-1]
    assert overlap.stopping == before
    assert overlap.running > before


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        pytest.param(PYTORCH_JOB, "PyTorchJobFailed", id="PyTorchJob"),
        pytest.param(MPI_JOB, "MPIJobMPIJobFailed", id="MPIJob"),
    ],
)
def test_a_kubeflow_job_that_is_resumed_while_its_pods_still_stop_has_failed_for_good(
    cluster: ControlPlane, kind: Kind, reason: str
):
    cluster.add_nodes(6)
    pods = kind.run(cluster, restart_policy="Never", pod_annotations={STOPS_AFTER: "3"})
    before = uids(pods)
    hold(cluster, *pods)
    kind.suspend(cluster, True)
    kind.becomes(cluster, "Suspended", f"{kind.name}Suspended")
    assert uids(kind.pods(cluster)) == before, "it is called suspended, and all its pods are still there"
    kind.suspend(cluster, False)
    kind.becomes(cluster, "Failed", reason)


# ------------------------------------------------------------------------------------------------ what an eviction does


def test_an_eviction_restarts_a_job_set_that_may_and_is_counted(cluster: ControlPlane):
    cluster.add_nodes(4)
    pods = JOB_SET.run(cluster, max_restarts=1)
    evict(cluster, pods[0])
    after = JOB_SET.running(cluster, but=uids(pods))
    assert {pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for pod in after} == {"1"}
    status = cluster.admin.get("JobSet", NAME, NAMESPACE)["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    evict(cluster, after[0])
    JOB_SET.becomes(cluster, "Failed", "ReachedMaxRestarts")


def test_an_eviction_fails_a_job_set_without_a_failure_policy(cluster: ControlPlane):
    cluster.add_nodes(4)
    evict(cluster, JOB_SET.run(cluster)[0])
    JOB_SET.becomes(cluster, "Failed", "FailedJobs")
    assert cluster.admin.get("JobSet", NAME, NAMESPACE)["status"]["terminalState"] == "Failed"


def test_an_eviction_replaces_one_pod_of_a_pytorch_job_and_leaves_its_peers(cluster: ControlPlane):
    cluster.add_nodes(4)
    pods = PYTORCH_JOB.run(cluster)
    with Trainer(cluster, NAMESPACE, "PyTorchJob", NAME) as trainer:
        until("a step", lambda: trainer.step)
        evict(cluster, pods[-1])
        after = PYTORCH_JOB.running(cluster, but=uids(pods[-1:]))
        until("another incarnation", lambda: len(trainer.incarnations) == 2)
    assert uids(after) & uids(pods) == uids(pods[:-1])
    assert trainer.overlaps == [], "the peers were there before"
    assert "Failed" not in PYTORCH_JOB.conditions(cluster)


def test_an_eviction_of_one_worker_fails_an_mpi_job(cluster: ControlPlane):
    cluster.add_nodes(4)
    worker = next(pod for pod in MPI_JOB.run(cluster) if pod["metadata"]["name"] == f"{NAME}-worker-0")
    hold(cluster, worker)
    evict(cluster, worker)
    MPI_JOB.becomes(cluster, "Failed", "MPIJobMPIJobFailed")


# ------------------------------------------------------------------------------------------------------------- webhooks


def test_the_webhook_of_jobset_sets_what_a_manifest_leaves_out(cluster: ControlPlane):
    cluster.namespace(NAMESPACE)
    made = cluster.admin.create(job_set(NAME, NAMESPACE, max_restarts=3))
    assert made["spec"]["successPolicy"]["operator"] == "All"
    assert made["spec"]["startupPolicy"] == {"startupPolicyOrder": "AnyOrder"}
    assert made["spec"]["network"]["enableDNSHostnames"] is True
    assert made["spec"]["failurePolicy"] == {"maxRestarts": 3, "restartStrategy": "Recreate"}


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        pytest.param({"nodeSelector": {"pool": "spare"}}, True, id="a node selector may change"),
        pytest.param({"affinity": {"nodeAffinity": {}}}, False, id="an affinity may not"),
    ],
)
def test_a_suspended_job_set_may_be_sent_elsewhere_by_selector_only(
    cluster: ControlPlane, field: dict[str, Any], allowed: bool
):
    cluster.add_nodes(3)
    JOB_SET.run(cluster)
    JOB_SET.suspend(cluster, True)
    until("no pods", lambda: not JOB_SET.pods(cluster))
    path = "/spec/replicatedJobs/0/template/spec/template/spec"
    body = [{"op": "add", "path": f"{path}/{name}", "value": value} for name, value in field.items()]

    def change() -> Object:
        return cluster.admin.patch("JobSet", NAME, body, NAMESPACE, patch_type="json", dry_run=True)

    if allowed:
        assert change()["metadata"]["name"] == NAME
    else:
        with pytest.raises(Forbidden, match="field is immutable"):
            change()


def test_the_webhook_of_the_training_operator_refuses_a_wrong_manifest(cluster: ControlPlane):
    cluster.namespace(NAMESPACE)
    with pytest.raises(Forbidden, match="at least one container with name pytorch"):
        cluster.admin.create(pytorch_job(NAME, NAMESPACE, container="main"))


def test_the_audit_log_tells_the_controllers_from_everybody_else(cluster: ControlPlane):
    cluster.add_nodes(3)
    before = cluster.audit_mark()
    JOB_SET.run(cluster)
    made = [(e.verb, e.resource) for e in cluster.audit_events(before, "testbed:jobset") if e.is_write]
    assert ("create", "jobs") in made
    assert not [e for e in cluster.audit_events(before, "testbed:admin") if e.is_write and e.resource == "jobs"]


# ------------------------------------------------------------------------------------------------------- life and death


@each_kind
def test_cleaning_leaves_the_kinds_and_no_job(
    cluster: ControlPlane, workload_controllers: WorkloadControllers, kind: Kind
):
    cluster.add_nodes(3)
    kind.run(cluster)
    held = {"metadata": {"finalizers": ["testbed.gpuwarden.io/never"]}}
    cluster.admin.patch(kind.name, NAME, held, NAMESPACE)
    workload_controllers.jobset.stop()
    workload_controllers.training_operator.pause()
    cluster.clean()
    assert [cluster.admin.list(each, NAMESPACE) for each in (*LABELS, "Pod", "Service", "ConfigMap")] == [[]] * 7
    assert all(server.running for server in workload_controllers.servers)
    cluster.add_nodes(3)
    kind.run(cluster)


def test_controllers_work_on_after_a_restart_of_the_api_server(
    cluster: ControlPlane, workload_controllers: WorkloadControllers
):
    cluster.add_nodes(3)
    pods = JOB_SET.run(cluster, max_restarts=3)
    cluster.restart_api_server()
    evict(cluster, pods[0])
    JOB_SET.running(cluster, but=uids(pods))
    for server in workload_controllers.servers:
        server.check()
    cluster.clean()
    cluster.add_nodes(3)
    PYTORCH_JOB.run(cluster)


def test_closed_controllers_leave_a_cluster_that_never_heard_of_them(
    cluster: ControlPlane, workload_controllers: WorkloadControllers
):
    cluster.add_nodes(3)
    JOB_SET.run(cluster)
    workload_controllers.close()
    try:
        definitions = ("CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        assert {kind: cluster.admin.list(kind) for kind in definitions} == {kind: [] for kind in definitions}
        assert {"JobSet", "MPIJob", "PyTorchJob"}.isdisjoint(kind.name for kind in cluster.admin.kinds())
        assert len(cluster.servers) == 5
        cluster.clean()
    finally:
        workload_controllers.start()
    cluster.add_nodes(3)
    JOB_SET.run(cluster)


STARTS_AND_HANGS = """
import signal
from tests.testbed.build import binaries, controllers
from tests.testbed.control_plane import ControlPlane
from tests.testbed.workload_controllers import WorkloadControllers
with ControlPlane(binaries()) as plane, WorkloadControllers(plane, controllers()) as guests:
    print(plane.folder, *(server.pid for server in plane.servers), flush=True)
    signal.pause()
"""


def test_no_controller_outlives_a_run_that_is_killed(root: Path):
    command = [sys.executable, "-c", STARTS_AND_HANGS]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            folder, *pids = run.stdout.readline().split()
            assert len(pids) == 7
            assert all(map(lives, pids))
        finally:
            run.kill()
    until("no process", lambda: not any(map(lives, pids)))
    until("no folder", lambda: not Path(folder).exists())
