"""What the report page is made from: the audit's dictionaries, the fleet at a glance, and evidence series.

`gpuwarden audit` fills these types; `daemon.report.page` turns them into one HTML file. Nothing here knows HTML.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.findings import GpuState

F64 = NDArray[np.float64]

#: One sample: Unix seconds, and the value or None where there was none.
Point = tuple[float, float | None]

#: One object of report.json, as `json.load` gives it (times may also be aware datetimes).
JsonObject = Mapping[str, Any]


class SeriesKind(StrEnum):
    """Whose numbers a line shows. PEER_BAND series come in pairs, the lower edge first."""

    GPU = "gpu"
    PEERS = "peers"
    PEER_BAND = "peer_band"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One line of a plot: `times` in ascending Unix seconds and `values`, both of shape (samples,).

    NaN is a gap: the line breaks there. A Prometheus answer leaves absent samples out, so whoever makes a series puts
    the answer on the query's step grid first. An infinite value is shown as a gap too.
    Raises ValueError where the shapes differ or time runs backwards.
    """

    name: str
    times: F64
    values: F64
    kind: SeriesKind = SeriesKind.GPU

    def __post_init__(self) -> None:
        if self.times.ndim != 1 or self.times.shape != self.values.shape:
            raise ValueError(
                f"series {self.name!r}: times {self.times.shape} and values {self.values.shape} must be of one length; "
                "give one value (NaN for none) for each time"
            )
        if np.any(np.diff(self.times) < 0):
            raise ValueError(f"series {self.name!r}: times must ascend; sort the samples by time")

    @staticmethod
    def of(name: str, points: Iterable[Point], kind: SeriesKind = SeriesKind.GPU) -> "Series":
        """A series from single samples, None becoming a gap."""
        pairs = list(points)
        times = np.array([at for at, _ in pairs], np.float64)
        values = np.array([np.nan if value is None else value for _, value in pairs], np.float64)
        return Series(name, times, values, kind)


@dataclass(frozen=True, slots=True, eq=False)
class Plot:
    """One quantity over time and what it is held against. `onset` is when trouble began, `detected` when we knew."""

    title: str
    unit: str
    series: tuple[Series, ...]
    limit: float | None = None
    limit_label: str = "limit"
    onset: datetime | None = None
    detected: datetime | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One kernel-log record; `trusted` is False for text that did not come from the kernel. `count` folds repeats."""

    at: datetime | None
    text: str
    code: int | None = None
    trusted: bool = True
    count: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a person wants to see before believing one incident."""

    incident_id: str
    plots: tuple[Plot, ...] = ()
    log_lines: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetCell:
    """One GPU over the whole span: its worst state and its highest score.

    `share_unknown` (0 to 1) is how much of the time nothing was known about it; `seconds_in` is how many seconds it
    spent in each state.
    """

    uuid: str
    index: str
    model: str
    state: GpuState
    score: float | None
    share_unknown: float
    incidents: tuple[str, ...] = ()
    seconds_in: tuple[tuple[GpuState, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One node and its GPUs, in slot order."""

    node: str
    rack: str
    gpus: tuple[FleetCell, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """Where the report comes from: the Prometheus it asked, versions of packs and models, and notes for the reader."""

    title: str = "GPU fleet audit"
    source: str = ""
    generated_at: datetime | None = None
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReportView:
    """All that the page shows. `summary`, `incidents` and `decisions` are those of report.json."""

    summary: JsonObject
    incidents: Sequence[JsonObject]
    decisions: Sequence[JsonObject]
    fleet: tuple[FleetRow, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    meta: Meta = Meta()
