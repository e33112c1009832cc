"""The score: what signals add up to, and what no number of them can reach."""

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.findings import GpuState, Signal, Verdict
from detectors.verdict import VerdictTable, score_of, share_unknown, unknown_since
from rules.schema import Policy, VerdictPolicy
from rules.vocabulary import CauseClass, Tier
from tests.detect.scene import Scene
from tests.detect.signals import signal as made

POLICY = VerdictPolicy()
AT = datetime(2026, 5, 4, tzinfo=UTC)
WEIGHTS = st.floats(0.0, 1.0)
HARD = st.sampled_from([c for c in CauseClass if c not in (CauseClass.APPLICATION, CauseClass.TELEMETRY)])


def signal(rule: str = "r", weight: float = 0.5, tier: Tier = Tier.TREND, **fields) -> Signal:
    return made(Scene(), rule, weight=weight, tier=tier, **fields)


ANY_TIER = st.sampled_from(Tier)


@st.composite
def signals(draw: st.DrawFn, tiers: st.SearchStrategy[Tier] = ANY_TIER) -> list[Signal]:
    drawn = draw(st.lists(st.tuples(WEIGHTS, tiers, st.sampled_from(CauseClass), st.booleans()), max_size=12))
    return [
        signal(f"r{n}", weight, tier, cause_class=cause, trusted=trusted)
        for n, (weight, tier, cause, trusted) in enumerate(drawn)
    ]


@st.composite
def policies(draw: st.DrawFn) -> VerdictPolicy:
    bounds = sorted(draw(st.lists(st.floats(0.05, 1.0), min_size=6, max_size=6, unique=True)))
    names = ("degraded_leave", "degraded_enter", "failing_leave", "failing_enter", "failed_leave", "failed_enter")
    cap = draw(st.floats(0.0, min(0.59, bounds[3] - 0.01)).filter(lambda value: value >= 0))
    return VerdictPolicy(**dict(zip(names, bounds, strict=True)), suspicion_cap=cap)


@given(signals(), st.randoms(use_true_random=False))
def test_the_order_of_signals_does_not_matter(given_signals: list[Signal], dice: random.Random) -> None:
    shuffled = list(given_signals)
    dice.shuffle(shuffled)
    assert score_of(shuffled, POLICY) == score_of(given_signals, POLICY)


@given(signals(), WEIGHTS, st.sampled_from(Tier), HARD)
def test_one_more_signal_never_lowers_the_score(
    before: list[Signal], weight: float, tier: Tier, cause: CauseClass
) -> None:
    more = [*before, signal("one more", weight, tier, cause_class=cause)]
    assert score_of(more, POLICY).total >= score_of(before, POLICY).total - 1e-12


@given(signals(tiers=st.just(Tier.SUSPICION)), policies())
def test_suspicion_alone_never_makes_or_keeps_a_gpu_failing(doubts: list[Signal], policy: VerdictPolicy) -> None:
    score = score_of(doubts, policy)
    assert score.total < policy.failing_enter
    assert score.total < policy.failing_leave
    assert score.evidence == 0.0


@given(signals(tiers=st.sampled_from([Tier.TREND, Tier.SUSPICION])), policies())
def test_without_a_fact_no_number_of_signals_makes_or_keeps_a_gpu_failed(
    soft: list[Signal], policy: VerdictPolicy
) -> None:
    assert score_of(soft, policy).total < policy.failed_leave


@given(signals())
def test_a_score_is_a_share(given_signals: list[Signal]) -> None:
    score = score_of(given_signals, POLICY)
    assert 0.0 <= score.evidence <= score.total + 1e-12
    assert score.total <= 1.0


@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param({"trusted": False}, id="what the kernel did not say"),
        pytest.param({"secondary_to": 79}, id="the consequence of another fault"),
        pytest.param({"cause_class": CauseClass.APPLICATION}, id="a program's fault"),
        pytest.param({"cause_class": CauseClass.TELEMETRY}, id="missing telemetry"),
    ],
)
def test_these_weigh_nothing_even_as_a_fact(nothing: dict) -> None:
    assert score_of([signal(weight=1.0, tier=Tier.FACT, **nothing)], POLICY).total == 0.0


def test_the_terms_of_a_score_are_the_shares_of_doubt_left() -> None:
    score = score_of([signal("a", 0.4), signal("b", 0.5), signal("c", 0.3, Tier.SUSPICION)], POLICY)
    assert score.evidence == pytest.approx(1 - 0.6 * 0.5)
    assert score.suspicion == pytest.approx(0.3)
    assert score.total == pytest.approx(1 - 0.6 * 0.5 * 0.7)


@given(weights=st.lists(st.sampled_from([0.1, 0.2, 0.35, 0.4, 0.6]), min_size=1, max_size=6))
def test_absence_alone_moves_no_verdict_up_or_down(weights: list[float]) -> None:
    told = {"GPU-0000-0": [signal(f"r{n}", w) for n, w in enumerate(weights)]}
    seen, unseen = VerdictTable(Policy()), VerdictTable(Policy())
    for blind in (False, True, True):
        scene = Scene(gpus=1).blind(*[(0, 0)] if blind else [])
        (verdict,) = unseen.step(scene.tick(after_s=400), told)
        (reference,) = seen.step(Scene(gpus=1).tick(after_s=400), told)
        assert verdict.score == reference.score
        assert verdict.state in (reference.state, GpuState.UNKNOWN)


def verdict(state: GpuState) -> Verdict:
    return Verdict("n", state.value, state, 0.0, AT, 1.0)


def test_all_verdicts_are_unknown_once_the_source_is_gone_and_say_what_they_were() -> None:
    later = datetime(2026, 5, 5, tzinfo=UTC)
    healthy, unknown = unknown_since([verdict(GpuState.HEALTHY), verdict(GpuState.UNKNOWN)], later, "no answer")
    assert (healthy.state, healthy.since, healthy.reason) == (GpuState.UNKNOWN, later, "no answer; was healthy")
    assert unknown.since == AT


def test_the_share_of_unknown_gpus_is_all_where_there_are_none() -> None:
    assert share_unknown([]) == 1.0
    assert share_unknown([verdict(GpuState.HEALTHY), verdict(GpuState.UNKNOWN)]) == 0.5
