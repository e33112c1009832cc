"""A small fleet that tests put into any state: values, absences, jobs, boots and log lines, one snapshot a tick.

GPUs are named by (node number, slot). What is set stays until it is set again; what is added (`grows`, `logs`) belongs
to the next tick. Nothing is simulated: what a test doesn't say isn't there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from detectors.engine import Detection, Engine
from detectors.events import KernelEvent
from detectors.identity import GpuRef, NodeRef, Workload
from detectors.snapshot import Coverage, ExprResult, Frame, Snapshot, SourceState
from rules.loader import load_rules
from rules.schema import RuleBook
from rules.vocabulary import EventKind

START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
H100 = "NVIDIA H100 80GB HBM3"
Place = tuple[int, int]


@dataclass
class Scene:
    """`nodes` nodes with `gpus` GPUs each, after which `cpu_nodes` nodes without any."""

    nodes: int = 1
    gpus: int = 8
    cpu_nodes: int = 0
    model: str = H100
    step_s: float = 30.0
    now: datetime = START
    pci_known: bool = True
    booted_h: float = 72.0
    values: dict[str, np.ndarray] = field(default_factory=dict)
    node_values: dict[str, np.ndarray] = field(default_factory=dict)
    jobs: dict[int, tuple[Workload, ...]] = field(default_factory=dict)
    source: SourceState = field(default_factory=lambda: SourceState(ok=True))
    replaced: tuple[tuple[str, str], ...] = ()
    racks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.refs = [self._ref(node, slot) for node in range(self.nodes) for slot in range(self.gpus)]
        self.node_of = [node for node in range(self.nodes) for _ in range(self.gpus)]
        self.node_refs = [NodeRef(self.node(index)) for index in range(self.nodes + self.cpu_nodes)]
        self.boot = np.full(len(self.node_refs), self.now.timestamp() - 3600 * self.booted_h)
        self.flags: dict[str, set[int]] = {}
        self.share: dict[int, float] = {}
        self.samples: dict[int, float] = {}
        self.lost: tuple[tuple[str, str], ...] = ()
        self._grown: dict[tuple[str, str], dict[int, float]] = {}
        self._extremes: dict[tuple[str, str], dict[int, float]] = {}
        self._events: list[KernelEvent] = []
        self._exprs: list[ExprResult] = []

    # ------------------------------------------------------------------ names

    @staticmethod
    def node(index: int) -> str:
        return f"n{index:03d}"

    @staticmethod
    def uuid(node: int, slot: int) -> str:
        return f"GPU-{node:04d}-{slot}"

    @staticmethod
    def pci(slot: int) -> str:
        return f"0000:{16 + slot:02x}:00"

    def _ref(self, node: int, slot: int) -> GpuRef:
        pci = self.pci(slot) if self.pci_known else ""
        return GpuRef(self.uuid(node, slot), self.node(node), None, str(slot), pci, self.model, driver="570.1")

    def row(self, place: Place) -> int:
        return place[0] * self.gpus + place[1]

    def all_gpus(self, node: int | None = None) -> list[Place]:
        wanted = range(self.nodes) if node is None else [node]
        return [(n, slot) for n in wanted for slot in range(self.gpus)]

    # ---------------------------------------------------------------- setting

    def set(self, signal: str, value: float, *places: Place, node: int | None = None) -> "Scene":
        """A value of some GPUs, of all (no place), or of a node; NaN makes it unknown."""
        if node is not None:
            column = self.node_values.setdefault(signal, np.full(len(self.node_refs), np.nan))
            column[node] = value
            return self
        column = self.values.setdefault(signal, np.full(len(self.refs), np.nan))
        column[[self.row(place) for place in places] if places else slice(None)] = value
        return self

    def grows(self, signal: str, amount: float, *places: Place, node: int | None = None) -> "Scene":
        """What a counter grows by the next tick; its level is known from then on."""
        rows = [node] if node is not None else [self.row(place) for place in places or self.all_gpus()]
        scope = "gpu" if node is None else "node"
        store = self.values if node is None else self.node_values
        column = store.setdefault(signal, np.full(len(self.refs if node is None else self.node_refs), 0.0))
        column[rows] = np.nan_to_num(column[rows]) + amount
        grown = self._grown.setdefault((scope, signal), {})
        grown.update({row: grown.get(row, 0.0) + amount for row in rows})
        return self

    def dips(self, which: str, signal: str, value: float, *places: Place) -> "Scene":
        """An extreme (`low` or `high`) between the last tick and the next one."""
        self._extremes.setdefault((which, signal), {}).update({self.row(place): value for place in places})
        return self

    def flag(self, name: str, *rows: int) -> "Scene":
        """A set of Coverage: its rows from now on (GPU rows or node rows)."""
        self.flags[name] = set(rows)
        return self

    def blind(self, *places: Place) -> "Scene":
        """No sample of these GPUs; of none, of no GPU."""
        rows = [self.row(place) for place in places]
        self.flag("gpu_stale", *rows)
        self.share = dict.fromkeys(rows, 0.0)
        return self

    def run_job(self, job: str, *places: Place) -> "Scene":
        """A job's pods on these GPUs, one a GPU; "" takes them away."""
        for place in places:
            row = self.row(place)
            self.jobs[row] = (Workload("team", f"{job}-{row}", job),) if job else ()
        return self

    def swap(self, place: Place, uuid: str) -> "Scene":
        """Another board in the same place, and a row of its own."""
        old = self.refs[self.row(place)]
        self.refs.append(replace(old, uuid=uuid))
        self.node_of.append(place[0])
        for signal, column in self.values.items():
            self.values[signal] = np.append(column, column[self.row(place)])
            self.values[signal][self.row(place)] = np.nan
        self.flag("gpu_stale", self.row(place))
        self.replaced = (*self.replaced, (old.uuid, uuid))
        return self

    def logs(self, *events: KernelEvent) -> "Scene":
        self._events.extend(events)
        return self

    def answers(self, *results: ExprResult) -> "Scene":
        self._exprs.extend(results)
        return self

    # ---------------------------------------------------------------- ticking

    def wait(self, seconds: float) -> "Scene":
        """Time passes without a look."""
        self.now += timedelta(seconds=seconds)
        return self

    def tick(self, events: Iterable[KernelEvent] = (), *, after_s: float | None = None) -> Snapshot:
        """The next moment."""
        passed = self.step_s if after_s is None else after_s
        self.now += timedelta(seconds=passed)
        snapshot = Snapshot(
            at=self.now,
            interval_s=passed,
            gpus=tuple(self.refs),
            nodes=tuple(self.node_refs),
            node_of=np.array(self.node_of, np.intp),
            boot_at=self.boot.copy(),
            gpu=self._frame("gpu", self.values, len(self.refs)),
            node=self._frame("node", self.node_values, len(self.node_refs)),
            coverage=self._coverage(),
            workloads=tuple(self.jobs.get(row, ()) for row in range(len(self.refs))),
            events=(*self._events, *events),
            exprs=tuple(self._exprs),
            source=self.source,
            replaced=self.replaced,
            racks=self.racks,
        )
        self._grown, self._extremes, self._events, self._exprs = {}, {}, [], []
        return snapshot

    def run(self, engine: Engine, seconds: float) -> Detection:
        """Ticks for a span; what the last one concluded."""
        detection = None
        for _ in range(max(1, round(seconds / self.step_s))):
            detection = engine.step(self.tick())
        assert detection is not None
        return detection

    def _frame(self, scope: str, store: Mapping[str, np.ndarray], rows: int) -> Frame:
        signals = tuple(store)
        value = np.full((rows, len(signals)), np.nan, np.float32)
        for col, signal in enumerate(signals):
            value[: len(store[signal]), col] = store[signal]
        low, high, increase = value.copy(), value.copy(), np.full_like(value, np.nan)
        for (which, signal), rows_of in self._extremes.items() if scope == "gpu" else ():
            for row, extreme in rows_of.items():
                (low if which == "low" else high)[row, signals.index(signal)] = extreme
        for (of, signal), amounts in self._grown.items():
            for row, amount in amounts.items() if of == scope else ():
                increase[row, signals.index(signal)] = amount
        age = np.where(np.isnan(value), np.nan, 0.0).astype(np.float32)
        return Frame(signals, value, low, high, increase, age)

    def _coverage(self) -> Coverage:
        gpus, nodes = len(self.refs), len(self.node_refs)

        def marked(name: str, rows: int) -> Any:
            found = np.zeros(rows, np.bool_)
            found[list(self.flags.get(name, ()))] = True
            return found

        share = np.ones(gpus, np.float32)
        samples = np.ones(gpus, np.float32)
        for row, value in self.share.items():
            share[row] = value
        for row, value in self.samples.items():
            samples[row] = value
        return Coverage(
            gpu_missing=marked("gpu_missing", gpus),
            gpu_stale=marked("gpu_stale", gpus),
            gpu_frozen=marked("gpu_frozen", gpus),
            signal_share=share,
            sample_share=samples,
            exporter_down=marked("exporter_down", nodes),
            no_gpu_series=marked("no_gpu_series", nodes),
            node_stale=marked("node_stale", nodes),
            lost_signals=self.lost,
        )

    # -------------------------------------------------------------- log lines

    def xid(self, code: int, node: int = 0, slot: int = 0, *, detail: str = "", **fields: Any) -> KernelEvent:
        """A line of the kernel log about one GPU, now unless told otherwise."""
        text = f"NVRM: Xid (PCI:{self.pci(slot)}): {code}, {detail}"
        told = {"at": self.now, "pci": self.pci(slot), "node": self.node(node)} | fields
        return KernelEvent(EventKind.XID, code, text, **told)

    def exported(self, code: int, node: int = 0, slot: int = 0, **fields: Any) -> KernelEvent:
        """An edge of the exporter's code metric."""
        told = {
            "at": self.now,
            "gpu_uuid": self.uuid(node, slot),
            "pci": self.pci(slot) if self.pci_known else None,
            "node": self.node(node),
            "source": "exporter",
        } | fields
        return KernelEvent(EventKind.XID, code, f"exporter reports code {code}", **told)

    def line(
        self, kind: EventKind, text: str = "", node: int = 0, *, code: int | None = None, **fields: Any
    ) -> KernelEvent:
        """Any other record."""
        return KernelEvent(kind, code, text, **({"at": self.now, "node": self.node(node)} | fields))


def site_rules(folder: Path, sections: str) -> RuleBook:
    """The shipped rules with a site's sections on top."""
    pack = folder / "site.yaml"
    pack.write_text(f"version: 1\nname: site\nowner: sre\nsource: a test\n{sections}", encoding="utf-8")
    return load_rules([pack])


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    return timedelta(hours=count)
