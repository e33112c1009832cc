"""The real trace: 584 fault intervals of 400 GPU servers over 345 days (stepfun-ai/InfiniteHBD-Trace, Apache-2.0).

Its times are days since an unknown first one, so they are given a made-up year here. The 169 servers without any fault
are not in the file; they are added by number, since they were in service all the time.
"""

import csv
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.hazard import Exposure, Outage, Record

#: Beside the repository, as the tests' fixture `shared` has it.
PATH = Path("infinitehbd", "fault_intervals.csv")
SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
SERVERS = 400
_DAY_0 = datetime(2023, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Trace:
    """The outages of all servers, every server's exposure, and the span: the first beginning to the last end."""

    outages: tuple[Outage, ...]
    exposures: tuple[Exposure, ...]
    span: tuple[datetime, datetime]

    @property
    def days(self) -> float:
        return (self.span[1] - self.span[0]) / timedelta(days=1)

    def of_class(self, name: str) -> "Trace":
        """The same servers and span with the outages of one class alone."""
        return Trace(tuple(one for one in self.outages if one.cause_class == name), self.exposures, self.span)

    def record(self) -> Record:
        """As columns; day 0 is the beginning of the span."""
        return Record.of(self.outages, self.exposures, self.span[0])


def read(data: Path = SHARED_DATA) -> Trace:
    """The trace from the folder of reference data. OSError where it isn't there."""
    with (data / PATH).open(encoding="utf-8", newline="") as file:
        outages = tuple(
            Outage(f"node:{row['node_id']}", at(row["start_day"]), at(row["end_day"]), row["class"])
            for row in csv.DictReader(file)
        )
    first = min(one.began for one in outages)
    names = sorted({one.thing for one in outages})
    names += [f"node:without-a-fault-{number}" for number in range(1, SERVERS - len(names) + 1)]
    last = max(one.ended for one in outages if one.ended is not None)
    return Trace(outages, tuple(Exposure(name, first) for name in names), (first, last))


def at(day: str) -> datetime:
    """A time of the trace, rounded to whole seconds: it is given to 8.6 s."""
    return _DAY_0 + timedelta(seconds=round(float(day) * 86400))
