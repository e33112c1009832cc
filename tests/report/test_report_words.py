"""The page's smaller parts: how numbers are written, which decisions are one, which anchors are safe, lanes."""

import doctest
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.report import svg, wording
from daemon.report.anchors import unique_anchors
from daemon.report.decisions import fold, would_act
from daemon.report.reading import DecisionRow, GateRow, IncidentRow, read_summary
from daemon.report.timeline import MOST_LANES, Entry, draw_timeline
from remediation.decide import Ruling
from rules.vocabulary import Action, CauseClass, IncidentScope, Tier

START = datetime(2026, 5, 1, tzinfo=UTC)
END = START + timedelta(days=7)


@pytest.mark.parametrize("module", [wording, svg])
def test_the_examples_in_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        pytest.param(None, "–", id="not known"),
        pytest.param(float("nan"), "–", id="no number"),
        pytest.param(0, "0 s", id="nothing"),
        pytest.param(59.6, "1 min", id="rounds up to the next unit"),
        pytest.param(3_600, "1 h", id="whole hours alone"),
        pytest.param(90_061, "1 d 1 h", id="two units at most"),
    ],
)
def test_durations(seconds: float | None, told: str) -> None:
    assert wording.duration(seconds) == told


@given(st.text(max_size=120), st.integers(1, 40))
def test_a_shortened_text_is_shorter_and_says_how_much_is_missing(text: str, limit: int) -> None:
    told = wording.short(text, limit)
    assert len(told) <= len(text)
    assert told == text or told.endswith(f"({len(text) - limit:,} more characters)")
    assert told == text or len(text) > limit


@given(st.lists(st.text(max_size=90), max_size=30))
def test_anchors_are_safe_and_never_twice_the_same(names: list[str]) -> None:
    anchors = unique_anchors(names, "i-")
    assert len(set(anchors)) == len(names)
    assert all(re.fullmatch(r"i-[A-Za-z0-9.-]*", anchor) for anchor in anchors)


# -------------------------------------------------------------------------------------------------------- decisions


def decided(
    minute: int, action: Action = Action.DRAIN, verdict: Ruling = Ruling.WAIT, *, passed: bool = False
) -> DecisionRow:
    gates = (GateRow("budget", passed, f"{minute} of 6"),)
    return DecisionRow(START + timedelta(minutes=minute), "n1", action, verdict, gates=gates, incident="i")


def test_the_same_answer_on_many_ticks_is_one_with_the_last_reason() -> None:
    (one,) = fold([decided(minute) for minute in (2, 0, 1)])
    assert (one.count, one.first, one.last) == (3, START, START + timedelta(minutes=2))
    assert one.decision.gates[0].reason == "2 of 6"


def test_another_gate_is_another_answer() -> None:
    assert len(fold([decided(0), decided(1, passed=True)])) == 2


def test_the_strongest_answer_comes_first_and_watching_last() -> None:
    ruled = fold(
        [
            decided(0, Action.WATCH, Ruling.ACT),
            decided(1, verdict=Ruling.REFUSE),
            decided(2),
            decided(3, Action.CHECKPOINT, Ruling.ACT),
            decided(4, verdict=Ruling.ACT),
            decided(5, verdict=Ruling.ASK),
        ]
    )
    assert [(one.decision.verdict, one.decision.action) for one in ruled] == [
        (Ruling.ACT, Action.DRAIN),
        (Ruling.ACT, Action.CHECKPOINT),
        (Ruling.ASK, Action.DRAIN),
        (Ruling.WAIT, Action.DRAIN),
        (Ruling.REFUSE, Action.DRAIN),
        (Ruling.ACT, Action.WATCH),
    ]
    assert [one.decision.action for one in would_act(ruled)] == [Action.DRAIN, Action.CHECKPOINT]


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("verdict", list(Ruling))
def test_every_action_and_answer_has_a_sentence(action: Action, verdict: Ruling) -> None:
    (one,) = fold([decided(0, action, verdict)])
    assert one.sentence.startswith("Would ")
    assert "n1" in one.sentence


# ----------------------------------------------------------------------------------------------------------- summary


@pytest.mark.parametrize(
    ("given", "share", "detail"),
    [
        pytest.param({"coverage": 0.9}, 0.9, (), id="a share alone"),
        pytest.param(
            {"coverage": 0.9, "coverage_detail": {"stale": 0.1}}, 0.9, ("stale: 0.1",), id="an object beside it"
        ),
        pytest.param({"coverage": 0.9, "coverage_detail": "12 h lost"}, 0.9, ("12 h lost",), id="a text beside it"),
        pytest.param({"coverage": {"share": 0.9, "detail": ["a", "b"]}}, 0.9, ("a", "b"), id="an object of its own"),
        pytest.param({}, None, (), id="not measured"),
    ],
)
def test_coverage_may_come_in_any_of_these_forms(
    given: dict[str, object], share: float | None, detail: tuple[str, ...]
) -> None:
    summary = read_summary({"start": START, "end": END, "gpu_days": 1, "episodes": 0} | given)
    assert (summary.coverage.share, summary.coverage.detail) == (share, detail)


# ---------------------------------------------------------------------------------------------------------- timeline


def entry(number: int, node: str, *, hours: float = 1, lasts: float | None = 1, tier: Tier = Tier.FACT) -> Entry:
    opened = START + timedelta(hours=hours)
    closed = None if lasts is None else opened + timedelta(hours=lasts)
    incident = IncidentRow(
        f"inc-{number}", opened, closed, IncidentScope.GPU, node, CauseClass.LINK, tier, opened - timedelta(hours=0.5)
    )
    return Entry(incident, node, f"i-{number}")


def lanes(text: str) -> list[str]:
    return re.findall(r'class="lane"[^>]*><title>([^<]*)</title>', text)


def test_lanes_follow_the_order_of_the_fleet_and_unknown_nodes_come_last() -> None:
    text = str(draw_timeline([entry(1, "b"), entry(2, "stray"), entry(3, "a")], START, END, ["b", "a"]))
    assert lanes(text) == ["b", "a", "stray"]


def test_many_nodes_share_a_last_lane_and_the_worst_keep_their_own() -> None:
    entries = [entry(n, f"n{n:03d}", tier=Tier.FACT if n == 150 else Tier.TREND) for n in range(200)]
    text = str(draw_timeline(entries, START, END, [f"n{n:03d}" for n in range(200)]))
    shown = lanes(text)
    assert len(shown) == MOST_LANES
    assert "n150" in shown
    assert shown[-1] == f"{200 - MOST_LANES + 1} other nodes"
    assert text.count("<a ") == 200


def test_incidents_of_one_node_at_one_time_lie_under_each_other() -> None:
    text = str(draw_timeline([entry(n, "a", lasts=24) for n in range(3)], START, END, ["a"]))
    assert len(set(re.findall(r'class="bar"[^>]* y="([\d.]+)"', text))) == 3


def test_marks_stay_inside_the_span() -> None:
    entries = [entry(1, "a", hours=-50), entry(2, "b", hours=160, lasts=None), entry(3, "c", hours=400)]
    text = str(draw_timeline(entries, START, END, []))
    bars = [(float(x), float(w)) for x, w in re.findall(r'class="bar" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', text)]
    assert len(bars) == 3
    assert all(x >= 132 and x + width <= 1151 for x, width in bars)
    assert text.count('class="open-end"') == 1


def test_a_span_without_length_can_be_drawn() -> None:
    assert "inc-1" in draw_timeline([entry(1, "a")], START, START, ["a"])
