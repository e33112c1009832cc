"""Giving nodes back: when a plan for it is made, and which doubts hold it up."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from detectors.findings import GpuState, Verdict
from remediation.objects import CORDONED_BY, PROBATION, PROBATION_SINCE, SERVICE, STAGE, NodeView, Taint
from remediation.people import Saying, Word
from remediation.plan import Plan, Works, plan
from remediation.release import release_gates, release_plans, to_probation
from rules.loader import load_rules
from rules.restore_schema import ReturnPolicy
from rules.schema import Policy
from rules.vocabulary import Action, CauseClass, FaultAction, Tier
from tests.acting.scenes import OUR_TAINT, calm_scene, marked
from tests.acting.views import node
from tests.decide.circumstances import around, plan_of
from tests.decide.incidents import AT, incident

RULES = load_rules()
NOW = around().now
WELL = (GpuState.HEALTHY, GpuState.DEGRADED)
#: Without stages, and with them.
AT_ONCE = Policy(comeback=ReturnPolicy(soak=0, probation=0))
STAGED = Policy(comeback=ReturnPolicy(soak=600, probation=3600))
LONG_AGO = {"inc-1": NOW - timedelta(days=1)}
RELEASE = Plan("inc-1", "n000", "", Action.RELEASE, plan_of(Action.RELEASE).steps, (), (), "its incident has ended")


def says(word: Word, **fields) -> Saying:
    return Saying(**({"at": AT, "word": word, "by": "ann", "node": "n000", "incidents": ("inc-1",)} | fields))


def judged(*states: GpuState, where: str = "n000") -> list[Verdict]:
    return [Verdict(where, f"GPU-{slot}", state, 0.0, AT, 1.0) for slot, state in enumerate(states)]


# ------------------------------------------------------------------------------------------------- when it is planned

ASKS_FOR_LITTLE = {"action": FaultAction.NONE, "tier": Tier.TREND, "cause_class": CauseClass.THERMAL}
BACK = says(Word.RELEASE)
UNCORDONED = replace(marked(), unschedulable=False)


@pytest.mark.parametrize(
    ("given_node", "open_now", "said", "reason"),
    [
        pytest.param(marked(), [], [], "its incident has ended", id="nothing open keeps it out"),
        pytest.param(node("n000"), [], [], "", id="nothing of ours is there"),
        pytest.param(marked(), [incident()], [], "", id="its own incident is open still"),
        pytest.param(marked(), [incident(standing=False)], [], "",
                     id="though nothing of it stands, until it has closed"),
        pytest.param(marked(), [incident(**ASKS_FOR_LITTLE)], [], "", id="or though it asks for nothing any more"),
        pytest.param(marked(), [incident("inc-2")], [], "", id="another incident keeps it out"),
        pytest.param(marked(), [incident("inc-2", held=True)], [], "", id="though it is held"),
        pytest.param(marked(), [incident("inc-2", tier=Tier.SUSPICION)], [], "",
                     id="though it is suspicion, which may keep new work away"),
        pytest.param(marked(), [incident("inc-2", **ASKS_FOR_LITTLE)], [], "its incident has ended",
                     id="another one that takes nothing out"),
        pytest.param(marked(), [incident("inc-2", node="n001", nodes=("n001",))], [], "its incident has ended",
                     id="another one on another node"),
        pytest.param(marked(ours=False, annotations={CORDONED_BY: "ann"}, unschedulable=True, taints=()), [], [], "",
                     id="a cordon with somebody else's name on it"),
        pytest.param(marked(taints=(Taint("repair", "NoSchedule"),)), [], [], "",
                     id="a person took our taint off: an order, and no state to mend"),
        pytest.param(UNCORDONED, [], [], "", id="a person's uncordon is one too"),
        pytest.param(UNCORDONED, [], [BACK], "", id="whatever else was said"),
        pytest.param(marked(), [incident()], [BACK], "given back by ann at 2026-05-04 12:00 UTC",
                     id="a person's word goes before an open incident"),
        pytest.param(marked(), [incident(), incident("inc-2")], [BACK], "given back by ann at 2026-05-04 12:00 UTC",
                     id="and before a second one"),
        pytest.param(marked(), [incident()], [says(Word.RELEASE, node="n001")], "", id="about this node"),
        pytest.param(marked(incident="inc-2"), [incident("inc-2")], [BACK], "", id="and about what it is out for now"),
        pytest.param(marked(), [incident()], [BACK, says(Word.APPROVE, at=AT + timedelta(hours=1))], "",
                     id="until somebody has said otherwise"),
    ],
)  # fmt: skip
def test_when_a_node_is_to_be_given_back(given_node: NodeView, open_now, said, reason: str) -> None:
    scene = calm_scene(given_node, said=said)
    plans = release_plans(scene, [plan(one, Works(), RULES.policy) for one in open_now], open_now, AT_ONCE, NOW)
    assert [(one.node, one.reason) for one in plans] == ([("n000", reason)] if reason else [])


def test_a_plan_to_give_back_says_what_undoes_it_and_what_it_was_out_for() -> None:
    (back,) = release_plans(calm_scene(marked()), [], [], AT_ONCE, NOW)
    assert (back.incident, back.action, back.does(Action)) == ("inc-1", Action.RELEASE, (Action.RELEASE,))
    assert back.steps[0].undo == "the next fault takes it out again"


def test_each_node_of_an_incident_is_given_back_by_itself() -> None:
    scene = calm_scene(marked("n003"), marked("n001"), marked("n002", "inc-2"))
    assert [one.node for one in release_plans(scene, [], [incident("inc-2")], AT_ONCE, NOW)] == ["n001", "n003"]


def test_a_taint_without_a_mark_is_not_known_to_be_ours() -> None:
    assert release_plans(calm_scene(node("n000", taints=(OUR_TAINT,))), [], [], AT_ONCE, NOW) == ()


# --------------------------------------------------------------------------------------------------- what holds it up


@pytest.mark.parametrize(
    ("over", "verdicts", "said", "failed"),
    [
        pytest.param({"inc-1"}, judged(*WELL), [], {}, id="the incident has ended and each GPU is well"),
        pytest.param(set(), judged(*WELL), [], {"incident_over": "the record knows nothing of inc-1"},
                     id="the record does not know the incident"),
        pytest.param({"inc-1"}, [], [], {"gpus_well": "none of its GPUs can be seen"}, id="nobody sees its GPUs"),
        pytest.param({"inc-1"}, judged(*WELL, where="n001"), [], {"gpus_well": "none of its GPUs"},
                     id="another node's GPUs are no answer"),
        pytest.param({"inc-1"}, judged(GpuState.HEALTHY, GpuState.UNKNOWN), [], {"gpus_well": "GPU-1 unknown"},
                     id="unknown is never well"),
        pytest.param({"inc-1"}, judged(GpuState.HEALTHY, GpuState.FAILING), [], {"gpus_well": "GPU-1 failing"},
                     id="a failing GPU"),
        pytest.param({"inc-1"}, judged(GpuState.FAILED, GpuState.FAILED, GpuState.UNKNOWN), [],
                     {"gpus_well": "GPU-0, GPU-1 failed; GPU-2 unknown"}, id="all that are not well are named"),
        pytest.param({"inc-1"}, judged(*WELL), [says(Word.HOLD)], {"on_hold": "n000 is on hold"}, id="a node on hold"),
        pytest.param({"inc-1"}, judged(*WELL), [says(Word.HOLD, until=NOW)], {}, id="a hold that has ended"),
        pytest.param(set(), judged(GpuState.UNKNOWN), [BACK], {}, id="a person says that it is well"),
        pytest.param(set(), [], [BACK], {}, id="though nobody else can see it"),
        pytest.param(set(), [], [BACK, says(Word.HOLD)], {"on_hold": "n000 is on hold"},
                     id="a hold holds up a person's order too"),
    ],
)  # fmt: skip
def test_what_holds_up_a_release(over: set[str], verdicts: list[Verdict], said, failed: dict[str, str]) -> None:
    answers = release_gates(RELEASE, calm_scene(marked(), said=said, over=frozenset(over)), verdicts, AT_ONCE, NOW)
    found = {answer.name: answer.reason for answer in answers if not answer.passed}
    assert found.keys() == failed.keys()
    assert all(reason in found[name] for name, reason in failed.items())


def test_each_answer_has_a_reason_whether_it_passes_or_not() -> None:
    answers = release_gates(RELEASE, calm_scene(marked(), over=frozenset({"inc-1"})), judged(*WELL), AT_ONCE, NOW)
    assert [answer.reason for answer in answers] == [
        "inc-1 has ended", "2 GPUs can be judged, and are well",
        "no diagnosis is asked for", "no diagnosis is asked for", "it need not soak", "it needs no service",
        "it is not on hold",
    ]  # fmt: skip


@pytest.mark.parametrize("state", GpuState)
def test_one_gpu_that_is_not_well_is_enough(state: GpuState) -> None:
    verdicts = [*judged(*[GpuState.HEALTHY] * 7), *judged(state)]
    answers = release_gates(RELEASE, calm_scene(marked(), over=frozenset({"inc-1"})), verdicts, AT_ONCE, NOW)
    assert all(answer.passed for answer in answers) is (state in WELL)


# ---------------------------------------------------------------------------------------------------------- in stages


def on_probation(since: datetime | str) -> NodeView:
    """A node that has come back, and is watched."""
    told = since if isinstance(since, str) else since.isoformat()
    stage = {STAGE: "probation", PROBATION_SINCE: told}
    return replace(
        marked(annotations=stage), unschedulable=False, taints=(Taint(PROBATION, "PreferNoSchedule"),),
        annotations=(*((k, v) for k, v in marked().annotations if k not in stage and k != CORDONED_BY), *stage.items()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given_node", "reason", "staged"),
    [
        pytest.param(marked(), "its incident has ended; 1 h of probation follow", True, id="first it is on probation"),
        pytest.param(on_probation(NOW - timedelta(minutes=59)), "", False, id="which takes its time"),
        pytest.param(on_probation(NOW - timedelta(minutes=60)), "its probation of 1 h has passed", False,
                     id="and then it is in full service"),
        pytest.param(on_probation("some day"), "its probation of 1 h has passed", False,
                     id="nobody is kept for ever by a time that cannot be read"),
        pytest.param(replace(on_probation(NOW), taints=()), "", False,
                     id="a person who takes the taint of the probation off has given an order"),
    ],
)  # fmt: skip
def test_a_node_comes_back_in_stages(given_node: NodeView, reason: str, staged: bool) -> None:
    scene = calm_scene(given_node)
    plans = release_plans(scene, [], [], STAGED, NOW)
    assert [one.reason for one in plans] == [reason] * bool(reason)
    assert to_probation(given_node, scene.said, STAGED.comeback) is staged


def test_a_person_gives_a_node_back_whole() -> None:
    said = calm_scene(marked(), said=[BACK]).said
    assert not to_probation(marked(), said, STAGED.comeback)
    assert not to_probation(marked(), said, AT_ONCE.comeback)


@pytest.mark.parametrize(
    ("given_node", "ended", "said", "failed"),
    [
        pytest.param(marked(), {"inc-1": NOW - timedelta(minutes=10)}, [], set(), id="it has soaked"),
        pytest.param(marked(), {"inc-1": NOW - timedelta(minutes=9)}, [], {"soak"}, id="it soaks still"),
        pytest.param(marked(), {}, [], {"soak"}, id="nobody knows since when"),
        pytest.param(marked(), {}, [BACK], set(), id="a person need not wait"),
        pytest.param(on_probation(NOW), {}, [], set(), id="nor one that is on probation"),
        pytest.param(marked(annotations={SERVICE: "required"}), LONG_AGO, [], {"service_done"},
                     id="what needs service waits for a person"),
        pytest.param(marked(annotations={SERVICE: "required"}), LONG_AGO, [BACK], set(), id="who has the last word"),
    ],
)  # fmt: skip
def test_what_the_stages_hold_up(given_node: NodeView, ended, said, failed: set[str]) -> None:
    scene = calm_scene(given_node, said=said, over=frozenset({"inc-1"}), ended=ended)
    answers = release_gates(RELEASE, scene, judged(*WELL), STAGED, NOW)
    assert {answer.name for answer in answers if not answer.passed} == failed
