"""From a tick to ledger entries: what changed, once, in the order in which it happened.

Level-triggered like the loop: it compares what is open now with what it has recorded as open, so a tick that broke
before it could be recorded is made good by the next one. What the ledger can't take is held and tried again, so
nothing that was reported is lost; while it waits, the ledger gate is closed and nobody acts.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog

from daemon.ledger import Entry, EntryKind, Ledger, LedgerUnavailable, encode_body
from daemon.metrics import Metrics
from detectors.engine import Detection
from detectors.findings import GpuState, Incident, Verdict
from detectors.snapshot import Snapshot
from remediation.decide import Decision
from rules.vocabulary import Action

log = structlog.get_logger()

#: Entries held while the ledger is away: some days of a bad fleet. Beyond it the oldest verdict changes go first.
MOST_WAITING = 100_000

_LOST_TRACK = "it was over after a tick that failed, so nobody saw how it ended"


class Recorder:
    """Writes to one ledger; called by the loop's thread only.

    `writable` says whether the last write went through, `trouble` why not; `dropped` counts verdict changes that were
    given up because too much waited.
    """

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._waiting: deque[Entry] = deque()
        self._verdicts: dict[tuple[str, str], GpuState] = {}
        self._open: dict[str, Incident] = {}
        self._decisions: dict[tuple[str, str], tuple[object, ...]] = {}
        self._lost: frozenset[tuple[str, str]] = frozenset()
        self._blind = ""
        self.writable = True
        self.trouble = ""
        self.dropped = 0

    def resume(self, incidents: Iterable[Incident], decisions: Iterable[Decision], verdicts: Iterable[Verdict]) -> None:
        """What was recorded before a restart, so that it is not told again."""
        self._open.update((incident.id, incident) for incident in incidents)
        self._decisions.update((_about(decision), decision.telling) for decision in decisions)
        self._verdicts.update(((v.node, v.gpu), v.state) for v in verdicts)

    def take(self, entry: Entry) -> None:
        """One more entry for the next write."""
        self._waiting.append(entry)

    # ------------------------------------------------------------- what a tick changed

    def tick(
        self, at: datetime, snapshot: Snapshot | None, detection: Detection | None, decisions: Sequence[Decision],
        verdicts: Sequence[Verdict], blind: str = "",
    ) -> None:  # fmt: skip
        """Queue what this tick changed.

        `blind` says why nothing could be asked ("" where it could): then every verdict is unknown for one reason, which
        is one entry and not one a GPU.
        """
        if blind != self._blind:
            self._blind = blind
            self._coverage(at, "source", {"blind": blind or None})
        if detection is not None:
            self._incidents(at, detection)
        if not blind:
            self._changed_verdicts(at, verdicts)
            if snapshot is not None:
                self._lost_signals(at, snapshot)
        for decision in decisions:
            self._decision(decision)
        if detection is not None:  # a release is decided after its incident has closed
            of_now = {_about(decision) for decision in decisions}
            self._decisions = {
                about: told for about, told in self._decisions.items() if about in of_now or about[0] in self._open
            }

    def _incidents(self, at: datetime, detection: Detection) -> None:
        changed = {incident.id for incident in detection.changed}
        for incident in detection.incidents:
            if incident.id not in self._open:
                self._incident(EntryKind.INCIDENT_OPENED, at, incident)
                tier = str(int(incident.tier))
                self._metrics.incidents_opened.labels(incident.cause_class.value, tier).inc()
            elif incident.id in changed:
                self._incident(EntryKind.INCIDENT_CHANGED, at, incident)
            self._open[incident.id] = incident
        closed = {incident.id: incident for incident in detection.closed}
        still = {incident.id for incident in detection.incidents}
        for gone in [known for known in self._open if known not in still]:
            last = self._open.pop(gone)
            ended = closed.get(gone) or replace(last, closed=at, closed_because=_LOST_TRACK)
            self._incident(EntryKind.INCIDENT_CLOSED, at, ended)
            self._decisions.pop((gone, ""), None)

    def _incident(self, kind: EntryKind, at: datetime, incident: Incident) -> None:
        key = f"{kind}/{incident.id}/{at.isoformat()}"
        self.take(Entry(kind, at, encode_body(incident), incident.id, _text(incident.node), None, key))
        log.info(
            kind.value, incident=incident.id, cause=incident.cause_class.value, tier=int(incident.tier),
            nodes=",".join(incident.nodes), why=incident.closed_because or incident.why,
        )  # fmt: skip

    def _changed_verdicts(self, at: datetime, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            thing = verdict.node, verdict.gpu
            before = self._verdicts.get(thing)
            if before is verdict.state:
                continue
            self._verdicts[thing] = verdict.state
            if before is None and verdict.state in (GpuState.HEALTHY, GpuState.UNKNOWN):
                continue  # a GPU that is seen for the first time is no news while it is well
            key = f"verdict/{_text(verdict.node)}/{_text(verdict.gpu)}/{at.isoformat()}"
            node, gpu = _text(verdict.node), _text(verdict.gpu)
            self.take(Entry(EntryKind.VERDICT_CHANGED, at, encode_body(verdict), None, node, gpu, key))

    def _lost_signals(self, at: datetime, snapshot: Snapshot) -> None:
        lost = frozenset((snapshot.nodes[int(node)].name, signal) for node, signal in snapshot.coverage.lost_signals)
        if lost != self._lost:
            self._lost = lost
            found = [{"node": node, "signal": signal} for node, signal in sorted(lost)]
            self._coverage(at, "signals", {"lost_signals": found})

    def _coverage(self, at: datetime, about: str, body: Mapping[str, object]) -> None:
        self.take(Entry(EntryKind.COVERAGE, at, encode_body(body), key=f"coverage/{about}/{at.isoformat()}"))

    def _decision(self, decision: Decision) -> None:
        plan = decision.plan
        about = _about(decision)
        if self._decisions.get(about) == decision.telling:
            return
        self._decisions[about] = decision.telling
        key = f"decision/{'/'.join(about)}/{decision.at.isoformat()}"
        node, gpu = _text(plan.node), _text(plan.gpu)
        self.take(Entry(EntryKind.DECISION, decision.at, encode_body(decision), plan.incident, node, gpu, key))
        self._metrics.decisions.labels(plan.action.value, decision.ruling.value, decision.mode).inc()
        failed = [gate.name for gate in decision.gates if not gate.passed]
        for name in failed:
            self._metrics.gates_failed.labels(name).inc()
        log.info(
            "decision", incident=plan.incident, node=plan.node, action=plan.action.value,
            verdict=decision.ruling.value, mode=decision.mode, not_passed=",".join(failed),
        )  # fmt: skip

    # ------------------------------------------------------------------------- writing

    def flush(self, state: Mapping[str, bytes]) -> bool:
        """Write all that waits, with the state, as one; returns whether the ledger took it."""
        try:
            self._ledger.append(tuple(self._waiting), state=state)
        except LedgerUnavailable as error:
            if self.trouble != str(error):
                # The message says all of it; a trace of it each tick would hide the rest of the log.
                log.error(  # noqa: TRY400
                    "ledger", trouble=error.trouble.value, detail=str(error), waiting=len(self._waiting)
                )
            self._metrics.ledger_errors.labels(error.trouble.value).inc()
            self.writable, self.trouble = False, str(error)
            self._shorten()
        else:
            if not self.writable:
                log.info("ledger is back", written=len(self._waiting))
            self._waiting.clear()
            self.writable, self.trouble = True, ""
        self._metrics.ledger_writable.set(float(self.writable))
        self._metrics.ledger_waiting.set(len(self._waiting))
        return self.writable

    def _shorten(self) -> None:
        excess = len(self._waiting) - MOST_WAITING
        if excess <= 0:
            return
        kept: deque[Entry] = deque()
        for entry in self._waiting:
            if excess > 0 and entry.kind is EntryKind.VERDICT_CHANGED:
                excess -= 1
                self.dropped += 1
            else:
                kept.append(entry)
        self._waiting = kept
        log.warning("ledger entries given up", verdict_changes=self.dropped, waiting=len(kept))


def _about(decision: Decision) -> tuple[str, str]:
    """What a decision is about: an incident, or ("" elsewhere) the node that is to be given back after it."""
    plan = decision.plan
    return plan.incident, plan.node if plan.action is Action.RELEASE else ""


def _text(name: str) -> str | None:
    """A name out of a label as the ledger can hold it: no NUL, no half surrogate pair; None where there is none."""
    return name.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode() or None
