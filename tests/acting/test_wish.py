"""From decisions to what each node should be, and what its condition should say."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.findings import Incident
from remediation.decide import Decision, Ruling
from remediation.modes import Mode, Modes
from remediation.objects import Stage
from remediation.people import Said, Saying, Word
from remediation.plan import Plan
from remediation.wish import NodeWish, condition_of, label_value, wishes
from rules.vocabulary import Action, CauseClass, Tier
from tests.decide.circumstances import plan_of
from tests.decide.incidents import AT, incident

AUTO = Modes(Mode.AUTO)
NOBODY = Said()
LONGEST = 63
DRAIN = plan_of(Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN, Action.QUARANTINE)


STEPS = tuple(step.action for step in DRAIN.steps)


def decided(about: Incident, plan: Plan = DRAIN, allowed: tuple[Action, ...] | None = None) -> Decision:
    """A decision whose gates hold back nothing, unless told otherwise."""
    may = plan.does(Action) if allowed is None else allowed
    ruling = Ruling.ACT if may == plan.does(Action) else Ruling.WAIT
    return Decision(AT, replace(plan, incident=about.id, node=about.node), "auto", ruling, (), may)


def approval(*actions: Action) -> Said:
    return Said((Saying(AT, Word.APPROVE, "ann", incidents=("inc-1",), actions=actions),))


@pytest.mark.parametrize(
    ("allowed", "modes", "said", "stage"),
    [
        pytest.param((), AUTO, NOBODY, None, id="gates hold all of it back"),
        pytest.param(STEPS[:1], AUTO, NOBODY, Stage.NO_NEW_WORK, id="gates let it go as far as the taint"),
        pytest.param(STEPS[:2], AUTO, NOBODY, Stage.CORDONED, id="or the cordon"),
        pytest.param(STEPS[:3], AUTO, NOBODY, Stage.DRAINING, id="or the drain"),
        pytest.param(STEPS, AUTO, NOBODY, Stage.DRAINING, id="a node that is not drained yet is not quarantined"),
        pytest.param(STEPS, Modes(Mode.OBSERVE), NOBODY, None, id="observe changes nothing"),
        pytest.param(STEPS, Modes(Mode.OBSERVE), approval(*STEPS), None, id="approved or not"),
        pytest.param(STEPS, Modes(Mode.APPROVE), NOBODY, None, id="nobody has approved it"),
        pytest.param(STEPS, Modes(Mode.APPROVE), approval(*STEPS[:2]), Stage.CORDONED, id="as far as it is approved"),
        pytest.param(STEPS[:1], Modes(Mode.APPROVE), approval(*STEPS), Stage.NO_NEW_WORK,
                     id="an approval does not open a gate"),
        pytest.param(STEPS, Modes(Mode.AUTO, {Action.DRAIN: Mode.APPROVE}), NOBODY, Stage.CORDONED,
                     id="a drain that waits for approval"),
        pytest.param(STEPS, Modes(Mode.AUTO, {Action.CORDON: Mode.OBSERVE}), approval(*STEPS), Stage.NO_NEW_WORK,
                     id="what no mode carries out ends the way"),
    ],
)  # fmt: skip
def test_a_wish_goes_as_far_as_gates_modes_and_approvals_let_it(allowed, modes: Modes, said: Said, stage) -> None:
    found = wishes([decided(incident(), allowed=allowed)], [incident()], modes, said)
    assert [wish.stage for wish in found.values()] == ([] if stage is None else [stage])


@pytest.mark.parametrize(
    ("cordon", "drain", "quarantine", "drained", "stage"),
    [
        pytest.param(False, False, False, False, Stage.NO_NEW_WORK, id="new work is kept away"),
        pytest.param(True, False, False, False, Stage.CORDONED, id="cordoned"),
        pytest.param(True, True, False, False, Stage.DRAINING, id="pods are on their way"),
        pytest.param(True, True, False, True, Stage.CORDONED, id="the drain has ended, and no more is wanted"),
        pytest.param(True, True, True, False, Stage.DRAINING, id="the drain comes before the quarantine"),
        pytest.param(True, True, True, True, Stage.QUARANTINED, id="quarantined once it is empty"),
        pytest.param(True, False, True, False, Stage.QUARANTINED, id="a quarantine without a drain"),
    ],
)
def test_the_stage_says_how_far_it_has_come(cordon, drain, quarantine, drained, stage: Stage) -> None:
    wish = NodeWish("n1", ("inc-1",), "because", AT, cordon, drain, quarantine, drained)
    assert wish.stage is stage


def test_what_takes_nothing_out_wishes_for_nothing() -> None:
    look = plan_of(Action.WATCH, Action.CHECKPOINT, Action.DIAGNOSE, Action.RESTART_JOB)
    assert wishes([decided(incident(), look)], [incident()], AUTO, NOBODY) == {}


def test_giving_a_node_back_is_no_wish_though_its_incident_is_open_still() -> None:
    assert wishes([decided(incident(), plan_of(Action.RELEASE))], [incident()], AUTO, NOBODY) == {}


def test_an_incident_that_is_no_longer_open_wishes_for_nothing() -> None:
    assert wishes([decided(incident())], [], AUTO, NOBODY) == {}


def test_that_a_machine_is_off_is_no_decisions_to_say() -> None:
    said = Said((Saying(AT, Word.FENCED, "ann", "n000"),))
    (wish,) = wishes([decided(incident())], [incident()], AUTO, said).values()
    assert wish.drain
    assert not wish.off


def test_two_incidents_of_a_node_are_one_wish_led_by_the_strongest_evidence() -> None:
    trend = incident("inc-2", tier=Tier.TREND, opened=AT - timedelta(hours=1))
    fact = incident("inc-1", tier=Tier.FACT)
    quiet = plan_of(Action.NO_NEW_WORK)
    (wish,) = wishes([decided(trend, quiet), decided(fact)], [trend, fact], AUTO, NOBODY).values()
    assert wish.incidents == ("inc-1", "inc-2")
    assert (wish.since, wish.cordon, wish.drain) == (AT, True, True)


def test_an_approval_of_one_incident_does_nothing_for_another_on_the_same_node() -> None:
    both = [incident("inc-1"), incident("inc-2", tier=Tier.TREND)]
    found = wishes([decided(one) for one in both], both, Modes(Mode.APPROVE), approval(Action.NO_NEW_WORK))
    assert [(wish.incidents, wish.stage) for wish in found.values()] == [(("inc-1",), Stage.NO_NEW_WORK)]


@pytest.mark.parametrize(
    ("incidents", "is_known", "status", "reason"),
    [
        pytest.param([], True, "True", "GPUsHealthy", id="nothing wrong"),
        pytest.param([], False, "Unknown", "TelemetryMissing", id="no telemetry is unknown, never healthy"),
        pytest.param([incident()], False, "False", "GPUMemoryFault", id="a fact stands without telemetry"),
        pytest.param([incident(tier=Tier.SUSPICION)], True, "True", "GPUsHealthy", id="suspicion is not a condition"),
        pytest.param(
            [incident(cause_class=CauseClass.APPLICATION)],
            True,
            "True",
            "GPUsHealthy",
            id="a program's fault isn't either",
        ),
        pytest.param([incident(standing=False)], True, "True", "GPUsHealthy", id="what no longer stands is over"),
        pytest.param([incident(nodes=("n001",))], True, "True", "GPUsHealthy", id="another node's fault"),
    ],
)
def test_the_condition_says_what_is_known(incidents: list[Incident], is_known: bool, status: str, reason: str) -> None:
    shown = condition_of("n000", incidents, is_known=is_known)
    assert (shown.status, shown.reason) == (status, reason)


@given(st.text(max_size=200))
def test_any_text_becomes_a_label_value_that_the_api_takes(text: str) -> None:
    value = label_value(text)
    assert len(value) <= LONGEST
    assert value == "" or (value[0].isalnum() and value[-1].isalnum() and value.isascii())
