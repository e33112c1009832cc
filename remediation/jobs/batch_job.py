"""A batch/v1 Job (api/batch/v1/types.go): `suspend` deletes all active pods and leaves its count of failures alone."""

from remediation.jobs.suspending import Suspending

ADAPTER = Suspending("batch/v1", "Job", "batch.kubernetes.io/controller-uid={uid}")
