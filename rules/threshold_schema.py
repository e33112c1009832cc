"""The shape of packs/thresholds: a signal against a limit, and a GPU against its peers."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from rules.base import Seconds, Strict
from rules.vocabulary import CauseClass, FaultAction, SignalScope, Tier


class Condition(Strict):
    """A side condition on the same GPU (or node): the rule is only looked at where it holds."""

    signal: str
    above: float | None = None
    below: float | None = None
    bits_any: int | None = None
    bits_none: int | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.above is None and self.below is None and self.bits_any is None and self.bits_none is None:
            raise ValueError("a condition needs above, below, bits_any or bits_none")
        return self


class DeviceLimit(Strict):
    """A limit that the device itself exports: the value of `signal` plus `offset`."""

    signal: str
    offset: float = 0.0


class ThresholdRule(Strict):
    """One expectation about one signal (or one PromQL expression), and how far off is too far.

    `measure` says what is compared: the `level` itself, the `increase` of a counter over `window`, the `rate` per
    second over `window`, the growth of a `lifetime` level over `window` (drops never count), whether any of `bits`
    is set (`bits`), the share of the window in which they are (`bits_share`), or the level against a `model_fact`
    of packs/metrics (`below_model`). `hold` (YAML key `for`) is how long it must last; `clear` and `clear_for` are
    the way back, which must lie on the other side of the limit, or the rule could flap.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    summary: str
    cause_class: CauseClass
    tier: Tier
    scope: SignalScope = SignalScope.GPU
    signal: str | None = None
    expr: str | None = None
    measure: Literal["level", "increase", "rate", "growth", "bits", "bits_share", "below_model"] = "level"
    window: Seconds = 0.0
    above: float | None = None
    below: float | None = None
    bits: int | None = None
    model_fact: Literal["nvlinks", "pcie_gen", "pcie_width", "power_limit_watts"] | None = None
    device_limit: DeviceLimit | None = None
    limits_by_model: dict[str, float] = {}
    hold: Seconds = Field(default=0.0, alias="for")
    clear: float | None = None
    clear_for: Seconds = 300.0
    only_if: tuple[Condition, ...] = ()
    #: what happens to a firing rule once `only_if` no longer holds: nothing was seen to improve, or the matter is over
    otherwise: Literal["keep", "clear"] = "keep"
    #: looked at only where one job uses at least that many GPUs of the node
    job_gpus_min: int = Field(default=0, ge=0)
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    weight: float = Field(default=0.5, ge=0, le=1)
    action: FaultAction = FaultAction.NONE
    enabled: bool = True
    source: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.signal is None) == (self.expr is None):
            raise ValueError("give exactly one of signal and expr")
        if (self.above is not None) and (self.below is not None):
            raise ValueError("give one of above and below")
        if self.measure in ("increase", "rate", "growth", "bits_share") and self.window <= 0:
            raise ValueError(f"measure {self.measure} needs a window")
        if self.measure in ("bits", "bits_share") and not self.bits:
            raise ValueError(f"measure {self.measure} needs bits")
        if self.measure == "below_model" and self.model_fact is None:
            raise ValueError("measure below_model needs model_fact")
        if self.measure not in ("bits", "below_model") and self.above is None and self.below is None:
            raise ValueError("give above or below")
        if self.clear is not None:
            if self.above is not None and self.clear > self.above:
                raise ValueError("clear must not lie above the limit")
            if self.below is not None and self.clear < self.below:
                raise ValueError("clear must not lie below the limit")
        return self


class PeerRule(Strict):
    """A GPU against its peers: robust distance (value - cohort median) / max(1.4826 x MAD, floor). Always tier 2."""

    summary: str
    signal: str
    cohort: Literal["job", "model_slot", "node"]
    cause_class: CauseClass
    direction: Literal["above", "below"]
    distance: float = Field(gt=0)
    floor: float = Field(gt=0)
    min_deviation: float = Field(ge=0)
    min_cohort: int = Field(default=3, ge=3)
    hold: Seconds = Field(default=600.0, alias="for")
    clear_for: Seconds = 600.0
    only_if: tuple[Condition, ...] = ()
    weight: float = Field(default=0.35, ge=0, le=1)
    enabled: bool = True
    source: str

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
