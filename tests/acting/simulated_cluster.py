"""A small cluster of values, people and other tools that change it, and an executor that acts as the real one does.

Every change of ours goes through `SimulatedCluster._patched`, which applies the merge patch as an API server would and
checks what must hold for any patch at all. What others have made of a node is kept beside it, so that each check can
compare the node without our marks with what it would be without us.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from detectors.findings import GpuState, Incident, Verdict
from remediation.breaker import BreakerState, TakenOut
from remediation.cluster.hands import not_ours_to_touch
from remediation.decide import Decision, advanced, decide_on, newly_taken, taken_by
from remediation.drain import drain, fates
from remediation.gates import Circumstances
from remediation.limits import Attempt, Ending, Fleet
from remediation.modes import Mode, Modes
from remediation.moving import drain_started
from remediation.objects import CORDONED_BY, INCIDENT, OWNER, PREFIX, TAINT_KEY, NodeView, PodView, Stage, Taint
from remediation.ownership import is_out_for_good
from remediation.patches import Order, Patch, apply, forget, order_of, release
from remediation.people import Said, Saying, Word
from remediation.plan import NOT_HARDWARE, TAKES_OUT, Works, plan
from remediation.scene import Scene
from remediation.shares import at_most
from remediation.wish import NodeWish, wishes
from rules.loader import load_rules
from rules.schema import BreakerPolicy
from rules.vocabulary import Action, Tier
from tests.acting.test_patches import patched
from tests.acting.views import AT, JOB, node, workload

POOL, RACK = "karpenter.sh/nodepool", "nvidia.com/gpu.clique"
_SHIPPED = load_rules().policy
LIMITS = _SHIPPED.limits.model_copy(
    update={
        "max_unavailable_share": 0.25,
        "max_unavailable_share_of_pool": 0.34,
        "max_unavailable_share_of_domain": 0.5,
        "max_unavailable_nodes_of_domain": 2,
        "max_actions_per_hour": 6,
    }
)
POLICY = _SHIPPED.model_copy(
    update={"limits": LIMITS, "breaker": BreakerPolicy(window="30m", min_nodes=4, cool_down="40m")}
)
WORKLOADS = {JOB.uid: workload(restarts_allowed=None)}
NAMES = tuple(f"n{number:02d}" for number in range(12))
#: What healthy nodes carry anyway.
TAINTS = (Taint("nvidia.com/gpu", "NoSchedule", "present"), Taint("dedicated", "NoSchedule", "training"))
ANNOTATIONS = {"example.com/owner": "team-a"}
#: Two pools of six, three racks of four.
LABELS = {name: {POOL: f"p{number // 6}", RACK: f"r{number % 3}"} for number, name in enumerate(NAMES)}


@dataclass
class SimulatedCluster:
    """What there is, who says what, and what was done. Times move only where a test moves them."""

    modes: Modes
    now: datetime = AT
    incidents: dict[str, Incident] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    pods: dict[str, PodView] = field(default_factory=dict)
    sayings: list[Saying] = field(default_factory=list)
    history: list[Attempt] = field(default_factory=list)
    taken: tuple[TakenOut, ...] = ()
    breaker: BreakerState = field(default_factory=BreakerState)
    leads: bool = True
    ledger: bool = True
    source_ok: bool = True
    stale_s: float = 0.0
    snapshot_age_s: float = 0.0
    unseen: frozenset[str] = frozenset()
    #: nodes that somebody wants left alone, until when (None: until somebody ends it)
    left_alone: dict[str, datetime | None] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    #: what this tick did: patches, pods moved, and what lets the next tick do more
    patches: int = 0
    moves: int = 0
    goes_on: int = 0

    def __post_init__(self) -> None:
        self.nodes: dict[str, NodeView] = {
            name: node(name, labels=LABELS[name], annotations=ANNOTATIONS, taints=TAINTS) for name in NAMES
        }
        #: the nodes as they would be if we had never touched them
        self.theirs = dict(self.nodes)

    # ---------------------------------------------------------------------------------------------- what others do

    def others_change(self, name: str, **fields) -> None:
        """Somebody else changes a node: it and its picture without us alike."""
        seen = self.nodes[name]
        self.nodes[name] = replace(seen, version=str(int(seen.version) + 1), **fields)
        self.theirs[name] = without_ours(self.nodes[name])

    def said(self) -> Said:
        return Said.of(self.sayings)

    def say(self, word: Word, name: str = "", *about: str, by: str = "ann", **fields) -> None:
        self.sayings.append(Saying(self.now, word, by, name, about, **fields))

    def on(self, name: str) -> list[Incident]:
        """The open incidents of a node."""
        return [one for one in self.incidents.values() if name in one.nodes]

    # ------------------------------------------------------------------------------------------------ one tick

    def tick(self) -> None:
        """Decide, and do what was decided, as `remediation.cluster.executor` does."""
        self.patches = self.moves = self.goes_on = 0
        scene = self._scene()
        incidents = list(self.incidents.values())
        self.decisions = decide_on(
            incidents, Works(), self._verdicts(), POLICY, around=self._around(scene), modes=self.modes, scene=scene
        )
        self.taken += newly_taken(self.taken, taken_by(self.decisions, incidents, self.modes, scene.said))
        self.breaker = advanced(self.breaker, self.taken, scene, POLICY, self.now)
        wanted = wishes(self.decisions, incidents, self.modes, scene.said)
        if not (self.leads and self.ledger and self.stale_s <= LIMITS.max_cluster_age):
            assert not wanted, "nothing is wished for while nothing may be done"
            assert not any(decision.allowed for decision in self.decisions)
            return
        self._heed()
        self._settle()
        for name, wish in wanted.items():
            if name in self.nodes and order_of(self.nodes[name]) is Order.NONE and not self._heeded_now(name):
                self._mark(name, wish)
                self._drain(name, wish)
        for decision in self.decisions:
            name, incident = decision.plan.node, decision.plan.incident
            ordered = scene.said.given_back(name, incident) is not None
            approved = (Action.RELEASE,) if ordered else scene.said.approved(incident)
            may = Action.RELEASE in self.modes.carried_out(decision.allowed, approved)
            if may and name not in wanted and self.nodes[name].annotation(INCIDENT):
                self._release(name, decision)

    def settle_down(self) -> None:
        """Ticks at one moment until nothing changes any more: at the second one, but where the first made it possible.

        A node that was given back leaves room for another one, and a drain that has ended is followed by quarantine.
        """
        for _ in range(2 * len(NAMES)):
            self.tick()
            goes_on, changed = self.goes_on, self.patches + self.moves
            if not changed and not goes_on:
                return
            if not goes_on:
                self.tick()
                assert (self.patches, self.moves) == (0, 0), "deciding and doing the same again changes nothing"
                return
        raise AssertionError("it does not settle")

    def _scene(self) -> Scene:
        by_node: dict[str, list[PodView]] = defaultdict(list)
        for pod in self.pods.values():
            by_node[pod.node].append(pod)
        return Scene(
            fleet=Fleet.of(self.nodes.values(), LIMITS),
            pods_by_node={name: tuple(pods) for name, pods in by_node.items()},
            workloads=WORKLOADS,
            stale_s=self.stale_s,
            leads=self.leads,
            history=tuple(self.history),
            breaker=advanced(self.breaker, self.taken, Scene(Fleet.of(self.nodes.values(), LIMITS)), POLICY, self.now),
            taken=self.taken,
            said=self.said(),
            over=frozenset(self.ended),
        )

    def _around(self, scene: Scene) -> Circumstances:
        return Circumstances(
            now=self.now,
            snapshot_at=self.now - timedelta(seconds=self.snapshot_age_s),
            source_ok=self.source_ok,
            ledger_writable=self.ledger,
            fleet=dict.fromkeys(NAMES, True),
            gpu_nodes=frozenset(NAMES),
            wanted_out=frozenset(),
            already_out=frozenset(scene.fleet.out),
            settled_out=scene.fleet.settled,
            standing=frozenset(self.incidents),
            known_share=1 - len(self.unseen) / len(NAMES),
        )

    def _verdicts(self) -> list[Verdict]:
        worst = {Tier.FACT: GpuState.FAILED, Tier.TREND: GpuState.FAILING, Tier.SUSPICION: GpuState.DEGRADED}
        told = []
        for name in NAMES:
            tiers = [one.tier for one in self.on(name) if one.standing]
            state = worst[min(tiers)] if tiers else GpuState.HEALTHY
            told.append(Verdict(name, f"GPU-{name}", GpuState.UNKNOWN if name in self.unseen else state, 0, AT, 1))
        return told

    # ------------------------------------------------------------------------------------------------ the executor

    def _heed(self) -> None:
        """A person took our marks back: stop, write it down, leave the node alone."""
        for name, seen in self.nodes.items():
            order = order_of(seen)
            if order is Order.NONE:
                continue
            until = self.now + timedelta(seconds=LIMITS.hold_off)
            mark = seen.annotation(INCIDENT)
            self.say(Word.RELEASE, name, *([mark] if mark else []), by="somebody")
            held = self.said().hold_on(name, self.now)
            if held is None or (held.until is not None and held.until < until):
                self.say(Word.HOLD, name, by="somebody", until=until)
                self.left_alone[name] = until
            self.history = [
                replace(one, ending=Ending.FAILED) if one.node == name and one.ending is Ending.PENDING else one
                for one in self.history
            ]
            before = seen.unschedulable
            after = self._patched(name, forget(seen))
            assert after.unschedulable is before, "the node is left as the person left it"
            self.theirs[name] = without_ours(after)
            self.goes_on += 1

    def _heeded_now(self, name: str) -> bool:
        """Whether the orders are from before a person's word."""
        return any(one.node == name and one.word is Word.HOLD and one.at == self.now for one in self.sayings)

    def _settle(self) -> None:
        self.history = [
            replace(one, ending=Ending.FAILED)
            if one.ending is Ending.PENDING and one.incident not in self.incidents
            else one
            for one in self.history
        ]

    def _mark(self, name: str, wish: NodeWish) -> None:
        seen = self.nodes[name]
        assert not not_ours_to_touch(seen), "the gates see what the hands see"
        whole = replace(wish, drained=self._is_drained(name, wish))
        patch = apply(seen, whole)
        if patch is None:
            return
        self._may_be_marked(name, wish, patch)
        after = self._patched(name, patch)
        assert apply(after, whole) is None, "the second time there is nothing to do"
        new = {
            Action.NO_NEW_WORK: not _has_our_taint(seen),
            Action.CORDON: wish.cordon and not seen.unschedulable,
            Action.QUARANTINE: whole.stage is Stage.QUARANTINED,
        }
        for action in (action for action, is_new in new.items() if is_new):
            self.history.append(Attempt(self.now, wish.incidents[0], name, action, Ending.DONE))

    def _drain(self, name: str, wish: NodeWish) -> None:
        if not wish.drain or not self.nodes[name].unschedulable or self._is_drained(name, wish):
            return
        pending = next((one for one in self.history if _is_drain_of(one, name, wish, Ending.PENDING)), None)
        if pending is None:
            pending = Attempt(self.now, wish.incidents[0], name, Action.DRAIN, Ending.PENDING)
            self.history.append(pending)
        gates_say = drain_started(self._scene().history, name, self.now)
        assert gates_say <= pending.at, "the gates know each deadline that the hands know"
        pods = [pod for pod in self.pods.values() if pod.node == name]
        told = fates(pods, self.nodes[name], POLICY.drain, started=pending.at, now=self.now)
        for fate in drain(told, POLICY.drain).evict:
            del self.pods[fate.pod.uid]
            self.moves += 1
        left = [fate for fate in told if fate.pod.uid in self.pods]
        if drain(left, POLICY.drain).done:
            self.history[self.history.index(pending)] = replace(pending, ending=Ending.DONE)
            self.goes_on += 1

    def _is_drained(self, name: str, wish: NodeWish) -> bool:
        return any(_is_drain_of(one, name, wish, Ending.DONE) for one in self.history)

    def _release(self, name: str, decision: Decision) -> None:
        self._may_be_released(name, decision)
        after = self._patched(name, release(self.nodes[name]))
        assert release(after) is None, "the second time there is nothing to do"
        assert after == replace(self.theirs[name], version=after.version), "exactly what there would be without us"
        self.goes_on += 1

    # -------------------------------------------------------------------------------------------------- the checks

    def _patched(self, name: str, patch: Patch | None) -> NodeView:
        before = self.nodes[name]
        after = patched(before, patch)
        self.nodes[name] = after
        if patch is None:
            return after
        self.patches += 1
        unmarked = without_ours(after)
        assert (unmarked.taints, unmarked.annotations) == (self.theirs[name].taints, self.theirs[name].annotations)
        if is_out_for_good(after) and not is_out_for_good(before):
            self._within_limits(name)
        return after

    def _within_limits(self, name: str) -> None:
        """We took a node that was in service, or only silent: no more are out than may be, whoever took the others."""
        fleet = Fleet.of(self.nodes.values(), LIMITS)
        groups = [
            (set(NAMES), LIMITS.max_unavailable_share, LIMITS.max_unavailable_nodes),
            (_members(fleet.pools, name), LIMITS.max_unavailable_share_of_pool, LIMITS.max_unavailable_nodes_of_pool),
            (
                _members(fleet.domains, name),
                LIMITS.max_unavailable_share_of_domain,
                LIMITS.max_unavailable_nodes_of_domain,
            ),
        ]
        for members, share, count in groups:
            assert len(members & fleet.out.keys()) <= at_most(share, count, len(members))

    def _may_write(self) -> None:
        assert self.leads
        assert self.ledger
        assert self.stale_s <= LIMITS.max_cluster_age

    def _sees_well(self) -> None:
        self._may_write()
        assert self.source_ok
        assert self.snapshot_age_s <= LIMITS.max_snapshot_age

    def _is_left_alone(self, name: str) -> bool:
        return name in self.left_alone and ((until := self.left_alone[name]) is None or self.now < until)

    def _may_be_marked(self, name: str, wish: NodeWish, patch: Patch) -> None:
        self._sees_well()
        assert len(self.unseen) <= len(NAMES) * (1 - LIMITS.min_coverage)
        assert not self._is_left_alone(name)
        assert self.breaker_closed_before
        wanting = [self.incidents[one] for one in wish.incidents]
        assert all(one.standing and not one.held and name in one.nodes for one in wanting)
        assert not any(self.said().rejected(one.id) for one in wanting)
        strong = [one for one in wanting if one.tier is not Tier.SUSPICION and one.cause_class not in NOT_HARDWARE]
        if wish.cordon or wish.drain or wish.quarantine or "unschedulable" in patch.get("spec", {}):
            assert strong, "suspicion and a program's fault do no more than to keep new work away"
        for action, is_wanted in ((Action.CORDON, wish.cordon), (Action.DRAIN, wish.drain)):
            assert not is_wanted or any(self._is_released(action, one) for one in strong)
        assert any(self._is_released(Action.NO_NEW_WORK, one) for one in wanting)

    def _is_released(self, action: Action, incident: Incident) -> bool:
        """Whether mode or person lets this action happen for this incident."""
        mode = self.modes.of(action)
        return mode is Mode.AUTO or (mode is Mode.APPROVE and action in self.said().approved(incident.id))

    def _may_be_released(self, name: str, decision: Decision) -> None:
        self._may_write()
        assert not self._is_left_alone(name)
        mark = self.nodes[name].annotation(INCIDENT)
        assert decision.plan.incident == mark
        if self.said().given_back(name, mark) is None:
            self._sees_well()
            assert mark in self.ended
            assert name not in self.unseen
            for one in self.on(name):
                assert one.tier is Tier.SUSPICION or not one.standing, "each of its GPUs is well"
                assert not plan(one, Works(), POLICY).does(TAKES_OUT), "nothing open keeps it out"

    @property
    def breaker_closed_before(self) -> bool:
        """Whether the breaker lets this tick act: it was closed, or this very tick has tripped it."""
        return self.breaker.open_since is None or self.breaker.open_since == self.now


def without_ours(seen: NodeView) -> NodeView:
    """A node as it would be if we took all our marks off."""
    return replace(
        seen,
        unschedulable=seen.unschedulable and not seen.cordon_is_ours,
        taints=tuple(taint for taint in seen.taints if taint.key != TAINT_KEY),
        annotations=tuple(
            (key, value)
            for key, value in seen.annotations
            if not key.startswith(PREFIX) or (key == CORDONED_BY and value != OWNER)
        ),
    )


def _has_our_taint(seen: NodeView) -> bool:
    return any(taint.key == TAINT_KEY for taint in seen.taints)


def _is_drain_of(one: Attempt, name: str, wish: NodeWish, ending: Ending) -> bool:
    return (one.node, one.action, one.ending) == (name, Action.DRAIN, ending) and one.incident in wish.incidents


def _members(groups, name: str) -> set[str]:
    return {other for other, group in groups.items() if group == groups[name]}
