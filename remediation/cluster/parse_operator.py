"""From the API's JSON to `WorkloadView`: the jobs of training-operator, mpi-operator and Volcano.

Called by `view` for each object, where a cluster has these kinds at all. See `parse_workload` for Jobs and JobSets.
"""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from remediation.cluster.parse import Condition, Meta, Moment, Shared, decode, once
from remediation.cluster.parse_workload import JOB_BACKOFF, any_true, other_controller, workload
from remediation.objects import WorkloadView

#: Volcano's own default of maxRetry.
VOLCANO_RETRIES = 3
#: What stands in `runPolicy.managedBy` where the operator itself is at work; nothing does in older releases.
_OPERATORS = frozenset({"kubeflow.org/training-operator", "kubeflow.org/mpi-operator"})


class _Present(msgspec.Struct):
    """Something of which nobody needs to know more than that it is there."""


class _Replica(msgspec.Struct, rename="camel"):
    replicas: int | None = None
    restart_policy: str | None = None


_Replicas = dict[str, _Replica | None]


class _RunPolicy(msgspec.Struct, rename="camel"):
    backoff_limit: int | None = None
    suspend: bool | None = None
    managed_by: str | None = None


class _KubeflowSpec(msgspec.Struct, rename="camel"):
    run_policy: _RunPolicy | None = None
    elastic_policy: _Present | None = None
    pytorch_replica_specs: _Replicas | None = None
    mpi_replica_specs: _Replicas | None = None


class _ReplicaStatus(msgspec.Struct):
    failed: int | None = None
    active: int | None = None


class _KubeflowStatus(msgspec.Struct, rename="camel"):
    replica_statuses: dict[str, _ReplicaStatus | None] | None = None
    conditions: list[Condition] | None = None


class _Kubeflow(msgspec.Struct):
    metadata: Meta
    spec: _KubeflowSpec | None = None
    status: _KubeflowStatus | None = None


class _Lifecycle(msgspec.Struct):
    action: str = ""
    event: str | None = None
    events: list[str] | None = None


class _Task(msgspec.Struct):
    policies: list[_Lifecycle] | None = None


class _VolcanoSpec(msgspec.Struct, rename="camel"):
    max_retry: int | None = None
    policies: list[_Lifecycle] | None = None
    tasks: list[_Task] | None = None


class _VolcanoState(msgspec.Struct, rename="camel"):
    phase: str | None = None
    last_transition_time: Moment | None = None


class _VolcanoStatus(msgspec.Struct, rename="camel"):
    state: _VolcanoState | None = None
    retry_count: int | None = None
    running: int | None = None
    pending: int | None = None
    terminating: int | None = None


class _Volcano(msgspec.Struct):
    metadata: Meta
    spec: _VolcanoSpec | None = None
    status: _VolcanoStatus | None = None


def parse_pytorch_job(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A PyTorchJob of training-operator (pkg/controller.v1/common): pods that failed are made anew.

    What it counts against backoffLimit are the restarts of containers, which stand in the pods and not here: used is
    always 0.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _Kubeflow, "PyTorchJob")
    spec = found.spec or _KubeflowSpec()
    limit = (spec.run_policy or _RunPolicy()).backoff_limit
    return _kubeflow(found, "kubeflow.org/v1", "PyTorchJob", limit, _end_of_pytorch(spec, limit), shared)


def _end_of_pytorch(spec: _KubeflowSpec, limit: int | None) -> str:
    """Why the first eviction ends it, "" where it doesn't. The peers of a lost rank end too, unless it is elastic."""
    replicas = [each or _Replica() for each in (spec.pytorch_replica_specs or {}).values()]
    policies = {each.restart_policy or "OnFailure" for each in replicas}
    peers = sum(1 if each.replicas is None else each.replicas for each in replicas) - 1
    alone = peers < 1 or spec.elastic_policy is not None
    if "Never" in policies:
        return "it has pods that are never started again (restartPolicy Never)"
    if not alone and "ExitCode" in policies:
        return "its other pods would end with a code below 128, which fails it (restartPolicy ExitCode)"
    if not alone and limit is not None and peers >= limit:
        return f"its {peers} other pods would restart, and its backoffLimit of {limit} counts each"
    return ""


def parse_mpi_job_v1(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """An MPIJob of training-operator (pkg/controller.v1/mpi): one pod that failed fails it, whatever its backoffLimit.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _Kubeflow, "MPIJob")
    limit = ((found.spec or _KubeflowSpec()).run_policy or _RunPolicy()).backoff_limit
    return _kubeflow(found, "kubeflow.org/v1", "MPIJob", limit, "its operator fails it with its first pod", shared)


def parse_mpi_job_v2(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """An MPIJob of mpi-operator (v2beta1): a lost worker ends mpirun, and its launcher, a Job, counts that.

    A launcher that its kubelet restarts in place (OnFailure, the default) reaches the limit one restart earlier; how
    often it has been stands in its pod and not here.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _Kubeflow, "MPIJob")
    spec, status = found.spec or _KubeflowSpec(), found.status or _KubeflowStatus()
    limit = (spec.run_policy or _RunPolicy()).backoff_limit
    limit = JOB_BACKOFF if limit is None else limit
    launcher = (spec.mpi_replica_specs or {}).get("Launcher") or _Replica()
    in_place = launcher.restart_policy != "Never"
    failed = ((status.replica_statuses or {}).get("Launcher") or _ReplicaStatus()).failed or 0
    allowed = max(0, limit - 1) if in_place else limit
    return _kubeflow(found, "kubeflow.org/v2beta1", "MPIJob", allowed, "", shared, used=failed)


def _kubeflow(
    found: _Kubeflow, version: str, kind: str, allowed: int | None, end: str, shared: Shared, used: int = 0
) -> WorkloadView:
    policy = (found.spec or _KubeflowSpec()).run_policy or _RunPolicy()
    status = found.status or _KubeflowStatus()
    running = [one for one in status.conditions or () if one.type == "Running" and one.status == "True"]
    return replace(
        workload(found.metadata, version, kind, shared),
        restarts_used=used,
        restarts_allowed=allowed,
        suspended=bool(policy.suspend),
        active=sum(each.active or 0 for each in (status.replica_statuses or {}).values() if each is not None),
        running_since=running[0].last_transition_time if running else None,
        managed_by=once(other_controller(policy.managed_by, _OPERATORS), shared),
        finished=any_true(status.conditions, {"Succeeded", "Failed"}),
        ends_at_once=once(end, shared),
    )


def parse_volcano_job(raw: bytes | msgspec.Raw, shared: Shared) -> WorkloadView:
    """A Job of Volcano (pkg/controllers/job): what a PodEvicted leads to is policy; by itself the pod is made anew.

    A restart that takes retryCount up to maxRetry fails it, so it allows one less than that.

    Raises:
        BadObject: a field has a wrong type.
    """
    found = decode(raw, _Volcano, "Volcano Job")
    spec, status = found.spec or _VolcanoSpec(), found.status or _VolcanoStatus()
    state = status.state or _VolcanoState()
    phase = state.phase or ""
    retries = VOLCANO_RETRIES if spec.max_retry is None else spec.max_retry
    levels = [task.policies or () for task in spec.tasks or ()]
    answers = {_on_eviction(task) or _on_eviction(spec.policies or ()) for task in levels or [()]}
    ends = sorted(answers & {"AbortJob", "TerminateJob", "CompleteJob"})
    return replace(
        workload(found.metadata, "batch.volcano.sh/v1alpha1", "Job", shared),
        restarts_used=status.retry_count or 0,
        restarts_allowed=max(0, retries - 1),
        ignores_disruption=answers <= {"", "SyncJob"},
        suspended=phase in {"Aborting", "Aborted"},
        active=(status.running or 0) + (status.pending or 0) + (status.terminating or 0),
        running_since=state.last_transition_time if phase == "Running" else None,
        finished=phase in {"Completing", "Completed", "Terminating", "Terminated", "Failed"},
        ends_at_once=f"its policy for PodEvicted is {ends[0]}" if ends else "",
    )


def _on_eviction(policies: Iterable[_Lifecycle]) -> str:
    """The action for an evicted pod, "" where there is none; the first match decides."""
    events = ((rule.action, {*(rule.events or ()), rule.event}) for rule in policies)
    return next((action for action, some in events if some & {"PodEvicted", "*"}), "")
