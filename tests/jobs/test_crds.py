"""What the hands send, against the kinds' own definitions on a real API server: it is taken in, and read back alike.

No controller of these kinds runs here; the test writes the status that theirs would. `Restorer.turn` is all that acts.
The definitions leave with the test (`cluster` empties the cluster), and the fixture `workload_controllers`, which
brings an MPIJob of another version, belongs to other modules and leaves with these, so the two never meet.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from remediation.cluster.client import Cluster
from remediation.cluster.hands import Hands
from remediation.cluster.marking import Tools
from remediation.cluster.restoring import Restorer
from remediation.cluster.view import ClusterSnapshot
from remediation.contract import CHECKPOINT_AT, CHECKPOINT_LOCATION, CHECKPOINT_STEP, REQUEST, checkpoint_of
from remediation.jobs import RESTART, RESTARTED
from remediation.limits import Attempt
from remediation.objects import CORDONED_BY, INCIDENT, MANAGED, OWNER, TAINT_KEY, OwnerRef, PodView, WorkloadView
from remediation.orders import Orders
from remediation.people import Said
from remediation.restoring import Restart, Stage
from remediation.wish import NodeWish
from rules.restore_schema import RestartPolicy
from rules.schema import Policy
from tests.acting.scenes import marked
from tests.acting.views import pod
from tests.jobs.kinds import STOPPED_AT, WHOLE, Object, Row, parsed
from tests.testbed import manifests
from tests.testbed.api import NotFound, TooManyRequests
from tests.testbed.control_plane import ControlPlane
from tests.testbed.nodes import DEFAULT_SHAPE, node
from tests.testbed.waiting import until

NAMESPACE = "train"
NOW = datetime.now(UTC)
POLICY = Policy(restart=RestartPolicy(enabled=True))
SAVED = {
    CHECKPOINT_AT: (NOW - timedelta(minutes=5)).isoformat(),
    CHECKPOINT_STEP: "100",
    CHECKPOINT_LOCATION: "s3://checkpoints/llama",
}
_TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "testbed.invalid/none"}]}}
#: By kind: the file of its definition, and a spec that it takes.
DEFINED: Mapping[tuple[str, str], tuple[str, Object]] = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): (
        "trainjobs.trainer.kubeflow.org.yaml",
        {"runtimeRef": {"name": "torch-distributed"}},
    ),
    ("kubeflow.org/v2beta1", "MPIJob"): (
        "mpijobs.kubeflow.org.yaml",
        {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": _TEMPLATE}}},
    ),
    ("batch.volcano.sh/v1alpha1", "Job"): (
        "jobs.batch.volcano.sh.yaml",
        {"minAvailable": 1, "tasks": [{"name": "w", "replicas": 1, "template": _TEMPLATE}]},
    ),
    ("ray.io/v1", "RayJob"): (
        "rayjobs.ray.io.yaml",
        {
            "entrypoint": "python train.py",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": _TEMPLATE}},
        },
    ),
}
ROWS = [row for row in WHOLE if (row.adapter.api_version, row.adapter.kind) in DEFINED]
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def define(cluster: ControlPlane, shared: Path, file: str) -> None:
    """Bring a kind in, and wait until its objects are served."""
    path = shared / "data" / "crds" / file
    if not path.is_file():
        pytest.skip(f"the definition {file} is not among the reference data")
    definition = yaml.safe_load(path.read_text(encoding="utf-8"))
    definition.pop("status", None)
    spec = definition["spec"]
    group = spec["group"]
    cluster.admin.create(definition)
    served = f"/apis/{group}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def is_served() -> bool:
        try:
            return bool(cluster.admin.request("GET", served) and cluster.admin.kind(f"{spec['names']['kind']}.{group}"))
        except (NotFound, TooManyRequests, LookupError):  # its storage is being set up, or discovery is behind
            return False

    until(served, is_served)


@dataclass(slots=True)
class Book:
    """A record in memory."""

    kept: dict[str, Restart] = field(default_factory=dict)
    said: Said = field(default_factory=Said)

    def restarts(self) -> Mapping[str, Restart]:
        return self.kept

    def history(self) -> tuple[Attempt, ...]:
        return ()

    def note(self, restarts: Sequence[Restart]) -> None:
        self.kept.update((one.id, one) for one in restarts)


class Site:
    """One job on one sick node, and the hands; what its controller would write is put in by `becomes`."""

    def __init__(self, plane: ControlPlane, cluster: Cluster, pool: ThreadPoolExecutor, row: Row) -> None:
        self.plane, self.row, self.book = plane, row, Book()
        self.now = datetime.now(UTC)
        self.may_act = True
        hands = Hands(cluster, lambda: self.may_act)
        tools = Tools(cluster, hands, self.book, pool, lambda: self.may_act, lambda: self.now)
        self.restorer = Restorer(tools, POLICY)
        group = row.adapter.api_version.rpartition("/")[0]
        self.kind = f"{row.adapter.kind}.{group}"

    def submit(self) -> None:
        _, spec = DEFINED[self.row.adapter.api_version, self.row.adapter.kind]
        metadata = {"name": "llama", "namespace": NAMESPACE, "annotations": SAVED}
        version, kind = self.row.adapter.api_version, self.row.adapter.kind
        self.plane.admin.create({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
        self.becomes({"status": self.row.runs["status"]})

    def becomes(self, change: Object) -> None:
        """Its status as its controller writes it, with what the definition wants of each entry besides."""
        wanted = {"conditions": {"message": "", "reason": "Because", "lastTransitionTime": "2026-05-04T08:00:00Z"}}
        status = dict(change["status"])
        for name, more in wanted.items():
            if name in status:
                status[name] = [more | one for one in status[name]]
        self.plane.admin.patch(self.kind, "llama", {"status": status}, NAMESPACE, "status")

    @property
    def raw(self) -> Object:
        return self.plane.admin.get(self.kind, "llama", NAMESPACE)

    @property
    def job(self) -> WorkloadView:
        """As the view would have it."""
        return parsed(self.raw)

    def pods(self, uid: str = "uid-llama-0") -> tuple[PodView, ...]:
        job = self.job
        owner = OwnerRef(job.api_version, job.kind, job.name, job.uid)
        return (pod("llama-0", uid=uid, node="n000", owner=owner, gpus=8),)

    def turn(self, pods: Sequence[PodView] = (), job: WorkloadView | None = None, **wish: Any) -> Restart | None:
        """One turn of the hands, a second later; what they have written down. `job` is what the view still has."""
        job = job or self.job
        told = NodeWish("n000", ("inc-1",), "xid_79", NOW, cordon=True, drain=True, quarantine=True)
        orders = Orders(self.now, {"n000": replace(told, **wish)}, standing=frozenset({"inc-1"}))
        seen = ClusterSnapshot(
            {"n000": marked(unschedulable=True)}, {"n000": tuple(pods)}, (), self.now, 0.0, workloads={job.uid: job}
        )
        self.now += timedelta(seconds=1)
        self.restorer.turn(orders, seen)
        assert len(self.book.kept) <= 1, "one fault restarts a job once"
        return next(iter(self.book.kept.values()), None)

    def goes_on(self, pods: Sequence[PodView] = ()) -> Stage:
        """The stage after one more turn."""
        restart = self.turn(pods)
        assert restart is not None
        return restart.stage

    def commands(self) -> dict[str, Object]:
        return {one["metadata"]["name"]: one for one in self.plane.admin.list("Command.bus.volcano.sh", NAMESPACE)}


def taken_out(plane: ControlPlane, name: str) -> None:
    """A node that carries our marks: the hands read it again before they stop anything."""
    made = node(name, 900, DEFAULT_SHAPE, datetime.now(UTC))
    made["metadata"]["annotations"] |= {CORDONED_BY: OWNER, INCIDENT: "inc-1"}
    made["spec"] |= {"unschedulable": True, "taints": [{"key": TAINT_KEY, "value": "xid_79", "effect": "NoSchedule"}]}
    plane.admin.create(made)


@pytest.fixture
def make_site(cluster: ControlPlane, shared: Path) -> Iterator[Any]:
    configuration = Configuration()
    load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    with closing(Cluster(configuration)) as client, ThreadPoolExecutor(2) as pool:

        def make(row: Row) -> Site:
            define(cluster, shared, DEFINED[row.adapter.api_version, row.adapter.kind][0])
            if row.adapter.api_version.startswith("batch.volcano.sh"):
                define(cluster, shared, "commands.bus.volcano.sh.yaml")
            cluster.namespace(NAMESPACE)
            cluster.add_nodes(1)
            taken_out(cluster, "n000")
            site = Site(cluster, client, pool, row)
            site.submit()
            return site

        yield make


@EACH
def test_a_job_is_stopped_and_started_by_what_its_own_definition_takes(make_site, row: Row) -> None:
    site = make_site(row)
    assert checkpoint_of(site.job, (), NOW).is_known
    assert not row.adapter.stopped(site.job)

    restart = site.turn(site.pods())
    assert restart is not None
    assert restart.stage is Stage.STOPPING
    ordered = site.job
    assert ordered.annotation(RESTART) == restart.id
    if row.adapter.api_version.startswith("batch.volcano.sh"):
        assert_ordered(site, restart, "AbortJob")
    else:
        assert ordered.suspended
    assert checkpoint_of(ordered, (), NOW).step == 100, "what was there before is there still"

    site.becomes(row.goes)
    assert site.goes_on(site.pods()) is Stage.STOPPING
    site.becomes(row.gone)
    assert row.adapter.stopped(site.job)
    assert site.goes_on() is Stage.STARTING
    started = site.job
    assert (started.annotation(RESTART), started.annotation(RESTARTED)) == ("", restart.id)
    if row.adapter.api_version.startswith("batch.volcano.sh"):
        assert_ordered(site, restart, "ResumeJob")
    else:
        assert not started.suspended

    site.becomes(row.back)
    assert site.goes_on() is Stage.WATCHING
    assert row.adapter.resumed(site.job, STOPPED_AT)


def assert_ordered(site: Site, restart: Restart, action: str) -> None:
    command = site.commands()[f"{restart.id}-{action.lower()}"]
    assert command["action"] == action
    assert command["target"]["uid"] == site.job.uid


def labelled_pod(site: Site, label: str) -> str:
    """A pod of the job that runs, on the API server itself; its UID."""
    made = manifests.pod("llama-0", NAMESPACE)
    made["metadata"]["labels"] = dict([label.split("=")])
    uid: str = site.plane.admin.create(made)["metadata"]["uid"]
    until("its node", lambda: site.plane.admin.get("Pod", "llama-0", NAMESPACE)["spec"].get("nodeName"))
    return uid


@EACH
def test_a_job_is_not_started_beside_a_pod_of_it_that_only_the_api_server_knows(make_site, row: Row) -> None:
    """A view may be behind, or lack what stands between pod and job: a second writer would ruin the checkpoint."""
    site = make_site(row)
    left = labelled_pod(site, row.pods)
    restart = site.turn(site.pods(left))
    assert restart is not None
    site.becomes(row.goes)
    site.becomes(row.gone)
    assert [site.goes_on(), site.goes_on()] == [Stage.STARTING] * 2
    assert (site.job.annotation(RESTART), site.job.annotation(RESTARTED)) == (restart.id, "")
    site.plane.admin.delete("Pod", "llama-0", NAMESPACE, grace_s=0)
    until("its end", lambda: site.plane.admin.find("Pod", "llama-0", NAMESPACE) is None)
    site.goes_on()
    assert site.job.annotation(RESTARTED) == restart.id


@EACH
def test_a_job_is_asked_for_a_checkpoint_on_its_own_object(make_site, row: Row) -> None:
    site = make_site(row)
    asked = {"metadata": {"annotations": {"gpuwarden.io/checkpoint-ask": "annotation"}}}
    site.plane.admin.patch(site.kind, "llama", asked, NAMESPACE)
    restart = site.turn(site.pods(), asks=True)
    assert restart is not None
    assert restart.stage is Stage.ASKING
    assert site.job.annotation(REQUEST) == restart.id
    assert not site.job.suspended
    assert site.job.annotation(RESTART) == ""


@EACH
def test_another_job_that_has_taken_the_name_is_left_alone(make_site, row: Row) -> None:
    """The view may be a moment behind: the job was deleted, and submitted again under its name."""
    site = make_site(row)
    before, pods = site.job, site.pods()
    site.plane.admin.delete(site.kind, "llama", NAMESPACE)
    until("its end", lambda: site.plane.admin.find(site.kind, "llama", NAMESPACE) is None)
    site.submit()
    other = site.raw
    restart = site.turn(pods, before)
    assert restart is not None
    assert restart.job.uid == before.uid != other["metadata"]["uid"]
    assert site.raw == other


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"unschedulable": None}}, id="a person has uncordoned it"),
        pytest.param({"spec": {"taints": None}}, id="a person has taken our taint off"),
        pytest.param({"metadata": {"labels": {MANAGED: "false"}}}, id="its owner has opted out"),
    ],
)
def test_no_job_is_stopped_for_a_node_that_is_not_ours_any_more(make_site, change: Object) -> None:
    """The live node is read again right before: the view may be a moment behind."""
    site = make_site(ROWS[0])
    site.plane.admin.patch("Node", "n000", change)
    restart = site.turn(site.pods())
    assert restart is not None
    assert restart.stage is Stage.STOPPING
    assert site.job.annotation(RESTART) == ""


def test_no_job_is_stopped_while_a_gate_holds_the_drain_back(make_site) -> None:
    site = make_site(ROWS[0])
    asked = {"metadata": {"annotations": {"gpuwarden.io/checkpoint-ask": "annotation"}}}
    site.plane.admin.patch(site.kind, "llama", asked, NAMESPACE)
    restart = site.turn(site.pods(), asks=True)
    assert restart is not None
    answer = {"metadata": {"annotations": {"gpuwarden.io/checkpoint-ack": restart.id}}}
    site.plane.admin.patch(site.kind, "llama", answer, NAMESPACE)
    site.turn(site.pods(), drain=False, asks=False)
    held = site.turn(site.pods(), drain=False, asks=False)
    assert held is not None
    assert held.stage is Stage.STOPPING
    assert site.job.annotation(RESTART) == ""
    site.turn(site.pods())
    assert site.job.annotation(RESTART) == restart.id


@EACH
def test_who_may_not_act_changes_nothing(make_site, row: Row) -> None:
    site = make_site(row)
    before = site.raw
    site.may_act = False
    assert site.turn(site.pods()) is None
    assert site.raw == before


@pytest.mark.parametrize(
    ("file", "manifest", "owner"),
    [
        pytest.param(
            "rayclusters.ray.io.yaml",
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "spec": {"headGroupSpec": {"rayStartParams": {}, "template": _TEMPLATE}},
            },
            OwnerRef("ray.io/v1", "RayJob", "llama", "uid-1"),
            id="a Ray cluster, which leads to its RayJob",
        ),
        pytest.param(
            "leaderworkersets.leaderworkerset.x-k8s.io.yaml",
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": _TEMPLATE}},
            },
            None,
            id="a LeaderWorkerSet, which is its own",
        ),
    ],
)
def test_what_stands_between_a_job_and_its_pods_is_read(
    cluster: ControlPlane, shared: Path, file: str, manifest: Object, owner: OwnerRef | None
) -> None:
    define(cluster, shared, file)
    cluster.namespace(NAMESPACE)
    metadata: Object = {"name": "between", "namespace": NAMESPACE}
    if owner is not None:
        ref = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        metadata["ownerReferences"] = [ref | {"controller": True}]
    made = parsed(cluster.admin.create(manifest | {"metadata": metadata}))
    assert (made.kind, made.api_version, made.name) == (manifest["kind"], manifest["apiVersion"], "between")
    assert made.owner == owner
    assert made.uid
