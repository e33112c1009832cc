"""An MPIJob of the MPI operator (kubeflow.org/v2beta1): `runPolicy.suspend` stops the launcher and all workers."""

from remediation.jobs.suspending import Suspending

ADAPTER = Suspending(
    "kubeflow.org/v2beta1", "MPIJob", "training.kubeflow.org/job-name={name}", ("spec", "runPolicy", "suspend")
)
