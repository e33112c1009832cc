"""Writes `report.json` and `report.html` from a tally. The shape of report.json is a contract with outside tools."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from daemon.audit.lost import lost_together, lost_work, stopping
from daemon.audit.tally import STATES, Tally
from daemon.audit.truth import Label, score
from daemon.ledger import encode_body, to_jsonable
from daemon.replay import Span
from daemon.report.model import Evidence, FleetCell, FleetRow, Meta, ReportView
from daemon.report.page import render
from daemon.version import own_version
from detectors.findings import GpuState, Incident
from remediation.decide import Decision
from rules.vocabulary import Tier

REPORTED_SIGNALS = 60


def build(
    tally: Tally, span: Span, labels: Sequence[Label] | None, counts: Mapping[str, int], mode: str
) -> dict[str, Any]:
    """The report as plain JSON values."""
    episodes = tally.episodes()
    days = (tally.watched_seconds or span.seconds) / 86400.0
    by_tier = Counter(int(strongest_tier(incident)) for incident in episodes)
    incidents = _incidents(tally, episodes)
    summary: dict[str, Any] = {
        "start": span.start,
        "end": span.end,
        "mode": mode,
        "generated_by": f"gpuwarden {own_version()}",
        "gpus": len(tally.gpus),
        "nodes": len({gpu.node for gpu in tally.gpus}),
        "watched_days": round(tally.watched_seconds / 86400.0, 4),
        "gpu_days": round(tally.gpu_seconds / 86400.0, 4),
        "episodes": len(episodes),
        "episodes_per_day": {str(tier): by_tier[tier] / days for tier in (0, 1, 2)},
        "coverage": round(tally.covered_seconds / tally.gpu_seconds, 4) if tally.gpu_seconds else 0.0,
        "coverage_detail": _coverage_detail(tally, counts),
        "counts": dict(counts),
        "lost_work": lost_together([one["lost_work"] for one in incidents]),
    }
    if labels is not None:
        summary |= score(labels, episodes, span.start, span.end, days)
    report: dict[str, Any] = {
        "summary": summary,
        "incidents": incidents,
        "decisions": [_decision(decision) for decision in tally.decisions],
    }
    return dict(encode_body(report))


def strongest_tier(incident: Incident) -> Tier:
    """The strongest evidence there ever was about it; the incident's own tier is that of what stands."""
    return min([incident.tier, *(signal.tier for signal in incident.signals if signal.trusted)])


def _coverage_detail(tally: Tally, counts: Mapping[str, int]) -> list[str]:
    judged = tally.judged_seconds / tally.gpu_seconds if tally.gpu_seconds else 0.0
    said = [f"{100 * judged:.1f} % of GPU time could be judged; the rest is unknown, neither healthy nor failed"]
    quiet = {"samples", "log_lines", "log_before_span"}
    odd = ((reason, count) for reason, count in sorted(counts.items()) if count and reason not in quiet)
    said.extend(f"{count:,} {reason.replace('_', ' ')}" for reason, count in odd)
    return said


def _incidents(tally: Tally, episodes: Sequence[Incident]) -> list[dict[str, Any]]:
    stops = stopping(tally.decisions)
    return [
        _incident(one)
        | {"lost_work": lost_work(one, strongest_tier(one), tally.gangs.hit(one), stops_work=one.id in stops)}
        for one in episodes
    ]


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "opened": incident.opened,
        "closed": incident.closed,
        "closed_because": incident.closed_because,
        "scope": incident.scope,
        "node": incident.node,
        "nodes": list(incident.nodes),
        "gpu_uuids": list(incident.gpu_uuids),
        "cause_class": incident.cause_class,
        "tier": int(strongest_tier(incident)),
        "first_signal_at": incident.first_signal_at,
        "last_signal_at": incident.last_signal_at,
        "action": incident.action,
        "held": incident.held,
        "count": incident.count,
        "why": incident.why,
        "signals": [to_jsonable(signal) for signal in incident.signals[:REPORTED_SIGNALS]],
        "signals_total": len(incident.signals),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    plan = decision.plan
    return {
        "at": decision.at,
        "node": plan.node,
        "gpu_uuid": plan.gpu,
        "action": plan.action,
        "mode": decision.mode,
        "verdict": decision.ruling,
        "gates": [to_jsonable(gate) for gate in decision.gates],
        "affected": list(plan.affected),
        "incident": plan.incident,
        "steps": [to_jsonable(step) for step in plan.steps],
        "reason": plan.reason,
    }


def fleet_rows(tally: Tally) -> tuple[FleetRow, ...]:
    """The fleet at a glance: each node's GPUs with the worst that was seen of them."""
    involved: dict[str, list[str]] = {}
    for incident in tally.episodes():
        for uuid in incident.gpu_uuids:
            involved.setdefault(uuid, []).append(incident.id)
    racks = {n.name: r for n, r in zip(tally.last.nodes, tally.last.racks, strict=False)} if tally.last else {}
    rows: dict[str, list[FleetCell]] = {}
    for row, gpu in enumerate(tally.gpus):
        spent = tally.seconds_in[row]
        total = float(spent.sum()) or 1.0
        unknown = float(spent[STATES.index(GpuState.UNKNOWN)]) / total
        worst = GpuState.UNKNOWN if unknown == 1.0 else tally.worst[row]
        if worst is GpuState.UNKNOWN and unknown < 0.1:
            worst = GpuState.HEALTHY  # a moment without samples is no state to remember a GPU by
        times = tuple((state, float(seconds)) for state, seconds in zip(STATES, spent, strict=True) if seconds)
        incidents = tuple(involved.get(gpu.uuid, ()))
        cell = FleetCell(gpu.uuid, gpu.index, gpu.model, worst, tally.highest[row], unknown, incidents, times)
        rows.setdefault(gpu.node, []).append(cell)
    return tuple(
        FleetRow(node, racks.get(node, ""), tuple(sorted(cells, key=lambda c: (len(c.index), c.index))))
        for node, cells in sorted(rows.items())
    )


def write(
    report: Mapping[str, Any], fleet: tuple[FleetRow, ...], evidence: Sequence[Evidence], out: Path, *, source: str,
    generated_at: datetime, notes: Sequence[str],
) -> tuple[Path, Path]:  # fmt: skip
    """Write both files and return their paths. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    json_path, html_path = out / "report.json", out / "report.html"
    json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    meta = Meta(source=source, generated_at=generated_at, notes=tuple(notes))
    view = ReportView(report["summary"], report["incidents"], report["decisions"], fleet, tuple(evidence), meta)
    html_path.write_text(render(view), encoding="utf-8")
    return json_path, html_path
