"""The audit's page: one HTML file that needs nothing else and loads nothing. `gpuwarden audit` calls `render`.

Everything outside (labels, pod names, log lines) is text to the page: templates escape by default, and a content
security policy with the hashes of our own style and script forbids whatever might slip through.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from daemon.report import glance, plotting, reading, tiles, wording
from daemon.report.anchors import unique_anchors
from daemon.report.decisions import Ruled, fold
from daemon.report.model import Evidence, LogLine, Plot, ReportView
from daemon.report.reading import IncidentRow
from daemon.report.sections import Listed, Names, by_incident, fold_list, make_section
from daemon.report.timeline import Entry, draw_timeline, tier_shape
from rules.vocabulary import CauseClass, Tier

MOST_SECTIONS = 200
MOST_ROWS = 2_000
#: Sections stop here, so that a page with every list full still opens quickly.
MOST_SECTION_BYTES = 2_500_000
MOST_STRAYS = 200
#: Points over all plots together; with more lines each gets fewer.
_POINTS_ON_PAGE = 200_000
_FEWEST_POINTS = 80

#: Control characters and lone surrogates have no place in HTML and would stop the file from being written as UTF-8.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Cut:
    """What the page leaves out, so that it can say so."""

    sections: int
    rows: int

    @property
    def is_nothing(self) -> bool:
        """Whether everything is there."""
        return self.sections == 0 and self.rows == 0


def render(report: ReportView, evidence: Sequence[Evidence] = ()) -> str:
    """The whole page. `evidence` adds to what the view carries.

    Raises daemon.report.reading.ReportShapeError where the dictionaries break report.json's contract.
    """
    summary = reading.read_summary(report.summary)
    incidents = reading.read_incidents(report.incidents)
    ruled = fold(reading.read_decisions(report.decisions))
    listed = _listed(incidents, Names(report.fleet), by_incident(ruled))
    sections = _sections(listed, Names(report.fleet), (*report.evidence, *evidence))
    shown, rows = len(sections), listed[:MOST_ROWS]
    # Of two incidents with one id, links lead to the first.
    links = {one.incident.id: _target(one, place, shown) for place, one in reversed(list(enumerate(rows)))}
    known = {one.id for one in incidents}
    timeline = draw_timeline(
        [
            Entry(one.incident, one.incident.node or one.where, _target(one, place, shown))
            for place, one in enumerate(rows)
        ],
        summary.start,
        summary.end,
        [row.node for row in report.fleet],
    )
    template = _environment().get_template("page.html.j2")
    page = template.render(
        summary=summary,
        meta=report.meta,
        source=wording.without_credentials(report.meta.source),
        nodes=len(report.fleet),
        gpus=sum(len(row.gpus) for row in report.fleet),
        numbers=tiles.tiles(summary, incidents, ruled, report.fleet),
        glance=glance.glance(report.fleet, links),
        timeline=timeline,
        causes=[cause for cause in CauseClass if any(one.cause_class is cause for one in incidents)],
        rows=rows,
        shown=shown,
        sections=sections,
        cut=Cut(len(incidents) - shown, len(incidents) - len(rows)),
        links=links,
        strays=fold_list([one for one in ruled if one.decision.incident not in known], 0, MOST_STRAYS),
    )
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", page)


def _listed(
    incidents: Sequence[IncidentRow], names: Names, rulings: Mapping[str, Sequence[Ruled]]
) -> tuple[Listed, ...]:
    """Incidents in the page's order: those it would have disrupted work for, then by tier, then by time."""

    def order(one: IncidentRow) -> tuple[bool, Tier, datetime, str]:
        return not any(ruled.is_disruptive for ruled in rulings.get(one.id, ())), one.tier, one.opened, one.id

    ordered = sorted(incidents, key=order)
    return tuple(
        Listed(one, anchor, names.where(one), tuple(rulings.get(one.id, ())))
        for one, anchor in zip(ordered, unique_anchors((one.id for one in ordered), "i-"), strict=True)
    )


def _target(listed: Listed, place: int, sections: int) -> str:
    """Where a link to an incident leads: its section, or its row where it has no section."""
    return listed.anchor if place < sections else f"r-{listed.anchor}"


def _sections(listed: Sequence[Listed], names: Names, evidence: Iterable[Evidence]) -> tuple[Markup, ...]:
    """Finished sections of the first incidents, until the page is full."""
    plots: dict[str, list[Plot]] = {}
    log_lines: dict[str, list[LogLine]] = {}
    for kept in evidence:
        plots.setdefault(kept.incident_id, []).extend(kept.plots)
        log_lines.setdefault(kept.incident_id, []).extend(kept.log_lines)
    first = listed[:MOST_SECTIONS]
    lines = sum(len(plot.series) for one in first for plot in plots.get(one.incident.id, ()))
    points = min(plotting.MOST_POINTS, max(_FEWEST_POINTS, _POINTS_ON_PAGE // max(lines, 1)))
    template = _environment().get_template("section.html.j2")
    finished: list[Markup] = []
    left = MOST_SECTION_BYTES
    for one in first:
        key = one.incident.id
        section = make_section(one, plots.get(key, ()), log_lines.get(key, ()), points)
        html = template.render(section=section, names=names)
        left -= len(html.encode("utf-8", "replace"))
        if left < 0 and finished:
            break
        finished.append(Markup(html))  # noqa: S704 - a template with escaping on has just made it
    return tuple(finished)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("daemon.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "utc": wording.utc,
        "utc_minute": wording.utc_minute,
        "duration": wording.duration,
        "number": wording.number,
        "percent": wording.percent,
        "short": wording.short,
        "rfc3339": wording.rfc3339,
        "policy_hash": _policy_hash,
    }
    environment.globals |= {
        "plural": wording.plural,
        "letters": glance.LETTERS,
        "tier_names": tiles.TIER_NAMES,
        "tier_shapes": {int(tier): tier_shape(tier, 7, 7) for tier in Tier},
        "style": _asset("style.css"),
        "script": _asset("script.js"),
    }
    return environment


def _asset(name: str) -> Markup:
    """A file of this package that goes into the page as it is."""
    return Markup(files("daemon.report").joinpath(name).read_text("utf-8"))  # noqa: S704 - our own file


def _policy_hash(text: str) -> str:
    """What a content security policy wants to know of an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
