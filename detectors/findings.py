"""What detectors conclude: signals, verdicts and incidents. Values only; who makes them says so in its own module."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rules.vocabulary import CauseClass, FaultAction, IncidentScope, Tier


class GpuState(StrEnum):
    """A GPU's state. UNKNOWN is not between the others: it says that nobody can tell."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILING = "failing"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation against one expectation, on one GPU or one node.

    `rule` names the rule, code or detector that made it; `value`, `limit` and `unit` are what a person checks;
    `look` is the PromQL or the log line to look at. `gpu` is "" for a node's signal. `weight` is what it adds to
    the score (0 to 1). `count` is how many events or ticks stand behind it; `sources` are the roads by which they came.
    """

    detector: str
    rule: str
    node: str
    gpu: str
    tier: Tier
    cause_class: CauseClass
    action: FaultAction
    weight: float
    value: float | None
    limit: float | None
    unit: str
    since: datetime
    last: datetime
    look: str
    text: str
    count: int = 1
    code: int | None = None
    secondary_to: int | None = None
    trusted: bool = True
    place: str | None = None
    jobs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identity of the observation, stable over ticks."""
        return self.node, self.gpu, self.detector, self.rule


@dataclass(frozen=True, slots=True)
class Verdict:
    """A GPU's state and why.

    `score` is 0 (healthy) to 1 (failed); `confidence` is the share of what should be known that is.
    """

    node: str
    gpu: str
    state: GpuState
    score: float
    since: datetime
    confidence: float
    signals: tuple[Signal, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """Signals that share a cause. `id` never changes; everything else may grow while it is open.

    `first_signal_at` is when the cause was first seen, which may lie before `opened`, when the evidence sufficed.
    `tier` and `action` are those of what stands now while it is open, and the strongest there ever was once it is
    closed; `signals` are all that were seen. `held` says that it looks like a common cause, so nobody should act on
    single machines. `standing` is False while none of its signals stands and it only waits to be closed: then nothing
    is done about it any more.
    """

    id: str
    opened: datetime
    closed: datetime | None
    scope: IncidentScope
    node: str
    nodes: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    cause_class: CauseClass
    tier: Tier
    first_signal_at: datetime
    last_signal_at: datetime
    action: FaultAction
    signals: tuple[Signal, ...]
    why: str
    count: int = 1
    held: bool = False
    closed_because: str = ""
    standing: bool = True
    #: what its signals were joined by (kind, name, about), so that a restart finds its incidents again
    group: tuple[str, str, str] = ("", "", "")
