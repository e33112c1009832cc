"""Tickets: which nodes that were taken out need people, told once an incident."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.findings import Incident, Signal
from remediation.decide import Decision, Ruling
from remediation.limits import Attempt, Ending
from remediation.plan import Plan
from remediation.tickets import Ticket, tickets_due
from rules.vocabulary import Action, CauseClass, FaultAction, Tier
from tests.acting.scenes import attempt
from tests.decide.circumstances import plan_of
from tests.decide.incidents import AT, incident
from tests.decide.ruled import WHOLE, sick

BEGUN = AT + timedelta(minutes=1)
NOW = AT + timedelta(minutes=5)
DONE = attempt(BEGUN, Action.QUARANTINE)


def plan(*actions: Action, about: str = "inc-1", **fields) -> Plan:
    return replace(plan_of(*(actions or WHOLE)), incident=about, **fields)


def decided(wanted: Plan | None = None, *, mode: str = "auto", allowed: tuple[Action, ...] = WHOLE) -> Decision:
    return Decision(NOW, wanted or plan(), mode, Ruling.ACT, (), allowed)


def due(
    about: Incident | None = None,
    decision: Decision | None = None,
    history: tuple[Attempt, ...] = (DONE,),
    filed: frozenset[str] = frozenset(),
    **more,
) -> tuple[Ticket, ...]:
    """For a fact that asks for another board, whose node is in quarantine, unless told otherwise."""
    return tickets_due([decision or decided()], [about or sick()], history, filed, **more)


REBOOT = sick(action=FaultAction.REBOOT_NODE)
FOR_SERVICE = decided(plan(for_service=True, reason="failed within its probation"))


@pytest.mark.parametrize(
    ("about", "decision", "why"),
    [
        pytest.param(sick(), decided(), {}, id="a fault that asks for another board"),
        pytest.param(REBOOT, FOR_SERVICE, {}, id="a node that is for service, whatever the fault asks for"),
        pytest.param(sick(), decided(mode="approve"), {}, id="what a person has approved"),
        pytest.param(sick(), decided(allowed=()), {}, id="a quarantine that a gate would hold back by now"),
        pytest.param(REBOOT, decided(), {"n000": "a reboot did not mend it"}, id="what something else has shown"),
    ],
)
def test_people_are_needed_for(about: Incident, decision: Decision, why: dict[str, str]) -> None:
    (ticket,) = due(about, decision, why=why)
    assert (ticket.id, ticket.node, ticket.at) == ("inc-1", "n000", NOW)


@pytest.mark.parametrize(
    ("about", "decision", "history"),
    [
        pytest.param(REBOOT, decided(), (DONE,), id="a fault that a reboot mends"),
        pytest.param(sick(), decided(plan(*WHOLE[:-1])), (DONE,), id="a plan that does not end in quarantine"),
        pytest.param(sick(), decided(plan(Action.RELEASE)), (DONE,), id="a node that is given back"),
        pytest.param(sick(), decided(mode="observe"), (DONE,), id="what is only observed"),
        pytest.param(sick(closed=NOW), decided(), (DONE,), id="an incident that is over"),
        pytest.param(sick("inc-2"), decided(), (DONE,), id="a decision about another incident"),
        pytest.param(sick(), decided(), (), id="a node that nobody has touched yet"),
        pytest.param(
            sick(), decided(), (attempt(BEGUN, Action.QUARANTINE, ending=Ending.PENDING),), id="one not out yet"
        ),
        pytest.param(
            sick(), decided(), (attempt(BEGUN, Action.QUARANTINE, ending=Ending.FAILED),), id="one that stays in"
        ),
        pytest.param(sick(), decided(), (attempt(BEGUN, Action.DRAIN),), id="one that was only drained"),
        pytest.param(sick(), decided(), (attempt(BEGUN, Action.QUARANTINE, name="n001"),), id="another node"),
        pytest.param(sick(), decided(), (DONE, attempt(NOW, Action.RELEASE)), id="one that was given back since"),
        pytest.param(
            sick(), decided(), (attempt(BEGUN, Action.QUARANTINE, incident="inc-0"),), id="one out for what is over"
        ),
    ],
)
def test_people_are_not_needed_for(about: Incident, decision: Decision, history: tuple[Attempt, ...]) -> None:
    assert due(about, decision, history) == ()


def test_an_incident_that_has_a_ticket_gets_no_other() -> None:
    assert due(filed=frozenset({"inc-1"})) == ()


def test_a_node_that_is_out_already_is_out_for_each_incident_that_wants_it() -> None:
    incidents = [sick(), sick("inc-2", gpu_uuids=("GPU-0000-5",))]
    decisions = [decided(), decided(plan(about="inc-2"))]
    assert [one.id for one in tickets_due(decisions, incidents, [DONE], ())] == ["inc-1", "inc-2"]


@pytest.mark.parametrize(
    ("before", "allowed"),
    [
        pytest.param(Ending.PENDING, WHOLE, id="while it is not out for anybody"),
        pytest.param(Ending.DONE, WHOLE[:2], id="while a gate holds it back for the second"),
    ],
)
def test_the_second_incident_on_a_node_waits(before: Ending, allowed: tuple[Action, ...]) -> None:
    incidents = [REBOOT, sick("inc-2")]
    decisions = [decided(), decided(plan(about="inc-2"), allowed=allowed)]
    assert tickets_due(decisions, incidents, [replace(DONE, ending=before)], ()) == ()


def test_quarantined_again_after_it_was_given_back() -> None:
    history = (attempt(AT, Action.QUARANTINE), attempt(AT + timedelta(seconds=9), Action.RELEASE), DONE)
    assert len(due(history=history)) == 1


# --------------------------------------------------------------------------------------------------- what it tells


def signal(rule: str, **fields) -> Signal:
    told = {
        "detector": "kernel_log", "rule": rule, "node": "n000", "gpu": "GPU-0000-0", "tier": Tier.FACT,
        "cause_class": CauseClass.HARDWARE, "action": FaultAction.REPLACE, "weight": 1.0, "value": 1.0, "limit": None,
        "unit": "times", "since": AT, "last": AT, "look": "NVRM: Xid", "text": "it broke",
    } | fields  # fmt: skip
    return Signal(**told)


def told(*signals: Signal, **fields) -> Ticket:
    (ticket,) = due(sick(signals=signals, **fields))
    return ticket


def test_it_says_what_where_why_and_what_to_do_next() -> None:
    seen = sick(signals=(signal("xid_64", jobs=("train/llama",)),), cause_class=CauseClass.MEMORY)
    (ticket,) = due(seen, decided(plan(reason="the board needs service", jobs=("web/search",))))
    assert ticket == Ticket(
        id="inc-1",
        at=NOW,
        node="n000",
        gpus=("GPU-0000-0",),
        cause_class="memory",
        reason="the board needs service",
        evidence=("xid_64: it broke",),
        jobs=("train/llama", "web/search"),
        next_step="`gpuwarden explain n000` says all that is known; once the node was mended, "
        "`gpuwarden release n000 --why ...` gives it back",
    )


def test_the_second_reason_stands_beside_the_plan_s() -> None:
    (ticket,) = due(why={"n000": "its diagnosis failed"})
    assert ticket.reason == "because; its diagnosis failed"


@pytest.mark.parametrize(
    ("signals", "evidence"),
    [
        pytest.param((), ("because",), id="without signals, why the incident is open"),
        pytest.param((signal("a"), signal("a", gpu="GPU-1")), ("a: it broke",), id="the same once"),
        pytest.param(
            (signal("a", trusted=False), signal("b")), ("b: it broke",), id="nothing that a user's process wrote"
        ),
        pytest.param(
            (signal("gone"), signal("b", tier=Tier.TREND, action=FaultAction.INSPECT)),
            ("b: it broke",),
            id="nothing that was stronger than all that stands",
        ),
        pytest.param(tuple(map(signal, "abcdefg")), tuple(f"{one}: it broke" for one in "abcde"), id="a few of many"),
        pytest.param((signal("a", text="x" * 9999),), ("a: " + "x" * 297,), id="only the beginning of a long one"),
    ],
)
def test_the_evidence_is(signals: tuple[Signal, ...], evidence: tuple[str, ...]) -> None:
    stands = signals[-1] if signals else signal("a")
    about = sick(signals=signals, tier=stands.tier, action=stands.action)
    (ticket,) = due(about, FOR_SERVICE)
    assert ticket.evidence == evidence


# ------------------------------------------------------------------------------------------------------- invariants

ATTEMPTS = st.builds(
    attempt,
    st.integers(0, 600).map(lambda s: AT + timedelta(seconds=s)),
    st.sampled_from([Action.DRAIN, Action.QUARANTINE, Action.RELEASE]),
    incident=st.sampled_from(["inc-1", "inc-2", "inc-3"]),
    name=st.sampled_from(["n000", "n001"]),
    ending=st.sampled_from(Ending),
)


@given(
    history=st.lists(ATTEMPTS, max_size=8),
    filed=st.frozensets(st.sampled_from(["inc-1", "inc-2", "inc-3"])),
    modes=st.lists(st.sampled_from(["observe", "approve", "auto"]), min_size=3, max_size=3),
)
def test_each_incident_has_one_ticket_at_most_and_none_without_a_quarantine(
    history: list[Attempt], filed: frozenset[str], modes: list[str]
) -> None:
    names = ("inc-1", "inc-2", "inc-3")
    incidents = [incident(name, action=FaultAction.REPLACE) for name in names]
    decisions = [decided(plan(about=name), mode=mode) for name, mode in zip(names, modes, strict=True)]
    tickets = tickets_due(decisions, incidents, history, filed)
    ids = [one.id for one in tickets]
    assert len(ids) == len(set(ids))
    assert not set(ids) & filed
    if not any((one.node, one.action, one.ending) == ("n000", Action.QUARANTINE, Ending.DONE) for one in history):
        assert not ids
    assert tickets_due(decisions, incidents, history, filed | set(ids)) == ()
