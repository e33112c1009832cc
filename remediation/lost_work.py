"""What a restart of a job loses, in GPU-hours of its whole gang: now against waiting for a checkpoint, and afterwards.

Pure. `gpuwarden plan` weighs the jobs of a node (`weigh`), `gpuwarden explain` adds up the restarts of an incident
(`lost_in`). What nobody knows is None and never 0; a bound is called one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

from remediation.contract import (
    CHECKPOINT_METRIC,
    INTERVAL,
    Asking,
    Checkpoint,
    Freshness,
    Way,
    checkpoint_of,
    interval_of,
)
from remediation.gangs import Gang, Standing
from remediation.objects import OwnerRef, WorkloadView
from remediation.restoring import COMPUTING, Restart, Stage
from rules.restore_schema import RestartPolicy


class Cheaper(StrEnum):
    """Which of the two loses less."""

    NOW = "now"
    WAIT = "wait"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """What the next checkpoint comes by."""

    INTERVAL = "interval"
    REQUEST = "request"
    NONE = ""


# ------------------------------------------------------------------------------------------------- how long it takes


@dataclass(frozen=True, slots=True)
class Resume:
    """Seconds from a job's stop until it computes again: the median of `restarts`, assumed where that is 0."""

    seconds: float
    restarts: int

    def __str__(self) -> str:
        if self.restarts:
            several = "one restart" if self.restarts == 1 else f"{self.restarts} restarts"
            return f"{self.seconds:.0f} s, the median of {several} that ended well"
        return f"{self.seconds:.0f} s, assumed (restart.typical_resume): no restart has ended well yet"


def resume_of(restarts: Iterable[Restart], policy: RestartPolicy) -> Resume:
    """How long it takes, by the restarts that came back to computing, or by policy."""
    took = [
        max(0.0, (one.back_at - one.stopped_at).total_seconds())
        for one in restarts
        if one.stage is Stage.DONE and one.level >= COMPUTING and one.stopped_at is not None and one.back_at is not None
    ]
    return Resume(median(took), len(took)) if took else Resume(policy.typical_resume, 0)


# ------------------------------------------------------------------------------------------------------ now, or later


@dataclass(frozen=True, slots=True)
class Choice:
    """What it costs to restart one job now, and what after its next checkpoint, in GPU-hours of its whole gang.

    `lost_s` are the seconds of work that a restart now throws away, None where the last checkpoint is not known, or the
    stop itself may bring one;
    `lost_at_most_s` bounds them by the start of its pods, None where no pod says when that was. The GPU-hours of now
    (known, and at most) hold them and the time to resume. `next_in_s` is how soon the next checkpoint is there at the
    latest, by `source`; it and what waiting costs are None where that is not known, or none will come.
    `wait_at_worst_gpu_hours` is lost where the job fails just before that checkpoint; waiting pays where that is less
    likely than `wait_pays_below` (0 to 1).
    """

    job: str
    pods: int
    gpus: int
    standing: Standing
    checkpoint: Freshness
    lost_s: float | None
    lost_at_most_s: float | None
    now_gpu_hours: float | None
    now_at_most_gpu_hours: float | None
    next_in_s: float | None
    source: Source
    wait_gpu_hours: float | None
    wait_at_worst_gpu_hours: float | None
    wait_pays_below: float | None
    cheaper: Cheaper
    why: str


@dataclass(frozen=True, slots=True)
class _Next:
    """When the next checkpoint comes; `why` says why nobody knows, or how it was worked out."""

    in_s: float | None
    source: Source
    why: str


def weigh(
    gang: Gang,
    standing: Standing,
    resume: Resume,
    now: datetime,
    *,
    asking: Asking | None = None,
    measured: datetime | None = None,
) -> Choice:
    """The choice for one job. `asking` is how it is asked for a checkpoint, None where nobody asks it.

    `measured` is what the metric says that it names for its last checkpoint, None where that was not asked.
    """
    last, doubt = _last(gang, now, measured)
    at_most_s = _passed(_later(last.at if last.is_known else None, gang.started), now)
    saves = _saves_when_stopped(standing, last, asking)
    lost_s = None if doubt or saves else at_most_s
    coming = _next(gang.root, standing, last, asking, at_most_s, doubt)
    wait_s, worst_s, pays = None, None, None
    if coming.in_s is not None:
        wait_s, worst_s = resume.seconds, _sum(at_most_s, coming.in_s, resume.seconds)
        if lost_s is not None and lost_s + coming.in_s > 0:
            pays = lost_s / (lost_s + coming.in_s)
    cheaper, why = (
        (
            Cheaper.UNKNOWN,
            "it says that it saves when it is stopped: then a stop now loses no work, and waiting keeps none",
        )
        if saves
        else _cheaper(gang.gpus, standing, coming, lost_s, doubt, pays)
    )
    return Choice(
        job=gang.name, pods=len(gang.pods), gpus=gang.gpus, standing=standing, checkpoint=last.freshness,
        lost_s=lost_s, lost_at_most_s=at_most_s,
        now_gpu_hours=_gpu_hours(gang.gpus, _sum(lost_s, resume.seconds)),
        now_at_most_gpu_hours=_gpu_hours(gang.gpus, _sum(at_most_s, resume.seconds)),
        next_in_s=coming.in_s, source=coming.source,
        wait_gpu_hours=_gpu_hours(gang.gpus, wait_s), wait_at_worst_gpu_hours=_gpu_hours(gang.gpus, worst_s),
        wait_pays_below=pays, cheaper=cheaper, why=why,
    )  # fmt: skip


def _last(gang: Gang, now: datetime, measured: datetime | None) -> tuple[Checkpoint, str]:
    """The last checkpoint, and why its age is not known for sure, "" where it is."""
    root = gang.root
    if not isinstance(root, WorkloadView):
        what = "nothing controls it" if root is None else f"its {root.kind} is not read, so more pods may belong to it"
        why = f"{what}, and nothing says when it saved"
        return Checkpoint(Freshness.UNKNOWN, None, None, why), why
    last = checkpoint_of(root, gang.pods, now, measured)
    if measured is None and root.annotation(CHECKPOINT_METRIC):
        return last, f"its {CHECKPOINT_METRIC} is not asked here"
    return last, "" if last.is_known else last.why


def _saves_when_stopped(standing: Standing, last: Checkpoint, asking: Asking | None) -> bool:
    """Whether the stop itself may bring a checkpoint, so that less is lost than has passed since the last one."""
    asked = asking is not None and asking.way is Way.SIGTERM
    return asked and standing is Standing.RUNS and last.freshness is not Freshness.LOST


def _next(
    root: OwnerRef | WorkloadView | None, standing: Standing, last: Checkpoint, asking: Asking | None,
    since_s: float | None, doubt: str,
) -> _Next:  # fmt: skip
    """The next checkpoint that outlives the pods, whichever way brings it sooner."""
    if standing is not Standing.RUNS:
        return _Next(None, Source.NONE, "")
    if last.freshness is Freshness.LOST:
        return _Next(None, Source.NONE, f"{last.why}, and so would the next one")
    by_itself = _by_itself(root, last, since_s, doubt)
    asked = asking is not None and asking.possible
    if asking is None or not asked or (by_itself.in_s is not None and by_itself.in_s <= asking.deadline_s):
        return by_itself
    return _Next(asking.deadline_s, Source.REQUEST, "a checkpoint that it is asked for")


def _by_itself(
    root: OwnerRef | WorkloadView | None, last: Checkpoint, since_s: float | None, doubt: str
) -> _Next:  # fmt: skip
    """The next one by the job's own interval."""
    every_s, wrong = interval_of(root) if isinstance(root, WorkloadView) else (None, "")
    if wrong:
        return _Next(None, Source.NONE, wrong)
    if not last.is_known or since_s is None:
        return _Next(None, Source.NONE, f"{doubt}, so nobody could tell when the next one is there")
    if every_s is None:
        return _Next(None, Source.NONE, f"it does not say how often it saves ({INTERVAL}), and nobody asks it")
    if doubt:
        return _Next(every_s, Source.INTERVAL, "its own next checkpoint")
    if since_s > 2 * every_s:
        return _Next(None, Source.NONE, f"it saves every {span(every_s)}, and has not for {span(since_s)}")
    late = f", {span(since_s - every_s)} late," if since_s > every_s else ""
    return _Next(max(0.0, every_s - since_s), Source.INTERVAL, f"its own next checkpoint{late}")


def _cheaper(
    gpus: int, standing: Standing, coming: _Next, lost_s: float | None, doubt: str, pays: float | None
) -> tuple[Cheaper, str]:
    """Which loses less, and why, for people."""
    idle = f"no checkpoint will come, and each hour of waiting leaves {gpus} GPUs idle"
    if standing is Standing.STOPPED:
        return Cheaper.NOW, f"a GPU of it has failed: {idle}"
    if standing is Standing.UNKNOWN:
        said = "a GPU of its node has failed, and whether it is one of its own is not known here"
        return Cheaper.UNKNOWN, f"{said}: if so, {idle}"
    if coming.in_s is None:
        return Cheaper.UNKNOWN, coming.why
    if lost_s is None:
        return Cheaper.WAIT, f"{coming.why} keeps what it has done since the last one; how much is not known: {doubt}"
    if lost_s <= 0:
        return Cheaper.NOW, "its last checkpoint is from this moment, so waiting keeps nothing"
    risk = f" unless it fails before that with a chance above {100 * pays:.0f} %" if pays and coming.in_s else ""
    return Cheaper.WAIT, f"{coming.why} keeps {gpus * lost_s / 3600:.1f} GPU-hours{risk}"


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((at for at in (one, other) if at is not None), default=None)


def _passed(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def _gpu_hours(gpus: int, seconds: float | None) -> float | None:
    return None if seconds is None else gpus * seconds / 3600


def span(seconds: float) -> str:
    """A time for people, by its size: "45 s", "12 min", "3.5 h".

    >>> span(45), span(720), span(12600)
    ('45 s', '12 min', '3.5 h')
    """
    passed = timedelta(seconds=seconds)
    if passed < timedelta(minutes=2):
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if passed < timedelta(hours=2) else f"{seconds / 3600:.1f} h"


# --------------------------------------------------------------------------------------------------------- afterwards


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a restart: how long it took, and what of it was lost. None where that is not known."""

    seconds: float | None
    gpu_hours: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """What one restart has lost, from the job's last checkpoint until it was back; the parts follow each other.

    `since_checkpoint` ends with the first signal of the fault, `detection` with the opening of the incident,
    `until_stopped` (gates, people, a checkpoint that was asked for) with the stop, `restart` with the job's return.
    Of each part only what came after the checkpoint is lost. `gpu_hours` is all of it, None where the checkpoint is not
    known or the job did not come back to work.
    """

    incident: str
    job: str
    gpus: int
    since_checkpoint: Part
    detection: Part
    until_stopped: Part
    restart: Part
    gpu_hours: float | None

    @property
    def parts(self) -> tuple[tuple[str, Part], ...]:
        """The parts in their order, with their names for people."""
        return (
            ("since its checkpoint", self.since_checkpoint),
            ("detection", self.detection),
            ("until stopped", self.until_stopped),
            ("restart", self.restart),
        )

    @property
    def at_least_gpu_hours(self) -> float:
        """The sum of what is known of it."""
        if self.gpu_hours is not None:
            return self.gpu_hours
        return math.fsum(part.gpu_hours for _, part in self.parts if part.gpu_hours is not None)


@dataclass(frozen=True, slots=True)
class IncidentLoss:
    """What the restarts for one incident have lost together. `gpu_hours` is None where that of one is not known."""

    incident: str
    restarts: int
    gpus: int
    gpu_hours: float | None
    at_least_gpu_hours: float


def lost_in(restart: Restart, opened: datetime | None) -> Lost | None:
    """What a restart has lost so far; None where the job was not stopped. `opened` is when its incident opened."""
    stopped = restart.stopped_at
    if stopped is None or not restart.moves:
        return None
    saved, back = restart.checkpoint_at, restart.back_at if restart.stage is Stage.DONE else None
    fault = min(restart.detected_at, stopped)
    opened = None if opened is None else min(max(opened, fault), stopped)

    def part(begin: datetime | None, end: datetime | None, *, sure: bool = False) -> Part:
        if begin is None or end is None:
            return Part(None, None)
        kept_until = begin if saved is None else max(begin, saved)
        lost = _gpu_hours(restart.gpus, _passed(kept_until, end)) if sure or saved is not None else None
        return Part(_passed(begin, end), lost)

    return Lost(
        incident=restart.incident, job=str(restart.job), gpus=restart.gpus,
        since_checkpoint=part(saved, fault), detection=part(fault, opened), until_stopped=part(opened, stopped),
        restart=part(stopped, back, sure=True), gpu_hours=restart.lost_gpu_hours if back is not None else None,
    )  # fmt: skip


def by_incident(several: Iterable[Lost]) -> tuple[IncidentLoss, ...]:
    """The losses of each incident together, in the order in which the incidents come."""
    groups: dict[str, list[Lost]] = {}
    for one in several:
        groups.setdefault(one.incident, []).append(one)
    return tuple(
        IncidentLoss(
            name, len(group), sum(one.gpus for one in group), _sum(*(one.gpu_hours for one in group)),
            math.fsum(one.at_least_gpu_hours for one in group),
        )
        for name, group in groups.items()
    )  # fmt: skip
