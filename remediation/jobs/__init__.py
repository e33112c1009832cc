"""How each kind of job is stopped and started again as a whole: one adapter each, in one table.

A kind that is not here is never restarted: its pods are evicted one by one, under the gates that hold for that.
"""

from collections.abc import Callable, Mapping

from remediation.jobs import (
    batch_job,
    job_set,
    mpi_job_v2,
    ray_job,
    services,
    train_job,
    training_operator,
    volcano_job,
)
from remediation.jobs.adapter import RESTART, RESTARTED, Adapter, Change, path_of
from remediation.objects import PodView, WorkloadView
from remediation.workloads import root_of
from rules.restore_schema import RestartPolicy

__all__ = [
    "ADAPTERS",
    "RESTART",
    "RESTARTED",
    "Adapter",
    "Change",
    "adapter_of",
    "by_job",
    "path_of",
    "restarted_whole",
]

ADAPTERS: tuple[Adapter, ...] = (
    batch_job.ADAPTER,
    job_set.ADAPTER,
    training_operator.PYTORCH_JOB,
    training_operator.MPI_JOB_V1,
    train_job.ADAPTER,
    mpi_job_v2.ADAPTER,
    volcano_job.ADAPTER,
    ray_job.ADAPTER,
    services.LEADER_WORKER_SET,
    services.STATEFUL_SET,
    services.DEPLOYMENT,
    services.REPLICA_SET,
)


def adapter_of(job: WorkloadView) -> Adapter | None:
    """The adapter for this kind of job."""
    return next((one for one in ADAPTERS if one.find(job)), None)


def restarted_whole(
    pod: PodView, workloads: Mapping[str, WorkloadView], policy: RestartPolicy
) -> tuple[WorkloadView, Adapter] | None:
    """The job that is restarted as a whole in place of an eviction of this pod; None where it is not."""
    if not policy.enabled:
        return None
    root = root_of(pod, workloads)
    if not isinstance(root, WorkloadView):
        return None
    adapter = adapter_of(root)
    return None if adapter is None or adapter.can_restart(root) else (root, adapter)


def by_job(workloads: Mapping[str, WorkloadView], policy: RestartPolicy) -> Callable[[PodView], str]:
    """Says of a pod with GPUs which job is restarted as a whole in place of its eviction, "" where none is."""

    def told(pod: PodView) -> str:
        found = restarted_whole(pod, workloads, policy) if pod.gpus else None
        return f"{found[1].describe(found[0])}: it goes with its job" if found is not None else ""

    return told
