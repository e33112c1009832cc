"""The circuit breaker: when it trips, how it closes, what goes on meanwhile."""

from dataclasses import astuple
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.breaker import BreakerState, TakenOut, advance, breaker, limit, reset
from rules.schema import BreakerPolicy
from rules.vocabulary import Action
from tests.acting.views import AT
from tests.decide.circumstances import plan_of

POLICY = BreakerPolicy(window="10m", share=0.05, min_nodes=3, cool_down="1h")
MANUAL = BreakerPolicy(window="10m", min_nodes=3)
CLOSED = BreakerState()
OPEN = BreakerState(AT, "3 of 40 nodes were taken out", None)


def at(seconds: float):
    return AT + timedelta(seconds=seconds)


def taken(*times_s: float) -> list[TakenOut]:
    """One node after the other, at these times."""
    return [TakenOut(f"n{index}", at(when)) for index, when in enumerate(times_s)]


@pytest.mark.parametrize(
    ("policy", "fleet", "nodes"),
    [
        pytest.param(POLICY, 40, 3, id="a share of 2 is raised to the floor"),
        pytest.param(POLICY, 79, 3, id="a share of 3.95 is three nodes"),
        pytest.param(POLICY, 80, 4, id="a share of 4 is four"),
        pytest.param(POLICY, 0, 3, id="the floor holds in an empty fleet"),
        pytest.param(BreakerPolicy(share=0.29, min_nodes=1), 100, 29, id="29 % of 100 is 29"),
        pytest.param(BreakerPolicy(share=0.5, max_nodes=5), 100, 5, id="a number of nodes lies over the share"),
        pytest.param(BreakerPolicy(min_nodes=3, max_nodes=2), 10, 2, id="and over the floor"),
    ],
)
def test_the_limit_rounds_down_with_a_floor(policy: BreakerPolicy, fleet: int, nodes: int) -> None:
    assert limit(policy, fleet) == nodes


@pytest.mark.parametrize(
    ("state", "events", "policy", "now_s", "opens"),
    [
        pytest.param(CLOSED, taken(0, 1), POLICY, 2, False, id="two nodes are fewer than three"),
        pytest.param(CLOSED, taken(0, 1, 2), POLICY, 2, True, id="FC094 three nodes within the window trip it"),
        pytest.param(CLOSED, taken(0, 1, 600), POLICY, 600, False, id="what lies before the window doesn't count"),
        pytest.param(CLOSED, taken(0, 1, 599), POLICY, 599, True, id="what lies just inside does"),
        pytest.param(CLOSED, [*taken(0, 1), TakenOut("n1", at(2))], POLICY, 2, False, id="a node counts once"),
        pytest.param(BreakerState(counts_from=at(1)), taken(0, 1, 2, 3), POLICY, 3, False,
                     id="FC087 what a person has settled trips it no more"),
        pytest.param(BreakerState(counts_from=at(0)), taken(1, 2, 3), POLICY, 3, True, id="what came after does"),
        pytest.param(OPEN, [], POLICY, 3599, True, id="it stays open until the cool-down"),
        pytest.param(OPEN, taken(1, 2, 3, 4), POLICY, 3600, False, id="then it closes"),
        pytest.param(OPEN, [], MANUAL, 10**8, True, id="without a cool-down only a person closes it"),
    ],
)  # fmt: skip
def test_it_trips_and_closes(state: BreakerState, events, policy: BreakerPolicy, now_s: float, opens: bool) -> None:
    after = advance(state, events, policy, fleet=40, now=at(now_s))
    assert (after.open_since is not None) is opens


def test_it_says_why_it_tripped_and_since_when():
    after = advance(CLOSED, taken(0, 1, 2), POLICY, fleet=40, now=at(2))
    assert after == BreakerState(at(2), "3 of 40 nodes were taken out within 600 s, limit 3: n0, n1, n2", None)


def test_it_names_a_few_nodes_and_counts_the_rest():
    after = advance(CLOSED, taken(*range(11)), POLICY, fleet=40, now=at(11))
    assert after.reason.endswith("n0, n1, n10, n2, n3, n4, n5, n6 and 3 more")


def test_it_stays_closed_after_a_cool_down_though_the_window_is_still_full():
    quick = BreakerPolicy(window="2h", cool_down="1m")
    events = taken(0, 1, 2)
    opened = advance(CLOSED, events, quick, fleet=40, now=at(2))
    closed = advance(opened, events, quick, fleet=40, now=at(62))
    assert closed == BreakerState(None, "closed by itself after 60 s", at(62))
    assert advance(closed, events, quick, fleet=40, now=at(63)) == closed


def test_a_person_closes_it_and_what_was_before_is_settled():
    closed = reset(OPEN, by="ann", now=at(50))
    assert closed == BreakerState(None, "closed by ann", at(50))
    assert advance(closed, taken(47, 48, 49), MANUAL, fleet=40, now=at(51)) == closed


def test_closing_a_closed_one_forgets_nothing():
    assert reset(CLOSED, by="ann", now=at(50)) is CLOSED


@pytest.mark.parametrize(
    ("state", "steps", "passes"),
    [
        pytest.param(CLOSED, (Action.CORDON, Action.DRAIN), True, id="closed, all goes"),
        pytest.param(OPEN, (Action.CORDON, Action.DRAIN), False, id="FC094 open, nothing is drained"),
        pytest.param(OPEN, (Action.NO_NEW_WORK, Action.DIAGNOSE), False, id="nor kept free of new work"),
        pytest.param(OPEN, (Action.RESTART_JOB,), False, id="nor a job restarted"),
        pytest.param(OPEN, (Action.RELEASE,), True, id="recovery goes on"),
        pytest.param(OPEN, (Action.WATCH, Action.DIAGNOSE), True, id="FC094 so does observation"),
    ],
)
def test_recovery_and_observation_go_on_while_it_is_open(state: BreakerState, steps, passes: bool) -> None:
    answer = breaker(state, plan_of(*steps))
    assert (answer.name, answer.passed) == ("breaker", passes)
    assert ("closed: it has never tripped" if state is CLOSED else "open since 2026-03-04T12:00:00") in answer.reason


TIMES = st.lists(st.tuples(st.integers(0, 12), st.floats(0, 4000)), max_size=25)


@given(events=TIMES, fleet=st.integers(0, 200), now_s=st.floats(0, 5000), data=st.data())
def test_asking_again_or_in_another_order_changes_nothing(events, fleet: int, now_s: float, data) -> None:
    past = [TakenOut(f"n{node}", at(when)) for node, when in events]
    once = advance(CLOSED, past, POLICY, fleet=fleet, now=at(now_s))
    assert advance(once, past, POLICY, fleet=fleet, now=at(now_s)) == once
    assert advance(CLOSED, data.draw(st.permutations(past)), POLICY, fleet=fleet, now=at(now_s)) == once


@given(times=st.lists(st.floats(0, 4000), max_size=40), fleet=st.integers(1, 200))
def test_no_window_ever_holds_more_nodes_than_the_limit(times: list[float], fleet: int) -> None:
    state, done = CLOSED, []
    for index, when in enumerate(sorted(times)):
        state = advance(state, done, MANUAL, fleet=fleet, now=at(when))
        if breaker(state, plan_of(Action.DRAIN)).passed:
            done.append(TakenOut(f"n{index}", at(when)))
    for one in done:
        within = [other for other in done if one.at <= other.at < one.at + timedelta(minutes=10)]
        assert len(within) <= limit(MANUAL, fleet)


@given(events=TIMES, now_s=st.floats(0, 5000))
def test_the_state_survives_being_written_down_and_read_again(events, now_s: float) -> None:
    past = [TakenOut(f"n{node}", at(when)) for node, when in events]
    state = advance(CLOSED, past, POLICY, fleet=40, now=at(now_s))
    assert BreakerState(*astuple(state)) == state
