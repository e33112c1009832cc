"""One moment of the fleet, complete enough to decide from and to replay.

`daemon.ingest` builds snapshots; every detector takes one. Numbers are float32 matrices with NaN for "not known":
absence is a state of its own, never zero and never healthy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detectors.events import KernelEvent
from detectors.identity import GpuRef, NodeRef, Workload

F32 = NDArray[np.float32]


class Reset(NamedTuple):
    """A counter that went down at one source: the driver was reloaded, the GPU reset, or the part swapped."""

    row: int
    signal: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Values of one scope (GPUs or nodes): rows are things, columns are signals.

    All matrices have shape (rows, signals). `value` is the newest sample, in the signal's unit; `low` and `high` are
    the extremes of all samples since the last tick, so nothing between two polls is missed; `increase` is what a
    counter grew since the last tick with resets seen through (NaN for other kinds); `age_s` is the newest sample's age
    in seconds (NaN: never seen).
    """

    signals: tuple[str, ...]
    value: F32
    low: F32
    high: F32
    increase: F32
    age_s: F32
    column: dict[str, int] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.column:
            object.__setattr__(self, "column", {name: index for index, name in enumerate(self.signals)})

    def of(self, signal: str, matrix: str = "value") -> F32:
        """One signal's column, shape (rows,); all NaN where the signal has never been seen."""
        index = self.column.get(signal)
        chosen: F32 = getattr(self, matrix)
        return chosen[:, index] if index is not None else np.full(len(self.value), np.nan, np.float32)

    def aged(self, by_s: float) -> "Frame":
        """The same samples, seen so much later."""
        return replace(self, age_s=self.age_s + np.float32(by_s))

    @staticmethod
    def empty(rows: int = 0) -> "Frame":
        """A frame that knows nothing about `rows` things."""
        none = np.empty((rows, 0), np.float32)
        return Frame((), none, none, none, none, none)


@dataclass(frozen=True, slots=True)
class SourceState:
    """How the pull itself went: what was asked, what failed, and what the answers warned about."""

    ok: bool
    failed_selectors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()
    last_success: datetime | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is not known, and in which way it is not known.

    Booleans over GPUs, shape (gpus,): `gpu_missing` (its series stopped while its node's others go on), `gpu_stale`
    (no fresh sample at all), `gpu_frozen` (samples arrive and never change while it draws power). Over nodes, shape
    (nodes,): `exporter_down` (`up` is 0), `no_gpu_series` (the exporter is up and says nothing about GPUs),
    `node_stale`. `signal_share` is each GPU's share of the fast signals that are fresh, of those its model and
    exporter can have. `lost_signals` are signals that whole nodes stopped reporting, with the node.
    """

    gpu_missing: NDArray[np.bool_]
    gpu_stale: NDArray[np.bool_]
    gpu_frozen: NDArray[np.bool_]
    signal_share: F32
    sample_share: F32
    exporter_down: NDArray[np.bool_]
    no_gpu_series: NDArray[np.bool_]
    node_stale: NDArray[np.bool_]
    lost_signals: tuple[tuple[str, str], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def unknown(gpus: int, nodes: int) -> "Coverage":
        """Coverage of a moment about which nothing has arrived."""
        no, some = np.zeros, np.ones
        return Coverage(
            no(gpus, np.bool_), some(gpus, np.bool_), no(gpus, np.bool_), no(gpus, np.float32), no(gpus, np.float32),
            no(nodes, np.bool_), no(nodes, np.bool_), some(nodes, np.bool_),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExprResult:
    """One element of a raw PromQL rule's answer, attributed to a GPU row or a node row (-1: not this kind)."""

    rule: str
    gpu: int
    node: int
    value: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. GPU and node rows only ever grow within a process, so a row index is stable between snapshots.

    `node_of` maps GPU row to node row, shape (gpus,). `boot_at` is each node's boot time in unix seconds, shape
    (nodes,), NaN where unknown. `workloads` holds, for each GPU row, the pods that use it.
    `interval_s` is the time since the previous snapshot. `events` are the kernel events that arrived since then.
    `telemetry_at` is when everything but the events was put together, where that was earlier than `at`: a fault in a
    log does not wait for the next poll, and what Prometheus said is as old as it is.
    """

    at: datetime
    interval_s: float
    gpus: tuple[GpuRef, ...]
    nodes: tuple[NodeRef, ...]
    node_of: NDArray[np.intp]
    boot_at: NDArray[np.float64]
    gpu: Frame
    node: Frame
    coverage: Coverage
    workloads: tuple[tuple[Workload, ...], ...] = ()
    events: tuple[KernelEvent, ...] = ()
    resets: tuple[Reset, ...] = ()
    exprs: tuple[ExprResult, ...] = ()
    source: SourceState = SourceState(ok=True)
    replaced: tuple[tuple[str, str], ...] = ()
    racks: tuple[str, ...] = ()
    telemetry_at: datetime | None = None

    def later(self, at: datetime, events: Sequence[KernelEvent]) -> "Snapshot":
        """What is known at `at`, if since this moment nothing has come but these events."""
        passed: timedelta = at - self.at
        return replace(
            self,
            at=at,
            interval_s=passed.total_seconds(),
            gpu=self.gpu.aged(passed.total_seconds()),
            node=self.node.aged(passed.total_seconds()),
            events=tuple(events),
            resets=(),
            telemetry_at=self.telemetry_at or self.at,
        )

    @property
    def now(self) -> float:
        """The moment in unix seconds."""
        return self.at.timestamp()
