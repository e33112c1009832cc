"""Keeps count while a span is replayed: what happened to each GPU, which incidents there were, what was decided."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from daemon.audit.gangs import Gangs
from detectors.engine import Detection
from detectors.findings import GpuState, Incident
from detectors.identity import GpuRef
from detectors.snapshot import Snapshot
from remediation.decide import Decision

STATES = tuple(GpuState)
_COLUMN = {state: column for column, state in enumerate(STATES)}
#: From best to worst, for "the worst that was seen"; unknown is no worse than healthy.
_GRAVITY = {GpuState.HEALTHY: 0, GpuState.UNKNOWN: 1, GpuState.DEGRADED: 2, GpuState.FAILING: 3, GpuState.FAILED: 4}


@dataclass(slots=True)
class Tally:
    """Sums over the ticks so far. Times are seconds; `seconds_in` has shape (GPU rows, states)."""

    incidents: dict[str, Incident] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    seconds_in: np.ndarray = field(default_factory=lambda: np.zeros((0, len(STATES))))
    worst: list[GpuState] = field(default_factory=list)
    highest: list[float] = field(default_factory=list)
    gpu_seconds: float = 0.0
    covered_seconds: float = 0.0
    judged_seconds: float = 0.0
    watched_seconds: float = 0.0
    last: Snapshot | None = None
    gangs: Gangs = field(default_factory=Gangs)
    _told: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def take(self, snapshot: Snapshot, detection: Detection, decisions: Sequence[Decision], step_s: float) -> None:
        """Add one tick. A tick without a fresh sample of any GPU was not watched, and no rate counts its time."""
        self._grow(len(snapshot.gpus))
        if not bool((snapshot.coverage.signal_share > 0).any()):
            step_s = 0.0
        self.watched_seconds += step_s
        for row, verdict in enumerate(detection.verdicts):
            self.seconds_in[row, _COLUMN[verdict.state]] += step_s
            if _GRAVITY[verdict.state] > _GRAVITY[self.worst[row]]:
                self.worst[row] = verdict.state
            self.highest[row] = max(self.highest[row], verdict.score)
            self.judged_seconds += step_s * (verdict.state is not GpuState.UNKNOWN)
        self.gpu_seconds += step_s * len(snapshot.gpus)
        self.covered_seconds += step_s * float(snapshot.coverage.signal_share.sum())
        for incident in (*detection.incidents, *detection.closed):
            self.incidents[incident.id] = incident
        self.gangs.take(snapshot, detection.incidents)
        for decision in decisions:
            if self._told.get(decision.plan.incident) != decision.telling:
                self._told[decision.plan.incident] = decision.telling
                self.decisions.append(decision)
        self.last = snapshot

    def _grow(self, rows: int) -> None:
        more = rows - len(self.worst)
        if more > 0:
            self.seconds_in = np.vstack([self.seconds_in, np.zeros((more, len(STATES)))])
            self.worst.extend([GpuState.HEALTHY] * more)
            self.highest.extend([0.0] * more)

    @property
    def gpus(self) -> tuple[GpuRef, ...]:
        """Every GPU that was seen, in row order."""
        return self.last.gpus if self.last is not None else ()

    def episodes(self) -> list[Incident]:
        """The incidents in the order in which they opened, without those that became part of another."""
        own = (i for i in self.incidents.values() if not i.closed_because.startswith("merged into"))
        return sorted(own, key=lambda i: (i.opened, i.id))


def end_of(incident: Incident, span_end: datetime) -> datetime:
    """When the incident was over, or the span's end while it is open."""
    return incident.closed if incident.closed is not None else span_end
