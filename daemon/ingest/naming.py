"""From a label set to what it means: which signal of which GPU or node, seen by which source, for whose work.

Runs once for every label set that has not been seen before; `daemon.ingest.places` keeps the answer under the label
set's hash. Exporters differ in names, units and labels: the catalog's aliases and `LabelMap` are the only places that
know.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from daemon.config import LabelMap
from daemon.ingest.nodes import NodeNames, host_of, is_machine_name
from detectors.identity import GpuRef, Workload, job_of_pod, normal_pci
from rules.schema import Alias, MetricSpec
from rules.vocabulary import EventKind, SignalKind, SignalScope

_RAW_COUNTER = re.compile(r"_(total|count|sum|bucket)$")
#: Labels that tell no two signals of a GPU or node apart; a MIG profile may be wrong (dcgm-exporter 544).
_SAYS_NOTHING = frozenset(
    {"__name__", "endpoint", "service", "err_msg", "pod_uid", "DCGM_FI_PROCESS_NAME", "GPU_I_PROFILE"}
)
#: A raw signal's name holds no longer label value than this, and a number in a label has no more digits than that.
_LONGEST_LABEL = 64
_MOST_DIGITS = 9
#: Metric names whose meaning is remembered; beyond it they are looked up anew.
_MOST_METRICS = 20_000


class NodeName(NamedTuple):
    """A machine's name.

    `resolved`: it is a node's own name and no mere address. `labelled`: the series itself says it, so nothing that is
    learned later about addresses and pods can change it.
    """

    name: str
    resolved: bool
    labelled: bool


@dataclass(frozen=True, slots=True)
class Named:
    """What one series is. Exactly one of `gpu` and `node` is the thing measured; `node` is always the machine.

    `code` is set for signals that count or hold fault codes in a label; `component` tells the parts of one value
    apart, joined by `combine` (newest, sum, max). `rank` is the place of its name among the signal's aliases, and
    `source` the scrape it came by. `catalogued` is False for a series that no metrics pack knows.
    """

    scope: SignalScope
    signal: str
    kind: SignalKind
    gpu: GpuRef | None
    node: NodeName
    source: str
    catalogued: bool = True
    scale: float = 1.0
    rank: int = 0
    combine: str = "newest"
    component: str = ""
    event_kind: EventKind | None = None
    code: int | None = None
    workload: Workload | None = None
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Plain:
    """What a metric is by its name alone; the fields are those of `Named`."""

    signal: str
    kind: SignalKind
    scope: SignalScope
    scale: float
    rank: int
    catalogued: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A series that says nothing usable, and why; counted, never guessed at."""

    reason: str


class Namer:
    """Names label sets by the catalog and the site's label map.

    `target_pod` gives the pod behind a scrape target (instance, job), which is never the work on a GPU; `is_known`
    says whether a GPU has been seen before.
    """

    def __init__(
        self,
        metrics: Mapping[str, MetricSpec],
        labels: LabelMap,
        nodes: NodeNames,
        *,
        target_pod: Callable[[str, str], str | None] = lambda _instance, _job: None,
        is_known: Callable[[GpuRef], bool] = lambda _gpu: True,
    ) -> None:
        self._labels = labels
        self._nodes = nodes
        self._target_pod = target_pod
        self._is_known = is_known
        self._plain: dict[str, Plain | None] = {}
        self._exporter = re.compile(labels.exporter_pods, re.IGNORECASE)
        self._aliases: dict[str, list[tuple[str, MetricSpec, Alias]]] = defaultdict(list)
        for name, spec in metrics.items():
            for alias in spec.aliases:
                self._aliases[alias.metric].append((name, spec, alias))
        for candidates in self._aliases.values():  # the alias with the most labels is the most particular one
            candidates.sort(key=lambda item: -len(item[2].labels))
        self._identity = _SAYS_NOTHING.union(*labels.model_dump(exclude={"exporter_pods"}).values())

    def plain(self, metric: str) -> Plain | None:
        """What a metric is whatever its labels say: a signal under an alias without conditions, parts or codes.

        None where the labels have to be looked at. A metric that no pack knows is a raw signal: its own name, to which
        the labels of `raw_suffix` are added.
        """
        if metric not in self._plain:
            if len(self._plain) > _MOST_METRICS:
                self._plain.clear()
            self._plain[metric] = self._plain_of(metric)
        return self._plain[metric]

    def _plain_of(self, metric: str) -> Plain | None:
        candidates = self._aliases.get(metric) or self._aliases.get(metric.upper()) or ()
        if not candidates:
            return Plain(metric, _raw_kind(metric), SignalScope.GPU, 1.0, 0, catalogued=False)
        signal, spec, alias = candidates[0]
        told_by_labels = alias.labels or alias.sum_over or alias.max_over or spec.code_label or spec.event_kind
        if len(candidates) > 1 or told_by_labels:
            return None
        return Plain(signal, spec.kind, spec.scope, alias.scale, spec.aliases.index(alias), catalogued=True)

    def name(self, labels: Mapping[str, str]) -> Named | Refused:
        """What the series with these labels is."""
        metric = labels.get("__name__")
        if not metric:
            return Refused("no_name")
        node = self.node_of(labels)
        if not node.name:
            return Refused("no_node")
        source = "\x1f".join(labels.get(name, "") for name in self._labels.source)
        matched = self._alias(metric, labels)
        if matched is None:
            return self._raw(metric, labels, node, source)
        signal, spec, alias = matched
        gpu = None
        if spec.scope is SignalScope.GPU:
            gpu = self.gpu_of(labels, node.name)
            if gpu is None:
                return Refused("no_gpu_identity")
        code = None
        if spec.code_label is not None:
            code = _whole(labels.get(spec.code_label))
            if code is None:
                return Refused("no_code")
        parts = alias.sum_over or alias.max_over
        return Named(
            scope=spec.scope,
            signal=signal,
            kind=spec.kind,
            gpu=gpu,
            node=node,
            source=source,
            scale=alias.scale,
            rank=spec.aliases.index(alias),
            combine="sum" if alias.sum_over else "max" if alias.max_over else "newest",
            component="\x1f".join([alias.metric, *(labels.get(part, "") for part in parts)]) if parts else "",
            event_kind=spec.event_kind,
            code=code,
            workload=self._workload(labels) if gpu is not None else None,
            rack=self._first(labels, self._labels.rack) or "",
        )

    def _alias(self, metric: str, labels: Mapping[str, str]) -> tuple[str, MetricSpec, Alias] | None:
        for candidate in self._aliases.get(metric) or self._aliases.get(metric.upper()) or ():
            if all(labels.get(key) == value for key, value in candidate[2].labels.items()):
                return candidate
        return None

    def _raw(self, metric: str, labels: Mapping[str, str], node: NodeName, source: str) -> Named:
        """A series outside the catalog: its name, with the labels that tell it from its sisters.

        It belongs to a GPU only where the catalog's series have shown that GPU before: disks have serial numbers too.
        """
        gpu = self.gpu_of(labels, node.name)
        if gpu is not None and not self._is_known(gpu):
            gpu = None
        signal = metric + self.raw_suffix(labels, of_gpu=gpu is not None)
        scope = SignalScope.GPU if gpu is not None else SignalScope.NODE
        return Named(scope, signal, _raw_kind(metric), gpu, node, source, catalogued=False)

    def raw_suffix(self, labels: Mapping[str, str], *, of_gpu: bool) -> str:
        """What tells a raw signal from its sisters, as `{name=value,…}`; empty where nothing does."""
        known = self._identity | {"device"} if of_gpu else self._identity
        rest = [f"{k}={v}" for k, v in sorted(labels.items()) if k not in known and len(v) <= _LONGEST_LABEL]
        return f"{{{','.join(rest)}}}" if rest else ""

    @staticmethod
    def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
        for name in names:
            value = labels.get(name)
            if value:
                return value
        return None

    def gpu_of(self, labels: Mapping[str, str], node: str = "") -> GpuRef | None:
        """The GPU that a label set names, or None."""
        uuid = self._first(labels, self._labels.gpu_uuid)
        if uuid is None:
            return None
        return GpuRef(
            uuid=uuid,
            node=node,
            gpu_instance=_whole(self._first(labels, self._labels.gpu_instance)),
            index=self._first(labels, self._labels.gpu_index) or "",
            pci=normal_pci(self._first(labels, self._labels.pci) or "") or "",
            model=self._first(labels, self._labels.model) or "",
            serial=self._first(labels, self._labels.serial) or "",
            driver=self._first(labels, self._labels.driver) or "",
        )

    def _is_exporter(self, text: str | None) -> bool:
        return bool(text) and self._exporter.search(text or "") is not None

    def node_of(self, labels: Mapping[str, str]) -> NodeName:
        """The machine that a label set is about.

        Its node label; else a host name that is not an exporter's pod; else the exporter pod's node; else the
        address, if something says which node has it; else the address itself, unresolved (dcgm-exporter 340, 467).
        """
        node = self._first(labels, self._labels.node)
        if node:
            return NodeName(node, resolved=True, labelled=True)
        host = self._first(labels, self._labels.hostname) or ""
        pod = labels.get("pod", "")
        speaks = is_machine_name(host) and host != pod and not self._is_exporter(host)
        if speaks and self._nodes.knows(host):
            return NodeName(host, resolved=True, labelled=True)
        instance = labels.get("instance", "")
        namespace = labels.get("namespace", "")
        found = (
            self._nodes.of_pod(namespace, pod) or self._nodes.of_pod(namespace, host) or self._nodes.of_host(instance)
        )
        if speaks and (found is None or found.split(".", 1)[0] == host.split(".", 1)[0]):
            return NodeName(host, resolved=True, labelled=True)
        if found:
            return NodeName(found, resolved=True, labelled=False)
        name = host_of(instance) or host
        return NodeName(name, resolved=is_machine_name(name) and not self._is_exporter(name), labelled=False)

    def _workload(self, labels: Mapping[str, str]) -> Workload | None:
        """The pod that uses the GPU: the first pod label that is not the exporter's own (dcgm-exporter 27 and 85)."""
        for place, name in enumerate(self._labels.pod):
            pod = labels.get(name)
            container = _beside(labels, self._labels.container, place)
            if not pod or (not name.startswith("exported_") and self._is_own_pod(pod, container, labels)):
                continue
            namespace = _beside(labels, self._labels.namespace, place) or self._first(labels, self._labels.namespace)
            return Workload(namespace or "", pod, self._first(labels, self._labels.job) or job_of_pod(pod))
        return None

    def _is_own_pod(self, pod: str, container: str | None, labels: Mapping[str, str]) -> bool:
        """Whether a pod label names the scrape's own target, by what `up` says of it or else by how it is called."""
        job = labels.get("job", "")
        return (
            pod == self._target_pod(labels.get("instance", ""), job)
            or self._is_exporter(pod)
            or self._is_exporter(container)
            or (bool(job) and pod.startswith(job))
        )


def _raw_kind(metric: str) -> SignalKind:
    return SignalKind.COUNTER if _RAW_COUNTER.search(metric) else SignalKind.GAUGE


def _beside(labels: Mapping[str, str], names: tuple[str, ...], place: int) -> str | None:
    """The label that stands in the same place of its own list: `exported_namespace` goes with `exported_pod`."""
    return labels.get(names[place]) if place < len(names) else None


def _whole(text: str | None) -> int | None:
    """A label's number, or None. Plain digits only: int() takes far more than a label may hold."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        return None
    return int(text)
