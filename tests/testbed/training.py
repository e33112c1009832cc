"""Training jobs to put on GPU nodes: of many nodes, all or nothing, restarted from a checkpoint.

Each function returns a manifest for `admin.create`; all but `indexed_job` need the fixture `workload_controllers`.
`annotations` are the job's own, where its checkpoints are written (trainer.py); `pod_annotations` are its pods', and
steer them (kubelet-stages.yaml). `gpus` are a pod's, 8 for a whole node. `**pod` is `grace_s` and any field of a pod's
spec.
"""

from collections.abc import Mapping
from typing import Any

from tests.testbed.api import Object
from tests.testbed.manifests import manifest, pod_template

Annotations = Mapping[str, str]


def indexed_job(
    name: str,
    namespace: str,
    nodes: int = 3,
    gpus: int = 8,
    backoff_limit: int = 6,
    annotations: Annotations | None = None,
    pod_annotations: Annotations | None = None,
    **pod: Any,
) -> Object:
    """A Job whose pods are ranks: each has its index, and one that ends is made anew with the same."""
    spec = _indexed(nodes, backoff_limit, _template(name, gpus, pod_annotations, pod))
    return _annotated(manifest("batch/v1", "Job", name, namespace, spec), annotations)


def job_set(
    name: str,
    namespace: str,
    nodes: int = 3,
    gpus: int = 8,
    max_restarts: int | None = None,
    annotations: Annotations | None = None,
    pod_annotations: Annotations | None = None,
    **pod: Any,
) -> Object:
    """A JobSet of one Job of ranks, which fails with its first pod.

    Then the JobSet makes all pods anew, up to `max_restarts` times; where that is None, it fails, too.
    """
    template = {"spec": _indexed(nodes, 0, _template(name, gpus, pod_annotations, pod))}
    spec: Object = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": template}]}
    if max_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": max_restarts}
    return _annotated(manifest("jobset.x-k8s.io/v1alpha2", "JobSet", name, namespace, spec), annotations)


def pytorch_job(
    name: str,
    namespace: str,
    workers: int = 2,
    gpus: int = 8,
    restart_policy: str = "OnFailure",
    run_policy: Mapping[str, Any] | None = None,
    annotations: Annotations | None = None,
    pod_annotations: Annotations | None = None,
    **pod: Any,
) -> Object:
    """A PyTorchJob of a master and so many workers, all with GPUs.

    `restart_policy` is "Always", "OnFailure", "Never" or "ExitCode"; `run_policy` takes `suspend`, `backoffLimit` ...
    """
    template = _template(name, gpus, pod_annotations, {"container": "pytorch"} | pod)
    replicas = {
        "Master": _replicas(1, restart_policy, template),
        "Worker": _replicas(workers, restart_policy, template),
    }
    spec = {"runPolicy": dict(run_policy or {}), "pytorchReplicaSpecs": replicas}
    return _annotated(manifest("kubeflow.org/v1", "PyTorchJob", name, namespace, spec), annotations)


def mpi_job(
    name: str,
    namespace: str,
    workers: int = 2,
    gpus: int = 8,
    slots_per_worker: int | None = None,
    restart_policy: str = "Never",
    run_policy: Mapping[str, Any] | None = None,
    annotations: Annotations | None = None,
    pod_annotations: Annotations | None = None,
    **pod: Any,
) -> Object:
    """An MPIJob of the training operator: a launcher without GPUs, and workers with a slot for each of theirs."""
    settings = {"container": "mpi"} | pod
    launcher, worker = (_template(name, each, pod_annotations, settings) for each in (0, gpus))
    spec = {
        "slotsPerWorker": gpus if slots_per_worker is None else slots_per_worker,
        "runPolicy": dict(run_policy or {}),
        "mpiReplicaSpecs": {
            "Launcher": _replicas(1, restart_policy, launcher),
            "Worker": _replicas(workers, restart_policy, worker),
        },
    }
    return _annotated(manifest("kubeflow.org/v1", "MPIJob", name, namespace, spec), annotations)


def _template(name: str, gpus: int, annotations: Annotations | None, pod: Mapping[str, Any]) -> Object:
    return pod_template(name, gpus=gpus, annotations=dict(annotations or {}), **pod)


def _indexed(nodes: int, backoff_limit: int, template: Object) -> Object:
    template["spec"] = {"restartPolicy": "Never"} | template["spec"]
    return {
        "completionMode": "Indexed",
        "parallelism": nodes,
        "completions": nodes,
        "backoffLimit": backoff_limit,
        "template": template,
    }


def _replicas(count: int, restart_policy: str, template: Object) -> Object:
    return {"replicas": count, "restartPolicy": restart_policy, "template": template}


def _annotated(made: Object, annotations: Annotations | None) -> Object:
    made["metadata"]["annotations"] = dict(annotations or {})
    return made
