"""What a job says about its checkpoints, by annotations on its root object: how fresh, where, and how to ask for one.

Pure. No such contract is standard, so this one is ours; docs/workloads.md says how a job takes part. Freshness is the
time of the last commit on storage that survives the pod and its node. What is not said is unknown, and never fresh.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from remediation.objects import PREFIX, PodView, WorkloadView
from rules.base import parse_duration

#: The last commit: when (RFC 3339), at which step, and where it lies.
CHECKPOINT_AT = PREFIX + "checkpoint-at"
CHECKPOINT_STEP = PREFIX + "checkpoint-step"
CHECKPOINT_LOCATION = PREFIX + "checkpoint-location"
#: Instead of CHECKPOINT_AT: a PromQL expression whose value is the time of the last commit in unix seconds.
CHECKPOINT_METRIC = PREFIX + "checkpoint-metric"
#: How often the job saves by itself, such as "30m".
INTERVAL = PREFIX + "checkpoint-interval"
#: How the job can be asked for a checkpoint: one of `Way`, or a URL in its own namespace that takes a POST.
ASK_BY = PREFIX + "checkpoint-ask"
#: How long writing one may take, such as "5m".
ASK_DEADLINE = PREFIX + "checkpoint-deadline"
#: What we write to ask, and what the job writes once the checkpoint with this id is there.
REQUEST = PREFIX + "checkpoint-request"
ACK = PREFIX + "checkpoint-ack"

#: Clocks of pods and of this process differ by so much at most; a commit from further ahead is no time at all.
_SKEW = timedelta(minutes=2)
#: Places that end with the pod or with its node.
_FLEETING = ("emptydir", "hostpath", "local", "tmpfs", "memory")
_VOLUME = "volume:"
#: Paths in a container: on which volume they lie, if on any, they don't say.
_PATHS = ("/", ".", "~", "file:")
#: A Service of a namespace with its port and path: no user, and nothing that two readers take apart in two ways.
_OWN_URL = (
    r"https?://[a-z0-9]([-a-z0-9]*[a-z0-9])?\.{}\.svc(\.cluster\.local)?(:[0-9]{{1,5}})?(/[-A-Za-z0-9._~/?=&%]*)?"
)
#: Digits of a step that still fits the ledger's numbers.
_MOST_DIGITS = 18
#: A year between two checkpoints is a mistake.
_LONGEST_INTERVAL_S = 365 * 86_400.0
#: Of an annotation, which may have 256 KB, people are shown so many letters.
_SHOWN = 120


class Way(StrEnum):
    """How a job is asked: by the annotation REQUEST, or by SIGTERM to all of its pods, as a stop sends it anyway."""

    ANNOTATION = "annotation"
    SIGTERM = "sigterm"


class Freshness(StrEnum):
    """What is known of the last checkpoint. LOST lies where it does not survive the pod or the node."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last checkpoint of a job. `at` and `step` are None where the job does not say; `why` is for people."""

    freshness: Freshness
    at: datetime | None
    step: int | None
    why: str

    @property
    def is_known(self) -> bool:
        """Whether a restart would go on from it."""
        return self.freshness is Freshness.KNOWN


def checkpoint_of(
    job: WorkloadView, pods: Collection[PodView], now: datetime, measured: datetime | None = None
) -> Checkpoint:
    """The last checkpoint of a job whose pods these are. `measured` is what its metric says, where it names one.

    What a volume is only pods say: without any, a checkpoint on one is not known.
    """
    step = _step(job.annotation(CHECKPOINT_STEP))
    at, wrong = _commit(job, measured, now)
    if at is None:
        return Checkpoint(Freshness.UNKNOWN, None, step, wrong)
    location = job.annotation(CHECKPOINT_LOCATION).strip()
    unclear = _unclear(location, pods)
    if unclear:
        return Checkpoint(Freshness.UNKNOWN, at, step, unclear)
    fleeting = _fleeting(location, pods)
    if fleeting:
        return Checkpoint(Freshness.LOST, at, step, f"its checkpoint lies on {fleeting}, which ends with it")
    said = f"checkpoint{'' if step is None else f' of step {step}'} from {at:%Y-%m-%d %H:%M:%S} UTC"
    return Checkpoint(Freshness.KNOWN, at, step, f"{said} at {_short(location)}")


def _commit(job: WorkloadView, measured: datetime | None, now: datetime) -> tuple[datetime | None, str]:
    """When the last commit was; None where that is not known, and why."""
    told, wrong = _told(job.annotation(CHECKPOINT_AT))
    at = max((one for one in (told, measured) if one is not None), default=None)
    if wrong or at is None:
        return None, wrong or f"it says nothing of checkpoints ({CHECKPOINT_AT})"
    if at > now + _SKEW:
        return None, f"its checkpoint is from the future: {at:%Y-%m-%d %H:%M} UTC"
    return at, ""


def _told(told: str) -> tuple[datetime | None, str]:
    """The time that an annotation says, None where it says none, and what is wrong with it."""
    if not told:
        return None, ""
    try:
        at = datetime.fromisoformat(told)
        if at.tzinfo is None:
            return None, f"its annotation {CHECKPOINT_AT} has no time zone: {_short(told)}"
        at = at.astimezone(UTC)
    except (ValueError, OverflowError):  # the second: a zone that leads out of the years 1 to 9999
        return None, f"its annotation {CHECKPOINT_AT} is no time: {_short(told)}"
    return at, ""


def _step(told: str) -> int | None:
    return int(told) if told.isascii() and told.isdecimal() and len(told) <= _MOST_DIGITS else None


def _unclear(location: str, pods: Collection[PodView]) -> str:
    """Why nobody can tell whether the place outlives the pod and the node; "" where one can."""
    if not location:
        return f"it says not where its checkpoint lies ({CHECKPOINT_LOCATION})"
    place = location.lower()
    if place.startswith(_PATHS):
        return f"its checkpoint lies at {_short(location)}, and no path says on which storage: {_VOLUME}NAME/PATH does"
    if place.startswith(_VOLUME) and not pods:
        return f"its checkpoint lies on {_short(location)}, and no pod of it is there to say what that is"
    if place.startswith(_VOLUME) and any(_volume_of(location) in pod.host_dirs for pod in pods):
        return (
            f"its checkpoint lies on {_short(location)}, a folder of the node: name the file system if nodes share it"
        )
    return ""


def _fleeting(location: str, pods: Collection[PodView]) -> str:
    """The place, where it does not outlive the pod or the node; "" where it does."""
    if re.split("[:/]", location.lower(), maxsplit=1)[0] in _FLEETING:
        return _short(location)
    if not location.lower().startswith(_VOLUME):
        return ""
    volume = _volume_of(location)
    of_pod = any(volume in (*pod.empty_dirs, *pod.memory_dirs) for pod in pods)
    return f"emptyDir {volume}" if of_pod else ""


def _volume_of(location: str) -> str:
    return location[len(_VOLUME) :].partition("/")[0].strip()


def _short(told: str) -> str:
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}..."


def interval_of(job: WorkloadView) -> tuple[float | None, str]:
    """Seconds between two checkpoints that the job writes by itself, None where it does not say; and what is wrong."""
    told = job.annotation(INTERVAL)
    if not told:
        return None, ""
    try:
        every_s = parse_duration(told)
    except ValueError as error:
        return None, f"its annotation {INTERVAL} is no time: {_short(str(error))}"
    if not 0 < every_s < _LONGEST_INTERVAL_S:
        return None, f"its annotation {INTERVAL} is no interval: {_short(told)}"
    return every_s, ""


@dataclass(frozen=True, slots=True)
class Asking:
    """How a job is asked for a checkpoint, and how long its answer is waited for. `url` is set for an HTTP request."""

    way: Way | None
    deadline_s: float
    url: str = ""
    wrong: str = ""

    @property
    def possible(self) -> bool:
        """Whether it can be asked before it is stopped."""
        return self.way is Way.ANNOTATION or bool(self.url)


def asking_of(job: WorkloadView, longest_s: float) -> Asking:
    """How this job is asked; a deadline of its own may only be shorter than `longest_s`."""
    how, deadline_s, wrong = job.annotation(ASK_BY).strip(), longest_s, ""
    told = job.annotation(ASK_DEADLINE)
    if told:
        try:
            deadline_s = min(parse_duration(told), longest_s)
        except ValueError as error:
            wrong = f"its annotation {ASK_DEADLINE} is no time: {error}"
    if how in tuple(Way):
        return Asking(Way(how), deadline_s, wrong=wrong)
    if how.startswith(("http://", "https://")):
        if _is_own(how, job.namespace):
            return Asking(None, deadline_s, how, wrong)
        refused = f"{ASK_BY} names {_short(how)}, which is no Service of its own namespace (NAME.{job.namespace}.svc)"
        return Asking(None, deadline_s, wrong=refused)
    if how:
        wrong = f"{ASK_BY} is {_short(how)}, which is neither a URL nor one of {', '.join(Way)}"
    return Asking(None, deadline_s, wrong=wrong)


def _is_own(url: str, namespace: str) -> bool:
    """Whether a URL leads to a Service of this namespace: nobody may have us call whom they like."""
    return re.fullmatch(_OWN_URL.format(re.escape(namespace)), url) is not None


def has_answered(job: WorkloadView, request: str, asked_at: datetime, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint that was asked for is there: acknowledged by its id, or committed since it was asked.

    One that ends with its pod or node is no answer, and neither is one of which nobody knows where it lies.
    """
    if job.annotation(ACK) == request:
        return checkpoint.freshness is not Freshness.LOST
    return checkpoint.is_known and checkpoint.at is not None and checkpoint.at > asked_at
