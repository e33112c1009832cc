"""What disruption budgets say to a set of evictions: selectors, the share that each eviction takes, dead ends."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.disruption import Passage, passages, selects
from remediation.objects import PdbView, PodView, Selector
from tests.acting.views import AT, pdb, pod

FREE, COUNTED, BLOCKED = Passage.FREE, Passage.COUNTED, Passage.BLOCKED
UNKNOWN, NEVER = Passage.UNKNOWN, Passage.NEVER
LLAMA = {"app": "llama", "role": "worker"}


@pytest.mark.parametrize(
    ("match", "expressions", "answer"),
    [
        pytest.param({}, [], True, id="an empty selector matches everything"),
        pytest.param({"app": "llama"}, [], True, id="a label that is there"),
        pytest.param({"app": "bert"}, [], False, id="another value"),
        pytest.param({"team": "a"}, [], False, id="a label that is not there"),
        pytest.param({"app": "llama", "role": "ps"}, [], False, id="all labels must match"),
        pytest.param({}, [("app", "In", ("bert", "llama"))], True, id="In one of the values"),
        pytest.param({}, [("app", "In", ("bert",))], False, id="In none of the values"),
        pytest.param({}, [("team", "In", ("",))], False, id="In without the label"),
        pytest.param({}, [("app", "NotIn", ("bert",))], True, id="NotIn with another value"),
        pytest.param({}, [("app", "NotIn", ("llama",))], False, id="NotIn with that value"),
        pytest.param({}, [("team", "NotIn", ("a",))], True, id="NotIn matches where the label is not there"),
        pytest.param({}, [("app", "Exists", ())], True, id="Exists"),
        pytest.param({}, [("team", "Exists", ())], False, id="Exists without the label"),
        pytest.param({}, [("team", "DoesNotExist", ())], True, id="DoesNotExist"),
        pytest.param({}, [("app", "DoesNotExist", ())], False, id="DoesNotExist with the label"),
        pytest.param({"app": "llama"}, [("role", "In", ("ps",))], False, id="labels and expressions must both match"),
        pytest.param({}, [("app", "Gt", ("3",))], None, id="an operator that is not known leaves it open"),
        pytest.param({"app": "bert"}, [("app", "Gt", ("3",))], False, id="unless the rest says no already"),
    ],
)
def test_a_selector_matches_as_the_api_servers_does(match, expressions, answer) -> None:
    assert selects(Selector(tuple(match.items()), tuple(expressions)), LLAMA) is answer


@pytest.mark.parametrize(
    ("one", "budgets", "passage", "reason"),
    [
        pytest.param(pod(), [], FREE, "no budget covers it", id="no budget"),
        pytest.param(pod(), [pdb(namespace="other", allowed=0)], FREE, "no budget", id="a budget of another namespace"),
        pytest.param(pod(), [pdb(match={"app": "x"}, allowed=0)], FREE, "no budget", id="a budget of other pods"),
        pytest.param(pod(), [pdb()], COUNTED, "train/llama allows 1 more", id="a budget with room"),
        pytest.param(pod(), [pdb(allowed=0)], BLOCKED, "needs 2 healthy pods and has 2",
                     id="FC105 a budget without room is named with its numbers"),
        pytest.param(pod(), [pdb(allowed=-1, healthy=1)], BLOCKED, "needs 2 healthy pods and has 1",
                     id="a negative allowance is none"),
        pytest.param(pod(), [pdb("a", 5), pdb("b", 5)], NEVER, "train/a, train/b cover it together",
                     id="under two budgets it is never evicted until a person mends them"),
        pytest.param(pod(), [pdb(current=False)], UNKNOWN, "older than its spec", id="a status of an older spec"),
        pytest.param(pod(), [pdb(expressions=[("a", "Gt", ("1",))])], UNKNOWN, "operator that is not known",
                     id="a selector that cannot be read"),
        # pods that are not ready
        pytest.param(pod(ready=False), [pdb(allowed=0)], FREE, "has its 2 healthy pods without it",
                     id="FC105 an unready pod passes while enough others are healthy"),
        pytest.param(pod(ready=False), [pdb(allowed=0, healthy=1)], BLOCKED, "has 1",
                     id="FC105 but not while too few are"),
        pytest.param(pod(ready=False), [pdb(allowed=0, healthy=0, desired_healthy=0)], BLOCKED, "needs 0",
                     id="nor where the budget desires none"),
        pytest.param(pod(ready=False), [pdb(allowed=0, healthy=1, evict_unready_always=True)], FREE, "always lets",
                     id="unless the budget always lets unready pods go"),
        pytest.param(pod(ready=False), [pdb(current=False, evict_unready_always=True)], FREE, "always lets",
                     id="which needs no status"),
        pytest.param(pod(ready=False), [pdb(current=False, allowed=0)], UNKNOWN, "older than its spec",
                     id="an old status says nothing about healthy pods either"),
        pytest.param(pod(), [pdb(allowed=0, evict_unready_always=True)], BLOCKED, "needs 2",
                     id="a ready pod gains nothing by that"),
        # pods that budgets don't cover
        pytest.param(pod(phase="Pending"), [pdb(allowed=0)], FREE, "is Pending", id="a pending pod"),
        pytest.param(pod(phase="Succeeded"), [pdb(allowed=0)], FREE, "is Succeeded", id="a finished pod"),
        pytest.param(pod(phase="Failed"), [pdb("a"), pdb("b")], FREE, "is Failed", id="a failed pod under two budgets"),
        pytest.param(pod(deleting_since=AT), [pdb(allowed=0)], FREE, "terminating already", id="a terminating pod"),
    ],
)  # fmt: skip
def test_a_budget_lets_a_pod_go_or_says_why_not(one: PodView, budgets, passage: Passage, reason: str) -> None:
    (told,) = passages([one], budgets)
    assert (told.passage, told.passes) == (passage, passage in (FREE, COUNTED))
    assert reason in told.reason


def test_three_pods_under_one_budget_with_room_for_one_take_it_one_after_the_other():
    told = passages([pod("a"), pod("b"), pod("c")], [pdb(allowed=1)])
    assert [each.passage for each in told] == [COUNTED, BLOCKED, BLOCKED]
    assert told[1].reason == "train/llama needs 2 healthy pods and has 3, and pods before this one take 1"


def test_what_passes_free_takes_nothing_from_the_others():
    pods = [pod("a", ready=False), pod("b", phase="Pending"), pod("c"), pod("d")]
    assert [each.passage for each in passages(pods, [pdb(allowed=1)])] == [FREE, FREE, COUNTED, BLOCKED]


def test_budgets_of_the_same_name_in_two_namespaces_are_two():
    pods = [pod("a"), pod("a", namespace="eval")]
    told = passages(pods, [pdb(allowed=1), pdb(allowed=1, namespace="eval")])
    assert [(each.passage, each.budgets) for each in told] == [(COUNTED, ("train/llama",)), (COUNTED, ("eval/llama",))]


SOME_BUDGETS = st.lists(
    st.builds(
        pdb,
        name=st.sampled_from("pqr"),
        allowed=st.integers(-1, 4),
        match=st.sampled_from([{}, {"app": "a"}, {"app": "b"}]),
        current=st.booleans(),
        healthy=st.integers(0, 4),
        evict_unready_always=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
)
SOME_PODS = st.lists(
    st.builds(
        pod,
        name=st.text("xyz", min_size=1, max_size=4),
        labels=st.sampled_from([{}, {"app": "a"}, {"app": "b"}]),
        ready=st.booleans(),
        phase=st.sampled_from(["Running", "Pending"]),
    ),
    max_size=10,
    unique_by=lambda one: one.name,
)


@given(pods=SOME_PODS, budgets=SOME_BUDGETS)
def test_a_budget_never_gives_more_than_it_allows(pods: list[PodView], budgets: list[PdbView]) -> None:
    taken = Counter(each.budgets[0] for each in passages(pods, budgets) if each.passage is COUNTED)
    for budget in budgets:
        assert taken[f"{budget.namespace}/{budget.name}"] <= max(0, budget.allowed)


@given(pods=SOME_PODS, budgets=SOME_BUDGETS, data=st.data())
def test_the_order_of_pods_and_budgets_does_not_change_the_totals(pods, budgets, data) -> None:
    told = Counter((each.passage, each.budgets) for each in passages(pods, budgets))
    other = passages(data.draw(st.permutations(pods)), data.draw(st.permutations(budgets)))
    assert Counter((each.passage, each.budgets) for each in other) == told
