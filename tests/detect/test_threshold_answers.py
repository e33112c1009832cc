"""Threshold rules that ask PromQL themselves, and what every threshold signal says about itself."""

import pytest

from detectors.findings import Signal
from detectors.snapshot import ExprResult, SourceState
from detectors.thresholds import ThresholdWatch, look_at
from rules.schema import RuleBook, ThresholdRule
from rules.vocabulary import CauseClass, SignalScope, Tier
from tests.detect.scene import Scene


def rule(**fields) -> ThresholdRule:
    told = {"summary": "s", "cause_class": CauseClass.THERMAL, "tier": Tier.TREND, "source": "a test"} | fields
    return ThresholdRule(**told)


def watch(rules: RuleBook, **fields) -> ThresholdWatch:
    return ThresholdWatch(rules.model_copy(update={"thresholds": {"r": rule(**fields)}}))


def on(signals: list[Signal]) -> list[str]:
    return [signal.gpu or signal.node for signal in signals]


# -------------------------------------------------------------------------------------------------------- expressions


def test_an_expression_fires_for_what_it_names_and_clears_for_what_it_leaves_out(rules: RuleBook) -> None:
    scene = Scene(gpus=2)
    watching = watch(rules, expr="up == 0", above=0.5, clear_for=60)
    found = []
    for results in ([0], [0], [], [], []):
        scene.answers(*[ExprResult("r", row, -1, 1.0) for row in results], ExprResult("other", 1, -1, 1.0))
        found.append(on(watching.look(scene.tick())))
    assert found == [[scene.uuid(0, 0)]] * 4 + [[]]


@pytest.mark.parametrize(
    "unseen",
    [
        pytest.param(lambda s: setattr(s, "source", SourceState(ok=False)), id="the question could not be asked"),
        pytest.param(lambda s: s.blind((0, 0)), id="the GPU cannot be seen"),
    ],
)
def test_an_expression_without_an_answer_is_no_all_clear(rules: RuleBook, unseen) -> None:
    scene = Scene(gpus=1).answers(ExprResult("r", 0, -1, 1.0))
    watching = watch(rules, expr="up == 0", above=0.5, clear_for=0)
    assert on(watching.look(scene.tick())) == [scene.uuid(0, 0)]
    unseen(scene)
    assert on(watching.look(scene.tick())) == [scene.uuid(0, 0)]


def test_an_expression_may_be_about_nodes_and_have_a_floor(rules: RuleBook) -> None:
    scene = Scene(nodes=2).answers(
        ExprResult("r", -1, 1, 0.1), ExprResult("r", 3, -1, 0.1), ExprResult("r", -1, 9, 0.1)
    )
    watching = watch(rules, expr="node_free", below=0.5, scope=SignalScope.NODE)
    (signal,) = watching.look(scene.tick())
    assert (signal.node, signal.gpu, signal.value, signal.look) == (scene.node(1), "", 0.1, "node_free")


def test_an_expression_that_clears_shows_the_number_that_spoke_for_it(rules: RuleBook) -> None:
    scene = Scene(gpus=1).answers(ExprResult("r", 0, -1, 1.0))
    watching = watch(rules, expr="up == 0", above=0.5, clear_for=300)
    watching.look(scene.tick())
    assert [signal.value for signal in watching.look(scene.answers().tick())] == [1.0]


# ------------------------------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"above": 1}, 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0000-0"}', id="a level"),
        pytest.param({"above": 1, "measure": "increase", "window": 600},
                     'increase(DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0000-0"}[10m])', id="an increase"),
        pytest.param({"above": 1, "measure": "rate", "window": 10},
                     'rate(DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0000-0"}[1m])', id="a rate"),
        pytest.param({"above": 1, "measure": "growth", "window": 3600},
                     'delta(DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0000-0"}[60m])', id="a growth"),
    ],
)  # fmt: skip
def test_each_signal_says_where_to_look(rules: RuleBook, fields: dict, expected: str) -> None:
    assert look_at(rule(signal="gpu_temp", **fields), rules.metrics["gpu_temp"], Scene().refs[0], "n") == expected


def test_a_nodes_signal_is_looked_for_at_that_node_only(rules: RuleBook) -> None:
    scene = Scene(nodes=2).set("node_edac_uncorrectable", 5.0, node=1)
    watching = watch(rules, signal="node_edac_uncorrectable", above=1, scope=SignalScope.NODE)
    (signal,) = watching.look(scene.tick())
    assert (signal.node, signal.gpu) == (scene.node(1), "")
    assert signal.look.endswith('{instance=~"n001(:[0-9]+)?"}')
    assert look_at(rule(signal="of_nobody", above=1), None, None, "n1") == 'of_nobody{instance=~"n1(:[0-9]+)?"}'


def test_a_jobs_rule_names_the_job_that_it_saw(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("gpu_temp", 90).run_job("llama", (0, 0))
    (signal,) = watch(rules, signal="gpu_temp", above=85, cause_class=CauseClass.JOB).look(scene.tick())
    assert signal.jobs == ("team/llama",)


def test_a_disabled_rule_is_not_looked_at(rules: RuleBook) -> None:
    assert watch(rules, signal="gpu_temp", above=0, enabled=False).look(Scene().set("gpu_temp", 90).tick()) == []


def test_rows_may_grow_while_a_rule_is_on(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("gpu_temp", 90)
    watching = watch(rules, signal="gpu_temp", above=85)
    assert len(watching.look(scene.tick())) == 1
    scene = Scene(gpus=3, now=scene.now).set("gpu_temp", 90)
    assert len(watching.look(scene.tick())) == 3


def test_a_bit_rule_says_that_the_bit_is_set(rules: RuleBook) -> None:
    scene = Scene(gpus=1).set("row_remap_failure", 1)
    (signal,) = watch(rules, signal="row_remap_failure", measure="bits", bits=1).look(scene.tick())
    assert (signal.value, signal.limit, signal.unit) == (1.0, None, "set")
