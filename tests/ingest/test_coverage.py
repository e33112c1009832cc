"""What is not known, and in which way: absent, stale, frozen, thinned out, or a target that does not answer."""

import numpy as np
import pytest

from daemon.ingest.targets import TargetHealth, Targets
from detectors.findings import GpuState
from tests.ingest.builders import (
    ENERGY,
    POWER,
    STEP_S,
    T0,
    TEMP,
    UTIL,
    XID,
    Labels,
    Rig,
    batch,
    gpu,
    healthy,
    host,
    up,
)

# ------------------------------------------------------------------------------------------------- GPUs


def test_the_first_tick_of_a_healthy_node_lacks_nothing(rig: Rig) -> None:
    coverage = rig.scrape(healthy()).coverage
    assert coverage.signal_share.tolist() == [1.0] * 8
    assert coverage.sample_share.tolist() == [1.0] * 8
    for flags in (coverage.gpu_missing, coverage.gpu_stale, coverage.gpu_frozen, coverage.exporter_down):
        assert not flags.any()
    assert not (coverage.no_gpu_series | coverage.node_stale).any()
    assert coverage.lost_signals == ()


def test_a_tick_about_which_nothing_has_arrived_is_empty_and_whole(rig: Rig) -> None:
    snapshot = rig.tick(T0)
    assert (snapshot.gpus, snapshot.nodes, snapshot.gpu.value.shape) == ((), (), (0, 0))
    assert rig.engine.step(snapshot).signals == ()


def test_a_gpu_whose_series_stop_is_missing_and_its_siblings_are_not(rig: Rig) -> None:
    for step in range(3):
        rig.scrape(healthy(8, step=step))
    for step in range(3, 8):
        coverage = rig.scrape([one for one in healthy(8, step=step) if one[0]["gpu"] != "5"]).coverage
    assert np.flatnonzero(coverage.gpu_missing).tolist() == [5]
    assert np.flatnonzero(coverage.gpu_stale).tolist() == [5]
    assert coverage.signal_share.tolist() == [1.0] * 5 + [0.0] + [1.0] * 2


def test_when_all_of_a_node_stops_no_single_gpu_is_missing(rig: Rig) -> None:
    rig.scrape(healthy())
    coverage = rig.tick(T0 + 300).coverage
    assert coverage.gpu_stale.all()
    assert not coverage.gpu_missing.any()
    assert coverage.node_stale.tolist() == [True]


def test_siblings_tell_what_a_gpu_that_was_never_whole_should_have(rig: Rig) -> None:
    series = [one for one in healthy(8) if not (one[0]["gpu"] == "2" and one[0]["__name__"] == POWER)]
    coverage = rig.scrape(series).coverage
    assert coverage.signal_share[2] == pytest.approx(7 / 8)
    assert coverage.signal_share[3] == 1.0


def test_what_only_one_gpu_of_a_node_has_is_not_expected_of_the_others(rig: Rig) -> None:
    coverage = rig.scrape([*healthy(8), (gpu("DCGM_FI_DEV_MEMORY_TEMP", 3), 70)]).coverage
    assert coverage.signal_share.tolist() == [1.0] * 8


def test_a_signal_that_a_whole_node_loses_is_named_once_and_with_its_node(rig: Rig) -> None:
    rig.scrape([*healthy(2, "n1"), *healthy(2, "n2")], up_of=("n1", "n2"))
    for step in range(5):
        series = [*healthy(2, "n1", step), *healthy(2, "n2", step, without=[XID])]
        snapshot = rig.scrape(series, up_of=("n1", "n2"))
    (lost,) = snapshot.coverage.lost_signals
    assert (snapshot.nodes[int(lost[0])].name, lost[1]) == ("n2", "xid_last")


def _frozen_scrape(rig: Rig, values: dict[str, float]) -> bool:
    return bool(rig.scrape([(gpu(metric), value) for metric, value in values.items()]).coverage.gpu_frozen[0])


@pytest.mark.parametrize(
    ("values", "frozen"),
    [
        pytest.param({ENERGY: 1e11, POWER: 113.611, TEMP: 40, UTIL: 0}, True, id="everything stands, energy too"),
        pytest.param({ENERGY: 1e11, POWER: 0.0, TEMP: 40, UTIL: 0}, False, id="a GPU that draws nothing"),
        pytest.param({POWER: 113.611, TEMP: 40, UTIL: 0}, True, id="no energy counter, three gauges stand"),
        pytest.param({POWER: 113.611, TEMP: 40}, False, id="no energy counter, too few gauges to tell"),
        pytest.param({ENERGY: 1e11, TEMP: 40, UTIL: 0}, False, id="power is unknown"),
    ],
)
def test_a_feed_is_frozen_when_what_must_move_stands(rig: Rig, values: dict[str, float], frozen: bool) -> None:
    seen = [_frozen_scrape(rig, values) for _ in range(23)]
    assert not any(seen[:20])
    assert seen[-1] is frozen


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param(ENERGY, id="energy moves"),
        pytest.param(POWER, id="power moves"),
        pytest.param(TEMP, id="heat moves"),
    ],
)
def test_a_feed_in_which_one_thing_moves_is_not_frozen(rig: Rig, metric: str) -> None:
    values = {ENERGY: 1e11, POWER: 113.611, TEMP: 40, UTIL: 0}
    for step in range(25):
        assert not _frozen_scrape(rig, values | {metric: values[metric] + step})


def test_an_amd_gpu_with_a_clock_for_each_die_can_be_seen_to_freeze(rig: Rig) -> None:
    labels = {"serial_number": "s1", "gpu_id": "0", "hostname": "n1", "instance": "n1:5000", "job": "amd"}
    clocks = [
        ({"__name__": "gpu_clock", "clock_type": "system", "clock_index": str(die)} | labels, 132) for die in range(4)
    ]
    rest = {"gpu_package_power": 140, "gpu_junction_temperature": 45, "gpu_energy_consumed": 9e12}
    series = [*clocks, *(({"__name__": metric} | labels, value) for metric, value in rest.items())]
    frozen = [bool(rig.scrape(series).coverage.gpu_frozen[0]) for _ in range(23)]
    assert frozen[-1]
    assert not any(frozen[:20])


def test_a_gpu_that_delivers_fewer_samples_than_its_siblings_is_seen(rig: Rig) -> None:
    at = T0
    for _ in range(60):
        points = [(at + 2.0 * n, 60 + n % 3) for n in range(15)]
        rig.feed((gpu(TEMP, 0), points), (gpu(TEMP, 1), points[::3]))
        at += STEP_S
        coverage = rig.tick(at).coverage
    assert coverage.sample_share[0] == 1.0
    assert 0.3 < coverage.sample_share[1] < 0.6


# ------------------------------------------------------------------------------------------------- targets


def health(*samples: tuple[Labels, float, float], rows: dict[str, int] | None = None) -> TargetHealth:
    found = {"n1": 0, "n2": 1} if rows is None else rows
    targets = TargetHealth(lambda labels: found.get(labels["instance"].split(":")[0]))
    for labels, at, value in samples:
        targets.absorb(batch((labels, [(at, value)])))
    return targets


def test_a_target_stands_for_the_node_whose_gpus_it_showed_whatever_it_is_called() -> None:
    odd = {"__name__": "up", "instance": "10.9.9.9:1234", "job": "weird"}
    targets = health((odd, T0, 0))
    assert targets.state(T0, 150) == Targets(frozenset(), frozenset())
    targets.proves(gpu(TEMP, instance="10.9.9.9:1234", job="weird"), 1)
    assert targets.state(T0, 150) == Targets(frozenset(), frozenset({1}))


@pytest.mark.parametrize(
    ("job", "guessed"),
    [
        pytest.param("nvidia-dcgm-exporter", True, id="dcgm-exporter"),
        pytest.param("amd-metrics", True, id="AMD's exporter"),
        pytest.param("nvidia_gpu_exporter", True, id="another GPU exporter"),
        pytest.param("node-exporter", False, id="node-exporter"),
        pytest.param("gpu-node-exporter", False, id="node-exporter of a GPU pool"),
        pytest.param("nvidia-node-status-exporter", False, id="the operator's status exporter"),
        pytest.param("gpu-operator", False, id="the operator itself, on a machine without GPUs"),
        pytest.param("kubelet", False, id="kubelet"),
    ],
)
def test_a_node_that_never_showed_a_gpu_is_judged_by_a_target_that_is_called_like_a_gpu_exporter(
    job: str, guessed: bool
) -> None:
    assert health((up("n1", job), T0, 1)).state(T0, 150).up == (frozenset({0}) if guessed else frozenset())


def test_a_guess_says_nothing_about_a_node_whose_exporter_is_known() -> None:
    targets = health((up("n1", "weird"), T0, 0), (up("n1", "gpu-metrics-exporter", instance="n1:9999"), T0, 1))
    targets.proves(gpu(TEMP, job="weird"), 0)
    assert targets.state(T0, 150) == Targets(frozenset(), frozenset({0}))


def test_one_of_two_that_scrape_reaching_the_exporter_is_enough() -> None:
    sees, blind = (up("n1", prometheus_replica=name) for name in "ab")
    assert health((sees, T0, 1), (blind, T0 + 5, 0)).state(T0 + 6, 150) == Targets(frozenset({0}), frozenset())


def test_the_newest_sample_counts_in_whatever_order_they_come() -> None:
    targets = health()
    targets.absorb(batch((up("n1"), [(T0 + 60, 0), (T0, 1), (T0 + 30, 1)])))
    targets.absorb(batch((up("n1"), [(T0 + 30, 1)])))
    assert targets.state(T0 + 61, 150).down == {0}


def test_a_target_that_is_scraped_no_more_says_nothing() -> None:
    assert health((up("n1"), T0, 0)).state(T0 + 151, 150) == Targets(frozenset(), frozenset())


def test_an_address_that_another_nodes_exporter_has_now_says_nothing_about_the_old_one() -> None:
    targets = health((up("x", instance="10.1.0.7:9400"), T0, 1))
    for pod, row in (("dcgm-a", 0), ("dcgm-b", 1)):
        targets.proves(gpu(TEMP, instance="10.1.0.7:9400", pod=pod), row)
    assert targets.state(T0, 150).up == {1}


def test_labels_of_a_target_that_make_no_sense_are_counted(rig: Rig) -> None:
    good = batch((up(), [(T0, 1)]))
    broken = type(good)(**{name: getattr(good, name) for name in good.__slots__} | {"labels": [b"[]"]})
    rig.assembler.targets(broken)
    assert rig.assembler.counts["bad_labels"] == 1


@pytest.mark.parametrize(
    ("up_value", "with_gpus", "rule"),
    [
        pytest.param(0, False, "exporter_down", id="FC076 the exporter does not answer"),
        pytest.param(1, False, "no_gpu_series", id="FC078 the exporter answers and has no GPU"),
        pytest.param(1, True, None, id="all is well"),
    ],
)
def test_a_node_whose_exporter_fails_is_unknown_and_loses_no_gpu(
    rig: Rig, up_value: float, with_gpus: bool, rule: str | None
) -> None:
    rules = set()
    for step in range(30):
        alive = with_gpus or step < 3
        rig.feed(*((labels, [(rig.now, value)]) for labels, value in (healthy(8, step=step) if alive else [])))
        rig.feed((host("node_load1"), [(rig.now, 1 + step)]), query="node")
        rig.assembler.targets(batch((up(), [(rig.now, up_value if step >= 3 else 1)])))
        detection = rig.engine.step(rig.tick())
        rules |= {signal.rule for signal in detection.signals}
        rig.now += STEP_S
    assert rules == ({rule} if rule else set())
    assert {verdict.state for verdict in detection.verdicts} == {GpuState.UNKNOWN if rule else GpuState.HEALTHY}


def test_a_node_without_any_gpu_series_from_the_start_is_a_telemetry_fault(rig: Rig) -> None:
    """FC078: the host engine began before the driver's libraries; the node has eight GPUs and shows none."""
    for _ in range(20):
        _, detection = rig.judge([(host("node_load1", "n1"), 3)])
    assert {signal.rule for signal in detection.signals} == {"no_gpu_series"}
    assert detection.verdicts == ()


def test_everything_that_was_dropped_is_counted_by_reason(rig: Rig) -> None:
    rig.feed(
        (gpu(TEMP, 0), [(T0, "NaN"), (T0 + 1, "warm"), (T0 + 2, 999)]),
        (gpu(XID, 0), [(T0, 31.5), (T0 + 1, -1)]),
        (gpu(POWER, 0, UUID=""), [(T0, 1)]),
        (gpu(ENERGY, 0), [(T0, 9.223372036854776e18)]),
    )
    counts = dict(rig.tick().coverage.counts)
    expected = {
        "not_finite": 2,
        "unreadable": 1,
        "impossible": 2,
        "bad_codes": 2,
        "refused_no_gpu_identity": 1,
        "blank": 1,
    }
    assert {name: counts.get(name) for name in expected} == expected
