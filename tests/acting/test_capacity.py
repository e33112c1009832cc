"""Room for pods that are moved away: which GPUs are free, and which pod finds none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.capacity import free_gpus, without_room
from remediation.limits import Fleet
from remediation.objects import PodView, Taint
from rules.schema import LimitPolicy
from tests.acting.views import node, pod

KEEPS_OFF = (Taint("repair", "NoSchedule"),)


def pods_of(*sizes: int, **fields) -> list[PodView]:
    return [pod(f"p{number}", gpus=gpus, **fields) for number, gpus in enumerate(sizes)]


@pytest.mark.parametrize(
    ("given_node", "pods", "free"),
    [
        pytest.param(node(), [], {"n1": 8}, id="an idle node"),
        pytest.param(node(), pods_of(1, 4), {"n1": 3}, id="what pods have asked for is not free"),
        pytest.param(node(), pods_of(8), {}, id="a full node has none"),
        pytest.param(node(), pods_of(8, 8), {}, id="nor one that is said to be more than full"),
        pytest.param(node(), pods_of(8, phase="Succeeded"), {"n1": 8}, id="a pod that has ended needs none"),
        pytest.param(node(), pods_of(8, phase="Pending"), {}, id="one that starts does"),
        pytest.param(node(gpus=0), [], {}, id="a node without GPUs"),
        pytest.param(node(unschedulable=True), [], {}, id="a cordoned node takes no pod"),
        pytest.param(node(ready=False), [], {}, id="nor does one that is not Ready"),
        pytest.param(node(taints=KEEPS_OFF), [], {}, id="nor one that somebody has tainted"),
    ],
)
def test_free_gpus_of_a_node(given_node, pods: list[PodView], free: dict[str, int]) -> None:
    assert free_gpus(Fleet.of([given_node], LimitPolicy()), {"n1": pods}, ()) == free


def test_a_node_that_is_about_to_go_is_no_room() -> None:
    fleet = Fleet.of([node("a"), node("b")], LimitPolicy())
    assert free_gpus(fleet, {}, {"a"}) == {"b": 8}


@pytest.mark.parametrize(
    ("sizes", "free", "homeless"),
    [
        pytest.param([8], {"a": 8}, [], id="it fits"),
        pytest.param([8], {"a": 7, "b": 7}, [8], id="a pod cannot be split"),
        pytest.param([8], {}, [8], id="nothing is free"),
        pytest.param([], {}, [], id="nothing is moved"),
        pytest.param([0], {}, [], id="a pod without GPUs needs none"),
        pytest.param([4, 8], {"a": 8, "b": 4}, [], id="the hungriest is placed first"),
        pytest.param([2, 6], {"a": 6, "b": 2}, [], id="each fills the node that it fits best"),
        pytest.param([8, 8, 1], {"a": 8, "b": 2}, [8], id="the others still find a place"),
        pytest.param([3, 3], {"a": 5}, [3], id="a place is taken once"),
    ],
)
def test_which_pods_find_no_room(sizes: list[int], free: dict[str, int], homeless: list[int]) -> None:
    assert [one.gpus for one in without_room(pods_of(*sizes), free)] == homeless


SIZES = st.lists(st.integers(0, 8), max_size=8)
FREE = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 8))


@given(SIZES, FREE)
def test_what_finds_room_takes_no_more_than_there_is(sizes: list[int], free: dict[str, int]) -> None:
    before = dict(free)
    homeless = without_room(pods_of(*sizes), free)
    assert sum(sizes) - sum(one.gpus for one in homeless) <= sum(free.values())
    assert free == before
    assert all(one.gpus > 0 for one in homeless)
    assert homeless or max(sizes, default=0) <= max(free.values(), default=0)


@given(SIZES, FREE, st.randoms(use_true_random=False))
def test_the_answer_is_the_same_in_whatever_order_the_pods_come(sizes: list[int], free: dict[str, int], dice) -> None:
    pods = pods_of(*sizes)
    shuffled = list(pods)
    dice.shuffle(shuffled)
    assert without_room(shuffled, free) == without_room(pods, free)
