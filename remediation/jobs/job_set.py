"""A JobSet (jobset.x-k8s.io/v1alpha2, KEP-1282): `suspend` ends its Jobs' pods; its counter of restarts stays."""

from remediation.jobs.suspending import Suspending

ADAPTER = Suspending("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset.sigs.k8s.io/jobset-name={name}")
