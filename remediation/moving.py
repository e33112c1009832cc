"""Gates about what a drain moves: may each pod be moved, does its budget let it, can its job stand it, is there room.

Pure. What is asked is worked out once for all of them (`Moves`), from the same rules that the hands follow later
(`remediation.drain`, `remediation.disruption`). A gate of this module holds back the drain and what comes after it on
the ladder; no new work, and the cordon, go ahead.
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from datetime import datetime

from remediation.capacity import without_room
from remediation.contract import Freshness, asking_of, checkpoint_of
from remediation.disruption import Passage, PodPassage, passages
from remediation.drain import Fate, PodFate, drain, fates, opts_out
from remediation.gates import Asked, GateResult
from remediation.jobs import by_job, restarted_whole
from remediation.limits import Attempt, Ending, History
from remediation.objects import PodView, WorkloadView
from remediation.restoring import may_restart
from remediation.scene import Scene
from remediation.workloads import endings, is_training, root_of
from rules.policy_schema import DrainPolicy
from rules.vocabulary import Action, Tier

#: Most pods that a reason names; the rest is a number.
_NAMED = 4
_STOPS_WORK = (Action.DRAIN, Action.RESTART_JOB)
_TIER_KEY = {Tier.FACT: "fact", Tier.TREND: "trend"}


@dataclass(frozen=True, slots=True)
class Moves:
    """What a drain of the plan's nodes would do to pods now.

    `going` are the pods that it would evict, now or after their deadlines; `asks` those that a person has to decide
    about; `passages` what the budgets say to the ones that may go now. `stopped` are all pods of the jobs that are
    restarted as a whole, wherever they run: who stops a job goes around no budget, and around no pod's own wish.
    """

    going: tuple[PodView, ...] = ()
    asks: tuple[PodFate, ...] = ()
    passages: tuple[PodPassage, ...] = ()
    stopped: tuple[PodView, ...] = ()

    @staticmethod
    def of(asked: Asked, scene: Scene, history: History) -> "Moves":
        """Nothing, where the plan does not drain."""
        if not asked.plan.does(_STOPS_WORK):
            return Moves()
        policy = asked.policy.drain
        if not asked.plan.does((Action.DRAIN,)):
            return Moves(going=_named(asked, scene))
        told: list[PodFate] = []
        whole_job = by_job(scene.workloads, asked.policy.restart)
        for name in asked.incident.nodes:
            node = scene.fleet.nodes.get(name)
            if node is not None:
                started = drain_started(history.on_node.get(name, ()), name, asked.around.now)
                pods = scene.pods_by_node.get(name, ())
                told.extend(fates(pods, node, policy, started=started, now=asked.around.now, whole=whole_job))
        whole = drain(told, policy)
        now = (fate.pod for fate in told if fate.fate is Fate.EVICT)
        return Moves(going(told), whole.asks, passages(now, scene.pdbs), _of_jobs(told, scene))


def _named(asked: Asked, scene: Scene) -> tuple[PodView, ...]:
    """The pods that the plan names: a restart stops those of one job, wherever they run."""
    named = frozenset(asked.plan.affected)
    return tuple(pod for pods in scene.pods_by_node.values() for pod in pods if _name(pod) in named)


def _of_jobs(told: Iterable[PodFate], scene: Scene) -> tuple[PodView, ...]:
    """All pods of the jobs that are restarted as a whole."""
    roots = {_root(fate.pod, scene) for fate in told if fate.whole}
    every = (pod for pods in scene.pods_by_node.values() for pod in pods) if roots else ()
    return tuple(pod for pod in every if _root(pod, scene) in roots)


def _root(pod: PodView, scene: Scene) -> str:
    root = root_of(pod, scene.workloads)
    return root.uid if root is not None else pod.uid


def going(told: Iterable[PodFate]) -> tuple[PodView, ...]:
    """The pods that still have to be moved, now or later: one that terminates is on its way."""
    moved = (Fate.EVICT, Fate.WAIT)
    return tuple(fate.pod for fate in told if fate.fate in moved and fate.pod.deleting_since is None)


def drain_started(history: Iterable[Attempt], node: str, now: datetime) -> datetime:
    """When the drain that is under way began, so that asking again moves no deadline; `now` where none is.

    For which incident it began does not matter: a node is drained once for all that want it.
    """
    begun = [one.at for one in history if (one.node, one.action, one.ending) == (node, Action.DRAIN, Ending.PENDING)]
    return min(begun, default=now)


@dataclass(frozen=True, slots=True)
class Situation:
    """What these gates are asked about."""

    asked: Asked
    scene: Scene
    moves: Moves
    history: History
    #: GPUs that no pod has asked for, by node that takes new work
    free: Mapping[str, int]

    @property
    def is_under_way(self) -> bool:
        """Whether one of the nodes is being drained for this incident already."""
        tries = self.history.of_incident.get(self.asked.incident.id, ())
        return any((one.action, one.ending) == (Action.DRAIN, Ending.PENDING) for one in tries)

    @property
    def policy(self) -> DrainPolicy:
        """How nodes are drained."""
        return self.asked.policy.drain

    @property
    def tier(self) -> str:
        """The evidence's word in the policy; suspicion never comes here, and counts as the weakest."""
        return _TIER_KEY.get(self.asked.incident.tier, "trend")


def pods_may_move(about: Situation) -> GateResult:
    """No pod is there that a drain must not touch."""
    asks = about.moves.asks
    elsewhere = [(pod, why) for pod in about.moves.stopped if (why := opts_out(pod))]
    if elsewhere:
        pod, why = elsewhere[0]
        said = f"{_name(pod)}, whose job would be stopped as a whole: {why}{_more(elsewhere, 1)}"
        return GateResult("pods_may_move", passed=False, reason=said)
    if asks and about.policy.on_refusal == "ask":
        first = "; ".join(f"{_name(fate.pod)}: {fate.reason}" for fate in asks[:_NAMED])
        return GateResult("pods_may_move", passed=False, reason=f"{first}{_more(asks)}")
    count = len(about.moves.going)
    said = f"{count} pods would be moved" if count else "no pod has to be moved"
    return GateResult(
        "pods_may_move", passed=True, reason=said + (f", {len(asks)} left where they are" if asks else "")
    )


def pdb_sound(about: Situation) -> GateResult:
    """No pod is covered by budgets that can never let it go."""
    never = [one for one in about.moves.passages if one.passage is Passage.NEVER]
    if never:
        return GateResult(
            "pdb_sound", passed=False, reason=f"{_name(never[0].pod)}: {never[0].reason}{_more(never, 1)}"
        )
    return GateResult("pdb_sound", passed=True, reason="no pod is under more than one budget")


def pdb_headroom(about: Situation) -> GateResult:
    """Disruption budgets let at least one pod go now, the earlier ones' share taken off; the others go after it.

    A drain that is under way has used up room itself, and goes on as the budgets give it back.
    """
    held = [one for one in passages(about.moves.stopped, about.scene.pdbs) if not one.passes]
    if held:
        first = held[0]
        said = f"{_name(first.pod)}, whose job would be stopped as a whole: {first.reason}{_more(held, 1)}"
        return GateResult("pdb_headroom", passed=False, reason=said)
    told = about.moves.passages
    blocked = [one for one in told if not one.passes]
    if blocked and about.is_under_way:
        said = f"under way; budgets let {len(told) - len(blocked)} of {len(told)} pods go now"
        return GateResult("pdb_headroom", passed=True, reason=said)
    if blocked and len(blocked) == len(told):
        first = blocked[0]
        return GateResult("pdb_headroom", passed=False, reason=f"{_name(first.pod)}: {first.reason}{_more(blocked, 1)}")
    said = f"budgets let {len(told) - len(blocked)} of {len(told)} pods go now"
    return GateResult("pdb_headroom", passed=True, reason=said if told else "no pod has to pass a budget now")


def last_restart(about: Situation) -> GateResult:
    """No job would end for good by one more disruption. Pods without a controller are a matter of `pods_may_move`."""
    scene = about.scene
    whole = by_job(scene.workloads, about.asked.policy.restart)  # a job that is stopped and started counts no restart
    owned = [pod for pod in about.moves.going if pod.owner is not None and not whole(pod)]
    told = endings(owned, scene.workloads, scene.unread_kinds)
    final = [(pod, told[pod.uid]) for pod in owned if pod.uid in told]
    if final:
        pod, why = final[0]
        return GateResult("last_restart", passed=False, reason=f"{_name(pod)}: {why}{_more(final, 1)}")
    return GateResult("last_restart", passed=True, reason="no job would be at its last restart")


def checkpoint(about: Situation) -> GateResult:
    """What training would lose is known, or policy lets it be lost. What no job says is unknown, and never fresh."""
    asked = about.asked
    if not asked.plan.does(_STOPS_WORK):
        return GateResult("checkpoint", passed=True, reason=f"{asked.plan.action} stops no training")
    training = [pod for pod in about.moves.going if pod.gpus and is_training(pod, about.scene.workloads)]
    if not training:
        return GateResult("checkpoint", passed=True, reason="no training runs here")
    alone: list[PodView] = []
    doubts: list[str] = []
    known: list[str] = []
    for pod in training:
        found = restarted_whole(pod, about.scene.workloads, asked.policy.restart)
        if found is None:
            alone.append(pod)
            continue
        job = found[0]
        doubt, said = _of_job(about, job, pod)
        (doubts if doubt else known).append(f"{job.kind} {job.namespace}/{job.name}: {doubt or said}")
    if doubts:
        return GateResult("checkpoint", passed=False, reason="; ".join(dict.fromkeys(doubts)))
    told = "; ".join(dict.fromkeys(known))
    if not alone:
        return GateResult("checkpoint", passed=True, reason=told)
    said = f"{loss_of(alone, asked.around.now)} since the start; no checkpoint of it is known"
    may = about.tier not in about.policy.ask_without_checkpoint
    allowed = f"; policy lets {about.tier}s go ahead" if may else ""
    return GateResult("checkpoint", may, f"{f'{told}; ' if told else ''}{said}{allowed}")


def _of_job(about: Situation, job: WorkloadView, pod: PodView) -> tuple[str, str]:
    """Why a person has to be asked before this job is restarted, and what is known of its checkpoint."""
    now, policy = about.asked.around.now, about.asked.policy.restart
    last = checkpoint_of(job, (pod,), now, about.scene.measured.get(job.uid))
    doubt = may_restart(last, policy, now)
    can_still_save = about.asked.incident.tier is not Tier.FACT and last.freshness is not Freshness.LOST
    if doubt and can_still_save and asking_of(job, policy.request_deadline).possible:
        return "", f"{last.why}; it is asked for one first"
    return doubt, last.why


def spare_capacity(about: Situation) -> GateResult:
    """Other nodes have room for the pods with GPUs that would be moved."""
    moving = [pod for pod in about.moves.going if pod.gpus and pod.owner is not None]
    if not moving:
        return GateResult("spare_capacity", passed=True, reason="no pod with GPUs has to find another place")
    out = frozenset(about.asked.incident.nodes) | about.asked.around.wanted_out
    free = {name: gpus for name, gpus in about.free.items() if name not in out}
    homeless = without_room(moving, free)
    if not homeless:
        said = f"room for {sum(pod.gpus for pod in moving)} GPUs among {sum(free.values())} free ones"
        return GateResult("spare_capacity", passed=True, reason=said)
    said = f"no node has {homeless[0].gpus} GPUs free for {_name(homeless[0])}{_more(homeless, 1)}"
    needed = about.tier in about.policy.need_spare_capacity
    allowed = "" if needed else f"; policy lets {about.tier}s go ahead, and it waits for a place"
    return GateResult("spare_capacity", not needed, f"{said}{allowed}")


MOVING: tuple[Callable[[Situation], GateResult], ...] = (
    pods_may_move,
    pdb_sound,
    pdb_headroom,
    last_restart,
    checkpoint,
    spare_capacity,
)


def loss_of(pods: list[PodView], now: datetime) -> str:
    """What these pods have computed since they started, in GPU-hours."""
    hours = gpu_hours(pods, now)
    return f"{len(pods)} training pods with {sum(pod.gpus for pod in pods)} GPUs, {hours:.1f} GPU-hours"


def gpu_hours(pods: list[PodView], now: datetime) -> float:
    """GPUs times hours since the start of each pod; a pod that does not say when it started counts nothing."""
    return sum(pod.gpus * max(0.0, (now - pod.started).total_seconds()) / 3600 for pod in pods if pod.started)


def _name(pod: PodView) -> str:
    return f"pod {pod.namespace}/{pod.name}"


def _more(things: Sized, shown: int = _NAMED) -> str:
    count = len(things) - shown
    return f" (and {count} more)" if count > 0 else ""
