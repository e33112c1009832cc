"""A small client of the API server for tests: JSON in, JSON out, typed errors.

It is deliberately not the client that gpuwarden uses, so that a fault of one cannot hide in the other. Tests get one as
`control_plane.admin`, or for a service account's token from `control_plane.client(token)`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

Object = dict[str, Any]
Objects = list[Object]  # inside Api, `list` is the verb
TIMEOUT_S = 15
PAGE = 500
PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ApiError(Exception):
    """The API server refused. `status` is its Status object, or the bare text where it sent none."""

    def __init__(self, request: str, response: requests.Response) -> None:
        self.code = response.status_code
        try:
            self.status: Object = response.json()
        except requests.JSONDecodeError:
            self.status = {"message": response.text.strip()}
        self.reason: str = self.status.get("reason", "")
        self.message: str = self.status.get("message", "")
        retry_after = response.headers.get("Retry-After")
        #: What the server asks to wait; None where it names no time.
        self.retry_after_s = None if retry_after is None else int(retry_after)
        super().__init__(f"{request}: {self.code} {self.reason}: {self.message}")


class Unauthorized(ApiError):
    """401: no valid credentials."""


class Forbidden(ApiError):
    """403: RBAC or an admission plug-in says no."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: a precondition (resourceVersion, UID) does not hold, or the name is taken (`reason` AlreadyExists)."""


class Invalid(ApiError):
    """422."""


class TooManyRequests(ApiError):
    """429: throttled, or an eviction that a disruption budget refuses (`status["details"]["causes"]`)."""


_ERRORS: Mapping[int, type[ApiError]] = {
    401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid, 429: TooManyRequests,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object as the server serves it."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool
    verbs: frozenset[str]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of a collection, an object or a part of one."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join([f"{root}{inside}", *filter(None, [self.plural, name, subresource])])


class Api:
    """One identity's connection. Kinds are named "Pod" or, where two groups have the name, "Event.events.k8s.io"."""

    def __init__(self, url: str, token: str, authority: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self.token = token
        self.authority = authority
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment has no business on loopback
        self._session.mount("https://", HTTPAdapter(pool_connections=1, pool_maxsize=16))
        self._session.verify = str(authority)
        self._session.headers["Authorization"] = f"Bearer {token}"
        self._kinds: dict[str, Kind] = {}

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object:
        """One object. Raises NotFound."""
        return self.request("GET", self.kind(kind).path(namespace, name))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None where there is none."""
        try:
            return self.get(kind, name, namespace)
        except NotFound:
            return None

    def list(self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "") -> Objects:
        """All objects of a kind, in one namespace or in all; `labels` and `fields` are selectors."""
        return list(self.pages(self.kind(kind), namespace, labels=labels, fields=fields))

    def pages(
        self, kind: Kind, namespace: str | None = None, labels: str = "", fields: str = "", accept: str = ""
    ) -> Iterator[Object]:
        """The same, page by page; `accept` may ask for metadata only."""
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        while True:
            answer = self.request("GET", kind.path(namespace), query=query, accept=accept)
            yield from answer["items"] or ()  # an empty list of metadata comes as null
            if not (token := answer["metadata"].get("continue")):
                return
            query["continue"] = token

    def create(self, manifest: Object, dry_run: bool = False) -> Object:
        """Create an object in the namespace that it names (`default` if none). Raises Conflict where it exists."""
        kind = self._kind_of(manifest)
        namespace = manifest["metadata"].get("namespace", "default")
        return self.request("POST", kind.path(namespace), manifest, {"dryRun": "All"} if dry_run else {})

    def apply(self, manifest: Object) -> Object:
        """Create it or bring it to this state, by server-side apply."""
        meta = manifest["metadata"]
        path = self._kind_of(manifest).path(meta.get("namespace", "default"), meta["name"])
        return self.request("PATCH", path, manifest, {"fieldManager": "testbed", "force": "true"}, "apply")

    def patch(
        self,
        kind: str,
        name: str,
        body: Object | Objects,
        namespace: str | None = None,
        subresource: str | None = None,
        patch_type: str = "merge",
        dry_run: bool = False,
    ) -> Object:
        """Patch an object or a part of it, such as its `status` or `scale`."""
        path = self.kind(kind).path(namespace, name, subresource)
        return self.request("PATCH", path, body, {"dryRun": "All"} if dry_run else {}, patch_type)

    def patch_status(self, kind: str, name: str, status: Object, namespace: str | None = None) -> Object:
        """Change a status as its controller would: lists that have keys, like conditions, are merged by them."""
        return self.patch(kind, name, {"status": status}, namespace, "status", "strategic")

    def delete(self, kind: str, name: str, namespace: str | None = None, grace_s: int | None = None) -> None:
        """Delete one object; `grace_s` replaces a pod's own grace period."""
        query = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        self.request("DELETE", self.kind(kind).path(namespace, name), query=query)

    def evict(self, pod: str, namespace: str, dry_run: bool = False) -> None:
        """Evict a pod. Raises TooManyRequests where a disruption budget refuses."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"dryRun": ["All"]} if dry_run else {},
        }
        self.request("POST", self.kind("Pod").path(namespace, pod, "eviction"), eviction)

    def request(
        self,
        method: str,
        path: str,
        body: Object | Objects | None = None,
        query: Mapping[str, str] | None = None,
        patch_type: str | None = None,
        accept: str = "",
    ) -> Object:
        """Any request.

        Raises:
            ApiError: one of its subclasses where the status code has one.
            requests.ConnectionError, requests.Timeout: the server is not there or does not answer.
        """
        answer = self._session.request(
            method,
            f"{self.url}{path}",
            params={name: value for name, value in (query or {}).items() if value},
            data=None if body is None else json.dumps(body),
            headers={
                "Accept": accept or "application/json",
                "Content-Type": PATCH_TYPES[patch_type] if patch_type else "application/json",
            },
            timeout=self._timeout_s,
        )
        if not answer.ok:
            raise _ERRORS.get(answer.status_code, ApiError)(f"{method} {path}", answer)
        if not answer.headers.get("Content-Type", "").startswith("application/json"):
            return {"text": answer.text}
        return dict(answer.json())

    def kind(self, name: str) -> Kind:
        """The kind of this name. One that is not known, such as a new CRD's, is asked for again."""
        if name not in self._kinds:
            self.kinds()
        if name not in self._kinds:
            raise LookupError(f"the API server serves no kind {name}; is its CRD applied and established?")
        return self._kinds[name]

    def kinds(self) -> Sequence[Kind]:
        """All kinds that the server serves now, each once, in its preferred version; core kinds come first.

        What `kind` knew of others before is forgotten.
        """
        found: dict[str, Kind] = {}
        by_name: dict[str, Kind] = {}
        for root in ("/api", "/apis"):
            for group in self.request("GET", root, accept=_DISCOVERY)["items"]:
                group_name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    for resource in version["resources"]:
                        kind = Kind(
                            name=resource["responseKind"]["kind"],
                            group=group_name,
                            version=version["version"],
                            plural=resource["resource"],
                            namespaced=resource["scope"] == "Namespaced",
                            verbs=frozenset(resource["verbs"]),
                        )
                        found.setdefault(f"{kind.name}.{kind.group}", kind)
                        by_name.setdefault(kind.name, kind)
        self._kinds = by_name | found
        return list(found.values())

    def _kind_of(self, manifest: Object) -> Kind:
        group = manifest["apiVersion"].rpartition("/")[0]
        return self.kind(f"{manifest['kind']}.{group}")
