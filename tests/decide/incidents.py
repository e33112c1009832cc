"""Incidents as values, for tests that need no detector to make them."""

from datetime import UTC, datetime

from detectors.findings import Incident
from rules.vocabulary import CauseClass, FaultAction, IncidentScope, Tier

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def incident(name: str = "inc-1", node: str = "n000", **fields) -> Incident:
    """A memory fact on one GPU of one node that asks for a reset, unless told otherwise."""
    told = {
        "opened": AT,
        "closed": None,
        "scope": IncidentScope.GPU,
        "nodes": (node,),
        "gpu_uuids": ("GPU-0000-0",),
        "cause_class": CauseClass.MEMORY,
        "tier": Tier.FACT,
        "first_signal_at": AT,
        "last_signal_at": AT,
        "action": FaultAction.RESET_GPU,
        "signals": (),
        "why": "because",
    } | fields
    return Incident(id=name, node=node, **told)
