"""The jobs that train on a node, each with all of its pods: a gang stands still as a whole, and loses as a whole.

Pure. `remediation.lost_work` weighs them; `gpuwarden plan` asks for those of its node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from remediation.drain import FINISHED
from remediation.objects import OwnerRef, PodView, WorkloadView
from remediation.workloads import is_training, root_of


class Standing(StrEnum):
    """Whether a job can still come to its next checkpoint, by what is known of the GPUs on its nodes."""

    RUNS = "runs"
    STOPPED = "stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gang:
    """A job and its pods that have not ended, wherever they run. `root` is None for a pod that nothing controls."""

    name: str
    root: OwnerRef | WorkloadView | None
    pods: tuple[PodView, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all its pods."""
        return sum(pod.gpus for pod in self.pods)

    @property
    def started(self) -> datetime | None:
        """When the first of its pods with GPUs started; None where none says so."""
        return min((pod.started for pod in self.pods if pod.gpus and pod.started is not None), default=None)

    def on(self, node: str) -> int:
        """Its GPUs on one node."""
        return sum(pod.gpus for pod in self.pods if pod.node == node)


def gangs_on(
    node: str, pods_by_node: Mapping[str, Sequence[PodView]], workloads: Mapping[str, WorkloadView]
) -> tuple[Gang, ...]:
    """The jobs that train with GPUs of this node, by name, each with its pods on all nodes."""
    here = [pod for pod in pods_by_node.get(node, ()) if _lives(pod) and pod.gpus and is_training(pod, workloads)]
    found: dict[str, list[PodView]] = {_uid(pod, workloads): [] for pod in here}
    for pods in pods_by_node.values() if found else ():
        for pod in pods:
            if _lives(pod) and (uid := _uid(pod, workloads)) in found:
                found[uid].append(pod)
    gangs = (_gang(pods, workloads) for pods in found.values())
    return tuple(sorted(gangs, key=lambda gang: gang.name))


def _gang(pods: Sequence[PodView], workloads: Mapping[str, WorkloadView]) -> Gang:
    # Beside a pod that is on its way out its replacement may stand already.
    stay = tuple(pod for pod in pods if pod.deleting_since is None) or tuple(pods)
    root = root_of(stay[0], workloads)
    name = f"Pod {stay[0].namespace}/{stay[0].name}" if root is None else f"{root.kind} {stay[0].namespace}/{root.name}"
    return Gang(name, root, stay)


def _lives(pod: PodView) -> bool:
    return pod.phase not in FINISHED


def _uid(pod: PodView, workloads: Mapping[str, WorkloadView]) -> str:
    root = root_of(pod, workloads)
    return pod.uid if root is None else root.uid


def standing_of(gang: Gang, failed: Mapping[str, int], sizes: Mapping[str, int]) -> Standing:
    """Whether the job stands still, from how many GPUs of each node have failed and how many each node has.

    Which GPUs of a node a pod has is not known here, so it is sure only where the pods have more of them than are well.
    """
    standing = Standing.RUNS
    for node, count in failed.items():
        mine = gang.on(node)
        if not (mine and count):
            continue
        if 0 < sizes.get(node, 0) < mine + count:
            return Standing.STOPPED
        standing = Standing.UNKNOWN
    return standing
