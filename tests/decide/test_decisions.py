"""Decisions: which ruling follows from which gates, who takes of the limits first, and that equal is equal."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.engine import Engine
from detectors.findings import GpuState, Incident, Verdict
from detectors.identity import NodeRef
from detectors.snapshot import SourceState
from remediation.decide import STOPS, Decision, Ruling, Stop, allowed_by, decide, decide_on, ruling_of
from remediation.gates import GateResult
from remediation.modes import Mode, Modes
from remediation.people import Saying, Word
from remediation.plan import Works
from rules.schema import LimitPolicy, MaintenancePolicy, Policy, RuleBook
from rules.vocabulary import DISRUPTIVE, Action, CauseClass, FaultAction, Tier
from tests.acting.scenes import calm_scene, marked
from tests.acting.views import node
from tests.decide.circumstances import around, plan_of
from tests.decide.incidents import AT, incident
from tests.detect.scene import START, Scene, minutes


def verdicts(scene: Scene, unknown: int = 0) -> list[Verdict]:
    states = [GpuState.UNKNOWN] * unknown + [GpuState.HEALTHY] * (len(scene.refs) - unknown)
    return [Verdict(ref.node, ref.uuid, state, 0.0, AT, 1.0) for ref, state in zip(scene.refs, states, strict=True)]


def decided(fleet: Scene, incidents: list[Incident], policy: Policy, **fields) -> tuple[Decision, ...]:
    snapshot = fleet.tick(after_s=0)
    told = {"now": snapshot.at, "ledger_writable": True, "verdicts": verdicts(fleet)} | fields
    judged = told.pop("verdicts")
    return decide(incidents, snapshot, judged, policy, **told)


# -------------------------------------------------------------------------------------------------------- the ruling

#: gate, ruling, the actions that it holds back with all that follow them, and whether a person may overrule it
TABLE = """
snapshot_fresh      wait    all               -
ledger_writable     wait    all               -
evidence_tier       refuse  all               -
fault_still_open    refuse  all               -
node_known          refuse  all               -
gpu_known           ask     all               -
common_cause        ask     all               -
blast_radius        wait    all               -
coverage            wait    all               -
leadership          wait    all               -
cluster_fresh       wait    all               -
rejected            refuse  all               -
on_hold             wait    all               -
breaker             ask     all               -
in_cluster          refuse  all               -
managed             refuse  all               -
ownership           ask     all               -
pool_limit          wait    all               -
domain_limit        wait    all               -
one_at_a_time       wait    all               -
action_rate         wait    all               -
attempts            ask     all               approvable
backoff             wait    all               approvable
maintenance_window  wait    policy            approvable
pods_may_move       ask     drain,restart_job -
pdb_sound           ask     drain,restart_job -
pdb_headroom        wait    drain,restart_job -
last_restart        ask     drain,restart_job approvable
checkpoint          ask     drain,restart_job approvable
spare_capacity      wait    drain,restart_job approvable
incident_over       ask     all               -
gpus_well           wait    all               -
diagnosed           wait    release           -
diagnosis_passed    ask     release           -
soak                wait    release           -
service_done        ask     all               -
"""


def row(name: str, stop: Stop) -> str:
    holds = "all" if stop.holds is None else ",".join(sorted(stop.holds)) or "policy"
    return f"{name:<20}{stop.ruling:<8}{holds:<18}{'approvable' if stop.approvable else '-'}"


def test_what_a_failed_gate_leads_to() -> None:
    assert [row(name, stop) for name, stop in STOPS.items()] == TABLE.split("\n")[1:-1]


def test_each_gate_that_is_asked_has_a_line_in_the_table_and_no_other_has() -> None:
    now = around().now
    given_back = calm_scene(marked("n001", "inc-9"), said=[Saying(now, Word.RELEASE, "ann", "n001", ("inc-9",))])
    found = decide_on([incident()], Works(), [], Policy(), around=around(), scene=given_back)
    assert {gate.name for decision in found for gate in decision.gates} == set(STOPS)


@given(st.sets(st.sampled_from(sorted(STOPS)), max_size=4))
def test_the_strictest_of_what_failed_counts(failed: set[str]) -> None:
    gates = [GateResult(name, name not in failed, "") for name in STOPS]
    strictness = [Ruling.ACT, Ruling.WAIT, Ruling.ASK, Ruling.REFUSE]
    expected = max((STOPS[name].ruling for name in failed), key=strictness.index, default=Ruling.ACT)
    assert ruling_of(gates) is expected


LADDER = plan_of(Action.NO_NEW_WORK, Action.CHECKPOINT, Action.CORDON, Action.DRAIN, Action.QUARANTINE)
NIGHTS = Policy(maintenance=MaintenancePolicy(actions=(Action.QUARANTINE,)))


@pytest.mark.parametrize(
    ("failed", "policy", "steps"),
    [
        pytest.param((), Policy(), 5, id="no gate failed: the whole ladder"),
        pytest.param(("pdb_headroom",), Policy(), 3, id="a budget holds back the drain and what follows"),
        pytest.param(("maintenance_window",), Policy(), 3, id="so does a closed window"),
        pytest.param(("maintenance_window",), NIGHTS, 4, id="or whatever policy says"),
        pytest.param(("maintenance_window", "checkpoint"), NIGHTS, 3, id="the first that is held back counts"),
        pytest.param(("leadership",), Policy(), 0, id="most gates hold back all"),
        pytest.param(("pdb_headroom", "on_hold"), Policy(), 0, id="whatever else failed"),
    ],
)
def test_how_much_of_a_ladder_the_gates_allow(failed: tuple[str, ...], policy: Policy, steps: int) -> None:
    gates = [GateResult(name, name not in failed, "") for name in STOPS]
    assert allowed_by(gates, LADDER, policy) == LADDER.does(Action)[:steps]


@given(st.sets(st.sampled_from(sorted(STOPS))), st.sets(st.sampled_from(sorted(STOPS))))
def test_one_more_failed_gate_never_allows_more(some: set[str], more: set[str]) -> None:
    few = allowed_by([GateResult(name, name not in some, "") for name in STOPS], LADDER, Policy())
    fewer = allowed_by([GateResult(name, name not in some | more, "") for name in STOPS], LADDER, Policy())
    assert fewer == few[: len(fewer)]
    holding = {name for name in some if STOPS[name].holds != frozenset({Action.RELEASE})}  # no step of this ladder
    assert not holding or len(few) < len(LADDER.steps)


# ------------------------------------------------------------------------------------------------- who goes first


def test_the_strongest_and_oldest_evidence_takes_its_share_of_the_limit_first(rules: RuleBook) -> None:
    scene = Scene(nodes=20)
    trend = {"tier": Tier.TREND, "action": FaultAction.REPLACE}
    incidents = [
        incident("trend", scene.node(0), opened=AT - minutes(60), **trend),
        incident("late", scene.node(1), opened=AT),
        incident("early", scene.node(2), opened=AT - minutes(5)),
        incident("same node", scene.node(2), opened=AT, action=FaultAction.REPLACE),
    ]
    found = {d.plan.incident: d.ruling for d in decided(scene, incidents, rules.policy)}
    assert found == {"early": Ruling.ACT, "late": Ruling.ACT, "same node": Ruling.ACT, "trend": Ruling.WAIT}


def test_a_plan_that_does_not_go_ahead_takes_no_share(rules: RuleBook) -> None:
    scene = Scene(nodes=10)
    scene.node_refs[0] = NodeRef(scene.node(0), resolved=False)
    incidents = [incident(f"i{n}", scene.node(n)) for n in range(3)]
    assert [d.ruling for d in decided(scene, incidents, rules.policy)] == [Ruling.REFUSE, Ruling.ACT, Ruling.WAIT]


def test_a_restart_of_a_job_takes_no_share(rules: RuleBook) -> None:
    scene = Scene(nodes=10)
    restart = {"tier": Tier.TREND, "action": FaultAction.RESTART_APP, "opened": AT - minutes(9)}
    incidents = [incident(f"i{n}", scene.node(n), **restart) for n in range(5)]
    assert {d.ruling for d in decided(scene, incidents, rules.policy)} == {Ruling.ACT}


def test_nodes_without_gpus_do_not_widen_the_limit(rules: RuleBook) -> None:
    scene = Scene(nodes=10, cpu_nodes=500)
    incidents = [incident(f"i{n}", scene.node(n)) for n in range(4)]
    assert [d.ruling for d in decided(scene, incidents, rules.policy)].count(Ruling.ACT) == 1


def test_nodes_that_are_only_an_exporters_name_do_not_widen_the_limit(rules: RuleBook) -> None:
    scene = Scene(nodes=40)
    scene.node_refs[20:] = [NodeRef(ref.name, resolved=False) for ref in scene.node_refs[20:]]
    incidents = [incident(f"i{n}", scene.node(n)) for n in range(4)]
    assert [d.ruling for d in decided(scene, incidents, rules.policy)].count(Ruling.ACT) == 2


def test_nodes_that_others_took_out_count(rules: RuleBook) -> None:
    fleet = Scene(nodes=20)
    incidents = [incident("i0", fleet.node(0)), incident("i1", fleet.node(1))]
    out = [node(fleet.node(1), ready=False), node(fleet.node(7), unschedulable=True)]
    found = decided(fleet, incidents, rules.policy, scene=calm_scene(*out, count=20))
    assert {d.plan.incident: d.ruling for d in found} == {"i0": Ruling.WAIT, "i1": Ruling.ACT}


def test_a_node_is_mended_beyond_the_limit_only_where_it_stays_out_anyway(rules: RuleBook) -> None:
    fleet = Scene(nodes=20)
    others = [node(fleet.node(number), ready=False) for number in (7, 8)]
    rulings = [
        decided(fleet, [incident("i0", fleet.node(0))], rules.policy, scene=calm_scene(first, *others, count=20))[0]
        for first in (node(fleet.node(0), ready=False), marked(fleet.node(0)))
    ]
    assert [one.ruling for one in rulings] == [Ruling.WAIT, Ruling.ACT]


def test_nodes_of_another_cluster_do_not_widen_the_limit(rules: RuleBook) -> None:
    fleet = Scene(nodes=40)
    incidents = [incident(f"i{n}", fleet.node(n)) for n in range(4)]
    found = decided(fleet, incidents, rules.policy, scene=calm_scene(count=10))
    assert [d.ruling for d in found].count(Ruling.ACT) == 1


# ------------------------------------------------------------------------------------------------ from start to end


@pytest.mark.parametrize(
    ("circumstance", "ruling"),
    [
        pytest.param({"now": START + minutes(3)}, Ruling.WAIT, id="a stale snapshot"),
        pytest.param({"ledger_writable": False}, Ruling.WAIT, id="a ledger that cannot be written"),
        pytest.param({}, Ruling.ACT, id="nothing in the way"),
    ],
)
def test_circumstances_of_the_moment(rules: RuleBook, circumstance: dict, ruling: Ruling) -> None:
    (decision,) = decided(Scene(), [incident()], rules.policy, **circumstance)
    assert decision.ruling is ruling


def test_a_blind_monitor_waits_and_a_query_that_failed_too(rules: RuleBook) -> None:
    scene = Scene()
    (decision,) = decided(scene, [incident()], rules.policy, verdicts=verdicts(scene, unknown=5))
    assert decision.ruling is Ruling.WAIT
    scene.source = SourceState(ok=False, failed_selectors=("gpu",))
    assert decided(scene, [incident()], rules.policy)[0].ruling is Ruling.WAIT


def test_a_common_cause_is_a_persons_matter(rules: RuleBook) -> None:
    scene = Scene(nodes=40)
    held = incident(held=True, nodes=tuple(scene.node(n) for n in range(16)))
    (decision,) = decided(scene, [held], rules.policy)
    assert decision.ruling is Ruling.ASK


def test_without_incidents_there_is_nothing_to_decide(rules: RuleBook) -> None:
    assert decided(Scene(), [], rules.policy) == ()


def test_a_decision_tells_something_new_when_its_action_ruling_or_gates_change(rules: RuleBook) -> None:
    scene = Scene()
    (first,) = decided(scene, [incident()], rules.policy)
    (same,) = decided(scene.wait(60), [incident(count=9)], rules.policy)
    (other,) = decided(scene, [incident(action=FaultAction.REPLACE)], rules.policy)
    (stuck,) = decided(scene, [incident()], rules.policy, ledger_writable=False)
    assert first.telling == same.telling
    assert len({first.telling, other.telling, stuck.telling}) == 3


FIELDS = st.fixed_dictionaries(
    {
        "node": st.sampled_from([f"n{n:03d}" for n in range(6)]),
        "tier": st.sampled_from(Tier),
        "cause_class": st.sampled_from(CauseClass),
        "action": st.sampled_from(FaultAction),
        "held": st.booleans(),
        "standing": st.booleans(),
    }
)


@given(st.lists(FIELDS, max_size=8), st.randoms(use_true_random=False))
def test_equal_input_gives_equal_decisions_in_whatever_order_it_comes(drawn: list[dict], dice: random.Random) -> None:
    policy = Policy(limits=LimitPolicy(max_unavailable_nodes=2))
    incidents = [incident(f"i{n}", nodes=(fields["node"],), **fields) for n, fields in enumerate(drawn)]
    shuffled = list(incidents)
    dice.shuffle(shuffled)
    assert decided(Scene(nodes=6), shuffled, policy) == decided(Scene(nodes=6), incidents, policy)


@pytest.mark.parametrize("mode", Mode)
def test_every_mode_decides_alike(rules: RuleBook, mode: Mode) -> None:
    def of(decision: Decision) -> tuple:
        return decision.at, decision.plan, decision.ruling, decision.gates, decision.allowed

    scene = Scene(nodes=4)
    incidents = [incident(f"i{n}", scene.node(n)) for n in range(3)]
    observed = decided(scene, incidents, rules.policy)
    found = decided(scene, incidents, rules.policy, modes=Modes(mode))
    assert [of(d) for d in found] == [of(d) for d in observed]
    assert {d.mode for d in found} == {mode.value}


def test_a_reset_that_was_made_is_not_made_again(rules: RuleBook) -> None:
    engine, scene = Engine(rules), Scene()

    def steps(events: list) -> tuple[Action, ...]:
        snapshot = scene.tick(events)
        detection = engine.step(snapshot)
        (decision,) = decide(
            detection.incidents, snapshot, detection.verdicts, rules.policy, now=snapshot.at,
            ledger_writable=True,
        )  # fmt: skip
        return decision.plan.does(Action)

    before = steps([scene.xid(119)])
    after = steps([scene.xid(154, recovery_value=0)])
    assert set(before) & DISRUPTIVE
    assert after == (Action.WATCH,)
