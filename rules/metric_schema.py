"""The shape of packs/metrics: canonical signals with their aliases, and what GPU models have."""

from typing import Literal

from pydantic import Field

from rules.base import Strict, matches_any
from rules.vocabulary import EventKind, SignalKind, SignalScope


class Alias(Strict):
    """One name under which an exporter publishes a signal.

    `labels` must all match for the alias to apply (a node metric split by mode, an AMD metric split by type);
    `scale` turns the exporter's unit into the signal's. `sum_over` names labels whose series add up to one value per
    GPU or node (CPU modes, network devices); `max_over` names labels of which the largest value counts.
    """

    metric: str
    exporter: str
    labels: dict[str, str] = {}
    scale: float = 1.0
    sum_over: tuple[str, ...] = ()
    max_over: tuple[str, ...] = ()


class MetricSpec(Strict):
    """A canonical signal: what it measures, in which unit, and under which names it arrives.

    `low` and `high` bound what is physically possible, in the signal's unit; a value outside is not data. `models`
    are glob patterns of GPU model names it applies to (empty: all); `not_models` are excluded. `fast` says that
    tiers 0 and 1 need it, so it is pulled at every poll. `event_kind` makes edges of the signal kernel events.
    """

    summary: str
    unit: str
    kind: SignalKind
    scope: SignalScope
    low: float | None = None
    high: float | None = None
    fast: bool = False
    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    code_label: str | None = None
    event_kind: EventKind | None = None
    aliases: tuple[Alias, ...] = Field(min_length=1)
    source: str

    def applies_to(self, model: str) -> bool:
        """Whether a GPU of this model name can have the signal at all."""
        return matches_any(model, self.models, empty=True) and not matches_any(model, self.not_models)


class ModelSpec(Strict):
    """What a GPU model is known to have. `match` are glob patterns over the exporter's model name."""

    match: tuple[str, ...] = Field(min_length=1)
    nvlinks: int = Field(ge=0)
    pcie_gen: int | None = None
    pcie_width: int | None = None
    power_limit_watts: float | None = None
    slowdown_celsius: float | None = None
    architecture: Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna", "unknown"] = "unknown"
    source: str
