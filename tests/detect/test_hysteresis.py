"""Nothing flaps: latches, windows and verdicts change no faster than their times allow, whatever is seen or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from detectors.findings import GpuState, Signal, Verdict
from detectors.latch import Latch, Window
from detectors.verdict import VerdictTable
from rules.schema import Policy
from rules.vocabulary import Tier
from tests.detect import signals
from tests.detect.scene import Scene

HOLD_S, CLEAR_S = 120.0, 300.0
STEPS = st.floats(1.0, 200.0)


def one(value: bool) -> np.ndarray:
    return np.array([value], np.bool_)


class LatchMachine(RuleBasedStateMachine):
    """One row of a latch under any sequence of what a rule may see, with a history to check it by."""

    def __init__(self) -> None:
        super().__init__()
        self.latch, self.now = Latch(), 1000.0
        self.seen: list[tuple[float, bool, bool]] = []
        self.was = self.on = False
        self.changed_at: list[float] = []

    @rule(after_s=STEPS, sees=st.sampled_from(["over", "under", "between", "nothing"]))
    def look(self, after_s: float, sees: str) -> None:
        self.now += after_s
        firing, clearing = sees == "over", sees == "under"
        self.seen.append((self.now, firing, clearing))
        self.was = self.on
        self.on = bool(self.latch.step(self.now, one(firing), one(clearing), hold_s=HOLD_S, clear_s=CLEAR_S)[0])
        if self.was is not self.on:
            self.changed_at.append(self.now)

    def unbroken(self, what: int) -> float:
        """For how long the newest looks have all been so."""
        begin = self.now
        for look in reversed(self.seen):
            if not look[what]:
                break
            begin = look[0]
        return self.now - begin

    @invariant()
    def it_turns_on_only_after_the_hold(self) -> None:
        if self.on and not self.was:
            assert self.unbroken(1) >= HOLD_S

    @invariant()
    def it_turns_off_only_after_being_clear_without_a_break(self) -> None:
        if self.was and not self.on:
            assert self.unbroken(2) >= CLEAR_S

    @invariant()
    def it_never_changes_twice_within_its_times(self) -> None:
        for before, after in zip(self.changed_at, self.changed_at[1:], strict=False):
            assert after - before >= min(HOLD_S, CLEAR_S)

    @invariant()
    def what_lasts_long_enough_does_turn_it(self) -> None:
        if self.seen and self.unbroken(1) >= HOLD_S:
            assert self.on
        if self.seen and self.unbroken(2) >= CLEAR_S:
            assert not self.on

    @invariant()
    def its_times_are_those_of_what_was_seen(self) -> None:
        if self.on:
            fired = [at for at, firing, _ in self.seen if firing]
            assert self.latch.since[0] in fired
            assert self.latch.last[0] == fired[-1]


TestLatch = LatchMachine.TestCase


def test_a_latch_grows_with_its_rows_and_forgets_a_replaced_one() -> None:
    latch = Latch()
    latch.step(0.0, np.array([True]), np.array([False]), hold_s=0.0, clear_s=0.0)
    assert latch.step(1.0, np.array([True, True]), np.zeros(2, np.bool_), hold_s=0.0, clear_s=0.0).tolist() == [
        True,
        True,
    ]
    latch.drop(np.array([True, False, False]))
    assert latch.on.tolist() == [False, True, False]
    assert np.isnan(latch.since[0])
    assert np.isnan(latch.last[0])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 50) | st.none()), max_size=40))
def test_a_window_sums_what_lies_in_it(ticks: list[tuple[int, int | None]]) -> None:
    window, now, seen = Window(600.0, buckets=60), 10_000.0, []
    for after_s, amount in ticks:
        now += after_s
        seen.append((now, 0.0 if amount is None else float(amount)))
        (total,) = window.add(now, np.array([np.nan if amount is None else float(amount)]))
        surely = sum(value for at, value in seen if now - at < 590.0)
        at_most = sum(value for at, value in seen if now - at <= 610.0)
        assert surely <= total <= at_most


def test_a_window_forgets_a_replaced_row_and_takes_new_ones_in() -> None:
    window = Window(600.0)
    window.add(0.0, np.array([5.0]))
    window.drop(np.array([True, False]))
    assert window.add(1.0, np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 3.0]


# ---------------------------------------------------------------------------------------------------------- verdicts

POLICY = Policy()
DWELL_S = POLICY.verdict.dwell
LEVELS = [GpuState.HEALTHY, GpuState.DEGRADED, GpuState.FAILING, GpuState.FAILED]


def signal(weight: float, tier: Tier = Tier.TREND, rule: str = "r") -> Signal:
    return signals.signal(Scene(), rule, weight=weight, tier=tier, text=rule)


class VerdictMachine(RuleBasedStateMachine):
    """One GPU that gets better and worse, is lost from sight and comes back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scene = VerdictTable(POLICY), Scene(gpus=1)
        self.seen: list[tuple[float, bool]] = []
        self.told: list[tuple[float, Verdict]] = []
        self.now = 0.0

    @rule(
        after_s=STEPS,
        blind=st.sampled_from(["no", "stale", "frozen", "partial"]),
        weight=st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.9, 1.0]),
        fact=st.booleans(),
    )
    def look(self, after_s: float, blind: str, weight: float, fact: bool) -> None:
        self.scene.flag("gpu_stale", *[0] if blind == "stale" else [])
        self.scene.flag("gpu_frozen", *[0] if blind == "frozen" else [])
        self.scene.share = {0: 0.3 if blind == "partial" else 1.0}
        told = [signal(weight, Tier.FACT if fact else Tier.TREND)] if weight else []
        (verdict,) = self.table.step(self.scene.tick(after_s=after_s), {"GPU-0000-0": told} if told else {})
        self.now = self.scene.now.timestamp()
        self.seen.append((self.now, blind == "no"))
        self.told.append((self.now, verdict))

    @invariant()
    def it_is_failed_only_with_a_fact(self) -> None:
        if self.told:
            verdict = self.told[-1][1]
            facts = [v for _, v in self.told if any(s.tier is Tier.FACT for s in v.signals)]
            assert verdict.state is not GpuState.FAILED or facts

    @invariant()
    def unseen_it_is_unknown_unless_a_fact_stands(self) -> None:
        if self.seen and not self.seen[-1][1]:
            verdict = self.told[-1][1]
            fact = any(s.tier is Tier.FACT for s in verdict.signals)
            assert verdict.state is GpuState.UNKNOWN or fact

    @invariant()
    def it_is_never_healthy_unseen(self) -> None:
        if self.seen and not self.seen[-1][1]:
            assert self.told[-1][1].state is not GpuState.HEALTHY

    @invariant()
    def it_is_known_again_only_after_the_dwell(self) -> None:
        states = [v.state for _, v in self.told]
        came_back = len(states) > 1 and states[-2] is GpuState.UNKNOWN and states[-1] is not GpuState.UNKNOWN
        if came_back and not any(s.tier is Tier.FACT for s in self.told[-1][1].signals):
            in_sight = [at for at, sees in self.seen if sees]
            first_sight = in_sight[0] == self.now
            blind = [at for at, sees in self.seen if not sees]
            assert first_sight or not blind or self.now - min(a for a in in_sight if a > blind[-1]) >= DWELL_S

    @invariant()
    def it_gets_better_only_after_the_dwell_of_being_seen_so(self) -> None:
        known = [(at, v) for at, v in self.told if v.state is not GpuState.UNKNOWN]
        if len(known) < 2 or self.told[-1][1].state is GpuState.UNKNOWN:
            return
        (_, before), (_, after) = known[-2:]
        if LEVELS.index(after.state) < LEVELS.index(before.state):
            recent = [v for at, v in self.told if at > self.now - DWELL_S]
            assert all(v.score < POLICY.verdict.failed_enter for v in recent if before.state is GpuState.FAILED)
            blind = [at for at, sees in self.seen if not sees]
            assert not blind or self.now - blind[-1] >= DWELL_S

    @invariant()
    def since_is_when_the_state_began(self) -> None:
        if self.told:
            at, verdict = self.told[-1]
            begin = at
            for earlier, v in reversed(self.told):
                if v.state is not verdict.state:
                    break
                begin = earlier
            assert verdict.since.timestamp() == begin


TestVerdict = VerdictMachine.TestCase


def states(scene: Scene, table: VerdictTable, blind_at: list[bool], weight: float = 0.0) -> list[GpuState]:
    found = []
    for blind in blind_at:
        scene.blind(*[(0, 0)] if blind else [])
        told = {"GPU-0000-0": [signal(weight)]} if weight else {}
        found.append(table.step(scene.tick(), told)[0].state)
    return found


def test_a_gpu_that_loses_every_other_sample_does_not_flap() -> None:
    found = states(Scene(gpus=1), VerdictTable(POLICY), [False, True] * 20)
    assert found == [GpuState.HEALTHY] + [GpuState.UNKNOWN] * 39


def test_a_gpu_that_stays_in_sight_is_known_again_after_the_dwell() -> None:
    found = states(Scene(gpus=1), VerdictTable(POLICY), [False, True] + [False] * 12)
    assert found[1:] == [GpuState.UNKNOWN] * 11 + [GpuState.HEALTHY] * 2


def test_what_it_was_before_waits_while_it_is_out_of_sight() -> None:
    scene, table = Scene(gpus=1), VerdictTable(POLICY)
    assert states(scene, table, [False], weight=0.7) == [GpuState.FAILING]
    assert set(states(scene, table, [True] * 100)) == {GpuState.UNKNOWN}
    found = states(scene, table, [False] * 25)
    assert found == [GpuState.UNKNOWN] * 10 + [GpuState.HEALTHY] * 15


def test_a_fact_stands_whether_or_not_the_gpu_can_be_seen() -> None:
    scene, table = Scene(gpus=1), VerdictTable(POLICY)
    lost = {"GPU-0000-0": [signal(1.0, Tier.FACT)]}
    assert table.step(scene.tick(), lost)[0].state is GpuState.FAILED
    scene.blind((0, 0))
    assert {table.step(scene.tick(), lost)[0].state for _ in range(20)} == {GpuState.FAILED}
    assert table.step(scene.tick(), {})[0].state is GpuState.UNKNOWN


@pytest.mark.parametrize(
    ("blind", "reason"),
    [
        pytest.param({"gpu_frozen": 0}, "its feed is frozen: samples arrive and never change", id="a frozen feed"),
        pytest.param({"gpu_stale": 0}, "no fresh sample", id="no sample"),
        pytest.param({}, "only 30 % of its signals are fresh", id="most signals are gone"),
    ],
)
def test_an_unknown_verdict_says_why(blind: dict[str, int], reason: str) -> None:
    scene, table = Scene(gpus=1), VerdictTable(POLICY)
    for name, row in blind.items():
        scene.flag(name, row)
    scene.share = {} if blind else {0: 0.3}
    assert table.step(scene.tick(), {})[0].reason == reason
    scene.flags, scene.share = {}, {}
    table.step(scene.tick(), {})
    scene.flag("gpu_stale", 0)
    table.step(scene.tick(), {})
    scene.flags = {}
    assert table.step(scene.tick(), {})[0].reason == "its samples have come back only a short while ago"


def test_a_verdict_names_its_strongest_signal_and_remembers_that_it_was_worse() -> None:
    scene, table = Scene(gpus=1), VerdictTable(POLICY)
    (worse,) = table.step(scene.tick(), {"GPU-0000-0": [signal(0.4, rule="a"), signal(0.5, rule="b")]})
    (after,) = table.step(scene.tick(), {})
    (well,) = table.step(scene.tick(after_s=300), {})
    assert (worse.reason, worse.state) == ("b", GpuState.FAILING)
    assert (after.reason, after.state) == ("nothing speaks against it any more", GpuState.FAILING)
    assert (well.reason, well.state) == ("nothing speaks against it", GpuState.HEALTHY)


def test_a_gpu_that_moves_to_another_node_is_told_of_there() -> None:
    scene, table = Scene(nodes=2, gpus=1), VerdictTable(POLICY)
    table.step(scene.tick(), {})
    scene.refs[0] = scene.refs[0].__class__(scene.refs[0].uuid, scene.node(1))
    assert table.step(scene.tick(), {})[0].node == scene.node(1)
