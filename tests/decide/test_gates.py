"""Each gate: when it passes, when it does not, and that it says why with its numbers."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.gates import (
    GATES,
    Asked,
    GateResult,
    blast_radius,
    common_cause,
    coverage,
    evidence,
    fresh,
    known_gpu,
    known_node,
    ledger,
    still_there,
)
from rules.schema import LimitPolicy, Policy
from rules.vocabulary import DISRUPTIVE, Action, CauseClass, Tier
from tests.decide.circumstances import NODES, asked, plan_of
from tests.decide.incidents import AT, incident

Gate = Callable[[Asked], GateResult]
RESET = plan_of(Action.NO_NEW_WORK, Action.RESET_GPU)
LOOK = plan_of(Action.WATCH, Action.DIAGNOSE)
HIDDEN = plan_of(Action.CORDON, Action.DRAIN, Action.DIAGNOSE)
TAINT = plan_of(Action.NO_NEW_WORK, Action.DIAGNOSE)


def names(count: int) -> frozenset[str]:
    return frozenset(f"n{number:03d}" for number in range(1, count + 1))


def limits(**fields) -> Policy:
    return Policy(limits=LimitPolicy(**fields))


@pytest.mark.parametrize(
    ("gate", "question", "passes", "reason"),
    [
        # fresh
        pytest.param(fresh, asked(), True, "evidence is 10 s old, limit 120 s", id="fresh evidence"),
        pytest.param(fresh, asked(now=AT + timedelta(seconds=120)), True, "evidence is 120 s old, limit 120 s",
                     id="evidence as old as it may be"),
        pytest.param(fresh, asked(now=AT + timedelta(seconds=121)), False, "evidence is 121 s old, limit 120 s",
                     id="a stale snapshot"),
        pytest.param(fresh, asked(now=AT - timedelta(seconds=600)), False, "evidence is -600 s old, limit 120 s",
                     id="a snapshot from the future"),
        pytest.param(fresh, asked(source_ok=False), False, "part of the telemetry could not be asked for",
                     id="a query that failed"),
        # ledger
        pytest.param(ledger, asked(), True, "the ledger takes entries", id="a ledger that can be written"),
        pytest.param(ledger, asked(ledger_writable=False), False, "the ledger cannot be written", id="a full disk"),
        # evidence
        pytest.param(evidence, asked(), True, "tier 0 evidence of class memory allows cordon, drain", id="a fact"),
        pytest.param(evidence, asked(about=incident(tier=Tier.TREND)), True,
                     "tier 1 evidence of class memory allows cordon, drain", id="a trend"),
        pytest.param(evidence, asked(about=incident(tier=Tier.SUSPICION)), False,
                     "tier 2 evidence of class memory never allows cordon, drain", id="suspicion may not disrupt"),
        pytest.param(evidence, asked(HIDDEN, incident(tier=Tier.SUSPICION)), False,
                     "tier 2 evidence of class memory never allows cordon, drain",
                     id="nor may it where the last step looks harmless"),
        pytest.param(evidence, asked(LOOK, incident(tier=Tier.SUSPICION)), True, "tier 2 may cause diagnose",
                     id="suspicion may look"),
        pytest.param(evidence, asked(about=incident(cause_class=CauseClass.APPLICATION)), False,
                     "tier 0 evidence of class application never allows cordon, drain", id="a program's fault"),
        pytest.param(evidence, asked(about=incident(cause_class=CauseClass.TELEMETRY)), False,
                     "tier 0 evidence of class telemetry never allows cordon, drain", id="missing telemetry"),
        # still there
        pytest.param(still_there, asked(), True, "the incident is open", id="an open incident"),
        pytest.param(still_there, asked(standing=frozenset()), False, "the incident has closed", id="it is gone"),
        pytest.param(still_there, asked(about=incident(closed=AT)), False, "the incident has closed", id="it closed"),
        pytest.param(still_there, asked(about=incident(standing=False)), False, "none of its signals stands now",
                     id="nothing of it stands"),
        pytest.param(still_there, asked(LOOK, incident(standing=False)), True, "the incident is open",
                     id="it may be watched until it closes"),
        # which machine
        pytest.param(known_node, asked(), True, "n000: known", id="a known node"),
        pytest.param(known_node, asked(fleet={"n000": False}), False, "no certain node behind n000: observe only",
                     id="an exporter's pod name"),
        pytest.param(known_node, asked(fleet={}), False, "no certain node behind n000: observe only", id="a stranger"),
        pytest.param(known_node, asked(about=incident(nodes=("",))), False,
                     "no certain node behind a log without a name: observe only", id="a log without a name"),
        pytest.param(known_node, asked(about=incident(nodes=("n000", "x"))), False,
                     "no certain node behind x: observe only", id="one of two nodes is a stranger"),
        pytest.param(known_gpu, asked(RESET), True, "GPU-0000-0", id="a known GPU"),
        pytest.param(known_gpu, asked(plan_of(Action.DRAIN, gpu="")), True, "no single GPU is acted on",
                     id="a drain needs no GPU"),
        pytest.param(known_gpu, asked(plan_of(Action.RESET_GPU, gpu="")), False,
                     "nothing ties the address in the log to a GPU, so nobody knows which one to reset",
                     id="a reset of nobody knows which"),
        # common cause
        pytest.param(common_cause, asked(), True, "not part of a common cause", id="one machine"),
        pytest.param(common_cause, asked(about=incident(held=True, nodes=("a", "b", "c"))), False,
                     "the same on 3 nodes: hold, and page", id="many machines at once"),
        # coverage
        pytest.param(coverage, asked(), True, "100 % of GPUs can be judged, at least 50 % needed", id="all in sight"),
        pytest.param(coverage, asked(known_share=0.5), True, "50 % of GPUs can be judged, at least 50 % needed",
                     id="just enough in sight"),
        pytest.param(coverage, asked(known_share=0.49), False, "49 % of GPUs can be judged, at least 50 % needed",
                     id="a blind monitor"),
        # blast radius
        pytest.param(blast_radius, asked(), True, "1 of 40 nodes would be out, limit 4", id="the first node"),
        pytest.param(blast_radius, asked(wanted_out=names(3)), True, "4 of 40 nodes would be out, limit 4",
                     id="the last that may go"),
        pytest.param(blast_radius, asked(wanted_out=names(4)), False, "5 of 40 nodes would be out, limit 4",
                     id="one too many"),
        pytest.param(blast_radius, asked(already_out=names(4)), False, "5 of 40 nodes would be out, limit 4",
                     id="others have taken nodes out"),
        pytest.param(blast_radius, asked(wanted_out=names(2), already_out=names(3)), True,
                     "4 of 40 nodes would be out, limit 4", id="a node counts once"),
        pytest.param(blast_radius, asked(already_out=names(20) | {"n000"}, settled_out=frozenset({"n000"})), True,
                     "n000: out already", id="what stays out already may be mended"),
        pytest.param(blast_radius, asked(already_out=names(20) | {"n000"}), False,
                     "21 of 40 nodes would be out, limit 4", id="what is only silent may come back, and needs room"),
        pytest.param(blast_radius, asked(already_out=names(3) | {"n000"}), True,
                     "4 of 40 nodes would be out, limit 4", id="though it counts once"),
        pytest.param(blast_radius, asked(already_out=names(20), settled_out=names(20)), False,
                     "21 of 40 nodes would be out, limit 4", id="that others stay out is no free pass for this one"),
        pytest.param(blast_radius, asked(wanted_out=names(20) | {"n000"}), True, "n000: out already",
                     id="what an earlier plan takes out may be mended by this one too"),
        pytest.param(blast_radius, asked(about=incident(nodes=("n000", "n001")), wanted_out=names(1),
                     settled_out=frozenset({"n000"}), already_out=names(9) | {"n000"}), True,
                     "n000, n001: out already", id="each for its own reason"),
        pytest.param(blast_radius, asked(about=incident(nodes=("n000", "n021")), already_out=names(20) | {"n000"},
                     settled_out=frozenset({"n000"})), False, "22 of 40 nodes would be out, limit 4",
                     id="one of two nodes has still to go"),
        pytest.param(blast_radius, asked(LOOK, wanted_out=names(30)), True, "diagnose takes no capacity away",
                     id="looking takes nothing away"),
        pytest.param(blast_radius, asked(plan_of(Action.RELEASE), wanted_out=names(30)), True,
                     "release takes no capacity away", id="recovery is never blocked"),
        pytest.param(blast_radius, asked(plan_of(Action.RESTART_JOB), wanted_out=names(30)), True,
                     "restart_job takes no capacity away", id="a job's restart leaves the node in service"),
        pytest.param(blast_radius, asked(TAINT, wanted_out=names(4)), False, "5 of 40 nodes would be out, limit 4",
                     id="keeping work away takes capacity"),
        pytest.param(blast_radius, asked(HIDDEN, wanted_out=names(4)), False, "5 of 40 nodes would be out, limit 4",
                     id="a drain before a look is a drain"),
        pytest.param(blast_radius, asked(gpu_nodes=names(19)), True, "1 of 19 nodes would be out, limit 1",
                     id="a share of 1.9 is one node"),
        pytest.param(blast_radius, asked(gpu_nodes=names(3)), True, "1 of 3 nodes would be out, limit 1",
                     id="one node may always go"),
        pytest.param(blast_radius, asked(gpu_nodes=names(3), already_out=names(1)), False,
                     "2 of 3 nodes would be out, limit 1", id="but not a second"),
        pytest.param(blast_radius, asked(policy=limits(max_unavailable_nodes=2), wanted_out=names(2)), False,
                     "3 of 40 nodes would be out, limit 2", id="a number of nodes lies over the share"),
        pytest.param(blast_radius, asked(policy=limits(max_unavailable_share=0.29), gpu_nodes=names(100)), True,
                     "1 of 100 nodes would be out, limit 29", id="29 % of 100 is 29"),
    ],
)  # fmt: skip
def test_a_gate_passes_or_not_and_says_why(gate: Gate, question: Asked, passes: bool, reason: str) -> None:
    answer = gate(question)
    assert (answer.passed, answer.reason) == (passes, reason)


def test_all_gates_pass_in_good_circumstances() -> None:
    assert [gate(asked()).passed for gate in GATES] == [True] * len(GATES)
    assert len({gate(asked()).name for gate in GATES}) == len(GATES)


@given(
    share=st.floats(0.001, 1.0),
    fleet=st.integers(1, 300),
    already=st.integers(0, 50),
    wanted=st.integers(0, 50),
    at_most=st.none() | st.integers(1, 20),
    silent=st.booleans(),
)
def test_a_plan_that_passes_never_takes_more_out_than_the_limit(
    share: float, fleet: int, already: int, wanted: int, at_most: int | None, silent: bool
) -> None:
    policy = limits(max_unavailable_share=share, max_unavailable_nodes=at_most)
    gone = names(already) | ({"n000"} if silent else set())
    question = asked(
        policy=policy, gpu_nodes=names(fleet), already_out=gone, settled_out=names(already), wanted_out=names(wanted)
    )
    if blast_radius(question).passed:
        out = len(names(max(already, wanted)) | {"n000"})
        assert out <= max(1, share * fleet + 1e-6)
        assert at_most is None or out <= at_most


@given(st.sampled_from(sorted(set(Action) - DISRUPTIVE - {Action.NO_NEW_WORK})), st.integers(0, NODES))
def test_what_takes_nothing_away_is_never_limited(action: Action, out: int) -> None:
    assert blast_radius(asked(plan_of(action), already_out=names(out), wanted_out=names(out))).passed


@given(st.permutations(GATES))
def test_a_gate_asks_nothing_of_the_others(order: list[Gate]) -> None:
    question = replace(asked(), incident=incident(tier=Tier.SUSPICION, held=True))
    assert {gate(question) for gate in order} == {gate(question) for gate in GATES}
