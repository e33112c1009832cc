"""The testbed is what it says: a real control plane, with pods that live and end as on real nodes, no left-overs."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.testbed.api import ApiError, Conflict, Forbidden, TooManyRequests, Unauthorized
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import (
    COMPLETES_AFTER,
    FAILS_AFTER,
    NEVER_READY,
    STOPS_AFTER,
    budget,
    daemon_set,
    deployment,
    job,
    pod,
    stateful_set,
)
from tests.testbed.nodes import H100, POOL_LABEL, RACK_LABEL, NodeShape
from tests.testbed.waiting import until

NAMESPACE = "train"


def phases(cluster: ControlPlane, app: str) -> list[str]:
    return sorted(found["status"]["phase"] for found in cluster.admin.list("Pod", NAMESPACE, labels=f"app={app}"))


def running(cluster: ControlPlane, app: str, count: int) -> None:
    until(f"{count} pods of {app} running", lambda: phases(cluster, app) == ["Running"] * count)


def disruption(cluster: ControlPlane, name: str) -> dict[str, int]:
    """The status of a budget, once its controller has looked at it as it is now."""

    def seen() -> dict[str, int] | None:
        found = cluster.admin.get("PodDisruptionBudget", name, NAMESPACE)
        status = found.get("status", {})
        return status if status.get("observedGeneration") == found["metadata"]["generation"] else None

    return until(f"a look at the budget {name}", seen)


def test_it_starts_in_under_twenty_seconds(control_plane: ControlPlane):
    assert 0 < control_plane.started_in_s < 20


def test_gpu_pods_take_gpus_of_nodes_until_there_are_none(cluster: ControlPlane):
    nodes = cluster.add_nodes(2, NodeShape(gpus=8))
    cluster.namespace(NAMESPACE)
    cluster.admin.create(deployment("train", NAMESPACE, 3, gpus=8))
    until("two of three", lambda: phases(cluster, "train") == ["Pending", "Running", "Running"])
    pods = cluster.admin.list("Pod", NAMESPACE)
    assert sorted(p["spec"]["nodeName"] for p in pods if "nodeName" in p["spec"]) == nodes
    (waiting,) = (p for p in pods if "nodeName" not in p["spec"])
    said = until("the scheduler's word", lambda: waiting_for(cluster, waiting["metadata"]["name"]))
    assert "Insufficient nvidia.com/gpu" in said


def waiting_for(cluster: ControlPlane, name: str) -> str:
    conditions = cluster.admin.get("Pod", name, NAMESPACE)["status"].get("conditions", ())
    return next((c["message"] for c in conditions if c["type"] == "PodScheduled"), "")


def test_each_kind_of_workload_runs(cluster: ControlPlane):
    cluster.add_nodes(2)
    cluster.namespace(NAMESPACE)
    for manifest in (
        deployment("web", NAMESPACE, 2), stateful_set("store", NAMESPACE, 2), daemon_set("exporter", NAMESPACE),
        job("training", NAMESPACE, 2), pod("bare", NAMESPACE),
    ):  # fmt: skip
        cluster.admin.create(manifest)
    for app, count in {"web": 2, "store": 2, "exporter": 2, "training": 2, "bare": 1}.items():
        running(cluster, app, count)


def test_nodes_carry_what_feature_discovery_would_say(cluster: ControlPlane):
    shape = NodeShape(gpus=4, pool="infer", nodes_per_rack=2, labels={"team": "a"})
    names = [*cluster.add_nodes(1, shape), *cluster.add_nodes(2, shape)]
    labels = [cluster.admin.get("Node", name)["metadata"]["labels"] for name in names]
    assert [label[RACK_LABEL] for label in labels] == ["rack-0", "rack-0", "rack-1"]
    assert {(label[POOL_LABEL], label["team"], label["nvidia.com/gpu.product"]) for label in labels} == {
        ("infer", "a", H100)
    }


# ------------------------------------------------------------------------------------------------- eviction and budgets


def test_a_budget_refuses_an_eviction_in_a_dry_run_too_and_then_allows_one(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(deployment("web", NAMESPACE, 2))
    running(cluster, "web", 2)
    cluster.admin.create(budget("web", NAMESPACE, minAvailable=2))
    until("the budget", lambda: disruption(cluster, "web")["currentHealthy"] == 2)
    victim = cluster.admin.list("Pod", NAMESPACE)[0]["metadata"]["name"]
    for dry_run in (True, False):
        with pytest.raises(TooManyRequests) as refusal:
            cluster.admin.evict(victim, NAMESPACE, dry_run=dry_run)
        assert [cause["reason"] for cause in refusal.value.status["details"]["causes"]] == ["DisruptionBudget"]
    cluster.admin.patch("PodDisruptionBudget", "web", {"spec": {"minAvailable": 1}}, NAMESPACE)
    until("room", lambda: disruption(cluster, "web")["disruptionsAllowed"] == 1)
    cluster.admin.evict(victim, NAMESPACE)
    until("another pod", lambda: cluster.admin.find("Pod", victim, NAMESPACE) is None)
    running(cluster, "web", 2)


def test_pods_that_were_only_marked_as_not_ready_are_ready_again(cluster: ControlPlane):
    """As the node controller marks all pods of a node whose kubelet was silent for a while."""
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(deployment("web", NAMESPACE, 2))
    cluster.admin.create(budget("web", NAMESPACE, minAvailable=1))
    running(cluster, "web", 2)
    until("the budget", lambda: disruption(cluster, "web")["currentHealthy"] == 2)
    for one in cluster.admin.list("Pod", NAMESPACE):
        not_ready = {"conditions": [{"type": "Ready", "status": "False"}]}
        cluster.admin.patch_status("Pod", one["metadata"]["name"], not_ready, NAMESPACE)
    until("fewer", lambda: disruption(cluster, "web")["currentHealthy"] < 2)
    until("all again", lambda: disruption(cluster, "web")["currentHealthy"] == 2)


def test_two_budgets_over_one_pod_are_a_server_error(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(pod("bare", NAMESPACE))
    running(cluster, "bare", 1)
    for name in ("one", "two"):
        cluster.admin.create(budget("bare", NAMESPACE, maxUnavailable=0) | {"metadata": named(name)})
    with pytest.raises(ApiError) as refusal:
        cluster.admin.evict("bare", NAMESPACE)
    assert refusal.value.code == 500


def named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": NAMESPACE}


def test_a_budget_counts_ready_pods_only(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    for name, annotations in {"ready": {}, "never": {NEVER_READY: "true"}}.items():
        cluster.admin.create(deployment(name, NAMESPACE, 2, annotations=annotations))
        cluster.admin.create(budget(name, NAMESPACE, minAvailable=1))
        running(cluster, name, 2)
    until("ready pods", lambda: disruption(cluster, "ready")["currentHealthy"] == 2)
    until("the others", lambda: disruption(cluster, "never")["expectedPods"] == 2)
    assert disruption(cluster, "never")["currentHealthy"] == 0


# --------------------------------------------------------------------------------------------------------- ends of pods


def test_a_deleted_pod_uses_its_grace_and_is_gone(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(pod("saves", NAMESPACE, grace_s=30, annotations={STOPS_AFTER: "2"}))
    cluster.admin.create(pod("hangs", NAMESPACE, grace_s=2, annotations={STOPS_AFTER: "600"}))
    for name in ("saves", "hangs"):
        running(cluster, name, 1)
        # A finalizer lets the test see how the pod ended.
        cluster.admin.patch("Pod", name, {"metadata": {"finalizers": ["testbed.gpuwarden.io/look"]}}, NAMESPACE)
        cluster.admin.delete("Pod", name, NAMESPACE)
    terminating = cluster.admin.get("Pod", "saves", NAMESPACE)
    assert (terminating["metadata"]["deletionGracePeriodSeconds"], terminating["status"]["phase"]) == (30, "Running")
    assert {name: until(f"the end of {name}", partial(exit_code, cluster, name)) for name in ("saves", "hangs")} == {
        "saves": 143,
        "hangs": 137,
    }


def exit_code(cluster: ControlPlane, name: str) -> int:
    """Zero while it runs."""
    (status,) = cluster.admin.get("Pod", name, NAMESPACE)["status"]["containerStatuses"]
    return int(status["state"].get("terminated", {}).get("exitCode", 0))


@pytest.mark.parametrize(
    ("annotation", "condition"),
    [
        pytest.param(COMPLETES_AFTER, "Complete", id="a job whose pods complete is complete"),
        pytest.param(FAILS_AFTER, "Failed", id="a job whose pods fail beyond its backoff limit has failed"),
    ],
)
def test_a_job_ends_as_its_pods_say(cluster: ControlPlane, annotation: str, condition: str):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(job("training", NAMESPACE, backoff_limit=0, annotations={annotation: "1"}))
    until("the job's end", lambda: condition in conditions_of_job(cluster))


def conditions_of_job(cluster: ControlPlane) -> list[str]:
    return [c["type"] for c in cluster.admin.get("Job", "training", NAMESPACE)["status"].get("conditions", ())]


def test_pods_of_a_lost_node_stay_terminating_until_it_is_found(cluster: ControlPlane):
    (name,) = cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(pod("bare", NAMESPACE, grace_s=0))
    running(cluster, "bare", 1)
    cluster.lose_node(name)
    until("its taints", lambda: "node.kubernetes.io/unreachable" in taints(cluster, name))
    cluster.admin.delete("Pod", "bare", NAMESPACE, grace_s=1)
    time.sleep(3)  # longer than its grace
    assert "deletionTimestamp" in cluster.admin.get("Pod", "bare", NAMESPACE)["metadata"]
    cluster.find_node(name)
    until("a node without taints", lambda: not taints(cluster, name))
    until("the pod's end", lambda: cluster.admin.find("Pod", "bare", NAMESPACE) is None)


def taints(cluster: ControlPlane, name: str) -> set[str]:
    return {taint["key"] for taint in cluster.admin.get("Node", name)["spec"].get("taints", ())}


# ----------------------------------------------------------------------------------------------- identities and records


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(cluster: ControlPlane):
    (node,) = cluster.add_nodes(1)
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]
    reader = cluster.client(cluster.service_account("gpuwarden", "reader", rules))
    assert [found["metadata"]["name"] for found in reader.list("Node")] == [node]
    with pytest.raises(Forbidden, match="cannot patch resource"):
        reader.patch("Node", node, {"spec": {"unschedulable": True}})
    with pytest.raises(Forbidden):
        reader.list("Pod")


def test_a_token_is_its_service_account_and_a_wrong_one_is_nobody(cluster: ControlPlane):
    token = cluster.service_account("gpuwarden", "reader")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    answer = cluster.client(token).create(review)
    assert answer["status"]["userInfo"]["username"] == "system:serviceaccount:gpuwarden:reader"
    with pytest.raises(Unauthorized):
        cluster.client(f"{token}x").create(review)


def test_the_audit_log_says_who_wrote_what(cluster: ControlPlane):
    (node,) = cluster.add_nodes(1)
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    hand = cluster.client(cluster.service_account("gpuwarden", "hand", rules))
    hand.kinds()
    body = {"spec": {"unschedulable": True}}
    before = cluster.audit_mark()
    hand.get("Node", node)
    hand.patch("Node", node, body, dry_run=True)
    assert [e for e in cluster.audit_events(before, "system:serviceaccount:gpuwarden:hand") if e.is_write] == []
    hand.patch("Node", node, body)
    with pytest.raises(Forbidden):
        hand.delete("Node", node)
    seen = cluster.audit_events(before, "system:serviceaccount:gpuwarden:hand")
    assert [(e.verb, e.resource, e.name, e.code) for e in seen] == [
        ("get", "nodes", node, 200),
        ("patch", "nodes", node, 200),
        ("patch", "nodes", node, 200),
        ("delete", "nodes", node, 403),
    ]
    assert [e.body for e in seen if e.is_write and e.succeeded] == [body]


def test_a_stale_resource_version_is_a_conflict(cluster: ControlPlane):
    (node,) = cluster.add_nodes(1)
    with pytest.raises(Conflict):
        cluster.admin.patch("Node", node, {"metadata": {"resourceVersion": "1"}, "spec": {"unschedulable": True}})


# --------------------------------------------------------------------------------------------------------------- faults


def test_a_restart_of_the_api_server_loses_nothing_and_all_goes_on(cluster: ControlPlane):
    (node,) = cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.api_server.stop()
    with pytest.raises(requests.ConnectionError):
        cluster.admin.get("Node", node)
    cluster.start_api_server()
    cluster.admin.create(deployment("web", NAMESPACE, 1))
    running(cluster, "web", 1)


def test_a_frozen_api_server_takes_connections_and_answers_none(cluster: ControlPlane):
    impatient = cluster.client(cluster.admin.token, timeout_s=0.5)
    cluster.api_server.pause()
    with pytest.raises(requests.Timeout):
        impatient.request("GET", "/version")
    cluster.api_server.resume()
    assert until("an answer", lambda: impatient.request("GET", "/version"))["gitVersion"].startswith("v1.")


def test_cleaning_removes_all_that_was_made_even_with_servers_down(control_plane: ControlPlane):
    control_plane.add_nodes(2)
    control_plane.service_account("gpuwarden", "reader", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
    control_plane.namespace(NAMESPACE)
    control_plane.admin.create(job("training", NAMESPACE, 2))
    control_plane.admin.create(stateful_set("store", "default", 1))
    held = pod("held", NAMESPACE)
    held["metadata"]["finalizers"] = ["testbed.gpuwarden.io/never"]
    control_plane.admin.create(held)
    control_plane.admin.create(TRAINING)
    until("the new kind", lambda: serves_trainings(control_plane))
    control_plane.admin.create({"apiVersion": "example.org/v1", "kind": "Training", "metadata": named("one")})
    until("pods", lambda: len(control_plane.admin.list("Pod")) == 4)
    control_plane.kwok.stop()
    control_plane.controllers.pause()
    control_plane.clean()
    kinds = ("Node", "Pod", "Job", "StatefulSet", "Event")
    left = {kind: control_plane.admin.list(kind) for kind in kinds}
    # the node controller may tell of the removal itself a moment later
    left["Event"] = [event for event in left["Event"] if event["reason"] != "RemovingNode"]
    assert left == {kind: [] for kind in kinds}
    assert control_plane.admin.list("CustomResourceDefinition") == []
    left = {found["metadata"]["name"] for found in control_plane.admin.list("Namespace")}
    assert left == {"default", "kube-node-lease", "kube-public", "kube-system"}
    roles = [found["metadata"]["name"] for found in control_plane.admin.list("ClusterRole")]
    assert not [name for name in roles if name.startswith("testbed:")]
    assert control_plane.add_nodes(1) == ["gpu-0000"]
    control_plane.clean()


TRAINING = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainings.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"kind": "Training", "plural": "trainings"},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}


def serves_trainings(cluster: ControlPlane) -> bool:
    return "Training" in {kind.name for kind in cluster.admin.kinds()}


STARTS_AND_HANGS = """
import signal
from tests.testbed.build import binaries
from tests.testbed.control_plane import ControlPlane
with ControlPlane(binaries()) as plane:
    print(plane.folder, *(server.pid for server in plane.servers), flush=True)
    signal.pause()
"""


@pytest.mark.usefixtures("control_plane")
def test_nothing_outlives_a_run_that_is_killed(root: Path):
    command = [sys.executable, "-c", STARTS_AND_HANGS]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        assert len(pids) == 5
        assert all(map(lives, pids))
        run.kill()
    until("no process", lambda: not any(map(lives, pids)))
    until("no folder", lambda: not Path(folder).exists())


def lives(pid: str) -> bool:
    """Whether the process is there and not just waiting for its exit code to be read."""
    try:
        stat = Path("/proc", pid, "stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
