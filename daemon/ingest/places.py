"""Where each series of an answer goes: its label set is named once, then it is known by its hash.

In the steady state an answer holds the series of the last one and no Python runs for any of them; after a change only
the new ones are named.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from daemon.ingest.decode import Batch, PrometheusError, decode_labels
from daemon.ingest.fleet import Fleet
from daemon.ingest.naming import Named, Namer, Refused
from daemon.ingest.slots import Bools, Combine, Floats, Index, Sources
from daemon.ingest.store import RANKS, Column, Store
from daemon.ingest.targets import TargetHealth
from daemon.ingest.work import WorkWatch
from detectors.identity import GpuRef, Workload
from rules.schema import MetricSpec
from rules.vocabulary import SignalKind, SignalScope

#: The values of `Known.scope`: in which store a series' samples go.
GPU, NODE, NOWHERE = 0, 1, -1
#: Targets whose node may get another name, beyond which they are all named anew rather than remembered.
_MOST_PROVISIONAL = 20_000
#: A source (a target and its replica) that has shown no series for so long will not come back under this name.
_SOURCE_GONE_S = 7 * 86_400.0
#: GPUs by scrape and workload whose labels are remembered between metrics and queries.
_MOST_KIN = 200_000
_METRIC = b'"__name__":"'
_COMBINE = {"newest": Combine.NEWEST, "sum": Combine.SUM, "max": Combine.MAX}
#: Signals that every whole GPU or MIG instance has: enough to see whose pods use it.
_SHOW_WORK = frozenset({"gpu_util_percent", "power_watts", "gpu_temp", "gr_engine_active", "fb_used_mib"})


def split_metric(raw: bytes) -> tuple[str, int]:
    """The metric of a label set, and a hash of all its other labels; "" where the bytes are written in another way.

    An unescaped `"__name__":"` can't lie inside a value, so what is found is the label itself.
    """
    begin = raw.find(_METRIC)
    if begin < 0:
        return "", 0
    end = raw.find(b'"', begin + len(_METRIC))
    metric = raw[begin + len(_METRIC) : end]
    if b"\\" in metric or not metric.isascii():
        return "", 0
    return metric.decode("ascii"), hash(raw[:begin] + raw[end:])


@dataclass(slots=True)
class Known:
    """Where the series of one query go, one element a series, in the order in which they came.

    `work` is the number of a use (-1: none); `provisional` series are on a node that what is learned about addresses
    may still change; `last_at` is the newest sample, unix seconds; `calm` the code that a series of codes showed last.
    """

    hashes: NDArray[np.int64]
    scope: NDArray[np.int8]
    slot: Index
    source: Sources
    scale: Floats
    work: Index
    is_code: Bools
    provisional: Bools
    last_at: Floats
    calm: Floats

    @staticmethod
    def nowhere(hashes: NDArray[np.int64]) -> "Known":
        """Series that go nowhere yet."""
        size = len(hashes)
        return Known(
            hashes=hashes,
            scope=np.full(size, NOWHERE, np.int8),
            slot=np.zeros(size, np.intp),
            source=np.zeros(size, np.int32),
            scale=np.ones(size),
            work=np.full(size, -1, np.intp),
            is_code=np.zeros(size, np.bool_),
            provisional=np.zeros(size, np.bool_),
            last_at=np.full(size, -np.inf),
            calm=np.full(size, -1.0),
        )

    def part(self, chosen: Bools) -> "Known":
        """Some of the series."""
        return Known(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def take(self, where: Bools, other: "Known", places: Index) -> None:
        """Take over what `other` knows at `places` about the series at `where`."""
        for one in fields(self):
            getattr(self, one.name)[where] = getattr(other, one.name)[places]


@dataclass(slots=True)
class _Provisional:
    """A target whose node may get another name: one label set of it, and the name it has."""

    labels: dict[str, str]
    name: str


@dataclass(frozen=True, slots=True)
class Kin:
    """What all series of a GPU by one scrape share, whatever their metric: where they go, but for the column."""

    row: int
    gpu: GpuRef
    source: int
    workload: Workload | None
    raw_suffix: str


@dataclass(slots=True)
class Parts:
    """What a series' place is made of: the parts of the assembler that a new series is entered into."""

    fleet: Fleet
    gpu: Store
    node: Store
    work: WorkWatch
    targets: TargetHealth
    spec_of: Callable[[str], MetricSpec | None]
    counts: Counter[str] = field(default_factory=Counter)


class Places:
    """All series that are known, by query. `code_of` gives a code series' meaning and GPU row by its hash."""

    def __init__(self, namer: Namer, parts: Parts, *, max_raw_signals: int) -> None:
        self.known: dict[str, Known] = {}
        self.code_of: dict[int, tuple[Named, int]] = {}
        self.news = False
        self._namer = namer
        self._parts = parts
        self._raw_left = max_raw_signals
        self._sources: dict[str, int] = {}
        self._source_seen: dict[str, float] = {}
        self._next_source = 0
        self._provisional: dict[tuple[str, str, str], _Provisional] = {}
        self._kin: dict[int, Kin] = {}

    def recognise(self, query: str, batch: Batch) -> Known:
        """Where the series of an answer to `query` go; new ones are named and get their places."""
        known = self.known.get(query)
        if known is not None and np.array_equal(known.hashes, batch.hashes):
            return known
        fresh = Known.nowhere(batch.hashes)
        is_new = np.ones(len(batch.hashes), np.bool_)
        if known is not None and len(known.hashes):
            order = np.argsort(known.hashes)
            near = np.searchsorted(known.hashes[order], batch.hashes)
            places = order[np.minimum(near, len(order) - 1)]
            same = known.hashes[places] == batch.hashes
            fresh.take(same, known, places[same])
            is_new = ~same
        for index in np.flatnonzero(is_new).tolist():
            self._place(fresh, index, batch.labels[index])
        self.known[query] = fresh
        return fresh

    def _place(self, known: Known, index: int, raw: bytes) -> None:
        """Give one new series its place: by its kin where all its labels but the metric are known, else by its name.

        A kin counts only as long as the fleet holds the GPU just as the kin's labels said: its node, driver and so on.
        """
        metric, shared = split_metric(raw)
        kin = self._kin.get(shared) if metric else None
        plain = self._namer.plain(metric) if kin is not None else None
        is_same = kin is not None and self._parts.fleet.gpus[kin.row] is kin.gpu
        if kin is None or plain is None or plain.scope is not SignalScope.GPU or not is_same:
            self._place_by_name(known, index, raw, shared)
            return
        signal = plain.signal if plain.catalogued else plain.signal + kin.raw_suffix
        col = self._column(self._parts.gpu, signal, plain.kind)
        known.source[index] = kin.source * (RANKS + 1) + min(plain.rank, RANKS)
        if kin.workload is not None and signal in _SHOW_WORK:
            known.work[index] = self._parts.work.number(kin.row, kin.workload)
        if col is not None:
            known.scope[index] = GPU
            known.slot[index] = self._parts.gpu.slot(kin.row, col)
            known.scale[index] = plain.scale

    def _place_by_name(self, known: Known, index: int, raw: bytes, shared: int) -> None:
        """Name a series by all its labels, and remember what its kin will share with it."""
        counts = self._parts.counts
        try:
            labels = decode_labels(raw)
        except PrometheusError:
            counts["refused_bad_labels"] += 1
            return
        named = self._namer.name(labels)
        if isinstance(named, Refused):
            counts[f"refused_{named.reason}"] += 1
            return
        if not named.node.labelled:
            known.provisional[index] = True
            key = (labels.get("instance", ""), labels.get("namespace", ""), labels.get("pod", ""))
            self.news |= key not in self._provisional
            self._provisional[key] = _Provisional(labels, named.node.name)
        row = self._row(named, labels)
        source = self._source(named.source)
        known.source[index] = source * (RANKS + 1) + min(named.rank, RANKS)
        if named.gpu is not None and named.catalogued and named.node.labelled and len(self._kin) < _MOST_KIN:
            suffix = self._namer.raw_suffix(labels, of_gpu=True)
            self._kin[shared] = Kin(row, self._parts.fleet.gpus[row], source, named.workload, suffix)
        if named.workload is not None and named.signal in _SHOW_WORK:
            known.work[index] = self._parts.work.number(row, named.workload)
        if named.event_kind is not None:
            known.is_code[index] = True
            self.code_of[int(known.hashes[index])] = named, row
            if named.kind is SignalKind.WINDOW_COUNT:
                return  # one series a code: events, never a cell
        store = self._parts.gpu if named.scope is SignalScope.GPU else self._parts.node
        col = self._column(store, named.signal, named.kind)
        if col is not None:
            known.scope[index] = GPU if named.scope is SignalScope.GPU else NODE
            known.slot[index] = store.slot(row, col, _COMBINE[named.combine], named.component)
            known.scale[index] = named.scale

    def _row(self, named: Named, labels: dict[str, str]) -> int:
        """The row of the thing measured, GPU or node; new things get theirs."""
        parts = self._parts
        node_row, is_new = parts.fleet.node_row(named.node.name, resolved=named.node.resolved)
        if is_new:
            parts.node.add_row()
        if named.rack:
            parts.fleet.racks[parts.fleet.nodes[node_row].name] = named.rack
        if named.gpu is None:
            return node_row
        known = None if named.catalogued else parts.fleet.find_gpu(named.gpu)
        if known is not None:  # other people's labels say nothing about the GPU itself: a model may be a language model
            return known
        row, is_new = parts.fleet.gpu_row(named.gpu, node_row)
        if is_new:
            parts.gpu.add_row()
        parts.targets.proves(labels, parts.fleet.node_row_of(row))
        return row

    def _source(self, name: str) -> int:
        number = self._sources.get(name)
        if number is None:
            number = self._sources[name] = self._next_source
            self._next_source += 1
        return number

    def _column(self, store: Store, signal: str, kind: SignalKind) -> int | None:
        known = store.column(signal)
        if known is not None:
            return known
        spec = self._parts.spec_of(signal)
        if spec is None:
            if self._raw_left <= 0:
                self._parts.counts["raw_signals_over_limit"] += 1
                return None
            self._raw_left -= 1
        low = spec.low if spec is not None and spec.low is not None else -np.inf
        high = spec.high if spec is not None and spec.high is not None else np.inf
        return store.column(signal, Column(signal, kind, low, high, spec is not None and spec.fast))

    def rename(self) -> None:
        """Drop the series of nodes that have another name since something was learned: the next answer places them."""
        self.news = False
        moved = False
        for target in self._provisional.values():
            name = self._namer.node_of(target.labels).name
            moved |= name != target.name
            target.name = name
        if moved:
            for query, known in self.known.items():
                self.known[query] = known.part(~known.provisional)

    def tidy(self, now: float, released: Index, used_before: float) -> frozenset[str]:
        """Forget what no series needs: places in `released` node slots, uses of GPUs, sources gone for a week.

        `used_before` is the moment (unix seconds) before which a use of a GPU is over. Returns the sources that stay.
        """
        self._kin.clear()  # it may name sources that are forgotten below
        referred = np.zeros(len(self._parts.work), np.bool_)
        live: set[int] = set()
        hashes: set[int] = set()
        crowded = len(self._provisional) > _MOST_PROVISIONAL
        for query, whole in self.known.items():
            gone = (whole.scope == NODE) & np.isin(whole.slot, released)
            known = self.known[query] = whole.part(~(gone | (whole.provisional & crowded)))
            referred[known.work[known.work >= 0]] = True
            live.update((np.unique(known.source) // (RANKS + 1)).tolist())
            hashes.update(known.hashes[known.is_code].tolist())
        if crowded:
            self._provisional.clear()
        renumbered = np.r_[self._parts.work.tidy(used_before, referred), -1]
        for known in self.known.values():
            known.work = renumbered[known.work]  # -1 finds the -1 at the end
        self._source_seen |= dict.fromkeys((name for name, number in self._sources.items() if number in live), now)
        self._source_seen = {name: at for name, at in self._source_seen.items() if now - at < _SOURCE_GONE_S}
        self._sources = {name: number for name, number in self._sources.items() if name in self._source_seen}
        self.code_of = {number: meaning for number, meaning in self.code_of.items() if number in hashes}
        return frozenset(self._sources)
