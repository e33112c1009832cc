"""A Job of Volcano (batch.volcano.sh/v1alpha1): a Command object says what its controller shall do, at most once.

The controller deletes the Command first and then acts, and finds the job by its name alone; so the mark that says
that a restart was ordered goes onto the job before, and the UID is compared right before each request. The pair is
AbortJob and ResumeJob: between them all pods are gone, where RestartJob may start new ones beside old ones.
"""

from dataclasses import dataclass

from remediation.jobs.adapter import Change
from remediation.jobs.suspending import Suspending
from remediation.objects import WorkloadView

_COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands"


@dataclass(frozen=True, slots=True)
class _VolcanoJob(Suspending):
    """As others that are suspended, but by orders to its controller."""

    def describe(self, job: WorkloadView) -> str:
        """The job, and how it is restarted."""
        return f"{self.name_of(job)}, restarted as a whole by the Commands AbortJob and ResumeJob"

    def can_restart(self, job: WorkloadView) -> str:
        """As for others, and not where one more retry would end it for good."""
        limit = job.restarts_allowed
        said = Suspending.can_restart(self, job)
        if said or limit is None or job.restarts_used + 1 <= limit:
            return said
        return f"{self.name_of(job)} would end for good: it has used {job.restarts_used} of {limit} restarts"

    def stop(self, job: WorkloadView, restart: str) -> Change | None:
        """Order it to abort."""
        return _command(job, "AbortJob", restart)

    def restart(self, job: WorkloadView, restart: str) -> Change:
        """Order it to go on."""
        return _command(job, "ResumeJob", restart)


def _command(job: WorkloadView, action: str, restart: str) -> Change:
    """A Command whose name says which restart it is for: a second one of that name is refused."""
    body = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": f"{restart}-{action.lower()}", "namespace": job.namespace},
        "action": action,
        "target": {
            "apiVersion": job.api_version,
            "kind": job.kind,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
        },
        "reason": "GpuwardenRestart",
        "message": f"restart {restart}",
    }
    return Change(body, creates=_COMMANDS.format(job.namespace))


ADAPTER = _VolcanoJob("batch.volcano.sh/v1alpha1", "Job", "volcano.sh/job-name={name}", title="Volcano Job")
