"""Back to an empty cluster between tests, in place, instead of starting another. Called by `ControlPlane.clean`.

A namespace's own deletion takes some ten seconds, because its controller waits out what it found there. So here
everything is deleted by hand, without grace, and then the namespaces are finalized.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from tests.testbed.api import Api, Conflict, Kind, NotFound, Object
from tests.testbed.waiting import TestbedError, until

#: What lives here is the control plane's own. Leases of nodes are not: they go with their nodes.
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public"})
#: Ten thousand pods take a minute or two.
WITHIN_S = 300
PARALLEL = 8
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
#: Served like objects, but another's shadow, or gone before one could delete them.
SHADOWS = frozenset({"ComponentStatus", "Binding", "EndpointSlice", "Endpoints"})
#: None of these belongs to the control plane, so all of a namespace go in one request.
NEVER_KEPT = frozenset({"Node", "Pod", "Event", "Lease"})
#: Group, plural, namespace ("" for none), name.
Identity = tuple[str, str, str, str]


def present(api: Api) -> dict[Identity, tuple[Kind, Object]]:
    """All objects but the control plane's own, with their metadata only."""
    kinds = [
        kind
        for kind in api.kinds()
        if {"list", "delete"} <= kind.verbs and kind.name not in SHADOWS and kind.group != "events.k8s.io"
    ]
    found = {}
    # Side by side, because a list that must be current waits up to 100 ms for its cache's next progress mark.
    with ThreadPoolExecutor(PARALLEL) as pool:
        for kind, metas in zip(kinds, pool.map(partial(_metadata, api), kinds), strict=True):
            for meta in metas:
                namespace = meta.get("namespace", "")
                if namespace not in SYSTEM_NAMESPACES:
                    found[kind.group, kind.plural, namespace, meta["name"]] = (kind, meta)
    return found


def _metadata(api: Api, kind: Kind) -> list[Object]:
    try:
        return [item["metadata"] for item in api.pages(kind, accept=METADATA_ONLY)]
    except NotFound:  # a CRD that is just going away may still be listed among the kinds
        return []


def clean(api: Api, baseline: Iterable[Identity]) -> None:
    """Delete what is there and not in the baseline.

    Raises:
        TestbedError: something came back again and again; the message says what.
    """
    kept = frozenset(baseline)
    left: list[Identity] = []

    def is_clean() -> bool:
        surplus = {identity: found for identity, found in present(api).items() if identity not in kept}
        _delete(list(surplus.values()), api)
        left[:] = surplus
        return not surplus

    # Controllers that still see their objects put pods back for a moment.
    try:
        until("an empty cluster", is_clean, WITHIN_S)
    except TestbedError as failure:
        raise TestbedError(f"{failure}; left: {left[:10]}") from failure


def _delete(surplus: Sequence[tuple[Kind, Object]], api: Api) -> None:
    doomed = {meta["name"] for kind, meta in surplus if kind.name == "Namespace"}
    # Namespaces first: a terminating one takes no new object.
    for name in doomed:
        with suppress(NotFound, Conflict):
            api.delete("Namespace", name)
    collections: dict[tuple[Kind, str], list[Object]] = defaultdict(list)
    for kind, meta in surplus:
        if kind.name != "Namespace":
            collections[kind, meta.get("namespace", "")].append(meta)
    # Owners before what they own, so that nothing is put back: pods come last.
    for (kind, namespace), metas in sorted(collections.items(), key=lambda item: item[0][0].name == "Pod"):
        _release(kind, metas, api)
        if "deletecollection" in kind.verbs and (namespace in doomed or kind.name in NEVER_KEPT):
            paths = [kind.path(namespace)]
        else:
            paths = [kind.path(namespace, meta["name"]) for meta in metas]
        for path in paths:
            with suppress(NotFound):
                api.request("DELETE", path, query={"gracePeriodSeconds": "0", "propagationPolicy": "Background"})
    for name in doomed:
        with suppress(NotFound, Conflict):
            manifest = api.get("Namespace", name) | {"spec": {"finalizers": []}}
            api.request("PUT", f"/api/v1/namespaces/{name}/finalize", manifest)


def _release(kind: Kind, metas: Iterable[Object], api: Api) -> None:
    """Take finalizers off, whoever should have."""
    for meta in metas:
        if meta.get("finalizers"):
            path = kind.path(meta.get("namespace"), meta["name"])
            with suppress(NotFound):
                api.request("PATCH", path, {"metadata": {"finalizers": None}}, patch_type="merge")
