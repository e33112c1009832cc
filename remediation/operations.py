"""Work on a node itself (diagnosis, reset, reboot), as a Job that runs once there: when, how often, what it showed.

Pure. An `Operation` is what the ledger keeps of one; `judge` says from what is seen now how it has come out, and
`remediation.cluster.operating` creates and reads the Jobs. Nothing is created twice: a Job's name is made of what it is
for and of the number of the try. A reboot counts by the node's boot id, whatever its Job says.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from detectors.findings import Incident
from remediation.drain import Fate, fates
from remediation.modes import Modes
from remediation.objects import INCIDENT, PREFIX, NodeView, PodView
from remediation.people import Said
from remediation.wish import carried_out
from rules.operation_schema import OperationPolicy, OperationsPolicy
from rules.schema import DrainPolicy, LimitPolicy
from rules.vocabulary import OPERATIONS, Action

if TYPE_CHECKING:  # decide itself asks what earlier operations showed
    from remediation.decide import Decision

#: On a Job and its pod: which operation it is.
LABEL = PREFIX + "operation"
#: Beyond its own deadline: a Job's controller and the node's clock take their time.
_LATE = timedelta(seconds=60)


class Result(StrEnum):
    """What an operation showed. UNKNOWN says nothing of the hardware: it did not start, was killed, or took long."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An operation that may be done now. `gpus` are UUIDs. Tries that began before `since` were for something else."""

    node: str
    incident: str
    action: Action
    gpus: tuple[str, ...] = ()
    since: datetime | None = None
    #: whether the node's drain has to be seen to its end before
    after_drain: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One try at one operation. `id` is the Job's name; `result` None: it is under way.

    `boot_id` is the node's when it began, `created` whether the API server has taken the Job. `message` is what the
    program left as its termination message, `detail` the verdict in words.
    """

    id: str
    node: str
    incident: str
    action: Action
    number: int
    gpus: tuple[str, ...]
    began_at: datetime
    at: datetime
    boot_id: str = ""
    created: bool = False
    result: Result | None = None
    exit_code: int | None = None
    message: str = ""
    detail: str = ""

    @property
    def is_open(self) -> bool:
        """Whether there is more to come."""
        return self.result is None


@dataclass(frozen=True, slots=True)
class Run:
    """What the API server shows of a Job: whether it has ended, its container's exit code and message, or why not."""

    ended: bool = False
    exit_code: int | None = None
    message: str = ""
    why: str = ""


def operation_id(incident: str, node: str, action: Action, number: int) -> str:
    """The name of a try, and of its Job: the same whoever works it out.

    >>> operation_id("inc-1", "n1", Action.DIAGNOSE, 1).startswith("gw-diagnose-")
    True
    """
    about = hashlib.sha256(f"{incident}/{node}/{action}".encode()).hexdigest()[:10]
    return f"gw-{action.value.replace('_', '-')}-{about}-{number}"


# ------------------------------------------------------------------------------------------------------------- wanting


def wanted(
    decisions: Sequence["Decision"],
    incidents: Sequence[Incident],
    modes: Modes,
    said: Said,
    ended: Mapping[str, datetime],
) -> tuple[Wanted, ...]:
    """The operations that gates, modes and approvals let be done now, in the order of their ladders.

    `ended` says when an incident ended whose node is to be given back.
    """
    by_id = {incident.id: incident for incident in incidents}
    found = []
    for decision in decisions:
        plan, about = decision.plan, by_id.get(decision.plan.incident)
        nodes = about.nodes if about is not None else (plan.node,)
        gpus = about.gpu_uuids if about is not None else ()
        drains = bool(plan.does((Action.DRAIN,)))
        since = ended.get(plan.incident) if plan.action is Action.RELEASE else None
        for action in carried_out(decision, modes, said):
            if action in OPERATIONS and action in modes.hands:
                of_plan = (plan.gpu,) if action is Action.RESET_GPU else gpus
                found += [Wanted(node, plan.incident, action, of_plan, since, drains) for node in nodes]
    return tuple(found)


def to_begin(
    wishes: Sequence[Wanted], known: Collection[Operation], policy: OperationsPolicy, limits: LimitPolicy, now: datetime
) -> tuple[tuple[Wanted, int], ...]:
    """Which of the wanted may begin, with the number of the try: one at a time on a node, and in the ladder's order."""
    busy = {one.node for one in known if one.is_open}
    found: list[tuple[Wanted, int]] = []
    held: set[tuple[str, str]] = set()  # incident and node whose earlier rung has not been passed
    for one in wishes:
        every = tries(known, one.incident, one.node, one.action)
        before = [each for each in every if one.since is None or each.began_at >= one.since]
        if before and before[-1].result is Result.PASSED:
            continue
        if (one.incident, one.node) in held:
            continue
        held.add((one.incident, one.node))
        if one.node in busy or stands(before, policy.of(one.action)):
            continue
        again_at = before[-1].at + timedelta(seconds=limits.attempt_backoff) if before else now
        if now >= again_at:
            found.append((one, len(every) + 1))
            busy.add(one.node)
    return tuple(found)


def tries(known: Iterable[Operation], incident: str, node: str, action: Action) -> list[Operation]:
    """The tries at one operation, the first one first."""
    same = (one for one in known if (one.incident, one.node, one.action) == (incident, node, action))
    return sorted(same, key=lambda one: one.number)


def stands(before: Sequence[Operation], policy: OperationPolicy) -> bool:
    """Whether no further try would be made: it showed something, or was tried often enough.

    A diagnosis that says that the hardware is bad is not asked again.
    """
    if not before or before[-1].is_open:
        return False
    conclusive = before[-1].result is Result.FAILED and before[-1].action is Action.DIAGNOSE
    return conclusive or len(before) >= policy.max_attempts


def hindered(one: Wanted, node: NodeView, pods: Iterable[PodView], drain: DrainPolicy, now: datetime) -> str:
    """Why an operation cannot begin on a node that was just read, "" where it can.

    It runs only on a node that carries our mark and our taint. A diagnosis and a reset need GPUs that nobody uses, a
    reboot a node on which nothing runs that a drain would move.
    """
    if not (node.keeps_new_work_off and node.annotation(INCIDENT)):
        return f"{node.name} does not carry our taint and mark yet"
    if one.action is Action.REBOOT_NODE and not node.boot_id:
        return f"{node.name} does not tell its boot id, by which a reboot is known"
    if one.action is Action.RESET_GPU and not one.gpus[0]:
        return "it is not known which GPU to reset"
    told = fates(pods, node, drain, started=now, now=now)
    left = [each.pod for each in told if each.fate is not Fate.LEAVE]
    if one.action is not Action.REBOOT_NODE:
        left = [pod for pod in left if pod.gpus]
    if not left:
        return ""
    names = ", ".join(sorted(f"{pod.namespace}/{pod.name}" for pod in left)[:3])
    return f"{len(left)} pod{'s' * (len(left) > 1)} still on {node.name} ({names}); it waits until they have ended"


# ------------------------------------------------------------------------------------------------------------- judging


def begin(one: Wanted, number: int, node: NodeView, now: datetime) -> Operation:
    """A new try, before its Job is created."""
    name = operation_id(one.incident, one.node, one.action, number)
    return Operation(
        name, one.node, one.incident, one.action, number, one.gpus, began_at=now, at=now, boot_id=node.boot_id,
        detail="it begins",
    )  # fmt: skip


def judge(
    operation: Operation, run: Run | None, node: NodeView | None, policy: OperationPolicy, now: datetime
) -> Operation:
    """The operation as it stands now; the same where nothing has changed. `run` is None where its Job is not there."""
    if not operation.is_open:
        return operation
    if node is None:
        return _ended(operation, Result.UNKNOWN, "the node isn't there any more", now)
    shown = _of_boot if operation.action is Action.REBOOT_NODE else _of_job
    further = shown(operation, run, node, policy, now)
    if further is not None or now - operation.began_at <= timedelta(seconds=policy.timeout) + _LATE:
        return further or operation
    missing = "new boot id" if operation.action is Action.REBOOT_NODE else "end"
    why = f"; {run.why}" if run is not None and run.why else ""
    return _ended(operation, Result.UNKNOWN, f"no {missing} within {policy.timeout:.0f} s{why}", now)


def _of_boot(
    operation: Operation, run: Run | None, node: NodeView, policy: OperationPolicy, now: datetime
) -> Operation | None:
    """A reboot has gone well once the node is ready with another boot id; that its Job ended says nothing."""
    if node.boot_id and node.boot_id != operation.boot_id:
        return _ended(operation, Result.PASSED, "the node is back with a new boot id", now) if node.ready else None
    failed = run is not None and run.exit_code in policy.failed
    return _by_exit_code(operation, run, policy, now) if run is not None and failed else None


def _of_job(
    operation: Operation, run: Run | None, _: NodeView, policy: OperationPolicy, now: datetime
) -> Operation | None:
    """What its Job has come to, None while it goes on."""
    if run is None:
        gone = "its Job isn't there any more"
        return _ended(operation, Result.UNKNOWN, gone, now) if operation.created else None
    if run.exit_code is not None:
        return _by_exit_code(operation, run, policy, now)
    said = f"its Job ended without an exit code: {run.why or 'no reason'}"
    return _ended(operation, Result.UNKNOWN, said, now) if run.ended else None


def _by_exit_code(operation: Operation, run: Run, policy: OperationPolicy, now: datetime) -> Operation:
    code = run.exit_code
    result = Result.PASSED if code in policy.passed else Result.FAILED if code in policy.failed else Result.UNKNOWN
    said = f"exit code {code}{f': {run.message}' if run.message else ''}"
    meaning = "" if result is not Result.UNKNOWN else " (policy does not say what this exit code means)"
    return _ended(replace(operation, exit_code=code, message=run.message), result, f"{said}{meaning}", now)


def cancelled(operation: Operation, why: str, now: datetime) -> Operation:
    """The operation given up."""
    return _ended(operation, Result.UNKNOWN, f"cancelled: {why}", now)


def _ended(operation: Operation, result: Result, detail: str, now: datetime) -> Operation:
    return replace(operation, result=result, detail=detail, at=now)


# ------------------------------------------------------------------------------------------------------------- showing


def failed_diagnosis(incident: str, nodes: Collection[str], known: Iterable[Operation]) -> str:
    """What a diagnosis for this incident found on one of its nodes, "" where none has failed."""
    bad = (
        one
        for one in known
        if one.incident == incident
        and one.node in nodes
        and one.action is Action.DIAGNOSE
        and one.result is Result.FAILED
    )
    return next((f"the diagnosis of {one.node} failed ({one.detail})" for one in bad), "")


def passed_resets(known: Iterable[Operation], standing: Collection[str]) -> Mapping[str, Operation]:
    """The resets that went well for incidents that are open, by id: each ends what a reset ends."""
    return {
        one.id: one
        for one in known
        if one.action is Action.RESET_GPU and one.result is Result.PASSED and one.incident in standing
    }
