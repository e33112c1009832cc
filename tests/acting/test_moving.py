"""Gates about what a drain moves: each passes or says whose pod, budget or job stands in the way."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.capacity import free_gpus
from remediation.gates import Asked, GateResult
from remediation.limits import Attempt, Ending, History
from remediation.moving import (
    MOVING,
    Moves,
    Situation,
    checkpoint,
    drain_started,
    gpu_hours,
    last_restart,
    pdb_headroom,
    pdb_sound,
    pods_may_move,
    spare_capacity,
)
from remediation.objects import DO_NOT_EVICT, PodView
from remediation.plan import Plan
from remediation.scene import Scene
from rules.schema import DrainMode, DrainPolicy, Policy
from rules.vocabulary import Action, Tier
from tests.acting.scenes import attempt, calm_scene, serving, training
from tests.acting.views import node, pdb, workload
from tests.decide.circumstances import around, asked, plan_of
from tests.decide.incidents import AT, incident

Gate = Callable[[Situation], GateResult]
NOW = around().now
DRAIN = plan_of(Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN, Action.QUARANTINE)
RESTART = plan_of(Action.RESTART_JOB)
LOOK = plan_of(Action.NO_NEW_WORK, Action.DIAGNOSE)
KEPT = {DO_NOT_EVICT: "true"}
WAITS = DrainPolicy(mode=DrainMode.WAIT_FOR_COMPLETION)
HOURS = timedelta(hours=1)
UNDER_WAY = (attempt(NOW, Action.DRAIN, ending=Ending.PENDING),)
#: Every node but the sick one is full.
FULL = [training(f"full-{number}", f"n{number:03d}") for number in range(1, 40)]


def about(
    *pods: PodView, plan: Plan = DRAIN, tier: Tier = Tier.FACT, policy: DrainPolicy | None = None, others=(), **fields
) -> Situation:
    """These pods on the one sick node, `others` elsewhere; `fields` are the scene's."""
    scene = calm_scene(pods=[*pods, *others], **fields)
    told = asked(plan, incident(tier=tier), policy=Policy(drain=policy or DrainPolicy()))
    return at_hand(told, scene)


def at_hand(told: Asked, scene: Scene) -> Situation:
    history, free = History.of(scene.history), free_gpus(scene.fleet, scene.pods_by_node)
    return Situation(told, scene, Moves.of(told, scene, history), history, free)


def jobs(**fields) -> dict:
    found = workload(**fields)
    return {found.uid: found}


def many(count: int, make: Callable[..., PodView] = training, **fields) -> Iterable[PodView]:
    return [make(f"p{number}", **fields) for number in range(count)]


@pytest.mark.parametrize(
    ("gate", "situation", "passes", "reason"),
    [
        # may each pod be moved
        pytest.param(pods_may_move, about(), True, "no pod has to be moved", id="an empty node"),
        pytest.param(pods_may_move, about(training(), serving()), True, "2 pods would be moved", id="ordinary pods"),
        pytest.param(pods_may_move, about(training(annotations=KEPT)), False,
                     "pod train/llama-0: its annotation gpuwarden.io/do-not-evict is true", id="a pod that opts out"),
        pytest.param(pods_may_move, about(training(), serving(owner=None)), False,
                     "pod web/web-0: no controller would start it again", id="a pod that nobody would start again"),
        pytest.param(pods_may_move, about(*many(6, annotations=KEPT)), False, "(and 2 more)", id="a few are named"),
        pytest.param(pods_may_move, about(training(annotations=KEPT), serving(),
                     policy=DrainPolicy(on_refusal="evict_others")), True, "1 pods would be moved, 1 left where",
                     id="policy lets the others go"),
        pytest.param(pods_may_move, about(training(annotations=KEPT), plan=LOOK), True, "no pod has to be moved",
                     id="a plan that moves nothing"),
        pytest.param(pods_may_move, about(training(annotations=KEPT, namespace="kube-system")), True,
                     "no pod has to be moved", id="a pod that is left where it is"),
        pytest.param(pods_may_move, about(training(annotations=KEPT, deleting_since=AT)), True,
                     "no pod has to be moved", id="a pod that is on its way"),
        # can its budgets ever let it go
        pytest.param(pdb_sound, about(training(), pdbs=(pdb(),)), True, "no pod is under more", id="one budget"),
        pytest.param(pdb_sound, about(training(), pdbs=(pdb("a"), pdb("b"))), False,
                     "pod train/llama-0: train/a, train/b cover it together", id="two budgets over one pod"),
        pytest.param(pdb_sound, about(*many(3), pdbs=(pdb("a"), pdb("b"))), False, "(and 2 more)", id="over several"),
        pytest.param(pdb_sound, about(training(), pdbs=(pdb("a"), pdb("b")), policy=WAITS), True, "no pod is under",
                     id="a pod that is waited for is not evicted now"),
        # do they let one go now
        pytest.param(pdb_headroom, about(), True, "no pod has to pass a budget now", id="no pod, no budget"),
        pytest.param(pdb_headroom, about(training()), True, "budgets let 1 of 1 pods go now", id="no budget covers it"),
        pytest.param(pdb_headroom, about(*many(3), pdbs=(pdb(allowed=1),)), True, "budgets let 1 of 3 pods go now",
                     id="one may go, and the others after it"),
        pytest.param(pdb_headroom, about(*many(3), pdbs=(pdb(allowed=0),)), False,
                     "pod train/p0: train/llama needs 2 healthy pods and has 2 (and 2 more)", id="none may go"),
        pytest.param(pdb_headroom,
                     about(*many(3), pdbs=(pdb(allowed=0),), history=UNDER_WAY),
                     True, "under way; budgets let 0 of 3 pods go now", id="a drain under way has used the room up"),
        pytest.param(pdb_headroom, about(training(), serving(), pdbs=(pdb(allowed=0),)), True,
                     "budgets let 1 of 2 pods go now", id="one budget does not hold up the others"),
        pytest.param(pdb_headroom, about(training(), pdbs=(pdb(current=False),)), False,
                     "the status of train/llama is older than its spec", id="a budget about which nobody can tell yet"),
        # would a job end for good
        pytest.param(last_restart, about(training(), workloads=jobs()), True, "no job would be at its last restart",
                     id="a job with restarts left"),
        pytest.param(last_restart, about(training(), workloads=jobs(restarts_used=6)), False,
                     "pod train/llama-0: Job train/llama would end for good: it has used 6 of 6", id="a job without"),
        pytest.param(last_restart, about(*many(2), workloads=jobs(restarts_used=5)), False,
                     "pod train/p1: Job train/llama would end for good: it has used 5 of 6",
                     id="the first pod takes the last restart from the second"),
        pytest.param(last_restart, about(training()), False, "it is not among the workloads that are known",
                     id="a job that nobody knows"),
        pytest.param(last_restart, about(training(), workloads=jobs(), unread_kinds=("jobs.v1.batch",)), False,
                     "jobs.v1.batch cannot be read", id="a kind that this identity may not read"),
        pytest.param(last_restart, about(serving()), True, "no job would be", id="a service starts again for ever"),
        pytest.param(last_restart, about(training(), workloads=jobs(restarts_used=6), plan=LOOK), True, "no job would",
                     id="a plan that ends no work"),
        # what would training lose
        pytest.param(checkpoint, about(serving()), True, "no training runs here", id="a service has no checkpoint"),
        pytest.param(checkpoint, about(training(gpus=0)), True, "no training runs here", id="nor a job without GPUs"),
        pytest.param(checkpoint, about(training(started=NOW - 3 * HOURS)), True,
                     "1 training pods with 8 GPUs, 24.0 GPU-hours since the start; no checkpoint of it is known; "
                     "policy lets facts go ahead", id="a fact stops training at once"),
        pytest.param(checkpoint, about(training(started=NOW - HOURS), tier=Tier.TREND), False,
                     "1 training pods with 8 GPUs, 8.0 GPU-hours since the start; no checkpoint of it is known",
                     id="for a trend a person is asked"),
        pytest.param(checkpoint, about(training(), tier=Tier.TREND,
                     policy=DrainPolicy(ask_without_checkpoint=())), True, "policy lets trends go",
                     id="unless policy lets it"),
        pytest.param(checkpoint, about(training(), policy=DrainPolicy(ask_without_checkpoint=("fact",))), False,
                     "no checkpoint of it is known", id="or asks for facts too"),
        pytest.param(checkpoint, about(training(), tier=Tier.TREND, plan=LOOK), True, "diagnose stops no training",
                     id="a look stops nothing"),
        # is there room elsewhere
        pytest.param(spare_capacity, about(serving(gpus=0), others=FULL), True, "no pod with GPUs has to find",
                     id="a pod without GPUs needs none"),
        pytest.param(spare_capacity, about(training()), True, "room for 8 GPUs among 312 free ones", id="room enough"),
        pytest.param(spare_capacity, about(training(), others=FULL), True,
                     "no node has 8 GPUs free for pod train/llama-0; policy lets facts go ahead, and it waits",
                     id="a fact does not wait for room"),
        pytest.param(spare_capacity, about(training(), others=FULL, tier=Tier.TREND), False,
                     "no node has 8 GPUs free for pod train/llama-0", id="a trend does"),
        pytest.param(spare_capacity, about(training(), others=FULL[1:], tier=Tier.TREND), True,
                     "room for 8 GPUs among 8", id="until a node is free"),
        pytest.param(spare_capacity, about(training(), others=FULL, tier=Tier.TREND,
                     policy=DrainPolicy(need_spare_capacity=())), True, "policy lets trends go ahead",
                     id="unless policy says otherwise"),
        pytest.param(spare_capacity, about(training(owner=None), others=FULL, tier=Tier.TREND), True,
                     "no pod with GPUs", id="what nobody starts again needs no room"),
    ],
)  # fmt: skip
def test_a_gate_lets_a_drain_pass_or_says_why_not(gate: Gate, situation: Situation, passes: bool, reason: str) -> None:
    answer = gate(situation)
    assert answer.passed is passes
    assert reason in answer.reason


def test_nodes_that_are_about_to_go_are_no_room() -> None:
    scene = calm_scene(pods=[training(), *FULL[1:]])
    told = asked(DRAIN, incident(tier=Tier.TREND), wanted_out=frozenset({"n001"}))
    assert not spare_capacity(at_hand(told, scene)).passed


def test_an_incident_of_several_nodes_moves_the_pods_of_all_of_them() -> None:
    scene = calm_scene(pods=[training("a"), training("b", "n001"), training("c", "n002")])
    moves = Moves.of(asked(DRAIN, incident(nodes=("n000", "n001", "unknown"))), scene, History())
    assert [one.name for one in moves.going] == ["a", "b"]


def test_asking_again_moves_no_deadline() -> None:
    begun = AT - timedelta(hours=25)
    history = (attempt(begun, Action.DRAIN, ending=Ending.PENDING),)
    fresh, late = about(training(), policy=WAITS), about(training(), policy=WAITS, history=history)
    assert pods_may_move(fresh).passed
    assert pods_may_move(late).reason.startswith("pod train/llama-0: it has not finished within 86400 s")


def draining(hours: float, *, incident: str = "inc-1", **fields) -> Attempt:
    """A drain that began so long ago and has not ended."""
    return attempt(NOW - hours * HOURS, Action.DRAIN, **({"incident": incident, "ending": Ending.PENDING} | fields))


@pytest.mark.parametrize(
    ("history", "hours"),
    [
        pytest.param([], 0, id="no drain is under way: it begins now"),
        pytest.param([draining(2)], 2, id="one is"),
        pytest.param([draining(2, incident="inc-0")], 2, id="whichever incident it began for"),
        pytest.param([draining(1), draining(3, incident="inc-0")], 3, id="the earliest of several"),
        pytest.param([draining(3, ending=Ending.FAILED), draining(1)], 1, id="not one that has failed"),
        pytest.param([draining(2, ending=Ending.DONE)], 0, id="a drain that has ended"),
        pytest.param([attempt(AT, Action.CORDON, ending=Ending.PENDING)], 0, id="another action"),
        pytest.param([draining(2, name="n001")], 0, id="another node's"),
    ],
)
def test_since_when_a_node_is_drained(history: list[Attempt], hours: float) -> None:
    assert drain_started(history, "n000", NOW) == NOW - hours * HOURS


def test_a_drain_that_began_for_another_incident_moves_no_deadline_either() -> None:
    late = about(training(), policy=WAITS, history=(draining(25, incident="inc-0"),))
    assert pods_may_move(late).reason.startswith("pod train/llama-0: it has not finished within 86400 s")


@pytest.mark.parametrize(
    ("affected", "going"),
    [
        pytest.param((), [], id="a plan that names nobody"),
        pytest.param(("pod train/here",), ["here"], id="a pod of the node"),
        pytest.param(("pod train/here", "pod train/far"), ["here", "far"], id="a pod of the job on another node"),
        pytest.param(("pod web/here", "pod train/gone"), [], id="pods that the cluster does not have"),
        pytest.param(("node train/here", "train/here"), [], id="names that are no pod's"),
    ],
)
def test_a_restart_moves_the_pods_that_the_plan_names_wherever_they_run(
    affected: tuple[str, ...], going: list[str]
) -> None:
    scene = calm_scene(pods=[training("here"), serving("other"), training("far", "n001")])
    moves = Moves.of(asked(replace(RESTART, affected=affected)), scene, History())
    assert [one.name for one in moves.going] == going
    assert (moves.asks, moves.passages) == ((), ())


def test_a_restart_is_asked_about_the_work_that_it_stops() -> None:
    plan = replace(RESTART, affected=("pod train/llama-0", "pod train/far"))
    far = training("far", "n001", started=NOW - HOURS)
    restart = about(training(started=NOW - HOURS), others=[far], plan=plan, tier=Tier.TREND, workloads=jobs())
    assert not checkpoint(restart).passed
    assert "2 training pods with 16 GPUs, 16.0 GPU-hours" in checkpoint(restart).reason
    last = about(training(), others=[far], plan=plan, workloads=jobs(restarts_used=6))
    assert not last_restart(last).passed
    nobody = about(training(), plan=RESTART, tier=Tier.TREND, workloads=jobs(restarts_used=6))
    assert [gate(nobody).passed for gate in MOVING] == [True] * len(MOVING)


def test_what_is_lost_is_counted_from_each_pods_start() -> None:
    pods = [training(started=NOW - HOURS), training(started=NOW - HOURS / 2, gpus=4), training()]
    assert gpu_hours([*pods, training(started=NOW + HOURS)], NOW) == pytest.approx(10.0)


def test_a_node_that_the_cluster_does_not_know_moves_nothing() -> None:
    assert Moves.of(asked(DRAIN, incident(nodes=("x",))), calm_scene(), History()) == Moves()


PODS = st.lists(
    st.builds(
        training,
        st.sampled_from(["a", "b", "c", "d"]),
        phase=st.sampled_from(["Running", "Pending", "Succeeded"]),
        owner=st.sampled_from([training().owner, serving().owner, None]),
        annotations=st.sampled_from([{}, KEPT]),
        empty_dirs=st.sampled_from([(), ("scratch",)]),
        gpus=st.integers(0, 8),
        deleting_since=st.none() | st.just(AT),
    ),
    unique_by=lambda one: one.name,
)


@given(PODS, st.sampled_from([Tier.FACT, Tier.TREND]), st.integers(0, 2), st.booleans())
def test_what_moves_no_pod_passes_and_every_answer_has_a_reason(pods, tier: Tier, allowed: int, sick: bool) -> None:
    place = [node("n000", ready=False)] if sick else []
    for plan in (DRAIN, LOOK):
        scene = calm_scene(*place, pods=pods, pdbs=(pdb(allowed=allowed),))
        told = asked(plan, incident(tier=tier))
        about = at_hand(told, scene)
        moves, answers = about.moves, [gate(about) for gate in MOVING]
        assert all(answer.reason for answer in answers)
        if not moves.going and not moves.asks:
            assert all(answer.passed for answer in answers)
        if plan is LOOK:
            assert moves == Moves()
