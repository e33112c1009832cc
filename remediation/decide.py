"""Decisions: a plan and its gates make act, wait, ask or refuse. Observe and every other mode decide alike.

Called once a tick for all open incidents and all nodes that carry our marks; says nothing about who carries a decision
out. Where there is a scene (a cluster, a record of attempts, people's words) its gates are asked as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import takewhile

import numpy as np

from detectors.findings import Incident, Verdict
from detectors.snapshot import Snapshot
from detectors.verdict import share_unknown
from remediation.authority import AUTHORITY, cluster_fresh, leadership
from remediation.breaker import BreakerState, TakenOut, advance
from remediation.capacity import free_gpus
from remediation.gates import GATES, Asked, Circumstances, GateResult, fresh, ledger
from remediation.limits import LIMITS, Ending, History, Question
from remediation.modes import OBSERVE_ALL, Modes
from remediation.moving import MOVING, Moves, Situation
from remediation.operations import failed_diagnosis
from remediation.people import Said, Saying
from remediation.plan import NOT_HARDWARE, TAKES_OUT, Plan, Works, plan
from remediation.release import release_gates, release_plans
from remediation.scene import Scene
from rules.restore_schema import NO_OUTAGE
from rules.schema import Policy
from rules.vocabulary import Action, CauseClass, FaultAction, IncidentScope, Tier


class Ruling(StrEnum):
    """What comes of a plan. WAIT ends by itself, ASK needs a person, REFUSE stands until the evidence changes."""

    ACT = "act"
    WAIT = "wait"
    ASK = "ask"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Stop:
    """What a gate that does not pass leads to.

    `holds` are the actions that it holds back, with all that come after them on the ladder; None holds back all.
    `approvable`: a person who has seen it may let the plan go ahead all the same.
    """

    ruling: Ruling
    holds: frozenset[Action] | None = None
    approvable: bool = False


_MOVING = frozenset({Action.DRAIN, Action.RESTART_JOB})
#: What each gate leads to where it does not pass.
STOPS = {
    "snapshot_fresh": Stop(Ruling.WAIT),
    "ledger_writable": Stop(Ruling.WAIT),
    "evidence_tier": Stop(Ruling.REFUSE),
    "fault_still_open": Stop(Ruling.REFUSE),
    "node_known": Stop(Ruling.REFUSE),
    "gpu_known": Stop(Ruling.ASK),
    "common_cause": Stop(Ruling.ASK),
    "blast_radius": Stop(Ruling.WAIT),
    "coverage": Stop(Ruling.WAIT),
    "leadership": Stop(Ruling.WAIT),
    "cluster_fresh": Stop(Ruling.WAIT),
    "rejected": Stop(Ruling.REFUSE),
    "on_hold": Stop(Ruling.WAIT),
    "breaker": Stop(Ruling.ASK),
    "in_cluster": Stop(Ruling.REFUSE),
    "managed": Stop(Ruling.REFUSE),
    "ownership": Stop(Ruling.ASK),
    "pool_limit": Stop(Ruling.WAIT),
    "domain_limit": Stop(Ruling.WAIT),
    "one_at_a_time": Stop(Ruling.WAIT),
    "action_rate": Stop(Ruling.WAIT),
    "attempts": Stop(Ruling.ASK, approvable=True),
    "backoff": Stop(Ruling.WAIT, approvable=True),
    "maintenance_window": Stop(Ruling.WAIT, frozenset(), approvable=True),  # what it holds back is policy
    "pods_may_move": Stop(Ruling.ASK, _MOVING),
    "pdb_sound": Stop(Ruling.ASK, _MOVING),
    "pdb_headroom": Stop(Ruling.WAIT, _MOVING),
    "last_restart": Stop(Ruling.ASK, _MOVING, approvable=True),
    "checkpoint": Stop(Ruling.ASK, _MOVING, approvable=True),
    "spare_capacity": Stop(Ruling.WAIT, _MOVING, approvable=True),
    "incident_over": Stop(Ruling.ASK),
    "gpus_well": Stop(Ruling.WAIT),
    "diagnosed": Stop(Ruling.WAIT, frozenset({Action.RELEASE})),
    "diagnosis_passed": Stop(Ruling.ASK, frozenset({Action.RELEASE})),
    "soak": Stop(Ruling.WAIT, frozenset({Action.RELEASE})),
    "service_done": Stop(Ruling.ASK),
}
#: Gates that an approval overrules once: it is good for one more try.
_TRIES = frozenset({"attempts", "backoff"})
_STRICTNESS = (Ruling.ACT, Ruling.WAIT, Ruling.ASK, Ruling.REFUSE)


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one incident, or about the release of one node.

    `mode` says whether anybody would carry it out. `allowed` are the steps that no gate holds back: all of them where
    the ruling is ACT; the first ones, such as keeping new work away, where only a later one has to wait.
    """

    at: datetime
    plan: Plan
    mode: str
    ruling: Ruling
    gates: tuple[GateResult, ...]
    allowed: tuple[Action, ...] = ()

    @property
    def telling(self) -> tuple[object, ...]:
        """What has to change for a decision to be worth a new record."""
        plan, failed = self.plan, tuple(gate.name for gate in self.gates if not gate.passed)
        return plan.incident, plan.node, plan.gpu, plan.action, self.ruling, failed, self.mode, self.allowed


def ruling_of(gates: Sequence[GateResult]) -> Ruling:
    """The strictest of what the failed gates lead to; ACT where none failed."""
    failed = (STOPS[gate.name].ruling for gate in gates if not gate.passed)
    return max(failed, key=_STRICTNESS.index, default=Ruling.ACT)


def held_by(gate: GateResult, wanted: Plan, policy: Policy) -> frozenset[Action]:
    """Which steps of a plan a gate that does not pass holds back by itself; what comes after them waits as well."""
    steps, holds = frozenset(step.action for step in wanted.steps), STOPS[gate.name].holds
    return steps if holds is None else steps & (holds or frozenset(policy.maintenance.actions))


def allowed_by(gates: Sequence[GateResult], wanted: Plan, policy: Policy) -> tuple[Action, ...]:
    """The plan's first steps, up to the first that a gate holds back."""
    held = {action for gate in gates if not gate.passed for action in held_by(gate, wanted, policy)}
    return tuple(takewhile(lambda action: action not in held, (step.action for step in wanted.steps)))


def decide(
    incidents: Sequence[Incident],
    snapshot: Snapshot,
    verdicts: Sequence[Verdict],
    policy: Policy,
    *,
    now: datetime,
    modes: Modes = OBSERVE_ALL,
    ledger_writable: bool,
    scene: Scene | None = None,
) -> tuple[Decision, ...]:
    """A decision for every open incident of this moment, and for each node that is to be given back."""
    with_gpus = [snapshot.nodes[int(row)] for row in np.unique(snapshot.node_of)]
    gpu_nodes = frozenset(node.name for node in with_gpus if node.resolved)
    around = Circumstances(
        now=now,
        snapshot_at=snapshot.telemetry_at or snapshot.at,
        source_ok=snapshot.source.ok,
        ledger_writable=ledger_writable,
        fleet={node.name: node.resolved for node in snapshot.nodes},
        # where Prometheus knows the nodes of several clusters, the limits are those of this one
        gpu_nodes=gpu_nodes if scene is None else gpu_nodes & scene.fleet.nodes.keys(),
        wanted_out=frozenset(),
        already_out=frozenset(scene.fleet.out) if scene is not None else frozenset(),
        settled_out=scene.fleet.settled if scene is not None else frozenset(),
        standing=frozenset(incident.id for incident in incidents),
        known_share=1.0 - share_unknown(verdicts),
    )
    works = Works.around(snapshot, {name for incident in incidents for name in incident.nodes})
    return decide_on(incidents, works, verdicts, policy, around=around, modes=modes, scene=scene)


def decide_on(
    incidents: Sequence[Incident],
    works: Works,
    verdicts: Sequence[Verdict],
    policy: Policy,
    *,
    around: Circumstances,
    modes: Modes = OBSERVE_ALL,
    scene: Scene | None = None,
) -> tuple[Decision, ...]:
    """As `decide`, in circumstances that are known from elsewhere, such as the record.

    The strongest evidence comes first; earlier incidents take their share of the limits from later ones.
    """
    decisions = []
    history = History.of(scene.history if scene is not None else ())
    free = free_gpus(scene.fleet, scene.pods_by_node) if scene is not None and incidents else {}
    for incident in sorted(incidents, key=lambda i: (i.tier, i.opened, i.id)):
        bad = failed_diagnosis(incident.id, incident.nodes, scene.operations) if scene is not None else ""
        about = proven(incident) if bad else incident
        wanted = plan(about, works, policy, bad or service_of(incident, scene), proven=bool(bad))
        asked = Asked(wanted, about, around, policy)
        gates = tuple(gate(asked) for gate in GATES)
        if scene is not None:
            moves = Moves.of(asked, scene, history)
            wanted = _with_pods(wanted, moves)
            here = Situation(replace(asked, plan=wanted), scene, moves, history, free)
            gates = _approved((*gates, *_of_scene(here)), scene, incident)
        allowed = allowed_by(gates, wanted, policy)
        decisions.append(Decision(around.now, wanted, modes.of(wanted.action).value, ruling_of(gates), gates, allowed))
        happens = allowed if scene is None else modes.would_happen(allowed, scene.said.approved(incident.id))
        if frozenset(happens) & TAKES_OUT:
            around = replace(around, wanted_out=around.wanted_out | frozenset(incident.nodes))
            scene = scene and _after(scene, incident, policy, around.now)
    if scene is not None:
        releases = release_plans(scene, [one.plan for one in decisions], incidents, policy, around.now)
        decisions.extend(_release(one, scene, around, verdicts, policy, modes) for one in releases)
    return tuple(decisions)


def proven(incident: Incident) -> Incident:
    """An incident on whose node a diagnosis has found bad hardware: that is a fact, whatever was only suspected."""
    cause = CauseClass.HARDWARE if incident.cause_class in NOT_HARDWARE else incident.cause_class
    return replace(incident, tier=Tier.FACT, cause_class=cause)


def service_of(incident: Incident, scene: Scene | None) -> str:
    """Why a node of this incident is beyond what a reset mends; "" where none is."""
    if scene is None:
        return ""
    counts = incident.tier is not Tier.SUSPICION and not incident.held and incident.cause_class not in NO_OUTAGE
    things = [("gpu", gpu) for gpu in incident.gpu_uuids] + [("node", name) for name in incident.nodes]
    for kind, name in things if counts and scene.chronic else ():
        if why := scene.chronic.get(f"{kind}:{name}"):
            return f"{kind} {name} is chronic: {why}; a reset is not enough"
    for name in incident.nodes:
        node = scene.fleet.nodes.get(name)
        if node is not None and (node.on_probation or node.needs_service):
            since = "failed within its probation" if node.on_probation or not scene.chronic else "needs service"
            return f"{name} {since}, so a reset is not enough"
    return ""


def taken_by(
    decisions: Iterable[Decision], incidents: Sequence[Incident], modes: Modes, said: Said
) -> tuple[TakenOut, ...]:
    """The nodes that these decisions take out, for the circuit breaker. Plans that wait for an approval take none."""
    nodes_of = {incident.id: incident.nodes for incident in incidents}
    return tuple(
        TakenOut(node, decision.at, decision.plan.incident)
        for decision in decisions
        if frozenset(modes.would_happen(decision.allowed, said.approved(decision.plan.incident))) & TAKES_OUT
        for node in nodes_of.get(decision.plan.incident, ())
    )


def newly_taken(taken: Sequence[TakenOut], more: Iterable[TakenOut]) -> tuple[TakenOut, ...]:
    """Those of `more` that are not among `taken`: one incident takes a node out once, however often it is decided."""
    known = {(one.node, one.incident) for one in taken}
    return tuple(one for one in more if (one.node, one.incident) not in known)


def _of_scene(about: Situation) -> tuple[GateResult, ...]:
    asked, scene = about.asked, about.scene
    ask = Question(
        plan=asked.plan, nodes=frozenset(asked.incident.nodes), now=asked.around.now, policy=asked.policy,
        fleet=scene.fleet, wanted_out=asked.around.wanted_out, history=about.history,
    )  # fmt: skip
    return (
        *(gate(asked, scene) for gate in AUTHORITY),
        *(limit(ask) for limit in LIMITS),
        *(gate(about) for gate in MOVING),
    )


def _with_pods(wanted: Plan, moves: Moves) -> Plan:
    """The API server's word on who is affected wins over that of metrics, which know only pods with GPUs."""
    pods = sorted({f"pod {pod.namespace}/{pod.name}" for pod in moves.going})
    return replace(wanted, affected=tuple(pods)) if wanted.does((Action.DRAIN,)) else wanted


def _approved(gates: Sequence[GateResult], scene: Scene, incident: Incident) -> tuple[GateResult, ...]:
    """An approval lets those gates pass that it was given in sight of, where they are a person's to overrule."""
    approval = scene.said.approval(incident.id)
    if approval is None:
        return tuple(gates)
    since = (one for one in scene.history if one.incident == incident.id and one.at > approval.at)
    spent = _TRIES if any(one.ending is Ending.FAILED for one in since) else frozenset()
    return tuple(gate if gate.passed or gate.name in spent else _overruled(gate, approval) for gate in gates)


def _overruled(gate: GateResult, approval: Saying) -> GateResult:
    if not STOPS[gate.name].approvable or gate.name not in approval.gates:
        return gate
    return GateResult(gate.name, passed=True, reason=f"{gate.reason}; overruled by {approval.source}")


def _after(scene: Scene, incident: Incident, policy: Policy, now: datetime) -> Scene:
    """The scene once this incident's nodes count as taken out."""
    more = newly_taken(scene.taken, (TakenOut(node, now, incident.id) for node in incident.nodes))
    taken = (*scene.taken, *more)
    return replace(scene, taken=taken, breaker=advanced(scene.breaker, taken, scene, policy, now))


def advanced(
    state: BreakerState, taken: Sequence[TakenOut], scene: Scene, policy: Policy, now: datetime
) -> BreakerState:
    """The breaker at this moment, in this fleet."""
    return advance(state, taken, policy.breaker, fleet=len(scene.fleet.nodes), now=now)


def _release(
    wanted: Plan, scene: Scene, around: Circumstances, verdicts: Sequence[Verdict], policy: Policy, modes: Modes
) -> Decision:
    asked = Asked(wanted, _ended(wanted, around.now), around, policy)
    ordered = scene.said.given_back(wanted.node, wanted.incident) is not None
    gates = (
        *(() if ordered else (fresh(asked),)),  # a person's word needs no telemetry
        ledger(asked),
        leadership(asked, scene),
        cluster_fresh(asked, scene),
        *release_gates(wanted, scene, verdicts, policy, around.now),
    )
    allowed = allowed_by(gates, wanted, policy)
    return Decision(around.now, wanted, modes.of(Action.RELEASE).value, ruling_of(gates), gates, allowed)


def _ended(wanted: Plan, now: datetime) -> Incident:
    """The incident of a release, as far as the gates of a release look at it; the record has the whole of it."""
    return Incident(
        id=wanted.incident, opened=now, closed=now, scope=IncidentScope.NODE, node=wanted.node, nodes=(wanted.node,),
        gpu_uuids=(), cause_class=CauseClass.UNKNOWN, tier=Tier.FACT, first_signal_at=now, last_signal_at=now,
        action=FaultAction.NONE, signals=(), why=wanted.reason, standing=False,
    )  # fmt: skip
