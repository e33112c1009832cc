"""One row for each kind of job: its objects as its own controller writes them, from running over stopped to running.

What is ours to change is not in here: tests apply the adapter's own changes to these objects, as the API server would.
Fields and their life are read from each kind's types and controller; where a state has no row it cannot come about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from remediation.cluster.view import WORKLOADS
from remediation.jobs import (
    Adapter,
    batch_job,
    job_set,
    mpi_job_v2,
    ray_job,
    services,
    train_job,
    training_operator,
    volcano_job,
)
from remediation.objects import WorkloadView

Object = dict[str, Any]
#: When it first ran, when it was stopped, and when it ran again.
BEFORE = datetime(2026, 5, 4, 8, 0, tzinfo=UTC)
STOPPED_AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
AGAIN = datetime(2026, 5, 4, 12, 1, tzinfo=UTC)
_OLD, _NEW = "2026-05-04T08:00:00Z", "2026-05-04T12:01:00Z"
_PARSERS = {(version, kind): parse for version, kind, parse in WORKLOADS}


@dataclass(frozen=True, slots=True)
class Row:
    """One kind. States are merged onto `runs`, one after the other: `goes`, `gone`, `back`.

    `goes` is its status while its pods end, `gone` once its controller says that nothing of it runs, `back` where it
    runs again since AGAIN. `ended` makes `runs` a job that has ended, `foreign` one that somebody else has stopped,
    `managed` one of another controller; these are empty where the kind cannot. `suspends` is where it is suspended.
    """

    adapter: Adapter
    runs: Object
    pods: str
    describes: str
    goes: Object = field(default_factory=dict)
    gone: Object = field(default_factory=dict)
    back: Object = field(default_factory=dict)
    ended: Object = field(default_factory=dict)
    foreign: Object = field(default_factory=dict)
    managed: Object = field(default_factory=dict)
    suspends: tuple[str, ...] = ("spec", "suspend")

    @property
    def name(self) -> str:
        """For the ids of tests: two groups have a kind Job, and two versions an MPIJob."""
        return f"{self.adapter.api_version} {self.adapter.kind}"

    def view(self, *changes: Mapping[str, Any]) -> WorkloadView:
        """The object with these changes, as the view reads it."""
        raw = self.runs
        for change in changes:
            raw = merged(raw, change)
        return parsed(raw)

    def suspended(self, *, value: bool) -> Object:
        """The change of that field alone."""
        nested: Any = value
        for name in reversed(self.suspends):
            nested = {name: nested}
        return dict(nested)


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def parsed(raw: Object) -> WorkloadView:
    """An object as `remediation.cluster.view` reads it; kinds that it reads nothing of are made by hand."""
    version, kind, meta = raw["apiVersion"], raw["kind"], raw["metadata"]
    parse = _PARSERS.get((version, kind))
    if parse is not None:
        return parse(msgspec.json.encode(raw), {})
    annotations = tuple(meta.get("annotations", {}).items())
    return WorkloadView(kind, version, meta["namespace"], meta["name"], meta["uid"], None, annotations=annotations)


def _job(version: str, kind: str, spec: Object, status: Object | None = None) -> Object:
    metadata = {"name": "llama", "namespace": "train", "uid": "uid-1", "labels": {"team": "nlp"}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status or {}}


def _status(**fields: Any) -> Object:
    return {"status": fields}


def _conditions(**holds: tuple[str, str] | str) -> list[Object]:
    """Conditions by their type: whether one holds, and since when."""
    told = {kind: (said, _OLD) if isinstance(said, str) else said for kind, said in holds.items()}
    return [{"type": kind, "status": said, "lastTransitionTime": at} for kind, (said, at) in told.items()]


def _batch_job() -> Row:
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed", "suspend": False, "backoffLimit": 6}
    return Row(
        batch_job.ADAPTER,
        _job("batch/v1", "Job", spec, {"active": 3, "ready": 3, "startTime": _OLD, "failed": 1}),
        pods="batch.kubernetes.io/controller-uid=uid-1",
        describes="Job train/llama, restarted as a whole by spec.suspend",
        goes=_status(active=0, ready=0, terminating=3, startTime=None, conditions=_conditions(Suspended="True")),
        gone=_status(active=0, ready=0, terminating=0),
        back=_status(active=3, ready=3, startTime=_NEW, conditions=_conditions(Suspended=("False", _NEW))),
        ended=_status(active=0, conditions=_conditions(SuccessCriteriaMet="True", Complete="True")),
        foreign={"spec": {"suspend": True}} | _status(active=0, ready=0),
        managed={"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    )


def _job_set() -> Row:
    def jobs(active: int, ready: int, suspended: int) -> list[Object]:
        counts = {"active": active, "ready": ready, "suspended": suspended, "succeeded": 0, "failed": 0}
        return [{"name": "workers"} | counts]

    spec = {"suspend": False, "failurePolicy": {"maxRestarts": 2}, "replicatedJobs": [{"name": "workers"}]}
    return Row(
        job_set.ADAPTER,
        _job(
            "jobset.x-k8s.io/v1alpha2", "JobSet", spec,
            {"restarts": 1, "replicatedJobsStatus": jobs(1, 1, 0), "conditions": _conditions(Suspended="False")},
        ),
        pods="jobset.sigs.k8s.io/jobset-name=llama",
        describes="JobSet train/llama, restarted as a whole by spec.suspend",
        goes=_status(replicatedJobsStatus=jobs(1, 0, 0)),
        gone=_status(replicatedJobsStatus=jobs(0, 0, 1), conditions=_conditions(Suspended="True")),
        back=_status(replicatedJobsStatus=jobs(1, 1, 0), conditions=_conditions(Suspended=("False", _NEW))),
        ended=_status(conditions=_conditions(Failed="True")),
        foreign={"spec": {"suspend": True}} | _status(replicatedJobsStatus=jobs(0, 0, 1)),
        managed={"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    )  # fmt: skip


def _of_kubeflow(adapter: Adapter, replicas: str, head: str) -> Row:
    kinds = {head: {"replicas": 1}, "Worker": {"replicas": 2}}
    spec = {"runPolicy": {"suspend": False, "backoffLimit": 3}, replicas: kinds}

    def counts(of_head: int, of_workers: int) -> Object:
        return {head: {"active": of_head}, "Worker": {"active": of_workers}}

    kind = adapter.kind
    running = {"replicaStatuses": counts(1, 2), "conditions": _conditions(Created="True", Running="True")}
    return Row(
        adapter,
        _job(adapter.api_version, kind, spec, running),
        pods="training.kubeflow.org/job-name=llama",
        describes=f"{kind} train/llama, restarted as a whole by spec.runPolicy.suspend",
        goes=_status(replicaStatuses=counts(0, 2)),
        gone=_status(replicaStatuses=counts(0, 0), conditions=_conditions(Running="False", Suspended="True")),
        back=_status(
            replicaStatuses=counts(1, 2), conditions=_conditions(Suspended=("False", _NEW), Running=("True", _NEW))
        ),
        ended=_status(conditions=_conditions(Running="False", Succeeded="True")),
        foreign={"spec": {"runPolicy": {"suspend": True}}} | _status(replicaStatuses={}),
        managed={"spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}},
        suspends=("spec", "runPolicy", "suspend"),
    )


def _train_job() -> Row:
    def jobs(active: int, ready: int, suspended: int) -> list[Object]:
        counts = {"active": active, "ready": ready, "suspended": suspended, "succeeded": 0, "failed": 0}
        fetched = {"active": 0, "ready": 0, "suspended": 0, "succeeded": 1, "failed": 0}
        return [{"name": "dataset-initializer"} | fetched, {"name": "node"} | counts]

    spec = {"runtimeRef": {"name": "torch"}, "suspend": False, "managedBy": "trainer.kubeflow.org/trainjob-controller"}
    return Row(
        train_job.ADAPTER,
        _job(
            "trainer.kubeflow.org/v1alpha1", "TrainJob", spec,
            {"jobsStatus": jobs(1, 1, 0), "conditions": _conditions(Suspended="False")},
        ),
        pods="jobset.sigs.k8s.io/jobset-name=llama",
        describes="TrainJob train/llama, restarted as a whole by spec.suspend",
        goes=_status(jobsStatus=jobs(1, 0, 0)),
        gone=_status(jobsStatus=jobs(0, 0, 1), conditions=_conditions(Suspended="True")),
        back=_status(jobsStatus=jobs(1, 1, 0), conditions=_conditions(Suspended=("False", _NEW))),
        ended=_status(conditions=_conditions(Complete="True")),
        foreign={"spec": {"suspend": True}} | _status(jobsStatus=jobs(0, 0, 1)),
        managed={"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    )  # fmt: skip


def _volcano_job() -> Row:
    def state(phase: str, at: str = _OLD, **counts: int) -> Object:
        return _status(state={"phase": phase, "lastTransitionTime": at}, **counts)

    spec = {"minAvailable": 3, "maxRetry": 3, "queue": "default", "tasks": [{"name": "worker", "replicas": 3}]}
    return Row(
        volcano_job.ADAPTER,
        _job("batch.volcano.sh/v1alpha1", "Job", spec) | state("Running", running=3, pending=0, terminating=0),
        pods="volcano.sh/job-name=llama",
        describes="Volcano Job train/llama, restarted as a whole by the Commands AbortJob and ResumeJob",
        goes=state("Aborting", running=0, terminating=3),
        gone=state("Aborted", terminating=0),
        back=state("Running", _NEW, running=3, terminating=0),
        ended=state("Completed", running=0),
        foreign=state("Aborted", running=0),
    )


def _ray_job() -> Row:
    def told(status: str, deployment: str, cluster: str | None, start: str = _OLD) -> Object:
        return _status(jobStatus=status, jobDeploymentStatus=deployment, rayClusterName=cluster, startTime=start)

    spec = {"entrypoint": "python t.py", "shutdownAfterJobFinishes": True, "suspend": False, "rayClusterSpec": {}}
    return Row(
        ray_job.ADAPTER,
        _job("ray.io/v1", "RayJob", spec) | told("RUNNING", "Running", "llama-x7k2p"),
        pods="ray.io/cluster=llama-x7k2p",
        describes="RayJob train/llama, restarted as a whole by spec.suspend",
        goes=told("RUNNING", "Suspending", "llama-x7k2p"),
        gone=told("", "Suspended", None),
        back=told("RUNNING", "Running", "llama-9b4fq", _NEW),
        ended=told("SUCCEEDED", "Complete", "llama-x7k2p"),
        foreign={"spec": {"suspend": True}} | told("", "Suspended", None),
        managed={"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    )


def _service(adapter: Adapter, how: str) -> Row:
    runs = _job(adapter.api_version, adapter.kind, {"replicas": 2})
    return Row(adapter, runs, pods="", describes=f"{adapter.kind} train/llama: {how}")


#: Kinds that are stopped and started as a whole, and kinds whose pods are evicted one by one.
WHOLE = (
    _batch_job(),
    _job_set(),
    _of_kubeflow(training_operator.PYTORCH_JOB, "pytorchReplicaSpecs", "Master"),
    _of_kubeflow(training_operator.MPI_JOB_V1, "mpiReplicaSpecs", "Launcher"),
    _of_kubeflow(mpi_job_v2.ADAPTER, "mpiReplicaSpecs", "Launcher"),
    _train_job(),
    _volcano_job(),
    _ray_job(),
)
ONE_BY_ONE = (
    _service(services.LEADER_WORKER_SET, "any pod that goes takes its group along, which is made anew"),
    _service(services.STATEFUL_SET, "a pod that goes is made anew under its name"),
    _service(services.DEPLOYMENT, "its budget says how many may go at once, and each is made anew at once"),
    _service(services.REPLICA_SET, "each pod that goes is made anew at once"),
)
ROWS = (*WHOLE, *ONE_BY_ONE)
