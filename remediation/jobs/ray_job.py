"""A RayJob (ray.io/v1, rayjob_controller.go): `suspend` deletes its cluster; a start makes a new one with a new job id.

KubeRay heeds `suspend` only while the job is initialising or running, and takes a spec with it for an error where the
cluster is not the job's own to shut down (utils/validation.go).
"""

from dataclasses import dataclass

from remediation.jobs.suspending import Suspending
from remediation.objects import WorkloadView


@dataclass(frozen=True, slots=True)
class _RayJob(Suspending):
    """As others that are suspended, but by the name of the cluster that it has now."""

    def can_restart(self, job: WorkloadView) -> str:
        """As for others, and not where KubeRay would refuse to suspend it."""
        said = Suspending.can_restart(self, job)
        if said or job.suspended or job.child:
            return said
        why = "has no cluster that KubeRay shuts down for it (clusterSelector, or no shutdownAfterJobFinishes)"
        return f"{self.name_of(job)} {why}"

    def pods(self, job: WorkloadView) -> str:
        """By the cluster that runs it; none is looked for where that is not known."""
        return f"ray.io/cluster={job.child}" if job.child else ""


ADAPTER = _RayJob("ray.io/v1", "RayJob", "")
