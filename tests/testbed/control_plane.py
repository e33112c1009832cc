"""A real Kubernetes control plane on loopback, for tests: etcd, API server with RBAC, controllers, scheduler, kwok.

Tests take the fixture `control_plane` (one for the session) or `cluster` (the same, emptied after each test). Only the
kubelets are played, by kwok after kubelet-stages.yaml; whatever answers a request is Kubernetes itself. Nothing of it
outlives the process that started it (reaper.py).
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import requests

from tests.testbed import cleaning
from tests.testbed.api import TIMEOUT_S, Api, ApiError, Object
from tests.testbed.audit import AuditEvent, events_in
from tests.testbed.build import Binaries, say_on_stderr
from tests.testbed.nodes import DEFAULT_SHAPE, MANAGED, NODE_LOST, NodeShape, conditions, node
from tests.testbed.reaper import Reaper
from tests.testbed.server import Server
from tests.testbed.settings import Setup, Who
from tests.testbed.waiting import TestbedError, until

MEMORY = Path("/dev/shm")  # noqa: S108 - etcd's data, in a folder of its own; on a disk each write waits
MEMORY_NEEDED_BYTES = 1 << 30
START_WITHIN_S = 60
PREFIX = "gpuwarden-testbed-"


class Guest(Protocol):
    """Servers that a control plane can have besides its own, such as `WorkloadControllers`."""

    @property
    def name(self) -> str:
        """What a wait for them is called."""

    @property
    def servers(self) -> Sequence[Server]:
        """They end with the control plane, and `clean` makes them work again."""

    @property
    def kept(self) -> set[cleaning.Identity]:
        """What `clean` leaves."""

    def is_ready(self) -> bool:
        """Whether the cluster works with them as it should."""


class ControlPlane:
    """All of it, as a context manager. The servers can be stopped, started, frozen and resumed one by one (`Server`).

    A node's Lease lasts `node_lease_s`; it is renewed every quarter of that, and a quarter after its end the node is
    NotReady. It is long, so that a starved machine is not taken for a dead node; `lose_node` needs none.
    """

    def __init__(self, programs: Binaries, *, node_lease_s: int = 120) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED_BYTES
        data = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY if in_memory else None))
        self._setup = Setup(self.folder, data, node_lease_s)
        self._reaper = Reaper()
        self._reaper.tell("remove", self.folder)
        self._reaper.tell("remove", data)
        self._setup.write_files()
        commands = self._setup.commands(programs)
        self.etcd, self.api_server, self.controllers, self.scheduler, self.kwok = (
            Server(command, self.folder / f"{name}.log", self._reaper) for name, command in commands.items()
        )
        self._clients: list[Api] = []
        #: As a member of system:masters: RBAC and throttling don't hold for it.
        self.admin = self.client(self._setup.tokens[Who.ADMIN])
        self._cleaner = self.client(self.admin.token, timeout_s=cleaning.WITHIN_S)
        self.kubeconfig = self.kubeconfig_for(self._setup.tokens[Who.ADMIN], "admin")
        self._baseline: frozenset[cleaning.Identity] = frozenset()
        self._guests: list[Guest] = []
        self._nodes_made = 0
        #: Seconds from the first process to a cluster that takes pods.
        self.started_in_s = 0.0

    # --------------------------------------------------------------------------------------------------- life and death

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(keep_logs=error is not None)

    def start(self) -> None:
        """Start everything.

        Raises:
            TestbedError: a server ended or did not get ready; the message says where its log is kept.
        """
        began = time.monotonic()
        try:
            self.etcd.start()
            self.start_api_server()
            for server in (self.controllers, self.scheduler, self.kwok):
                server.start()
            self._wait("service accounts", self._has_service_accounts)
            self._baseline = frozenset(cleaning.present(self.admin))
        except BaseException as failure:
            self.close(keep_logs=isinstance(failure, TestbedError))
            raise
        self.started_in_s = time.monotonic() - began

    def close(self, *, keep_logs: bool = False) -> None:
        """Kill the servers and remove their folders, but keep `folder` with the logs if it is asked for."""
        for server in reversed(self.servers):
            server.stop()
        for client in self._clients:
            client.close()
        if keep_logs:
            self._reaper.tell("keep", self.folder)
            say_on_stderr(f"logs and audit log of the control plane: {self.folder}")
        self._reaper.finish()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Its own five, in the order of their start, and then its guests'."""
        guests = (server for guest in self._guests for server in guest.servers)
        return (self.etcd, self.api_server, self.controllers, self.scheduler, self.kwok, *guests)

    def server(self, name: str, command: Sequence[str]) -> Server:
        """Another server, not started, with its log beside the others'; it doesn't outlive this process either.

        It is the caller's, who stops it, or gives it to the control plane with `admit`.
        """
        return Server(command, self.folder / f"{name}.log", self._reaper)

    def admit(self, guest: Guest) -> None:
        """Take a guest in, with servers that run, and wait until all is ready with them."""
        self._guests.append(guest)
        self._wait(guest.name, guest.is_ready)

    def dismiss(self, guest: Guest) -> None:
        """Kill a guest's servers and know it no more. What it has made goes with the next `clean`."""
        for server in guest.servers:
            server.stop()
        if guest in self._guests:
            self._guests.remove(guest)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait for a part of the start; a server that has ended by itself ends the wait with its log."""

        def alive_and_ready() -> bool:
            for server in self.servers:
                server.check()
            return ready()

        until(f"{what} (logs are kept in {self.folder})", alive_and_ready, START_WITHIN_S)

    def _has_service_accounts(self) -> bool:
        return {account["metadata"]["namespace"] for account in self.admin.list("ServiceAccount")} >= {
            "default", "kube-node-lease", "kube-public", "kube-system",
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------------- API server

    @property
    def url(self) -> str:
        """The API server's address; it stays the same over restarts."""
        return self._setup.url

    def client(self, token: str, timeout_s: float = TIMEOUT_S) -> Api:
        """A client for whoever has this token; it is closed with the control plane."""
        self._clients.append(Api(self.url, token, self._setup.authority, timeout_s))
        return self._clients[-1]

    def kubeconfig_for(self, token: str, name: str) -> Path:
        """A kubeconfig file for whoever has this token, for programs that want one."""
        return self._setup.kubeconfig(name, token)

    def kubeconfig_of(self, who: Who) -> Path:
        """The kubeconfig file of a component."""
        return self._setup.kubeconfig(who.rpartition(":")[2], self._setup.tokens[who])

    def start_api_server(self) -> None:
        """Start it after `api_server.stop()`, and wait until it answers requests again."""
        self.api_server.start()
        self._wait("the API server", self._answers)

    def restart_api_server(self) -> None:
        """Crash it and start it again: all connections and watches end, and nothing stored is lost."""
        self.api_server.stop()
        self.start_api_server()

    def _answers(self) -> bool:
        # Without the file, requests raises OSError instead of a ConnectionError; /readyz includes RBAC's own roles.
        if not self._setup.authority.exists():
            return False
        try:
            return self.admin.request("GET", "/readyz") == {"text": "ok"}
        except ApiError:
            return False

    # ------------------------------------------------------------------------------------------------ what a test needs

    def add_nodes(self, count: int, shape: NodeShape = DEFAULT_SHAPE, *, prefix: str = "gpu") -> list[str]:
        """Add nodes that are Ready and take pods; returns their names, numbered on over the calls since `clean`."""
        numbers = range(self._nodes_made, self._nodes_made + count)
        self._nodes_made += count
        now = datetime.now(UTC)
        manifests = [node(f"{prefix}-{number:04d}", number, shape, now) for number in numbers]
        with ThreadPoolExecutor(8) as pool:
            names = [made["metadata"]["name"] for made in pool.map(self.admin.create, manifests)]
        wanted = set(names)
        until(f"{count} nodes that take pods", lambda: wanted <= self._open_nodes(), within_s=30 + count / 10)
        return names

    def _open_nodes(self) -> set[str]:
        """Nodes without the taint that each new node has until its controller has seen it."""
        return {
            found["metadata"]["name"]
            for found in self.admin.list("Node")
            if "node.kubernetes.io/not-ready" not in {taint["key"] for taint in found["spec"].get("taints", ())}
        }

    def lose_node(self, name: str) -> None:
        """Let a node's kubelet fall silent, as a power cut does, without the wait for its Lease to run out.

        Pods on it that are deleted stay Terminating. `find_node` brings it back.
        """
        self.admin.patch("Node", name, {"metadata": {"annotations": {MANAGED: None}}})
        self._mark_pods(name, "true")  # kwok goes on with the pods of a node that is not its own any more
        self.admin.patch_status("Node", name, {"conditions": conditions(datetime.now(UTC), "Unknown")})

    def find_node(self, name: str) -> None:
        """Let a lost node's kubelet work again."""
        self.admin.patch("Node", name, {"metadata": {"annotations": {MANAGED: "fake"}}})
        self._mark_pods(name, None)

    def _mark_pods(self, node: str, lost: str | None) -> None:
        for one in self.admin.list("Pod", fields=f"spec.nodeName={node}"):
            meta = one["metadata"]
            self.admin.patch("Pod", meta["name"], {"metadata": {"annotations": {NODE_LOST: lost}}}, meta["namespace"])

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Create a namespace if it isn't there, ready to take pods."""
        if self.admin.find("Namespace", name) is None:
            metadata = {"name": name, "labels": dict(labels or {})}
            self.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        # A pod is refused until its namespace's default account is there. After a crash of the API server the
        # controllers come back by waits that double, up to half a minute.
        until(f"namespace {name}", lambda: self.admin.find("ServiceAccount", "default", name), within_s=90)
        return name

    def service_account(self, namespace: str, name: str, cluster_role_rules: Sequence[Mapping[str, Any]] = ()) -> str:
        """A service account bound to a cluster role with these rules; returns a token by TokenRequest, good for 4 h.

        Without rules it is bound to nothing: bring your own role and binding by `admin.apply`, such as a chart's.
        """
        self.namespace(namespace)
        self.admin.apply(_object("v1", "ServiceAccount", name, namespace=namespace))
        if cluster_role_rules:
            role = f"testbed:{namespace}:{name}"
            rbac = "rbac.authorization.k8s.io"
            self.admin.apply(_object(f"{rbac}/v1", "ClusterRole", role) | {"rules": list(cluster_role_rules)})
            self.admin.apply(
                _object(f"{rbac}/v1", "ClusterRoleBinding", role)
                | {
                    "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
                }
            )
        return self.token(namespace, name)

    def token(self, namespace: str, name: str, lifetime_s: int = 4 * 3600) -> str:
        """A new token for a service account; the API server takes no lifetime under 600 s."""
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = self.admin.kind("ServiceAccount").path(namespace, name, "token")
        answer = self.admin.request("POST", path, asked | {"spec": {"expirationSeconds": lifetime_s}})
        return str(answer["status"]["token"])

    def clean(self) -> None:
        """Delete all that the tests have made: nodes, namespaces, roles, CRDs, all kinds of objects.

        Servers that a test has stopped or frozen work again before. What guests need stays.
        """
        stores = (self.etcd, self.api_server)
        for server in self.servers:
            server.resume()
        if not self.etcd.running:
            self.etcd.start()
        if not self.api_server.running:
            self.start_api_server()
        was_away = any(server.was_away for server in stores)
        for server in self.servers:
            if was_away and server not in stores:  # a client that met no server looks for it more and more rarely
                server.stop()
            if not server.running:
                server.start()
            server.was_away = False
        for guest in self._guests:
            self._wait(guest.name, guest.is_ready)
        cleaning.clean(self._cleaner, self._baseline.union(*(guest.kept for guest in self._guests)))
        self._nodes_made = 0

    # -------------------------------------------------------------------------------------------------------- audit log

    def audit_mark(self) -> int:
        """A place in the audit log, after all requests that have been answered."""
        self._settle_audit_log()
        return self._setup.audit_log.stat().st_size

    def audit_events(self, since: int = 0, user: str | None = None) -> list[AuditEvent]:
        """All requests after a mark, in the order of their answers, of one user or of all; see audit-policy.yaml.

        A service account's user is "system:serviceaccount:<namespace>:<name>".
        """
        self._settle_audit_log()
        events = (event for event in events_in(self._setup.audit_log, since) if _MARKER not in event.uri)
        return [event for event in events if user in (None, event.user)]

    def _settle_audit_log(self) -> None:
        """Wait until the log has what was answered before: an answer may reach its client before the log."""
        if not self.api_server.running:
            return
        marker = f"{_MARKER}={uuid.uuid4()}"
        start = self._setup.audit_log.stat().st_size
        try:
            self.admin.request("GET", f"/api/v1/namespaces?limit=1&{marker}")
        except requests.Timeout as silent:
            raise TestbedError("the audit log needs an API server that answers; resume it first") from silent
        until("the audit log", lambda: any(marker in event.uri for event in events_in(self._setup.audit_log, start)))


#: A query parameter that the API server ignores and the audit log shows.
_MARKER = "testbed-marker"


def _object(version: str, kind: str, name: str, **metadata: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name} | metadata}
