"""The pods of a node, and what a drain would do to each and cost: for `gpuwarden plan`. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from daemon.commands.around import Look
from detectors.findings import GpuState, Verdict
from remediation.contract import Asking, asking_of
from remediation.disruption import Passage, passages
from remediation.drain import Fate, PodFate, drain, fates
from remediation.gangs import Gang, gangs_on, standing_of
from remediation.jobs import by_job, restarted_whole
from remediation.lost_work import Choice, Resume, weigh
from remediation.moving import drain_started, going, gpu_hours
from remediation.objects import PodView
from remediation.scene import Scene
from remediation.workloads import endings, is_training, root_of
from rules.vocabulary import Tier


@dataclass(frozen=True, slots=True)
class PodShown:
    """A pod of the node and its fate in a drain.

    `budget` is what disruption budgets say once the pods before it have taken their share ("" where it is not evicted
    now), `dry_run` what the API server answers ("" where it is not asked). `ends` says why its job would not start
    again, "" where it would. `gpu_hours` is what training has computed since it started.
    """

    namespace: str
    name: str
    gpus: int
    owner: str
    is_training: bool
    fate: Fate
    reason: str
    deadline: datetime | None
    grace_s: float
    gpu_hours: float
    passage: Passage | None
    budget: str
    dry_run: str
    ends: str


@dataclass(frozen=True, slots=True)
class AtStake:
    """Training that a drain would stop: pods, their GPUs, what they have computed since their start, and their jobs."""

    pods: int
    gpus: int
    gpu_hours: float
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LostWork:
    """What acting now costs the jobs that train on the node, against waiting for the next checkpoint of each."""

    resume: Resume
    jobs: tuple[Choice, ...]


def pod_fates(look: Look) -> tuple[PodFate, ...]:
    """What a drain would do about each pod, a drain that is under way being gone on with."""
    name = look.node.name
    started = drain_started(look.scene.history, name, look.now)
    pods = look.scene.pods_by_node.get(name, ())
    whole = by_job(look.scene.workloads, look.policy.restart)
    return fates(pods, look.node, look.policy.drain, started=started, now=look.now, whole=whole)


def pods_shown(look: Look, told: Sequence[PodFate], answers: Mapping[str, str]) -> tuple[PodShown, ...]:
    """The pods with all that is known of them. `answers` are the API server's, by UID."""
    scene = look.scene
    allowed = {one.pod.uid: one for one in passages((f.pod for f in told if f.fate is Fate.EVICT), scene.pdbs)}
    alone = going(one for one in told if not one.whole)  # a job that is stopped and started counts no restart
    ends = endings(alone, scene.workloads, scene.unread_kinds)
    rows = []
    for one in told:
        pod, passage = one.pod, allowed.get(one.pod.uid)
        trains = bool(pod.gpus) and is_training(pod, scene.workloads)
        rows.append(
            PodShown(
                namespace=pod.namespace, name=pod.name, gpus=pod.gpus, owner=_owner(pod, scene), is_training=trains,
                fate=one.fate, reason=one.reason, deadline=one.deadline, grace_s=one.grace_s or pod.grace_s,
                gpu_hours=round(gpu_hours([pod], look.now), 3) if trains else 0.0,
                passage=passage.passage if passage is not None else None,
                budget=passage.reason if passage is not None else "",
                dry_run=answers.get(pod.uid, ""), ends=ends.get(pod.uid, ""),
            )
        )  # fmt: skip
    return tuple(rows)


def at_stake(look: Look, told: Sequence[PodFate]) -> AtStake:
    """What the drain would stop."""
    training = [pod for pod in going(told) if pod.gpus and is_training(pod, look.scene.workloads)]
    return AtStake(
        pods=len(training),
        gpus=sum(pod.gpus for pod in training),
        gpu_hours=round(gpu_hours(training, look.now), 3),
        jobs=tuple(sorted({_owner(pod, look.scene) for pod in training})),
    )


def lost_work(look: Look, verdicts: Iterable[Verdict], resume: Resume) -> LostWork:
    """The choice for each job with training on the node, by what is known now; its metrics are not asked."""
    scene = look.scene
    failed = _failed(look, verdicts)
    sizes = {name: node.gpus for name, node in scene.fleet.nodes.items()}
    return LostWork(
        resume,
        tuple(
            weigh(
                gang, standing_of(gang, failed, sizes), resume, look.now, asking=_asking(gang, look),
                measured=scene.measured.get(gang.root.uid) if gang.root is not None else None,
            )
            for gang in gangs_on(look.node.name, scene.pods_by_node, scene.workloads)
        ),
    )  # fmt: skip


def _failed(look: Look, verdicts: Iterable[Verdict]) -> Counter[str]:
    """How many GPUs of each node have failed, by a fact that is open: they compute for nobody."""
    facts = [one for one in look.incidents if one.tier is Tier.FACT]
    named = {gpu for one in facts for gpu in one.gpu_uuids}
    whole = {node for one in facts if not one.gpu_uuids for node in one.nodes}
    gone = {
        (one.node, one.gpu)
        for one in verdicts
        if one.state is GpuState.FAILED and (one.gpu in named or one.node in whole)
    }
    return Counter(node for node, _ in gone)


def _asking(gang: Gang, look: Look) -> Asking | None:
    """How the job is asked for a checkpoint; None where it is not, since it isn't restarted as a whole."""
    found = restarted_whole(gang.pods[0], look.scene.workloads, look.policy.restart)
    return None if found is None else asking_of(found[0], look.policy.restart.request_deadline)


def held_up(look: Look, told: Sequence[PodFate]) -> str:
    """Why no pod would be moved now though some may be, "" where that is not so."""
    if drain(told, look.policy.drain).evict or not any(one.fate is Fate.EVICT for one in told):
        return ""
    return "no pod is moved until a person has decided about those that refuse (drain.on_refusal)"


def _owner(pod: PodView, scene: Scene) -> str:
    root = root_of(pod, scene.workloads)
    return "nobody" if root is None else f"{root.kind} {pod.namespace}/{root.name}"
