"""Modes: how far gpuwarden goes by itself, and that a step which nobody may do ends the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.modes import HANDS, OBSERVE_ALL, Mode, Modes
from rules.vocabulary import Action

NEW_WORK, CHECKPOINT, CORDON, DRAIN = Action.NO_NEW_WORK, Action.CHECKPOINT, Action.CORDON, Action.DRAIN
REBOOT, QUARANTINE, RELEASE = Action.REBOOT_NODE, Action.QUARANTINE, Action.RELEASE
LADDER = (NEW_WORK, CHECKPOINT, CORDON, DRAIN, REBOOT, QUARANTINE)
OBSERVE, APPROVE, AUTO = Mode
RANK = list(Mode)
MODES = st.builds(Modes, st.sampled_from(Mode), st.dictionaries(st.sampled_from(sorted(HANDS)), st.sampled_from(Mode)))


@pytest.mark.parametrize(
    ("modes", "approved", "done"),
    [
        pytest.param(Modes(), LADDER, (), id="observe does nothing, approved or not"),
        pytest.param(Modes(AUTO), (), (NEW_WORK, CORDON, DRAIN, QUARANTINE),
                     id="auto does all that it has hands for, and passes over the rest"),
        pytest.param(Modes(APPROVE), (), (), id="approve does nothing by itself"),
        pytest.param(Modes(APPROVE), LADDER, (NEW_WORK, CORDON, DRAIN, QUARANTINE), id="approve does what is approved"),
        pytest.param(Modes(APPROVE), (NEW_WORK, CORDON), (NEW_WORK, CORDON), id="and no step more than that"),
        pytest.param(Modes(APPROVE), (DRAIN, QUARANTINE), (), id="a later step is not done without the earlier ones"),
        pytest.param(Modes(AUTO, {DRAIN: APPROVE}), (), (NEW_WORK, CORDON), id="a step that waits ends the way"),
        pytest.param(Modes(AUTO, {DRAIN: APPROVE}), (DRAIN,), (NEW_WORK, CORDON, DRAIN, QUARANTINE),
                     id="one approved step opens it"),
        pytest.param(Modes(AUTO, {CORDON: OBSERVE}), LADDER, (NEW_WORK,), id="a step that is never done ends it"),
        pytest.param(Modes(OBSERVE, {NEW_WORK: AUTO}), (), (NEW_WORK,), id="one action alone may be let go ahead"),
        pytest.param(Modes(AUTO, {CHECKPOINT: OBSERVE, REBOOT: OBSERVE}), (), (NEW_WORK, CORDON, DRAIN, QUARANTINE),
                     id="a step without hands stops nobody, whatever its mode"),
    ],
)  # fmt: skip
def test_what_is_carried_out(modes: Modes, approved: tuple[Action, ...], done: tuple[Action, ...]) -> None:
    assert modes.carried_out(LADDER, approved) == done


@pytest.mark.parametrize(
    ("modes", "acts"),
    [
        pytest.param(OBSERVE_ALL, False, id="nothing"),
        pytest.param(Modes(APPROVE), True, id="with approval"),
        pytest.param(Modes(OBSERVE, {RELEASE: AUTO}), True, id="only releases"),
        pytest.param(
            Modes(AUTO, dict.fromkeys(HANDS, OBSERVE)), False, id="auto, but for all that there are hands for"
        ),
        pytest.param(Modes(OBSERVE, {REBOOT: AUTO}), False, id="only what nobody has hands for"),
    ],
)
def test_whether_anything_can_be_changed(modes: Modes, acts: bool) -> None:
    assert modes.acts is acts


@pytest.mark.parametrize(
    ("modes", "asked", "text"),
    [
        pytest.param(Modes(OBSERVE), AUTO, "auto", id="the command line sets the mode"),
        pytest.param(Modes(AUTO), OBSERVE, "observe", id="down as well as up"),
        pytest.param(
            Modes(AUTO, {DRAIN: APPROVE}), AUTO, "auto (drain approve)", id="what is set apart stays stricter"
        ),
        pytest.param(Modes(OBSERVE, {DRAIN: AUTO}), APPROVE, "approve (drain approve)", id="and is never looser"),
    ],
)
def test_a_mode_on_the_command_line(modes: Modes, asked: Mode, text: str) -> None:
    assert str(modes.at_most(asked)) == text


@given(MODES, st.sampled_from(Mode), st.sampled_from(Action))
def test_no_action_ever_goes_further_than_the_command_line_says(modes: Modes, asked: Mode, action: Action) -> None:
    assert RANK.index(modes.at_most(asked).of(action)) <= RANK.index(asked)


@given(MODES, st.lists(st.sampled_from(Action), unique=True), st.sets(st.sampled_from(Action)))
def test_only_what_some_mode_or_person_lets_happen_is_done_and_in_order(modes: Modes, steps, approved) -> None:
    done = modes.carried_out(steps, approved)
    assert list(done) == [step for step in steps if step in done]
    assert all(modes.of(step) is AUTO or (modes.of(step) is APPROVE and step in approved) for step in done)
    assert not done or modes.acts
    if done:
        before = steps[: steps.index(done[-1])]
        assert {step for step in before if step in HANDS} <= set(done), "no step was left out before the last one"


def test_more_approvals_never_do_less() -> None:
    modes = Modes(APPROVE)
    assert modes.carried_out(LADDER, (NEW_WORK,)) == modes.carried_out(LADDER, (NEW_WORK, CORDON))[:1]


@pytest.mark.parametrize(
    ("modes", "approved", "counts"),
    [
        pytest.param(Modes(), (), LADDER, id="what observe only decides counts as auto would do it"),
        pytest.param(Modes(Mode.AUTO), (), LADDER, id="auto"),
        pytest.param(Modes(Mode.APPROVE), (), (), id="a plan that nobody has approved takes nothing out"),
        pytest.param(Modes(Mode.APPROVE), LADDER, LADDER, id="an approved one does"),
        pytest.param(Modes(Mode.AUTO, {Action.DRAIN: Mode.APPROVE}), (), LADDER[:3], id="up to the step that waits"),
    ],
)
def test_what_counts_as_taken_out(modes: Modes, approved: tuple[Action, ...], counts: tuple[Action, ...]) -> None:
    assert modes.would_happen(LADDER, approved) == counts
