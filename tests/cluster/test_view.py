"""The view follows a real cluster, and finds back to it after whatever the API server or the network does."""

import gc
import json
import math
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from remediation.cluster.client import Cluster, Patience
from remediation.cluster.parse import Shared, parse_key, parse_pod
from remediation.cluster.view import ClusterView, Rhythm
from remediation.objects import Effect, Taint
from tests.cluster.proxy import Fault, FaultProxy
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import budget, deployment
from tests.testbed.waiting import until

NAMESPACE = "train"
QUICK = Rhythm(watch_s=2, silence_s=4, resync_s=600, first_wait_s=0.05, longest_wait_s=0.5)
IMPATIENT = Patience(connect_s=1, read_s=2)
EXPIRED = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}


@contextmanager
def viewing(configuration: Configuration, rhythm: Rhythm = QUICK) -> Iterator[ClusterView]:
    # Kinds of jobs are the matter of test_workloads_view.py.
    with closing(Cluster(configuration, IMPATIENT)) as cluster, ClusterView(cluster, rhythm, workloads=False) as view:
        assert view.wait(20), view.health()
        yield view


def direct(cluster: ControlPlane) -> Configuration:
    found = Configuration()
    load_kube_config(str(cluster.kubeconfig), client_configuration=found)
    return found


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[FaultProxy]:
    with FaultProxy(direct(cluster)) as made:
        yield made


def soon(what: str, view: ClusterView, seen: Callable[[], object], within_s: float = 20) -> None:
    try:
        until(what, seen, within_s=within_s)
    except Exception as late:
        late.add_note(str(view.health()))
        raise


# ----------------------------------------------------------------------------------------------------- it follows along


def test_nodes_appear_change_and_vanish(cluster: ControlPlane):
    (first,) = cluster.add_nodes(1)
    with viewing(direct(cluster)) as view:
        before = view.snapshot()
        assert list(before.nodes) == [first]
        assert (before.nodes[first].ready, before.nodes[first].gpus) == (True, 8)
        (second,) = cluster.add_nodes(1)
        soon("another node", view, lambda: set(view.snapshot().nodes) == {first, second})
        taint = Taint("gpuwarden.io/quarantine", Effect.NO_SCHEDULE, "xid")
        sent = {"key": taint.key, "effect": "NoSchedule", "value": "xid"}
        cluster.admin.patch("Node", first, {"spec": {"unschedulable": True, "taints": [sent]}})
        soon("its taint", view, lambda: taint in view.snapshot().nodes[first].taints)
        found = view.snapshot().nodes[first]
        assert found.unschedulable
        live = cluster.admin.get("Node", first)["metadata"]
        assert found.uid == live["uid"]
        cluster.admin.delete("Node", second)
        soon("its end", view, lambda: set(view.snapshot().nodes) == {first})
        assert list(before.nodes) == [first], "a snapshot never changes"
        assert before.nodes[first].taints == ()


def test_pods_are_seen_once_they_have_a_node_and_budgets_with_their_headroom(cluster: ControlPlane):
    (name,) = cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    with viewing(direct(cluster)) as view:
        cluster.admin.create(deployment("web", NAMESPACE, 3, gpus=4, grace_s=0))
        cluster.admin.create(budget("web", NAMESPACE, minAvailable=1))

        def ready() -> bool:
            pods = view.snapshot().pods_by_node.get(name, ())
            return [(pod.ready, pod.gpus) for pod in pods] == [(True, 4)] * 2

        soon("the two that fit", view, ready)
        owners = {pod.owner.kind for pod in view.snapshot().pods_by_node[name] if pod.owner}
        assert owners == {"ReplicaSet"}
        soon("the budget", view, lambda: [(b.allowed, b.current) for b in view.snapshot().pdbs] == [(1, True)])
        cluster.admin.delete("PodDisruptionBudget", "web", NAMESPACE)
        cluster.admin.patch("Deployment", "web", {"spec": {"replicas": 0}}, NAMESPACE)
        soon("nothing left", view, lambda: not view.snapshot().pods_by_node and not view.snapshot().pdbs)


def test_before_the_first_list_it_is_infinitely_stale():
    with closing(Cluster(Configuration(), IMPATIENT)) as cluster:
        view = ClusterView(cluster)
        snapshot = view.snapshot()
        assert (snapshot.stale_s, snapshot.nodes) == (math.inf, {})
        assert not view.wait(0)
        view.stop()


def test_where_nothing_changes_it_stays_fresh_without_lists(cluster: ControlPlane):
    cluster.add_nodes(1)
    with viewing(direct(cluster)) as view:
        heard: set[float] = set()

        def regular_ends() -> bool:
            snapshot = view.snapshot()
            assert snapshot.stale_s < QUICK.silence_s + IMPATIENT.read_s
            heard.add(round(time.monotonic() - snapshot.stale_s))
            return len(heard) > 3

        soon("a few ends of watches", view, regular_ends, within_s=30)
        assert [(kind.lists, kind.failures) for kind in view.health()] == [(1, 0)] * 3


# ------------------------------------------------------------------------------------------------- and finds back to it


def test_an_api_server_that_crashes_in_a_watch(cluster: ControlPlane):
    (name,) = cluster.add_nodes(1)
    with viewing(direct(cluster)) as view:
        cluster.api_server.stop()
        soon("the failures", view, lambda: all(kind.failures and kind.error for kind in view.health()))
        assert list(view.snapshot().nodes) == [name], "what was known stays known"
        cluster.start_api_server()
        cluster.admin.patch("Node", name, {"metadata": {"labels": {"seen": "yes"}}})
        soon("the change", view, lambda: view.snapshot().nodes[name].label("seen") == "yes")
        soon("no error", view, lambda: not any(kind.error for kind in view.health()))


def test_an_api_server_that_freezes_makes_the_view_stale_until_it_thaws(cluster: ControlPlane):
    (name,) = cluster.add_nodes(1)
    with viewing(direct(cluster)) as view:
        cluster.api_server.pause()
        soon("staleness", view, lambda: view.snapshot().stale_s > QUICK.silence_s + 1)
        soon("a silence noticed", view, lambda: all(kind.failures for kind in view.health()))
        cluster.api_server.resume()
        until("a change", lambda: cluster.admin.patch("Node", name, {"metadata": {"labels": {"seen": "yes"}}}))
        soon("the change", view, lambda: view.snapshot().nodes[name].label("seen") == "yes")
        soon("freshness", view, lambda: view.snapshot().stale_s < QUICK.watch_s + 1)


WATCH = ("GET /api/v1/nodes", "watch=true")
EVENT = json.dumps({"type": "ERROR", "object": EXPIRED}).encode() + b"\n"


@pytest.mark.parametrize(
    ("fault", "relists"),
    [
        pytest.param(Fault(WATCH, code=410, body=EXPIRED), True, id="410 as an answer"),
        pytest.param(Fault(WATCH, inject=EVENT, cut=True), True, id="410 as an event"),
        pytest.param(Fault(WATCH, 3, code=500), False, id="500s to its watch"),
        pytest.param(Fault(WATCH, 2, code=429, headers={"Retry-After": "1"}), False, id="429s to its watch"),
        pytest.param(Fault(WATCH, 3, cut=True), False, id="connections that break"),
        pytest.param(Fault(WATCH, 3, inject=b'{"type":"MODIF', cut=True), False, id="an event that breaks off"),
        pytest.param(Fault(WATCH, inject=b"<html>busy</html>\n", cut=True), False, id="a page instead of events"),
        pytest.param(Fault(WATCH, 3, code=200, body=b""), False, id="watches that end as soon as they begin"),
        pytest.param(Fault(WATCH, code=200, hang=True), True, id="a watch that never begins"),
    ],
)
def test_a_watch_that_fails_is_taken_up_again(cluster: ControlPlane, proxy: FaultProxy, fault: Fault, relists: bool):
    """FC108, FC110."""
    (name,) = cluster.add_nodes(1)
    planned = replace(fault)
    with viewing(proxy.configuration) as view:
        proxy.plan(planned)
        soon("the fault", view, lambda: planned.times == 0)
        cluster.admin.patch("Node", name, {"metadata": {"labels": {"seen": "yes"}}})
        soon("the change", view, lambda: view.snapshot().nodes[name].label("seen") == "yes")
        nodes = view.health()[0]
        assert nodes.failures >= 1
        assert nodes.lists == (2 if relists else 1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(("limit=",), 6, code=500), id="a server that can't list"),
        pytest.param(Fault(("limit=",), 6, code=429, headers={"Retry-After": "0"}), id="a server that throttles"),
        pytest.param(Fault(("limit=", "continue="), 1, code=410, body=EXPIRED), id="a page of a forgotten moment"),
        pytest.param(Fault(("limit=",), 3, code=200, body=b"{"), id="half a list"),
    ],
)
def test_a_list_that_fails_is_begun_again(cluster: ControlPlane, proxy: FaultProxy, fault: Fault):
    names = cluster.add_nodes(3)
    planned = replace(fault)
    proxy.plan(planned)
    with viewing(proxy.configuration, replace(QUICK, page=2)) as view:
        assert sorted(view.snapshot().nodes) == names
        assert planned.times == 0
        assert sum(kind.failures for kind in view.health()) >= 1


def test_a_watch_that_lies_is_healed_by_the_next_list(cluster: ControlPlane, proxy: FaultProxy):
    first, second = cluster.add_nodes(2)
    proxy.plan(Fault(("watch=true",), 1000, mute=True))
    with viewing(proxy.configuration, replace(QUICK, resync_s=1)) as view:
        cluster.admin.delete("Node", second)
        soon("its end", view, lambda: list(view.snapshot().nodes) == [first])
        assert view.health()[0].lists > 1


def test_an_event_that_makes_no_sense_is_counted_and_skipped(cluster: ControlPlane, proxy: FaultProxy):
    (name,) = cluster.add_nodes(1)
    odd: list[dict[str, Any]] = [
        {"type": "ADDED", "object": {"metadata": {"name": 7, "resourceVersion": ""}}},
        {"type": "DELETED", "object": {"metadata": {"name": None}}},
        {"type": "ODD", "object": {"metadata": {"name": name}, "spec": {"taints": 7}}},
    ]
    lines = b"".join(json.dumps(event).encode() + b"\n\n" for event in odd)
    with viewing(proxy.configuration) as view:
        proxy.plan(Fault(WATCH, inject=lines))
        soon("the odd events", view, lambda: view.snapshot().unreadable == len(odd))
        cluster.admin.patch("Node", name, {"metadata": {"labels": {"seen": "yes"}}})
        soon("the change", view, lambda: view.snapshot().nodes[name].label("seen") == "yes")


@pytest.mark.parametrize("fault", [Fault(), Fault(("watch=true",), 9, hang=True), Fault(("watch=true",), 99, code=500)])
def test_stopping_ends_all_its_threads(cluster: ControlPlane, proxy: FaultProxy, fault: Fault):
    cluster.add_nodes(1)
    proxy.plan(replace(fault))
    with viewing(proxy.configuration, replace(QUICK, watch_s=300, silence_s=2)) as view:
        soon("all kinds at it", view, lambda: sum("watch=true" in asked for asked in proxy.asked) >= 3)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("view-")]


# -------------------------------------------------------------------------------------------------------------- memory


def synthetic_pod(number: int) -> bytes:
    """A training pod as a cluster with CNI, Kueue and a device plug-in writes it, some 4 KB of JSON."""
    job = f"llm-pretrain-{number // 64}"
    template = {
        "name": "main",
        "image": "registry.example/train:1",
        "env": [{"name": f"E{i}", "value": "x" * 40} for i in range(20)],
    }
    return json.dumps(
        {
            "metadata": {
                "name": f"{job}-{number:05d}-x7k2p",
                "namespace": f"team-{number % 20}",
                "uid": f"5f0c1c1e-0000-4000-8000-{number:012d}",
                "resourceVersion": str(10**8 + number),
                "labels": {
                    "app": "train",
                    "batch.kubernetes.io/job-name": job,
                    "batch.kubernetes.io/controller-uid": f"c1c1c1c1-0000-4000-8000-{number // 64:012d}",
                    "batch.kubernetes.io/job-completion-index": str(number % 64),
                    "kueue.x-k8s.io/queue-name": "gpu",
                    "team": f"team-{number % 20}",
                },
                "annotations": {
                    "batch.kubernetes.io/job-completion-index": str(number % 64),
                    "cni.projectcalico.org/podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}/32",
                    "cni.projectcalico.org/containerID": f"{number:064x}",
                    "kueue.x-k8s.io/workload": f"job-{job}",
                },
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": job, "controller": True,
                     "uid": f"c1c1c1c1-0000-4000-8000-{number // 64:012d}"}
                ],
                "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field{i}": {} for i in range(60)}}],
            },
            "spec": {
                "nodeName": f"gpu-{number // 8:04d}",
                "containers": [template | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "tmp", "emptyDir": {}}],
                "terminationGracePeriodSeconds": 600,
            },
            "status": {
                "phase": "Running",
                "startTime": f"2026-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    ).encode()  # fmt: skip


def test_twenty_thousand_pods_fit_into_thirty_megabytes():
    count, design = 2000, 20_000
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        shared: Shared = {}
        held = {}
        for number in range(count):
            raw = synthetic_pod(number)
            held[parse_key(raw)] = parse_pod(raw, shared)
        del raw
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert len(held) == count
    assert each <= 1500, f"{each:.0f} bytes a pod, {each * design / 1e6:.0f} MB for {design}"
    print(f"{each:.0f} bytes a pod, {each * design / 1e6:.1f} MB for {design}")
