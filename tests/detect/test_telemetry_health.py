"""What can't be seen, said as signals of its own: with patience, with grace after a boot, and never about health."""

import pytest

from detectors.telemetry import TelemetryWatch
from rules.schema import RuleBook
from rules.vocabulary import CauseClass, FaultAction, Tier
from tests.detect.scene import Scene


@pytest.fixture
def watch(rules: RuleBook) -> TelemetryWatch:
    return TelemetryWatch(rules)


def after(watch: TelemetryWatch, scene: Scene, seconds: float) -> list[str]:
    """The rules that are on after so long."""
    signals = []
    for _ in range(round(seconds / scene.step_s)):
        signals = watch.look(scene.tick())
    return [signal.rule for signal in signals]


@pytest.mark.parametrize(
    ("flag", "too_short_s", "long_enough_s", "rule"),
    [
        pytest.param("exporter_down", 300, 60, "exporter_down", id="the exporter does not answer"),
        pytest.param("no_gpu_series", 300, 60, "no_gpu_series", id="the exporter answers and has no GPU"),
        pytest.param("node_stale", 300, 60, "node_silent", id="the node says nothing at all"),
        pytest.param("gpu_missing", 180, 60, "gpu_missing", id="one GPU is gone from its node"),
    ],
)
def test_each_absence_speaks_after_its_time(
    watch: TelemetryWatch, flag: str, too_short_s: float, long_enough_s: float, rule: str
) -> None:
    scene = Scene(nodes=2).flag(flag, 0)
    assert after(watch, scene, too_short_s) == []
    assert after(watch, scene, long_enough_s) == [rule]
    scene.flag(flag)
    assert after(watch, scene, 120) == []


def test_a_frozen_feed_speaks_at_once(watch: TelemetryWatch) -> None:
    assert after(watch, Scene().flag("gpu_frozen", 0), 30) == ["gpu_frozen"]


def test_a_gpu_that_loses_samples_is_a_suspicion_with_its_share(watch: TelemetryWatch) -> None:
    scene = Scene()
    scene.samples = {3: 0.4}
    assert after(watch, scene, 300) == []
    watch.look(scene.tick())
    (signal,) = watch.look(scene.tick())
    assert (signal.rule, signal.tier, signal.gpu) == ("samples_lost", Tier.SUSPICION, scene.uuid(0, 3))
    assert (signal.value, signal.unit) == (0.4, "share")


def test_metrics_that_a_node_no_longer_reports_are_named(watch: TelemetryWatch) -> None:
    scene = Scene(nodes=2)
    scene.lost = (("1", "gpu_temp"), ("1", "power_watts"), ("0", "gpu_temp"))
    scene.flag("exporter_down", 0)
    assert after(watch, scene, 870) == ["exporter_down"]
    signals = [watch.look(scene.tick()) for _ in range(3)][-1]
    (lost,) = (signal for signal in signals if signal.rule == "metrics_lost")
    assert (lost.node, lost.value) == (scene.node(1), 2.0)
    assert lost.text.endswith("gpu_temp, power_watts")
    scene.lost = ()
    assert "metrics_lost" not in after(watch, scene, 30)


def test_nothing_speaks_of_gpus_on_a_node_that_is_wholly_dark(watch: TelemetryWatch) -> None:
    scene = Scene().flag("exporter_down", 0).flag("gpu_missing", *range(8)).flag("gpu_frozen", 1)
    assert after(watch, scene, 600) == ["exporter_down"]


@pytest.mark.parametrize("flag", ["exporter_down", "no_gpu_series", "gpu_missing", "gpu_frozen"])
def test_after_a_boot_everything_has_a_quarter_of_an_hour(watch: TelemetryWatch, flag: str) -> None:
    scene = Scene(booted_h=0).flag(flag, 0)
    assert after(watch, scene, 870) == []


def test_a_node_without_gpus_may_be_silent(watch: TelemetryWatch) -> None:
    assert after(watch, Scene(nodes=1, cpu_nodes=1).flag("node_stale", 1), 3600) == []


def test_a_node_that_is_down_altogether_is_no_hung_gpu_stack(watch: TelemetryWatch) -> None:
    scene = Scene().flag("exporter_down", 0)
    assert after(watch, scene, 4 * 3600) == ["exporter_down"]
    scene.set("node_load1", 3.0, node=0)
    assert after(watch, scene, 3600) == ["exporter_down", "gpu_stack_unresponsive"]


def test_every_telemetry_signal_weighs_nothing_but_the_hung_stacks_on_no_gpu(watch: TelemetryWatch) -> None:
    scene = Scene(nodes=4).set("node_load1", 1.0, node=0)
    scene.flag("exporter_down", 0).flag("no_gpu_series", 1).flag("gpu_missing", 16).flag("gpu_frozen", 17)
    scene.flag("node_stale", 3)
    scene.samples = {18: 0.1}
    scene.lost = (("2", "gpu_temp"),)
    after(watch, scene, 3600)
    signals = {signal.rule: signal for signal in watch.look(scene.tick())}
    hung = signals.pop("gpu_stack_unresponsive")
    assert set(signals) == {
        "exporter_down", "no_gpu_series", "node_silent", "gpu_missing", "gpu_frozen", "samples_lost", "metrics_lost",
    }  # fmt: skip
    assert {(s.weight, s.cause_class) for s in signals.values()} == {(0.0, CauseClass.TELEMETRY)}
    assert (hung.gpu, hung.cause_class, hung.action) == ("", CauseClass.DRIVER, FaultAction.INSPECT)
    assert {s.look for s in signals.values() if not s.gpu and s.node == "n000"} == {'up{instance=~"n000(:[0-9]+)?"}'}
