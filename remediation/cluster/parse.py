"""From the API's JSON to the values of `remediation.objects`: nodes, pods, budgets. Called by `view` for each object.

Pure. Only the fields that somebody decides by are decoded at all; the rest (managedFields above all, most of an
object's bytes) is skipped over. An object whose fields have other types than the API promises gives a BadObject.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, TypeVar

import msgspec

from remediation.objects import PREFIX, Effect, NodeView, OwnerRef, PdbView, PodView, Selector, Taint

T = TypeVar("T")
#: Values that many objects share, each once: {value: the same value}. Unlike sys.intern, it can be dropped.
Shared = dict[object, object]

MIRROR = "kubernetes.io/config.mirror"
#: Longer annotations are documents (a last-applied manifest may have 256 KB); nobody decides by them.
LONGEST_ANNOTATION = 256
DEFAULT_GRACE_S = 30
#: What counts as a GPU among a node's and a pod's resources. A MIG slice and a time-shared replica count as one each.
GPU_RESOURCES = frozenset({"nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"})
MIG_PREFIX = "nvidia.com/mig-"
_MOST_DIGITS = 9


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class BadObject(Exception):
    """An object that isn't what the API promises. The message says which field and what stood there."""


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(msgspec.Struct, rename="camel"):
    """An object's metadata, as far as anybody decides by it."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    creation_timestamp: Moment | None = None
    deletion_timestamp: Moment | None = None
    deletion_grace_period_seconds: float | None = None


class _Identity(msgspec.Struct):
    name: str
    namespace: str = ""


class _Named(msgspec.Struct):
    metadata: _Identity


class Condition(msgspec.Struct, rename="camel"):
    """One condition of a status."""

    type: str
    status: str = ""
    last_transition_time: Moment | None = None


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str | None = None
    time_added: str | None = msgspec.field(default=None, name="timeAdded")


_Quantities = dict[str, int | str]


class _NodeInfo(msgspec.Struct):
    bootID: str = ""  # noqa: N815 - as the API spells it


class _NodeSpec(msgspec.Struct):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _NodeStatus(msgspec.Struct, rename="camel"):
    capacity: _Quantities | None = None
    conditions: list[Condition] | None = None
    node_info: _NodeInfo | None = None


class _Node(msgspec.Struct):
    metadata: Meta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _EmptyDir(msgspec.Struct):
    medium: str | None = None


class _HostPath(msgspec.Struct):
    """That it is there is all that counts."""


class _Volume(msgspec.Struct, rename="camel"):
    name: str
    empty_dir: _EmptyDir | None = None
    host_path: _HostPath | None = None


class _Resources(msgspec.Struct):
    limits: _Quantities | None = None
    requests: _Quantities | None = None


class _Container(msgspec.Struct, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    termination_grace_period_seconds: float | None = None
    priority: int | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    conditions: list[Condition] | None = None
    start_time: Moment | None = None


class _Pod(msgspec.Struct):
    metadata: Meta
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _Expression(msgspec.Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None


class _PdbSpec(msgspec.Struct, rename="camel"):
    selector: _Selector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _PdbStatus(msgspec.Struct, rename="camel"):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0


class _Pdb(msgspec.Struct):
    metadata: Meta
    spec: _PdbSpec | None = None
    status: _PdbStatus | None = None


def parse_node(raw: bytes | msgspec.Raw, shared: Shared) -> NodeView:
    """A node. `ready` is None where its Ready condition is Unknown or missing.

    `gpus` come from its capacity, which keeps counting GPUs that the device plugin calls unhealthy.

    Raises:
        BadObject: a field has a wrong type, or an effect is unknown.
    """
    node = decode(raw, _Node, "node")
    spec, status = node.spec or _NodeSpec(), node.status or _NodeStatus()
    ready = _condition(status.conditions, "Ready")
    return NodeView(
        name=once(node.metadata.name, shared),
        uid=node.metadata.uid,
        version=node.metadata.resource_version,
        unschedulable=bool(spec.unschedulable),
        ready={"True": True, "False": False}.get(ready),
        taints=once(tuple(_taint(taint, node.metadata.name) for taint in spec.taints or ()), shared),
        labels=_pairs(node.metadata.labels, shared),
        annotations=annotations_of(node.metadata.annotations, shared),
        boot_id=(status.node_info or _NodeInfo()).bootID,
        gpus=_gpus(status.capacity, node.metadata.name),
        created=node.metadata.creation_timestamp,
    )


def parse_pod(raw: bytes | msgspec.Raw, shared: Shared) -> PodView:
    """A pod. `deleting_since` is when its deletion was asked for, `started` when its kubelet took it in.

    Raises:
        BadObject: a field has a wrong type.
    """
    pod = decode(raw, _Pod, "pod")
    meta, spec, status = pod.metadata, pod.spec or _PodSpec(), pod.status or _PodStatus()
    grace_s = spec.termination_grace_period_seconds
    dirs = [(volume.name, volume.empty_dir.medium or "") for volume in spec.volumes or () if volume.empty_dir]
    return PodView(
        namespace=once(meta.namespace, shared),
        name=meta.name,
        uid=meta.uid,
        node=once(spec.node_name, shared),
        phase=once(status.phase, shared),
        ready=_condition(status.conditions, "Ready") == "True",
        owner=owner_of(meta, shared),
        labels=_pairs(meta.labels, shared),
        annotations=annotations_of(meta.annotations, shared),
        host_dirs=once(tuple(volume.name for volume in spec.volumes or () if volume.host_path), shared),
        empty_dirs=once(tuple(name for name, medium in dirs if not _in_memory(medium)), shared),
        memory_dirs=once(tuple(name for name, medium in dirs if _in_memory(medium)), shared),
        gpus=_pod_gpus(spec, meta.name),
        grace_s=once(float(DEFAULT_GRACE_S if grace_s is None else grace_s), shared),
        deleting_since=_asked(meta),
        is_mirror=MIRROR in (meta.annotations or ()),
        priority=spec.priority or 0,
        started=once(status.start_time, shared),
    )


def parse_pdb(raw: bytes | msgspec.Raw, shared: Shared) -> PdbView:
    """A disruption budget. One without a status, or with that of an older spec, is not `current`.

    A missing selector selects nothing (policy/v1), but an empty one everything: the first has an expression that no
    label set fulfils.

    Raises:
        BadObject: a field has a wrong type.
    """
    pdb = decode(raw, _Pdb, "PodDisruptionBudget")
    spec, status = pdb.spec or _PdbSpec(), pdb.status or _PdbStatus()
    return PdbView(
        namespace=once(pdb.metadata.namespace, shared),
        name=pdb.metadata.name,
        selector=NOTHING if spec.selector is None else _selector(spec.selector, shared),
        allowed=status.disruptions_allowed,
        current=pdb.status is not None and status.observed_generation >= (pdb.metadata.generation or 1),
        healthy=status.current_healthy,
        desired_healthy=status.desired_healthy,
        expected=status.expected_pods,
        evict_unready_always=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
    )


#: A selector that selects no pod: a label whose value is in the empty set.
NOTHING = Selector(expressions=(("", "In", ()),))


def parse_key(raw: bytes | msgspec.Raw) -> tuple[str, str]:
    """An object's namespace ("" for a node's) and name. Raises BadObject where it has none."""
    meta = decode(raw, _Named, "object").metadata
    return meta.namespace, meta.name


def decode(raw: bytes | msgspec.Raw, kind: type[T], what: str) -> T:
    """The fields of `kind` that stand in it. Raises BadObject, which calls it a `what`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as bad:
        raise BadObject(f"a {what} that isn't one: {bad}; it starts with {bytes(raw)[:120]!r}") from bad


def once(value: T, shared: Shared) -> T:
    """The first value that was equal to this one, so that equal ones are held once."""
    return shared.setdefault(value, value)  # type: ignore[return-value]  # a key equals its value, and so has its type


def _pairs(found: Mapping[str, str] | None, shared: Shared) -> tuple[tuple[str, str], ...]:
    pairs = sorted((found or {}).items())
    return once(tuple(once((once(key, shared), once(value, shared)), shared) for key, value in pairs), shared)


def annotations_of(found: Mapping[str, str] | None, shared: Shared) -> tuple[tuple[str, str], ...]:
    """Annotations without documents, but with all of ours."""
    kept = {
        key: value for key, value in (found or {}).items() if len(value) <= LONGEST_ANNOTATION or key.startswith(PREFIX)
    }
    return _pairs(kept, shared)


def _condition(conditions: Iterable[Condition] | None, kind: str) -> str:
    return next((condition.status for condition in conditions or () if condition.type == kind), "")


def _taint(taint: _Taint, node: str) -> Taint:
    try:
        return Taint(taint.key, Effect(taint.effect), taint.value or "", taint.time_added or "")
    except ValueError as bad:
        raise BadObject(f"node {node}: taint {taint.key} has the unknown effect {taint.effect!r}") from bad


def owner_of(meta: Meta, shared: Shared) -> OwnerRef | None:
    """Who controls it; of several owners, the one that says so."""
    owner = next((ref for ref in meta.owner_references or () if ref.controller), None)
    if owner is None:
        return None
    version, kind, name = once(owner.api_version, shared), once(owner.kind, shared), once(owner.name, shared)
    return once(OwnerRef(version, kind, name, owner.uid), shared)


def _in_memory(medium: str) -> bool:
    """Memory, and HugePages with or without a size, are lost with the node's power; the default medium is its disk."""
    return medium == "Memory" or medium.startswith("HugePages")


def _asked(meta: Meta) -> datetime | None:
    """The API's deletionTimestamp is when the grace period *ends*."""
    if meta.deletion_timestamp is None:
        return None
    try:
        return meta.deletion_timestamp - timedelta(seconds=meta.deletion_grace_period_seconds or 0)
    except OverflowError as bad:
        raise BadObject(f"{meta.name}: a deletion grace of {meta.deletion_grace_period_seconds} s") from bad


def _pod_gpus(spec: _PodSpec, name: str) -> int:
    """As the scheduler counts: containers and sidecars together, or the hungriest init container if that is more."""

    def gpus(container: _Container) -> int:
        resources = container.resources or _Resources()
        return _gpus(resources.limits or resources.requests, name)

    inits = spec.init_containers or ()
    at_once = [*(spec.containers or ()), *(one for one in inits if one.restart_policy == "Always")]
    return max(sum(map(gpus, at_once)), max((gpus(one) for one in inits if one.restart_policy != "Always"), default=0))


def _gpus(found: Mapping[str, int | str] | None, name: str) -> int:
    counts = (
        (key, value) for key, value in (found or {}).items() if key in GPU_RESOURCES or key.startswith(MIG_PREFIX)
    )
    return sum(_count(value, f"{name}: {key}") for key, value in counts)


def _count(quantity: int | str, what: str) -> int:
    """An extended resource's quantity: whole, and from a thousand on written with its suffix ("1k")."""
    text = str(quantity)
    digits, factor = (text[:-1], 1000) if text.endswith("k") else (text, 1)
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS):
        raise BadObject(f"{what} is {quantity!r}, not a whole number")
    return int(digits) * factor


def _selector(selector: _Selector, shared: Shared) -> Selector:
    expressions = selector.match_expressions or ()
    return once(
        Selector(
            match=_pairs(selector.match_labels, shared),
            expressions=tuple((one.key, one.operator, tuple(one.values or ())) for one in expressions),
        ),
        shared,
    )
