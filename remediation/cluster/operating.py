"""The hands for work on nodes themselves: creates the Jobs of diagnosis, reset and reboot, and reads what they showed.

Level-triggered like the rest. A try is written down before its Job is created, under a name that is made of the try, so
a process that takes over creates that same Job or finds it. Node and pods are read live before a Job is created.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import structlog

from remediation.cluster import announce
from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.hands import not_ours_to_touch
from remediation.cluster.marking import Tools, drains_done
from remediation.cluster.parse import BadObject, parse_pod
from remediation.cluster.parse_operation import parse_run
from remediation.limits import Attempt, Ending
from remediation.objects import INCIDENT, NodeView
from remediation.operation_job import job_of
from remediation.operations import Operation, Result, Run, Wanted, begin, cancelled, hindered, judge, to_begin
from remediation.orders import Orders
from remediation.record import RecordUnavailable
from rules.schema import Policy
from rules.vocabulary import Action

log = structlog.get_logger()

#: Between two looks at one Job.
_LOOK = timedelta(seconds=2)


class Operator:
    """Keeps the operations of all nodes going. One thread calls `turn`."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools = tools
        self._policy = policy
        self._look_at: dict[str, datetime] = {}
        #: what was said of an operation last, so that it is told once
        self._told: dict[str, str] = {}

    def turn(self, orders: Orders, nodes: Mapping[str, NodeView]) -> None:
        """Whatever can be done now. Raises nothing that the API server or the record may cause."""
        try:
            for operation in self._tools.record.operations().values():
                if operation.is_open:
                    with self._telling(operation.id):
                        self._go_on(operation, nodes)
            known, now = tuple(self._tools.record.operations().values()), self._tools.now()
            due = to_begin(orders.operations, known, self._policy.operations, self._policy.limits, now)
            for wanted, number in due:
                with self._telling(f"{wanted.action} on {wanted.node}"):
                    self._begin(wanted, number)
        except RecordUnavailable as error:
            log.warning("no operation goes on: it could not be written down", detail=str(error))

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """What the API server causes is told once, and tried again at the next turn."""
        try:
            yield
        except ClusterError as error:
            self._say_once(name, f"not done yet: {error}")
        except BadObject as error:
            self._say_once(name, f"what the API server shows can't be read: {error}")

    # ----------------------------------------------------------------------------------------------------- beginning

    def _begin(self, wanted: Wanted, number: int) -> None:
        node = self._tools.hands.look(wanted.node)
        why = self._not_yet(wanted, node) or self._hindered(wanted, node)
        name, now = f"{wanted.action} on {wanted.node}", self._tools.now()
        if why:
            self._say_once(name, f"{name} for {wanted.incident} waits: {why}")
            return
        if not self._tools.may_act():
            return
        operation = begin(wanted, number, node, now)
        self._tools.record.begin([_attempt(operation)])
        self._tools.record.note_operation(operation)
        announce.tell(self._tools.cluster, announce.operation(node, operation, now))
        self._create(operation, node)

    def _hindered(self, wanted: Wanted, node: NodeView) -> str:
        """What speaks against it on the live node, "" where nothing does. Raises ClusterError, BadObject."""
        pages = self._tools.cluster.list_pages("/api/v1/pods", field_selector=f"spec.nodeName={node.name}")
        pods = [parse_pod(raw, {}) for page in pages for raw in page.items]
        return not_ours_to_touch(node) or hindered(wanted, node, pods, self._policy.drain, self._tools.now())

    def _not_yet(self, wanted: Wanted, node: NodeView) -> str:
        """What has to come before it, "" where nothing has."""
        if wanted.since is not None and node.annotation(INCIDENT) != wanted.incident:
            return "the node is out for another incident"
        drained = (
            (one.incident, one.node) == (wanted.incident, wanted.node)
            for one in drains_done(self._tools.record.history())
        )
        return "the node is not drained yet" if wanted.after_drain and not any(drained) else ""

    def _create(self, operation: Operation, node: NodeView | None) -> None:
        """A Job of this name that is there already is this one. One that is refused is of unknown outcome."""
        path = _path(self._policy.operations.namespace)
        if not self._tools.may_act():
            return
        try:
            self._tools.cluster.create(path, job_of(operation, self._policy.operations))
        except ClusterError as error:
            if error.kind is Failure.INVALID:
                self._note(cancelled(operation, f"the API server refuses its Job: {error}", self._tools.now()), node)
                return
            raise
        self._note(replace(operation, created=True, at=self._tools.now(), detail="its Job is created"), node)

    # ----------------------------------------------------------------------------------------------------- going on

    def _go_on(self, operation: Operation, nodes: Mapping[str, NodeView]) -> None:
        now = self._tools.now()
        if now < self._look_at.get(operation.id, now):
            return
        self._look_at[operation.id] = now + _LOOK
        node = nodes.get(operation.node)
        run = self._run(operation)
        policy = self._policy.operations.of(operation.action)
        further = judge(operation, run, node, policy, now)
        if further == operation and node is not None and not node.annotation(INCIDENT):
            self._delete(operation)
            further = cancelled(operation, "the node was given back meanwhile", now)
        if further != operation:
            self._note(further, node)
        elif not operation.created and self._tools.may_act():
            self._take_over(operation, run)

    def _take_over(self, operation: Operation, run: Run | None) -> None:
        """One of which nobody has written whether its Job was created: it was, or still may be, or may not any more."""
        node = self._tools.hands.look(operation.node)
        again = Wanted(operation.node, operation.incident, operation.action, operation.gpus)
        why = self._hindered(again, node) if run is None else ""
        if why:
            self._note(cancelled(operation, why, self._tools.now()), node)
        else:
            self._create(operation, node)

    def _run(self, operation: Operation) -> Run | None:
        """What the API server shows at this moment; None where the Job is not there. Raises ClusterError, BadObject."""
        namespace = self._policy.operations.namespace
        try:
            job = self._tools.cluster.get(f"{_path(namespace)}/{operation.id}")
        except ClusterError as error:
            if error.kind is Failure.NOT_FOUND:
                return None
            raise
        pages = self._tools.cluster.list_pages(
            f"/api/v1/namespaces/{namespace}/pods", label_selector=f"batch.kubernetes.io/job-name={operation.id}"
        )
        return parse_run(job, [msgspec.json.decode(raw) for page in pages for raw in page.items])

    def _delete(self, operation: Operation) -> None:
        if self._tools.may_act():
            self._tools.cluster.delete(f"{_path(self._policy.operations.namespace)}/{operation.id}")

    def _note(self, operation: Operation, node: NodeView | None) -> None:
        if not self._tools.may_act():
            return
        self._tools.record.note_operation(operation)
        if operation.is_open:
            return
        self._look_at.pop(operation.id, None)
        ending = Ending.DONE if operation.result is Result.PASSED else Ending.FAILED
        if operation.action is Action.DIAGNOSE and operation.result is Result.FAILED:
            ending = Ending.DONE  # it has been made, and found something
        now = self._tools.now()
        self._tools.record.end([(_attempt(operation), ending, f"{operation.result}: {operation.detail}")], now)
        if node is not None:
            announce.tell(self._tools.cluster, announce.operation(node, operation, now))

    def _say_once(self, name: str, said: str) -> None:
        if self._told.get(name) != said:
            self._told[name] = said
            log.info("operation", what=name, detail=said)


def _attempt(operation: Operation) -> Attempt:
    return Attempt(operation.began_at, operation.incident, operation.node, operation.action, Ending.PENDING)


def _path(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
