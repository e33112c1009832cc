"""What one kind of job has to say so that it can be stopped and started again as a whole: the protocol of the adapters.

Pure: an adapter reads a `WorkloadView` and answers with values; `remediation.cluster.restoring` makes the requests.
Adding a kind takes a file with its adapter, a row in `remediation.jobs`, and a row in tests/jobs (docs/workloads.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from remediation.contract import REQUEST
from remediation.objects import PREFIX, WorkloadView

#: On the root of a job that is stopped by us: the id of the restart. It says whose the stop is.
RESTART = PREFIX + "restart"
#: On the root, once it was started again: the id of the last restart, so that it is never done twice.
RESTARTED = PREFIX + "restarted"

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One request: a merge patch of the job itself, or, where `creates` names a collection, a new object in it."""

    body: Body
    creates: str = ""


class Adapter(Protocol):
    """One kind of job."""

    @property
    def api_version(self) -> str:
        """The API version that is spoken to, as in `batch/v1`."""
        ...

    @property
    def kind(self) -> str:
        """The kind, as in `Job`."""
        ...

    def find(self, job: WorkloadView) -> bool:
        """Whether this job is of this kind."""
        ...

    def describe(self, job: WorkloadView) -> str:
        """The job, and how it is restarted, in a line for people."""
        ...

    def can_restart(self, job: WorkloadView) -> str:
        """Why it cannot be restarted as a whole by us; "" where it can."""
        ...

    def request_checkpoint(self, job: WorkloadView, request: str) -> Change:
        """How it is asked for a checkpoint by annotation."""
        ...

    def stop(self, job: WorkloadView, restart: str) -> Change | None:
        """What ends all of its pods, each with its own grace; None where stop and start are one request."""
        ...

    def restart(self, job: WorkloadView, restart: str) -> Change:
        """What starts it again once none of its pods is left."""
        ...

    def stopped(self, job: WorkloadView) -> bool:
        """Whether its controller says that nothing of it runs; that no pod is left is looked for besides."""
        ...

    def resumed(self, job: WorkloadView, since: datetime) -> bool:
        """Whether its controller says that it runs again, and has said so since then (L2 of the resume ladder)."""
        ...

    def pods(self, job: WorkloadView) -> str:
        """A label selector that all of its pods have, for a look at the API server itself; "" where there is none."""
        ...


class Named(Protocol):
    """What says where an object is kept."""

    @property
    def api_version(self) -> str:
        """As in `batch/v1`."""
        ...

    @property
    def kind(self) -> str:
        """As in `Job`."""
        ...

    @property
    def namespace(self) -> str:
        """Its namespace."""
        ...

    @property
    def name(self) -> str:
        """Its name."""
        ...


def path_of(job: Named) -> str:
    """Where the API server keeps a job."""
    kind = f"{job.kind.lower()}s"
    return f"/apis/{job.api_version}/namespaces/{job.namespace}/{kind}/{job.name}"


def same_kind(job: WorkloadView, api_version: str, kind: str) -> bool:
    """Whether a job is of this kind in this version."""
    return (job.api_version, job.kind) == (api_version, kind)


def asks(request: str) -> Change:
    """The request for a checkpoint, as an annotation of the root."""
    return Change({"metadata": {"annotations": {REQUEST: request}}})
