"""The API server's answers as types, on the real server and, for what it does only under stress, from a proxy."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_kube_config

from remediation.cluster import wire
from remediation.cluster.answers import (
    Answer,
    ClusterError,
    Evicted,
    Eviction,
    Failure,
    error_of,
    evicted_of,
    retry_after,
)
from remediation.cluster.client import Cluster, Patience
from tests.cluster.proxy import Fault, FaultProxy
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import budget, deployment, pod
from tests.testbed.waiting import until

NAMESPACE = "train"
NODES = "/api/v1/nodes"
QUICK = Patience(connect_s=2, read_s=2, attempts=3, first_wait_s=0.01)


def status(code: int, message: str = "", reason: str = "", **details: Any) -> Answer:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason}
    return Answer(code, msgspec.json.encode(body | ({"details": details} if details else {})))


def cause(reason: str, message: str = "") -> dict[str, Any]:
    return {"causes": [{"reason": reason, "message": message}]}


SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."

# ------------------------------------------------------------------------------------------------------- answers, pure


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(Answer(201, b'{"kind":"Status","status":"Success"}'), Evicted(Eviction.DONE), id="accepted"),
        pytest.param(
            status(404, 'pods "a" not found', "NotFound", kind="pods"),
            Evicted(Eviction.GONE, 'pods "a" not found'),
            id="the pod is gone",
        ),
        pytest.param(
            Answer(404, b"404 page not found"),
            Evicted(Eviction.REFUSED, "404 page not found"),
            id="a 404 that speaks of no pod proves nothing about it",
        ),
        pytest.param(
            status(409, "Precondition failed: UID in precondition: x, UID in object meta: y", "Conflict"),
            Evicted(Eviction.REPLACED, "Precondition failed: UID in precondition: x, UID in object meta: y"),
            id="another pod has taken the name",
        ),
        pytest.param(
            status(409, "the UID in the precondition (x) does not match the UID in record (y).", "Conflict"),
            Evicted(Eviction.REPLACED, "the UID in the precondition (x) does not match the UID in record (y)."),
            id="another pod has taken the name, in other words",
        ),
        pytest.param(
            status(429, "Cannot evict", "TooManyRequests", **cause("DisruptionBudget", "web needs 2 and has 2")),
            Evicted(Eviction.BLOCKED, "web needs 2 and has 2"),
            id="a budget says no and names no time",
        ),
        pytest.param(
            status(429, "Cannot evict", "", retryAfterSeconds=10, **cause("DisruptionBudget", "still processed")),
            Evicted(Eviction.BLOCKED, "still processed", 10),
            id="a budget whose status is behind says when to ask again",
        ),
        pytest.param(
            Answer(429, status(429, "too many requests").body, 3),
            Evicted(Eviction.OVERLOADED, "too many requests", 3),
            id="a busy server is no budget",
        ),
        pytest.param(status(500, SEVERAL), Evicted(Eviction.SEVERAL_PDBS, SEVERAL), id="two budgets, as a 500"),
        pytest.param(
            Answer(201, status(500, SEVERAL).body),
            Evicted(Eviction.SEVERAL_PDBS, SEVERAL),
            id="two budgets, as a failure inside a 201",
        ),
        pytest.param(
            status(403, "is forbidden", "Forbidden", **cause("NamespaceTerminating")),
            Evicted(Eviction.NAMESPACE_TERMINATING, "is forbidden"),
            id="its namespace is going away",
        ),
        pytest.param(status(403, "no RBAC", "Forbidden"), Evicted(Eviction.REFUSED, "no RBAC"), id="we may not evict"),
        pytest.param(status(422, "bad", "Invalid"), Evicted(Eviction.REFUSED, "bad"), id="the request is wrong"),
    ],
)
def test_an_eviction_ends_as(answer: Answer, expected: Evicted):
    assert evicted_of("POST x", answer) == expected


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        pytest.param(status(500, "etcd is down"), Failure.SERVER, id="a server that can't"),
        pytest.param(status(504, "timeout", "Timeout"), Failure.SERVER, id="a server that gave up"),
        pytest.param(status(401, "Unauthorized"), Failure.UNAUTHORIZED, id="a token that has run out"),
        pytest.param(status(409, "the object has been modified"), Failure.CONFLICT, id="a race on the budget"),
    ],
)
def test_no_verdict_on_an_eviction_is_an_error(answer: Answer, kind: Failure):
    with pytest.raises(ClusterError) as failure:
        evicted_of("POST x", answer)
    assert failure.value.kind is kind


@given(st.integers(100, 599), st.binary(max_size=200))
def test_no_answer_is_too_odd_to_be_named(code: int, body: bytes):
    answer = Answer(code, body)
    try:
        result = evicted_of("POST x", answer).result
    except ClusterError as failure:
        result = failure.kind
    assert (result is Eviction.DONE) == (not answer.failed)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        pytest.param(None, None, id="none"),
        pytest.param("0", 0, id="at once"),
        pytest.param("7", 7, id="seconds"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 GMT", None, id="a date"),
        pytest.param("-1", None, id="a time that has gone"),
        pytest.param("²", None, id="a digit that is none"),
    ],
)
def test_retry_after_is(header: str | None, seconds: float | None):
    assert retry_after(header) == seconds


@pytest.mark.parametrize(
    ("kind", "retryable", "outcome_unknown"),
    [
        (Failure.UNREACHABLE, True, False),
        (Failure.TIMED_OUT, True, True),
        (Failure.DISCONNECTED, True, True),
        (Failure.OVERLOADED, True, False),
        (Failure.SERVER, True, True),
        (Failure.CONFLICT, False, False),
        (Failure.FORBIDDEN, False, False),
    ],
)
def test_what_an_error_means_for_the_next_step(kind: Failure, retryable: bool, outcome_unknown: bool):
    error = ClusterError(kind, "PATCH x", "")
    assert (error.retryable, error.outcome_unknown) == (retryable, outcome_unknown)


def test_an_error_says_what_was_asked_and_what_the_server_said():
    error = error_of("PATCH /api/v1/nodes/a", status(409, "the object has been modified", "Conflict"))
    assert str(error) == "PATCH /api/v1/nodes/a: conflict (409 Conflict): the object has been modified"


# ------------------------------------------------------------------------------------- a server under stress, by proxy


class Stressed:
    """A client whose waits are written down instead of waited."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.waits: list[float] = []
        self.cluster = Cluster(proxy.configuration, QUICK, self.waits.append)


@pytest.fixture
def stressed() -> Iterator[Stressed]:
    with FaultProxy() as proxy:
        made = Stressed(proxy)
        with closing(made.cluster):
            yield made


OK = Fault(code=200, body={"kind": "Node"}, times=100)


def read(cluster: Cluster) -> object:
    return cluster.get(f"{NODES}/a")


def write(cluster: Cluster) -> object:
    return cluster.patch_merge(f"{NODES}/a", {"spec": {"unschedulable": True}})


@pytest.mark.parametrize("ask", [read, write])
def test_throttling_is_waited_out_as_long_as_the_server_says(stressed: Stressed, ask: Callable[[Cluster], object]):
    """FC104, FC110: a 429 that speaks of no budget is load, and is waited out."""
    stressed.proxy.plan(Fault(code=429, headers={"Retry-After": "7"}), OK)
    assert ask(stressed.cluster) == {"kind": "Node"}
    assert len(stressed.waits) == 1
    assert 7 <= stressed.waits[0] <= 7 * 1.25


def test_waits_grow_where_the_server_names_no_time(stressed: Stressed):
    stressed.proxy.plan(Fault(code=500, times=2), OK)
    read(stressed.cluster)
    assert [round(wait, 2) for wait in stressed.waits] == sorted(round(wait, 2) for wait in stressed.waits)
    assert stressed.waits[1] >= 2 * QUICK.first_wait_s


@pytest.mark.parametrize(
    ("ask", "fault", "kind", "asked"),
    [
        pytest.param(read, Fault(code=503, times=9), Failure.SERVER, 3, id="a read that fails is given up at last"),
        pytest.param(write, Fault(code=503, times=9), Failure.SERVER, 1, id="a write that may have happened"),
        pytest.param(write, Fault(code=409, times=9), Failure.CONFLICT, 1, id="a conflict is the caller's to solve"),
        pytest.param(read, Fault(code=404, times=9), Failure.NOT_FOUND, 1, id="what isn't there"),
        pytest.param(
            read,
            Fault(code=429, headers={"Retry-After": "3600"}, times=9),
            Failure.OVERLOADED,
            1,
            id="an hour is too long to wait here",
        ),
        pytest.param(read, Fault(code=200, body=b"<html>"), Failure.UNREADABLE, 1, id="a page from somebody else"),
        pytest.param(read, Fault(code=302, times=9, headers={"Location": "/x"}), Failure.INVALID, 1, id="a redirect"),
    ],
)
def test_it_gives_up(stressed: Stressed, ask: Callable[[Cluster], object], fault: Fault, kind: Failure, asked: int):
    stressed.proxy.plan(fault)
    with pytest.raises(ClusterError) as failure:
        ask(stressed.cluster)
    assert failure.value.kind is kind
    assert len(stressed.proxy.asked) == asked


def test_a_server_that_never_answers_a_write_leaves_its_outcome_open():
    with FaultProxy() as proxy, closing(Cluster(proxy.configuration, Patience(read_s=0.2))) as cluster:
        proxy.plan(Fault(hang=True, times=9))
        with pytest.raises(ClusterError) as failure:
            write(cluster)
        assert (failure.value.kind, failure.value.outcome_unknown) == (Failure.TIMED_OUT, True)
        assert len(proxy.asked) == 1


def test_a_lease_call_ends_when_its_caller_says(stressed: Stressed):
    stressed.proxy.plan(Fault(hang=True))
    with pytest.raises(ClusterError) as failure:
        stressed.cluster.get_lease("gpuwarden", "leader", timeout_s=0.1)
    assert failure.value.kind is Failure.TIMED_OUT


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"<html>busy</html>\n", id="a page"),
        pytest.param(b'{"type":"ADDED","object":7}\n', id="an object that is a number"),
        pytest.param(b"x" * 5000, id="an event without an end"),
    ],
)
def test_a_watch_that_sends_something_else(stressed: Stressed, monkeypatch: pytest.MonkeyPatch, sent: bytes):
    monkeypatch.setattr(wire, "LONGEST_EVENT_BYTES", 4096)
    stressed.proxy.plan(Fault(code=200, body=sent))
    with pytest.raises(ClusterError) as failure:
        list(stressed.cluster.watch(NODES, "1", timeout_s=1))
    assert failure.value.kind is Failure.UNREADABLE


def test_a_token_that_cannot_be_renewed_stops_the_request_before_it_is_sent():
    def renew(_: Configuration) -> None:
        raise ConfigException("the exec plug-in failed")

    with FaultProxy() as proxy:
        configuration = proxy.configuration
        configuration.api_key = {"authorization": "Bearer old"}
        configuration.refresh_api_key_hook = renew
        with closing(Cluster(configuration, QUICK)) as cluster, pytest.raises(ClusterError) as failure:
            read(cluster)
        assert (failure.value.kind, proxy.asked) == (Failure.UNCONFIGURED, [])


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    nowhere = Configuration()
    nowhere.host = f"http://127.0.0.1:{port}"
    waits: list[float] = []
    with closing(Cluster(nowhere, QUICK, waits.append)) as cluster, pytest.raises(ClusterError) as failure:
        write(cluster)
    assert failure.value.kind is Failure.UNREACHABLE
    assert not failure.value.outcome_unknown
    assert len(waits) == QUICK.attempts - 1


NO_CERTIFICATE = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1", certificate-authority: nowhere.pem}}]
users: [{name: a, user: {}}]
"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="that is not there"),
        pytest.param("", id="that is empty"),
        pytest.param("a: [", id="that is no YAML"),
        pytest.param("just text", id="that is a word"),
        pytest.param("[1, 2]", id="that is a list"),
        pytest.param("apiVersion: v1\nkind: Config", id="without a context"),
        pytest.param(NO_CERTIFICATE, id="whose certificate is missing"),
    ],
)
def test_a_kubeconfig_is_refused(tmp_path: Path, text: str | None):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError, match=r"(?s)kubeconfig .*/config: unconfigured: .*works with kubectl"):
        Cluster.from_kubeconfig(path)


@pytest.mark.parametrize("grace_s", [0, -1])
def test_a_pod_is_never_forced_off(stressed: Stressed, grace_s: int):
    with pytest.raises(ValueError, match="at least 1"):
        stressed.cluster.evict(NAMESPACE, "a", "uid", grace_s=grace_s)
    assert stressed.proxy.asked == []


def test_no_proxy_of_the_environment_holds(cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with closing(Cluster.from_kubeconfig(cluster.kubeconfig, patience=QUICK)) as made:
        assert made.get(NODES)["kind"] == "NodeList"


def test_outside_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="give a kubeconfig"):
        Cluster.in_cluster()


# --------------------------------------------------------------------------------------------------- the real server


@pytest.fixture
def client(cluster: ControlPlane) -> Iterator[Cluster]:
    with closing(Cluster.from_kubeconfig(cluster.kubeconfig, patience=QUICK)) as made:
        yield made


def running(cluster: ControlPlane, count: int) -> list[dict[str, Any]]:
    def ready() -> list[dict[str, Any]] | None:
        pods = cluster.admin.list("Pod", NAMESPACE)
        return pods if [p["status"]["phase"] for p in pods] == ["Running"] * count else None

    return until(f"{count} running pods", ready)


def test_a_list_comes_in_pages_of_one_moment(cluster: ControlPlane, client: Cluster):
    names = cluster.add_nodes(5)
    pages = list(client.list_pages(NODES, limit=2))
    found = [msgspec.json.decode(raw)["metadata"]["name"] for page in pages for raw in page.items]
    assert (found, [len(page.items) for page in pages]) == (names, [2, 2, 1])
    assert len({page.version for page in pages}) == 1
    chosen = [*client.list_pages(NODES, field_selector=f"metadata.name={names[3]}")]
    assert [len(page.items) for page in chosen] == [1]
    assert [len(page.items) for page in client.list_pages(NODES, label_selector="none=here")] == [0]


def test_a_watch_tells_what_changes_and_ends_in_time(cluster: ControlPlane, client: Cluster):
    (name,) = cluster.add_nodes(1)
    (page,) = client.list_pages(NODES)
    cluster.admin.patch("Node", name, {"metadata": {"labels": {"seen": "yes"}}})
    events = list(client.watch(NODES, page.version, timeout_s=2))
    assert "yes" in [msgspec.json.decode(event.object)["metadata"].get("labels", {}).get("seen") for event in events]
    assert int(events[-1].version) > int(page.version)


def test_a_watch_from_before_the_servers_start_is_expired(cluster: ControlPlane, client: Cluster):
    cluster.add_nodes(1)
    cluster.restart_api_server()
    with pytest.raises(ClusterError) as failure:
        list(client.watch(NODES, "1", timeout_s=2))
    assert failure.value.kind is Failure.EXPIRED


def test_a_patch_of_an_object_that_has_changed_is_a_conflict_and_a_dry_run_stores_nothing(
    cluster: ControlPlane, client: Cluster
):
    (name,) = cluster.add_nodes(1)
    path = f"{NODES}/{name}"
    assert client.patch_merge(path, {"spec": {"unschedulable": True}}, dry_run=True)["spec"]["unschedulable"] is True
    assert "unschedulable" not in client.get(path)["spec"]
    with pytest.raises(ClusterError) as failure:
        client.patch_merge(path, {"metadata": {"resourceVersion": "1"}, "spec": {"unschedulable": True}})
    assert failure.value.kind is Failure.CONFLICT
    client.patch_merge(path, {"spec": {"unschedulable": True}})
    assert client.get(path)["spec"]["unschedulable"] is True


def test_a_condition_is_added_beside_those_of_others(cluster: ControlPlane, client: Cluster):
    (name,) = cluster.add_nodes(1)
    condition = {"type": "GPUHealthy", "status": "False", "reason": "Xid", "message": ""}
    client.patch_strategic(f"{NODES}/{name}", {"status": {"conditions": [condition]}})
    found = {c["type"]: c["status"] for c in client.get(f"{NODES}/{name}")["status"]["conditions"]}
    assert found.items() >= {"GPUHealthy": "False", "Ready": "True", "DiskPressure": "False"}.items()


def test_an_eviction_by_uid_under_a_budget(cluster: ControlPlane, client: Cluster):
    """FC104: the 429 of an eviction is a budget, known by its cause."""
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(deployment("web", NAMESPACE, 2))
    victim = running(cluster, 2)[0]["metadata"]
    name, uid = victim["name"], victim["uid"]
    assert client.evict(NAMESPACE, "none", uid).result is Eviction.GONE
    assert client.evict(NAMESPACE, name, "00000000-0000-0000-0000-000000000000").result is Eviction.REPLACED
    assert client.evict(NAMESPACE, name, uid, dry_run=True) == Evicted(Eviction.DONE)
    assert "deletionTimestamp" not in cluster.admin.get("Pod", name, NAMESPACE)["metadata"]
    cluster.admin.create(budget("web", NAMESPACE, minAvailable=2))
    until("the budget", lambda: cluster.admin.get("PodDisruptionBudget", "web", NAMESPACE)["status"]["currentHealthy"])
    for dry_run in (True, False):
        blocked = client.evict(NAMESPACE, name, uid, dry_run=dry_run)
        assert blocked.result is Eviction.BLOCKED
        assert "budget web needs 2 healthy pods" in blocked.detail
    cluster.admin.delete("PodDisruptionBudget", "web", NAMESPACE)
    until("no budget", lambda: client.evict(NAMESPACE, name, uid, grace_s=900, dry_run=True).is_over)
    assert client.evict(NAMESPACE, name, uid, grace_s=900) == Evicted(Eviction.DONE)


def test_two_budgets_over_one_pod_are_for_a_person(cluster: ControlPlane, client: Cluster):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    cluster.admin.create(pod("bare", NAMESPACE))
    uid = running(cluster, 1)[0]["metadata"]["uid"]
    for name in ("one", "two"):
        made = budget("bare", NAMESPACE, maxUnavailable=0)
        cluster.admin.create(made | {"metadata": {"name": name, "namespace": NAMESPACE}})
    evicted = client.evict(NAMESPACE, "bare", uid)
    assert (evicted.result, evicted.retryable) == (Eviction.SEVERAL_PDBS, False)


def test_a_namespace_that_is_going_away_takes_no_eviction(cluster: ControlPlane, client: Cluster):
    cluster.add_nodes(1)
    cluster.namespace(NAMESPACE)
    held = pod("held", NAMESPACE)
    held["metadata"]["finalizers"] = ["testbed.gpuwarden.io/never"]
    cluster.admin.create(held)
    uid = running(cluster, 1)[0]["metadata"]["uid"]
    cluster.admin.delete("Namespace", NAMESPACE)
    until("the refusal", lambda: client.evict(NAMESPACE, "held", uid).result is Eviction.NAMESPACE_TERMINATING)


def test_who_may_not_evict_is_refused(cluster: ControlPlane):
    token = cluster.service_account("gpuwarden", "reader")
    with closing(Cluster.from_kubeconfig(cluster.kubeconfig_for(token, "reader"), patience=QUICK)) as reader:
        evicted = reader.evict("gpuwarden", "any", "uid")
        assert evicted.result is Eviction.REFUSED
        assert "cannot create resource" in evicted.detail
        with pytest.raises(ClusterError) as failure:
            reader.get(NODES)
        assert failure.value.kind is Failure.FORBIDDEN


def test_an_event_is_stored_once(cluster: ControlPlane, client: Cluster):
    (name,) = cluster.add_nodes(1)
    event = {
        "metadata": {"name": f"{name}.1", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": name},
        "reason": "GPUQuarantined",
        "type": "Warning",
    }
    for _ in range(2):
        client.create_event(event)
    assert [e["reason"] for e in cluster.admin.list("Event", "default") if e["metadata"]["name"] == f"{name}.1"] == [
        "GPUQuarantined"
    ]


def test_a_lease_goes_to_one_of_two(cluster: ControlPlane, client: Cluster):
    cluster.namespace("gpuwarden")
    assert client.get_lease("gpuwarden", "leader") is None
    made = client.create_lease("gpuwarden", "leader", {"holderIdentity": "a"})
    with pytest.raises(ClusterError) as failure:
        client.create_lease("gpuwarden", "leader", {"holderIdentity": "b"})
    assert failure.value.kind is Failure.EXISTS
    version = made["metadata"]["resourceVersion"]
    client.patch_lease("gpuwarden", "leader", {"holderIdentity": "b"}, version)
    with pytest.raises(ClusterError) as failure:
        client.patch_lease("gpuwarden", "leader", {"holderIdentity": "c"}, version)
    assert failure.value.kind is Failure.CONFLICT
    found = client.get_lease("gpuwarden", "leader")
    assert found is not None
    assert found["spec"]["holderIdentity"] == "b"


def test_a_server_cut_off_from_its_store_gives_no_verdict(cluster: ControlPlane):
    real = Configuration()
    load_kube_config(str(cluster.kubeconfig), client_configuration=real)
    with FaultProxy(real) as proxy, closing(Cluster(proxy.configuration, QUICK)) as cluster_by_proxy:
        proxy.plan(Fault(("POST", "eviction"), code=503, body={"kind": "Status", "message": "etcdserver: no leader"}))
        with pytest.raises(ClusterError, match="no leader") as failure:
            cluster_by_proxy.evict("default", "none", "uid")
        assert failure.value.retryable
        assert cluster_by_proxy.evict("default", "none", "uid").result is Eviction.GONE
