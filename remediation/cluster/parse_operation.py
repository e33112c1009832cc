"""What the API server shows of an operation's Job: by the Job and its pods, the exit code, the message, or why not."""

from collections.abc import Iterable
from typing import Any

import msgspec

from remediation.cluster.parse import BadObject
from remediation.operations import Run

_LONGEST = 2048


class _Terminated(msgspec.Struct, rename="camel"):
    exit_code: int
    message: str = ""
    reason: str = ""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _Container(msgspec.Struct):
    name: str = ""
    state: _State = msgspec.field(default_factory=_State)


class _Condition(msgspec.Struct):
    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_Condition] = []
    init_container_statuses: list[_Container] = []
    container_statuses: list[_Container] = []


class _Pod(msgspec.Struct):
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _JobStatus(msgspec.Struct):
    conditions: list[_Condition] = []


class _Job(msgspec.Struct):
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)


def parse_run(job: Any, pods: Iterable[Any]) -> Run:
    """The run of a Job whose pods these are; it has one pod, but a node that was lost may have left another.

    The exit code is that of the first container that did not end well, else 0 once all have ended. Raises BadObject.
    """
    try:
        conditions = msgspec.convert(job, _Job).status.conditions
        statuses = [msgspec.convert(pod, _Pod).status for pod in pods]
    except msgspec.ValidationError as error:
        raise BadObject(f"the operation's Job or pod is not what the API promises: {error}") from error
    over = [one for one in conditions if one.type in ("Complete", "Failed") and one.status == "True"]
    why = next((f"{one.reason}: {one.message}".strip(": ") for one in over if one.type == "Failed"), "")
    for status in statuses:
        ended = [one.state.terminated for one in (*status.init_container_statuses, *status.container_statuses)]
        bad = next((one for one in ended if one is not None and one.exit_code), None)
        done = bad or (ended[-1] if ended and all(one is not None for one in ended) else None)
        if done is not None and status.phase in ("Succeeded", "Failed"):
            message = " ".join((done.message or (done.reason if done.exit_code else "")).split())
            return Run(ended=True, exit_code=done.exit_code, message=message[:_LONGEST], why=why)
    return Run(ended=bool(over), why=why or _waits_for(statuses))


def _waits_for(statuses: Iterable[_PodStatus]) -> str:
    """What a pod that has not ended waits for, "" where it runs."""
    for status in statuses:
        for one in (*status.init_container_statuses, *status.container_statuses):
            if one.state.waiting is not None and one.state.waiting.reason:
                return f"{one.name} waits: {one.state.waiting.reason} {one.state.waiting.message}".strip()
        for condition in status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return f"not scheduled: {condition.message or condition.reason}"
    return ""
