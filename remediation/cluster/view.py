"""The cluster as gpuwarden sees it: nodes, bound pods, disruption budgets and jobs, kept up to date by list and watch.

The loop takes a `ClusterSnapshot` a tick, and gates refuse to act when its `stale_s` is too high. Kinds of jobs are
extra: a cluster may lack them or not let them be read, and then only what has to do with them is not known.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from remediation.cluster.client import Cluster
from remediation.cluster.kind import RHYTHM, Kind, KindHealth, Parse, Rhythm
from remediation.cluster.parse import parse_node, parse_pdb, parse_pod
from remediation.cluster.parse_operator import (
    parse_mpi_job_v1,
    parse_mpi_job_v2,
    parse_pytorch_job,
    parse_volcano_job,
)
from remediation.cluster.parse_trainer import (
    parse_leader_worker_set,
    parse_ray_cluster,
    parse_ray_job,
    parse_train_job,
)
from remediation.cluster.parse_workload import parse_job, parse_job_set
from remediation.objects import NodeView, PdbView, PodView, WorkloadView
from remediation.workloads import resource

__all__ = ["WORKLOADS", "ClusterSnapshot", "ClusterView", "KindHealth", "Rhythm"]

#: What is looked for beside nodes, pods and budgets: API version, kind, and how one is read. Only the first is part of
#: Kubernetes itself.
WORKLOADS: tuple[tuple[str, str, Parse[WorkloadView]], ...] = (
    ("batch/v1", "Job", parse_job),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", parse_job_set),
    ("kubeflow.org/v1", "PyTorchJob", parse_pytorch_job),
    ("kubeflow.org/v1", "MPIJob", parse_mpi_job_v1),
    ("kubeflow.org/v2beta1", "MPIJob", parse_mpi_job_v2),
    ("batch.volcano.sh/v1alpha1", "Job", parse_volcano_job),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", parse_train_job),
    ("ray.io/v1", "RayJob", parse_ray_job),
    ("ray.io/v1", "RayCluster", parse_ray_cluster),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", parse_leader_worker_set),
)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The cluster at one moment. Never changes; the views in it are shared with other snapshots.

    `stale_s` are the seconds since the last sign of life (a list, an event, a bookmark, a watch that the server ended
    when it was asked to) of that kind among nodes, pods and budgets that has waited longest. It is infinite until each
    has been listed, so that an empty cluster is never taken for a real one. `unreadable` counts what was left out since
    the last list because it isn't what the API promises.

    `workloads` are jobs by UID. Those of `unread_kinds` (as `remediation.workloads.resource` names them) may be missing
    or out of date: they may not be read, cannot be at the moment, or are not looked for. A kind that the cluster
    doesn't have is not among these.
    """

    nodes: Mapping[str, NodeView]
    pods_by_node: Mapping[str, tuple[PodView, ...]]
    pdbs: tuple[PdbView, ...]
    as_of: datetime
    stale_s: float
    unreadable: int = 0
    workloads: Mapping[str, WorkloadView] = field(default_factory=dict)
    unread_kinds: tuple[str, ...] = ()


class ClusterView:
    """Starts its threads with `start`, ends them with `stop`; also a context manager. `snapshot` works at any time.

    An idle cluster costs two requests a minute for each kind that it has, and a list of each kind every `resync_s`.
    Without `workloads` no jobs are looked for.
    """

    def __init__(
        self,
        cluster: Cluster,
        rhythm: Rhythm = RHYTHM,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        workloads: bool = True,
    ) -> None:
        stop = threading.Event()
        self._nodes = Kind("nodes", "/api/v1/nodes", parse_node, cluster, rhythm, monotonic, stop)
        # Pods that wait for a node are nobody's to drain; the server leaves them out, also in the watch.
        self._pods = Kind("pods", "/api/v1/pods", parse_pod, cluster, rhythm, monotonic, stop, "spec.nodeName!=")
        self._pdbs = Kind("pdbs", "/apis/policy/v1/poddisruptionbudgets", parse_pdb, cluster, rhythm, monotonic, stop)
        self._workloads = tuple(
            Kind(
                resource(version, kind), f"/apis/{version}/{kind.lower()}s", parse, cluster, rhythm, monotonic, stop,
                optional=True,
            )
            for version, kind, parse in (WORKLOADS if workloads else ())
        )  # fmt: skip
        self._needed: tuple[Kind[Any], ...] = (self._nodes, self._pods, self._pdbs)
        self._kinds: tuple[Kind[Any], ...] = (*self._needed, *self._workloads)
        self._stop = stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to list and watch. Errors don't come out of here: the view stays stale, and `health` says why."""
        for kind in self._kinds:
            kind.thread.start()

    def stop(self) -> None:
        """End all threads and wait for them: at once in a watch, else after the request's own time-out."""
        self._stop.set()
        for kind in self._kinds:
            kind.interrupt()
        for kind in self._kinds:
            if kind.thread.ident is not None:
                kind.thread.join()

    def wait(self, timeout_s: float) -> bool:
        """Wait until each kind has been listed once; False where that took too long.

        A kind of job that is not there, or that a few attempts could not read, is waited for no longer.
        """
        end = time.monotonic() + timeout_s
        return all(kind.listed.wait(max(0.0, end - time.monotonic())) for kind in self._kinds)

    @property
    def stale_s(self) -> float:
        """Seconds since the last sign of life of the kind that has waited longest; see ClusterSnapshot."""
        return max(kind.health().stale_s for kind in self._needed)

    def nodes(self) -> dict[str, NodeView]:
        """The nodes now, for those who need nothing else."""
        return {node.name: node for node in self._nodes.objects()}

    def workloads(self) -> list[WorkloadView]:
        """The jobs now, for those who need nothing else."""
        return [found for kind in self._workloads for found in kind.objects()]

    def snapshot(self) -> ClusterSnapshot:
        """The cluster now, as far as it is known."""
        # Health first, so that what follows is never older than it says.
        stale_s = self.stale_s
        read = {kind.name for kind in self._workloads if kind.is_read}
        by_node: dict[str, list[PodView]] = defaultdict(list)
        for pod in self._pods.objects():
            by_node[pod.node].append(pod)
        return ClusterSnapshot(
            nodes=self.nodes(),
            pods_by_node={node: tuple(pods) for node, pods in by_node.items()},
            pdbs=tuple(self._pdbs.objects()),
            as_of=datetime.now(UTC),
            stale_s=stale_s,
            unreadable=sum(kind.health().unreadable for kind in self._kinds),
            workloads={found.uid: found for found in self.workloads()},
            unread_kinds=tuple(name for name in _NAMES if name not in read),
        )

    def health(self) -> tuple[KindHealth, ...]:
        """How each kind is doing, for metrics and for a person who asks why the view is stale."""
        return tuple(kind.health() for kind in self._kinds)


_NAMES = tuple(resource(version, kind) for version, kind, _ in WORKLOADS)
