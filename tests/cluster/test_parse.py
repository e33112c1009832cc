"""The API's JSON as values: what is missing, odd, huge or garbage, without an API server."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediation.cluster.parse import NOTHING, BadObject, parse_key, parse_node, parse_pdb, parse_pod
from remediation.cluster.parse_operator import (
    parse_mpi_job_v1,
    parse_mpi_job_v2,
    parse_pytorch_job,
    parse_volcano_job,
)
from remediation.cluster.parse_workload import parse_job, parse_job_set
from remediation.objects import (
    Effect,
    FailureRule,
    NodeView,
    OwnerRef,
    PdbView,
    PodView,
    Selector,
    Taint,
    WorkloadView,
)


def node(**fields: Any) -> NodeView:
    return parse_node(json.dumps({"metadata": {"name": "a"}} | fields).encode(), {})


def pod(meta: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **spec: Any) -> PodView:
    metadata = {"name": "p", "namespace": "n", "uid": "u"} | (meta or {})
    return parse_pod(json.dumps({"metadata": metadata, "spec": spec, "status": status or {}}).encode(), {})


def pdb(spec: Any = None, status: Any = None, generation: int = 1) -> PdbView:
    metadata = {"name": "b", "namespace": "n", "generation": generation}
    return parse_pdb(json.dumps({"metadata": metadata, "spec": spec, "status": status}).encode(), {})


def condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}


# --------------------------------------------------------------------------------------------------------------- nodes


def test_a_whole_node():
    found = parse_node(
        json.dumps(
            {
                "kind": "Node",
                "metadata": {
                    "name": "gpu-1",
                    "uid": "u",
                    "resourceVersion": "17",
                    "labels": {"rack": "r1", "a": "b"},
                    "annotations": {"gpuwarden.io/cordoned-by": "gpuwarden"},
                    "creationTimestamp": "2026-01-02T03:04:05Z",
                    "managedFields": [{"manager": "kubelet"}],
                },
                "spec": {
                    "unschedulable": True,
                    "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
                },
                "status": {
                    "capacity": {"cpu": "192", "nvidia.com/gpu": "8"},
                    "allocatable": {"nvidia.com/gpu": "7"},
                    "conditions": [condition("DiskPressure", "False"), condition("Ready", "True")],
                    "nodeInfo": {"bootID": "boot", "kernelVersion": "6.8"},
                },
            }
        ).encode(),
        {},
    )
    assert found == NodeView(
        name="gpu-1",
        uid="u",
        version="17",
        unschedulable=True,
        ready=True,
        taints=(Taint("k", Effect.NO_SCHEDULE, time_added="2026-01-01T00:00:00Z"),),
        labels=(("a", "b"), ("rack", "r1")),
        annotations=(("gpuwarden.io/cordoned-by", "gpuwarden"),),
        boot_id="boot",
        gpus=8,
        created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    assert found.cordon_is_ours


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        pytest.param([condition("Ready", "True")], True, id="ready"),
        pytest.param([condition("Ready", "False")], False, id="not ready"),
        pytest.param([condition("Ready", "Unknown")], None, id="its kubelet has gone silent"),
        pytest.param([condition("Ready", "yes")], None, id="a status nobody knows"),
        pytest.param([condition("DiskPressure", "True")], None, id="only other conditions"),
        pytest.param([], None, id="no conditions yet"),
        pytest.param(None, None, id="conditions are null"),
    ],
)
def test_a_nodes_readiness_is_known_only_where_it_is_said(conditions: Any, ready: bool | None):
    assert node(status={"conditions": conditions}).ready is ready


def test_a_node_of_which_nothing_is_known_but_its_name():
    found = node(spec=None, status=None)
    assert found == NodeView(name="a", uid="", version="", unschedulable=False, ready=None)


@pytest.mark.parametrize(
    ("capacity", "gpus"),
    [
        pytest.param({"nvidia.com/gpu": "8"}, 8, id="as a string"),
        pytest.param({"nvidia.com/gpu": 8}, 8, id="as a number"),
        pytest.param({"nvidia.com/gpu": "2k"}, 2000, id="with a suffix"),
        pytest.param({"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14"}, 18, id="with MIG slices"),
        pytest.param({"amd.com/gpu": "8", "cpu": "64", "memory": "2Ti"}, 8, id="of another maker"),
        pytest.param({"nvidia.com/gpu": "0"}, 0, id="none"),
        pytest.param({}, 0, id="nothing said"),
        pytest.param(None, 0, id="null"),
    ],
)
def test_gpus_of_a_node(capacity: Any, gpus: int):
    assert node(status={"capacity": capacity}).gpus == gpus


# ---------------------------------------------------------------------------------------------------------------- pods


def test_a_whole_pod():
    owners = [
        {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "1"},
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "2", "controller": True},
    ]
    found = pod(
        {"labels": {"app": "a"}, "annotations": {"gpuwarden.io/do-not-evict": "true"}, "ownerReferences": owners},
        {"phase": "Running", "startTime": "2026-01-02T03:04:05Z", "conditions": [condition("Ready", "True")]},
        nodeName="gpu-1",
        containers=[{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        terminationGracePeriodSeconds=900,
        priority=1000,
    )
    assert found == PodView(
        namespace="n",
        name="p",
        uid="u",
        node="gpu-1",
        phase="Running",
        ready=True,
        owner=OwnerRef("batch/v1", "Job", "train", "2"),
        labels=(("app", "a"),),
        annotations=(("gpuwarden.io/do-not-evict", "true"),),
        gpus=8,
        grace_s=900,
        priority=1000,
        started=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


def test_an_owner_that_does_not_control_is_none():
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "1"}
    assert pod({"ownerReferences": [owner]}).owner is None


@pytest.mark.parametrize(
    ("meta", "is_mirror"),
    [
        pytest.param({"annotations": {"kubernetes.io/config.mirror": "0123abc"}}, True, id="a static pod's mirror"),
        pytest.param({"annotations": {"kubernetes.io/config.source": "file"}}, False, id="another annotation"),
        pytest.param({"annotations": None}, False, id="no annotations"),
    ],
)
def test_a_mirror_pod_is_known_by_its_annotation(meta: dict[str, Any], is_mirror: bool):
    assert pod(meta).is_mirror is is_mirror


@pytest.mark.parametrize(
    ("volumes", "on_disk", "in_memory"),
    [
        pytest.param([{"name": "v", "emptyDir": {}}], ("v",), (), id="the default medium is a disk"),
        pytest.param([{"name": "v", "emptyDir": {"medium": ""}}], ("v",), (), id="an empty medium too"),
        pytest.param([{"name": "shm", "emptyDir": {"medium": "Memory"}}], (), ("shm",), id="shared memory"),
        pytest.param([{"name": "h", "emptyDir": {"medium": "HugePages-2Mi"}}], (), ("h",), id="huge pages"),
        pytest.param([{"name": "c", "configMap": {"name": "x"}}], (), (), id="other volumes"),
        pytest.param(
            [{"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "b", "emptyDir": {"medium": "Memory"}}],
            ("a",),
            ("b",),
            id="both",
        ),
        pytest.param(None, (), (), id="none"),
    ],
)
def test_empty_dirs_by_where_they_live(volumes: Any, on_disk: tuple[str, ...], in_memory: tuple[str, ...]):
    found = pod(volumes=volumes)
    assert (found.empty_dirs, found.memory_dirs) == (on_disk, in_memory)


def test_folders_of_the_node_are_known_by_name():
    found = pod(volumes=[{"name": "lustre", "hostPath": {"path": "/lustre"}}, {"name": "v", "emptyDir": {}}])
    assert (found.host_dirs, found.empty_dirs) == (("lustre",), ("v",))


def container(gpus: object, **fields: Any) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": gpus}}} | fields


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        pytest.param({"containers": [container("4"), container(4), {}]}, 8, id="containers add up"),
        pytest.param(
            {"containers": [container("2")], "initContainers": [container("4"), container("1")]},
            4,
            id="an init container that needs more",
        ),
        pytest.param(
            {"containers": [container("2")], "initContainers": [container("1", restartPolicy="Always")]},
            3,
            id="a sidecar runs beside",
        ),
        pytest.param({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, 1, id="only requests"),
        pytest.param({"containers": None}, 0, id="nothing said"),
    ],
)
def test_gpus_of_a_pod(spec: dict[str, Any], gpus: int):
    assert pod(**spec).gpus == gpus


def test_a_deletion_began_a_grace_before_its_timestamp():
    meta = {"deletionTimestamp": "2026-01-01T00:15:00Z", "deletionGracePeriodSeconds": 900}
    assert pod(meta).deleting_since == datetime(2026, 1, 1, tzinfo=UTC)
    assert pod({"deletionTimestamp": "2026-01-01T00:15:00Z"}).deleting_since == datetime(2026, 1, 1, 0, 15, tzinfo=UTC)


def test_grace_is_the_api_servers_default_only_where_none_is_said():
    assert [pod().grace_s, pod(terminationGracePeriodSeconds=0).grace_s] == [30, 0]


def test_documents_in_annotations_are_not_kept_but_our_marks_are():
    manifest = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 1000, "short": "y"}
    assert node(metadata={"name": "a", "annotations": manifest}).annotations == (("short", "y"),)
    reason = {"gpuwarden.io/reason": "z" * 1000}
    assert node(metadata={"name": "a", "annotations": reason}).annotations == (("gpuwarden.io/reason", "z" * 1000),)


def test_what_pods_have_in_common_is_held_once():
    shared: dict[object, object] = {}
    raw = json.dumps({"metadata": {"name": "p", "labels": {"app": "a"}}, "spec": {"nodeName": "gpu-1"}}).encode()
    one, other = parse_pod(raw, shared), parse_pod(raw, shared)
    assert one.node is other.node
    assert one.labels is other.labels


# ------------------------------------------------------------------------------------------------------------- budgets


def test_a_whole_budget():
    selector = {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["1"]}]}
    spec = {"minAvailable": "50%", "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    status = {
        "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 4, "observedGeneration": 2,
    }  # fmt: skip
    assert pdb(spec, status, generation=2) == PdbView(
        namespace="n",
        name="b",
        selector=Selector((("app", "a"),), (("k", "In", ("1",)),)),
        allowed=1,
        current=True,
        healthy=3,
        desired_healthy=2,
        expected=4,
        evict_unready_always=True,
    )


@pytest.mark.parametrize(
    ("status", "generation", "current"),
    [
        pytest.param({"observedGeneration": 2}, 2, True, id="looked at as it is"),
        pytest.param({"observedGeneration": 1}, 2, False, id="changed since"),
        pytest.param({}, 1, False, id="never looked at"),
        pytest.param(None, 1, False, id="no status at all"),
    ],
)
def test_a_budgets_status_is_current_when_its_controller_has(status: Any, generation: int, current: bool):
    found = pdb({"selector": {}}, status, generation)
    assert (found.current, found.allowed) == (current, 0)


@pytest.mark.parametrize(
    ("spec", "selector"),
    [
        pytest.param({"selector": {}}, Selector(), id="an empty one selects everything"),
        pytest.param({}, NOTHING, id="a missing one selects nothing"),
        pytest.param({"selector": None}, NOTHING, id="a null one selects nothing"),
        pytest.param(
            {"selector": {"matchExpressions": [{"key": "k", "operator": "Exists"}]}},
            Selector(expressions=(("k", "Exists", ()),)),
            id="an operator without values",
        ),
    ],
)
def test_a_budgets_selector(spec: Any, selector: Selector):
    assert pdb(spec).selector == selector


@pytest.mark.parametrize("limit", [1, "50%", None])
def test_a_budgets_limit_may_be_a_number_or_a_share(limit: object):
    assert pdb({"maxUnavailable": limit, "minAvailable": limit}).name == "b"


# ---------------------------------------------------------------------------------------------------------------- jobs


def job(spec: Any = None, status: Any = None, parse: Any = parse_job, **meta: Any) -> WorkloadView:
    metadata = {"name": "j", "namespace": "n", "uid": "u"} | meta
    return parse(json.dumps({"metadata": metadata, "spec": spec, "status": status}).encode(), {})


def job_set(spec: Any = None, status: Any = None) -> WorkloadView:
    return job(spec, status, parse_job_set)


def test_a_whole_job():
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "llama", "uid": "s", "controller": True,
    }  # fmt: skip
    spec = {"backoffLimit": 3, "suspend": True, "completionMode": "Indexed", "template": {"spec": {"containers": []}}}
    status = {"failed": 2, "active": 7, "conditions": [condition("Suspended", "True")]}
    annotations = {"gpuwarden.io/checkpoint": "http"}
    assert job(spec, status, ownerReferences=[owner], annotations=annotations) == WorkloadView(
        kind="Job",
        api_version="batch/v1",
        namespace="n",
        name="j",
        uid="u",
        owner=OwnerRef("jobset.x-k8s.io/v1alpha2", "JobSet", "llama", "s"),
        restarts_used=2,
        restarts_allowed=3,
        suspended=True,
        active=7,
        annotations=(("gpuwarden.io/checkpoint", "http"),),
    )
    assert job().restarts_allowed == 6, "the API server's default"


@pytest.mark.parametrize(
    ("spec", "status", "used"),
    [
        pytest.param({}, {}, 0, id="none yet"),
        pytest.param({}, {"failed": 2, "terminating": 3}, 2, id="pods that terminate are among the failed already"),
        pytest.param({"podReplacementPolicy": "Failed"}, {"failed": 2, "terminating": 3}, 5,
                     id="unless replacements wait for their end"),
        pytest.param({}, {"failed": 2, "uncountedTerminatedPods": {"failed": ["a", "b"]}}, 4,
                     id="what the controller is just about to count"),
        pytest.param({}, None, 0, id="no status"),
    ],
)  # fmt: skip
def test_failures_of_a_job(spec: Any, status: Any, used: int):
    assert job(spec, status).restarts_used == used


@pytest.mark.parametrize(
    ("spec", "allowed", "per_index"),
    [
        pytest.param({"backoffLimit": 0}, 0, None, id="none"),
        pytest.param({"backoffLimitPerIndex": 1, "backoffLimit": 2**31 - 1}, None, 1, id="only for each index"),
        pytest.param({"backoffLimitPerIndex": 1}, None, 1, id="as the API server would fill it in"),
        pytest.param({"backoffLimitPerIndex": 1, "backoffLimit": 9}, 9, 1, id="both"),
    ],
)
def test_limits_of_a_job(spec: Any, allowed: int | None, per_index: int | None):
    found = job(spec)
    assert (found.restarts_allowed, found.index_restarts_allowed) == (allowed, per_index)


def on_pod(action: str, kind: str = "DisruptionTarget", **pattern: str) -> dict[str, Any]:
    return {"action": action, "onPodConditions": [{"type": "Other"}, {"type": kind, **pattern}]}


def on_code(action: str, operator: str, *values: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values)}}


IGNORE = on_pod("Ignore", status="True")


@pytest.mark.parametrize(
    ("rules", "ignores", "ends"),
    [
        pytest.param([IGNORE], True, False, id="a disruption is ignored"),
        pytest.param([on_pod("Ignore")], True, False, id="a status that is left out is True"),
        pytest.param([on_pod("Ignore", status="False")], False, False, id="no disruption is ignored"),
        pytest.param([on_pod("Ignore", "ConfigIssue")], False, False, id="another condition is ignored"),
        pytest.param([on_pod("FailJob")], False, True, id="a disruption fails it"),
        pytest.param([on_pod("Count"), IGNORE], False, False, id="the first that matches decides"),
        pytest.param([on_code("FailJob", "In", 42), IGNORE], True, False, id="a code of the program's own"),
        pytest.param([on_code("FailJob", "In", 42, 143), IGNORE], False, True, id="the code of SIGTERM fails it"),
        pytest.param([on_code("FailJob", "NotIn", 42), IGNORE], False, True, id="all other codes fail it"),
        pytest.param([on_code("FailJob", "NotIn", 137, 143), IGNORE], True, False, id="all codes but those of signals"),
        pytest.param([on_code("Count", "In", 143), IGNORE], False, False, id="the code of SIGTERM counts"),
        pytest.param([on_code("Ignore", "In", 143)], False, False, id="a process may end with another code"),
        pytest.param([], False, False, id="no rules"),
        pytest.param(None, False, False, id="rules are null"),
    ],
)  # fmt: skip
def test_what_a_jobs_pod_failure_policy_says_to_an_eviction(rules: Any, ignores: bool, ends: bool):
    found = job({"podFailurePolicy": {"rules": rules}})
    assert (found.ignores_disruption, bool(found.ends_at_once)) == (ignores, ends)


def test_an_index_that_a_disruption_fails_has_no_restart():
    found = job({"backoffLimitPerIndex": 5, "podFailurePolicy": {"rules": [on_pod("FailIndex")]}})
    assert found.index_restarts_allowed == 0


@pytest.mark.parametrize(
    ("parse", "status", "finished"),
    [
        pytest.param(parse_job, {"conditions": [condition("Complete", "True")]}, True, id="a Job is complete"),
        pytest.param(parse_job, {"conditions": [condition("FailureTarget", "True")]}, True, id="a Job is to fail"),
        pytest.param(parse_job, {"conditions": [condition("Failed", "False")]}, False, id="a Job has not failed"),
        pytest.param(parse_job_set, {"conditions": [condition("Completed", "True")]}, True, id="a JobSet is complete"),
        pytest.param(parse_job_set, {"conditions": [condition("StartupPolicyCompleted", "True")]}, False,
                     id="a JobSet has started"),
        pytest.param(parse_pytorch_job, {"conditions": [condition("Succeeded", "True")]}, True, id="a PyTorchJob is"),
        pytest.param(parse_mpi_job_v2, {"conditions": [condition("Failed", "True")]}, True, id="an MPIJob has failed"),
        pytest.param(parse_volcano_job, {"state": {"phase": "Failed"}}, True, id="a Volcano Job has failed"),
        pytest.param(parse_volcano_job, {"state": {"phase": "Running"}}, False, id="a Volcano Job runs"),
    ],
)  # fmt: skip
def test_a_job_that_has_finished_says_so(parse: Any, status: Any, finished: bool):
    assert job({}, status, parse).finished is finished


def test_a_whole_job_set():
    rule = {"name": "r", "action": "FailJobSet", "targetReplicatedJobs": ["leader"], "onJobFailureReasons": ["Any"]}
    pattern = {"action": "RestartJobSet", "onJobFailureMessagePatterns": ["index 0$"]}
    policy = {"maxRestarts": 4, "restartStrategy": "Recreate", "rules": [rule, pattern]}
    found = job_set({"failurePolicy": policy}, {"restarts": 3, "restartsCountTowardsMax": 1})
    assert (found.kind, found.restarts_used, found.restarts_allowed, found.ends_at_once) == ("JobSet", 1, 4, "")
    assert found.rules == (
        FailureRule("FailJobSet", ("Any",), ("leader",)),
        FailureRule("RestartJobSet", by_message=True),
    )


@pytest.mark.parametrize(
    ("policy", "status", "used"),
    [
        pytest.param({}, {"restarts": 3}, 3, id="a release that counts all restarts"),
        pytest.param(
            {"rules": [{"action": "RestartJobSet"}]}, {"restarts": 3}, 0, id="restarts that all were forgiven"
        ),
        pytest.param({}, {"restarts": 3, "restartsCountTowardsMax": 0}, 0, id="the same, said"),
        pytest.param(
            {},
            {
                "restarts": 1,
                "restartsCountTowardsMax": 1,
                "replicatedJobsStatus": [{"name": "w", "jobRestartsCountTowardsMax": [0, 2]}, {"name": "l"}],
            },
            3,
            id="restarts of single Jobs count too",
        ),
    ],
)
def test_restarts_of_a_job_set(policy: Any, status: Any, used: int):
    assert job_set({"failurePolicy": policy}, status).restarts_used == used


@pytest.mark.parametrize("spec", [{}, {"failurePolicy": None}, None])
def test_a_job_set_without_a_failure_policy_ends_with_its_first_failed_job(spec: Any):
    assert "no failure policy" in job_set(spec).ends_at_once


@pytest.mark.parametrize(
    ("rule", "ignores"),
    [
        pytest.param({}, True, id="whatever fails"),
        pytest.param({"targetReplicatedJobs": ["worker"]}, False, id="only some Jobs"),
        pytest.param({"onJobFailureReasons": ["PodFailurePolicy"]}, False, id="only some reasons"),
    ],
)
def test_a_job_set_ignores_disruptions_where_it_forgives_all_failures(rule: Any, ignores: bool):
    rules = [{"action": "RestartJobSetAndIgnoreMaxRestarts"} | rule]
    assert job_set({"failurePolicy": {"rules": rules}}).ignores_disruption is ignores


def pytorch(workers: int, policy: str | None = None, **spec: Any) -> WorkloadView:
    replicas = {
        "Master": {"replicas": 1, "restartPolicy": policy},
        "Worker": {"replicas": workers, "restartPolicy": policy, "template": {}},
    }
    return job({"pytorchReplicaSpecs": replicas} | spec, None, parse_pytorch_job)


@pytest.mark.parametrize(
    ("found", "allowed", "says"),
    [
        pytest.param(pytorch(7), None, "", id="without a limit"),
        pytest.param(pytorch(7, "Always", runPolicy={"backoffLimit": 9}), 9, "", id="with a limit that is not reached"),
        pytest.param(pytorch(7, "Never"), None, "restartPolicy Never", id="whose pods are never started again"),
        pytest.param(pytorch(7, "ExitCode"), None, "restartPolicy ExitCode", id="whose other pods end with code 1"),
        pytest.param(pytorch(0, "ExitCode"), None, "", id="that has no other pods"),
        pytest.param(pytorch(7, "ExitCode", elasticPolicy={"maxReplicas": 8}), None, "", id="whose pods go on alone"),
        pytest.param(pytorch(7, "OnFailure", runPolicy={"backoffLimit": 7}), 7, "its 7 other pods would restart",
                     id="whose other pods' restarts reach the limit"),
        pytest.param(job(None, None, parse_pytorch_job), None, "", id="of which nothing is said"),
    ],
)  # fmt: skip
def test_a_pytorch_job(found: WorkloadView, allowed: int | None, says: str):
    assert (found.kind, found.api_version, found.restarts_allowed) == ("PyTorchJob", "kubeflow.org/v1", allowed)
    assert says in found.ends_at_once
    assert bool(says) == bool(found.ends_at_once)


@pytest.mark.parametrize(
    ("policy", "limit", "allowed"),
    [
        pytest.param("Never", 3, 3, id="each launcher pod is a try"),
        pytest.param(None, 3, 2, id="a launcher that restarts in place reaches the limit earlier"),
        pytest.param("OnFailure", None, 5, id="a Job's limit by default"),
        pytest.param("OnFailure", 0, 0, id="no restart at all"),
    ],
)
def test_an_mpi_job_of_mpi_operator(policy: str | None, limit: int | None, allowed: int):
    spec = {"runPolicy": {"backoffLimit": limit}, "mpiReplicaSpecs": {"Launcher": {"restartPolicy": policy}}}
    found = job(spec, {"replicaStatuses": {"Launcher": {"failed": 1}, "Worker": {"active": 8}}}, parse_mpi_job_v2)
    assert (found.restarts_used, found.restarts_allowed, found.ends_at_once) == (1, allowed, "")
    assert (found.kind, found.api_version) == ("MPIJob", "kubeflow.org/v2beta1")


def test_an_mpi_job_of_training_operator_ends_with_its_first_pod():
    assert job({"runPolicy": {"backoffLimit": 3, "suspend": True}}, None, parse_mpi_job_v1).ends_at_once


def volcano(*policies: Any, tasks: Any = (), **fields: Any) -> WorkloadView:
    return job({"policies": list(policies), "tasks": list(tasks)} | fields, {"retryCount": 1}, parse_volcano_job)


RESTART = {"event": "PodEvicted", "action": "RestartJob"}


@pytest.mark.parametrize(
    ("found", "ignores", "ends"),
    [
        pytest.param(volcano(), True, "", id="by itself it makes the pod anew"),
        pytest.param(volcano({"event": "PodFailed", "action": "AbortJob"}), True, "", id="an eviction is no failure"),
        pytest.param(volcano(RESTART), False, "", id="it restarts"),
        pytest.param(volcano({"events": ["PodFailed", "PodEvicted"], "action": "RestartTask"}), False, "",
                     id="what is not known counts"),
        pytest.param(volcano({"event": "*", "action": "TerminateJob"}), False, "TerminateJob", id="it ends"),
        pytest.param(volcano(RESTART, tasks=[{"policies": [{"event": "PodEvicted", "action": "CompleteJob"}]}, {}]),
                     False, "CompleteJob", id="a task's own policy comes first"),
        pytest.param(volcano({"event": "*", "action": "AbortJob"}, tasks=[{"policies": [RESTART]}]), False, "",
                     id="and is in place of the job's"),
        pytest.param(volcano(tasks=[{"policies": [{"exitCode": 3, "action": "AbortJob"}]}]), True, "",
                     id="an eviction has no exit code"),
    ],
)  # fmt: skip
def test_what_a_volcano_jobs_policies_say_to_an_eviction(found: WorkloadView, ignores: bool, ends: str):
    assert (found.kind, found.api_version) == ("Job", "batch.volcano.sh/v1alpha1")
    assert found.ignores_disruption is ignores
    assert (ends in found.ends_at_once) if ends else not found.ends_at_once


@pytest.mark.parametrize(("retries", "allowed"), [(None, 2), (3, 2), (1, 0), (0, 0)])
def test_a_volcano_job_fails_when_its_retries_reach_their_maximum(retries: int | None, allowed: int):
    found = volcano(RESTART, maxRetry=retries)
    assert (found.restarts_used, found.restarts_allowed) == (1, allowed)


def test_a_volcano_job_that_is_aborted_can_be_resumed():
    found = job({}, {"state": {"phase": "Aborted"}}, parse_volcano_job)
    assert (found.suspended, found.finished) == (True, False)


# ------------------------------------------------------------------------------------------------------------- garbage

WORKLOAD_PARSERS = [
    parse_job, parse_job_set, parse_pytorch_job, parse_mpi_job_v1, parse_mpi_job_v2, parse_volcano_job,
]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "found"),
    [
        pytest.param(parse_node, {}, id="no metadata"),
        pytest.param(parse_node, {"metadata": {}}, id="no name"),
        pytest.param(parse_node, {"metadata": {"name": 7}}, id="a name that is a number"),
        pytest.param(parse_node, {"metadata": {"name": "a"}, "spec": {"taints": "x"}}, id="taints that are a word"),
        pytest.param(
            parse_node,
            {"metadata": {"name": "a"}, "spec": {"taints": [{"key": "k", "effect": "Explode"}]}},
            id="an effect nobody knows",
        ),
        pytest.param(
            parse_node,
            {"metadata": {"name": "a"}, "status": {"capacity": {"nvidia.com/gpu": "many"}}},
            id="many GPUs",
        ),
        pytest.param(
            parse_node, {"metadata": {"name": "a"}, "status": {"capacity": {"nvidia.com/gpu": "-1"}}}, id="minus a GPU"
        ),
        pytest.param(parse_node, {"metadata": {"name": "a", "creationTimestamp": "once"}}, id="a time that is none"),
        pytest.param(
            parse_node, {"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00"}}, id="a time of no zone"
        ),
        pytest.param(parse_pod, {"metadata": {"name": "a", "labels": {"a": 1}}}, id="a label that is a number"),
        pytest.param(parse_pod, {"metadata": {"name": "a"}, "spec": {"volumes": [7]}}, id="a volume that is a number"),
        pytest.param(
            parse_pod,
            {
                "metadata": {
                    "name": "a",
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "deletionGracePeriodSeconds": 1e30,
                }
            },
            id="a grace of ages",
        ),
        pytest.param(
            parse_pdb, {"metadata": {"name": "a"}, "status": {"disruptionsAllowed": "1"}}, id="a count that is text"
        ),
        pytest.param(parse_job, {"metadata": {"name": "a"}, "spec": {"backoffLimit": "6"}}, id="a limit that is text"),
        pytest.param(parse_job_set, {"metadata": {"name": "a"}, "spec": {"failurePolicy": 3}}, id="a policy of three"),
        pytest.param(parse_volcano_job, {"metadata": {"name": "a"}, "spec": {"tasks": [None]}}, id="a task of nothing"),
        pytest.param(parse_key, {"metadata": []}, id="metadata that is a list"),
        pytest.param(parse_key, [], id="a list"),
    ],
)
def test_garbage_is_a_bad_object(parse: Any, found: Any):
    with pytest.raises(BadObject):
        parse(json.dumps(found).encode(), *([{}] if parse is not parse_key else []))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "metadata", "spec", "status", "name", "labels", "taints", "conditions", "capacity", "containers", "selector",
    "failed", "backoffLimit", "podFailurePolicy", "failurePolicy", "rules", "runPolicy", "pytorchReplicaSpecs",
    "mpiReplicaSpecs", "replicaStatuses", "policies", "tasks", "state", "restarts",
]  # fmt: skip


@given(
    st.sampled_from([parse_node, parse_pod, parse_pdb, *WORKLOAD_PARSERS]),
    st.dictionaries(st.sampled_from(FIELDS), JSON | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)),
    st.binary(max_size=20),
)
def test_nothing_but_a_bad_object_comes_of_any_bytes(parse: Any, found: dict[str, Any], tail: bytes):
    for raw in (json.dumps(found).encode(), json.dumps(found).encode() + tail, tail):
        try:
            name = parse(raw, {}).name
        except BadObject:
            continue
        assert name == json.loads(raw)["metadata"]["name"]
