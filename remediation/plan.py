"""From an incident to what should be done: the rung of the ladder, the steps up to it, and who they affect.

Pure: the loop and the audit call it with the same values. Policy (packs/policy.yaml) chooses; the floor is here:
suspicion alone never disrupts, and an application's fault never takes hardware out, whatever a site's policy says.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain

from detectors.findings import Incident
from detectors.identity import Workload
from detectors.snapshot import Snapshot
from rules.schema import ActionPolicy, Policy
from rules.vocabulary import DISRUPTIVE, OPERATIONS, Action, CauseClass, Tier

#: Actions that make a node (or a part of it) unavailable until somebody undoes them.
TAKES_OUT = (DISRUPTIVE - {Action.RESTART_JOB}) | {Action.NO_NEW_WORK}
#: Whose faults are not the hardware's.
NOT_HARDWARE = frozenset({CauseClass.APPLICATION, CauseClass.JOB, CauseClass.TELEMETRY})

_UNDO = {
    Action.NO_NEW_WORK: "remove the taint",
    Action.CORDON: "uncordon the node",
    Action.DRAIN: "uncordon the node; evicted pods run elsewhere by then",
    Action.QUARANTINE: "release the node",
    Action.CHECKPOINT: "nothing to undo",
    Action.DIAGNOSE: "nothing to undo",
    Action.WATCH: "nothing to undo",
}
_TIER_KEY = {Tier.FACT: "fact", Tier.TREND: "trend", Tier.SUSPICION: "suspicion"}
#: What is done to a node that only service mends.
_FOR_SERVICE = (Action.NO_NEW_WORK, Action.CHECKPOINT, Action.CORDON, Action.DRAIN, Action.QUARANTINE)
_NOTHING_STANDS = ActionPolicy(ladder=(Action.WATCH,), reason="nothing of it stands any more; it closes if it stays so")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan, and what takes it back (`nothing` where nothing does).

    `when_idle`: it waits until the work on it has ended, because no step before it moves that work away.
    """

    action: Action
    undo: str
    when_idle: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be done about one incident.

    `action` is the last rung; `affected` are the pods that its steps would stop, move or ask something of; `jobs` all
    that have work on the incident's nodes.
    """

    incident: str
    node: str
    gpu: str
    action: Action
    steps: tuple[Step, ...]
    affected: tuple[str, ...]
    jobs: tuple[str, ...]
    reason: str
    #: whether the node then stays out until a person says that it was mended
    for_service: bool = False

    def does(self, actions: Iterable[Action]) -> tuple[Action, ...]:
        """Which of these actions are among its steps."""
        wanted = frozenset(actions)
        return tuple(step.action for step in self.steps if step.action in wanted)


@dataclass(frozen=True, slots=True)
class Works:
    """Who runs where at one moment, so that each plan needs to look only at its own nodes."""

    on_node: dict[str, set[Workload]] = field(default_factory=lambda: defaultdict(set))
    on_gpu: dict[str, set[Workload]] = field(default_factory=lambda: defaultdict(set))
    of_job: dict[tuple[str, str], set[Workload]] = field(default_factory=lambda: defaultdict(set))

    @staticmethod
    def around(snapshot: Snapshot, nodes: Collection[str]) -> "Works":
        """The works on these nodes, and all of the jobs that have a part there."""
        works = Works()
        if not nodes:
            return works
        placed = list(zip(snapshot.gpus, snapshot.workloads, strict=False))
        for gpu, users in placed:
            if gpu.node in nodes:
                works.on_node[gpu.node].update(users)
                works.on_gpu[gpu.uuid].update(users)
        jobs = {(work.namespace, work.job) for here in works.on_node.values() for work in here}
        for work in chain.from_iterable(users for _, users in placed) if jobs else ():
            if (work.namespace, work.job) in jobs:
                works.of_job[work.namespace, work.job].add(work)
        return works


def choose(incident: Incident, policy: Policy) -> ActionPolicy:
    """The ladder for an incident: by its cause where policy says so, else by what the fault asks for."""
    if not incident.standing:
        return _NOTHING_STANDS
    key = _TIER_KEY[incident.tier]
    by_cause = policy.actions.get(incident.cause_class, {})
    chosen = next((rung for tier, rung in by_cause.items() if tier == key), None)
    if chosen is not None and chosen.when_asked and incident.action not in chosen.when_asked:
        chosen = None
    if chosen is None and incident.tier is Tier.FACT:
        chosen = policy.by_fault_action.get(incident.action)
    elif chosen is None and incident.tier is Tier.TREND:
        chosen = policy.by_trend_action.get(incident.action)
    if chosen is None:
        chosen = ActionPolicy(ladder=(Action.WATCH,), reason="policy says nothing about this")
    return _floor(chosen, incident)


def _floor(chosen: ActionPolicy, incident: Incident) -> ActionPolicy:
    """What no policy can raise."""
    if incident.tier is not Tier.SUSPICION and incident.cause_class not in NOT_HARDWARE:
        return chosen
    allowed = tuple(action for action in chosen.ladder if action not in DISRUPTIVE)
    if allowed == chosen.ladder:
        return chosen
    return ActionPolicy(ladder=allowed or (Action.WATCH,), reason=f"{chosen.reason}; the evidence allows no more")


def plan(incident: Incident, works: Works, policy: Policy, why_service: str = "", *, proven: bool = False) -> Plan:
    """The plan for an open incident at this moment.

    `why_service` says why its node is beyond what a reset mends: then whatever would take it out ends in quarantine.
    Where a diagnosis has `proven` that its hardware is bad, it ends so whatever its signals would lead to.
    """
    chosen = choose(incident, policy)
    takes_out = proven or bool(DISRUPTIVE & set(chosen.ladder))
    for_service = bool(why_service) and incident.tier is not Tier.SUSPICION and takes_out
    if for_service:
        chosen = _floor(ActionPolicy(ladder=_FOR_SERVICE, reason=f"{chosen.reason}; {why_service}"), incident)
    steps = []
    for index, action in enumerate(chosen.ladder):
        when_idle = action in OPERATIONS and Action.DRAIN not in chosen.ladder[:index]
        steps.append(Step(action, _UNDO.get(action, "nothing"), when_idle))
    here = {work for node in incident.nodes for work in works.on_node.get(node, ())}
    return Plan(
        incident=incident.id,
        node=incident.node,
        gpu=incident.gpu_uuids[0] if len(incident.gpu_uuids) == 1 else "",
        action=chosen.ladder[-1],
        steps=tuple(steps),
        affected=tuple(f"pod {work.namespace}/{work.pod}" for work in sorted(_touched(chosen, incident, works, here))),
        jobs=tuple(sorted({f"{work.namespace}/{work.job}" for work in here})),
        reason=chosen.reason,
        for_service=for_service and chosen.ladder == _FOR_SERVICE,
    )


def _touched(chosen: ActionPolicy, incident: Incident, works: Works, here: set[Workload]) -> set[Workload]:
    """The pods that a ladder reaches: a drain takes a node's pods, whichever GPU is sick; a restart a whole job's."""
    touched: set[Workload] = set()
    if Action.DRAIN in chosen.ladder or Action.CHECKPOINT in chosen.ladder:
        touched |= here
    if Action.RESTART_JOB in chosen.ladder:
        sick = {work for gpu in incident.gpu_uuids for work in works.on_gpu.get(gpu, ())} or here
        touched |= {pod for work in sick for pod in works.of_job[work.namespace, work.job]}
    return touched
