"""How the restart of a job begins, what is known of it, and what holds for each, whatever is seen."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.contract import ACK, ASK_BY, CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_STEP, checkpoint_of
from remediation.drain import FINISHED
from remediation.jobs import RESTART, RESTARTED, batch_job, volcano_job
from remediation.objects import WorkloadView
from remediation.restoring import Restart, Stage, advance, may_restart, restart_id
from rules.restore_schema import RestartPolicy
from tests.acting.views import AT, pod
from tests.jobs.seeing import (
    ALL_COMPUTE,
    ASKABLE,
    ASKING,
    ASKS,
    DONE,
    FAILED,
    FAULT,
    ID,
    NEW,
    OLD,
    ON,
    SAVED,
    SICK,
    STARTING,
    STOPPING,
    UNREADY,
    WATCHING,
    after,
    first,
    job,
    pods,
    saved,
    seen,
    stamp,
    started,
    stopped,
)


def test_what_is_known_as_it_begins() -> None:
    restart = first(job(SAVED | ASKABLE))
    assert restart is not None
    assert (restart.id, restart.incident, restart.node, str(restart.job)) == (ID, "inc-1", SICK, "Job train/llama")
    assert (restart.pods, restart.gpus, restart.old) == (2, 16, ("old-0", "old-1"))
    assert (restart.at, restart.asked_at, restart.detected_at, restart.stopped_at) == (AT, AT, FAULT, None)
    assert (restart.level, restart.recovery_s, restart.checkpoint_at) == (-1, None, None)


def test_what_is_known_as_it_is_stopped() -> None:
    restart = first(job(SAVED))
    assert restart is not None
    assert (restart.asked_at, restart.stopped_at) == (None, AT)
    assert (restart.checkpoint_at, restart.checkpoint_step) == (after(-600), 100)
    lost = first(job(SAVED | {CHECKPOINT_LOCATION: "emptyDir"}))
    assert lost is not None
    assert (lost.checkpoint_at, lost.checkpoint_step) == (None, None), "nothing to come back to"


@pytest.mark.parametrize(
    ("told", "asks", "moves", "stage"),
    [
        pytest.param(job(SAVED | ASKABLE), True, True, ASKING, id="one that can be asked, and moves"),
        pytest.param(job(SAVED | ASKABLE), True, False, ASKING, id="one that is only asked"),
        pytest.param(job(SAVED | ASKABLE), False, True, STOPPING, id="one that could be asked, on a dead GPU"),
        pytest.param(job(SAVED), True, True, STOPPING, id="one that cannot be asked"),
        pytest.param(job(SAVED), True, False, None, id="one that cannot be asked, and does not move"),
        pytest.param(job(SAVED | ASKABLE), False, False, None, id="nothing is wanted of it"),
        pytest.param(job(SAVED | {RESTARTED: ID}), True, True, None, id="one that was restarted for this before"),
        pytest.param(job(SAVED | {RESTARTED: "gw-0"}), True, True, STOPPING, id="one that was restarted for another"),
        pytest.param(job(SAVED, finished=True), True, True, None, id="one that has ended"),
        pytest.param(None, True, True, None, id="one that is not there"),
    ],
)
def test_whether_one_begins(told: WorkloadView | None, asks: bool, moves: bool, stage: Stage | None) -> None:
    restart = first(told, asks=asks, moves=moves)
    assert (None if restart is None else restart.stage) is stage


def test_a_restart_is_called_alike_by_whoever_works_it_out() -> None:
    assert first(job(SAVED)) == first(job(SAVED))
    assert len({restart_id(incident, uid) for incident in ("inc-1", "inc-2") for uid in ("a", "b", "c")}) == 6
    assert re.fullmatch("gw-[0-9a-f]{11}", ID), "a part of a Command's name"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        pytest.param(SAVED, "", id="a fresh one"),
        pytest.param(SAVED | {CHECKPOINT_AT: stamp(-6 * 3600)}, "", id="one that is just young enough"),
        pytest.param(SAVED | {CHECKPOINT_AT: stamp(-6 * 3600 - 1)}, "is 6.0 h old, more than 6.0 h", id="just too old"),
        pytest.param({}, "says nothing of checkpoints (gpuwarden.io/checkpoint-at); a restart may begin at step 0",
                     id="none that is known"),
        pytest.param(SAVED | {CHECKPOINT_LOCATION: "emptyDir"}, "which ends with it; a restart may begin at step 0",
                     id="one that ends with its pod"),
        pytest.param(saved(60), "", id="one from a clock that runs ahead"),
    ],
)  # fmt: skip
def test_from_which_checkpoint_a_job_is_restarted_without_a_question(told: dict[str, str], why: str) -> None:
    said = may_restart(checkpoint_of(job(told), OLD, AT), ON, AT)
    assert why in said
    assert bool(why) == bool(said)


def test_an_emptydir_is_not_found_to_last_once_its_pods_are_gone() -> None:
    place = SAVED | {CHECKPOINT_LOCATION: "volume:scratch"}
    mine = pods("old", SICK, "n2", empty_dirs=("scratch",))
    restart = first(job(place), mine, asks=False)
    assert restart is not None
    restart = advance(restart, seen(stopped(place), (), after(9)), ON, after(9))
    assert (restart.stage, restart.checkpoint_at) == (STARTING, None)


def test_the_time_to_each_level_counts_from_the_fault() -> None:
    restart = first(job(SAVED))
    assert restart is not None
    for seconds, what in ((9, stopped(SAVED)), (10, started(SAVED)), (60, started(SAVED, since=55))):
        there = NEW if seconds == 60 else ()
        restart = advance(restart, seen(what, there, after(seconds)), ON, after(seconds))
    assert [(one.level, one.at) for one in restart.reached] == [(0, after(9)), (1, after(60)), (2, after(60))]
    assert restart.recovery_s == 80
    assert restart.lost_gpu_hours == pytest.approx(16 * 660 / 3600), "from its last checkpoint until it ran"
    later = started(saved(1200), since=55)
    restart = advance(restart, seen(later, NEW, after(100), computing=ALL_COMPUTE), ON, after(100))
    restart = advance(restart, seen(later, NEW, after(1800), computing=ALL_COMPUTE), ON, after(1800))
    assert (restart.stage, restart.level, restart.recovery_s) == (DONE, 4, 1820)
    assert restart.lost_gpu_hours == pytest.approx(16 * 700 / 3600), "its next checkpoint keeps what it computes then"


def test_a_volcano_job_that_runs_before_it_is_marked_is_not_started_twice() -> None:
    """The order to go on is given first and the mark set after it, so a crash between the two leaves it unmarked."""
    restart = first(job(SAVED))
    looks = (
        (9, stopped(SAVED), (), STARTING),
        (20, job(SAVED | {RESTART: ID}, running_since=None), UNREADY, WATCHING),
    )
    for seconds, what, there, stage in looks:
        assert restart is not None
        now = after(seconds)
        restart = advance(restart, seen(what, there, now, adapter=volcano_job.ADAPTER), ON, now)
        assert restart.stage is stage


# ------------------------------------------------------------------------------------------------ what always holds

ORDER = (ASKING, STOPPING, STARTING, WATCHING)
TOLD = st.fixed_dictionaries(
    {},
    optional={
        RESTART: st.sampled_from([ID, "gw-0"]),
        RESTARTED: st.sampled_from([ID, "gw-0"]),
        ACK: st.sampled_from([ID, "gw-0"]),
        ASK_BY: st.sampled_from(["annotation", "sigterm", "nonsense"]),
        CHECKPOINT_AT: st.sampled_from([stamp(-86400), stamp(-600), stamp(5), stamp(300), stamp(9000), "soon"]),
        CHECKPOINT_STEP: st.sampled_from(["0", "100", "150", "x"]),
        CHECKPOINT_LOCATION: st.sampled_from(["s3://x", "emptyDir", "volume:scratch"]),
    },
)
JOBS = st.none() | st.builds(
    job,
    TOLD,
    suspended=st.booleans(),
    finished=st.sampled_from([False, False, False, True]),
    active=st.sampled_from([0, 0, 2]),
    running_since=st.none() | st.sampled_from([after(-7200), after(5), after(300), after(9000)]),
)
PODS = st.lists(
    st.builds(
        pod,
        st.sampled_from(["llama-0", "llama-1"]),
        uid=st.sampled_from(["old-0", "old-1", "new-0", "new-1"]),
        node=st.sampled_from([SICK, "n2", "n3"]),
        phase=st.sampled_from(["Running", "Pending", "Succeeded", "Failed"]),
        ready=st.booleans(),
        gpus=st.sampled_from([0, 8]),
        deleting_since=st.none() | st.just(AT),
    ),
    max_size=4,
    unique_by=lambda one: one.uid,
)
LOOKS = st.tuples(
    st.sampled_from([0.5, 1.0, 60.0, 700.0, 4000.0]),
    JOBS,
    PODS,
    st.none() | st.sets(st.sampled_from(["old-0", "new-0", "new-1"])),
    st.sampled_from([batch_job.ADAPTER, volcano_job.ADAPTER]),
)
STEPS = st.lists(LOOKS, max_size=12)


def is_new(restart: Restart) -> tuple[Stage, ...]:
    """The stages that may come after this one, itself among them."""
    if not restart.stage.is_open:
        return (restart.stage,)
    return (*ORDER[ORDER.index(restart.stage) :], DONE, FAILED)


@given(JOBS, PODS, st.booleans(), st.booleans(), STEPS, st.sampled_from([ON, ASKS]))
def test_whatever_is_seen_a_restart_goes_forward_and_starts_no_second_writer(
    told: WorkloadView | None, there, asks: bool, moves: bool, steps, policy: RestartPolicy
) -> None:
    restart = first(told, there, asks=asks, moves=moves)
    if restart is None:
        return
    assert told is not None
    assert told.annotation(RESTARTED) != ID
    assert not told.finished
    now = AT
    for pause_s, what, living, computing, adapter in steps:
        now += timedelta(seconds=pause_s)
        look = seen(what, living, now, computing=computing, adapter=adapter)
        further = advance(restart, look, policy, now)

        assert further.stage in is_new(restart), "stages only go forward"
        if further.stage is STARTING and restart.stage is not STARTING:
            assert all(one.phase in FINISHED for one in living), "nothing may still write"
            assert look.job is not None
            assert look.job.suspended
        if not restart.stage.is_open:
            assert further == restart, "an end is an end"
        assert further.level >= restart.level, "levels never fall"
        assert further.reached[: len(restart.reached)] == restart.reached, "what was reached stays, with its time"
        assert [one.level for one in further.reached] == list(range(len(further.reached))), "none is left out"
        assert further == advance(restart, look, policy, now), "the same is made of the same"
        fixed = ("id", "incident", "node", "job", "detected_at", "moves", "pods", "gpus", "old", "asked_at")
        for name in fixed:
            assert getattr(further, name) == getattr(restart, name), name
        for name in ("answered_at", "stopped_at", "started_at"):
            before = getattr(restart, name)
            assert before is None or getattr(further, name) == before, "a time that was written down stays"
        if further.stage is STOPPING and restart.stage is ASKING:
            assert moves
        if not moves:
            assert further.stopped_at is None, "who is only asked is never stopped"
        if further.stage is DONE and further.stopped_at is not None and not (what is not None and what.finished):
            assert further.level >= 3 or not restart.stage.is_open
        assert further.detail
        restart = further


@given(JOBS, PODS, st.booleans(), st.booleans())
def test_none_begins_for_a_job_that_was_restarted_for_the_same_before(told, there, asks: bool, moves: bool) -> None:
    if told is not None:
        again = {**dict(told.annotations), RESTARTED: ID}
        told = replace(told, annotations=tuple(again.items()))
    assert first(told, there, asks=asks, moves=moves) is None


@given(PODS, st.integers(0, 3))
def test_no_look_at_pods_alone_starts_a_job_whose_controller_counts_any(there, active: int) -> None:
    restart = first(job(SAVED), asks=False)
    assert restart is not None
    further = advance(restart, seen(stopped(SAVED, active=active), there, after(9)), ON, after(9))
    living = [one for one in there if one.phase not in FINISHED]
    assert (further.stage is STARTING) == (not living and not active)
