"""What an approval opens: the gates that a person may overrule, as far as the person has seen them, and how often."""

from dataclasses import replace
from datetime import timedelta

import pytest

from remediation.decide import STOPS
from remediation.limits import Attempt, Ending
from remediation.objects import DO_NOT_EVICT
from remediation.people import Saying, Word
from remediation.scene import Scene
from rules.vocabulary import Action, Tier
from tests.acting.scenes import attempt, calm_scene, serving, training
from tests.acting.views import node, pdb
from tests.decide.incidents import AT
from tests.decide.ruled import (
    BEFORE_THE_DRAIN,
    CLOSED,
    FULL,
    JOBS,
    LAST,
    OPEN,
    POLICY,
    WHOLE,
    failed,
    ruled,
    says,
    sick,
)

OVERRULED = {"attempts", "backoff", "maintenance_window", "last_restart", "checkpoint", "spare_capacity"}
#: A scene, a policy and a tier in which this gate is the one that stops the plan.
STOPPED_BY = {
    "maintenance_window": (calm_scene(), CLOSED, Tier.FACT),
    "last_restart": (calm_scene(pods=[training()], workloads=LAST), POLICY, Tier.FACT),
    "checkpoint": (calm_scene(pods=[training()], workloads=JOBS), POLICY, Tier.TREND),
    "spare_capacity": (calm_scene(pods=[serving(), *FULL]), POLICY, Tier.TREND),
    "attempts": (
        calm_scene(
            history=tuple(
                attempt(AT - timedelta(hours=hours), Action.DRAIN, ending=Ending.FAILED) for hours in (9, 5)
            )
        ), POLICY, Tier.FACT,
    ),
    "backoff": (calm_scene(history=(attempt(AT, Action.DRAIN, ending=Ending.FAILED),)), POLICY, Tier.FACT),
    "pods_may_move": (calm_scene(pods=[serving(annotations={DO_NOT_EVICT: "true"})]), POLICY, Tier.FACT),
    "pdb_headroom": (calm_scene(pods=[serving()], pdbs=(pdb(allowed=0, namespace="web"),)), POLICY, Tier.FACT),
    "leadership": (calm_scene(leads=False), POLICY, Tier.FACT),
    "breaker": (calm_scene(breaker=OPEN), POLICY, Tier.FACT),
    "on_hold": (calm_scene(said=[says(Word.HOLD)]), POLICY, Tier.FACT),
    "ownership": (calm_scene(node("n000", unschedulable=True)), POLICY, Tier.FACT),
}  # fmt: skip


def test_what_a_person_can_overrule() -> None:
    assert {name for name, stop in STOPS.items() if stop.approvable} == OVERRULED
    assert STOPPED_BY.keys() >= OVERRULED


def in_sight_of(scene: Scene, *gates: str, **fields) -> Scene:
    """The scene once somebody has approved it, in sight of these gates."""
    approval = says(Word.APPROVE, actions=WHOLE, gates=gates, **fields)
    return replace(scene, said=scene.said.of([*scene.said.sayings, approval]))


@pytest.mark.parametrize("name", STOPPED_BY)
def test_an_approval_opens_a_gate_that_is_a_persons_to_overrule_and_no_other(name: str) -> None:
    scene, policy, tier = STOPPED_BY[name]
    (before,) = ruled([sick(tier=tier)], scene, policy)
    (after,) = ruled([sick(tier=tier)], in_sight_of(scene, name), policy)
    assert failed(before) == {name}
    assert failed(after) == (set() if name in OVERRULED else {name})
    assert after.allowed == (WHOLE if name in OVERRULED else before.allowed)


@pytest.mark.parametrize("name", sorted(OVERRULED))
def test_an_approval_opens_only_what_the_person_has_seen(name: str) -> None:
    scene, policy, tier = STOPPED_BY[name]
    blind = in_sight_of(scene, *sorted(OVERRULED - {name}))
    other = in_sight_of(scene, name, incidents=("inc-0",))
    taken_back = replace(in_sight_of(scene, name), said=scene.said.of([
        says(Word.APPROVE, actions=WHOLE, gates=(name,)), says(Word.REJECT, at=AT + timedelta(seconds=1)),
    ]))  # fmt: skip
    assert [name in failed(ruled([sick(tier=tier)], one, policy)[0]) for one in (blind, other, taken_back)] == [
        True
    ] * 3


#: A drain that failed twice before somebody approved a third try, an hour ago.
TWICE = tuple(attempt(AT - timedelta(hours=hours), Action.DRAIN, ending=Ending.FAILED) for hours in (9, 5))
ONCE_MORE = says(Word.APPROVE, at=AT - timedelta(hours=1), actions=WHOLE, gates=("attempts", "backoff"))


def since(minutes: float, action: Action = Action.DRAIN, ending: Ending = Ending.FAILED, **fields) -> Attempt:
    """An attempt so many minutes ago."""
    return attempt(AT - timedelta(minutes=minutes), action, ending=ending, **fields)


@pytest.mark.parametrize(
    ("history", "said", "gates"),
    [
        pytest.param(TWICE, [], {"attempts"}, id="nobody has approved another try"),
        pytest.param(TWICE, [ONCE_MORE], set(), id="somebody has"),
        pytest.param([*TWICE, since(5, ending=Ending.PENDING)], [ONCE_MORE], set(), id="the try is under way"),
        pytest.param([*TWICE, since(5, ending=Ending.DONE)], [ONCE_MORE], set(), id="it went well"),
        pytest.param([*TWICE, since(30)], [ONCE_MORE], {"attempts", "backoff"}, id="it failed, and was the only one"),
        pytest.param([*TWICE, since(45)], [ONCE_MORE], {"attempts"}, id="however long ago that was"),
        pytest.param([*TWICE, since(45)], [ONCE_MORE, replace(ONCE_MORE, at=AT)], set(), id="until a new approval"),
        pytest.param([*TWICE, since(70)], [ONCE_MORE], set(), id="one that began before the approval is none of it"),
        pytest.param([*TWICE, since(30, incident="inc-0")], [ONCE_MORE], set(), id="nor is another incident's"),
        pytest.param([*TWICE, since(30, ending=Ending.SKIPPED)], [ONCE_MORE], set(), id="nor one that was never made"),
        pytest.param([*TWICE, since(30, Action.CORDON, Ending.DONE)], [ONCE_MORE], set(),
                     id="a mark that was made on the way spends nothing"),
        pytest.param([since(5)], [], {"backoff"}, id="too soon after the first"),
        pytest.param([since(5)], [replace(ONCE_MORE, at=AT)], set(), id="somebody does not want to wait"),
    ],
)  # fmt: skip
def test_an_approval_is_good_for_one_more_try(history: list[Attempt], said: list[Saying], gates: set[str]) -> None:
    (decision,) = ruled([sick()], calm_scene(history=tuple(history), said=said))
    assert failed(decision) == gates
    assert decision.allowed == (() if gates else WHOLE)


@pytest.mark.parametrize("name", sorted(OVERRULED))
def test_other_gates_stay_open_for_the_incident_once_they_were_overruled(name: str) -> None:
    scene, policy, tier = STOPPED_BY[name]
    tried = (*scene.history, attempt(AT + timedelta(seconds=5), Action.CORDON, ending=Ending.FAILED))
    approved = replace(in_sight_of(scene, name), history=tried)
    (decision,) = ruled([sick(tier=tier)], approved, policy)
    assert failed(decision) == {"backoff"} | ({name} & {"attempts"}), "the try that failed waits, and that is all"


def test_a_gate_that_was_overruled_says_by_whom() -> None:
    scene, policy, tier = STOPPED_BY["checkpoint"]
    (decision,) = ruled([sick(tier=tier)], in_sight_of(scene, "checkpoint", why="saved by hand"), policy)
    (reason,) = (gate.reason for gate in decision.gates if gate.name == "checkpoint")
    assert reason.endswith("; overruled by ann at 2026-05-04 12:00 UTC (saved by hand)")


def test_an_approval_of_one_plan_opens_nothing_for_another_incident_of_the_node() -> None:
    scene, policy, _ = STOPPED_BY["maintenance_window"]
    first, second = ruled([sick(), sick("inc-2")], in_sight_of(scene, "maintenance_window"), policy)
    assert (first.allowed, second.allowed) == (WHOLE, BEFORE_THE_DRAIN)
