"""Each limit of acting: when it lets a plan pass, when not, and that it says why with its numbers."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.gates import GateResult
from remediation.limits import (
    LIMITS,
    Attempt,
    Ending,
    Fleet,
    History,
    Question,
    action_rate,
    attempts,
    backoff,
    domain_limit,
    in_cluster,
    managed,
    one_at_a_time,
    ownership,
    pool_limit,
)
from remediation.objects import MANAGED, TAINT_KEY, Taint
from remediation.plan import TAKES_OUT, Plan
from remediation.shares import at_most
from rules.schema import LimitPolicy, Policy
from rules.vocabulary import DISRUPTIVE, Action
from tests.acting.views import AT, node
from tests.decide.circumstances import plan_of

Limit = Callable[[Question], GateResult]
POOL, RACK = "karpenter.sh/nodepool", "nvidia.com/gpu.clique"
DRAIN = plan_of(Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN)
RESET = plan_of(Action.NO_NEW_WORK, Action.RESET_GPU)
RESTART = plan_of(Action.RESTART_JOB)
LOOK = plan_of(Action.WATCH, Action.DIAGNOSE)
DRAINS = Action.DRAIN
TAINT = plan_of(Action.NO_NEW_WORK, Action.DIAGNOSE)
RELEASE = plan_of(Action.RELEASE)


def before(minutes: float, action: Action = Action.RESET_GPU, ending=Ending.DONE, incident="inc-1", name="n0"):
    return Attempt(AT - timedelta(minutes=minutes), incident, name, action, ending)


def failed(minutes: float, action: Action = Action.RESET_GPU) -> Attempt:
    return before(minutes, action, Ending.FAILED)


def nodes_of(*sizes: int, labels=(POOL,), **out) -> dict:
    """Nodes n0, n1, … in groups of these sizes, named p0, p1, …; `out` gives single nodes other fields."""
    told, number = {}, 0
    for group, size in enumerate(sizes):
        for _ in range(size):
            name = f"n{number}"
            told[name] = node(name, labels=dict.fromkeys(labels, f"p{group}"), **out.get(name, {}))
            number += 1
    return told


def ask(plan: Plan = DRAIN, *, nodes=("n0",), of=None, now=AT, policy=None, wanted_out=(), history=(), **limits):
    policy = policy or Policy(limits=LimitPolicy(**limits))
    return Question(
        plan=plan,
        nodes=frozenset(nodes),
        now=now,
        policy=policy,
        fleet=Fleet.of((nodes_of(40) if of is None else of).values(), policy.limits),
        wanted_out=frozenset(wanted_out),
        history=History.of(history),
    )


CORDONED = {"unschedulable": True}
TAINTED = {"taints": (Taint("repair", "NoSchedule"),)}
DOWN = {"ready": False}
OURS = {"taints": (Taint(TAINT_KEY, "NoSchedule", "xid_79"),)}
TWO_RACKS = nodes_of(18, 18, labels=(POOL, RACK))


@pytest.mark.parametrize(
    ("limit", "question", "passes", "reason"),
    [
        # the nodes themselves
        pytest.param(in_cluster, ask(), True, "the cluster has each node", id="a node of the cluster"),
        pytest.param(in_cluster, ask(nodes=("n0", "x")), False, "is called x", id="a stranger"),
        pytest.param(in_cluster, ask(LOOK, nodes=("x",)), True, "has each node", id="a stranger may be looked at"),
        pytest.param(managed, ask(), True, "no label", id="a managed node"),
        pytest.param(managed, ask(of={"n0": node("n0", labels={MANAGED: "false"})}), False,
                     "n0 has gpuwarden.io/managed=false", id="a node that was opted out"),
        pytest.param(managed, ask(RELEASE, of={"n0": node("n0", labels={MANAGED: "false"})}), True,
                     "takes nothing away",
                     id="what is ours is taken back from it all the same"),
        pytest.param(ownership, ask(), True, "nobody else", id="nobody else is there"),
        pytest.param(ownership, ask(of=nodes_of(40, n0=CORDONED)), False, "n0: cordoned by a person",
                     id="FC101 a node that a person has cordoned"),
        pytest.param(ownership, ask(of={"n0": node("n0", ours=True)}), True, "nobody else", id="FC101 our own cordon"),
        pytest.param(ownership, ask(LOOK, of=nodes_of(40, n0=CORDONED)), True, "takes nothing away",
                     id="it may be looked at"),
        # a pool
        pytest.param(pool_limit, ask(), True, "1 of 40 nodes would be out, limit 4", id="the first of a pool"),
        pytest.param(pool_limit, ask(of=nodes_of(19)), True, "limit 1", id="a share of 1.9 is one node"),
        pytest.param(pool_limit, ask(of=nodes_of(3)), True, "1 of 3 nodes would be out, limit 1",
                     id="one may always go"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n1=CORDONED)), False, "2 of 3 nodes would be out, limit 1",
                     id="a node that a person has cordoned counts"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n1=DOWN)), False, "2 of 3", id="so does one that is not Ready"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n1=TAINTED)), False, "2 of 3",
                     id="and one that others have tainted"),
        pytest.param(pool_limit, ask(of=nodes_of(3), wanted_out=("n1",)), False, "2 of 3",
                     id="and one that is about to go"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n1=TAINTED), ordinary_taints=("rep*",)), True, "1 of 3",
                     id="a taint of healthy nodes does not"),
        pytest.param(pool_limit, ask(of=nodes_of(3, 3, n4=DOWN, n5=DOWN)), True, "p0: 1 of 3",
                     id="what is out in another pool does not"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=CORDONED, n1=DOWN)), True, "n0: out already",
                     id="a node that is cordoned already takes nothing more away"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=OURS, n1=DOWN)), True, "n0: out already",
                     id="nor does one with our taint"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=OURS | DOWN, n1=DOWN)), True, "n0: out already",
                     id="whether it is silent or not"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n1=DOWN), wanted_out=("n0",)), True, "n0: out already",
                     id="nor one that is about to go"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=DOWN)), True, "p0: 1 of 3 nodes would be out, limit 1",
                     id="one that is only silent counts once"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=DOWN, n1=DOWN)), False,
                     "p0: 2 of 3 nodes would be out, limit 1", id="and may come back: it needs room like any other"),
        pytest.param(pool_limit, ask(of=nodes_of(3, n0=TAINTED, n1=DOWN)), False, "2 of 3",
                     id="so does one that only others have tainted"),
        pytest.param(pool_limit, ask(nodes=("n0", "n3"), of=nodes_of(3, 3, n0=OURS, n1=DOWN, n4=DOWN)), False,
                     "p1: 2 of 3", id="only the nodes that still have to go need room"),
        pytest.param(pool_limit, ask(nodes=("n0", "n3"), of=nodes_of(3, 3, n4=DOWN)), False, "p1: 2 of 3",
                     id="each pool of a plan must have room"),
        pytest.param(pool_limit, ask(of=nodes_of(3, labels=())), True, "no pool: 1 of 3",
                     id="nodes without a label make a pool"),
        pytest.param(pool_limit, ask(max_unavailable_nodes_of_pool=2, wanted_out=("n1", "n2")), False, "limit 2",
                     id="a number of nodes lies over the share"),
        pytest.param(pool_limit, ask(max_unavailable_share_of_pool=0.29, of=nodes_of(100)), True, "limit 29",
                     id="29 % of 100 is 29"),
        pytest.param(pool_limit, ask(RELEASE, of=nodes_of(3, n1=DOWN)), True, "takes nothing away",
                     id="recovery is never blocked"),
        pytest.param(pool_limit, ask(RESTART, of=nodes_of(3, n1=DOWN)), True, "takes nothing away",
                     id="a job's restart leaves the node in service"),
        # a rack
        pytest.param(domain_limit, ask(of=TWO_RACKS), True, "clique=p0: 1 of 18 nodes would be out, limit 1",
                     id="the first of a rack"),
        pytest.param(domain_limit, ask(of=TWO_RACKS, wanted_out=("n1",)), False, "2 of 18",
                     id="the second is too many"),
        pytest.param(domain_limit, ask(of=TWO_RACKS, wanted_out=("n18",)), True, "1 of 18",
                     id="one in each rack may go"),
        pytest.param(domain_limit, ask(of=TWO_RACKS, wanted_out=("n1",), max_unavailable_share_of_domain=0.5,
                     max_unavailable_nodes_of_domain=1), False, "limit 1", id="a number lies over the share there too"),
        pytest.param(domain_limit, ask(of=nodes_of(18, labels=(RACK,), n0=CORDONED, n1=DOWN, n2=DOWN)), True,
                     "n0: out already", id="a node of it that is cordoned already takes nothing more away"),
        pytest.param(domain_limit, ask(of=nodes_of(18, labels=(RACK,), n0=DOWN, n1=DOWN)), False, "2 of 18",
                     id="one that is only silent needs room"),
        pytest.param(domain_limit, ask(wanted_out=("n1", "n2")), True, "no label puts a node in a group",
                     id="nodes without the label are in no rack"),
        pytest.param(domain_limit, ask(of=nodes_of(18, labels=("rack",)), domain_labels=("row", "rack"),
                     wanted_out=("n1",)),
                     False, "rack=p0: 2 of 18", id="a site names its own labels"),
        # one action at a time
        pytest.param(one_at_a_time, ask(), True, "nothing is under way", id="nothing is under way"),
        pytest.param(one_at_a_time, ask(history=[before(5, ending=Ending.PENDING, incident="inc-0")]), False,
                     "reset_gpu for inc-0 is under way on n0 since 2026-03-04 11:55 UTC",
                     id="FC095 another incident's action has not ended yet"),
        pytest.param(one_at_a_time, ask(history=[before(5, ending=Ending.PENDING, name="n7")]), True, "nothing",
                     id="another node's does not matter"),
        pytest.param(one_at_a_time, ask(RESET, history=[before(5, ending=Ending.PENDING)]), True, "nothing",
                     id="what was begun for this incident may be gone on with"),
        pytest.param(one_at_a_time, ask(history=[before(5, Action.DRAIN, Ending.PENDING, "inc-0")]), True, "nothing",
                     id="so may the same for another one: a node is drained once for all"),
        pytest.param(one_at_a_time, ask(TAINT, history=[before(5, Action.DRAIN, Ending.PENDING, "inc-0")]), False,
                     "drain for inc-0 is under way", id="what this plan does not want is in its way"),
        pytest.param(one_at_a_time, ask(history=[before(60, ending=Ending.PENDING, incident="inc-0")]), True,
                     "nothing", id="FC091 one that never ended has failed in the end"),
        pytest.param(one_at_a_time, ask(history=[before(5, ending=Ending.FAILED, incident="inc-0")]), True, "nothing",
                     id="FC091 a failed one is over"),
        pytest.param(one_at_a_time, ask(history=[before(5, ending=Ending.SKIPPED, incident="inc-0")]), True,
                     "nothing", id="FC088 a skipped one is over"),
        pytest.param(one_at_a_time, ask(RELEASE, history=[before(5, ending=Ending.PENDING, incident="inc-0")]), True,
                     "takes nothing away",
                     id="recovery does not wait for it"),
        # actions an hour
        pytest.param(action_rate, ask(), True, "1 actions within an hour, limit 10", id="the first of an hour"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(59, name="n1")]), False,
                     "2 actions within an hour, limit 1", id="one too many"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(60, name="n1")]), True, "1 actions",
                     id="an hour later it is free again"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(9, ending=Ending.SKIPPED, name="n1")]),
                     True,
                     "1 actions", id="FC088 a skipped one was no action"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(9, Action.CORDON), before(8, name="n1")]),
                     True, "begun already; 2 actions", id="what was begun may be gone on with"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(90, DRAINS), before(8, name="n1")]),
                     True, "begun already; 1 actions", id="a drain that takes more than an hour too"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(90, ending=Ending.FAILED),
                     before(8, name="n1")]), False, "2 actions", id="one that failed before this hour begins anew"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, nodes=("n0", "n1"), history=[before(90, Action.CORDON)]),
                     False, "2 actions", id="one node that was begun is not both"),
        pytest.param(action_rate, ask(max_actions_per_hour=2, nodes=("n0", "n1", "n2")), False, "3 actions",
                     id="each node of a plan counts"),
        pytest.param(action_rate, ask(max_actions_per_hour=1, history=[before(5, Action.DIAGNOSE, name="n1")]), True,
                     "1 actions", id="a look is no action"),
        pytest.param(action_rate, ask(RELEASE, max_actions_per_hour=1, history=[before(5, name="n1")]), True,
                     "takes nothing away", id="recovery is not counted"),
        # attempts
        pytest.param(attempts, ask(RESET), True, "not tried too often", id="the first attempt"),
        pytest.param(attempts, ask(RESET, history=[failed(90)]), True, "not tried too often", id="the second"),
        pytest.param(attempts, ask(RESET, history=[failed(90), failed(30)]), False,
                     "reset_gpu on n0 was tried 2 times for this incident, limit 2: up to people now",
                     id="FC090 the third for one incident is up to people"),
        pytest.param(attempts, ask(RESET, history=[failed(9000), failed(9000)]), False, "for this incident",
                     id="FC090 however long ago"),
        pytest.param(attempts, ask(RESET, history=[failed(90), before(30)]), True, "not tried too often",
                     id="what has been done is not begun again"),
        pytest.param(attempts, ask(RESET, history=[failed(90), before(30, ending=Ending.PENDING)]), True, "not tried",
                     id="what is under way is gone on with"),
        pytest.param(attempts, ask(RESET, history=[failed(90), before(60, ending=Ending.PENDING)]), False, "2 times",
                     id="FC091 what never ended has failed"),
        pytest.param(attempts, ask(RESET, history=[before(90), failed(30)]), False, "2 times",
                     id="what failed after it had once been done counts whole"),
        pytest.param(attempts, ask(RESET, history=[before(90, ending=Ending.SKIPPED), failed(30)]), True, "not tried",
                     id="FC088 skipped ones do not count"),
        pytest.param(attempts, ask(RESET, history=[failed(90, Action.CORDON), failed(80, Action.CORDON)]), True,
                     "not tried",
                     id="attempts at something else do not"),
        pytest.param(attempts, ask(RESET, history=[before(m, incident=f"inc-{m}") for m in (30, 60, 90)]), False,
                     "reset_gpu on n0 was tried 3 times within 86400 s, limit 3",
                     id="FC090 the fourth on a node within a day is up to people, whatever the incident"),
        pytest.param(attempts, ask(RESET, history=[before(m, incident=f"inc-{m}") for m in (30, 60, 1440)]), True,
                     "not tried", id="FC090 a day later it may be tried again"),
        pytest.param(attempts, ask(RESET, history=[before(m, incident=f"i{m}", name="n9") for m in (1, 2, 3)]), True,
                     "not tried", id="attempts on other nodes do not count"),
        pytest.param(attempts, ask(RELEASE, history=[failed(2), failed(1)]), True, "not tried",
                     id="recovery is never tried too often"),
        # backoff
        pytest.param(backoff, ask(RESET), True, "no attempt", id="nothing to back off from"),
        pytest.param(backoff, ask(RESET, history=[failed(9)]), False,
                     "reset_gpu on n0 was tried; not again before 2026-03-04 12:01 UTC",
                     id="FC090 too soon after the first"),
        pytest.param(backoff, ask(RESET, history=[failed(10)]), True, "no attempt", id="FC090 ten minutes after it"),
        pytest.param(backoff, ask(RESET, history=[failed(40), failed(19)]), False, "before 2026-03-04 12:01 UTC",
                     id="FC090 the pause doubles"),
        pytest.param(backoff, ask(RESET, history=[before(1)]), True, "no attempt", id="what is done needs no pause"),
        pytest.param(backoff, ask(RESET, history=[before(1, ending=Ending.PENDING)]), True, "no attempt",
                     id="nor does what is under way"),
        pytest.param(backoff, ask(RESET, history=[before(1, incident="inc-0")]), True, "no attempt",
                     id="another incident does not wait"),
        pytest.param(backoff, ask(RELEASE, history=[failed(1)]), True, "no attempt", id="recovery does not wait"),
    ],
)  # fmt: skip
def test_a_limit_lets_a_plan_pass_or_says_why_not(limit: Limit, question: Question, passes: bool, reason: str) -> None:
    answer = limit(question)
    assert answer.passed is passes
    assert reason in answer.reason


# ------------------------------------------------------------------------------------------------- what always holds

HISTORY = st.lists(
    st.builds(
        Attempt,
        at=st.floats(0, 1e5).map(lambda s: AT - timedelta(seconds=s)),
        incident=st.sampled_from(["inc-1", "inc-2"]),
        node=st.sampled_from(["n0", "n1"]),
        action=st.sampled_from(Action),
        ending=st.sampled_from(Ending),
    ),
    max_size=12,
)


def test_a_fleet_knows_who_is_out_and_why_and_where_each_belongs():
    nodes = [
        node("a", labels={POOL: "h100"}),
        node("b", labels={POOL: "h100", RACK: "r1"}, **DOWN),
        node("c", ours=True),
        node("d", **OURS),
        node("e", **TAINTED),
    ]
    fleet = Fleet.of(nodes, LimitPolicy())
    assert fleet.out == {
        "b": "not Ready", "c": "cordoned by gpuwarden", "d": "quarantined by gpuwarden", "e": "tainted repair",
    }  # fmt: skip
    assert fleet.settled == {"c", "d"}
    assert fleet.pools == dict.fromkeys("ab", f"{POOL}=h100") | dict.fromkeys("cde", "no pool")
    assert fleet.domains == {"b": f"{RACK}=r1"}


def test_each_limit_has_a_name_of_its_own_and_a_healthy_node_passes_all():
    answers = [limit(ask()) for limit in LIMITS]
    assert [each.passed for each in answers] == [True] * len(LIMITS)
    assert len({each.name for each in answers}) == len(LIMITS)


@given(
    action=st.sampled_from(sorted(set(Action) - DISRUPTIVE - TAKES_OUT)), history=HISTORY, sick=st.booleans()
)  # fmt: skip
def test_recovery_and_observation_are_never_blocked(action: Action, history, sick: bool) -> None:
    nodes = nodes_of(4, labels=(POOL, RACK), **{f"n{n}": CORDONED | DOWN for n in range(4)} if sick else {})
    question = ask(plan_of(action), nodes=("n0", "x"), of=nodes, history=history, max_actions_per_hour=1)
    assert [limit(question).passed for limit in LIMITS] == [True] * len(LIMITS)


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    share=st.floats(0.01, 1.0),
    count=st.none() | st.integers(1, 5),
    out=st.sets(st.integers(0, 47)),
    data=st.data(),
)
def test_acting_on_whatever_passes_never_exceeds_a_limit(sizes, share, count, out, data) -> None:
    names = [f"n{number}" for number in range(sum(sizes))]
    down = {f"n{number}": data.draw(st.sampled_from([CORDONED, DOWN, TAINTED, OURS])) for number in sorted(out)}
    nodes = nodes_of(*sizes, labels=(POOL, RACK), **down)
    limits = {
        "max_unavailable_share_of_pool": share, "max_unavailable_nodes_of_pool": count,
        "max_unavailable_share_of_domain": share, "max_unavailable_nodes_of_domain": count,
    }  # fmt: skip
    settled = {name for name, fields in down.items() if fields in (CORDONED, OURS)}
    taken: set[str] = set()
    for name in data.draw(st.permutations(names)):
        question = ask(nodes=(name,), of=nodes, wanted_out=taken, **limits)
        if pool_limit(question).passed and domain_limit(question).passed:
            taken.add(name)
    assert taken >= settled & set(names), "what stays out anyway may be worked on"
    start = 0
    for size in sizes:
        group = set(names[start : start + size])
        start += size
        newly = (taken & group) - settled
        assert not newly or len(group & (set(down) | taken)) <= at_most(share, count, size)
        assert newly or group & set(down), "one may always go where nothing is out"


@given(history=HISTORY, data=st.data())
def test_the_order_of_the_history_changes_nothing(history, data) -> None:
    for limit in LIMITS:
        other = ask(RESET, nodes=("n0", "n1"), history=data.draw(st.permutations(history)))
        assert limit(other) == limit(ask(RESET, nodes=("n0", "n1"), history=history))


@given(history=HISTORY)
def test_what_fails_is_not_tried_more_often_than_it_may(history) -> None:
    ended = [one if one.ending is Ending.SKIPPED else replace(one, ending=Ending.FAILED) for one in history]
    if attempts(ask(RESET, history=ended)).passed:
        made = [a for a in ended if a.ending is not Ending.SKIPPED and a.node == "n0" and a.action is Action.RESET_GPU]
        assert sum(a.incident == "inc-1" for a in made) < 2
        assert sum(a.at > AT - timedelta(days=1) for a in made) < 3


@given(share=st.floats(0.001, 1), total=st.integers(0, 5000), count=st.none() | st.integers(1, 50))
def test_limits_round_down_but_one_may_go(share: float, total: int, count: int | None) -> None:
    most = at_most(share, count, total)
    assert 1 <= most <= max(1, share * total + 1e-6)
    assert count is None or most <= count
