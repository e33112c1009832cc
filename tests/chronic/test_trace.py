"""The real trace: the table that the facts give, and the figures that docs/chronic.md gives."""

import re
from pathlib import Path

import numpy as np
import pytest

from detectors.chronic import ChronicLimits
from detectors.hazard import hazard_table, merged
from tests.chronic.trace import Trace, read
from tests.chronic.walk import named, ranking_days, walk

#: shared/facts/chronic_evidence.md: from, to, hazard a day, times the fleet, outages.
EVIDENCE = [
    (0, 1, "0.276", 64, 130), (1, 3, "0.027", 6.2, 23), (3, 7, "0.017", 4.0, 28), (7, 14, "0.012", 2.7, 30),
    (14, 30, "0.0072", 1.7, 37), (30, 60, "0.0037", 0.9, 30), (60, 120, "0.0035", 0.8, 40),
    (120, np.inf, "0.0024", 0.6, 33),
]  # fmt: skip


@pytest.fixture(scope="module")
def trace(shared: Path) -> Trace:
    return read(shared / "data")


def test_overlapping_intervals_make_582_outages_on_231_servers(trace: Trace):
    whole = merged(trace.outages)
    assert (len(trace.outages), len(whole), len({one.thing for one in whole})) == (584, 582, 231)
    assert len(trace.exposures) == 400
    assert round(trace.days) == 345


def test_the_hazard_table_is_that_of_the_evidence(trace: Trace):
    told = hazard_table(trace.outages, trace.exposures, trace.span)
    assert round(told.fleet.hazard_per_day, 4) == 0.0043
    assert [(row.from_day, row.to_day, row.outages) for row in told.rows] == [(a, b, n) for a, b, _, _, n in EVIDENCE]
    for row, (_, _, hazard, times, _) in zip(told.rows, EVIDENCE, strict=True):
        step = 10.0 ** -len(hazard.partition(".")[2])
        assert row.hazard_per_day == pytest.approx(float(hazard), abs=step)
        assert row.times_fleet == pytest.approx(times, abs=0.1)
    assert round(told.before_first.times_fleet, 1) == 0.6


@pytest.mark.parametrize("label", ["all", "class GPU"])
def test_the_page_gives_the_shares_that_come_out(trace: Trace, root: Path, label: str):
    used = trace if label == "all" else trace.of_class("GPU")
    walked = walk(used.record(), ranking_days(used.days), ChronicLimits())
    page = (root / "docs/chronic.md").read_text(encoding="utf-8")
    rows = dict(re.findall(rf"^\| {label} \| ([^|]+) \|(.*)\|$", page, re.MULTILINE))
    early = walked.days < used.days / 2
    assert set(rows) == set(walked.hits)
    for name, hits in walked.hits.items():
        cells = [cell.split("[")[0].strip() for cell in rows[name].split("|")]
        shares = [hits[part].sum() / walked.outages[part].sum() for part in (early, ~early, early | ~early)]
        assert cells[:3] == [f"{100 * share:.1f}" for share in shares], name


def test_the_page_gives_the_shipped_limits(root: Path):
    page = (root / "docs/chronic.md").read_text(encoding="utf-8")
    limits = ChronicLimits()
    rows = {
        "`times_fleet`, `chance`": f"{limits.times_fleet:g}, {limits.chance:g}",
        "`min_outages`": f"{limits.min_outages}",
        "`fade_days`": f"{limits.fade_days:g}",
        "`horizon_days`": f"{limits.horizon_days:g}",
        "`memory_days`": f"{limits.memory_days:g}",
    }
    assert [row for row in (f"| {name} | {value} |" for name, value in rows.items()) if row not in page] == []
    assert all(f"`{cause}`" in page for cause in limits.ignored_causes)


def test_places_that_are_tied_for_are_shared():
    assert list(named(np.array([3.0, 1.0, 1.0, 0.0]), top=2)) == [1.0, 0.5, 0.5, 0.0]
    assert list(named(np.zeros(4), top=1)) == [0.25] * 4
