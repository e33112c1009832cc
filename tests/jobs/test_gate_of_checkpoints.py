"""The gates about what a drain moves, where the policy restarts jobs as a whole: what may stop, and who is asked."""

from datetime import timedelta

import pytest

from remediation.capacity import free_gpus
from remediation.contract import (
    ASK_BY,
    CHECKPOINT_AT,
    CHECKPOINT_LOCATION,
    CHECKPOINT_STEP,
)
from remediation.drain import Fate, fates
from remediation.limits import History
from remediation.moving import Moves, Situation, checkpoint, last_restart, pdb_headroom, pods_may_move, spare_capacity
from remediation.objects import DO_NOT_EVICT, OwnerRef, PodView
from rules.restore_schema import RestartPolicy
from rules.schema import DrainPolicy, Policy
from rules.vocabulary import Action, Tier
from tests.acting.scenes import calm_scene, serving, training
from tests.acting.views import JOB, node, pairs, pdb, workload
from tests.decide.circumstances import around, asked, plan_of
from tests.decide.incidents import incident

NOW = around().now
DRAIN = plan_of(Action.NO_NEW_WORK, Action.CHECKPOINT, Action.CORDON, Action.DRAIN, Action.QUARANTINE)
LOOK = plan_of(Action.NO_NEW_WORK, Action.CHECKPOINT, Action.DIAGNOSE)
ON, OFF = RestartPolicy(enabled=True), RestartPolicy()
FACT, TREND = Tier.FACT, Tier.TREND
GPT = OwnerRef("batch/v1", "Job", "gpt", "uid-gpt")
FULL = [training(f"full-{number}", f"n{number:03d}") for number in range(1, 40)]


def saved(hours: float = 0.5, place: str = "s3://checkpoints") -> dict[str, str]:
    """A checkpoint of so many hours ago."""
    at = (NOW - timedelta(hours=hours)).isoformat()
    return {CHECKPOINT_AT: at, CHECKPOINT_STEP: "100", CHECKPOINT_LOCATION: place}


ASKABLE = {ASK_BY: "annotation"}


def about(
    *pods: PodView,
    told: dict[str, str] | None = None,
    tier: Tier = FACT,
    restart: RestartPolicy = ON,
    drain: DrainPolicy | None = None,
    plan=DRAIN,
    others=(),
    jobs=(),
    scene=None,
    **fields,
) -> Situation:
    """A job on the one sick node that says this of itself; `fields` are the job's, `scene` the scene's."""
    found = (workload(annotations=pairs(told), **fields), *jobs)
    there = pods or (training(started=NOW - timedelta(hours=2)),)
    calm = calm_scene(pods=[*there, *others], workloads={one.uid: one for one in found}, **(scene or {}))
    policy = Policy(drain=drain or DrainPolicy(), restart=restart)
    question = asked(plan, incident(tier=tier), policy=policy)
    history = History.of(calm.history)
    return Situation(
        question, calm, Moves.of(question, calm, history), history, free_gpus(calm.fleet, calm.pods_by_node)
    )


KUEUE = {"queue": "gold"}
NOTHING = "it says nothing of checkpoints (gpuwarden.io/checkpoint-at)"
ALONE = "1 training pods with 8 GPUs, 16.0 GPU-hours since the start; no checkpoint of it is known"


@pytest.mark.parametrize(
    ("situation", "passes", "reason"),
    [
        pytest.param(about(told=saved()), True,
                     "Job train/llama: checkpoint of step 100 from 2026-05-04 11:30:10 UTC at s3://checkpoints",
                     id="known and fresh: the reason says from when it is"),
        pytest.param(about(told=saved(), tier=TREND), True, "checkpoint of step 100 from", id="for a trend likewise"),
        pytest.param(about(told=saved(6)), True, "checkpoint of step 100 from", id="just fresh enough"),
        pytest.param(about(told=saved(6.5)), False,
                     "Job train/llama: its last checkpoint is 6.5 h old, more than 6.0 h", id="known and too old"),
        pytest.param(about(told=saved(6.5), restart=RestartPolicy(enabled=True, max_checkpoint_age="7h")), True,
                     "checkpoint of step 100", id="how old is too old is policy"),
        pytest.param(about(), False, f"{NOTHING}; a restart may begin at step 0",
                     id="unknown, with a fact: a person is asked"),
        pytest.param(about(told=ASKABLE), False, "it says nothing of checkpoints",
                     id="on a dead GPU there is nothing left to ask for"),
        pytest.param(about(tier=TREND), False, "it says nothing of checkpoints", id="unknown, with a trend"),
        pytest.param(about(told=ASKABLE, tier=TREND), True, f"{NOTHING}; it is asked for one first",
                     id="unknown, with a trend, and it can be asked"),
        pytest.param(about(told=ASKABLE | saved(9), tier=TREND), True, "it is asked for one first",
                     id="too old, with a trend, and it can be asked"),
        pytest.param(about(told={ASK_BY: "sigterm"}, tier=TREND), False, "it says nothing of checkpoints",
                     id="who saves on SIGTERM cannot be asked beforehand"),
        pytest.param(about(told={ASK_BY: "http://saver.train.svc/save"}, tier=TREND), True, "asked for one first",
                     id="who takes a request by HTTP can"),
        pytest.param(about(told={ASK_BY: "http://saver.other.svc/save"}, tier=TREND), False, "says nothing of",
                     id="who names somebody else's Service cannot"),
        pytest.param(about(told=saved(place="emptyDir:scratch")), False,
                     "its checkpoint lies on emptyDir:scratch, which ends with it",
                     id="on an emptyDir: a person is asked"),
        pytest.param(about(training(memory_dirs=("shm",)), told=saved(place="volume:shm/out")), False,
                     "lies on emptyDir shm, which ends with it", id="on a volume that is an emptyDir"),
        pytest.param(about(told=saved(place="hostPath:/nvme"), tier=TREND), False, "hostPath:/nvme, which ends with it",
                     id="on a disk of the node, with a trend"),
        pytest.param(about(told=ASKABLE | saved(place="emptyDir:scratch"), tier=TREND), False, "which ends with it",
                     id="on an emptyDir, with a trend, though it can be asked"),
        pytest.param(about(told={CHECKPOINT_LOCATION: "s3://x"}, scene={"measured": {"uid-job": NOW}}), True,
                     "checkpoint from 2026-05-04 12:00:10 UTC at s3://x", id="a metric says when it was"),
        pytest.param(about(training(), training("gpt-0", owner=GPT), told=saved(), jobs=(workload(GPT),)), False,
                     "Job train/gpt: it says nothing of checkpoints", id="one of two jobs holds the node up"),
        pytest.param(about(training("a"), training("b"), told={}), False,
                     f"Job train/llama: {NOTHING}; a restart may begin at step 0",
                     id="a job with two pods here is named once"),
        pytest.param(about(serving()), True, "no training runs here", id="a service has nothing to lose"),
        pytest.param(about(told={}, plan=LOOK, tier=TREND), True, "diagnose stops no training",
                     id="a look stops nothing"),

        # a job that is not restarted as a whole: its pods are evicted, and the gates of evictions hold
        pytest.param(about(told=saved(), **KUEUE), True, f"{ALONE}; policy lets facts go ahead",
                     id="a job of Kueue, with a fact"),
        pytest.param(about(told=ASKABLE | saved(), tier=TREND, **KUEUE), False, ALONE,
                     id="a job of Kueue, with a trend"),
        pytest.param(about(told=saved(), suspended=True), True, ALONE, id="a job that somebody else has stopped"),
        pytest.param(about(told=saved(), managed_by="example.com/mine"), True, ALONE, id="of another controller"),
        pytest.param(about(told=saved(), tier=TREND, drain=DrainPolicy(ask_without_checkpoint=()), **KUEUE), True,
                     "policy lets trends go ahead", id="policy about evictions holds for it"),
        pytest.param(about(training(started=NOW - timedelta(hours=2)), training("gpt-0", owner=GPT), told=saved(),
                     jobs=(workload(GPT, annotations=pairs(saved())),), **KUEUE), True,
                     f"Job train/gpt: checkpoint of step 100 from 2026-05-04 11:30:10 UTC at s3://checkpoints; {ALONE}",
                     id="one goes as a whole, the other pod by pod"),

        # where the policy is silent
        pytest.param(about(told=saved(), restart=OFF), True, f"{ALONE}; policy lets facts go ahead",
                     id="nothing is restarted: a fact stops training at once, as before"),
        pytest.param(about(told=ASKABLE | saved(), restart=OFF, tier=TREND), False, ALONE,
                     id="nothing is restarted: for a trend a person is asked, as before"),
    ],
)  # fmt: skip
def test_what_training_would_lose_is_known_or_a_person_is_asked(
    situation: Situation, passes: bool, reason: str
) -> None:
    answer = checkpoint(situation)
    assert answer.passed is passes, answer.reason
    assert reason in answer.reason


REST_OF_IT = training("llama-1", "n001")
USED_UP = {"restarts_allowed": 6, "restarts_used": 6}


@pytest.mark.parametrize(
    ("gate", "situation", "passes", "reason"),
    [
        pytest.param(last_restart, about(told=saved(), **USED_UP), True, "no job would be at its last restart",
                     id="a stop and a start count for no restart"),
        pytest.param(last_restart, about(told=saved(), **USED_UP, **KUEUE), False,
                     "Job train/llama would end for good: it has used 6 of 6", id="an eviction does"),
        pytest.param(last_restart, about(told=saved(), restart=OFF, **USED_UP), False, "would end for good",
                     id="and so it does where nothing is restarted"),
        pytest.param(last_restart, about(training(gpus=0), told=saved(), **USED_UP), False, "would end for good",
                     id="a pod without GPUs is evicted"),
        pytest.param(pods_may_move, about(training(annotations={DO_NOT_EVICT: "true"}), told=saved()), False,
                     "do-not-evict is true", id="a pod that opts out holds its job"),
        pytest.param(pods_may_move, about(training(empty_dirs=("scratch",)), told=saved()), False, "emptyDir scratch",
                     id="and so does what lies on an emptyDir"),
        pytest.param(pods_may_move, about(training(), serving(), told=saved()), True, "2 pods would be moved",
                     id="pods that go with their job are among those that go"),
        pytest.param(pdb_headroom, about(told=saved(), scene={"pdbs": (pdb(allowed=0),)}), False,
                     "pod train/llama-0, whose job would be stopped as a whole: train/llama needs 2 healthy pods",
                     id="who stops a job goes around no budget"),
        pytest.param(pdb_headroom,
                     about(told=saved(), others=[REST_OF_IT], scene={"pdbs": (pdb(allowed=1),)}), False,
                     "pod train/llama-1, whose job would be stopped", id="one that lets a part of it go is not enough"),
        pytest.param(pdb_headroom,
                     about(told=saved(), others=[REST_OF_IT], scene={"pdbs": (pdb(allowed=2),)}), True,
                     "no pod has to pass a budget now", id="one that lets all of it go is"),
        pytest.param(pdb_headroom, about(told=saved(), scene={"pdbs": (pdb(allowed=0),)}, **KUEUE), False,
                     "train/llama needs 2 healthy pods", id="a job of Kueue has to pass it"),
        pytest.param(spare_capacity, about(told=saved(), tier=TREND, others=FULL), False, "no node has 8 GPUs free",
                     id="its pods need a place"),
    ],
)  # fmt: skip
def test_the_other_gates_know_what_goes_with_its_job(gate, situation: Situation, passes: bool, reason: str) -> None:
    answer = gate(situation)
    assert answer.passed is passes, answer.reason
    assert reason in answer.reason


def with_its_job(pod: PodView) -> str:
    return "it goes with its job" if pod.owner == JOB else ""


@pytest.mark.parametrize(
    ("pod", "fate", "whole"),
    [
        pytest.param(training(), Fate.WAIT, True, id="a pod of a job that is restarted waits for that"),
        pytest.param(serving(), Fate.EVICT, False, id="another is evicted"),
        pytest.param(training(phase="Failed"), Fate.LEAVE, False, id="one that has ended is left"),
        pytest.param(training(annotations={DO_NOT_EVICT: "true"}), Fate.REFUSE, False,
                     id="one that opts out is not touched"),
        pytest.param(training(annotations={"gpuwarden.io/drain-mode": "wait_for_completion"}), Fate.WAIT, False,
                     id="one that is waited for goes with its job once an eviction would be due"),
        pytest.param(training(deleting_since=NOW), Fate.WAIT, False, id="one that terminates is on its way"),
    ],
)  # fmt: skip
def test_the_fate_of_a_pod_whose_job_is_restarted(pod: PodView, fate: Fate, whole: bool) -> None:
    (told,) = fates([pod], node("n000"), DrainPolicy(), started=NOW, now=NOW, whole=with_its_job)
    assert (told.fate, told.whole) == (fate, whole)
    assert (told.reason == "it goes with its job") is whole
