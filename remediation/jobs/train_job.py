"""A TrainJob (trainer.kubeflow.org/v1alpha1): `suspend` is written here and never at the JobSet that it owns."""

from remediation.jobs.suspending import Suspending

ADAPTER = Suspending("trainer.kubeflow.org/v1alpha1", "TrainJob", "jobset.sigs.k8s.io/jobset-name={name}")
