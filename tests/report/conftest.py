"""Builds reports to render: a small fleet with one of each kind of trouble, and any number of made-up incidents."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from daemon.report.model import Evidence, FleetCell, FleetRow, LogLine, Meta, Plot, ReportView, Series, SeriesKind
from detectors.findings import GpuState

START = datetime(2026, 5, 1, tzinfo=UTC)
END = START + timedelta(days=7)
ReportMaker = Callable[..., ReportView]

_HOT = "GPU-5b1c0d5e-1111-4c4e-9a51-000000000103"
_REMAPPED = "GPU-5b1c0d5e-2222-4c4e-9a51-000000000705"


def hours(count: float) -> datetime:
    """A moment so many hours into the span."""
    return START + timedelta(hours=count)


def signal(**fields: Any) -> dict[str, Any]:
    """One signal as report.json has it."""
    return {
        "detector": "threshold",
        "rule": "gpu_temperature_high",
        "node": "gpu-node-001",
        "gpu": _HOT,
        "tier": 1,
        "value": 91.0,
        "limit": 87.0,
        "unit": "°C",
        "since": hours(30).isoformat(),
        "last": hours(34).isoformat(),
        "look": 'DCGM_FI_DEV_GPU_TEMP{UUID="' + _HOT + '"} > 87',
        "text": "above the slowdown temperature for 10 min",
        "count": 44,
        "code": None,
    } | fields


def incident(**fields: Any) -> dict[str, Any]:
    """One incident as report.json has it: a hot GPU unless told otherwise."""
    return {
        "id": "INC-2026-0001",
        "opened": hours(30.5).isoformat(),
        "closed": hours(35).isoformat(),
        "scope": "gpu",
        "node": "gpu-node-001",
        "nodes": ["gpu-node-001"],
        "gpu_uuids": [_HOT],
        "cause_class": "thermal",
        "tier": 1,
        "first_signal_at": hours(30).isoformat(),
        "signals": [signal()],
        "why": "GPU 3 ran 14 °C above its node's median for 4 h and crossed the slowdown temperature.",
        "action": "inspect",
        "held": False,
    } | fields


def decision(**fields: Any) -> dict[str, Any]:
    """One decision as report.json has it: a drain that all gates let pass unless told otherwise."""
    return {
        "at": hours(30.5).isoformat(),
        "node": "gpu-node-001",
        "gpu_uuid": _HOT,
        "action": "no_new_work",
        "mode": "observe",
        "verdict": "act",
        "gates": [
            {"name": "coverage", "passed": True, "reason": "97 % of the node's signals are fresh"},
            {"name": "budget", "passed": True, "reason": "1 of 6 nodes out of service"},
            {"name": "evidence floor", "passed": True, "reason": "a trend may keep new work away"},
        ],
        "affected": ["pod ml/llama-3-worker-4", "pod ml/llama-3-worker-5"],
        "incident": "INC-2026-0001",
    } | fields


def temperature_plot() -> Plot:
    """A temperature that climbs over its limit, with peers, a band and a gap of two hours."""
    times = np.arange(hours(24).timestamp(), hours(38).timestamp(), 30.0)
    noise = np.random.default_rng(7)
    age = np.linspace(0, 14, len(times))
    peers = 68 + 2 * np.sin(age) + noise.normal(0, 0.3, len(times))
    values = peers + 4 + 20 / (1 + np.exp(-(age - 6) * 2.2)) * (age < 11) + noise.normal(0, 0.8, len(times))
    values[(age > 2.5) & (age < 4.2)] = np.nan
    return Plot(
        "GPU temperature",
        "°C",
        (
            Series("peers, 10th percentile", times, peers - 3, SeriesKind.PEER_BAND),
            Series("90th", times, peers + 4, SeriesKind.PEER_BAND),
            Series("peers' median", times, peers, SeriesKind.PEERS),
            Series("GPU 3", times, values),
        ),
        limit=87.0,
        limit_label="slowdown",
        onset=hours(30),
        detected=hours(30.5),
    )


def remap_plots() -> tuple[Plot, ...]:
    """Remapped rows that step up until the GPU disappears, and the node's interrupts that fall with it."""
    times = np.arange(hours(60).timestamp(), hours(84).timestamp(), 60.0)
    age = np.linspace(0, 24, len(times))
    rows = np.floor(np.clip(age - 4, 0, None) ** 1.5 / 3)
    rows[age > 20] = np.nan
    noise = np.random.default_rng(11).normal(0, 9_000, len(times))
    interrupts = np.where(age > 20, 84_000, 305_000) + noise
    marks = {"onset": hours(64), "detected": hours(71.25)}
    return (
        Plot("Correctable remapped rows", "rows", (Series("GPU 5", times, rows),), 8, "rows in 24 h", **marks),
        Plot(
            "Interrupts of the node",
            "1/s",
            (
                Series("median of the rack", times, 300_000 + noise / 3, SeriesKind.PEERS),
                Series("gpu-node-007", times, interrupts),
            ),
            150_000,
            "half the median",
            hours(80),
            hours(80.2),
        ),
        Plot(
            "Link errors",
            "1/s",
            tuple(
                Series(f"link {link}", times, np.where((age > 8) & (age < 9 + link), 0.2 * link, 0.0))
                for link in range(1, 5)
            ),
            0.5,
            "link limit",
        ),
    )


def fleet(nodes: int = 24, gpus: int = 8) -> tuple[FleetRow, ...]:
    """Rows of healthy GPUs with a few in every other state."""
    special = {
        (1, 3): (GpuState.FAILING, 0.81, 0.02, ("INC-2026-0001",), _HOT),
        (7, 5): (GpuState.FAILED, 1.0, 0.14, ("INC-2026-0002",), _REMAPPED),
        (4, 0): (GpuState.DEGRADED, 0.4, 0.0, (), "GPU-degraded"),
        (5, 6): (GpuState.DEGRADED, 0.45, 0.0, ("INC-2026-0004",), "GPU-degraded-too"),
        (9, 2): (GpuState.UNKNOWN, None, 0.97, (), "GPU-unseen"),
        (10, 1): (GpuState.HEALTHY, 0.02, 0.09, (), "GPU-rarely-seen"),
    }

    def cell(node: int, index: int) -> FleetCell:
        healthy = (GpuState.HEALTHY, 0.01, 0.0, (), f"GPU-{node:04d}-{index}")
        state, score, unknown, incidents, uuid = special.get((node, index), healthy)
        known = (1 - unknown) * 604_800
        seconds = ((GpuState.HEALTHY, known * 0.9), (state, known * 0.1), (GpuState.UNKNOWN, unknown * 604_800))
        return FleetCell(uuid, str(index), "H100 SXM5 80GB", state, score, unknown, incidents, seconds)

    return tuple(
        FleetRow(f"gpu-node-{node:03d}", f"r{node // 8 + 1}", tuple(cell(node, index) for index in range(gpus)))
        for node in range(nodes)
    )


def summary(**fields: Any) -> dict[str, Any]:
    """The summary of an audit without labels."""
    return {
        "start": START.isoformat(),
        "end": END.isoformat(),
        "gpu_days": 1344.0,
        "episodes": 5,
        "episodes_per_day": {"0": 0.43, "1": 0.29, "2": 0.14},
        "coverage": 0.9823,
        "coverage_detail": {"absent": "0.9 %", "stale": "0.6 %", "frozen": "0.3 %"},
        "generated_by": "gpuwarden 0.1.0",
        "mode": "observe",
    } | fields


def labelled(**fields: Any) -> dict[str, Any]:
    """The summary of an audit that was compared with labels."""
    return summary(
        recall={
            "hardware": {"found": 2, "total": 2, "recall": 1.0},
            "memory": {"found": 3, "total": 4, "recall": 0.75},
            "thermal": {"found": 1, "total": 3, "recall": 1 / 3},
        },
        lead_seconds={"median": 5_400.0, "p10": -60.0, "p90": 46_000.0, "missed": 3},
        false_alarms_per_day={"rate": 0.29, "low": 0.035, "high": 1.03},
        precision=0.75,
        labels=[
            {
                "node": "gpu-node-007",
                "gpu_uuid": _REMAPPED,
                "class": "memory",
                "onset": hours(64).isoformat(),
                "failed_at": hours(80).isoformat(),
                "incident": "INC-2026-0002",
                "lead_seconds": 31_500.0,
            },
            {
                "node": "gpu-node-015",
                "gpu_uuid": None,
                "class": "thermal",
                "onset": hours(101).isoformat(),
                "failed_at": hours(102).isoformat(),
                "incident": None,
                "lead_seconds": None,
            },
        ],
        **fields,
    )


def _stuck() -> list[dict[str, Any]]:
    return [
        {"name": "evidence floor", "passed": True, "reason": "a fact may drain"},
        {"name": "budget", "passed": False, "reason": "3 of 2 nodes of rack r1 are out of service already"},
        {"name": "ownership", "passed": True, "reason": "nobody else holds the node"},
    ]


def _incidents() -> list[dict[str, Any]]:
    node_7 = {"node": "gpu-node-007", "nodes": ["gpu-node-007"], "gpu_uuids": [_REMAPPED]}
    return [
        incident(),
        incident(
            **node_7,
            id="INC-2026-0002",
            opened=hours(71.25).isoformat(),
            closed=None,
            cause_class="memory",
            tier=0,
            first_signal_at=hours(64).isoformat(),
            why="Remapped rows grew by 27 in 16 h, then the GPU fell off the bus.",
            action="replace",
            signals=[
                signal(
                    detector="faults",
                    rule="xid",
                    tier=0,
                    value=None,
                    limit=None,
                    code=79,
                    count=1,
                    since=hours(80).isoformat(),
                    last=hours(80).isoformat(),
                    look="GPU has fallen off the bus",
                    text="the kernel lost the GPU",
                ),
                signal(
                    detector="growth",
                    rule="remapped_rows",
                    value=27.0,
                    limit=8.0,
                    unit="rows",
                    count=1_203,
                    look="delta(DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS[24h]) > 8",
                    text="rows remapped in 24 h",
                ),
                *(signal(rule=f"supporting_{number}", tier=2, value=0.6, limit=0.5, unit="") for number in range(7)),
            ],
        ),
        incident(
            id="INC-2026-0003",
            scope="rack",
            node="",
            nodes=[f"gpu-node-{number:03d}" for number in range(8, 16)],
            gpu_uuids=[],
            cause_class="power",
            opened=hours(100).isoformat(),
            closed=hours(101.2).isoformat(),
            first_signal_at=hours(99.9).isoformat(),
            held=True,
            why="64 GPUs of rack r2 were capped for power within the same minute.",
        ),
        incident(
            id="INC-2026-0004",
            node="gpu-node-005",
            nodes=["gpu-node-005"],
            gpu_uuids=["GPU-degraded-too"],
            cause_class="unknown",
            tier=2,
            opened=hours(120).isoformat(),
            closed=hours(122).isoformat(),
            first_signal_at=hours(119).isoformat(),
            why="It looks unlike its peers in power and clocks.",
            action="none",
            signals=[signal(detector="forest", rule="peer_relative", tier=2, value=0.71, limit=0.65, unit="")],
        ),
        incident(
            **node_7,
            id="INC-2026-0005",
            cause_class="application",
            tier=0,
            opened=hours(66).isoformat(),
            closed=hours(66.1).isoformat(),
            first_signal_at=hours(66).isoformat(),
            why="The job's own fault: an illegal address (the hardware is not to blame).",
            action="restart_app",
        ),
    ]


def _decisions() -> list[dict[str, Any]]:
    node_7 = {"node": "gpu-node-007", "gpu_uuid": _REMAPPED, "incident": "INC-2026-0002"}
    storm = [{"name": "storm", "passed": False, "reason": "8 nodes at once: a common cause"}]
    ticks = [hours(80 + number / 120).isoformat() for number in range(40)]
    return [
        decision(),
        *(decision(**node_7, at=at, action="drain", verdict="wait", gates=_stuck()) for at in ticks),
        decision(**node_7, at=hours(81).isoformat(), action="drain"),
        decision(**node_7, at=hours(71.3).isoformat(), action="checkpoint", affected=["job ml/llama-3"]),
        decision(**node_7, at=hours(90).isoformat(), action="reset_gpu", verdict="refuse", gates=_stuck()),
        decision(incident="INC-2026-0003", node="", gpu_uuid=None, action="cordon", verdict="refuse", gates=storm),
        decision(incident="INC-2026-0004", node="gpu-node-005", gpu_uuid=None, action="diagnose", verdict="ask"),
        decision(incident=None, node="gpu-node-002", action="release", at=hours(10).isoformat()),
    ]


def _week() -> ReportView:
    log_lines = (
        LogLine(hours(80), "NVRM: Xid (PCI:0000:5c:00): 79, pid='<unknown>', GPU has fallen off the bus.", 79),
        LogLine(hours(80.01), "NVRM: Xid (PCI:0000:5c:00): 154, GPU recovery action changed to 0x2 (Node Reboot)", 154),
        LogLine(hours(80.2), "my-app: NVRM: Xid (PCI:0000:5c:00): 48, copied from somewhere", 48, False, 3),
    )
    evidence = (
        Evidence("INC-2026-0001", (temperature_plot(),)),
        Evidence("INC-2026-0002", remap_plots(), log_lines),
    )
    meta = Meta(
        source="https://reader:secret@prometheus.example:9090/",
        generated_at=END + timedelta(hours=1),
        versions=(("Rule pack", "nvidia 3"), ("Model", "none")),
    )
    return ReportView(labelled(), _incidents(), _decisions(), fleet(), evidence, meta)


@pytest.fixture
def week() -> ReportView:
    """A week with one trouble of each kind, labels, evidence and gaps."""
    return _week()


@pytest.fixture
def report() -> ReportMaker:
    """Makes a report of the given incidents, with a small fleet."""

    def make(
        incidents: Sequence[dict[str, Any]] = (),
        decisions: Sequence[dict[str, Any]] = (),
        evidence: Sequence[Evidence] = (),
        **fields: Any,
    ) -> ReportView:
        return ReportView(summary(**fields), incidents, decisions, fleet(3), tuple(evidence))

    return make


def _many(count: int) -> ReportView:
    nodes = 63
    incidents = [
        incident(
            id=f"INC-{number:05d}",
            node=f"gpu-node-{number % nodes:03d}",
            nodes=[f"gpu-node-{number % nodes:03d}"],
            gpu_uuids=[f"GPU-{number % nodes:04d}-{number % 8}"],
            tier=number % 3,
            cause_class=("memory", "thermal", "link", "hardware", "driver")[number % 5],
            opened=hours(1 + number % 160).isoformat(),
            closed=hours(2 + number % 160).isoformat(),
            first_signal_at=hours(0.5 + number % 160).isoformat(),
            signals=[signal() for _ in range(4)],
        )
        for number in range(count)
    ]
    decisions = [decision(incident=one["id"], node=one["node"], action="drain") for one in incidents]
    plot = temperature_plot()
    lines = tuple(LogLine(hours(2), f"NVRM: Xid (PCI:0000:5c:00): 94, record {number}", 94) for number in range(20))
    evidence = tuple(Evidence(one["id"], (plot, plot, plot), lines) for one in incidents[:400])
    return ReportView(summary(episodes=count), incidents, decisions, fleet(nodes), evidence)


@pytest.fixture(scope="session")
def many() -> ReportView:
    """A week that went very wrong: 2,000 incidents, every one with evidence for as long as the page has room."""
    return _many(2_000)
