"""Workloads whose controller brings every pod back by itself: they are moved by evictions, and never stopped whole."""

from dataclasses import dataclass
from datetime import datetime

from remediation.jobs.adapter import Change, asks, same_kind
from remediation.objects import WorkloadView


@dataclass(frozen=True, slots=True)
class Evicting:
    """A kind that needs nothing more than an eviction; `how` says what its controller does about one."""

    api_version: str
    kind: str
    how: str

    def find(self, job: WorkloadView) -> bool:
        """Whether this job is of this kind."""
        return same_kind(job, self.api_version, self.kind)

    def describe(self, job: WorkloadView) -> str:
        """The workload, and what an eviction does to it."""
        return f"{self.kind} {job.namespace}/{job.name}: {self.how}"

    def can_restart(self, job: WorkloadView) -> str:
        """It is not stopped as a whole."""
        return f"{self.kind} {job.namespace}/{job.name} is moved by eviction: {self.how}"

    def request_checkpoint(self, job: WorkloadView, request: str) -> Change:
        """An annotation of the workload."""
        del job
        return asks(request)

    def stop(self, job: WorkloadView, restart: str) -> Change | None:
        """Nothing: see `can_restart`."""
        del job, restart
        return None

    def restart(self, job: WorkloadView, restart: str) -> Change:
        """Never asked for; see `can_restart`."""
        raise NotImplementedError(f"{self.kind} {job.namespace}/{job.name} is not restarted as a whole: {restart}")

    def stopped(self, job: WorkloadView) -> bool:
        """It is never stopped as a whole."""
        del job
        return False

    def resumed(self, job: WorkloadView, since: datetime) -> bool:
        """Its pods tell; nothing of it is stopped."""
        del job, since
        return True

    def pods(self, job: WorkloadView) -> str:
        """None are looked for."""
        del job
        return ""
