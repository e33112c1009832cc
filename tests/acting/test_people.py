"""What people said: the last word holds, it covers what it was about and nothing else, and says whose it is."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.people import Said, Saying, Word
from rules.vocabulary import Action
from tests.acting.views import AT

PLAN = (Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN)


def at(hours: float) -> datetime:
    return AT + timedelta(hours=hours)


def says(
    word: Word, hours: float = 0, *, by: str = "ann", node: str = "n1", incident: str = "inc-1", **fields
) -> Saying:
    about = (incident,) if word in (Word.APPROVE, Word.REJECT, Word.RELEASE) else ()
    return Saying(at(hours), word, by, **({"node": node, "incidents": about} | fields))


def approval(hours: float = 0, **fields) -> Saying:
    return says(Word.APPROVE, hours, **({"actions": PLAN} | fields))


@pytest.mark.parametrize(
    ("sayings", "approved", "rejected"),
    [
        pytest.param([], (), "", id="nobody said anything"),
        pytest.param([approval()], PLAN, "", id="an approval covers the actions that it names"),
        pytest.param([approval(actions=PLAN[:1])], PLAN[:1], "", id="and not one more, though the plan has grown"),
        pytest.param([approval(incident="inc-2")], (), "", id="another incident's is none"),
        pytest.param([says(Word.REJECT)], (), "rejected by ann at 2026-03-04 12:00 UTC", id="a rejection"),
        pytest.param([approval(), says(Word.REJECT, 1)], (), "rejected by ann at 2026-03-04 13:00 UTC",
                     id="a rejection takes an approval back"),
        pytest.param([says(Word.REJECT, 1), approval(2)], PLAN, "", id="an approval takes a rejection back"),
        pytest.param([says(Word.REJECT, 2), approval(1)], (), "rejected by ann at 2026-03-04 14:00 UTC",
                     id="the last word counts, not the last one told"),
        pytest.param([approval(), approval(1, actions=PLAN[:2])], PLAN[:2], "", id="the newest approval is the one"),
        pytest.param([says(Word.REJECT), says(Word.HOLD, 1), says(Word.RESUME, 2)], (),
                     "rejected by ann at 2026-03-04 12:00 UTC", id="a hold says nothing about incidents"),
        pytest.param([approval(), says(Word.RELEASE, 1, by="bob", why="looked at it")], (),
                     "n1 was given back by bob at 2026-03-04 13:00 UTC (looked at it)",
                     id="a node that was given back is to be left alone"),
        pytest.param([says(Word.RELEASE), approval(1)], PLAN, "", id="who approves after that wants it out again"),
    ],
)  # fmt: skip
def test_the_last_word_on_an_incident(sayings: list[Saying], approved: tuple[Action, ...], rejected: str) -> None:
    said = Said.of(sayings)
    assert said.approved("inc-1") == approved
    assert said.rejected("inc-1") == rejected


def test_an_approval_remembers_the_gates_that_it_was_given_in_sight_of() -> None:
    given_ = approval(gates=("checkpoint",))
    assert Said.of([given_]).approval("inc-1") == given_
    assert Said.of([given_, says(Word.REJECT, 1)]).approval("inc-1") is None


UNTIL = at(2)


@pytest.mark.parametrize(
    ("sayings", "now", "held"),
    [
        pytest.param([], AT, "", id="no hold"),
        pytest.param([says(Word.HOLD)], at(999), "n1 is on hold until somebody ends it, by ann at 2026-03-04 12:00 UTC",
                     id="a hold without an end lasts"),
        pytest.param([says(Word.HOLD, until=UNTIL, why="burn-in")], at(1.99),
                     "n1 is on hold until 2026-03-04 14:00 UTC, by ann at 2026-03-04 12:00 UTC (burn-in)",
                     id="it names who, when, why and until when"),
        pytest.param([says(Word.HOLD, until=UNTIL)], UNTIL, "", id="it ends by itself"),
        pytest.param([says(Word.HOLD), says(Word.RESUME, 1)], at(2), "", id="somebody ended it"),
        pytest.param([says(Word.RESUME), says(Word.HOLD, 1)], at(2),
                     "n1 is on hold until somebody ends it, by ann at 2026-03-04 13:00 UTC", id="and began it again"),
        pytest.param([says(Word.HOLD), says(Word.HOLD, 1, by="bob", until=UNTIL)], at(1.5),
                     "n1 is on hold until 2026-03-04 14:00 UTC, by bob at 2026-03-04 13:00 UTC",
                     id="the newest hold is the one"),
        pytest.param([says(Word.HOLD, node="n2")], AT, "", id="another node's"),
        pytest.param([says(Word.HOLD), says(Word.RESUME, 1, node="n2")], at(2),
                     "n1 is on hold until somebody ends it, by ann at 2026-03-04 12:00 UTC",
                     id="another node's end ends nothing here"),
        pytest.param([says(Word.HOLD), approval(1)], at(2),
                     "n1 is on hold until somebody ends it, by ann at 2026-03-04 12:00 UTC",
                     id="an approval does not end a hold"),
    ],
)  # fmt: skip
def test_whether_a_node_is_on_hold(sayings: list[Saying], now: datetime, held: str) -> None:
    assert Said.of(sayings).on_hold(("n1",), now) == held


def test_one_node_on_hold_is_enough_and_the_first_is_named() -> None:
    said = Said.of([says(Word.HOLD, node="n3"), says(Word.HOLD, node="n2")])
    assert said.on_hold(("n3", "n1", "n2"), AT).startswith("n2 is on hold")


@pytest.mark.parametrize(
    ("sayings", "back"),
    [
        pytest.param([], False, id="nobody said so"),
        pytest.param([says(Word.RELEASE)], True, id="an order"),
        pytest.param([says(Word.RELEASE, incidents=("inc-0", "inc-1"))], True, id="about one of its incidents"),
        pytest.param([says(Word.RELEASE, incidents=("inc-0",))], False, id="about an earlier incident"),
        pytest.param([says(Word.RELEASE, node="n2")], False, id="about another node of it"),
        pytest.param([says(Word.RELEASE), says(Word.REJECT, 1)], False, id="taken back by another word"),
        pytest.param([says(Word.RELEASE), approval(1)], False, id="or by an approval"),
        pytest.param([says(Word.RELEASE), says(Word.HOLD, 1)], True, id="a hold does not take it back"),
    ],
)
def test_whether_a_node_is_to_be_given_back(sayings: list[Saying], back: bool) -> None:
    assert (Said.of(sayings).given_back("n1", "inc-1") is not None) is back


@pytest.mark.parametrize(
    ("sayings", "fenced"),
    [
        pytest.param([], False, id="nobody said that it is off"),
        pytest.param([says(Word.FENCED, 1)], True, id="somebody did"),
        pytest.param([says(Word.FENCED, 0)], True, id="at the very moment of the fault"),
        pytest.param([says(Word.FENCED, -1)], False, id="but before the fault: it may have been switched on since"),
        pytest.param([says(Word.FENCED, 1, node="n2")], False, id="of another node"),
    ],
)
def test_whether_a_node_is_off_for_certain(sayings: list[Saying], fenced: bool) -> None:
    assert Said.of(sayings).fenced("n1", AT) is fenced


def test_the_last_reset_of_the_breaker() -> None:
    first, last = says(Word.RESET_BREAKER, 1), says(Word.RESET_BREAKER, 2, by="bob")
    assert Said.of([last, says(Word.HOLD, 3), first]).breaker_reset() == last
    assert Said().breaker_reset() is None


SAYINGS = st.lists(
    st.builds(
        Saying,
        at=st.integers(0, 10**6).map(lambda s: AT + timedelta(seconds=s)),
        word=st.sampled_from(Word),
        by=st.sampled_from(["ann", "bob"]),
        node=st.sampled_from(["n1", "n2"]),
        incidents=st.sampled_from([(), ("inc-1",), ("inc-1", "inc-2")]),
        actions=st.sampled_from([(), PLAN]),
        until=st.none() | st.just(AT + timedelta(days=5)),
    ),
    unique_by=lambda saying: saying.at,
    max_size=8,
)


@given(SAYINGS, st.data())
def test_the_order_in_which_it_is_told_changes_nothing(sayings: list[Saying], data) -> None:
    assert Said.of(data.draw(st.permutations(sayings))) == Said.of(sayings)


@given(SAYINGS)
def test_an_incident_is_approved_or_rejected_or_neither_and_never_both(sayings: list[Saying]) -> None:
    said = Said.of(sayings)
    for incident in ("inc-1", "inc-2"):
        assert said.approval(incident) is None or not said.rejected(incident)
        for node in ("n1", "n2"):
            assert said.given_back(node, incident) is None or said.rejected(incident)
