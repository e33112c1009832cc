"""A job's way from a bad node back to work: asked for a checkpoint, stopped, started again, watched until it computes.

Pure. A `Restart` is what the ledger keeps of it; `advance` says from what is seen now how far it has come, and
`remediation.cluster.restoring` does what the new stage needs. Each stage can be entered again after a crash: what is
on the job's own object (`gpuwarden.io/restart`, `gpuwarden.io/restarted`) says what was done already.

The way back is a ladder. L0: no old pod is left. L1: all new pods are ready, none on a node that is out. L2: the job's
controller says that it runs. L3: the new pods compute. L4: the job has committed a checkpoint at or past the old one.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from remediation.contract import Asking, Checkpoint, has_answered
from remediation.drain import FINISHED
from remediation.jobs.adapter import RESTARTED, Adapter
from remediation.objects import PodView, WorkloadView
from rules.restore_schema import RestartPolicy

#: What the levels mean, for people.
LEVELS = ("old pods gone", "new pods ready", "running", "computing", "past its checkpoint")
#: The level from which on a job is back at work.
COMPUTING = 3


class Stage(StrEnum):
    """How far a restart has come."""

    ASKING = "asking"
    STOPPING = "stopping"
    STARTING = "starting"
    WATCHING = "watching"
    DONE = "done"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether there is more to come."""
        return self not in (Stage.DONE, Stage.FAILED)


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which job, for the record and for requests."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @staticmethod
    def of(job: WorkloadView) -> "JobRef":
        """The reference to a job."""
        return JobRef(job.api_version, job.kind, job.namespace, job.name, job.uid)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Reached:
    """A level of the resume ladder, and when it was first seen."""

    level: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart of one job for one incident. Times are None for what has not happened.

    `moves` is False where the job is only asked for a checkpoint. `pods` and `gpus` are how many it had; `old` are the
    UIDs of these pods. `checkpoint_at` and `checkpoint_step` are the last that was known when it was stopped.
    `detected_at` is when the incident was first seen.
    """

    id: str
    incident: str
    node: str
    job: JobRef
    stage: Stage
    at: datetime
    detected_at: datetime
    moves: bool
    pods: int
    gpus: int
    old: tuple[str, ...]
    asked_at: datetime | None = None
    answered_at: datetime | None = None
    stopped_at: datetime | None = None
    started_at: datetime | None = None
    checkpoint_at: datetime | None = None
    checkpoint_step: int | None = None
    reached: tuple[Reached, ...] = ()
    detail: str = ""

    @property
    def level(self) -> int:
        """The highest level that was reached, -1 for none."""
        return max((one.level for one in self.reached), default=-1)

    @property
    def recovery_s(self) -> float | None:
        """Seconds from the fault to the highest level that was reached; None before the first."""
        last = max(self.reached, key=lambda one: one.level, default=None)
        return None if last is None else (last.at - self.detected_at).total_seconds()

    @property
    def back_at(self) -> datetime | None:
        """When it was back as far as it came, its next checkpoint aside; None before its new pods were ready."""
        if self.level < 1:
            return None
        return max(one.at for one in self.reached if one.level < len(LEVELS) - 1)

    @property
    def lost_gpu_hours(self) -> float | None:
        """GPUs of the whole job times the hours from its last checkpoint until it was back: none of that was kept.

        It holds what was computed for nothing, the detection and the restart. None where the checkpoint is not known,
        or the job is not back. What it computes from then on is kept by its next checkpoint, however late that comes.
        """
        back = self.back_at
        if self.checkpoint_at is None or back is None:
            return None
        return self.gpus * max(0.0, (back - self.checkpoint_at).total_seconds()) / 3600


def restart_id(incident: str, job_uid: str, *, moves: bool = True) -> str:
    """The name of a restart: the same for the same incident and job, whoever works it out. 14 letters.

    Where the job is only asked for a checkpoint it is another one, so that the answer to that is none to this.

    >>> restart_id("inc-1", "u") == restart_id("inc-1", "u")
    True
    """
    about = f"{incident}/{job_uid}{'' if moves else '/asks'}"
    return f"gw-{hashlib.sha256(about.encode()).hexdigest()[:11]}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a job now. `job` is None where it is gone; `pods` are all of its pods that exist.

    `out` has the node that it left while that is out or wanted out, `computing` the UIDs of pods whose GPUs work, None
    where nobody knows.
    """

    job: WorkloadView | None
    adapter: Adapter
    pods: Sequence[PodView]
    checkpoint: Checkpoint
    asking: Asking
    out: Collection[str] = ()
    computing: Collection[str] | None = None

    @property
    def living(self) -> tuple[PodView, ...]:
        """Its pods that have not ended."""
        return tuple(pod for pod in self.pods if pod.phase not in FINISHED)

    @property
    def pods_left(self) -> bool:
        """Whether one of its pods may still write."""
        return bool(self.living)


def begin(
    incident: str, node: str, detected_at: datetime, seen: Seen, now: datetime, *, asks: bool, moves: bool
) -> Restart | None:
    """A new restart; None where the job has been restarted for this incident before, or there is nothing to do.

    `asks` says whether the job could still write a checkpoint: on a dead GPU there is nothing left to save.
    """
    job = seen.job
    if job is None or job.finished:
        return None
    name = restart_id(incident, job.uid, moves=moves)
    if job.annotation(RESTARTED) == restart_id(incident, job.uid):
        return None
    asks = asks and seen.asking.possible
    if not (asks or moves):
        return None
    # Beside a pod that is on its way out its replacement may stand already.
    its_own = [pod for pod in seen.living if pod.deleting_since is None] or seen.living
    started = Restart(
        id=name, incident=incident, node=node, job=JobRef.of(job), stage=Stage.ASKING, at=now, detected_at=detected_at,
        moves=moves, pods=len(its_own), gpus=sum(pod.gpus for pod in its_own),
        old=tuple(sorted(pod.uid for pod in seen.living)),
    )  # fmt: skip
    if asks:
        said = f"asked for a checkpoint, which is waited for {seen.asking.deadline_s:.0f} s"
        return replace(started, asked_at=now, detail=said)
    return _stop(started, seen, now, "it is stopped without asking: nothing could be saved, or it says no way to ask")


def advance(restart: Restart, seen: Seen, policy: RestartPolicy, now: datetime) -> Restart:
    """The restart as it stands now; the same where nothing has changed."""
    job = seen.job
    if not restart.stage.is_open:
        further = restart
    elif job is None:
        further = _end(restart, Stage.FAILED, "the job isn't there any more", now)
    elif job.finished:
        further = _end(restart, Stage.DONE, "the job has ended by itself meanwhile", now)
    elif restart.stage is Stage.ASKING:
        further = _asking(restart, job, seen, policy, now)
    elif restart.stage is Stage.STOPPING:
        further = _stopping(restart, job, seen, policy, now)
    elif restart.stage is Stage.STARTING:
        further = _starting(restart, job, now)
    else:
        further = _watching(restart, job, seen, policy, now)
    return further


def may_restart(checkpoint: Checkpoint, policy: RestartPolicy, now: datetime) -> str:
    """Why a person has to be asked before a job is restarted from this checkpoint; "" where nobody has."""
    if not checkpoint.is_known or checkpoint.at is None:
        return f"{checkpoint.why}; a restart may begin at step 0"
    age_s = (now - checkpoint.at).total_seconds()
    if age_s > policy.max_checkpoint_age:
        return f"its last checkpoint is {age_s / 3600:.1f} h old, more than {policy.max_checkpoint_age / 3600:.1f} h"
    return ""


def _asking(restart: Restart, job: WorkloadView, seen: Seen, policy: RestartPolicy, now: datetime) -> Restart:
    asked_at = restart.asked_at or restart.at
    if has_answered(job, restart.id, asked_at, seen.checkpoint):
        answered = replace(restart, answered_at=now)
        took_s = (now - asked_at).total_seconds()
        said = f"it has written a checkpoint, {took_s:.0f} s after it was asked"
        return _stop(answered, seen, now, said) if restart.moves else _end(answered, Stage.DONE, said, now)
    if now - asked_at < timedelta(seconds=seen.asking.deadline_s):
        return restart
    said = f"no answer within {seen.asking.deadline_s:.0f} s"
    if not restart.moves:
        return _end(restart, Stage.FAILED, said, now)
    doubt = may_restart(seen.checkpoint, policy, now)
    if doubt or policy.without_answer == "ask":
        why = f"{said}; {doubt}" if doubt else said
        return _end(restart, Stage.FAILED, f"{why}: it is left running, and a person has to decide", now)
    return _stop(restart, seen, now, f"{said}; it goes on from the last one")


def _stop(restart: Restart, seen: Seen, now: datetime, why: str) -> Restart:
    """What was known of its checkpoint at the last moment is what it has to come back to."""
    known = seen.checkpoint if seen.checkpoint.is_known else None
    return replace(
        restart, stage=Stage.STOPPING, at=now, stopped_at=now, detail=why,
        checkpoint_at=known.at if known else None, checkpoint_step=known.step if known else None,
    )  # fmt: skip


def _stopping(restart: Restart, job: WorkloadView, seen: Seen, policy: RestartPolicy, now: datetime) -> Restart:
    """A job that saves while it is stopped commits late, so its newest checkpoint counts until no pod is left."""
    known = seen.checkpoint
    if known.is_known and known.at is not None and (restart.checkpoint_at is None or known.at > restart.checkpoint_at):
        restart = replace(restart, checkpoint_at=known.at, checkpoint_step=known.step)
    if not seen.pods_left and seen.adapter.stopped(job):
        gone = (Reached(0, now),)
        said = "none of its old pods is left"
        return replace(restart, stage=Stage.STARTING, at=now, started_at=now, reached=gone, detail=said)
    grace_s = max((pod.grace_s for pod in seen.pods), default=0.0)
    if now - restart.at > timedelta(seconds=policy.stop_within + grace_s):
        left = ", ".join(f"{pod.namespace}/{pod.name} on {pod.node or 'no node'}" for pod in seen.living[:3])
        said = f"it hangs: not all of its pods have ended ({left or 'its controller still counts some'})"
        return replace(restart, detail=f"{said}; it is not started while one of them may still write")
    return restart


def _starting(restart: Restart, job: WorkloadView, now: datetime) -> Restart:
    """A job that is not stopped any more runs, and is watched, whoever started it; a second start would do harm."""
    if job.suspended:
        return restart
    ours = job.annotation(RESTARTED) == restart.id
    said = "started again" if ours else "it runs again, and nothing on it says that we have started it"
    return replace(restart, stage=Stage.WATCHING, at=now, started_at=restart.started_at or now, detail=said)


def _watching(restart: Restart, job: WorkloadView, seen: Seen, policy: RestartPolicy, now: datetime) -> Restart:
    if restart.node in seen.out and any(pod.node == restart.node and pod.uid not in restart.old for pod in seen.living):
        said = f"a new pod runs on {restart.node}, which is out: it tolerates more than it should"
        return _end(restart, Stage.FAILED, said, now)
    started_at = restart.started_at or restart.at
    lost = _begun_anew(restart, seen.checkpoint, started_at)
    if lost:
        return _end(restart, Stage.FAILED, lost, now)
    level = _level(restart, job, seen, started_at)
    news = tuple(Reached(one, now) for one in range(restart.level + 1, level + 1))
    if news:
        restart = replace(restart, reached=(*restart.reached, *news), detail=LEVELS[level])
    top = len(LEVELS) - 1 if restart.checkpoint_at is not None else 3
    if restart.level >= top:
        return _end(restart, Stage.DONE, f"{LEVELS[restart.level]}, {_span(now - started_at)} after its start", now)
    return _overdue(restart, policy, now)


def _level(restart: Restart, job: WorkloadView, seen: Seen, started_at: datetime) -> int:
    """The level that is seen now; each takes the ones below it for granted."""
    if _is_new(restart, seen.checkpoint, started_at):
        return 4 if restart.checkpoint_at is not None else 3
    new = [pod for pod in seen.living if pod.uid not in restart.old]
    if not new or len(new) < restart.pods or not all(pod.ready for pod in new):
        return 0
    # Its controller may have let it run before we have seen that; what it said before the stop is all that is too old.
    if not seen.adapter.resumed(job, restart.stopped_at or started_at):
        return 1
    computing = seen.computing
    if computing is None or not any(pod.gpus for pod in new):
        return 2
    return 3 if all(pod.uid in computing for pod in new if pod.gpus) else 2


def _begun_anew(restart: Restart, checkpoint: Checkpoint, started_at: datetime) -> str:
    """That it went on from an earlier step than it had saved, though a checkpoint was there."""
    before, now = restart.checkpoint_step, checkpoint.step
    if before is None or now is None or now >= before or not _is_new(restart, checkpoint, started_at):
        return ""
    return f"it has begun anew: its new checkpoint is of step {now}, and it had one of step {before}"


def _is_new(restart: Restart, checkpoint: Checkpoint, started_at: datetime) -> bool:
    """Whether it was committed after the start. By a job's own clock that runs ahead the old one was, too."""
    since = started_at if restart.checkpoint_at is None else max(started_at, restart.checkpoint_at)
    return checkpoint.at is not None and checkpoint.at > since


def _overdue(restart: Restart, policy: RestartPolicy, now: datetime) -> Restart:
    """The end of a restart that does not come further. What was reached stays reached.

    A start may have had to wait, so the time counts from when the job was first seen to be let run.
    """
    limits = (policy.ready_within, policy.running_within, policy.progress_within, policy.progress_within)
    limit_s = limits[min(max(restart.level, 0), len(limits) - 1)]
    if now - restart.at <= timedelta(seconds=limit_s):
        return restart
    if restart.level >= COMPUTING:
        return _end(restart, Stage.DONE, f"{LEVELS[restart.level]}; no new checkpoint within {limit_s:.0f} s", now)
    missing = LEVELS[restart.level + 1]
    said = f"not {missing} within {limit_s:.0f} s; it has come to L{restart.level} ({LEVELS[restart.level]})"
    return _end(restart, Stage.FAILED, said, now)


def _end(restart: Restart, stage: Stage, why: str, now: datetime) -> Restart:
    return replace(restart, stage=stage, at=now, detail=why)


def _span(passed: timedelta) -> str:
    return f"{passed.total_seconds():.0f} s"
