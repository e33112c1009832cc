"""Prometheus answers, small fleets and rigs, in as few words as the tests of ingest can do with."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daemon.config import LabelMap
from daemon.ingest.assemble import Assembler
from daemon.ingest.decode import Batch, decode
from daemon.ingest.naming import Namer
from daemon.ingest.nodes import NodeNames
from detectors.engine import Detection, Engine
from detectors.events import KernelEvent
from detectors.snapshot import Snapshot
from rules.schema import RuleBook

#: A moment on a scrape, in unix seconds, from which the tests count.
T0 = 1_790_000_000.0
STEP_S = 30.0

Labels = dict[str, str]
Points = Sequence[tuple[float, Any]]

TEMP, POWER, UTIL = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_UTIL"
ENERGY, XID, SBE = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
XID_COUNT, ENGINE_ACTIVE = "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


def gpu(metric: str, number: int = 0, node: str = "n1", **more: str) -> Labels:
    """The labels of dcgm-exporter's series about one GPU; an empty text takes a label away."""
    labels = {
        "__name__": metric,
        "UUID": f"GPU-{node}-{number}",
        "gpu": str(number),
        "pci_bus_id": f"00000000:{0x10 + number:02X}:00.0",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node,
        "instance": f"{node}:9400",
        "job": "dcgm-exporter",
    }
    return {name: value for name, value in (labels | more).items() if value}


def host(metric: str, node: str = "n1", **more: str) -> Labels:
    """The labels of node-exporter's series."""
    return {"__name__": metric, "instance": f"{node}:9100", "job": "node-exporter", **more}


def up(node: str = "n1", job: str = "dcgm-exporter", **more: str) -> Labels:
    """The labels of a scrape target."""
    return {"__name__": "up", "instance": f"{node}:9400", "job": job, **more}


def number(value: float | str) -> str:
    """A value as Prometheus writes it."""
    return value if isinstance(value, str) else repr(value)


def matrix(series: Iterable[tuple[Labels, Points]], warnings: Sequence[str] = ()) -> bytes:
    """The answer to a range selector."""
    result = [{"metric": labels, "values": [[at, number(v)] for at, v in points]} for labels, points in series]
    return success("matrix", result, warnings)


def vector(series: Iterable[tuple[Labels, float, Any]], warnings: Sequence[str] = ()) -> bytes:
    """The answer to an instant selector or an expression."""
    result = [{"metric": labels, "value": [at, number(value)]} for labels, at, value in series]
    return success("vector", result, warnings)


def success(kind: str, result: Sequence[Mapping[str, Any]], warnings: Sequence[str] = ()) -> bytes:
    """A 200 of the query API."""
    answer: dict[str, Any] = {"status": "success", "data": {"resultType": kind, "result": list(result)}}
    return compact(answer | ({"warnings": list(warnings)} if warnings else {}))


def compact(value: Any) -> bytes:
    """JSON as Prometheus writes it: no spaces, labels sorted, every text as it is."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def batch(*series: tuple[Labels, Points]) -> Batch:
    """Samples of series, decoded."""
    return decode(matrix(series))


class Rig:
    """An assembler and an engine, fed scrape by scrape: `scrape` absorbs one sample a series, `tick` looks."""

    def __init__(self, rules: RuleBook, labels: LabelMap | None = None) -> None:
        self.assembler = Assembler(rules, labels or LabelMap())
        self.engine = Engine(rules)
        self.now = T0
        self.signals: set[tuple[str, str, str]] = set()

    def feed(self, *series: tuple[Labels, Points], query: str = "q") -> None:
        """Absorb one answer."""
        self.assembler.absorb(query, batch(*series))

    def tick(self, at: float | None = None, events: Sequence[KernelEvent] = ()) -> Snapshot:
        """The snapshot of a moment, a little after the last scrape unless told otherwise."""
        return self.assembler.tick(self.now + 1.0 if at is None else at, events=events)

    def scrape(
        self, values: Iterable[tuple[Labels, Any]], events: Sequence[KernelEvent] = (), up_of: Sequence[str] = ("n1",)
    ) -> Snapshot:
        """One scrape of everything and the tick after it; then the clock goes on."""
        self.feed(*((labels, [(self.now, value)]) for labels, value in values))
        self.assembler.targets(batch(*((up(node), [(self.now, 1)]) for node in up_of)))
        snapshot = self.tick(events=events)
        self.now += STEP_S
        return snapshot

    def judge(
        self, values: Iterable[tuple[Labels, Any]], events: Sequence[KernelEvent] = (), up_of: Sequence[str] = ("n1",)
    ) -> tuple[Snapshot, Detection]:
        """One scrape, its tick, and what the detectors make of it."""
        snapshot = self.scrape(values, events, up_of)
        detection = self.engine.step(snapshot)
        self.signals |= {(signal.detector, signal.rule, signal.gpu) for signal in detection.signals}
        return snapshot, detection


def healthy(count: int = 8, node: str = "n1", step: int = 0, without: Sequence[str] = ()) -> list[tuple[Labels, Any]]:
    """What GPUs of a node show when nothing is wrong; numbers move a little with `step`, as real ones do."""
    values = {
        TEMP: 60 + step % 3,
        POWER: 600.5 + step % 7,
        UTIL: 95 + step % 4,
        ENERGY: 4.0e11 + 1.8e7 * step,
        XID: 0,
        SBE: 0,
        "DCGM_FI_DEV_FB_USED": 60_000 + step % 5,
        "DCGM_FI_DEV_SM_CLOCK": 1755 + step % 2,
    }
    return [
        (gpu(metric, number, node), value)
        for number in range(count)
        for metric, value in values.items()
        if metric not in without
    ]


def namer(rules: RuleBook, nodes: NodeNames | None = None, labels: LabelMap | None = None, **more: Any) -> Namer:
    """A namer over the shipped packs."""
    return Namer(rules.metrics, labels or LabelMap(), nodes or NodeNames(), **more)
