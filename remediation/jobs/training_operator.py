"""PyTorchJob and MPIJob v1 of the training operator (pkg/controller.v1/common/job.go): `runPolicy.suspend`.

A pod that is evicted alone is made anew while its peers end with an error, so only a restart of all of them goes on.
"""

from remediation.jobs.suspending import Suspending

_FIELD = ("spec", "runPolicy", "suspend")
_LABEL = "training.kubeflow.org/job-name={name}"
PYTORCH_JOB = Suspending("kubeflow.org/v1", "PyTorchJob", _LABEL, _FIELD)
MPI_JOB_V1 = Suspending("kubeflow.org/v1", "MPIJob", _LABEL, _FIELD)
