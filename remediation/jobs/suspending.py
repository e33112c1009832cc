"""Jobs that their own controller stops and starts: `suspend`, true and then false again.

A suspension ends all pods with their own grace, and counts for no restart of the job (docs/workloads.md has each
kind's source). Who suspended it is said in the same patch: a job that somebody else has stopped stays stopped.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from remediation.jobs.adapter import RESTART, RESTARTED, Change, asks, same_kind
from remediation.objects import WorkloadView


@dataclass(frozen=True, slots=True)
class Suspending:
    """A kind with a field for it. `selector` may use `{name}` and `{uid}` of the job.

    `title` is what people call it, where its kind alone would be another one's name.
    """

    api_version: str
    kind: str
    selector: str
    field: tuple[str, ...] = ("spec", "suspend")
    title: str = ""

    def find(self, job: WorkloadView) -> bool:
        """Whether this job is of this kind."""
        return same_kind(job, self.api_version, self.kind)

    def describe(self, job: WorkloadView) -> str:
        """The job, and how it is restarted."""
        return f"{self.name_of(job)}, restarted as a whole by {'.'.join(self.field)}"

    def name_of(self, job: WorkloadView) -> str:
        """The job, for people."""
        return f"{self.title or self.kind} {job.namespace}/{job.name}"

    def can_restart(self, job: WorkloadView) -> str:
        """Why not: it belongs to another controller, it has ended, or somebody else has stopped it."""
        name = self.name_of(job)
        if job.queue:
            return f"{name} is in Kueue's queue {job.queue}, which owns its suspension; the taint is the hand-off"
        if job.managed_by:
            return f"{name} is managed by {job.managed_by}"
        if job.finished:
            return f"{name} has ended"
        if job.suspended and not job.annotation(RESTART):
            return f"{name} has been suspended by somebody else"
        return ""

    def request_checkpoint(self, job: WorkloadView, request: str) -> Change:
        """An annotation of the job."""
        del job
        return asks(request)

    def stop(self, job: WorkloadView, restart: str) -> Change | None:
        """Suspend it, in our name."""
        del job
        return Change(_nested(self.field, value=True) | {"metadata": {"annotations": {RESTART: restart}}})

    def restart(self, job: WorkloadView, restart: str) -> Change:
        """Let it run, and say that this restart has been done."""
        del job
        marks = {RESTART: None, RESTARTED: restart}
        return Change(_nested(self.field, value=False) | {"metadata": {"annotations": marks}})

    def stopped(self, job: WorkloadView) -> bool:
        """It is suspended, and its controller counts no pod any more."""
        return job.suspended and job.active == 0

    def resumed(self, job: WorkloadView, since: datetime) -> bool:
        """It is not suspended, and runs since then."""
        return not job.suspended and job.running_since is not None and job.running_since >= since.replace(microsecond=0)

    def pods(self, job: WorkloadView) -> str:
        """By the labels that its controller gives them."""
        return self.selector.format(name=job.name, uid=job.uid)


def _nested(field: tuple[str, ...], *, value: bool) -> dict[str, Any]:
    nested: Any = value
    for name in reversed(field):
        nested = {name: nested}
    made: dict[str, Any] = nested
    return made
