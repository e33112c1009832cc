"""Workloads to put on GPU nodes, as short as a test wants to write them.

Each function returns a manifest for `admin.create`. `**pod` is `gpus`, `grace_s`, `annotations` and any field of a
pod's spec; the annotations that steer a simulated pod stand in kubelet-stages.yaml.
"""

from typing import Any

from tests.testbed.api import Object

COMPLETES_AFTER = "testbed.gpuwarden.io/completes-after"
FAILS_AFTER = "testbed.gpuwarden.io/fails-after"
STOPS_AFTER = "testbed.gpuwarden.io/stops-after"
NEVER_READY = "testbed.gpuwarden.io/never-ready"


def pod(name: str, namespace: str, **pod: Any) -> Object:
    """A pod that no controller owns."""
    return manifest("v1", "Pod", name, namespace) | _merged(pod_template(name, **pod), name, namespace)


def deployment(name: str, namespace: str, replicas: int = 1, **pod: Any) -> Object:
    """A Deployment."""
    return manifest("apps/v1", "Deployment", name, namespace, _set(name, replicas, pod))


def stateful_set(name: str, namespace: str, replicas: int = 1, **pod: Any) -> Object:
    """A StatefulSet that starts its pods at once."""
    extra = {"serviceName": name, "podManagementPolicy": "Parallel"}
    return manifest("apps/v1", "StatefulSet", name, namespace, _set(name, replicas, pod) | extra)


def daemon_set(name: str, namespace: str, **pod: Any) -> Object:
    """A DaemonSet; without GPUs unless it is given some."""
    template = pod_template(name, **({"gpus": 0} | pod))
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return manifest("apps/v1", "DaemonSet", name, namespace, spec)


def job(name: str, namespace: str, pods: int = 1, backoff_limit: int = 6, **pod: Any) -> Object:
    """A Job that runs all its pods side by side."""
    template = pod_template(name, **({"restartPolicy": "Never"} | pod))
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": backoff_limit, "template": template}
    return manifest("batch/v1", "Job", name, namespace, spec)


def budget(name: str, namespace: str, **limit: int | str) -> Object:
    """A PodDisruptionBudget over the pods of the workload of that name: `minAvailable=` or `maxUnavailable=`."""
    spec = {"selector": {"matchLabels": {"app": name}}, **limit}
    return manifest("policy/v1", "PodDisruptionBudget", name, namespace, spec)


def manifest(version: str, kind: str, name: str, namespace: str, spec: Object | None = None) -> Object:
    """An object of any kind that has a namespace."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata} | ({"spec": spec} if spec else {})


def _merged(template: Object, name: str, namespace: str) -> Object:
    return template | {"metadata": template["metadata"] | {"name": name, "namespace": namespace}}


def _set(name: str, replicas: int, pod: Object) -> Object:
    return {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": pod_template(name, **pod),
    }


def pod_template(
    app: str,
    gpus: int = 1,
    grace_s: int = 30,
    annotations: dict[str, str] | None = None,
    container: str = "main",
    **spec: Any,
) -> Object:
    """The template of a pod with one container of that name, which is what `app` labels; `spec` adds to its spec."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    only = {"name": container, "image": "testbed.invalid/none", "resources": resources}
    return {
        "metadata": {"labels": {"app": app}, "annotations": annotations or {}},
        "spec": {
            "containers": [only],
            "terminationGracePeriodSeconds": grace_s,
            # As GPU pods on a real cluster have it; the taints of a sick node are not among them.
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }
        | spec,
    }
