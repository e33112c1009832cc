"""A job's way from a bad node back to work: stories of what is seen, and how far the restart has come by each look."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest

from remediation.contract import ACK, ASK_BY, ASK_DEADLINE, CHECKPOINT_LOCATION, CHECKPOINT_STEP
from remediation.jobs import RESTART
from remediation.objects import PodView, WorkloadView
from remediation.restoring import Stage, advance
from rules.restore_schema import RestartPolicy
from tests.jobs.seeing import (
    ALL_COMPUTE,
    ASKABLE,
    ASKING,
    ASKS,
    DONE,
    ENDING,
    FAILED,
    ID,
    LONG_AGO,
    NEW,
    OLD,
    ON,
    PATIENT,
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
    started,
    stopped,
)


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen so many seconds after the beginning, and what the restart makes of that."""

    seconds: float
    job: WorkloadView | None
    pods: Sequence[PodView]
    stage: Stage
    says: str = ""
    level: int | None = None
    computing: Collection[str] | None = ()
    out: Collection[str] = (SICK,)


@dataclass(frozen=True, slots=True)
class Story:
    """How it begins, and each look after that."""

    first: WorkloadView
    stage: Stage
    looks: Sequence[Look]
    asks: bool = True
    moves: bool = True
    policy: RestartPolicy = ON
    pods: Sequence[PodView] = OLD


def told(*looks: Look, first: WorkloadView | None = None, stage: Stage = STOPPING, **fields) -> Story:
    """A story that begins with a job that has a fresh checkpoint and cannot be asked, unless told otherwise."""
    return Story(first or job(SAVED), stage, looks, **fields)


#: The beginning that most stories share: it is stopped, none of its pods is left, it is started.
GONE = (
    Look(1, job(SAVED | {RESTART: ID}, suspended=True), OLD, STOPPING),
    Look(5, stopped(SAVED, active=2), ENDING, STOPPING),
    Look(9, stopped(SAVED), (), STARTING, "none of its old pods is left", 0),
)
STARTED = (*GONE, Look(10, started(SAVED), (), WATCHING, "started again", 0))


def asked(*looks: Look, answers: dict[str, str] | None = None, **fields) -> Story:
    """A story that begins with a job that can be asked."""
    return told(*looks, **({"first": job(ASKABLE | (answers or {})), "stage": ASKING} | fields))


STORIES = [
    # asked for a checkpoint
    pytest.param(asked(
        Look(5, job(ASKABLE), OLD, ASKING, "asked for a checkpoint, which is waited for 600 s"),
        Look(40, job(ASKABLE | SAVED | {ACK: ID}), OLD, STOPPING, "has written a checkpoint, 40 s after it was asked"),
        Look(41, job(ASKABLE | saved(39)), OLD, STOPPING),
    ), id="it answers by the id, and is stopped"),
    pytest.param(asked(
        Look(30, job(ASKABLE | saved(25)), OLD, STOPPING, "has written a checkpoint, 30 s after it was asked"),
    ), id="it commits one without a word, and is stopped"),
    pytest.param(asked(
        Look(30, job(ASKABLE | SAVED | {ACK: "gw-of-before"}), OLD, ASKING),
        Look(599, job(ASKABLE | SAVED), OLD, ASKING),
        Look(600, job(ASKABLE | SAVED), OLD, STOPPING, "no answer within 600 s; it goes on from the last one"),
        answers=SAVED,
    ), id="it is deaf, and its last checkpoint is fresh enough"),
    pytest.param(asked(
        Look(90, job(ASKABLE | SAVED | {ASK_DEADLINE: "90s"}), OLD, STOPPING, "no answer within 90 s"),
        answers=SAVED | {ASK_DEADLINE: "90s"},
    ), id="it is deaf, and has named a shorter time itself"),
    pytest.param(asked(
        Look(600, job(ASKABLE | LONG_AGO), OLD, FAILED,
             "no answer within 600 s; its last checkpoint is 7.2 h old, more than 6.0 h: it is left running, and a "
             "person has to decide"),
        Look(700, job(ASKABLE | LONG_AGO), OLD, FAILED),
        answers=LONG_AGO,
    ), id="it is deaf, and its last checkpoint too old: a person is asked"),
    pytest.param(asked(
        Look(600, job(ASKABLE), OLD, FAILED, "a restart may begin at step 0: it is left running, and a person"),
    ), id="it is deaf, and nobody knows of a checkpoint: a person is asked"),
    pytest.param(asked(
        Look(600, job(ASKABLE | SAVED), OLD, FAILED, "no answer within 600 s: it is left running, and a person has"),
        answers=SAVED, policy=ASKS,
    ), id="it is deaf, and policy wants a person asked whatever it has"),
    pytest.param(asked(
        Look(30, job(ASKABLE | saved(25) | {CHECKPOINT_LOCATION: "emptyDir"}), OLD, ASKING),
        Look(600, job(ASKABLE | saved(25) | {CHECKPOINT_LOCATION: "emptyDir"}), OLD, FAILED, "which ends with it"),
    ), id="it answers with one that ends with its pods: a person is asked"),
    pytest.param(asked(
        Look(40, job(ASKABLE | saved(35)), OLD, DONE, "has written a checkpoint, 40 s after it was asked"),
        Look(50, job(ASKABLE | saved(45)), OLD, DONE, "40 s after"), moves=False,
    ), id="it is only asked, and answers"),
    pytest.param(asked(Look(600, job(ASKABLE | SAVED), OLD, FAILED, "no answer within 600 s"), moves=False),
                 id="it is only asked, and is deaf"),
    pytest.param(asked(Look(30, job(ASKABLE, finished=True), (), DONE, "has ended by itself meanwhile")),
                 id="it ends before it has answered"),
    pytest.param(asked(Look(30, None, (), FAILED, "the job isn't there any more")),
                 id="it is deleted while it is asked"),

    # not asked
    pytest.param(told(*GONE, first=job(ASKABLE | SAVED), asks=False),
                 id="a hard fault: nothing could be saved, so it is not asked"),
    pytest.param(told(*GONE), id="it says no way to ask"),
    pytest.param(told(*GONE, first=job(SAVED | {ASK_BY: "sigterm"})), id="it saves on SIGTERM: the stop asks it"),
    pytest.param(told(*GONE, first=job(SAVED | {ASK_BY: "http://saver.other.svc/"})),
                 id="it names a Service of somebody else"),

    # stopped
    pytest.param(told(
        Look(5, stopped(SAVED, active=2), ENDING, STOPPING, "it is stopped without asking"),
        Look(6, stopped(saved(5)), ENDING[1:], STOPPING),
        Look(330, stopped(saved(5)), ENDING[1:], STOPPING, "it is stopped without asking"),
        Look(331, stopped(saved(5)), ENDING[1:], STOPPING,
             "it hangs: not all of its pods have ended (train/llama-1 on n2); it is not started while one of them may"),
        Look(9000, stopped(saved(5)), ENDING[1:], STOPPING, "it hangs"),
        Look(9001, stopped(saved(5)), (), STARTING, "none of its old pods is left", 0),
    ), id="a pod hangs while it is stopped: it is never started beside that"),
    pytest.param(told(
        Look(7200 + 300, stopped(SAVED), PATIENT, STOPPING, "it is stopped without asking"),
        Look(7201 + 300, stopped(SAVED), PATIENT, STOPPING, "it hangs"),
    ), id="its pods' own grace comes on top"),
    pytest.param(told(
        Look(400, stopped(SAVED, active=1), (), STOPPING, "it hangs: not all of its pods have ended (its controller"),
    ), id="its controller counts a pod that nobody sees"),
    pytest.param(told(
        Look(9, stopped(SAVED), pods("old", SICK, "n2", phase="Failed"), STARTING, "none of its old pods is left", 0),
    ), id="pods that have ended write no more, whoever keeps them"),
    pytest.param(told(
        Look(9, job(SAVED | {RESTART: ID}, active=0), (), STOPPING),
        Look(20, job(SAVED | {RESTART: ID}), pods("other", "n5", "n6"), STOPPING),
    ), id="somebody starts it again while it is stopped: it is not started by us"),
    pytest.param(told(*GONE[:2], Look(7, stopped(SAVED, finished=True), (), DONE, "has ended by itself meanwhile")),
                 id="it ends while it is stopped"),
    pytest.param(told(*GONE[:2], Look(7, None, (), FAILED, "isn't there any more")), id="it is deleted while stopped"),

    # started
    pytest.param(told(
        *GONE,
        Look(60, stopped(SAVED), (), STARTING),
        Look(6000, stopped(SAVED), (), STARTING),
        Look(6010, started(SAVED), UNREADY, WATCHING, "started again", 0),
        Look(6020, started(SAVED), UNREADY, WATCHING, "started again", 0),
        Look(7811, started(SAVED), UNREADY, FAILED, "not new pods ready within 1800 s", 0),
    ), id="the start waits for as long as it has to, and only then the time for the way back begins"),
    pytest.param(told(
        *GONE,
        Look(30, job(SAVED | {RESTART: ID}), NEW, WATCHING, "nothing on it says that we have started it", 0),
        Look(31, job(SAVED | {RESTART: ID}, running_since=after(25)), NEW, WATCHING, "running", 2),
    ), id="somebody starts it before we do: it is watched all the same"),
    pytest.param(told(*GONE, Look(12, stopped(SAVED, finished=True), (), DONE, "ended by itself", 0)),
                 id="it ends before it is started"),
    pytest.param(told(*GONE, Look(12, None, (), FAILED, "isn't there any more", 0)),
                 id="it is deleted before its start"),
    pytest.param(told(*STARTED, Look(30, started(SAVED, finished=True), NEW, DONE, "ended by itself")),
                 id="it ends after its start"),
    pytest.param(told(*STARTED, Look(30, None, NEW, FAILED, "isn't there any more")),
                 id="it is deleted after its start"),

    # the ladder
    pytest.param(told(
        *STARTED,
        Look(20, started(SAVED), UNREADY, WATCHING, "started again", 0),
        Look(30, started(SAVED), (NEW[0], UNREADY[1]), WATCHING, "started again", 0),
        Look(40, started(SAVED), NEW[:1], WATCHING, "started again", 0),
        Look(50, started(SAVED), NEW, WATCHING, "new pods ready", 1),
        Look(60, started(SAVED, since=55), NEW, WATCHING, "running", 2),
        Look(70, started(SAVED, since=55), NEW, WATCHING, "running", 2, computing=ALL_COMPUTE[:1]),
        Look(80, started(SAVED, since=55), NEW, WATCHING, "computing", 3, computing=ALL_COMPUTE),
        Look(90, started(saved(-600, 100), since=55), NEW, WATCHING, "computing", 3, computing=()),
        Look(150, started(saved(140), since=55), NEW, DONE, "past its checkpoint, 141 s after its start", 4),
    ), id="it climbs level by level"),
    pytest.param(told(
        *STARTED,
        Look(60, started(SAVED, since=55), NEW, WATCHING, "computing", 3, computing=ALL_COMPUTE),
        Look(61, started(saved(60), since=55), NEW, DONE, "past its checkpoint", 4),
    ), id="levels that come at once are all reached"),
    pytest.param(told(*STARTED, Look(150, started(saved(140)), UNREADY, DONE, "past its checkpoint", 4)),
                 id="a new checkpoint takes all below it for granted"),
    pytest.param(told(
        *STARTED,
        Look(50, started(SAVED, since=45), NEW, WATCHING, "running", 2),
        Look(60, started(SAVED), UNREADY, WATCHING, "running", 2),
        Look(70, started(SAVED), (), WATCHING, "running", 2),
    ), id="what was reached stays reached"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=8), NEW, WATCHING, "running", 2),
    ), id="its controller let it run before we had seen the start"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=-7200), NEW, WATCHING, "new pods ready", 1),
    ), id="its controller has not noticed anything yet"),
    pytest.param(told(
        *GONE[:2],
        Look(9, stopped(saved(8.5)), (), STARTING, "", 0),
        Look(10, started(saved(8.5)), (), WATCHING, "started again", 0),
        Look(11, started(saved(8.5)), (), WATCHING, "started again", 0),
        Look(50, started(saved(8.5), since=45), NEW, WATCHING, "running", 2),
        Look(90, started(saved(80), since=45), NEW, DONE, "past its checkpoint", 4),
    ), id="a checkpoint that it wrote while it was stopped is what it comes back to"),
    pytest.param(told(
        Look(5, stopped(saved(64)), ENDING, STOPPING),
        Look(9, stopped(saved(64)), (), STARTING, "", 0),
        Look(10, started(saved(64)), (), WATCHING, "started again", 0),
        Look(50, started(saved(64)), UNREADY, WATCHING, "started again", 0),
        Look(90, started(saved(140)), UNREADY, DONE, "past its checkpoint", 4),
    ), id="by its own clock, a minute ahead, it saved after the start: no new checkpoint"),
    pytest.param(told(
        Look(9, stopped(), (), STARTING, "", 0),
        Look(10, started(), (), WATCHING, "started again", 0),
        Look(50, started(since=45), NEW, WATCHING, "running", 2),
        Look(60, started(since=45), NEW, DONE, "computing, 51 s after its start", 3, computing=ALL_COMPUTE),
        first=job(),
    ), id="without a checkpoint, computing is all there is to see"),
    pytest.param(told(
        Look(9, stopped(), (), STARTING, "", 0),
        Look(10, started(), (), WATCHING, "started again", 0),
        Look(60, started(saved(50)), UNREADY, DONE, "computing", 3), first=job(),
    ), id="its first checkpoint ever shows that it computes"),
    pytest.param(told(
        *STARTED,
        Look(60, started(SAVED, since=55), pods("new", "n3", "n4", gpus=0), WATCHING, "running", 2, computing=None),
        Look(70, started(SAVED, since=55), pods("new", "n3", "n4", gpus=0), WATCHING, "running", 2),
    ), id="pods without GPUs compute nothing that is seen"),
    pytest.param(told(
        *STARTED,
        Look(60, started(SAVED, since=55), (*NEW, *pods("more", "n5", gpus=0)), WATCHING, "computing", 3,
             computing=ALL_COMPUTE),
    ), id="a launcher without GPUs needs to compute nothing"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), NEW, WATCHING, "running", 2),
        pods=(*OLD, *pods("first", SICK, deleting_since=after(-5))),
    ), id="a pod that was being replaced as it began is not waited for"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), (), WATCHING, "started again", 0),
        Look(60, started(SAVED, since=45), NEW, WATCHING, "running", 2), pods=(),
    ), id="a job without a pod as it began is not back without one"),

    # what goes wrong on the way back
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), pods("new", "n3", SICK), FAILED,
                       "a new pod runs on n1, which is out: it tolerates more than it should", 0),
    ), id="a pod is back on the node that is out"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED), (*NEW, *ENDING[:1]), WATCHING, "", 1),
    ), id="an old pod on that node is no new one"),
    pytest.param(told(
        *STARTED, Look(90, started(saved(80, 10), since=55), NEW, FAILED,
                       "it has begun anew: its new checkpoint is of step 10, and it had one of step 100"),
        Look(95, started(saved(92, 200), since=55), NEW, FAILED, "begun anew"),
    ), id="it starts at step 0 although it had a checkpoint"),
    pytest.param(told(
        *STARTED, Look(90, started(saved(80, 100), since=55), NEW, DONE, "past its checkpoint", 4),
    ), id="the same step again is no loss"),
    pytest.param(told(
        *STARTED, Look(90, started(saved(80) | {CHECKPOINT_STEP: ""}), NEW, DONE, "past its checkpoint", 4),
    ), id="a checkpoint without a step counts by its time"),
    pytest.param(told(
        *STARTED, Look(20, started(SAVED | {CHECKPOINT_STEP: "10"}), NEW, WATCHING, "new pods ready", 1),
    ), id="an old time with a smaller step is no new checkpoint"),
    pytest.param(told(
        *STARTED, Look(1810, started(SAVED), UNREADY, WATCHING),
        Look(1811, started(SAVED), UNREADY, FAILED,
             "not new pods ready within 1800 s; it has come to L0 (old pods gone)", 0),
        Look(1900, started(SAVED, since=1850), NEW, FAILED, "L0", 0),
    ), id="its pods do not get ready in time"),
    pytest.param(told(
        *STARTED, Look(1811, started(SAVED), NEW, FAILED, "not running within 1800 s; it has come to L1", 1),
    ), id="its controller does not say in time that it runs"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), NEW, WATCHING, "running", 2),
        Look(3611, started(SAVED, since=45), NEW, FAILED, "not computing within 3600 s; it has come to L2", 2),
    ), id="its GPUs do not work in time"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), NEW, WATCHING, "running", 2, computing=None),
        Look(3611, started(SAVED, since=45), NEW, FAILED, "not computing within 3600 s; it has come to L2", 2,
             computing=None),
    ), id="nobody knows whether its GPUs work"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), NEW, WATCHING, "running", 2, computing=None),
        Look(900, started(saved(890), since=45), NEW, DONE, "past its checkpoint", 4, computing=None),
    ), id="nobody knows whether its GPUs work, and a checkpoint says it"),
    pytest.param(told(
        *STARTED, Look(50, started(SAVED, since=45), NEW, WATCHING, "computing", 3, computing=ALL_COMPUTE),
        Look(3611, started(SAVED, since=45), NEW, DONE, "computing; no new checkpoint within 3600 s", 3,
             computing=ALL_COMPUTE),
    ), id="no new checkpoint comes in time: it computes, which is enough"),
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_a_restart_comes_as_far_as_what_is_seen_lets_it(story: Story) -> None:
    restart = first(story.first, story.pods, asks=story.asks, moves=story.moves)
    assert restart is not None
    assert restart.stage is story.stage
    for look in story.looks:
        now = after(look.seconds)
        what = seen(look.job, look.pods, now, computing=look.computing, out=look.out)
        restart = advance(restart, what, story.policy, now)
        assert restart.stage is look.stage, f"at {look.seconds} s: {restart.detail}"
        assert look.says in restart.detail, f"at {look.seconds} s"
        if look.level is not None:
            assert restart.level == look.level, f"at {look.seconds} s"
