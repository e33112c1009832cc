"""One open fault: what is known of it, how its repeats add up, and the signal it gives while it is open.

Made and kept by `detectors.faults`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from detectors.events import EXPORTER
from detectors.findings import Signal
from detectors.standing import Standing
from rules.schema import Escalation, VerdictPolicy
from rules.vocabulary import CauseClass, EventKind, FaultAction, Severity, Tier

#: Jobs that are remembered of one fault.
_MOST_JOBS = 64


class FaultKey(NamedTuple):
    """Identity of a fault on its node. `where` is the GPU's UUID, or its PCI address while nobody knows the GPU.

    A program's fault is one a job, so that the owner of each hears of it.
    """

    where: str
    name: str
    place: str
    job: str
    trusted: bool


@dataclass(frozen=True, slots=True)
class Raised:
    """What repeats turned a fault into, for as long as they lie within `within_s` of each other."""

    tier: Tier
    cause_class: CauseClass
    within_s: float


@dataclass(slots=True)
class Fault:
    """One open fault at one place of one GPU (or of a node, where the GPU is not known).

    `asked` is the driver's own newest word about what the GPU needs, and `asked_at` when it said so. `heard` is how
    often each source told it: the same line by two roads is one occurrence.
    """

    node: str
    gpu: str
    pci: str
    kind: EventKind
    code: int | None
    place: str
    job: str
    first: datetime
    last: datetime
    text: str
    action: FaultAction
    severity: Severity
    trusted: bool
    secondary_to: int | None
    standing: Standing
    boot_id: str = ""
    raised: Raised | None = None
    asked: FaultAction | None = None
    asked_at: datetime | None = None
    heard: dict[str, int] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)

    @property
    def key(self) -> FaultKey:
        """Identity on its node."""
        return FaultKey(self.where, self.standing.name, self.place, self.job, self.trusted)

    @property
    def where(self) -> str:
        """The GPU, or the address at which it sits."""
        return self.gpu or self.pci

    @property
    def count(self) -> int:
        """How often it was seen: what the log that has most of it says; an exporter's codes count only without any."""
        logged = (times for source, times in self.heard.items() if source != EXPORTER)
        return max(logged, default=self.heard.get(EXPORTER, 1))

    @property
    def is_logged(self) -> bool:
        """Whether a log told it, not only an exporter's codes."""
        return any(source != EXPORTER for source in self.heard)

    @property
    def tier(self) -> Tier:
        """How strong it is as evidence."""
        return self.standing.tier if self.raised is None else min(self.standing.tier, self.raised.tier)

    @property
    def cause_class(self) -> CauseClass:
        """What its repeats say it is, else what its rule says."""
        return self.standing.cause_class if self.raised is None else self.raised.cause_class

    def merge(self, other: "Fault") -> None:
        """Take in one more occurrence, or what turned out to be the same fault.

        A log's word goes before an exporter's, whose time and text are only echoes. What an earlier fault explained
        stays explained, however long it goes on.
        """
        if other.is_logged and not self.is_logged:
            self.last, self.text, self.secondary_to = other.last, other.text, other.secondary_to
            self.pci, self.boot_id = other.pci or self.pci, other.boot_id or self.boot_id
        elif other.is_logged or not self.is_logged:
            self.last = max(self.last, other.last)
        self.first = min(self.first, other.first)
        for source, times in other.heard.items():
            self.heard[source] = self.heard.get(source, 0) + times
        self.action = max(self.action, other.action, key=lambda action: action.rank)
        if other.standing.tier < self.standing.tier:
            self.severity, self.text, self.standing = other.severity, other.text, other.standing
        if other.asked_at is not None:
            self.hear(other.asked or FaultAction.NONE, other.asked_at)
        if len(self.jobs) < _MOST_JOBS:
            self.jobs |= other.jobs

    def hear(self, asked: FaultAction, at: datetime) -> None:
        """The driver says what the GPU needs; its newest word counts."""
        if at >= self.first and (self.asked_at is None or at >= self.asked_at):
            self.asked, self.asked_at = asked, at

    def escalate(self, step: Escalation, times: int) -> None:
        """Its repeats at one place say that it is not what one occurrence would be."""
        if step.action.rank > self.action.rank or step.tier < self.tier:
            self.raised = Raised(step.tier, step.incident_class, step.within)
            self.action = max(self.action, step.action, key=lambda action: action.rank)
            self.text = f"{times} times at one place within {step.within / 3600:.0f} h: {self.text}"

    def is_over(self, now: datetime) -> bool:
        """Whether it has been silent for so long that it counts as over; many never are."""
        holds_for_s = self.standing.holds_for_s
        if holds_for_s is None:
            return False
        if self.raised is not None:
            holds_for_s = max(holds_for_s, self.raised.within_s)
        return (now - self.last).total_seconds() > holds_for_s

    def request(self, now: datetime) -> FaultAction:
        """What it asks for now: by its rule and repeats, by the driver's newest word, or for being overdue."""
        action, standing = self.action, self.standing
        if standing.overdue_s is not None and (now - self.first).total_seconds() >= standing.overdue_s:
            action = max(action, standing.overdue_action, key=lambda one: one.rank)
        if not self.trusted or self.asked is None or self.asked_at is None:
            return action if self.trusted else FaultAction.NONE
        if standing.recovery:
            return self.asked
        if self.asked is FaultAction.NONE:
            # It withdraws the request, but a board that has to be replaced stays one.
            return FaultAction.NONE if self.asked_at >= self.last and action is not FaultAction.REPLACE else action
        return max(action, self.asked, key=lambda one: one.rank)

    def weight(self, policy: VerdictPolicy) -> float:
        """What it adds to a score."""
        if not self.trusted or self.cause_class is CauseClass.APPLICATION or self.severity is Severity.INFO:
            return 0.0
        return policy.fact_weight if self.tier is Tier.FACT else policy.trend_weight

    def signal(self, policy: VerdictPolicy, now: datetime, secondary_to: int | None) -> Signal:
        """The signal it gives at this moment, with the code that explains it, if any."""
        rule = (self.standing.name, "" if self.gpu else self.pci, self.place, self.job)
        return Signal(
            detector="kernel_log",
            rule=" ".join(part for part in rule if part),
            node=self.node,
            gpu=self.gpu,
            tier=self.tier,
            cause_class=self.cause_class,
            action=self.request(now),
            weight=self.weight(policy),
            value=float(self.count),
            limit=None,
            unit="times",
            since=self.first,
            last=self.last,
            look=self.text,
            text=f"{self.standing.meaning} ({self.where})" if self.where else self.standing.meaning,
            count=self.count,
            code=self.code,
            secondary_to=secondary_to,
            trusted=self.trusted,
            place=self.place or None,
            jobs=(self.job,) if self.job else tuple(sorted(self.jobs)),
            sources=tuple(sorted(self.heard)),
        )
