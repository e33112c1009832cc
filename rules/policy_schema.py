"""The shape of packs/policy.yaml: states, telemetry, incidents, limits, ladders, and how it is acted on Kubernetes."""

import re
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from rules.base import Seconds, Strict
from rules.operation_schema import OperationsPolicy
from rules.restore_schema import ChronicPolicy, RestartPolicy, ReturnPolicy
from rules.vocabulary import Action, CauseClass, FaultAction


class VerdictPolicy(Strict):
    """Where the score's states begin and end. `leave` lies below `enter`, which is the hysteresis."""

    degraded_enter: float = 0.30
    degraded_leave: float = 0.20
    failing_enter: float = 0.60
    failing_leave: float = 0.50
    failed_enter: float = 0.95
    failed_leave: float = 0.85
    suspicion_cap: float = Field(default=0.45, ge=0, lt=0.6)
    #: what one open fault of the kernel log adds to the score, by its tier; an application's fault adds nothing
    fact_weight: float = Field(default=1.0, ge=0, le=1)
    trend_weight: float = Field(default=0.4, ge=0, le=1)
    dwell: Seconds = 300.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        bounds = [
            self.degraded_leave, self.degraded_enter, self.failing_leave,
            self.failing_enter, self.failed_leave, self.failed_enter,
        ]  # fmt: skip
        if bounds != sorted(bounds):
            raise ValueError("each leave must lie below its enter, and the states must be in order")
        if self.suspicion_cap >= self.failing_enter:
            raise ValueError("suspicion_cap must lie below failing_enter: suspicion alone never makes a GPU failing")
        return self


class TelemetryPolicy(Strict):
    """When telemetry counts as stale, frozen, partial or gone. Ages are in scrape intervals unless said otherwise."""

    stale_after_scrapes: float = Field(default=3.0, gt=1)
    frozen_after: Seconds = 600.0
    exporter_down_for: Seconds = 300.0
    #: so long without an answer on a node that is otherwise alive, and the GPU stack itself is suspected (FC076)
    unresponsive_for: Seconds = 1800.0
    gpu_missing_for: Seconds = 180.0
    boot_grace: Seconds = 900.0
    lost_signal_for: Seconds = 900.0
    min_signal_share: float = Field(default=0.5, ge=0, le=1)
    gap_share: float = Field(default=0.4, ge=0, le=1)
    gap_window: Seconds = 3600.0


class CommonCausePolicy(Strict):
    """When the same thing on many nodes at once is one cause, and not many faults."""

    window: Seconds = 900.0
    min_nodes: int = Field(default=3, ge=2)
    share: float = Field(default=0.10, gt=0, le=1)
    driver_change_window: Seconds = 3600.0


class IncidentPolicy(Strict):
    """How verdicts join into incidents and when an incident ends."""

    join_window: Seconds = 300.0
    close_after: Seconds = 900.0
    common_cause: CommonCausePolicy = CommonCausePolicy()


class ActionPolicy(Strict):
    """What is done about one cause class at one tier, weakest first.

    `when_asked` limits it to faults that ask for one of these; others go by `by_fault_action` or `by_trend_action`.
    """

    ladder: tuple[Action, ...] = Field(min_length=1)
    reason: str
    when_asked: tuple[FaultAction, ...] = ()


class LimitPolicy(Strict):
    """How much may be out of service at once, and how often it is tried. Shares round down, but one node may go.

    A pool or a domain is what nodes with the same value of a label make; the first of the labels that a node has
    counts. A domain is what fails or is booked together: a rack, an NVLink domain.
    """

    max_snapshot_age: Seconds = 120.0
    #: seconds without a sign of life from the API server; a quiet kind of object is silent for half a minute
    max_cluster_age: Seconds = Field(default=75.0, gt=40)
    max_unavailable_share: float = Field(default=0.10, gt=0, le=1)
    max_unavailable_nodes: int | None = Field(default=None, ge=1)
    min_coverage: float = Field(default=0.5, ge=0, le=1)
    pool_labels: tuple[str, ...] = (
        "karpenter.sh/nodepool",
        "cloud.google.com/gke-nodepool",
        "eks.amazonaws.com/nodegroup",
        "kubernetes.azure.com/agentpool",
    )
    max_unavailable_share_of_pool: float = Field(default=0.10, gt=0, le=1)
    max_unavailable_nodes_of_pool: int | None = Field(default=None, ge=1)
    domain_labels: tuple[str, ...] = ("nvidia.com/gpu.clique",)
    max_unavailable_share_of_domain: float = Field(default=0.10, gt=0, le=1)
    max_unavailable_nodes_of_domain: int | None = Field(default=None, ge=1)
    #: keys (globs) of taints that nodes carry in good health; any other one that keeps pods off counts as out
    ordinary_taints: tuple[str, ...] = ("nvidia.com/gpu", "amd.com/gpu", "dedicated", "node-role.kubernetes.io/*")
    max_actions_per_hour: int = Field(default=10, ge=1)
    max_attempts_per_incident: int = Field(default=2, ge=1)
    max_attempts_per_node: int = Field(default=3, ge=1)
    attempts_window: Seconds = 86400.0
    #: before the second attempt; doubles with each further one
    attempt_backoff: Seconds = 600.0
    #: an attempt without an outcome counts as failed after this time
    attempt_timeout: Seconds = 3600.0
    #: how long a node is left alone after a person has taken back what was done to it
    hold_off: Seconds = 86400.0


class DrainMode(StrEnum):
    """What a drain does about a pod that it may move."""

    EVICT_NOW = "evict_now"
    WAIT_FOR_COMPLETION = "wait_for_completion"
    EVICT_AFTER_DEADLINE = "evict_after_deadline"


class DrainPolicy(Strict):
    """How a node's pods are moved away. Times count from the start of the drain."""

    mode: DrainMode = DrainMode.EVICT_NOW
    #: by namespace (glob); the longest pattern that matches wins, a pod's own annotation wins over all
    modes: dict[str, DrainMode] = {}
    #: for evict_after_deadline, where the pod names no deadline of its own
    deadline: Seconds = 3600.0
    #: no wait for a pod is longer than this, whatever its annotation says; then a person is asked
    max_wait: Seconds = 86400.0
    #: an eviction gives a pod at least this grace; it never gives less than the pod's own
    min_grace: Seconds = 0.0
    #: a pod that terminates for longer than its grace and this is told as stuck
    stuck_after: Seconds = 300.0
    #: namespaces (globs) whose pods are left where they are
    leave_namespaces: tuple[str, ...] = ("kube-system", "gpu-operator", "gpuwarden")
    allow_empty_dir: bool = False
    allow_unmanaged: bool = False
    #: what one refused pod does to the others: nothing moves until a person has looked, or they move without it
    on_refusal: Literal["ask", "evict_others"] = "ask"
    #: with which evidence a person is asked before training is stopped whose last checkpoint nobody knows
    ask_without_checkpoint: tuple[Literal["fact", "trend"], ...] = ("trend",)
    #: with which evidence a drain waits until other nodes have room for the pods with GPUs that it moves
    need_spare_capacity: tuple[Literal["fact", "trend"], ...] = ("trend",)
    #: tell Kubernetes that a node which does not answer is off (taint out-of-service), once a person confirmed it
    out_of_service: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.deadline > self.max_wait:
            raise ValueError("deadline must not lie beyond max_wait, after which a person is asked")
        return self


class BreakerPolicy(Strict):
    """When too many nodes were taken out in a short time. The share rounds down, and is never less than `min_nodes`."""

    window: Seconds = Field(default=1800.0, gt=0)
    share: float = Field(default=0.05, gt=0, le=1)
    min_nodes: int = Field(default=3, ge=1)
    max_nodes: int | None = Field(default=None, ge=1)
    #: closes by itself after so long; without it only a person closes it
    cool_down: Seconds | None = None


class LeasePolicy(Strict):
    """How long a leader counts as one.

    A leader renews every `renew`, stops acting where that has failed for `deadline`, and another one may take over
    `duration` after it last saw a change. Between the last two lies what clocks may differ in speed.
    """

    renew: Seconds = Field(default=5.0, gt=0)
    deadline: Seconds = 20.0
    duration: Seconds = 30.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.renew < self.deadline < self.duration:
            raise ValueError("renew must be shorter than deadline, and deadline shorter than duration")
        return self


_CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)")
_HOUR_MIN = 60
_DAY_MIN = 24 * _HOUR_MIN


def parse_clock(value: object) -> int:
    """Minutes since midnight from `HH:MM`, up to 24:00. Raises ValueError.

    YAML reads an unquoted 22:30 as a number to the base of 60, which is the same minutes; it reads none below 60 so.
    """
    minutes = -1
    if isinstance(value, str) and (found := _CLOCK.fullmatch(value.strip())):
        minutes = int(found[1]) * _HOUR_MIN + int(found[2])
    elif isinstance(value, int) and not isinstance(value, bool) and value >= _HOUR_MIN:
        minutes = value
    if not 0 <= minutes <= _DAY_MIN:
        raise ValueError(f"a time of day is written like 22:30, up to 24:00; got {value!r}")
    return minutes


MinuteOfDay = Annotated[int, BeforeValidator(parse_clock)]
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class MaintenanceWindow(Strict):
    """A weekly time in UTC. Where `to` lies before `from`, it ends on the day after."""

    model_config = ConfigDict(populate_by_name=True)

    days: tuple[Weekday, ...] = Field(min_length=1)
    from_minute: MinuteOfDay = Field(alias="from")
    to_minute: MinuteOfDay = Field(alias="to")

    @model_validator(mode="after")
    def _some_time(self) -> Self:
        if self.from_minute == self.to_minute:
            raise ValueError("from and to are the same time; a whole day is 00:00 to 24:00")
        return self


class MaintenancePolicy(Strict):
    """When work may be ended. Without windows at any time; with them, `actions` wait for one."""

    windows: tuple[MaintenanceWindow, ...] = ()
    actions: tuple[Action, ...] = (Action.DRAIN, Action.RESET_GPU, Action.REBOOT_NODE)


class Policy(Strict):
    """Everything a site may want to decide differently."""

    verdict: VerdictPolicy = VerdictPolicy()
    telemetry: TelemetryPolicy = TelemetryPolicy()
    incidents: IncidentPolicy = IncidentPolicy()
    limits: LimitPolicy = LimitPolicy()
    drain: DrainPolicy = DrainPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    lease: LeasePolicy = LeasePolicy()
    maintenance: MaintenancePolicy = MaintenancePolicy()
    restart: RestartPolicy = RestartPolicy()
    comeback: ReturnPolicy = ReturnPolicy()
    chronic: ChronicPolicy = ChronicPolicy()
    operations: OperationsPolicy = OperationsPolicy()
    #: keyed by cause class, then by what is known: fact, trend or suspicion
    actions: dict[CauseClass, dict[Literal["fact", "trend", "suspicion"], ActionPolicy]] = {}
    #: keyed by what the fault itself asks for; used for facts, and for trends, where `actions` says nothing
    by_fault_action: dict[FaultAction, ActionPolicy] = {}
    by_trend_action: dict[FaultAction, ActionPolicy] = {}

    @model_validator(mode="after")
    def _leaves_operations(self) -> Self:
        where = self.operations.namespace
        if self.operations.enabled and not any(fnmatchcase(where, left) for left in self.drain.leave_namespaces):
            raise ValueError(
                f"a drain would move the pods of operations.namespace {where}; add it to drain.leave_namespaces"
            )
        return self
