"""Decisions where there is a cluster: how much of a plan goes ahead, when it all stops, and what is given back."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.findings import GpuState, Verdict
from remediation.breaker import TakenOut
from remediation.breaker import limit as breaker_limit
from remediation.decide import Decision, Ruling, decide_on, newly_taken, taken_by
from remediation.limits import Ending
from remediation.modes import OBSERVE_ALL, Mode, Modes
from remediation.objects import DO_NOT_EVICT, MANAGED, NodeView, Taint
from remediation.people import Said, Word
from remediation.plan import TAKES_OUT, Works
from remediation.scene import Scene
from remediation.shares import at_most
from rules.schema import Policy
from rules.vocabulary import Action, CauseClass, FaultAction, Tier
from tests.acting.scenes import attempt, calm_scene, marked, serving, training
from tests.acting.views import node, pdb
from tests.decide.circumstances import NODES, around
from tests.decide.incidents import AT
from tests.decide.ruled import (
    BEFORE_THE_DRAIN,
    CLOSED,
    FULL,
    FULL_UP,
    JOBS,
    LAST,
    NOW,
    OPEN,
    POLICY,
    POOL,
    QUIET,
    RACK,
    WHOLE,
    failed,
    policy_with,
    ruled,
    says,
    sick,
)

# --------------------------------------------------------------------------------- how much of a plan goes ahead


@pytest.mark.parametrize(
    ("scene", "policy", "tier", "gates", "ruling", "allowed"),
    [
        pytest.param(calm_scene(), POLICY, Tier.FACT, set(), Ruling.ACT, WHOLE, id="nothing is in the way"),
        # only the drain and what follows has to wait
        pytest.param(calm_scene(), CLOSED, Tier.FACT, {"maintenance_window"}, Ruling.WAIT, BEFORE_THE_DRAIN,
                     id="outside of a window the node is cordoned"),
        pytest.param(calm_scene(), QUIET, Tier.FACT, {"maintenance_window"}, Ruling.WAIT, WHOLE[:2],
                     id="or less, where policy lets less"),
        pytest.param(calm_scene(pods=[training()], workloads=JOBS, pdbs=(pdb(allowed=0),)), POLICY, Tier.FACT,
                     {"pdb_headroom"}, Ruling.WAIT, BEFORE_THE_DRAIN, id="a budget has no room"),
        pytest.param(calm_scene(pods=[serving()], pdbs=(pdb("a", namespace="web"), pdb("b", namespace="web"))),
                     POLICY, Tier.FACT, {"pdb_sound", "pdb_headroom"}, Ruling.ASK, BEFORE_THE_DRAIN,
                     id="two budgets never will"),
        pytest.param(calm_scene(pods=[serving(annotations={DO_NOT_EVICT: "true"})]), POLICY, Tier.FACT,
                     {"pods_may_move"}, Ruling.ASK, BEFORE_THE_DRAIN, id="a pod refuses to be moved"),
        pytest.param(calm_scene(pods=[training()], workloads=LAST), POLICY, Tier.FACT, {"last_restart"}, Ruling.ASK,
                     BEFORE_THE_DRAIN, id="a job would not start again"),
        pytest.param(calm_scene(pods=[training()], workloads=JOBS), POLICY, Tier.TREND, {"checkpoint"}, Ruling.ASK,
                     BEFORE_THE_DRAIN, id="training without a known checkpoint"),
        pytest.param(calm_scene(pods=[serving(), *FULL]), POLICY, Tier.TREND, {"spare_capacity"}, Ruling.WAIT,
                     BEFORE_THE_DRAIN, id="no room elsewhere"),
        # everything has to
        pytest.param(calm_scene(leads=False), POLICY, Tier.FACT, {"leadership"}, Ruling.WAIT, (), id="not the leader"),
        pytest.param(calm_scene(stale_s=76), POLICY, Tier.FACT, {"cluster_fresh"}, Ruling.WAIT, (),
                     id="the API server is silent"),
        pytest.param(calm_scene(said=[says(Word.REJECT)]), POLICY, Tier.FACT, {"rejected"}, Ruling.REFUSE, (),
                     id="a person has rejected it"),
        pytest.param(calm_scene(said=[says(Word.HOLD)]), POLICY, Tier.FACT, {"on_hold"}, Ruling.WAIT, (),
                     id="the node is on hold"),
        pytest.param(calm_scene(breaker=OPEN), POLICY, Tier.FACT, {"breaker"}, Ruling.ASK, (), id="an open breaker"),
        pytest.param(calm_scene(node("n000", labels={MANAGED: "false"})), POLICY, Tier.FACT, {"managed"},
                     Ruling.REFUSE, (), id="the node was opted out"),
        pytest.param(calm_scene(node("n000", unschedulable=True)), POLICY, Tier.FACT, {"ownership"}, Ruling.ASK, (),
                     id="a person has cordoned it"),
        pytest.param(calm_scene(replace(marked(), unschedulable=False)), POLICY, Tier.FACT, {"ownership"}, Ruling.ASK,
                     (), id="a person has uncordoned it under our marks"),
        pytest.param(calm_scene(history=(attempt(AT, Action.REBOOT_NODE, incident="inc-0", ending=Ending.PENDING),)),
                     POLICY, Tier.FACT, {"one_at_a_time"}, Ruling.WAIT, (), id="another action is under way on it"),
        pytest.param(calm_scene(pods=[training()], workloads=LAST, leads=False), POLICY, Tier.FACT,
                     {"leadership", "last_restart"}, Ruling.ASK, (), id="the strictest word counts, and least is done"),
    ],
)  # fmt: skip
def test_as_much_of_a_plan_goes_ahead_as_no_gate_holds_back(
    scene: Scene, policy: Policy, tier: Tier, gates: set[str], ruling: Ruling, allowed: tuple[Action, ...]
) -> None:
    (decision,) = ruled([sick(tier=tier)], scene, policy)
    assert failed(decision) == gates
    assert (decision.ruling, decision.allowed) == (ruling, allowed)


def test_a_cordon_that_only_waits_for_its_drain_takes_its_share_of_the_limits() -> None:
    small = policy_with(limits=POLICY.limits.model_copy(update={"max_unavailable_nodes": 1}))
    scene = calm_scene(pods=[serving(annotations={DO_NOT_EVICT: "true"})])
    first, second = ruled([sick(), sick("inc-2", "n001")], scene, small)
    assert first.allowed == BEFORE_THE_DRAIN
    assert failed(second) == {"blast_radius"}


def test_the_pods_that_a_drain_would_move_come_from_the_api_server() -> None:
    scene = calm_scene(pods=[serving(), serving("kept", namespace="kube-system"), serving("far", "n001")])
    (decision,) = ruled([sick()], scene)
    assert decision.plan.affected == ("pod web/web-0",)


@pytest.mark.parametrize(
    ("given_node", "gates"),
    [
        pytest.param(marked(), set(), id="cordoned and tainted by us"),
        pytest.param(marked(ours=False, unschedulable=False), set(), id="only tainted by us"),
        pytest.param(marked(ready=False), set(), id="out by our hand, and silent by now"),
        pytest.param(node("n000"), FULL_UP, id="in service"),
        pytest.param(node("n000", ready=False), FULL_UP, id="only silent: it may come back by itself"),
        pytest.param(node("n000", ready=None), FULL_UP, id="or nobody knows"),
        pytest.param(node("n000", taints=(Taint("repair", "NoSchedule"),)), FULL_UP, id="only tainted by others"),
        pytest.param(node("n000", unschedulable=True), {"ownership"}, id="cordoned by a person, whose it is then"),
    ],
)
def test_what_stays_out_is_worked_on_though_the_limits_are_full(given_node: NodeView, gates: set[str]) -> None:
    silent = [node(f"n{number:03d}", ready=False) for number in range(1, 20)]
    (decision,) = ruled([sick()], calm_scene(given_node, *silent))
    assert failed(decision) == gates
    assert decision.allowed == (() if gates else WHOLE)


def test_a_decision_tells_something_new_when_more_of_it_is_allowed() -> None:
    (drained,), (held,) = ruled([sick()], calm_scene(), CLOSED), ruled([sick()], calm_scene(), QUIET)
    assert failed(drained) == failed(held)
    assert drained.telling != held.telling


# --------------------------------------------------------------------------------------------- when many nodes fail


def test_the_breaker_trips_in_the_middle_of_a_tick() -> None:
    incidents = [sick(f"inc-{number}", f"n{number:03d}") for number in range(5)]
    found = ruled(incidents, calm_scene())
    assert breaker_limit(POLICY.breaker, NODES) == 3
    assert [one.ruling for one in found] == [Ruling.ACT] * 3 + [Ruling.ASK] * 2
    assert [one.allowed for one in found] == [WHOLE] * 3 + [()] * 2
    assert "breaker" in failed(found[3])
    assert "breaker" not in failed(found[2])


def test_what_was_taken_before_this_tick_counts_for_the_breaker() -> None:
    taken = tuple(TakenOut(f"n{number:03d}", NOW - timedelta(minutes=5), f"old-{number}") for number in (30, 31))
    found = ruled([sick(), sick("inc-2", "n001")], calm_scene(taken=taken))
    assert [one.ruling for one in found] == [Ruling.ACT, Ruling.ASK]


def test_a_node_counts_once_for_the_breaker_however_often_it_is_decided() -> None:
    taken = taken_by(ruled([sick()], calm_scene()), [sick()], OBSERVE_ALL, Said())
    assert taken == (TakenOut("n000", NOW, "inc-1"),)
    assert newly_taken(taken, [TakenOut("n000", NOW + timedelta(minutes=5), "inc-1")]) == ()
    assert newly_taken(taken, [TakenOut("n000", NOW, "inc-2")]) == (TakenOut("n000", NOW, "inc-2"),)


def test_what_takes_nothing_out_counts_for_no_breaker() -> None:
    watched = [sick(action=FaultAction.NONE), sick("inc-2", "n001")]
    found = ruled(watched, calm_scene(said=[says(Word.REJECT, incidents=("inc-2",))]))
    assert taken_by(found, watched, OBSERVE_ALL, Said()) == ()


PLACES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "r1", "r2", "r3", "r4"])), min_size=20, max_size=20
)
FAULTS = st.fixed_dictionaries(
    {
        "tier": st.sampled_from(Tier),
        "cause_class": st.sampled_from(CauseClass),
        "action": st.sampled_from(FaultAction),
    }
)


@given(PLACES, st.lists(FAULTS, min_size=8, max_size=8), st.sets(st.integers(0, 19), max_size=4))
def test_forty_percent_of_a_fleet_failing_at_once_never_takes_more_than_the_limits(places, faults, gone) -> None:
    nodes = [
        node(f"n{number:03d}", labels={POOL: pool} | ({RACK: rack} if rack else {}), ready=number not in gone)
        for number, (pool, rack) in enumerate(places)
    ]
    names = [one.name for one in nodes]
    limits = POLICY.limits.model_copy(
        update={
            "max_unavailable_share": 0.2,
            "max_unavailable_share_of_pool": 0.34,
            "max_unavailable_share_of_domain": 0.3,
        }
    )
    scene = calm_scene(*nodes, count=0, limits=limits)
    incidents = [sick(f"inc-{number}", f"n{number:03d}", **fault) for number, fault in enumerate(faults)]
    policy = policy_with(limits=limits)
    found = ruled(incidents, scene, policy, gpu_nodes=frozenset(names), fleet=dict.fromkeys(names, True))

    taken = {one.plan.node for one in found if set(one.allowed) & TAKES_OUT}
    out = taken | scene.fleet.out.keys()
    assert not taken or len(out) <= at_most(0.2, None, len(names))
    for groups, share in ((scene.fleet.pools, 0.34), (scene.fleet.domains, 0.3)):
        for group in {groups[name] for name in taken if name in groups}:
            members = {name for name in names if groups.get(name) == group}
            assert len(members & out) <= at_most(share, None, len(members))
    assert len(taken) <= breaker_limit(policy.breaker, len(names))


# ------------------------------------------------------------------------------------------------------- giving back


def healthy(*names: str) -> list[Verdict]:
    return [Verdict(name, f"GPU-{name}", GpuState.HEALTHY, 0.0, AT, 1.0) for name in names]


@pytest.mark.parametrize(
    ("fields", "circumstances", "gates", "ruling"),
    [
        pytest.param({}, {}, set(), Ruling.ACT, id="nothing is in the way"),
        pytest.param({"breaker": OPEN}, {}, set(), Ruling.ACT, id="an open breaker holds up no recovery"),
        pytest.param({}, {"known_share": 0.1}, set(), Ruling.ACT, id="nor do other nodes that nobody sees"),
        pytest.param({"leads": False}, {}, {"leadership"}, Ruling.WAIT, id="not the leader"),
        pytest.param({"stale_s": 90}, {}, {"cluster_fresh"}, Ruling.WAIT, id="the API server is silent"),
        pytest.param({}, {"ledger_writable": False}, {"ledger_writable"}, Ruling.WAIT, id="it cannot be written down"),
        pytest.param({}, {"source_ok": False}, {"snapshot_fresh"}, Ruling.WAIT, id="part of the telemetry is missing"),
        pytest.param({}, {"now": NOW + timedelta(minutes=5)}, {"snapshot_fresh"}, Ruling.WAIT, id="stale telemetry"),
        pytest.param({"over": frozenset()}, {}, {"incident_over"}, Ruling.ASK, id="an incident that nobody knows"),
    ],
)
def test_what_a_release_has_to_pass(fields: dict, circumstances: dict, gates: set[str], ruling: Ruling) -> None:
    scene = calm_scene(marked(), **({"over": frozenset({"inc-1"})} | fields))
    (decision,) = ruled([], scene, verdicts=healthy("n000"), **circumstances)
    assert decision.plan.action is Action.RELEASE
    assert (failed(decision), decision.ruling) == (gates, ruling)
    assert decision.allowed == (() if gates else (Action.RELEASE,))


@pytest.mark.parametrize(
    ("fields", "circumstances", "gates"),
    [
        pytest.param({}, {}, set(), id="nothing is in the way"),
        pytest.param({}, {"source_ok": False}, set(), id="missing telemetry: a person's word needs none"),
        pytest.param({}, {"now": NOW + timedelta(minutes=5)}, set(), id="nor does it matter how old it is"),
        pytest.param({}, {"known_share": 0.0}, set(), id="nor that nobody sees anything"),
        pytest.param({"leads": False}, {}, {"leadership"}, id="not the leader"),
        pytest.param({"stale_s": 90}, {}, {"cluster_fresh"}, id="the API server is silent"),
        pytest.param({}, {"ledger_writable": False}, {"ledger_writable"}, id="it cannot be written down"),
        pytest.param({"said": [says(Word.RELEASE), says(Word.HOLD)]}, {}, {"on_hold"}, id="the node is on hold"),
        pytest.param({"said": [says(Word.RELEASE, incidents=("inc-0",))]}, {"source_ok": False},
                     {"snapshot_fresh", "gpus_well", "incident_over"}, id="an order about another incident is none"),
    ],
)  # fmt: skip
def test_a_release_that_a_person_orders_needs_no_telemetry(fields: dict, circumstances: dict, gates: set[str]) -> None:
    scene = calm_scene(marked(), **({"said": [says(Word.RELEASE)]} | fields))
    (decision,) = ruled([], scene, **circumstances)
    assert (decision.plan.action, failed(decision)) == (Action.RELEASE, gates)
    assert decision.allowed == (() if gates else (Action.RELEASE,))
    asked_for = {gate.name for gate in decision.gates}
    assert ("snapshot_fresh" in asked_for) is ("gpus_well" in gates), "it is not even asked for"


def test_a_node_that_something_open_keeps_out_is_not_given_back() -> None:
    scene = calm_scene(marked(), marked("n001", "inc-0"), over=frozenset({"inc-0", "inc-1"}))
    found = ruled([sick("inc-2")], scene, verdicts=healthy("n000", "n001"))
    assert [(one.plan.node, one.plan.action) for one in found] == [
        ("n000", Action.QUARANTINE), ("n001", Action.RELEASE),
    ]  # fmt: skip


def test_who_gives_a_node_back_wants_it_left_alone_as_far_as_its_present_incidents_go() -> None:
    scene = calm_scene(marked(), said=[says(Word.RELEASE)])
    taken, back = ruled([sick()], scene)
    assert (failed(taken), taken.ruling, taken.allowed) == ({"rejected"}, Ruling.REFUSE, ())
    assert (back.plan.action, back.ruling, back.allowed) == (Action.RELEASE, Ruling.ACT, (Action.RELEASE,))


@pytest.mark.parametrize("mode", Mode)
def test_a_mode_changes_nothing_but_its_own_name(mode: Mode) -> None:
    """What nobody has approved takes no share of the limits from others; else approve decides like the other two."""
    scene = calm_scene(marked("n001"), pods=[training()], workloads=LAST, over=frozenset({"inc-1"}))
    incidents = [sick("inc-2"), sick("inc-3", "n002")]
    out = {"already_out": frozenset(scene.fleet.out), "settled_out": scene.fleet.settled}
    told = around(standing=frozenset({"inc-2", "inc-3"}), **out)
    verdicts = healthy("n001")

    def of(modes: Modes) -> list[Decision]:
        approved = [says(Word.APPROVE, incidents=("inc-2", "inc-3"), actions=WHOLE)]
        said = Said.of(approved) if modes.default is Mode.APPROVE else Said()
        there = replace(scene, said=said)
        found = decide_on(incidents, Works(), verdicts, POLICY, around=told, modes=modes, scene=there)
        assert {one.mode for one in found} == {modes.default.value}
        return [replace(one, mode="") for one in found]

    assert of(Modes(mode)) == of(Modes())
