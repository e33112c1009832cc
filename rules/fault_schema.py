"""The shape of packs/xid: fault codes of drivers and switches, NVLink 5 sub-codes, RAS lines, recovery actions."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from rules.base import Seconds, Strict
from rules.vocabulary import Boundary, CauseClass, FaultAction, FaultClass, Severity, Tier


class Phrase(Strict):
    """Words in the record that decide more than its number does. First match in the list wins; case is ignored."""

    contains: str
    cause_class: FaultClass | None = None
    incident_class: CauseClass | None = None
    action: FaultAction | None = None
    severity: Severity | None = None
    tier: Tier | None = None
    open: bool | None = None


class Escalation(Strict):
    """What repetition turns a fault into: `count` occurrences `within` a time at the same place.

    `same` says what the place is; `distinct_jobs` asks that the occurrences came from that many different jobs or
    processes, which is what tells a sick GPU from a sick program (NVSentinel design 014).
    """

    count: int = Field(ge=2)
    within: Seconds
    same: Literal["gpu", "gpc_tpc", "link"] = "gpu"
    distinct_jobs: int = Field(default=1, ge=1)
    tier: Tier
    action: FaultAction
    incident_class: CauseClass
    cause_class: FaultClass


class XidRule(Strict):
    """One fault code: what it means and what it asks for.

    `secondary_to` lists codes which, seen on the same GPU within `secondary_window` before it, make this one their
    consequence. `cleared_by` lists what ends it; `holds_for` ends it after that long without a repeat (null: never
    by time). `open` false makes it a note that opens no fault (an informational record). `source` says where the row
    comes from, and which sources disagree.
    """

    mnemonic: str
    meaning: str
    cause_class: FaultClass
    incident_class: CauseClass
    tier: Tier
    action: FaultAction
    severity: Severity
    open: bool = True
    secondary_to: tuple[int, ...] = ()
    secondary_window: Seconds = 60.0
    cleared_by: frozenset[Boundary] = frozenset({Boundary.REBOOT, Boundary.DRIVER_RELOAD, Boundary.GPU_RESET})
    holds_for: Seconds | None = None
    cancels: tuple[int, ...] = ()
    escalate: tuple[Escalation, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    applies_to: tuple[Literal["a100", "h100", "b100", "gb200"], ...] = ()
    source: str


class SubCode(Strict):
    """One row of the NVLink 5 decode (XIDs 144-150): unit and bit pattern of the first register, error status.

    Patterns are 32 characters of 0, 1 and -, most significant bit first; R575 moved the bits.
    """

    xid: int
    unit: str
    before_r575: str = Field(pattern=r"^[01-]{32}$")
    from_r575: str = Field(pattern=r"^[01-]{32}$")
    error_status: int
    action: FaultAction
    severity: Severity
    #: Some rows ask for another action when a further bit is set.
    second_before_r575: str = Field(default="", pattern=r"^([01-]{32})?$")
    second_from_r575: str = Field(default="", pattern=r"^([01-]{32})?$")
    second_action: FaultAction | None = None


class Overdue(Strict):
    """What a fault asks for once nothing has ended it for `after`: a reset that began and never came to its end."""

    after: Seconds
    action: FaultAction


class RasRule(Strict):
    """One family of AMD RAS lines; `pattern` is a regular expression, with an optional group `count` (0 is health)."""

    pattern: str
    meaning: str
    cause_class: FaultClass
    incident_class: CauseClass
    tier: Tier
    action: FaultAction
    severity: Severity
    open: bool = True
    cleared_by: frozenset[Boundary] = frozenset({Boundary.REBOOT, Boundary.DRIVER_RELOAD})
    holds_for: Seconds | None = None
    overdue: Overdue | None = None
    source: str

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from error
        return self


class RecoveryText(Strict):
    """What XID 154's recovery action says: by its number (`value`) and by its words."""

    value: int
    words: str
    action: FaultAction
