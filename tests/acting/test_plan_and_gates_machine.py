"""Faults, people, other tools and outages in any order: what must hold of every plan, gate, wish and patch throughout.

After each event the loop ticks until nothing changes, unless it is busy. The checks stand in `tests.acting
.simulated_cluster`, where each patch of ours passes; the ones here are about what others did.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remediation.drain import DRAIN_MODE
from remediation.modes import Mode, Modes
from remediation.objects import (
    CORDONED_BY,
    DO_NOT_EVICT,
    INCIDENT,
    MANAGED,
    SINCE,
    STAGE,
    TAINT_KEY,
    NodeView,
    Stage,
    Taint,
)
from remediation.patches import Order, order_of
from remediation.people import Word
from rules.vocabulary import Action, CauseClass, FaultAction, Tier
from tests.acting.simulated_cluster import LABELS, NAMES, SimulatedCluster, without_ours
from tests.acting.views import pod
from tests.decide.incidents import incident

#: Most of what happens, happens to a few nodes, so that things meet.
NODE = st.sampled_from([*NAMES[:2] * 8, *NAMES])
NUMBER = st.integers(0, 99)
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
TAINTS = st.sampled_from(
    [
        Taint("node.kubernetes.io/unreachable", "NoExecute", "", "2026-03-04T11:00:00Z"),
        Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule"),
        Taint("repair", "NoSchedule", "ticket-7"),
        Taint("nvidia.com/gpu", "NoSchedule"),
        Taint("soft", "PreferNoSchedule"),
    ]
)
MODES = st.sampled_from(
    [
        Modes(Mode.AUTO),
        Modes(Mode.AUTO),
        Modes(Mode.AUTO, {Action.DRAIN: Mode.APPROVE}),
        Modes(Mode.APPROVE),
        Modes(Mode.OBSERVE, {Action.NO_NEW_WORK: Mode.AUTO, Action.RELEASE: Mode.AUTO}),
    ]
)
#: What may be out of order, and how it is where it isn't.
OUTAGES = {
    "leads": True, "ledger": True, "source_ok": True, "stale_s": 0.0, "snapshot_age_s": 0.0, "unseen": frozenset(),
}  # fmt: skip
MOSTLY = st.sampled_from([True, True, True, False])
#: Most events find a loop that is not busy.
EVENTS_MISSED = st.sampled_from([0, 0, 0, 0, 1, 3])


class PlanAndGates(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.it = SimulatedCluster(Modes())
        self.missed = 0
        self.outage = 0
        self.made = 0

    @initialize(modes=MODES)
    def begins(self, modes: Modes) -> None:
        self.it.modes = modes

    # ------------------------------------------------------------------------------------------------------ faults

    @rule(
        name=NODE,
        tier=st.sampled_from(Tier),
        cause=st.sampled_from([CauseClass.HARDWARE, CauseClass.MEMORY, CauseClass.DRIVER, CauseClass.JOB]),
        action=st.sampled_from([FaultAction.INSPECT, FaultAction.RESET_GPU, FaultAction.REPLACE]),
    )
    def a_fault_is_found(self, name: str, tier: Tier, cause: CauseClass, action: FaultAction) -> None:
        self.made += 1
        told = {"tier": tier, "cause_class": cause, "action": action, "opened": self.it.now}
        found = incident(f"inc-{self.made}", name, **told)
        self.it.incidents[found.id] = found

    @rule(number=NUMBER, tier=st.sampled_from([Tier.FACT, Tier.FACT, Tier.TREND, Tier.SUSPICION]))
    def a_fault_is_found_on_a_node_that_is_out(self, number: int, tier: Tier) -> None:
        name = self.one_of(lambda seen: seen.annotation(INCIDENT), number)
        if name:
            self.a_fault_is_found(name, tier, CauseClass.MEMORY, FaultAction.INSPECT)

    @precondition(lambda self: len(self.it.incidents) < 3)
    @rule(names=st.sets(NODE, min_size=4), is_one_cause=st.booleans())
    def many_nodes_fail_at_once(self, names: set[str], is_one_cause: bool) -> None:
        for name in sorted(names)[: 1 if is_one_cause else None]:
            self.a_fault_is_found(name, Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
        if is_one_cause:
            last = self.some_incident(-1)
            self.it.incidents[last] = replace(self.it.incidents[last], nodes=tuple(sorted(names)), held=True)

    @precondition(lambda self: self.it.incidents)
    @rule(number=NUMBER, tier=st.sampled_from(Tier), stands=MOSTLY, held=MOSTLY)
    def the_evidence_changes(self, number: int, tier: Tier, stands: bool, held: bool) -> None:
        name = self.some_incident(number)
        self.it.incidents[name] = replace(self.it.incidents[name], tier=tier, standing=stands, held=not held)

    @precondition(lambda self: self.it.incidents)
    @rule(number=NUMBER)
    def an_incident_ends(self, number: int) -> None:
        name = self.some_incident(number)
        del self.it.incidents[name]
        self.it.ended.add(name)

    @precondition(lambda self: len(self.it.incidents) > 3)
    @rule()
    def most_incidents_end(self) -> None:
        for number in range(len(self.it.incidents) - 1):
            self.an_incident_ends(number)

    def some_incident(self, number: int) -> str:
        return list(self.it.incidents)[number % len(self.it.incidents)]

    def one_of(self, which: Callable[[NodeView], object], number: int) -> str:
        """One of the nodes of a kind, "" where there is none."""
        names = [name for name, seen in self.it.nodes.items() if which(seen)]
        return names[number % len(names)] if names else ""

    # ------------------------------------------------------------------------------------------------------ people

    @rule(number=NUMBER, ours=st.booleans(), signs=st.booleans())
    def a_person_cordons(self, number: int, ours: bool, signs: bool) -> None:
        """A node that we keep free of new work, or any other."""
        name = self.one_of(lambda seen: not seen.unschedulable and _has_our_taint(seen) is ours, number)
        if name:
            before = self.it.nodes[name].annotations
            signed = (*before, (CORDONED_BY, "ann")) if signs else before
            self.it.others_change(name, unschedulable=True, annotations=tuple(sorted(signed)))

    @rule(number=NUMBER)
    def a_person_uncordons(self, number: int) -> None:
        name = self.one_of(lambda seen: seen.unschedulable, number)
        if name:
            is_order = self.it.nodes[name].cordon_is_ours
            left = tuple(pair for pair in self.it.nodes[name].annotations if pair != (CORDONED_BY, "ann"))
            self.it.others_change(name, unschedulable=False, annotations=left)
            if is_order:
                self.it.left_alone[name] = None

    @rule(number=NUMBER)
    def a_person_takes_our_taint_off(self, number: int) -> None:
        name = self.one_of(_has_our_taint, number)
        if name:
            taints = self.it.nodes[name].taints
            self.it.others_change(name, taints=tuple(taint for taint in taints if taint.key != TAINT_KEY))
            self.it.left_alone[name] = None

    @rule(name=NODE, hours=st.sampled_from([None, 1, 48]))
    def a_person_wants_a_node_left_alone(self, name: str, hours: int | None) -> None:
        until = None if hours is None else self.it.now + timedelta(hours=hours)
        self.it.say(Word.HOLD, name, until=until)
        self.it.left_alone[name] = until

    @rule(name=NODE)
    def a_person_ends_a_hold(self, name: str) -> None:
        self.it.say(Word.RESUME, name)
        if order_of(self.it.nodes[name]) is Order.NONE:  # else that order is still to be heeded
            self.it.left_alone.pop(name, None)

    @precondition(lambda self: self.it.incidents)
    @rule(number=NUMBER, steps=st.integers(1, 6))
    def a_person_approves(self, number: int, steps: int) -> None:
        name = self.some_incident(number)
        for decision in self.it.decisions:
            if decision.plan.incident == name:
                gates = tuple(gate.name for gate in decision.gates if not gate.passed)
                self.it.say(Word.APPROVE, "", name, actions=decision.plan.does(Action)[:steps], gates=gates)

    @precondition(lambda self: self.it.incidents)
    @rule(number=NUMBER)
    def a_person_rejects(self, number: int) -> None:
        self.it.say(Word.REJECT, "", self.some_incident(number))

    @rule(number=NUMBER)
    def a_person_gives_a_node_back(self, number: int) -> None:
        name = self.one_of(lambda seen: seen.annotation(INCIDENT), number)
        if name:
            mark = self.it.nodes[name].annotation(INCIDENT)
            self.it.say(Word.RELEASE, name, *{mark, *(one.id for one in self.it.on(name))})

    @rule(name=NODE)
    def a_person_opts_a_node_out_or_in(self, name: str) -> None:
        labels = dict(self.it.nodes[name].labels)
        wanted = {MANAGED: "false"} if MANAGED not in labels else {}
        self.it.others_change(name, labels=tuple(sorted((LABELS[name] | wanted).items())))

    # ----------------------------------------------------------------------------------- other tools, and the cluster

    @rule(name=NODE, taint=TAINTS)
    def another_tool_taints_or_takes_its_taint_back(self, name: str, taint: Taint) -> None:
        taints = self.it.nodes[name].taints
        without = tuple(one for one in taints if one.key != taint.key)
        self.it.others_change(name, taints=(*taints, taint) if without == taints else without)

    @rule()
    def the_node_controller_catches_up(self) -> None:
        for name, seen in self.it.nodes.items():
            others = tuple(one for one in seen.taints if one.key != UNSCHEDULABLE.key)
            self.it.others_change(name, taints=(*others, UNSCHEDULABLE) if seen.unschedulable else others)

    @rule(name=NODE, ready=st.sampled_from([True, True, False, None]))
    def a_kubelet_speaks_or_falls_silent(self, name: str, ready: bool | None) -> None:
        self.it.others_change(name, ready=ready)

    @rule(annotations=st.sampled_from([{}, {}, {DRAIN_MODE: "wait_for_completion"}, {DO_NOT_EVICT: "true"}]))
    def a_pod_starts_on_each_node_that_takes_one(self, annotations: dict[str, str]) -> None:
        for name, seen in self.it.nodes.items():
            if not seen.unschedulable and not _has_our_taint(seen):
                self.made += 1
                one = pod(f"pod-{self.made}", node=name, annotations=annotations)
                self.it.pods[one.uid] = one

    @precondition(lambda self: self.it.pods)
    @rule(number=NUMBER)
    def a_pod_ends(self, number: int) -> None:
        del self.it.pods[list(self.it.pods)[number % len(self.it.pods)]]

    # ----------------------------------------------------------------------------------------------- time and outages

    @rule(minutes=st.sampled_from([1, 11, 45, 45, 150, 60 * 25]))
    def time_passes(self, minutes: int) -> None:
        self.it.now += timedelta(minutes=minutes)

    @rule(name=st.sampled_from(sorted(OUTAGES.keys() - {"unseen"})))
    def something_is_out_of_order(self, name: str) -> None:
        setattr(self.it, name, 500.0 if name.endswith("_s") else False)
        self.outage = 2

    @rule(names=st.sets(NODE, max_size=4) | st.sets(NODE, min_size=7))
    def some_nodes_are_out_of_sight(self, names: set[str]) -> None:
        self.it.unseen = frozenset(names)
        self.outage = 2

    @rule(missed=EVENTS_MISSED)
    def the_loop_is_busy(self, missed: int) -> None:
        self.missed = missed

    # ----------------------------------------------------------------------------------------------- what always holds

    @invariant()
    def the_loop_settles(self) -> None:
        """An outage lasts as long as the loop is busy, and one event more."""
        if self.missed:
            self.missed -= 1
            return
        self.it.settle_down()
        self.outage -= 1
        if self.outage == 0:
            for name, fine in OUTAGES.items():
                setattr(self.it, name, fine)
            self.it.settle_down()

    @invariant()
    def what_is_theirs_is_as_they_left_it(self) -> None:
        for name, seen in self.it.nodes.items():
            unmarked, theirs = without_ours(seen), self.it.theirs[name]
            assert replace(unmarked, version="") == replace(theirs, version="")


def _has_our_taint(seen: NodeView) -> bool:
    return any(taint.key == TAINT_KEY for taint in seen.taints)


PlanAndGates.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPlanAndGates = PlanAndGates.TestCase


# ----------------------------------------------------------------------------------------- a few stories, step by step


def story() -> PlanAndGates:
    told = PlanAndGates()
    told.begins(Modes(Mode.AUTO))
    return told


def test_a_drain_that_only_a_weaker_incident_wants_goes_on() -> None:
    told = story()
    told.a_pod_starts_on_each_node_that_takes_one({DRAIN_MODE: "wait_for_completion"})
    told.a_fault_is_found("n00", Tier.TREND, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.INSPECT)
    told.the_loop_settles()
    assert told.it.nodes["n00"].annotation(STAGE) == Stage.DRAINING
    told.time_passes(60)
    told.the_loop_settles()
    told.a_pod_ends(0)
    told.the_loop_settles()
    assert told.it.nodes["n00"].annotation(STAGE) == Stage.QUARANTINED


def test_a_stronger_incident_takes_the_lead_and_keeps_it_while_its_drain_is_under_way() -> None:
    told = story()
    told.a_pod_starts_on_each_node_that_takes_one({DRAIN_MODE: "wait_for_completion"})
    told.a_fault_is_found("n00", Tier.TREND, CauseClass.HARDWARE, FaultAction.INSPECT)
    told.the_loop_settles()
    told.time_passes(11)
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.the_loop_settles()
    seen = told.it.nodes["n00"]
    assert (seen.annotation(INCIDENT), seen.annotation(SINCE)) == ("inc-14", "2026-03-04T12:11:00Z")


def test_a_cordon_that_a_person_puts_on_top_of_our_taint_outlives_it() -> None:
    told = story()
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.INSPECT)
    told.the_loop_settles()
    told.a_person_cordons(0, ours=True, signs=True)
    told.an_incident_ends(0)
    told.the_loop_settles()
    assert told.it.nodes["n00"].unschedulable
    assert not told.it.nodes["n00"].annotation(INCIDENT)
    told.what_is_theirs_is_as_they_left_it()


def test_after_a_persons_uncordon_a_node_is_left_alone_and_then_only_for_a_new_incident_taken_out() -> None:
    told = story()
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.the_loop_settles()
    told.a_person_uncordons(0)
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.MEMORY, FaultAction.REPLACE)
    for _ in range(3):
        told.the_loop_settles()
        assert told.it.nodes["n00"] == replace(told.it.theirs["n00"], version=told.it.nodes["n00"].version)
        told.time_passes(60 * 7)
    told.time_passes(60 * 7)
    told.the_loop_settles()
    assert told.it.nodes["n00"].annotation(INCIDENT) == "inc-2"


def test_a_silent_node_is_taken_out_only_where_there_is_room_for_it() -> None:
    told = story()
    for name in ("n00", "n01", "n02"):
        told.a_kubelet_speaks_or_falls_silent(name, ready=False)
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.the_loop_settles()
    assert not told.it.nodes["n00"].unschedulable
    told.a_kubelet_speaks_or_falls_silent("n02", ready=True)
    told.the_loop_settles()
    assert told.it.nodes["n00"].annotation(STAGE) == Stage.QUARANTINED
    told.a_kubelet_speaks_or_falls_silent("n02", ready=False)
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.MEMORY, FaultAction.REPLACE)
    told.an_incident_ends(0)
    told.the_loop_settles()
    assert told.it.nodes["n00"].annotation(INCIDENT) == "inc-2"


def test_a_person_gives_a_node_back_though_nobody_sees_its_gpus() -> None:
    told = story()
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.the_loop_settles()
    told.something_is_out_of_order("source_ok")
    told.a_person_gives_a_node_back(0)
    told.the_loop_settles()
    assert not told.it.nodes["n00"].unschedulable
    assert not told.it.nodes["n00"].annotation(INCIDENT)


def test_a_node_that_is_well_again_is_given_back_once_its_gpus_are_seen() -> None:
    told = story()
    told.a_fault_is_found("n00", Tier.FACT, CauseClass.HARDWARE, FaultAction.REPLACE)
    told.the_loop_settles()
    told.an_incident_ends(0)
    told.some_nodes_are_out_of_sight({"n00"})
    told.the_loop_settles()
    assert told.it.nodes["n00"].unschedulable
    told.the_loop_settles()  # the outage is over
    assert not told.it.nodes["n00"].unschedulable
