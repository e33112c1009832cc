"""One tick of detection: a snapshot in, signals, verdicts and incidents out.

The live loop and the audit call the same `Engine.step`; all memory of the past lives in it, none in its callers.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from detectors.faults import FaultBook
from detectors.findings import Incident, Signal, Verdict
from detectors.incidents import IncidentBook
from detectors.node_reports import NodeReports
from detectors.peers import PeerWatch
from detectors.snapshot import Snapshot
from detectors.telemetry import TelemetryWatch
from detectors.thresholds import ThresholdWatch
from detectors.verdict import VerdictTable
from rules.schema import RuleBook


@dataclass(frozen=True, slots=True)
class Detection:
    """What one tick concluded. `incidents` are all that are open; the other three say what this tick changed."""

    signals: tuple[Signal, ...]
    verdicts: tuple[Verdict, ...]
    incidents: tuple[Incident, ...]
    opened: tuple[Incident, ...]
    changed: tuple[Incident, ...]
    closed: tuple[Incident, ...]


class Engine:
    """All detectors with their memory."""

    def __init__(self, rules: RuleBook) -> None:
        self.faults = FaultBook(rules)
        self._thresholds = ThresholdWatch(rules)
        self._telemetry = TelemetryWatch(rules)
        self._peers = PeerWatch(rules)
        self._reports = NodeReports()
        self._verdicts = VerdictTable(rules.policy)
        self._measured: tuple[Signal, ...] = ()
        self.incidents = IncidentBook(rules.policy.incidents)

    def step(self, snapshot: Snapshot) -> Detection:
        """Take one moment in. Snapshots come in the order of their times.

        Where only kernel events are new, what the numbers say stands as it was.
        """
        facts, gaps = self.faults.take(snapshot), self._telemetry.look(snapshot)
        if snapshot.telemetry_at is None:
            self._measured = (*self._thresholds.look(snapshot), *self._peers.look(snapshot))
        signals = distinct((*facts, *gaps, *self._reports.look(snapshot), *self._measured))
        by_gpu: dict[str, list[Signal]] = defaultdict(list)
        for signal in signals:
            if signal.gpu:
                by_gpu[signal.gpu].append(signal)
        verdicts = self._verdicts.step(snapshot, by_gpu)
        changes = self.incidents.step(snapshot, signals)
        return Detection(tuple(signals), verdicts, changes.open, changes.opened, changes.changed, changes.closed)


def distinct(signals: Iterable[Signal]) -> list[Signal]:
    """One signal an observation, the strongest, in a fixed order.

    The instances of a GPU that is split (MIG) tell of the same board once each; it is no sicker for that.
    """
    strongest_first = sorted(signals, key=lambda s: (s.key, s.tier, -s.weight, s.since, s.last, s.text))
    return [next(same) for _, same in groupby(strongest_first, key=lambda signal: signal.key)]
