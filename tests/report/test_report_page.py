"""The page as a whole: well formed, complete or honest about what is cut, closed to outside text, and never too big."""

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

from daemon.report import page
from daemon.report.model import Evidence, FleetCell, FleetRow, LogLine, Meta, Plot, ReportView, Series
from daemon.report.page import render
from daemon.report.reading import ReportShapeError
from detectors.findings import GpuState

ReportMaker = Callable[..., ReportView]
HOSTILE = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;{{ 7*7 }}"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Walk(HTMLParser):
    """Walks a page, checks that tags close in order, and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self.open[-1:]} at {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.tags if attribute in attrs]


def words(text: str) -> str:
    """What a reader sees, white space folded."""
    body = text[text.index("<body>") : text.rindex("<script>")]
    return re.sub(r"\s+", " ", "".join(Walk(body + "</body>").text))


@pytest.fixture(scope="module")
def many_html(many: ReportView) -> str:
    return render(many)


@pytest.fixture
def pages(week: ReportView, report: ReportMaker, many_html: str) -> dict[str, str]:
    return {
        "a week with labels": render(week),
        "nothing found": render(report()),
        "no fleet at all": render(replace(report(), fleet=())),
        "2,000 incidents": many_html,
    }


# ------------------------------------------------------------------------------------------------------------ form


def test_every_tag_closes_in_its_order(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        walk = Walk(text)
        assert walk.faults == [], name
        assert walk.open == [], name


def test_no_two_elements_share_an_id_and_every_inner_link_leads_somewhere(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        walk = Walk(text)
        ids = Counter(walk.all("id"))
        assert [one for one, count in ids.items() if count > 1] == [], name
        targets = {link.removeprefix("#") for link in walk.all("href")}
        assert targets - set(ids) == set(), name
        described = {ident for names in walk.all("aria-labelledby") for ident in names.split()}
        assert described - set(ids) == set(), name


def test_nothing_is_loaded_from_outside(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        walk = Walk(text)
        assert [tag for tag, _ in walk.tags if tag in {"link", "img", "iframe", "object", "embed", "base"}] == [], name
        assert walk.all("src") == [], name
        assert all(link.startswith("#") for link in walk.all("href")), name
        assert "@import" not in text, name
        assert re.findall(r"url\((?!#)", text) == [], name


def test_the_policy_allows_our_own_style_and_script_only(week: ReportView) -> None:
    text = render(week)
    walk = Walk(text)
    (policy,) = (attrs["content"] for _, attrs in walk.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert walk.all("style") == []
    assert [key for _, attrs in walk.tags for key in attrs if key.startswith("on")] == []


def test_drawings_and_tables_can_be_told_without_seeing_them(week: ReportView) -> None:
    walk = Walk(render(week))
    svgs = [attrs for tag, attrs in walk.tags if tag == "svg"]
    assert all(
        attrs.get("aria-hidden") == "true" or (attrs.get("role") and attrs.get("aria-labelledby")) for attrs in svgs
    )
    assert [attrs for attrs in svgs if attrs.get("role") == "img"]
    assert all(attrs.get("scope") in {"col", "row"} for tag, attrs in walk.tags if tag == "th")


# --------------------------------------------------------------------------------------------------------- content


def test_the_banner_says_that_nothing_was_changed(week: ReportView) -> None:
    seen = words(render(week))
    assert "DRY RUN" in seen
    assert "observe mode" in seen
    assert "nothing was changed" in seen


@pytest.mark.parametrize(
    "told",
    [
        pytest.param("1,344", id="the GPU-days"),
        pytest.param("98.2 %", id="the coverage"),
        pytest.param("absent: 0.9 %", id="what the coverage lacks"),
        pytest.param("95 % interval 0.035 to 1.03", id="the interval of the false alarms"),
        pytest.param("2 facts, 0.43 a day", id="incidents by tier and a day"),
        pytest.param("1 of them disruptive, on 1 node", id="how much of what it would have done disrupts"),
        pytest.param("24 nodes, 192 GPUs", id="the size of the fleet"),
        pytest.param("Remapped rows grew by 27 in 16 h, then the GPU fell off the bus.", id="why"),
        pytest.param("Would drain gpu-node-007", id="what it would do"),
        pytest.param(
            "the same answer 40 times until 2026-05-04 08:19:30Z", id="the same answer on 40 ticks is one line"
        ),
        pytest.param("3 of 2 nodes of rack r1 are out of service already", id="the gate's reason"),
        pytest.param("pod ml/llama-3-worker-4", id="who is affected"),
        pytest.param('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-5b1c0d5e-1111-4c4e-9a51-000000000103"} > 87', id="the query"),
        pytest.param("GPU has fallen off the bus.", id="the log line"),
        pytest.param("untrusted", id="that a record did not come from the kernel"),
        pytest.param("still open at the span's end", id="that it is open"),
        pytest.param("2026-05-02 11:00:00Z after 4 h 30 min", id="when it closed and how long it was"),
        pytest.param("it looks like a common cause", id="that it is held"),
        pytest.param("8 nodes of rack r2", id="a rack by its name"),
        pytest.param("missed", id="a labelled fault that was missed"),
        pytest.param("1 h 30 min median; \N{MINUS SIGN}1 min (p10)", id="the lead, also when it is negative"),
        pytest.param("Decisions about no incident of this report", id="decisions without an incident"),
        pytest.param("https://prometheus.example:9090/", id="the source"),
    ],
)
def test_the_page_tells(told: str, week: ReportView) -> None:
    assert told in words(render(week))


def test_credentials_in_the_source_stay_out(week: ReportView) -> None:
    assert "secret" not in render(week)


def test_incidents_it_would_have_disrupted_work_for_come_first(week: ReportView) -> None:
    order = [one for one in Walk(render(week)).all("id") if one.startswith("i-") and "." not in one]
    assert order == [f"i-INC-2026-000{number}" for number in (2, 5, 1, 3, 4)]


def test_a_cell_of_the_fleet_says_its_state_by_letter_word_and_shape(week: ReportView) -> None:
    walk = Walk(render(week))
    cells = [attrs for tag, attrs in walk.tags if "s-failed" in (attrs.get("class") or "") and attrs.get("title")]
    ((title, target),) = [(attrs["title"], attrs["href"]) for attrs in cells]
    assert title is not None
    assert title.startswith("GPU 5: failed")
    assert "failed for 14 h 26 min" in title
    assert "not known for 14 % of the time" in title
    assert target == "#i-INC-2026-0002"


def test_without_labels_nothing_is_said_about_recall_or_false_alarms(report: ReportMaker) -> None:
    seen = words(render(report()))
    assert "Against labels" not in seen
    assert "False alarms" not in seen


def test_nothing_found_is_said_kindly_with_what_was_looked_at(report: ReportMaker) -> None:
    seen = words(render(report()))
    assert "No incident in this span." in seen
    assert "24 GPUs on 3 nodes were looked at for 7 d (1,344 GPU-days)" in seen
    assert "98.2 % of what should be known was known" in seen


def test_evidence_may_come_beside_the_view(week: ReportView) -> None:
    bare = replace(week, evidence=())
    assert render(bare, week.evidence) == render(week)


def test_the_same_input_gives_the_same_page(week: ReportView) -> None:
    assert render(week) == render(week)


# ----------------------------------------------------------------------------------------------------------- sizes


def test_a_page_of_2_000_incidents_stays_below_5_megabytes(many_html: str) -> None:
    assert len(many_html.encode()) < 5_000_000


def test_every_incident_has_a_section_or_is_counted_as_cut(many: ReportView, many_html: str) -> None:
    walk = Walk(many_html)
    sections = sum(tag == "article" for tag, _ in walk.tags)
    assert 0 < sections <= page.MOST_SECTIONS
    assert f"{len(many.incidents) - sections:,} more incidents without a section here" in words(many_html)
    rows = {one for one in walk.all("id") if one.startswith("r-")}
    assert len(rows) == len(many.incidents)


def test_incidents_beyond_the_list_are_counted(many: ReportView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_ROWS", 50)
    monkeypatch.setattr(page, "MOST_SECTIONS", 10)
    text = render(replace(many, incidents=many.incidents[:120]))
    seen = words(text)
    assert "110 more incidents without a section here" in seen
    assert "70 more incidents not listed" in seen
    assert Walk(text).faults == []


def test_sections_stop_when_the_page_is_full(week: ReportView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_SECTION_BYTES", 1)
    assert "4 more incidents without a section here" in words(render(week))


def test_a_log_line_of_megabytes_is_shortened_and_says_so(report: ReportMaker, week: ReportView) -> None:
    line = LogLine(None, "NVRM: " + "x" * 5_000_000, None)
    text = render(report(week.incidents, evidence=[Evidence("INC-2026-0001", (), (line,) * 500)]))
    assert len(text) < 300_000
    assert "more characters)" in text
    assert "440 more are in the logs" in words(text)


def test_a_big_fleet_shows_its_bad_rows_and_counts_the_rest(report: ReportMaker) -> None:
    def row(node: int, state: GpuState) -> FleetRow:
        return FleetRow(f"n{node:04d}", "", (FleetCell(f"G{node}", "0", "H100", state, 0.0, 0.0),))

    rows = tuple(row(node, GpuState.FAILED if node == 1_999 else GpuState.HEALTHY) for node in range(2_048))
    text = render(replace(report(), fleet=rows))
    seen = words(text)
    assert "n1999" in seen
    assert "1,792 more nodes not drawn: every GPU on them stayed healthy" in seen


# ------------------------------------------------------------------------------------------------------ outside text


def hostile_report(report: ReportMaker) -> ReportView:
    gate = {"name": HOSTILE, "passed": False, "reason": HOSTILE}
    signal = {
        **dict.fromkeys(("detector", "rule", "node", "gpu", "unit", "look", "text"), HOSTILE),
        "tier": 0,
        "value": 1.0,
    }
    incident = {
        **dict.fromkeys(("id", "node", "why", "action"), HOSTILE),
        "nodes": [HOSTILE, HOSTILE + "2"],
        "gpu_uuids": [HOSTILE],
        "opened": "2026-05-02T00:00:00Z",
        "closed": None,
        "scope": "gpu",
        "cause_class": "memory",
        "tier": 0,
        "first_signal_at": "2026-05-02T00:00:00Z",
        "signals": [signal],
    }
    decision = {
        **dict.fromkeys(("node", "gpu_uuid", "mode", "incident"), HOSTILE),
        "at": "2026-05-02T00:00:00Z",
        "action": "drain",
        "verdict": "act",
        "gates": [gate],
        "affected": [HOSTILE],
    }
    view = report(
        [incident],
        [decision, decision | {"incident": None}],
        [Evidence(HOSTILE, (Plot(HOSTILE, HOSTILE, (Series.of(HOSTILE, [(0.0, 1.0), (9.0, 2.0)]),), 1.5, HOSTILE),),
                  (LogLine(None, HOSTILE),))],
        mode=HOSTILE,
        generated_by=HOSTILE,
        coverage_detail={HOSTILE: HOSTILE},
        recall={HOSTILE: {"found": 0, "total": 0, "recall": None}},
        labels=[{"node": HOSTILE, "gpu_uuid": HOSTILE, "class": HOSTILE, "incident": HOSTILE}],
    )  # fmt: skip
    cell = FleetCell(HOSTILE, HOSTILE, HOSTILE, GpuState.FAILED, 1.0, 0.5, (HOSTILE,))
    meta = Meta(HOSTILE, f"https://{HOSTILE}", None, ((HOSTILE, HOSTILE),), (HOSTILE,))
    return replace(view, fleet=(FleetRow(HOSTILE, HOSTILE, (cell,)),), meta=meta)


def test_html_in_any_outside_field_is_shown_as_text(report: ReportMaker) -> None:
    text = render(hostile_report(report))
    walk = Walk(text)
    assert walk.faults == []
    assert [tag for tag, _ in walk.tags if tag in {"script", "img"}] == ["script"]
    assert html.escape("<script>alert") in text
    assert "<script>alert" in words(text)
    assert "49" not in "".join(Walk(text[text.index("<article") :]).text)


def test_control_characters_and_broken_text_do_not_stop_the_page_from_being_written(report: ReportMaker) -> None:
    line = LogLine(None, "nul \x00 bell \x07 surrogate \udcff end")
    incident = {
        "id": "a b\x00",
        "opened": "2026-05-02T00:00:00Z",
        "closed": None,
        "scope": "node",
        "node": "n\udc80",
        "cause_class": "unknown",
        "tier": 1,
        "first_signal_at": "2026-05-02T00:00:00Z",
    }
    text = render(report([incident], evidence=[Evidence("a b\x00", (), (line,))]))
    assert text.encode("utf-8")
    assert "\x00" not in text
    assert "nul \ufffd bell \ufffd surrogate \ufffd end" in words(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"incidents": [{"id": "x"}]}, r"report incidents: .*`opened`.*\$\[0\]", id="an incident without a time"
        ),
        pytest.param(
            {"decisions": [{"at": "2026-05-02T00:00:00", "node": "n", "action": "drain", "verdict": "act"}]},
            r"report decisions: .*timezone.*\$\[0\].at",
            id="a time without its zone",
        ),
        pytest.param(
            {"decisions": [{"at": "2026-05-02T00:00:00Z", "node": "n", "action": "explode", "verdict": "act"}]},
            r"report decisions: .*explode.*\$\[0\].action",
            id="an action that is none",
        ),
        pytest.param({"summary": {"start": 1}}, r"report summary: .*\$.start", id="a start that is no time"),
    ],
)
def test_a_dictionary_that_breaks_the_contract_is_refused_by_its_place(
    change: dict[str, Any], message: str, week: ReportView
) -> None:
    with pytest.raises(ReportShapeError, match=message):
        render(replace(week, **change))


# ----------------------------------------------------------------------------------------------------------- colours


def test_text_colours_have_contrast_AA_in_both_schemes() -> None:  # noqa: N802 - AA is the standard's own spelling
    style = files("daemon.report").joinpath("style.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part)) for part in style.split("@media", 2)[:2])

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        high, low = sorted((luminance(one), luminance(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    pairs = [
        (ink, ground)
        for ink in ("text", "quiet", "link", "good", "bad", "warn", "limit", "healthy-ink", "detected")
        for ground in ("ground", "panel", "stripe")
    ]
    pairs += [(f"{state}-ink", state) for state in ("failed", "failing", "degraded")]
    for name, colours in (("light", light), ("dark", dark)):
        weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
        assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}, name
