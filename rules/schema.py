"""A rule pack, and the rule book that all packs make together.

`rules.loader` reads YAML into these models; detectors and plans get them as frozen values. A pack is a map keyed by
rule name, so a site's own pack overrides one key of one rule and leaves the rest alone. The models of the sections
live in the modules named for them and can all be imported from here.
"""

from typing import Literal, Self

from pydantic import model_validator

from rules.base import Seconds, Strict, matches_any, parse_duration
from rules.fault_schema import Escalation, Overdue, Phrase, RasRule, RecoveryText, SubCode, XidRule
from rules.metric_schema import Alias, MetricSpec, ModelSpec
from rules.policy_schema import (
    ActionPolicy,
    BreakerPolicy,
    CommonCausePolicy,
    DrainMode,
    DrainPolicy,
    IncidentPolicy,
    LeasePolicy,
    LimitPolicy,
    MaintenancePolicy,
    MaintenanceWindow,
    Policy,
    TelemetryPolicy,
    VerdictPolicy,
)
from rules.threshold_schema import Condition, DeviceLimit, PeerRule, ThresholdRule

__all__ = [
    "ActionPolicy",
    "Alias",
    "BreakerPolicy",
    "CommonCausePolicy",
    "Condition",
    "DeviceLimit",
    "DrainMode",
    "DrainPolicy",
    "Escalation",
    "IncidentPolicy",
    "LeasePolicy",
    "LimitPolicy",
    "MaintenancePolicy",
    "MaintenanceWindow",
    "MetricSpec",
    "ModelSpec",
    "Overdue",
    "Pack",
    "PeerRule",
    "Phrase",
    "Policy",
    "RasRule",
    "RecoveryText",
    "RuleBook",
    "Seconds",
    "Strict",
    "SubCode",
    "TelemetryPolicy",
    "ThresholdRule",
    "VerdictPolicy",
    "XidRule",
    "matches_any",
    "parse_duration",
]


class Pack(Strict):
    """One YAML file. Every section is a map keyed by name, so packs merge key by key."""

    version: Literal[1]
    name: str
    owner: str
    source: str = ""
    metrics: dict[str, MetricSpec] = {}
    models: dict[str, ModelSpec] = {}
    xid: dict[int, XidRule] = {}
    sxid: dict[int, XidRule] = {}
    sxid_default: dict[Literal["fatal", "nonfatal"], XidRule] = {}
    nvlink5: dict[str, SubCode] = {}
    ras: dict[str, RasRule] = {}
    recovery: dict[str, RecoveryText] = {}
    thresholds: dict[str, ThresholdRule] = {}
    peers: dict[str, PeerRule] = {}
    policy: Policy = Policy()


class RuleBook(Pack):
    """All packs merged: what detectors and plans are given."""

    files: tuple[str, ...] = ()
    digest: str = ""

    @model_validator(mode="after")
    def _signals_exist(self) -> Self:
        for name, rule in self.thresholds.items():
            wanted = [rule.signal, *(condition.signal for condition in rule.only_if)]
            wanted.append(rule.device_limit.signal if rule.device_limit else None)
            for signal in wanted:
                if signal is not None and signal not in self.metrics:
                    raise ValueError(f"thresholds.{name}: signal {signal!r} is not in any metrics pack")
        for name, peer in self.peers.items():
            for signal in (peer.signal, *(condition.signal for condition in peer.only_if)):
                if signal not in self.metrics:
                    raise ValueError(f"peers.{name}: signal {signal!r} is not in any metrics pack")
        return self
