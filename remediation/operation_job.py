"""The Job of an operation: the policy's pod template, pinned to the node, once, with an end. Pure."""

import copy
from collections.abc import Mapping
from typing import Any

from remediation.objects import INCIDENT, OWNER, PROBATION, TAINT_KEY
from remediation.operations import LABEL, Operation
from rules.operation_schema import OperationPolicy, OperationsPolicy

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_TOLERATED = (TAINT_KEY, PROBATION, _UNSCHEDULABLE)
#: On its pod: neither an autoscaler nor a drain of ours moves it.
_KEPT = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def job_of(operation: Operation, policy: OperationsPolicy) -> dict[str, Any]:
    """The batch/v1 Job, ready to be created. One pod, no retries: a try is counted here, not by the Job's controller.

    What the template says about the node is kept and narrowed to this node; its tolerations, environment, labels and
    annotations are kept and added to.
    """
    of = policy.of(operation.action)
    labels = {LABEL: operation.action.value.replace("_", "-"), "app.kubernetes.io/managed-by": OWNER}
    about = {INCIDENT: operation.incident}
    metadata = {"name": operation.id, "namespace": policy.namespace, "labels": labels, "annotations": about}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": max(1, int(of.timeout)),
            "ttlSecondsAfterFinished": int(policy.keep),
            "template": _pod(operation, of, labels, about),
        },
    }


def _pod(
    operation: Operation, policy: OperationPolicy, labels: Mapping[str, str], about: Mapping[str, str]
) -> dict[str, Any]:
    template = copy.deepcopy(policy.template)
    metadata, spec = dict(template.get("metadata") or {}), dict(template["spec"])
    spec["restartPolicy"] = "Never"
    spec["affinity"] = {**(spec.get("affinity") or {}), "nodeAffinity": _pinned(operation.node)}
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *({"key": key, "operator": "Exists"} for key in _TOLERATED),
    ]
    env = [
        {"name": "GPUWARDEN_NODE", "value": operation.node},
        {"name": "GPUWARDEN_GPUS", "value": ",".join(operation.gpus)},
        {"name": "GPUWARDEN_INCIDENT", "value": operation.incident},
    ]
    for kind in ("initContainers", "containers"):
        spec[kind] = [_container(one, env) for one in spec.get(kind) or ()]
    if not spec["initContainers"]:
        del spec["initContainers"]
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), **_KEPT, **about},
        },
        "spec": spec,
    }


def _container(one: Mapping[str, Any], env: list[dict[str, str]]) -> dict[str, Any]:
    """A message on the way out is wanted: where the program leaves none, the end of its log is one."""
    told = {"terminationMessagePolicy": "FallbackToLogsOnError", **one}
    return {**told, "env": [*(one.get("env") or ()), *env]}


def _pinned(node: str) -> dict[str, Any]:
    """By the node's name, as DaemonSets' pods are: the scheduler places it, and counts its GPUs."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
