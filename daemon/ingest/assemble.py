"""Puts batches of samples in their places and makes the snapshot of a tick.

The poller (live) and the replay (audit) both feed it; what they feed is equal, so what they get is.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from daemon.config import LabelMap
from daemon.ingest.codes import SAME_EDGE_S, CodeEdges
from daemon.ingest.coverage import CoverageWatch
from daemon.ingest.decode import Batch, PrometheusError, decode_labels
from daemon.ingest.fleet import Fleet
from daemon.ingest.naming import Namer
from daemon.ingest.nodes import NodeNames, same_node
from daemon.ingest.places import GPU, NODE, Known, Parts, Places
from daemon.ingest.store import Store
from daemon.ingest.targets import TargetHealth
from daemon.ingest.work import WorkWatch
from detectors.events import KernelEvent
from detectors.identity import GpuRef
from detectors.snapshot import ExprResult, Frame, Snapshot, SourceState
from rules.schema import RuleBook
from rules.vocabulary import SignalKind

#: A code is a whole number below this; blanks and averages are none (FC030).
_CODES_BELOW = 1e6
#: A target's last sample of `up` counts for so many scrape intervals.
_TARGET_FRESH_SCRAPES = 5.0
#: How often what is gone is forgotten, and how long it may be silent before it counts as gone: longer than any window
#: that is asked for, so that no series comes back to a place that another has now.
_TIDY_EVERY_S = 3600.0
_SILENT_S = 7200.0
_TARGET_GONE_S = 86_400.0
_ALL_OF_IT = SourceState(ok=True)


class Assembler:
    """State of the ingest: who is who, the newest samples, and what has been dropped."""

    def __init__(
        self, rules: RuleBook, labels: LabelMap, *, max_raw_signals: int = 1500, slow_interval_s: float = 300.0
    ) -> None:
        self.fleet = Fleet()
        self.names = NodeNames()
        self.counts: Counter[str] = Counter()
        self.gpu = Store(slow_interval_s=slow_interval_s)
        self.node = Store(slow_interval_s=slow_interval_s)
        self._policy = rules.policy.telemetry
        self._slow_interval_s = slow_interval_s
        self._targets = TargetHealth(self._node_of_target)
        self._work = WorkWatch()
        self._codes = CodeEdges()
        self._coverage = CoverageWatch(rules.policy.telemetry)
        self._namer = Namer(rules.metrics, labels, self.names, target_pod=self._targets.pod_of, is_known=self._is_known)
        parts = Parts(self.fleet, self.gpu, self.node, self._work, self._targets, rules.metrics.get, self.counts)
        self._places = Places(self._namer, parts, max_raw_signals=max_raw_signals)
        self._generation = 0
        self._last_tick: float | None = None
        self._newest: Snapshot | None = None
        self._tidied_at: float | None = None
        self._shared: tuple[int, list[list[int]]] = (-1, [])

    # --------------------------------------------------------------- taking in

    @property
    def wants_names(self) -> bool:
        """Whether series have come since the last `learn` that name only an address or an exporter's pod."""
        return self._places.news

    def learn(self, batch: Batch) -> None:
        """Label sets that say which address or pod belongs to which node (node_uname_info, kube_pod_info)."""
        self.names.learn(self._labels_of(batch))
        if self.names.generation != self._generation or self._places.news:
            self._generation = self.names.generation
            self._places.rename()  # a node that was only an address may have a name now

    def targets(self, batch: Batch) -> None:
        """Samples of `up`: which scrape targets answer."""
        self.counts["bad_labels"] += self._targets.absorb(batch)

    def absorb(self, query: str, batch: Batch, *, paced: bool = True) -> None:
        """Take one answer in. `query` names the question, so that its series are recognised the next time.

        `paced` answers hold every sample since the last one, so the scrape interval can be read off them.
        """
        known = self._places.recognise(query, batch)
        self.counts["samples"] += len(batch.at)
        self.counts["unreadable"] += batch.unreadable
        where = known.scope[batch.series]
        for store, scope in ((self.gpu, GPU), (self.node, NODE)):
            mine = np.flatnonzero(where == scope)
            if len(mine):
                series = batch.series[mine]
                slot, source, scale = known.slot[series], known.source[series], known.scale[series]
                store.absorb(slot, batch.at[mine], batch.value[mine], source, scale)
        if paced and len(batch.at):
            self._pace(known, batch)
        self._work.saw(known.work[batch.series], batch.at)
        if known.is_code.any():
            self._codes_at(known, batch)

    def _pace(self, known: Known, batch: Batch) -> None:
        """Spacing of the samples of single series: replicas and exporters must not count into each other's."""
        new = batch.at > known.last_at[batch.series]
        series = batch.series[new]
        newest = known.last_at.copy()
        np.maximum.at(newest, series, batch.at[new])
        count = np.bincount(series, minlength=len(newest))
        with np.errstate(invalid="ignore", divide="ignore"):
            spacing = (newest - known.last_at) / count
        for store, scope in ((self.gpu, GPU), (self.node, NODE)):
            mine = spacing[(known.scope == scope) & np.isfinite(spacing)]
            if len(mine):
                store.pace(float(np.median(mine)))
        known.last_at = newest

    def _codes_at(self, known: Known, batch: Batch) -> None:
        """Hand the samples of code series on to the edges; a gauge that shows what it showed before costs nothing."""
        places = np.flatnonzero(known.is_code[batch.series])
        value = batch.value[places]
        with np.errstate(invalid="ignore"):
            good = (value >= 0) & (value < _CODES_BELOW) & (value == np.floor(value))
        self.counts["bad_codes"] += int(np.count_nonzero(~good))
        places, value = places[good], value[good]
        moves = np.zeros(len(known.hashes), np.bool_)
        moves[batch.series[places][value != known.calm[batch.series[places]]]] = True
        places = places[moves[batch.series[places]]]
        places = places[np.lexsort((batch.at[places], batch.series[places]))]
        series = batch.series[places]
        for part in np.split(places, np.flatnonzero(np.diff(series)) + 1) if len(places) else ():
            index = int(batch.series[part[0]])
            named, row = self._places.code_of[int(known.hashes[index])]
            samples = list(zip(batch.at[part].tolist(), batch.value[part].tolist(), strict=True))
            gpu = self.fleet.gpus[row]
            if named.kind is SignalKind.CODE:
                self._codes.gauge(row, gpu, named.source, samples)
                known.calm[index] = samples[-1][1]
            elif named.code is not None:
                gone_after_s = max(SAME_EDGE_S, 2.5 * self.gpu.interval_s)
                self._codes.window(row, gpu, named.source, named.code, samples, gone_after_s=gone_after_s)

    # ----------------------------------------------------------------- finding

    def find(self, labels: dict[str, str]) -> tuple[int, int]:
        """(GPU row, node row) that a label set names, -1 where it names none that is known."""
        gpu = self._namer.gpu_of(labels)
        row = self.fleet.find_gpu(gpu) if gpu is not None else None
        if row is not None:
            return row, -1
        node = self._node_of_target(labels)
        return -1, -1 if node is None else node

    def renamed(self, event: KernelEvent) -> KernelEvent:
        """An event under the name that the metrics use for its node, and about none of another node's GPUs."""
        row = self.fleet.find_node(event.node)
        node = event.node if row is None else self.fleet.nodes[row].name
        home = self.fleet.home_of(event.gpu_uuid) if event.gpu_uuid else None
        if home is not None and home != node:
            return replace(event, node=node, gpu_uuid=None, notes=(*event.notes, f"its GPU is one of {home}'s"))
        return replace(event, node=node)

    def boot_at(self, node: str) -> float | None:
        """When a node booted, in unix seconds, where its exporter says so."""
        row = self.fleet.find_node(node)
        boots = self.node.newest("node_boot_time_seconds")
        return None if row is None or np.isnan(boots[row]) else float(boots[row])

    def series_of_node(self, batch: Batch, node: str) -> frozenset[int]:
        """Which series of an answer are about this node, under any of its names."""
        label_sets = self._labels_of(batch)
        return frozenset(i for i, labels in enumerate(label_sets) if same_node(self._namer.node_of(labels).name, node))

    def _labels_of(self, batch: Batch) -> list[dict[str, str]]:
        label_sets = []
        for raw in batch.labels:
            try:
                label_sets.append(decode_labels(raw))
            except PrometheusError:
                self.counts["bad_labels"] += 1
                label_sets.append({})
        return label_sets

    def _node_of_target(self, labels: Mapping[str, str]) -> int | None:
        name = self._namer.node_of(labels).name
        return self.fleet.find_node(name) if name else None

    def _is_known(self, gpu: GpuRef) -> bool:
        return self.fleet.find_gpu(gpu) is not None

    # ---------------------------------------------------------------- the tick

    def tick(
        self,
        now: float,
        *,
        events: Sequence[KernelEvent] = (),
        exprs: Sequence[ExprResult] = (),
        source: SourceState = _ALL_OF_IT,
    ) -> Snapshot:
        """The snapshot as of `now` (unix seconds), from all that was absorbed; begins the next tick's extremes."""
        interval = now - self._last_tick if self._last_tick is not None else 0.0
        self._last_tick = now
        frame, node_frame = self._frame(self.gpu, now), self._frame(self.node, now)
        node_of = self.fleet.node_of()
        replaced = self._replaced(frame)
        retired = np.zeros(len(self.fleet.gpus), np.bool_)
        retired[[old for old, _ in replaced]] = True
        coverage = self._coverage.look(
            now=now, interval_s=interval, frame=frame, nodes_frame=node_frame, store=self.gpu, node_of=node_of,
            device_of=self.fleet.device_of(), node_count=len(self.fleet.nodes),
            targets=self._targets.state(now, _TARGET_FRESH_SCRAPES * self.gpu.interval_s), retired=retired,
            counts=self.all_counts(),
        )  # fmt: skip
        resets = self.gpu.next_tick()
        self.node.next_tick()
        snapshot = Snapshot(
            at=datetime.fromtimestamp(now, UTC),
            interval_s=interval,
            gpus=tuple(self.fleet.gpus),
            nodes=tuple(self.fleet.nodes),
            node_of=node_of,
            boot_at=self.node.newest("node_boot_time_seconds"),
            gpu=frame,
            node=node_frame,
            coverage=coverage,
            workloads=self._work.users(now, self._stale_s(self.gpu), len(self.fleet.gpus)),
            events=tuple(events) + self._codes.take(),
            resets=resets,
            exprs=tuple(exprs),
            source=source,
            racks=tuple(self.fleet.racks.get(node.name, "") for node in self.fleet.nodes),
            replaced=tuple((self.fleet.gpus[old].uuid, self.fleet.gpus[new].uuid) for old, new in replaced),
        )
        self._tidy(now)
        self._newest = snapshot
        return snapshot

    def heard(self, at: datetime, events: Sequence[KernelEvent]) -> Snapshot | None:
        """The last snapshot with these events, as of a later moment. None where there is none."""
        return None if self._newest is None else self._newest.later(at, events)

    def _stale_s(self, store: Store) -> float:
        return self._policy.stale_after_scrapes * store.interval_s

    def _frame(self, store: Store, now: float) -> Frame:
        store.settle()
        stale_s = self._stale_s(store)
        return store.frame(now, stale_fast_s=stale_s, stale_slow_s=self._slow_interval_s + stale_s)

    def all_counts(self) -> dict[str, int]:
        """Everything dropped, refused or odd so far, by reason."""
        total = Counter(self.counts)
        total.update(self.gpu.dropped)
        total.update(self.node.dropped)
        return dict(total)

    def _replaced(self, frame: Frame) -> list[tuple[int, int]]:
        """(old row, new row) where a place in a chassis shows another UUID now and the old one is silent."""
        version, shared = self._shared
        if version != self.fleet.version:
            by_place: dict[tuple[str, str, int | None], list[int]] = {}
            for row, gpu in enumerate(self.fleet.gpus):
                if gpu.pci:
                    by_place.setdefault((gpu.node, gpu.pci, gpu.gpu_instance), []).append(row)
            shared = [rows for rows in by_place.values() if len(rows) > 1]
            self._shared = self.fleet.version, shared
        alive = _any_known(frame) if shared else np.empty(0, np.bool_)
        found = []
        for rows in shared:
            living = [row for row in rows if alive[row]]
            found += [(old, living[-1]) for old in rows if living and not alive[old]]
        return found

    def _tidy(self, now: float) -> None:
        """Once in a while, forget what label churn has left behind, so that weeks cost no more memory than a day."""
        if self._tidied_at is None:
            self._tidied_at = now
        if now - self._tidied_at < _TIDY_EVERY_S:
            return
        self._tidied_at = now
        self._codes.keep(self._places.tidy(now, self.node.release(now - _SILENT_S), now - _SILENT_S))
        self._targets.tidy(now - _TARGET_GONE_S)


def _any_known(frame: Frame) -> NDArray[np.bool_]:
    return np.asarray((~np.isnan(frame.value)).any(axis=1), np.bool_)
