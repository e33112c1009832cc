"""Healthy machines behave like the real ones: ranges, energy, idle and busy, and the measured A100 distributions."""

import numpy as np
import pytest

from fixtures.fleet import hosts
from fixtures.fleet.physics import read_curve
from fixtures.fleet.shape import A100, H100, Pool, build_shape
from fixtures.fleet.signals import COUNTERS, DECIMALS, NVLINK_FIELDS, Field
from fixtures.fleet.telemetry import Fleet
from fixtures.fleet.workload import Interruption, Run, WorkKind, interrupt_all

RANGES = [
    (Field.GPU_TEMP, 20, 78),
    (Field.MEMORY_TEMP, 22, 92),
    (Field.POWER, 50, 700),
    (Field.SM_CLOCK, 210, 1980),
    (Field.UTIL, 0, 100),
    (Field.MEM_COPY_UTIL, 0, 100),
    (Field.FB_USED, 0, 81920),
    (Field.FB_FREE, 0, 81920),
    (Field.XID, 0, 0),
    (Field.PCIE_WIDTH, 16, 16),
    (Field.GR_ACTIVE, 0, 1),
    (Field.TENSOR_ACTIVE, 0, 1),
    (Field.DRAM_ACTIVE, 0, 1),
    (Field.NVLINK_BANDWIDTH, 0, 900e3),
    (Field.REMAP_FAILURE, 0, 0),
    (Field.DBE, 0, 0),
]


@pytest.mark.parametrize(("signal", "low", "high"), [pytest.param(*row, id=row[0].name.lower()) for row in RANGES])
def test_a_healthy_gpu_stays_in_range(signal, low, high, healthy_block):
    values = healthy_block.gpu[signal]
    assert not np.isnan(values).any()
    assert low <= values.min() <= values.max() <= high


def test_healthy_gpus_set_no_alarming_clock_bits_and_no_thermal_time(healthy_block):
    bits = healthy_block.gpu[Field.CLOCK_REASONS].astype(np.int64)
    assert not (bits & 0xE8).any()
    assert np.ptp(healthy_block.gpu[Field.THERMAL_VIOLATION], axis=0).max() == 0


def test_counters_only_grow(healthy_block):
    for signal in COUNTERS:
        assert (np.diff(healthy_block.gpu[signal], axis=0) >= 0).all(), signal


def test_energy_is_the_integral_of_power(healthy_block):
    joules = np.diff(healthy_block.gpu[Field.ENERGY], axis=0) / 1000
    expected = healthy_block.gpu[Field.POWER][1:] * healthy_block.step_s
    np.testing.assert_allclose(joules, expected, atol=0.1)


def test_an_idle_gpu_says_so_and_a_busy_one_works(healthy_block):
    idle = (healthy_block.gpu[Field.CLOCK_REASONS].astype(np.int64) & 1) > 0
    assert idle.any()
    assert (healthy_block.gpu[Field.UTIL][idle] == 0).all()
    assert healthy_block.gpu[Field.POWER][idle].max() < 75
    assert (healthy_block.gpu[Field.FB_USED][idle] < 10).all()
    assert np.median(healthy_block.gpu[Field.POWER][~idle]) > 300


def test_values_have_the_exporters_digits(healthy_block):
    for signal, values in healthy_block.gpu.items():
        digits = DECIMALS.get(signal, 0)
        np.testing.assert_array_equal(values, np.round(values, digits), err_msg=str(signal))


def test_cards_without_nvlink_have_no_nvlink(day, day_block):
    bare = [gpu.index for gpu in day.shape.gpus if not day.shape.nodes[gpu.node].model.nvlinks]
    assert bare
    for signal in NVLINK_FIELDS & {Field.NVLINK_TX, Field.NVLINK_RX, Field.NVLINK_BANDWIDTH}:
        assert np.isnan(day_block.gpu[signal][:, bare]).all()


def test_a_busy_node_interrupts_about_three_times_as_often_as_an_idle_one(healthy_block):
    rate = np.diff(healthy_block.node[hosts.INTERRUPTS], axis=0) / healthy_block.step_s * 30
    running = healthy_block.node[hosts.RUNNING][1:] > 8
    assert 230_000 < np.median(rate[running]) < 350_000
    assert 70_000 < np.median(rate[~running]) < 100_000


def test_processors_account_for_all_their_time(healthy_block):
    total = sum(healthy_block.node[hosts.cpu("0", mode)] for mode in hosts.MODES)
    np.testing.assert_allclose(np.diff(total, axis=0), healthy_block.step_s, atol=0.02)


@pytest.mark.parametrize("cluster", ["kalos", "seren"])
def test_idle_and_busy_a100s_lie_where_the_measured_ones_do(cluster, shared):
    folder = shared / "data" / "acmetrace"
    power, heat = (read_curve(folder / f"gpu_{what}_{cluster}.csv") for what in ("power", "temp"))
    shape = build_shape(3, (Pool(A100, 4),), 0.0)
    block = Fleet(3, shape, (Run("job", "t", WorkKind.TRAIN, (0, 1), 0.0, 1e9),), (), 0.0, 12).whole()
    busy = block.gpu[Field.POWER][10:, :16], block.gpu[Field.GPU_TEMP][10:, :16]
    idle = block.gpu[Field.POWER][10:, 16:], block.gpu[Field.GPU_TEMP][10:, 16:]
    assert power.quantile(1) - 2 < np.median(idle[0]) < power.quantile(25) + 2
    assert power.quantile(75) < np.median(busy[0]) < power.quantile(95)
    assert heat.quantile(1) < np.median(idle[1]) < heat.quantile(30)
    assert heat.quantile(75) < np.median(busy[1]) < heat.quantile(97)


def test_h100s_under_load_draw_what_operators_expect():
    shape = build_shape(3, (Pool(H100, 1),), 0.0)
    block = Fleet(3, shape, (Run("job", "t", WorkKind.TRAIN, (0,), 0.0, 1e9),), (), 0.0, 4).whole()
    working = block.gpu[Field.UTIL] > 90
    assert (block.gpu[Field.POWER][working] > 580).all()
    assert 55 < np.median(block.gpu[Field.GPU_TEMP][working]) < 72


CUTS = [
    pytest.param((), [((0, 1, 2), 0, 100)], id="no interruption"),
    pytest.param((Interruption(50, 1, 10),), [((0, 1, 2), 0, 50), ((0, 2), 60, 100)], id="a node drops out"),
    pytest.param((Interruption(50, 1, 10, without=False),), [((0, 1, 2), 0, 50), ((0, 1, 2), 60, 100)], id="a restart"),
    pytest.param((Interruption(95, 1, 10),), [((0, 1, 2), 0, 95)], id="too late to start again"),
    pytest.param((Interruption(50, 7, 10),), [((0, 1, 2), 0, 100)], id="another node"),
    pytest.param((Interruption(200, 1, 10),), [((0, 1, 2), 0, 100)], id="after its end"),
    pytest.param(
        (Interruption(70, 0, 5), Interruption(50, 1, 10)),
        [((0, 1, 2), 0, 50), ((0, 2), 60, 70), ((2,), 75, 100)],
        id="two nodes one after the other",
    ),
    pytest.param(
        (Interruption(50, 1, 20), Interruption(55, 0, 5)), [((0, 1, 2), 0, 50), ((2,), 70, 100)], id="twice at once"
    ),
]


@pytest.mark.parametrize(("cuts", "expected"), CUTS)
def test_an_interrupted_job(cuts, expected):
    run = Run("job", "training", WorkKind.TRAIN, (0, 1, 2), 0, 100)
    left = [(one.nodes, one.start_s, one.stop_s) for one in interrupt_all((run,), cuts)]
    assert left == expected
