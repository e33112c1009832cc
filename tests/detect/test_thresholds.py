"""Each measure of a threshold rule: when it fires, when it is over, and what it makes of gaps and absences.

Rules of their own make the point; that the shipped ones fire is tested beside this file.
"""

import math

import pytest

from detectors.findings import Signal
from detectors.thresholds import ThresholdWatch, model_of
from rules.metric_schema import ModelSpec
from rules.schema import RuleBook, ThresholdRule
from rules.vocabulary import CauseClass, Tier
from tests.detect.scene import H100, Scene

NAN = math.nan


def rule(**fields) -> ThresholdRule:
    told = {"summary": "s", "cause_class": CauseClass.THERMAL, "tier": Tier.TREND, "source": "a test"} | fields
    return ThresholdRule(**told)


def watch(rules: RuleBook, **fields) -> ThresholdWatch:
    return ThresholdWatch(rules.model_copy(update={"thresholds": {"r": rule(**fields)}}))


def on(signals: list[Signal]) -> list[str]:
    return [signal.gpu or signal.node for signal in signals]


def over_time(watching: ThresholdWatch, scene: Scene, signal: str, values: list[float]) -> str:
    """One character a tick: # where the first GPU's rule is on, . where it is off."""
    found = ""
    for value in values:
        scene.set(signal, value, (0, 0))
        found += "#" if scene.uuid(0, 0) in on(watching.look(scene.tick())) else "."
    return found


LEVEL = {"signal": "gpu_temp", "above": 85, "for": 60, "clear": 80, "clear_for": 60}


@pytest.mark.parametrize(
    ("fields", "values", "expected"),
    [
        pytest.param(LEVEL, [90, 90, 90, 90], "..##", id="a level counts once it has lasted"),
        pytest.param(LEVEL, [90, 90, 84, 90, 90, 90], ".....#", id="a break begins the time anew"),
        pytest.param(LEVEL, [90, 90, 90, 82, 82, 82, 82], "..#####", id="between the limits it stays"),
        pytest.param(LEVEL, [90, 90, 90, 79, 79, 79], "..###.", id="it ends once the way back has lasted"),
        pytest.param(LEVEL, [90, 90, 90, 79, NAN, 79, 79, 79], "..#####.", id="nothing known is no way back"),
        pytest.param(LEVEL, [90, 90, 90, *[NAN] * 9], "..##########", id="absence ends nothing"),
        pytest.param(LEVEL, [90, NAN, 90, 90, 90], "....#", id="absence breaks the time it has to last"),
        pytest.param(LEVEL, [*[NAN] * 9], ".........", id="absence fires nothing"),
        pytest.param(LEVEL | {"for": 0}, [90], "#", id="without a time, one sample will do"),
        pytest.param({"signal": "gpu_temp", "below": 10, "for": 60, "clear": 15, "clear_for": 0},
                     [5, 5, 5, 12, 15], "..##.", id="a floor works the other way round"),
        pytest.param({"signal": "gpu_temp", "above": 85, "clear_for": 0}, [86, 85, 86], "#.#",
                     id="without a way back, the limit is it"),
        pytest.param({"signal": "row_remap_failure", "measure": "bits", "bits": 1, "clear_for": 0},
                     [0, 1, 2, 3, NAN, 0], ".#.##.", id="a bit is set or not"),
    ],
)  # fmt: skip
def test_levels_and_bits(rules: RuleBook, fields: dict, values: list[float], expected: str) -> None:
    scene = Scene()
    scene.set(fields["signal"], 0)
    assert over_time(watch(rules, **fields), scene, fields["signal"], values) == expected


@pytest.mark.parametrize(
    ("hold", "which", "extreme", "fires"),
    [
        pytest.param(0, "high", 90, True, id="a peak between two looks fires a rule without a time"),
        pytest.param(30, "low", 70, False, id="a dip between two looks breaks a time"),
    ],
)
def test_nothing_between_two_looks_is_missed(
    rules: RuleBook, hold: int, which: str, extreme: float, fires: bool
) -> None:
    scene = Scene().set("gpu_temp", 80 if hold == 0 else 90)
    watching = watch(rules, **(LEVEL | {"for": hold}))
    watching.look(scene.tick())
    signals = watching.look(scene.dips(which, "gpu_temp", extreme, (0, 0)).tick())
    assert (scene.uuid(0, 0) in on(signals)) is fires


def test_a_floor_sees_the_lowest_sample_without_a_time(rules: RuleBook) -> None:
    scene = Scene().set("gpu_temp", 20).dips("low", "gpu_temp", 5, (0, 0))
    assert on(watch(rules, signal="gpu_temp", below=10).look(scene.tick())) == [scene.uuid(0, 0)]


# ---------------------------------------------------------------------------------------------------------- counters

GROWS = {"signal": "pcie_replay", "measure": "increase", "window": 300, "above": 10, "clear": 4, "clear_for": 60}


def grow(watching: ThresholdWatch, scene: Scene, amounts: list[float | None], signal: str = "pcie_replay") -> str:
    """One character a tick; None: nothing is known in that tick."""
    found = ""
    for amount in amounts:
        if amount is None:
            scene.set(signal, NAN, (0, 0))
        else:
            scene.grows(signal, amount, (0, 0))
        found += "#" if on(watching.look(scene.tick())) else "."
    return found


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param([4, 4, 4, 0], "..##", id="what it grew by within the window counts"),
        pytest.param([11, *[0] * 13], "############..", id="it ends once that is long enough ago"),
        pytest.param([11, *[None] * 30], "#" * 31, id="a window that runs empty unseen ends nothing"),
        pytest.param([0] * 5, ".....", id="a level says nothing"),
    ],
)
def test_increases(rules: RuleBook, amounts: list[float | None], expected: str) -> None:
    scene = Scene().set("pcie_replay", 1_000_000)
    assert grow(watch(rules, **GROWS), scene, amounts) == expected


def test_a_rate_is_the_increase_a_second(rules: RuleBook) -> None:
    watching = watch(rules, **(GROWS | {"measure": "rate", "above": 1, "clear": 0.5}))
    scene = Scene().set("pcie_replay", 0)
    assert grow(watching, scene, [200, 90, 20]) == "..#"
    (signal,) = watching.look(scene.tick())
    assert (signal.value, signal.limit) == (pytest.approx(310 / 300, abs=1e-3), 1.0)
    assert signal.unit.endswith("/s")


def test_growth_of_a_lifetime_level_counts_and_a_drop_does_not(rules: RuleBook) -> None:
    fields = {"signal": "remapped_rows_correctable", "measure": "growth", "window": "24h", "above": 3, "clear_for": 0}
    scene = Scene().set("remapped_rows_correctable", 254)
    watching = watch(rules, **fields)
    assert on(watching.look(scene.tick())) == []
    scene.set("remapped_rows_correctable", 0, (0, 0))
    assert on(watching.look(scene.tick())) == []
    assert grow(watching, scene, [2, 2], "remapped_rows_correctable") == ".#"


def test_a_counter_that_was_reset_goes_on_from_there(rules: RuleBook) -> None:
    scene = Scene().set("pcie_replay", 90)
    watching = watch(rules, **GROWS)
    assert grow(watching, scene, [8]) == "."
    scene.set("pcie_replay", 0)  # the driver was loaded anew: the frame says what it grew by since
    assert grow(watching, scene, [3]) == "#"


# ------------------------------------------------------------------------------------------------------ share of time

SHARE = {
    "signal": "clock_event_reasons", "measure": "bits_share", "bits": 0x40,
    "window": 600, "above": 0.2, "clear": 0.05, "clear_for": 60,
}  # fmt: skip


def test_a_share_of_time_needs_a_quarter_of_its_window(rules: RuleBook) -> None:
    scene = Scene().set("clock_event_reasons", 0)
    assert over_time(watch(rules, **SHARE), scene, "clock_event_reasons", [0x40] * 6) == "....##"


def test_a_share_of_time_is_that_of_the_known_time(rules: RuleBook) -> None:
    scene = Scene().set("clock_event_reasons", 0)
    watching = watch(rules, **SHARE)
    assert over_time(watching, scene, "clock_event_reasons", [0, 0, 0, 0, 0x41, 0x48, 0x44]) == ".....##"
    (signal,) = watching.look(scene.tick())
    assert (signal.value, signal.unit) == (0.5, "share of time")


def test_one_sample_after_a_gap_decides_no_share(rules: RuleBook) -> None:
    scene = Scene().set("clock_event_reasons", 0x40)
    assert on(watch(rules, **SHARE).look(scene.tick(after_s=7200))) == []


def test_a_share_counts_only_where_its_condition_holds(rules: RuleBook) -> None:
    only_if = ({"signal": "gpu_util_percent", "above": 50},)
    scene = Scene().set("clock_event_reasons", 0x40).set("gpu_util_percent", 0)
    watching = watch(rules, **SHARE, only_if=only_if)
    for _ in range(30):
        assert on(watching.look(scene.tick())) == []
    scene.set("gpu_util_percent", 99, (0, 0))
    assert [on(watching.look(scene.tick())) for _ in range(5)] == [[]] * 4 + [[scene.uuid(0, 0)]]


# ------------------------------------------------------------------------------------------------------------- limits


def test_a_limit_may_be_the_models_the_devices_or_the_sites(rules: RuleBook) -> None:
    scene = Scene().set("power_watts", 500)
    watching = watch(rules, signal="power_watts", above=400, limits_by_model={"*H100*": 600, "*H100 80GB*": 450})
    assert {signal.limit for signal in watching.look(scene.tick())} == {450.0}
    device = {"signal": "power_limit_watts", "offset": 40}
    watching = watch(rules, signal="power_watts", above=400, device_limit=device)
    scene.set("power_limit_watts", 300, (0, 0)).set("power_limit_watts", 700, (0, 1))
    limits = {signal.gpu: signal.limit for signal in watching.look(scene.tick())}
    assert (limits[scene.uuid(0, 0)], limits[scene.uuid(0, 2)]) == (340.0, 400.0)
    assert scene.uuid(0, 1) not in limits


@pytest.mark.parametrize(
    ("fields", "device", "values", "expected"),
    [
        pytest.param({"above": 85, "clear": 80}, 70, [71, 75, 69], "##.", id="below the ceiling's way back"),
        pytest.param({"below": 10, "clear": 15}, 30, [25, 20, 31], "##.", id="above the floor's way back"),
    ],
)
def test_a_devices_own_limit_moves_the_way_back_with_it(
    rules: RuleBook, fields: dict, device: float, values: list[float], expected: str
) -> None:
    scene = Scene().set("gpu_temp", 50).set("slowdown_temp", device, (0, 0))
    watching = watch(rules, signal="gpu_temp", device_limit={"signal": "slowdown_temp"}, clear_for=0, **fields)
    assert over_time(watching, scene, "gpu_temp", values) == expected


def test_between_a_floors_way_back_and_the_devices_own_limit_nothing_has_improved(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("gpu_temp", 20).set("slowdown_temp", 30)
    device = {"signal": "slowdown_temp"}
    watching = watch(rules, signal="gpu_temp", below=10, clear=15, device_limit=device, clear_for=0, **{"for": 30})
    watching.look(scene.tick())
    assert len(watching.look(scene.tick())) == 1
    assert len(watching.look(scene.dips("high", "gpu_temp", 35, (0, 0)).tick())) == 1


def test_a_model_has_what_its_pack_says_and_unknown_models_have_nothing(rules: RuleBook) -> None:
    fields = {"signal": "pcie_link_width", "measure": "below_model", "model_fact": "pcie_width", "clear_for": 0}
    known = Scene().set("pcie_link_width", 16).set("pcie_link_width", 8, (0, 0))
    assert on(watch(rules, **fields).look(known.tick())) == [known.uuid(0, 0)]
    unknown = Scene(model="Some new board").set("pcie_link_width", 8)
    assert watch(rules, **fields).look(unknown.tick()) == []


def test_a_rule_is_for_its_models_only(rules: RuleBook) -> None:
    for fields, fires in (({"models": ("*A100*",)}, False), ({"not_models": ("*H100*",)}, False), ({}, True)):
        watching = watch(rules, signal="gpu_temp", above=50, **fields)
        assert bool(watching.look(Scene().set("gpu_temp", 60).tick())) is fires


def test_a_model_name_that_arrives_late_is_taken_up(rules: RuleBook) -> None:
    scene = Scene(model="").set("gpu_temp", 60)
    watching = watch(rules, signal="gpu_temp", above=50, models=("*H100*",))
    assert watching.look(scene.tick()) == []
    scene.refs[0] = scene.refs[0].__class__(scene.refs[0].uuid, scene.node(0), model=H100)
    assert on(watching.look(scene.tick())) == [scene.uuid(0, 0)]


def test_the_longest_pattern_tells_the_model() -> None:
    def spec(*match: str) -> ModelSpec:
        return ModelSpec(match=match, nvlinks=0, source="a test")

    models = {"any": spec("*A100*"), "one": spec("*A100-SXM4*")}
    assert model_of(models, "NVIDIA A100-SXM4-80GB") is models["one"]
    assert model_of(models, "NVIDIA A100-PCIE") is models["any"]
    assert model_of(models, "B200") is None


# ----------------------------------------------------------------------------------------------------- side conditions


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        pytest.param({"above": 50}, 51, True, id="above"),
        pytest.param({"above": 50}, 50, False, id="not above"),
        pytest.param({"below": 50}, 49, True, id="below"),
        pytest.param({"below": 50}, 50, False, id="not below"),
        pytest.param({"bits_any": 6}, 4, True, id="one of the bits"),
        pytest.param({"bits_any": 6}, 9, False, id="none of the bits"),
        pytest.param({"bits_none": 6}, 9, True, id="free of the bits"),
        pytest.param({"bits_none": 6}, 10, False, id="not free of the bits"),
        pytest.param({"bits_none": 6}, NAN, False, id="what is not known does not hold"),
        pytest.param({"above": 50}, NAN, False, id="nor does it for a level"),
    ],
)
def test_a_rule_is_looked_at_where_its_conditions_are_known_to_hold(
    rules: RuleBook, condition: dict, value: float, holds: bool
) -> None:
    scene = Scene().set("gpu_temp", 90).set("gpu_util_percent", value)
    watching = watch(rules, signal="gpu_temp", above=85, only_if=({"signal": "gpu_util_percent"} | condition,))
    assert bool(watching.look(scene.tick())) is holds


@pytest.mark.parametrize(
    ("otherwise", "load", "expected"),
    [
        pytest.param("keep", 0, "####", id="keep: nothing was seen to improve"),
        pytest.param("clear", 0, "#...", id="clear: the matter is over"),
        pytest.param("clear", NAN, "####", id="clear: unless nobody knows whether it is"),
    ],
)
def test_what_happens_once_the_condition_no_longer_holds(
    rules: RuleBook, otherwise: str, load: float, expected: str
) -> None:
    scene = Scene(gpus=1).set("gpu_util_percent", 99)
    only_if = ({"signal": "gpu_util_percent", "above": 50},)
    watching = watch(rules, signal="gpu_temp", above=85, clear_for=0, only_if=only_if, otherwise=otherwise)
    found = over_time(watching, scene, "gpu_temp", [90])
    scene.set("gpu_util_percent", load)
    assert found + over_time(watching, scene, "gpu_temp", [90, 90, 90]) == expected


def test_a_value_that_falls_while_the_condition_does_not_hold_is_no_improvement(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("gpu_util_percent", 99)
    only_if = ({"signal": "gpu_util_percent", "above": 50},)
    watching = watch(rules, signal="gpu_temp", above=85, clear_for=0, only_if=only_if)
    found = over_time(watching, scene, "gpu_temp", [90])
    scene.set("gpu_util_percent", 0)
    found += over_time(watching, scene, "gpu_temp", [40, 40])
    scene.set("gpu_util_percent", 99)
    assert found + over_time(watching, scene, "gpu_temp", [40]) == "###."


def test_a_rule_may_ask_for_a_job_that_spans_gpus_of_the_node(rules: RuleBook) -> None:
    scene = Scene(nodes=2, gpus=2).set("gpu_temp", 90)
    scene.run_job("wide", (0, 0), (0, 1)).run_job("far", (1, 0))
    watching = watch(rules, signal="gpu_temp", above=85, job_gpus_min=2, otherwise="clear", clear_for=0)
    assert on(watching.look(scene.tick())) == [scene.uuid(0, 0), scene.uuid(0, 1)]
    scene.run_job("", (0, 0)).blind((0, 0))
    assert on(watching.look(scene.tick())) == [scene.uuid(0, 0)], "unseen, it tells nothing of its work"
    scene.blind()
    assert on(watching.look(scene.tick())) == []


def test_a_signal_that_waits_to_clear_shows_what_spoke_for_it_and_not_the_present_value(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("gpu_temp", 91)
    watching = watch(rules, signal="gpu_temp", above=85, clear=80, clear_for=300)
    watching.look(scene.tick())
    (signal,) = watching.look(scene.set("gpu_temp", 70).tick())
    assert (signal.value, signal.limit) == (91.0, 85.0)
