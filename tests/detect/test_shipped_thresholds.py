"""Every shipped threshold and peer rule fires on a small example of what it is for, and is silent on its healthy twin.

A rule without an example fails here, so that none is shipped that nobody has seen firing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from detectors.peers import PeerWatch
from detectors.thresholds import ThresholdWatch
from rules.schema import RuleBook
from tests.detect.scene import H100, Scene

B200 = "NVIDIA B200"
V100 = "Tesla V100-SXM2-32GB"


@dataclass(frozen=True)
class Example:
    """What to show a rule: `levels` that stay and `growth` a tick, sick and healthy, with everything else `beside`."""

    sick: dict[str, float] = field(default_factory=dict)
    well: dict[str, float] = field(default_factory=dict)
    grows: dict[str, tuple[float, float]] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)
    ticks: int = 45
    model: str = H100
    node: bool = False
    job: bool = False


def level(signal: str, sick: float, well: float, **fields) -> Example:
    return Example({signal: sick}, {signal: well}, **fields)


def growth(signal: str, sick: float, well: float, **fields) -> Example:
    """Growth a tick of 30 s."""
    return Example(grows={signal: (sick, well)}, **fields)


LOAD = {"gpu_util_percent": 99.0, "gr_engine_active": 0.9, "fb_used_mib": 60000.0}

EXAMPLES = {
    # thermal, power
    "gpu_temp_high": level("gpu_temp", 88, 84),
    "thermal_margin_low": level("thermal_margin", 1, 6),
    "memory_temp_high": level("memory_temp", 97, 94),
    "hw_thermal_slowdown": level("clock_event_reasons", 0x44, 0x4),
    "sw_thermal_slowdown": level("clock_event_reasons", 0x24, 0x4),
    "thermal_violation": growth("thermal_violation_seconds", 5, 0.5),
    "hw_thermal_slowdown_time": growth("hw_thermal_slowdown_seconds", 5, 0.5),
    "hw_power_brake": level("clock_event_reasons", 0x84, 0x4),
    "hw_power_brake_time": growth("hw_power_brake_seconds", 5, 0.5),
    "power_over_limit": level("power_watts", 760, 720, beside={"power_limit_watts": 700}),
    "power_low_under_load": level("power_watts", 120, 600, beside=LOAD),
    # memory
    "row_remap_failure": level("row_remap_failure", 1, 0),
    "memory_unrepairable": level("memory_unrepairable", 1, 0),
    "row_remap_pending": level("row_remap_pending", 1, 0),
    "ecc_dbe": growth("ecc_dbe_volatile", 1, 0),
    "ecc_sbe_storm": growth("ecc_sbe_volatile", 100, 1),
    "remap_growth_correctable": growth("remapped_rows_correctable", 1, 0),
    "remap_growth_uncorrectable": growth("remapped_rows_uncorrectable", 1, 0),
    "remapped_rows_near_limit": level("remapped_rows_uncorrectable", 512, 300),
    "retired_pages_growth": growth("retired_pages_dbe", 1, 0, model=V100),
    "sram_threshold": level("sram_threshold_exceeded", 1, 0),
    # link
    "nvlink_crc_flit": growth("nvlink_crc_flit_errors", 50, 1),
    "nvlink_crc_data": growth("nvlink_crc_data_errors", 50, 1),
    "nvlink_replay": growth("nvlink_replay_errors", 2, 0),
    "nvlink_recovery": growth("nvlink_recovery_errors", 1, 0),
    "nvlink_recovery_failed": growth("nvlink_link_recovery_failures", 1, 0, model=B200),
    "nvlink_silent": level("nvlink_bandwidth", 0, 90000, beside=LOAD, job=True),
    "pcie_width_low": level("pcie_link_width", 8, 16, beside=LOAD),
    "pcie_gen_low": level("pcie_link_gen", 3, 5, beside=LOAD),
    "pcie_replay": growth("pcie_replay", 20, 1),
    # driver
    "recovery_action": level("recovery_action", 1, 0),
    "clocks_stuck_low": level("sm_clock_mhz", 345, 1755, beside=LOAD | {"clock_event_reasons": 0}),
    # nodes
    "edac_uncorrectable": growth("node_edac_uncorrectable", 1, 0, node=True),
    "edac_correctable_storm": growth("node_edac_correctable", 50, 1, node=True),
    "ib_link_flapping": growth("node_ib_link_downed", 1, 0, node=True),
    "ib_symbol_errors": growth("node_ib_symbol_errors", 10, 0.1, node=True),
    "ib_receive_errors": growth("node_ib_receive_errors", 20, 0.5, node=True),
    "ib_link_integrity": growth("node_ib_local_link_integrity", 1, 0, node=True),
    "net_receive_errors": growth("node_net_receive_errors", 100, 1, node=True),
    "nfs_queueing": growth("node_nfs_queue_seconds", 1500, 30, node=True),
    "nfs_major_timeouts": growth("node_nfs_major_timeouts", 1, 0, node=True),
}


def fires(rules: RuleBook, name: str, example: Example, *, sick: bool) -> bool:
    only = ThresholdWatch(rules.model_copy(update={"thresholds": {name: rules.thresholds[name]}}))
    scene = Scene(gpus=2, model=example.model)
    if example.job:
        scene.run_job("llama", (0, 0), (0, 1))
    node = 0 if example.node else None
    for signal, value in {**example.beside, **(example.sick if sick else example.well)}.items():
        scene.set(signal, value, node=node)
    for _ in range(example.ticks):
        for signal, amounts in example.grows.items():
            scene.grows(signal, amounts[0 if sick else 1], node=node)
        signals = only.look(scene.tick())
    return bool(signals)


def test_every_rule_that_is_on_has_an_example(rules: RuleBook) -> None:
    assert {name for name, rule in rules.thresholds.items() if rule.enabled} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_fires_on_what_it_is_for(rules: RuleBook, name: str) -> None:
    assert fires(rules, name, EXAMPLES[name], sick=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_is_silent_on_the_healthy_twin(rules: RuleBook, name: str) -> None:
    assert not fires(rules, name, EXAMPLES[name], sick=False)


# ------------------------------------------------------------------------------------------------------------- peers


def one_off(signal: str, others: float, odd: float) -> Callable[[bool], Scene]:
    """Eight nodes whose GPUs all work for one job; one GPU of them is odd."""

    def make(sick: bool) -> Scene:
        scene = Scene(nodes=8).set(signal, others).run_job("llama", *Scene(nodes=8).all_gpus())
        for number, place in enumerate(scene.all_gpus()):  # no two GPUs are quite alike
            scene.set(signal, others * (1 + 0.002 * (number % 5)), place)
        return scene.set(signal, odd if sick else others, (3, 4))

    return make


PEERS = {
    "hotter_than_twins": one_off("gpu_temp", 60, 76),
    "hotter_than_neighbours": one_off("gpu_temp", 60, 76),
    "power_below_job": one_off("power_watts", 640, 400),
    "clocks_below_job": one_off("sm_clock_mhz", 1755, 1200),
    "tensor_below_job": one_off("tensor_active", 0.45, 0.2),
    "nvlink_below_job": one_off("nvlink_bandwidth", 250_000, 80_000),
}


def test_every_peer_rule_that_is_on_has_an_example(rules: RuleBook) -> None:
    assert {name for name, rule in rules.peers.items() if rule.enabled} == set(PEERS)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("sick", [True, False], ids=["the odd one", "its healthy twin"])
def test_a_peer_rule_finds_the_odd_one_and_nobody_else(rules: RuleBook, name: str, sick: bool) -> None:
    watching = PeerWatch(rules.model_copy(update={"peers": {name: rules.peers[name]}}))
    scene = PEERS[name](sick)
    for _ in range(45):
        signals = watching.look(scene.tick())
    assert [signal.gpu for signal in signals] == ([scene.uuid(3, 4)] if sick else [])
