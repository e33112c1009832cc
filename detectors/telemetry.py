"""Telemetry health: what can't be seen, said as signals of its own class.

Missing telemetry never makes a GPU failed and never makes it healthy, so these signals weigh nothing in a score;
they tell an SRE what to mend in the telemetry and turn verdicts to unknown.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.events import KernelEvent
from detectors.findings import Signal
from detectors.latch import Latch
from detectors.snapshot import Snapshot
from detectors.thresholds import of_node
from rules.schema import RuleBook
from rules.vocabulary import CauseClass, EventKind, FaultAction, Severity, Tier

Bools = NDArray[np.bool_]


#: Losing samples is steady or it is nothing.
_SAMPLES_LOST_FOR_S = 300.0
_CLEAR_FOR_S = 60.0
#: A gap in a kernel log is over when it is found; it is told for this long.
_GAP_TOLD_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Symptom:
    """One thing that telemetry can lack: what a signal of it says."""

    text: str
    action: FaultAction = FaultAction.NONE
    tier: Tier = Tier.TREND
    cause_class: CauseClass = CauseClass.TELEMETRY
    weight: float = 0.0


_SYMPTOMS = {
    "exporter_down": _Symptom(
        "the GPU exporter does not answer its scrapes; nothing is known about this node's GPUs. Probe the GPU stack "
        "(nvidia-smi with a deadline) before anything else",
        FaultAction.INSPECT,
    ),
    # Not telemetry: with a hung driver the node is Ready, its GPUs are allocatable, and no work can start (FC076).
    "gpu_stack_unresponsive": _Symptom(
        "the GPU exporter has not answered for long although the node is alive: the driver may hang, so no work can "
        "start here. Which GPU it is can't be told; probe them with a deadline",
        FaultAction.INSPECT,
        Tier.SUSPICION,
        CauseClass.DRIVER,
        0.2,
    ),
    "no_gpu_series": _Symptom(
        "the exporter answers and reports no GPU at all: restart the exporter, the GPUs need not be lost"
    ),
    "node_silent": _Symptom("no fresh sample of any kind from this node", FaultAction.INSPECT),
    "gpu_missing": _Symptom("this GPU's series stopped while its node's other GPUs report", FaultAction.INSPECT),
    "gpu_frozen": _Symptom("samples arrive and never change while the GPU draws power: the feed is frozen"),
    "samples_lost": _Symptom(
        "this GPU loses samples that its siblings deliver; a failing GPU does that under load",
        FaultAction.INSPECT,
        Tier.SUSPICION,
    ),
    "log_gap": _Symptom("the kernel log has a gap, in which silence is not health: "),
    "metrics_lost": _Symptom("no longer reported (absent is not zero): "),
}


class TelemetryWatch:
    """Turns `Coverage` into signals, with grace after a boot and patience before it speaks."""

    def __init__(self, rules: RuleBook) -> None:
        self._policy = rules.policy.telemetry
        self._latches: dict[str, Latch] = {}
        self._lost: dict[tuple[str, str], float] = {}
        self._gaps: dict[str, KernelEvent] = {}

    def look(self, snapshot: Snapshot) -> list[Signal]:
        """What is wrong with the telemetry now."""
        policy, coverage, node_of = self._policy, snapshot.coverage, snapshot.node_of
        with np.errstate(invalid="ignore"):
            settled = ~(snapshot.now - snapshot.boot_at < policy.boot_grace)
        has_gpus = np.zeros(len(snapshot.nodes), np.bool_)
        has_gpus[node_of] = True
        down, empty = coverage.exporter_down, coverage.no_gpu_series & ~coverage.exporter_down
        whole_node = down | empty | coverage.node_stale
        silent = coverage.node_stale & has_gpus & ~down & ~empty
        alive = ~np.isnan(snapshot.node.value).all(axis=1) if snapshot.node.signals else np.zeros_like(down)
        judged = settled[node_of] & ~whole_node[node_of]
        losing = (coverage.sample_share < 1 - policy.gap_share) & ~coverage.gpu_stale
        return [
            *self._nodes("exporter_down", down & settled, policy.exporter_down_for, snapshot),
            *self._nodes("gpu_stack_unresponsive", down & settled & alive, policy.unresponsive_for, snapshot),
            *self._nodes("no_gpu_series", empty & settled, policy.exporter_down_for, snapshot),
            *self._nodes("node_silent", silent, policy.exporter_down_for, snapshot),
            *self._gpus("gpu_missing", coverage.gpu_missing & judged, policy.gpu_missing_for, snapshot),
            *self._gpus("gpu_frozen", coverage.gpu_frozen & judged, 0.0, snapshot),
            *self._gpus("samples_lost", losing & judged, _SAMPLES_LOST_FOR_S, snapshot, coverage.sample_share),
            *self._lost_signals(snapshot, settled & ~whole_node),
            *self._log_gaps(snapshot),
        ]

    def _latch(self, rule: str, firing: Bools, hold_s: float, now: float) -> Latch:
        latch = self._latches.setdefault(rule, Latch())
        latch.step(now, firing, ~firing, hold_s=hold_s, clear_s=_CLEAR_FOR_S)
        return latch

    def _nodes(self, rule: str, firing: Bools, hold_s: float, snapshot: Snapshot) -> list[Signal]:
        latch = self._latch(rule, firing, hold_s, snapshot.now)
        found = []
        for row in np.flatnonzero(latch.on):
            node = snapshot.nodes[row].name
            found.append(_signal(rule, node, "", _span(latch, int(row)), f"up{{{of_node(node)}}}"))
        return found

    def _gpus(
        self, rule: str, firing: Bools, hold_s: float, snapshot: Snapshot, value: NDArray[np.float32] | None = None
    ) -> list[Signal]:
        latch = self._latch(rule, firing, hold_s, snapshot.now)
        found = []
        for row in np.flatnonzero(latch.on):
            gpu = snapshot.gpus[row]
            share = None if value is None else round(float(value[row]), 3)
            look = f'{{UUID="{gpu.uuid}"}}'
            found.append(_signal(rule, gpu.node, gpu.uuid, _span(latch, int(row)), look, value=share, unit="share"))
        return found

    def _lost_signals(self, snapshot: Snapshot, reporting: Bools) -> list[Signal]:
        """One signal a node for the metrics that it stopped reporting while others go on."""
        now = snapshot.now
        lost = {
            (snapshot.nodes[int(node)].name, signal)
            for node, signal in snapshot.coverage.lost_signals
            if reporting[int(node)]
        }
        self._lost = {key: self._lost.get(key, now) for key in sorted(lost)}
        by_node: dict[str, list[tuple[str, float]]] = {}
        for (node, signal), since in self._lost.items():
            if now - since >= self._policy.lost_signal_for:
                by_node.setdefault(node, []).append((signal, since))
        found = []
        for node, gone in by_node.items():
            span = datetime.fromtimestamp(min(since for _, since in gone), UTC), snapshot.at
            names = ", ".join(signal for signal, _ in gone)
            look = f"{{{of_node(node)}}}"
            found.append(_signal("metrics_lost", node, "", span, look, names, value=float(len(gone)), unit="metrics"))
        return found

    def _log_gaps(self, snapshot: Snapshot) -> list[Signal]:
        """One signal a node whose kernel log was found to have a gap: what happened in it nobody knows."""
        self._gaps |= {
            event.node: event
            for event in snapshot.events
            if event.kind is EventKind.COVERAGE_LOST and event.severity is not Severity.INFO
        }
        oldest = snapshot.at - _GAP_TOLD_FOR
        self._gaps = {node: event for node, event in self._gaps.items() if (event.at or snapshot.at) >= oldest}
        return [
            _signal("log_gap", node, "", (event.at or snapshot.at, event.at or snapshot.at), event.text, event.text)
            for node, event in sorted(self._gaps.items())
        ]


def _span(latch: Latch, row: int) -> tuple[datetime, datetime]:
    return (
        datetime.fromtimestamp(float(latch.since[row]), UTC),
        datetime.fromtimestamp(float(latch.last[row]), UTC),
    )


def _signal(
    rule: str,
    node: str,
    gpu: str,
    span: tuple[datetime, datetime],
    look: str,
    names: str = "",
    *,
    value: float | None = None,
    unit: str = "",
) -> Signal:
    symptom = _SYMPTOMS[rule]
    return Signal(
        detector="telemetry",
        rule=rule,
        node=node,
        gpu=gpu,
        tier=symptom.tier,
        cause_class=symptom.cause_class,
        action=symptom.action,
        weight=symptom.weight,
        value=value,
        limit=None,
        unit="" if value is None else unit,
        since=span[0],
        last=span[1],
        look=look,
        text=symptom.text + names,
    )
