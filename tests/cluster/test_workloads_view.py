"""Jobs in the view of a real cluster: how often they may start again, and kinds that are not there or not ours to read.

Where an eviction is predicted to end a job, the job's own controller says whether that was right.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from remediation.cluster.client import Cluster
from remediation.cluster.view import WORKLOADS, ClusterView, KindHealth, Rhythm
from remediation.objects import PodView, WorkloadView
from remediation.workloads import ends_for_good, is_training, resource, root_of
from tests.cluster.proxy import Fault, FaultProxy
from tests.testbed.api import NotFound, Object, TooManyRequests
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import deployment, job
from tests.testbed.waiting import TestbedError, until

NAMESPACE = "train"
#: On a busy machine, what is not heard for a while is not gone.
CALM = Rhythm(watch_s=2, silence_s=60, resync_s=600, first_wait_s=0.05, longest_wait_s=0.5)
OFTEN = replace(CALM, resync_s=1)
QUICK = replace(CALM, silence_s=4)
JOBS, SETS = "jobs.v1.batch", "jobsets.v1alpha2.jobset.x-k8s.io"
ALL = tuple(resource(version, kind) for version, kind, _ in WORKLOADS)
NEEDED = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch"]},
]
MORE = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "watch"]}]


@contextmanager
def viewing(configuration: Configuration, rhythm: Rhythm = CALM, *, workloads: bool = True) -> Iterator[ClusterView]:
    with (
        closing(Cluster(configuration)) as cluster,
        ClusterView(cluster, rhythm, workloads=workloads) as view,
    ):
        assert view.wait(20), view.health()
        yield view


def loaded(kubeconfig: Path) -> Configuration:
    found = Configuration()
    load_kube_config(str(kubeconfig), client_configuration=found)
    return found


class Proxy(FaultProxy):
    """One whose end waits for the requests that it still has, so that none of them opens a connection afterwards."""

    daemon_threads = False
    block_on_close = True


@pytest.fixture
def proxy(cluster: ControlPlane) -> Iterator[FaultProxy]:
    with Proxy(loaded(cluster.kubeconfig)) as made:
        yield made


def soon(what: str, view: ClusterView, seen: Callable[[], Any], within_s: float = 40) -> Any:
    try:
        return until(what, seen, within_s=within_s)
    except TestbedError as late:
        late.add_note(str(view.health()))
        raise


def health(view: ClusterView, name: str) -> KindHealth:
    return next(kind for kind in view.health() if kind.name == name)


def found(view: ClusterView, name: str) -> WorkloadView | None:
    return next((each for each in view.snapshot().workloads.values() if each.name == name), None)


def running(view: ClusterView, app: str) -> list[PodView]:
    pods = [pod for pods in view.snapshot().pods_by_node.values() for pod in pods]
    return [pod for pod in pods if ("app", app) in pod.labels and pod.ready and pod.deleting_since is None]


def served(cluster: ControlPlane, definition: Object) -> None:
    """Create a CRD and wait until its objects are served."""
    spec = definition["spec"]
    cluster.admin.create(definition)
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def is_served() -> bool:
        try:
            return bool(cluster.admin.request("GET", path))
        except (NotFound, TooManyRequests):  # its storage is being set up
            return False

    until(path, is_served)


def job_set_definition() -> Object:
    """JobSet's CRD without its schema, which is some thousand lines."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "jobsets.jobset.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"},
        },
        "spec": {
            "group": "jobset.x-k8s.io",
            "names": {"kind": "JobSet", "listKind": "JobSetList", "plural": "jobsets", "singular": "jobset"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1alpha2",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def job_set(name: str, **spec: Any) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}


# ------------------------------------------------------------------------------------------------- Jobs, and evictions


def policy(action: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True"}
    return {"podFailurePolicy": {"rules": [{"action": action, "onPodConditions": [condition]}]}}


INDEXED = {"completionMode": "Indexed"}


@pytest.mark.parametrize(
    ("spec", "evictions"),
    [
        pytest.param({"backoffLimit": 0}, 1, id="that allows no failure"),
        pytest.param({"backoffLimit": 1}, 2, id="that allows one"),
        pytest.param({"backoffLimit": 0} | policy("Ignore"), None, id="that ignores disruptions"),
        pytest.param({"backoffLimit": 1} | policy("Count"), 2, id="that counts disruptions"),
        pytest.param({"backoffLimit": 6} | policy("FailJob"), 1, id="that fails with a disruption"),
        pytest.param(INDEXED | {"backoffLimitPerIndex": 1}, 2, id="that allows one for each index"),
        pytest.param(INDEXED | {"backoffLimitPerIndex": 3} | policy("FailIndex"), 1, id="whose index fails"),
    ],
)
def test_the_eviction_that_ends_a_job_is_known_beforehand(
    cluster: ControlPlane, spec: dict[str, Any], evictions: int | None
):
    """So many `evictions` end it. Where that is None, none does; one is tried, since a Job waits longer each time."""
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    manifest = job("llama", NAMESPACE, grace_s=1)
    del manifest["spec"]["backoffLimit"]
    manifest["spec"] |= spec
    cluster.admin.create(manifest)
    with viewing(loaded(cluster.kubeconfig)) as view:
        for number in range(1, (evictions or 1) + 1):
            (one,) = soon(f"pod {number}", view, lambda: running(view, "llama"), within_s=90)
            before = found(view, "llama")
            assert before is not None
            assert root_of(one, view.snapshot().workloads) == before
            assert is_training(one, view.snapshot().workloads)
            assert one.started is not None
            said = ends_for_good(one, view.snapshot().workloads, view.snapshot().unread_kinds)
            assert bool(said) is (number == evictions), said
            cluster.admin.evict(one.name, NAMESPACE)
            soon("its end", view, lambda gone=one.uid: gone not in {pod.uid for pod in all_pods(view)})
            if evictions is not None:
                soon("the count", view, lambda used=number: counted(view) >= used)
        if evictions is not None:
            ended = soon("the end", view, lambda: (each := found(view, "llama")) and each.finished and each)
            conditions = cluster.admin.get("Job", "llama", NAMESPACE)["status"]["conditions"]
            assert {"Failed", "FailureTarget"} & {each["type"] for each in conditions if each["status"] == "True"}
            assert not ends_for_good(one, {ended.uid: ended}), "what has ended cannot end again"
        else:
            soon("one more pod", view, lambda: running(view, "llama"), within_s=90)
            assert counted(view) == 0


def all_pods(view: ClusterView) -> list[PodView]:
    return [pod for pods in view.snapshot().pods_by_node.values() for pod in pods]


def counted(view: ClusterView) -> int:
    each = found(view, "llama")
    return -1 if each is None else each.restarts_used


def test_a_service_is_no_training_and_a_job_that_is_deleted_is_gone(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(job("llama", NAMESPACE, grace_s=0))
    cluster.admin.create(deployment("web", NAMESPACE, grace_s=0))
    with viewing(loaded(cluster.kubeconfig)) as view:
        (web,) = soon("the service", view, lambda: running(view, "web"))
        snapshot = view.snapshot()
        assert not is_training(web, snapshot.workloads)
        assert ends_for_good(web, snapshot.workloads, snapshot.unread_kinds) == ""
        soon("the Job", view, lambda: found(view, "llama"))
        cluster.admin.delete("Job", "llama", NAMESPACE)
        soon("its end", view, lambda: found(view, "llama") is None)
        assert [each.name for each in snapshot.workloads.values()] in ([], ["llama"]), "a snapshot never changes"


# ------------------------------------------------------------------------------------------- kinds that aren't there


def test_kinds_that_a_cluster_lacks_are_empty_fresh_and_cost_one_request(cluster: ControlPlane, proxy: FaultProxy):
    cluster.add_nodes(1)
    with viewing(proxy.configuration) as view:
        soon("all kinds", view, lambda: view.snapshot().unread_kinds == ())
        assert dict(view.snapshot().workloads) == {}
        nodes = "GET /api/v1/nodes?watch=true"
        soon("a few watches", view, lambda: sum(asked.startswith(nodes) for asked in proxy.asked) > 3)
        snapshot = view.snapshot()
        assert snapshot.unread_kinds == ()
        assert math.isfinite(snapshot.stale_s)
        assert {kind.name for kind in view.health() if kind.is_absent} == set(ALL) - {JOBS}
        assert [kind.error for kind in view.health() if kind.is_absent] == [""] * (len(WORKLOADS) - 1)
        for version, kind, _ in WORKLOADS[1:]:
            path = f"GET /apis/{version}/{kind.lower()}s?"
            assert sum(asked.startswith(path) for asked in proxy.asked) == 1


def test_a_kind_that_comes_later_is_found_and_one_that_goes_is_forgotten(cluster: ControlPlane):
    cluster.namespace(NAMESPACE)
    with viewing(loaded(cluster.kubeconfig), OFTEN) as view:
        soon("absence", view, lambda: health(view, SETS).is_absent)
        served(cluster, job_set_definition())
        cluster.admin.create(job_set("llama", failurePolicy={"maxRestarts": 2}))
        one = soon("the JobSet", view, lambda: found(view, "llama"))
        assert (one.kind, one.restarts_used, one.restarts_allowed) == ("JobSet", 0, 2)
        assert not health(view, SETS).is_absent
        body = {"status": {"restarts": 2, "restartsCountTowardsMax": 1}}
        cluster.admin.patch("JobSet.jobset.x-k8s.io", "llama", body, NAMESPACE, "status")
        soon("its restarts", view, lambda: (each := found(view, "llama")) and each.restarts_used == 1)
        cluster.admin.delete("CustomResourceDefinition", "jobsets.jobset.x-k8s.io")
        soon("its end", view, lambda: health(view, SETS).is_absent)
        assert found(view, "llama") is None
        soon("all kinds", view, lambda: view.snapshot().unread_kinds == ())


def test_what_a_jobset_owns_is_known_up_to_its_top(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    served(cluster, job_set_definition())
    top = cluster.admin.create(job_set("llama-set", failurePolicy={"maxRestarts": 1}))
    owner = {key: top[key] for key in ("apiVersion", "kind")} | {"controller": True}
    owner |= {key: top["metadata"][key] for key in ("name", "uid")}
    manifest = job("llama", NAMESPACE, backoff_limit=0, grace_s=0)
    manifest["metadata"]["ownerReferences"] = [owner]
    cluster.admin.create(manifest)
    with viewing(loaded(cluster.kubeconfig)) as view:
        (one,) = soon("its pod", view, lambda: running(view, "llama"))
        root = root_of(one, view.snapshot().workloads)
        assert isinstance(root, WorkloadView)
        assert (root.kind, root.name) == ("JobSet", "llama-set")
        assert ends_for_good(one, view.snapshot().workloads) == ""
        body = {"status": {"restarts": 1, "restartsCountTowardsMax": 1}}
        cluster.admin.patch("JobSet.jobset.x-k8s.io", "llama-set", body, NAMESPACE, "status")
        said = soon("the last restart", view, lambda: ends_for_good(one, view.snapshot().workloads))
        assert said == "JobSet train/llama-set would end for good: it has used 1 of 1 restarts"


@pytest.mark.parametrize(
    ("file", "manifest", "status", "expected"),
    [
        pytest.param(
            "jobs.batch.volcano.sh.yaml",
            {
                "apiVersion": "batch.volcano.sh/v1alpha1",
                "kind": "Job",
                "spec": {
                    "minAvailable": 1,
                    "policies": [{"event": "PodEvicted", "action": "RestartJob"}],
                    "tasks": [{"name": "w", "replicas": 1, "template": {}}],
                },
            },
            {"retryCount": 1, "state": {"phase": "Running"}},
            (1, 2, False),
            id="Volcano",
        ),
        pytest.param(
            "mpijobs.kubeflow.org.yaml",
            {
                "apiVersion": "kubeflow.org/v2beta1",
                "kind": "MPIJob",
                "spec": {
                    "runPolicy": {"backoffLimit": 3},
                    "mpiReplicaSpecs": {"Launcher": {"replicas": 1, "restartPolicy": "Never"}},
                },
            },
            {"replicaStatuses": {"Launcher": {"failed": 2}}},
            (2, 3, False),
            id="mpi-operator",
        ),
    ],
)
def test_jobs_of_operators_by_their_own_definitions(
    cluster: ControlPlane, shared: Path, file: str, manifest: Object, status: Object, expected: tuple[int, int, bool]
):
    definition = yaml.safe_load((shared / "data" / "crds" / file).read_text())
    definition.pop("status", None)
    served(cluster, definition)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(manifest | {"metadata": {"name": "gang", "namespace": NAMESPACE}})
    kind = f"{manifest['kind']}.{manifest['apiVersion'].partition('/')[0]}"
    with viewing(loaded(cluster.kubeconfig)) as view:
        soon("the job", view, lambda: found(view, "gang"))
        cluster.admin.patch(kind, "gang", {"status": status}, NAMESPACE, "status")
        one = soon("its restarts", view, lambda: (each := found(view, "gang")) and each.restarts_used and each)
        assert (one.restarts_used, one.restarts_allowed, one.finished) == expected
        assert one.api_version == manifest["apiVersion"]
        soon("all kinds", view, lambda: view.snapshot().unread_kinds == ())


# -------------------------------------------------------------------------------- kinds that cannot be read, or not now


def test_kinds_that_may_not_be_read_are_named_and_make_nothing_stale(cluster: ControlPlane):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(job("llama", NAMESPACE, grace_s=0))
    token = cluster.service_account("gpuwarden", "some", NEEDED)
    with viewing(loaded(cluster.kubeconfig_for(token, "some")), OFTEN) as view:
        (one,) = soon("the pod", view, lambda: running(view, "llama"))
        snapshot = view.snapshot()
        assert snapshot.unread_kinds == ALL
        assert math.isfinite(snapshot.stale_s)
        assert "jobs.v1.batch cannot be read" in ends_for_good(one, snapshot.workloads, snapshot.unread_kinds)
        soon("why", view, lambda: all("forbidden" in health(view, name).error for name in ALL))
        cluster.service_account("gpuwarden", "some", NEEDED + MORE)
        soon("the Job", view, lambda: found(view, "llama"))
        assert view.snapshot().unread_kinds == tuple(name for name in ALL if name != JOBS)
        assert ends_for_good(one, view.snapshot().workloads, view.snapshot().unread_kinds) == ""
        assert health(view, JOBS).error == ""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(("/apis/batch/v1/jobs",), 3, code=403), id="as after its start"),
        pytest.param(Fault(("/apis/batch/v1/jobs", "watch=true"), 1, code=403), id="only its watch"),
        pytest.param(Fault(("/apis/batch/v1/jobs", "watch=true"), 1, code=404), id="as if it were gone"),
    ],
)
def test_an_api_server_that_refuses_for_a_moment_is_asked_again_at_once(
    cluster: ControlPlane, proxy: FaultProxy, fault: Fault
):
    cluster.namespace(NAMESPACE)
    planned = replace(fault)
    proxy.plan(planned)
    with viewing(proxy.configuration) as view:
        soon("the fault", view, lambda: planned.times == 0)
        cluster.admin.create(job("llama", NAMESPACE))
        soon("the Job", view, lambda: found(view, "llama"))
        soon("all kinds", view, lambda: view.snapshot().unread_kinds == ())
        assert health(view, JOBS).failures >= 1


def test_a_kind_that_breaks_is_not_known_and_holds_nothing_else_up(cluster: ControlPlane, proxy: FaultProxy):
    """As where the webhook that converts between versions of a CRD is gone."""
    cluster.namespace(NAMESPACE)
    served(cluster, job_set_definition())
    cluster.admin.create(job_set("llama", failurePolicy={"maxRestarts": 2}))
    with viewing(proxy.configuration, replace(QUICK, resync_s=1)) as view:
        soon("the JobSet", view, lambda: found(view, "llama"))
        soon("all kinds", view, lambda: view.snapshot().unread_kinds == ())
        proxy.plan(Fault(("/jobset.x-k8s.io/",), 1_000_000, code=500))
        soon("that it is not known", view, lambda: view.snapshot().unread_kinds == (SETS,))
        assert found(view, "llama") is not None, "what was known stays known, for a person to see"
        assert view.snapshot().stale_s < health(view, SETS).stale_s
        proxy.heal()
        soon("that it is", view, lambda: view.snapshot().unread_kinds == ())


def test_an_api_server_that_crashes_leaves_jobs_unread_until_it_is_back(cluster: ControlPlane):
    cluster.namespace(NAMESPACE)
    cluster.admin.create(job("llama", NAMESPACE))
    with viewing(loaded(cluster.kubeconfig), QUICK) as view:
        soon("the Job", view, lambda: found(view, "llama"))
        cluster.api_server.stop()
        soon("that it is not known", view, lambda: JOBS in view.snapshot().unread_kinds)
        cluster.start_api_server()
        soon("that it is", view, lambda: JOBS not in view.snapshot().unread_kinds)
        cluster.admin.delete("Job", "llama", NAMESPACE)
        soon("its end", view, lambda: found(view, "llama") is None)


# -------------------------------------------------------------------------------------------------------- on and off


def test_a_view_without_jobs_asks_for_none_and_knows_of_none(cluster: ControlPlane, proxy: FaultProxy):
    cluster.namespace(NAMESPACE)
    cluster.admin.create(job("llama", NAMESPACE))
    with viewing(proxy.configuration, workloads=False) as view:
        assert not [asked for asked in proxy.asked if "/apis/batch" in asked]
        assert dict(view.snapshot().workloads) == {}
        assert view.snapshot().unread_kinds == ALL
        assert [kind.name for kind in view.health()] == ["nodes", "pods", "pdbs"]


def test_before_its_first_list_no_job_is_known():
    with closing(Cluster(Configuration())) as cluster:
        assert ClusterView(cluster).snapshot().unread_kinds == ALL


def test_stopping_ends_the_threads_that_wait_for_the_next_look_too(cluster: ControlPlane):
    with viewing(loaded(cluster.kubeconfig)) as view:
        soon("absence", view, lambda: health(view, SETS).is_absent)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("view-")]
