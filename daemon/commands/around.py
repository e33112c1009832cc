"""What `gpuwarden plan` knows when it answers, and the circumstances of a decision as the record has them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from daemon.memory import Remembered
from detectors.findings import Incident
from detectors.identity import Workload, job_of_pod
from detectors.verdict import share_unknown
from remediation.decide import Decision
from remediation.drain import FINISHED
from remediation.gates import Circumstances, GateResult
from remediation.modes import Modes
from remediation.objects import NodeView
from remediation.plan import Works
from remediation.scene import Scene
from remediation.workloads import root_of
from rules.schema import Policy


@dataclass(frozen=True, slots=True)
class Look:
    """All that is known when the answer is made.

    `node` was read last, `scene` just before; `decisions` are about all `incidents` that are open, and all releases.
    """

    node: NodeView
    scene: Scene
    incidents: tuple[Incident, ...]
    decisions: tuple[Decision, ...]
    policy: Policy
    modes: Modes
    now: datetime

    @property
    def here(self) -> tuple[Incident, ...]:
        """The open incidents of the node, strongest first."""
        mine = (one for one in self.incidents if self.node.name in one.nodes)
        return tuple(sorted(mine, key=lambda one: (one.tier, one.opened, one.id)))


def circumstances(
    known: Remembered, before: Mapping[str, Sequence[GateResult]], incidents: Sequence[Incident], scene: Scene,
    now: datetime,
) -> Circumstances:  # fmt: skip
    """What the gates ask beside the plan, as the daemon's last tick left it in the record.

    `before` are the gates of the newest decision about each incident. They say what verdicts don't: whether all of the
    telemetry could be asked for, and whether a node's identity is certain.
    """
    failed = {name: {gate.name for gate in gates if not gate.passed} for name, gates in before.items()}
    sure = {name for name, gates in before.items() if gates and "node_known" not in failed[name]}
    fleet = dict.fromkeys((v.node for v in known.verdicts), True)
    for one in incidents:
        for node in one.nodes:
            fleet[node] = node in scene.fleet.nodes or one.id in sure
    return Circumstances(
        now=now,
        snapshot_at=known.at,
        source_ok=not known.source and not any("snapshot_fresh" in names for names in failed.values()),
        ledger_writable=True,
        fleet=fleet,
        gpu_nodes=frozenset(v.node for v in known.verdicts) & scene.fleet.nodes.keys(),
        wanted_out=frozenset(),
        already_out=frozenset(scene.fleet.out),
        settled_out=scene.fleet.settled,
        standing=frozenset(one.id for one in incidents),
        known_share=1.0 - share_unknown(known.verdicts),
    )


def works_of(scene: Scene) -> Works:
    """Who runs where, from the pods with GPUs: what the daemon takes from metrics."""
    works = Works()
    for node, pods in scene.pods_by_node.items():
        for pod in pods:
            if pod.gpus and pod.phase not in FINISHED:
                root = root_of(pod, scene.workloads)
                work = Workload(pod.namespace, pod.name, root.name if root is not None else job_of_pod(pod.name))
                works.on_node[node].add(work)
                works.of_job[work.namespace, work.job].add(work)
    return works
