"""Whether pods with GPUs that are moved away find room elsewhere. Pure; a coarse answer, since the scheduler decides.

It counts GPUs only, and places the hungriest pod first on the node that it fills best. Affinities, quotas and other
resources can still keep a pod waiting, so a yes is no promise; a no is certain.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from remediation.drain import FINISHED
from remediation.limits import Fleet
from remediation.objects import PodView


def free_gpus(fleet: Fleet, pods_by_node: Mapping[str, Iterable[PodView]], out: Collection[str] = ()) -> dict[str, int]:
    """GPUs that no pod has asked for, by name of each node that takes new work."""
    free = {}
    for name, node in fleet.nodes.items():
        if name in fleet.out or name in out:
            continue
        used = sum(pod.gpus for pod in pods_by_node.get(name, ()) if pod.phase not in FINISHED)
        if node.gpus > used:
            free[name] = node.gpus - used
    return free


def without_room(pods: Iterable[PodView], free: Mapping[str, int]) -> tuple[PodView, ...]:
    """The pods for which no node has enough free GPUs, once the hungrier ones have been placed."""
    nodes_with = Counter(free.values())
    homeless = []
    for pod in sorted(pods, key=lambda one: (-one.gpus, one.key)):
        if pod.gpus == 0:
            continue
        best = min((gpus for gpus, nodes in nodes_with.items() if nodes and gpus >= pod.gpus), default=None)
        if best is None:
            homeless.append(pod)
            continue
        nodes_with[best] -= 1
        nodes_with[best - pod.gpus] += 1
    return tuple(homeless)
