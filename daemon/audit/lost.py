"""The lost work of a report: of each incident and of all together, as far as an audit can know it. `report` calls it.

Work is lost from a job's last checkpoint until it is back: GPUs of the whole gang x (time since that checkpoint +
detection + restart). An audit sees neither checkpoints nor restarts, so these parts are None, and so is the sum.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from daemon.audit.gangs import Hit
from detectors.findings import Incident
from remediation.decide import Decision
from remediation.plan import Plan
from rules.vocabulary import Action, Tier

_STOPS = frozenset({Action.RESTART_JOB, Action.DRAIN, Action.RESET_GPU, Action.REBOOT_NODE})


def stopping(decisions: Iterable[Decision]) -> frozenset[str]:
    """The incidents whose plan would have stopped jobs, whatever the ruling was."""
    return frozenset(one.plan.incident for one in decisions if _stops(one.plan))


def _stops(plan: Plan) -> bool:
    """Whether a step ends work, other than one that waits until there is none."""
    return any(step.action in _STOPS and not step.when_idle for step in plan.steps)


def lost_work(incident: Incident, tier: Tier, hit: Hit, *, stops_work: bool) -> dict[str, Any]:
    """What is known of an incident's lost work. Only a fact's detection is lost: with a trend the job computes on."""
    detection: timedelta = incident.opened - incident.first_signal_at
    detection_s = max(0.0, detection.total_seconds())
    known = hit.gpus is not None and tier is Tier.FACT
    return {
        "stops_work": stops_work,
        "jobs": list(hit.jobs),
        "gang_gpus": hit.gpus,
        "since_checkpoint_seconds": None,
        "detection_seconds": detection_s,
        "restart_seconds": None,
        "detection_gpu_hours": (hit.gpus or 0) * detection_s / 3600 if known else None,
        "gpu_hours_per_hour_of_interval": hit.gpus,
        "gpu_hours": None,
    }


def lost_together(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums over the incidents that would have stopped work; each counts by itself, also two of one job."""
    stopped = [one for one in each if one["stops_work"]]
    known = [one for one in stopped if one["gang_gpus"] is not None]
    gpus = sum(one["gang_gpus"] for one in known)
    detection = [one["detection_gpu_hours"] for one in known if one["detection_gpu_hours"] is not None]
    return {
        "incidents": len(stopped),
        "unknown": len(stopped) - len(known),
        "gang_gpus": gpus if known or not stopped else None,
        "detection_gpu_hours": math.fsum(detection) if detection or not stopped else None,
        "gpu_hours_per_hour_of_interval": gpus if known or not stopped else None,
        "gpu_hours": None,
    }
