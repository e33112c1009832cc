"""Requests to the API server: raw JSON over the official client's connection, with an end to each and typed errors.

`view`, `lease` and `hands` call it. There is no PUT, and no read-modify-write of a whole object.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Self

import msgspec
import urllib3
import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config

from remediation.cluster.answers import Answer, ClusterError, Evicted, Failure, error_of, evicted_of
from remediation.cluster.wire import Object, Request, Watch, Wire, decoded
from remediation.objects import OWNER

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take, and how often it is asked again.

    `read_s` is the longest silence while an answer comes. Only requests that the server has certainly not fulfilled are
    repeated, and reads; a Retry-After above `longest_wait_s` is left to the caller.
    """

    connect_s: float = 5.0
    read_s: float = 20.0
    attempts: int = 4
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: its items undecoded, and the resourceVersion that a watch may start from."""

    items: tuple[msgspec.Raw, ...]
    version: str


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class Cluster:
    """One identity's connection to one API server. Safe to use from many threads.

    Every method raises ClusterError where the server is out of reach or says no; a write whose error has
    `outcome_unknown` may have happened. `dry_run` lets the server check and admit, and store nothing.
    """

    def __init__(
        self,
        configuration: Configuration,
        patience: Patience = Patience(),
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._wire = Wire(configuration)
        self.patience = patience
        self._sleep = sleep

    @classmethod
    def from_kubeconfig(cls, path: Path, context: str | None = None, patience: Patience = Patience()) -> Self:
        """As kubectl connects. Raises ClusterError where the file doesn't lead to a cluster."""
        configuration = Configuration()
        try:
            load_kube_config(str(path), context, client_configuration=configuration, persist_config=False)
        except (ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError) as bad:
            said = f"{bad}; give the path of a kubeconfig that works with kubectl"
            raise ClusterError(Failure.UNCONFIGURED, f"kubeconfig {path}", said) from bad
        return cls(_with_no_proxy(configuration), patience)

    @classmethod
    def in_cluster(cls, patience: Patience = Patience()) -> Self:
        """As a pod's service account. Raises ClusterError outside a pod."""
        configuration = Configuration()
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException as bad:
            said = f"{bad}; outside a pod, give a kubeconfig"
            raise ClusterError(Failure.UNCONFIGURED, "service account", said) from bad
        return cls(_with_no_proxy(configuration), patience)

    def close(self) -> None:
        """Close its idle connections. It can be used again after that."""
        self._wire.close()

    # ------------------------------------------------------------------------------------------------------------ reads

    def get(self, path: str, attempts: int | None = None, timeout_s: float | None = None) -> Object:
        """One object."""
        return self._object(Request("GET", path), attempts, timeout_s)

    def review(self, path: str, body: Object, timeout_s: float) -> Object:
        """Have the server judge something, such as a token: nothing is stored. Asked once, and no longer than that."""
        return self._object(Request("POST", path, {}, body), 1, timeout_s)

    def list_pages(
        self,
        path: str,
        limit: int = 500,
        field_selector: str = "",
        label_selector: str = "",
        attempts: int | None = None,
    ) -> Iterator[Page]:
        """A collection in pages of `limit`, each a request; all pages show the same moment and have its version.

        Raises ClusterError EXPIRED where the pages took so long that the server forgot that moment: begin again.
        """
        query = {"limit": str(limit), "fieldSelector": field_selector, "labelSelector": label_selector}
        while True:
            request = Request("GET", path, query)
            found: _List = decoded(request, self._ask(request, attempts).body, _List)
            yield Page(tuple(found.items or ()), found.metadata.resource_version)
            if not found.metadata.token:
                return
            query["continue"] = found.metadata.token

    def watch(
        self, path: str, version: str, timeout_s: int, field_selector: str = "", silence_s: float | None = None
    ) -> Watch:
        """What changes after `version`, with bookmarks, for `timeout_s`. It is never retried here.

        A silence of `silence_s` ends it as TIMED_OUT. The server ends a watch after `timeout_s`, whatever happens, so
        a longer silence means that it is not there any more; a few seconds more are the default.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
            "fieldSelector": field_selector,
        }
        request = Request("GET", path, query)
        timeout = urllib3.Timeout(connect=self.patience.connect_s, read=silence_s or timeout_s + 5)
        return self._wire.stream(request, timeout)

    # ----------------------------------------------------------------------------------------------------------- writes

    def patch_merge(self, path: str, body: Object, subresource: str = "", *, dry_run: bool = False) -> Object:
        """JSON merge patch. With `metadata.resourceVersion` in the body it is a CONFLICT if the object has changed."""
        return self._object(Request("PATCH", _part(path, subresource), _writing(dry_run=dry_run), body, MERGE))

    def patch_strategic(self, path: str, body: Object, subresource: str = "status", *, dry_run: bool = False) -> Object:
        """Strategic merge patch, which merges a node's conditions by their `type` instead of replacing the list."""
        return self._object(Request("PATCH", _part(path, subresource), _writing(dry_run=dry_run), body, STRATEGIC))

    def evict(
        self, namespace: str, name: str, uid: str, grace_s: int | None = None, *, dry_run: bool = False
    ) -> Evicted:
        """Ask once for a pod's eviction, if it still is the pod with this UID. `grace_s` None keeps the pod's own.

        Disruption budgets are asked in a dry run too, each pod as if it were the only one. They are asked before the
        UID is compared: BLOCKED may speak of a pod that has taken this one's name.

        Raises:
            ClusterError: no verdict was reached.
            ValueError: `grace_s` is below 1, which takes a pod off the books while its processes may still write.
        """
        if grace_s is not None and grace_s < 1:
            raise ValueError(
                f"evicting {namespace}/{name} with a grace of {grace_s} s: at least 1, or None for its own"
            )
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        options: Object = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        request = Request("POST", path, _writing(dry_run=dry_run), body)
        return evicted_of(str(request), self._wire.ask(request, self._timeout()))

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> None:
        """Store a new object in a collection. One of that name that is there already is enough: it was asked before."""
        try:
            self._object(Request("POST", path, _writing(dry_run=dry_run), body))
        except ClusterError as failure:
            if failure.kind is not Failure.EXISTS:
                raise

    def delete(self, path: str) -> None:
        """Delete an object and what it owns. One that is not there any more is enough."""
        try:
            self._object(Request("DELETE", path, {"propagationPolicy": "Background"}))
        except ClusterError as failure:
            if failure.kind is not Failure.NOT_FOUND:
                raise

    def create_event(self, event: Object, *, dry_run: bool = False) -> None:
        """Store a core/v1 Event in the namespace of its metadata. One of that name that is there already is enough."""
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        self.create(path, {"apiVersion": "v1", "kind": "Event"} | event, dry_run=dry_run)

    # ------------------------------------------------------------------------------------------------------------ lease

    def get_lease(self, namespace: str, name: str, timeout_s: float | None = None) -> Object | None:
        """A coordination.k8s.io/v1 Lease, None where there is none. Asked once: an election has its own rhythm."""
        try:
            return self._object(Request("GET", f"{_LEASES.format(namespace)}/{name}"), 1, timeout_s)
        except ClusterError as failure:
            if failure.kind is Failure.NOT_FOUND:
                return None
            raise

    def create_lease(self, namespace: str, name: str, spec: Object, timeout_s: float | None = None) -> Object:
        """Create it. Raises ClusterError EXISTS where somebody was faster."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        return self._object(Request("POST", _LEASES.format(namespace), _writing(), body), 1, timeout_s)

    def patch_lease(
        self, namespace: str, name: str, spec: Object, version: str, timeout_s: float | None = None
    ) -> Object:
        """Change it if it still has this resourceVersion. Raises ClusterError CONFLICT where it has not."""
        path = f"{_LEASES.format(namespace)}/{name}"
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return self._object(Request("PATCH", path, _writing(), body, MERGE), 1, timeout_s)

    # --------------------------------------------------------------------------------------------------------- the wire

    def _object(self, request: Request, attempts: int | None = None, timeout_s: float | None = None) -> Object:
        found: Object = decoded(request, self._ask(request, attempts, timeout_s).body, Object)
        return found

    def _ask(self, request: Request, attempts: int | None = None, timeout_s: float | None = None) -> Answer:
        """One request, repeated as far as that is safe and `patience` lets it."""
        left = attempts or self.patience.attempts
        wait_s = self.patience.first_wait_s
        while True:
            left -= 1
            try:
                answer = self._wire.ask(request, self._timeout(timeout_s))
                if not answer.failed:
                    return answer
                raise error_of(str(request), answer)
            except ClusterError as failure:
                # Throttling and a refused connection mean that nothing has been done; all else is repeated for reads.
                safe = request.method == "GET" or failure.kind in (Failure.OVERLOADED, Failure.UNREACHABLE)
                asked_s = failure.retry_after_s or 0.0
                if not (left and safe and failure.retryable) or asked_s > self.patience.longest_wait_s:
                    raise
                self._sleep(max(asked_s, wait_s) * _JITTER.uniform(1.0, 1.25))
                wait_s = min(2 * wait_s, self.patience.longest_wait_s)

    def _timeout(self, total_s: float | None = None) -> urllib3.Timeout:
        return urllib3.Timeout(total_s, connect=self.patience.connect_s, read=self.patience.read_s)


_JITTER = SystemRandom()


def _writing(*, dry_run: bool = False) -> dict[str, str]:
    return {"fieldManager": OWNER} | ({"dryRun": "All"} if dry_run else {})


def _part(path: str, subresource: str) -> str:
    return f"{path}/{subresource}" if subresource else path


def _with_no_proxy(configuration: Configuration) -> Configuration:
    """Release 35 of the client reads NO_PROXY and then forgets it, which sends in-cluster requests to the proxy."""
    configuration.no_proxy = configuration.no_proxy or os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    return configuration
