"""From the API's JSON to `WorkloadView`: the jobs of Kubeflow Trainer v2 and KubeRay, and what stands between them.

Called by `view` for each object, where a cluster has these kinds at all. Their restarts are counted by what they own
(a JobSet, a Ray cluster), so an eviction's price is not known here; what is known is how they are stopped and started.
"""

from dataclasses import replace

import msgspec

from remediation.cluster.parse import Condition, Meta, Moment, Shared, decode, once
from remediation.cluster.parse_workload import any_true, other_controller, workload
from remediation.objects import WorkloadView

_TRAINER = frozenset({"", "trainer.kubeflow.org/trainjob-controller"})
_KUBERAY = frozenset({"", "ray.io/kuberay-operator"})


class _Spec(msgspec.Struct, rename="camel"):
    suspend: bool | None = None
    managed_by: str | None = None


class _JobStatus(msgspec.Struct):
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    suspended: int | None = None


class _TrainStatus(msgspec.Struct, rename="camel"):
    conditions: list[Condition] | None = None
    jobs_status: list[_JobStatus] | None = None


class _TrainJob(msgspec.Struct):
    metadata: Meta
    spec: _Spec | None = None
    status: _TrainStatus | None = None


class _RaySpec(_Spec, rename="camel"):
    shutdown_after_job_finishes: bool | None = None
    cluster_selector: dict[str, str] | None = None


class _RayStatus(msgspec.Struct, rename="camel"):
    job_status: str | None = None
    job_deployment_status: str | None = None
    ray_cluster_name: str | None = None
    start_time: Moment | None = None


class _RayJob(msgspec.Struct):
    metadata: Meta
    spec: _RaySpec | None = None
    status: _RayStatus | None = None


class _Owned(msgspec.Struct):
    metadata: Meta


def parse_train_job(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A TrainJob (trainjob_types.go). It runs since its Suspended condition turned false.

    Its jobs that fetch data and model end before the one that trains begins.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _TrainJob, "TrainJob")
    spec, status = found.spec or _Spec(), found.status or _TrainStatus()
    jobs = status.jobs_status or []
    resumed = [one for one in status.conditions or () if one.type == "Suspended" and one.status == "False"]
    runs = any(each.ready for each in jobs) and all(
        (each.ready or each.succeeded) and not each.suspended for each in jobs
    )
    return replace(
        workload(found.metadata, "trainer.kubeflow.org/v1alpha1", "TrainJob", shared),
        suspended=bool(spec.suspend),
        active=sum(each.active or 0 for each in jobs),
        running_since=resumed[0].last_transition_time if runs and resumed else None,
        managed_by=once(other_controller(spec.managed_by, _TRAINER), shared),
        finished=any_true(status.conditions, {"Complete", "Failed"}),
    )


def parse_ray_job(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A RayJob (rayjob_types.go). Each start makes a new cluster, so what runs it now has another name than before.

    `child` is empty where the cluster is not its own to shut down (clusterSelector, or no shutdownAfterJobFinishes).

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _RayJob, "RayJob")
    spec, status = found.spec or _RaySpec(), found.status or _RayStatus()
    is_its_own = bool(spec.shutdown_after_job_finishes) and not spec.cluster_selector
    stopped = status.job_deployment_status == "Suspended"
    return replace(
        workload(found.metadata, "ray.io/v1", "RayJob", shared),
        suspended=bool(spec.suspend),
        active=0 if stopped or not status.job_deployment_status else 1,
        running_since=status.start_time if status.job_status == "RUNNING" else None,
        managed_by=once(other_controller(spec.managed_by, _KUBERAY), shared),
        finished=status.job_deployment_status in {"Complete", "Failed"},
        child=(status.ray_cluster_name or "") if is_its_own else "",
    )


def parse_ray_cluster(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A RayCluster: only whose it is. Raises BadObject where a field has a wrong type."""
    return workload(decode(raw, _Owned, "RayCluster").metadata, "ray.io/v1", "RayCluster", shared)


def parse_leader_worker_set(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A LeaderWorkerSet: only whose it is. Raises BadObject where a field has a wrong type."""
    found = decode(raw, _Owned, "LeaderWorkerSet")
    return workload(found.metadata, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", shared)
