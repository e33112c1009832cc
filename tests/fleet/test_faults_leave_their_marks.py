"""Each planted fault leaves exactly its marks: on its GPU, in its log, in one row of truth, and nowhere else.

A fault is planted alone on a fleet of three nodes that share a job, and compared with the same fleet without it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fixtures.fleet import hosts, klog, scenarios
from fixtures.fleet.faults import (
    AppXids,
    BlankValues,
    DriverRollout,
    EccContained,
    EccUncontained,
    ExporterRestart,
    FanFailing,
    ForgedXid,
    FrozenFeed,
    GspHang,
    IdleHot,
    IdleReload,
    JobChurn,
    Maintenance,
    NfsStall,
    NicErrorStorm,
    NvlinkDegraded,
    OffBus,
    PcieWidthLoss,
    Planted,
    PodChange,
    PowerBrake,
    RemapFailure,
    SbeStorm,
    ScrapeGap,
    SilentExporter,
    StickyXid,
    Straggler,
)
from fixtures.fleet.shape import A100, H100, Framing, Pool, build_shape
from fixtures.fleet.signals import Field
from fixtures.fleet.telemetry import Block, Fleet
from fixtures.fleet.workload import Run, WorkKind
from rules.vocabulary import CauseClass

HOUR = 3600.0
AT = 2 * HOUR
NODE, SLOT, IDLE = 1, 5, 3
GPU = NODE * 8 + SLOT


def fleet_with(*planted: Planted, hours: float = 8) -> Fleet:
    """Nodes 0 to 2 train together, node 3 is idle."""
    shape = build_shape(
        9, (Pool(H100, 3, framings=(Framing.RFC3339, Framing.MONOTONIC)), Pool(A100, 1)), scenarios.START_S
    )
    run = Run("job", "training", WorkKind.TRAIN, (0, 1, 2), 600.0, hours * HOUR)
    return Fleet(9, shape, (run,), planted, scenarios.START_S, hours, 60.0)


@pytest.fixture(scope="module")
def calm() -> Block:
    return fleet_with().whole()


def steps(from_s: float, to_s: float) -> slice:
    return slice(int(np.ceil(from_s / 60)), int(np.ceil(to_s / 60)))


def growth(block: Block, signal: Field, from_s: float, to_s: float, gpu: int = GPU) -> float:
    values = block.gpu[signal][steps(from_s, to_s), gpu]
    values = values[~np.isnan(values)]
    return float(values[-1] - values[0])


def codes(fleet: Fleet) -> set[int]:
    return {event.code for event in fleet.events}


def level(block: Block, signal: Field, from_s: float, to_s: float, gpu: int = GPU) -> float:
    return float(np.nanmean(block.gpu[signal][steps(from_s, to_s), gpu]))


def bits(block: Block, from_s: float, to_s: float) -> int:
    return int(np.bitwise_or.reduce(block.gpu[Field.CLOCK_REASONS][steps(from_s, to_s), GPU].astype(np.int64)))


def gone_for_good(fleet: Fleet, block: Block) -> None:
    failed = fleet.planted[0].failed_s
    lost = np.isnan(block.gpu[Field.GPU_TEMP][:, GPU])
    assert lost[steps(failed, 8 * HOUR)].all()
    assert not lost[: steps(AT, failed).start].any()
    assert 0.2 < lost[steps(AT, failed)].mean() < 0.6
    assert all(np.isnan(values[-1, GPU]) for values in block.gpu.values())
    assert not np.isnan(block.gpu[Field.GPU_TEMP][:, GPU + 1]).any()


def uncontained(fleet: Fleet, block: Block) -> None:
    failed = fleet.planted[0].failed_s
    assert growth(block, Field.SBE, AT, failed) > 500
    assert growth(block, Field.DBE, AT, 8 * HOUR) == 2
    assert growth(block, Field.REMAP_UNCORRECTABLE, AT, 8 * HOUR) == 1
    assert block.gpu[Field.XID][-1, GPU] == 95


def contained(_: Fleet, block: Block) -> None:
    assert growth(block, Field.DBE, AT - 60, 8 * HOUR) == 1
    assert growth(block, Field.REMAP_UNCORRECTABLE, AT - 60, 8 * HOUR) == 1
    assert growth(block, Field.REMAP_FAILURE, 0, 8 * HOUR) == 0
    assert level(block, Field.UTIL, AT + 900, 8 * HOUR) > 80  # the job is back on the same GPU


def remaps(_: Fleet, block: Block) -> None:
    rows = growth(block, Field.REMAP_CORRECTABLE, AT, 8 * HOUR) + growth(block, Field.REMAP_UNCORRECTABLE, AT, 8 * HOUR)
    assert rows == 19
    assert growth(block, Field.REMAP_FAILURE, AT, 8 * HOUR) == 1
    assert block.gpu[Field.XID][-1, GPU] == 64


def storm(_: Fleet, block: Block) -> None:
    assert growth(block, Field.SBE, AT, AT + HOUR) > 3000
    assert growth(block, Field.SBE, AT + 2.1 * HOUR, 8 * HOUR) < 5
    assert growth(block, Field.DBE, 0, 8 * HOUR) == 0


def bad_link(fleet: Fleet, block: Block) -> None:
    failed = fleet.planted[0].failed_s
    for signal in (Field.NVLINK_FLIT, Field.NVLINK_DATA, Field.NVLINK_REPLAY, Field.NVLINK_RECOVERY):
        assert growth(block, signal, AT, failed) > 20
    before, after = (level(block, Field.NVLINK_BANDWIDTH, *span) for span in ((HOUR, AT), (failed - 1800, failed)))
    assert after < 0.8 * before
    assert {event.text.split("link ")[1][:2] for event in fleet.events} == {"11"}


def hot(fleet: Fleet, block: Block) -> None:
    assert np.nanmax(block.gpu[Field.GPU_TEMP][:, GPU]) > 85
    assert bits(block, AT + 2 * HOUR, AT + 5 * HOUR) & 0x60 == 0x60
    assert growth(block, Field.THERMAL_VIOLATION, AT, AT + 5 * HOUR) > 60e9
    slows = fleet.labels[0].failed_s
    first = int(np.argmax(block.gpu[Field.GPU_TEMP][:, GPU] >= 84)) * 60
    assert abs(slows - first) < 1800


def braked(_: Fleet, block: Block) -> None:
    assert bits(block, AT, AT + HOUR) & 0x88 == 0x88
    assert bits(block, AT + HOUR + 60, 8 * HOUR) & 0x88 == 0
    assert growth(block, Field.POWER_VIOLATION, AT, AT + HOUR) > 0.8 * HOUR * 1e9
    assert level(block, Field.POWER, AT + 300, AT + HOUR) < 0.6 * level(block, Field.POWER, HOUR, AT)
    assert level(block, Field.SM_CLOCK, AT + 300, AT + HOUR) < 1500


def narrow(_: Fleet, block: Block) -> None:
    assert level(block, Field.PCIE_WIDTH, AT, AT + 4 * HOUR) == 8
    assert level(block, Field.PCIE_WIDTH, AT + 4 * HOUR, 8 * HOUR) == 16
    assert growth(block, Field.PCIE_REPLAY, AT, AT + HOUR) > 1000


def hung(fleet: Fleet, block: Block) -> None:
    for signal in (Field.UTIL, Field.POWER, Field.ENERGY):
        assert np.ptp(block.gpu[signal][steps(AT, 8 * HOUR), GPU]) == 0
    assert [event.code for event in fleet.events] == [119] * 14 + [154]
    assert block.gpu[Field.XID][-1, GPU] == 119


def application(fleet: Fleet, block: Block) -> None:
    assert {fleet.shape.gpus[event.gpu].node for event in fleet.events} == {0, 1, 2}
    assert growth(block, Field.DBE, 0, 8 * HOUR) == 0
    assert level(block, Field.UTIL, AT + 900, 8 * HOUR) > 80


def rolled_out(fleet: Fleet, block: Block) -> None:
    assert fleet.driver_at(NODE, AT) != fleet.driver_at(NODE, AT + HOUR) == "580.126.09"
    assert (block.dcgm_up[steps(AT, AT + 240), NODE] == 0).all()
    energy = block.gpu[Field.ENERGY][:, GPU]
    assert energy[steps(AT + 300, AT + 360)][0] < energy[0] / 100
    sick = {fleet.shape.gpus[event.gpu].node for event in fleet.events}
    assert sick == {0, 1, 2}


def warmer_than_twins(_: Fleet, block: Block) -> None:
    gpu = IDLE * 8 + SLOT
    twins = [IDLE * 8 + slot for slot in range(8) if slot != SLOT]
    inside = steps(AT + 600, AT + HOUR)
    distance = block.gpu[Field.GPU_TEMP][inside, gpu] - np.median(block.gpu[Field.GPU_TEMP][inside][:, twins], axis=1)
    assert 9 < distance.mean() < 15
    assert (block.gpu[Field.UTIL][inside, gpu] == 0).all()


def slower_than_peers(_: Fleet, block: Block) -> None:
    inside = steps(AT + 60, AT + 0.4 * HOUR)
    for signal in (Field.POWER, Field.UTIL, Field.TENSOR_ACTIVE):
        values = block.gpu[signal][inside]
        assert values[:, 8:16].mean() < 0.85 * values[:, :8].mean()


def port_errors(_: Fleet, block: Block) -> None:
    for what, least in (("symbol_error_total", 30000), ("link_downed_total", 5), ("port_errors_received_total", 5000)):
        values = block.node[hosts.ib(what, "mlx5_2")][:, NODE]
        assert values[steps(AT + 2 * HOUR, 8 * HOUR).start] - values[steps(AT, AT + 60).start] >= least
        assert np.ptp(block.node[hosts.ib(what, "mlx5_1")][:, NODE]) == 0


def stalled(_: Fleet, block: Block) -> None:
    inside = steps(AT, AT + 2700)
    assert (block.node[hosts.BLOCKED][inside, NODE] > 10).all()
    asked, waited = (
        block.node[hosts.nfs(what, "WRITE")][:, NODE] for what in ("requests_total", "response_time_seconds_total")
    )
    span = slice(inside.start, inside.stop - 1)
    assert np.diff(waited)[span].sum() / np.diff(asked)[span].sum() > 0.1


def repeated(_: Fleet, block: Block) -> None:
    inside = steps(AT, AT + 5400)
    for signal, values in block.gpu.items():
        same = values[inside, NODE * 8 : NODE * 8 + 8]
        assert (same == same[0]).all(), signal
    assert growth(block, Field.ENERGY, AT + 5400, 8 * HOUR) > 0
    assert (block.dcgm_up[:, NODE] == 1).all()


def silent(_: Fleet, block: Block) -> None:
    inside = steps(AT, AT + 5400)
    assert all(np.isnan(values[inside, NODE * 8 : NODE * 8 + 8]).all() for values in block.gpu.values())
    assert not np.isnan(block.gpu[Field.POWER][inside.stop :]).any()
    assert (block.dcgm_up[:, NODE] == 1).all()


Check = Callable[[Fleet, Block], None]
AT_GPU = {"node": NODE, "slot": SLOT, "at_s": AT}
FAULTS: list[tuple[Planted, CauseClass, set[int], Check, str]] = [
    (OffBus(**AT_GPU), CauseClass.HARDWARE, {79, 154}, gone_for_good, "a GPU fades and leaves the bus"),
    (OffBus(**AT_GPU, wordless=True), CauseClass.HARDWARE, set(), gone_for_good, "a GPU leaves the bus without an XID"),
    (EccUncontained(**AT_GPU), CauseClass.MEMORY, {95, 154}, uncontained, "corrected errors end in an uncontained one"),
    (EccContained(**AT_GPU), CauseClass.MEMORY, {63, 94}, contained, "a contained error leaves the GPU in service"),
    (RemapFailure(**AT_GPU, growing_s=5 * HOUR), CauseClass.MEMORY, {63, 64}, remaps, "rows are remapped to the last"),
    (SbeStorm(**AT_GPU), CauseClass.MEMORY, set(), storm, "corrected errors by the thousand"),
    (NvlinkDegraded(**AT_GPU), CauseClass.LINK, {74}, bad_link, "one NVLink degrades and fails"),
    (FanFailing(**AT_GPU), CauseClass.THERMAL, set(), hot, "a fan fades until the GPU slows down"),
    (PowerBrake(**AT_GPU), CauseClass.POWER, set(), braked, "the power brake halves the power"),
    (PcieWidthLoss(**AT_GPU), CauseClass.LINK, set(), narrow, "a PCIe link loses half its lanes"),
    (GspHang(**AT_GPU), CauseClass.DRIVER, {119, 154}, hung, "a system processor hangs"),
    (AppXids(node=NODE, others=(0, 2), at_s=AT), CauseClass.APPLICATION, {13, 31, 43, 45}, application, "a job fails"),
    (
        DriverRollout(node=NODE, others=(0, 2), sick=(0, 1, 2), at_s=AT),
        CauseClass.DRIVER, {109, 119}, rolled_out, "a driver makes a pool sick",
    ),
    (IdleHot(node=IDLE, slot=SLOT, at_s=AT), CauseClass.THERMAL, set(), warmer_than_twins, "an idle GPU is too warm"),
    (Straggler(node=NODE, at_s=AT), CauseClass.JOB, set(), slower_than_peers, "a node is slower than its job"),
    (NicErrorStorm(node=NODE, at_s=AT), CauseClass.NETWORK, set(), port_errors, "a port has errors"),
    (NfsStall(node=NODE, at_s=AT), CauseClass.STORAGE, set(), stalled, "a file server stalls"),
    (FrozenFeed(node=NODE, at_s=AT), CauseClass.TELEMETRY, set(), repeated, "an exporter repeats itself"),
    (SilentExporter(node=NODE, at_s=AT), CauseClass.TELEMETRY, set(), silent, "an exporter says nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "cause", "xids", "check"), [pytest.param(*row[:4], id=row[4]) for row in FAULTS])
def test_a_fault_leaves(fault, cause, xids, check, calm):
    fleet = fleet_with(fault)
    block = fleet.whole()
    check(fleet, block)
    assert {row.cause for row in fleet.labels} == {cause}
    assert codes(fleet) == xids
    # Nothing before its onset, and nothing on nodes outside of the job.
    before = steps(0, AT - 1)
    for signal, values in block.gpu.items():
        np.testing.assert_array_equal(values[before], calm.gpu[signal][before], err_msg=str(signal))
        if fault.node != IDLE:
            np.testing.assert_array_equal(values[:, 24:], calm.gpu[signal][:, 24:], err_msg=str(signal))
    for series, values in block.node.items():
        np.testing.assert_array_equal(values[:, IDLE], calm.node[series][:, IDLE], err_msg=str(series))


@pytest.mark.parametrize(("fault", "cause"), [pytest.param(*row[:2], id=row[4]) for row in FAULTS])
def test_truth_names_the_gpu_or_the_nodes_it_hit(fault, cause):
    fleet = fleet_with(fault)
    uuids = {row.gpu_uuid for row in fleet.labels}
    names = {row.node for row in fleet.labels}
    if cause in (CauseClass.APPLICATION, CauseClass.DRIVER) and len(fault.nodes_hit) > 1:
        assert uuids == {""}
        assert names == {"gpu001", "gpu002", "gpu003"}
    else:
        assert names == {fleet.shape.nodes[fault.node].name}
        of_node = cause in (CauseClass.JOB, CauseClass.NETWORK, CauseClass.STORAGE, CauseClass.TELEMETRY)
        assert uuids == ({""} if of_node else {fleet.shape.gpu(fault.node, SLOT).uuid})
    assert all(AT <= row.onset_s <= row.failed_s <= 8 * HOUR for row in fleet.labels)


NUISANCES: list[tuple[Planted, str]] = [
    (ExporterRestart(node=NODE, at_s=AT), "an exporter restarts"),
    (IdleReload(node=IDLE, at_s=AT), "a driver is reloaded on an idle node"),
    (Maintenance(node=IDLE, at_s=AT), "a node is switched off and on"),
    (ScrapeGap(node=0, others=(1, 2), at_s=AT), "nothing is scraped for minutes"),
    (PodChange(node=NODE, at_s=AT), "pods change"),
    (BlankValues(node=NODE, slot=SLOT, at_s=AT), "an exporter prints blank values"),
    (JobChurn(node=NODE, slot=SLOT, at_s=AT), "jobs are cancelled"),
    (StickyXid(node=IDLE, at_s=0), "a gauge remembers an old XID"),
    (ForgedXid(node=0, at_s=AT), "a user process writes about a lost GPU"),
]


@pytest.mark.parametrize("nuisance", [pytest.param(row[0], id=row[1]) for row in NUISANCES])
def test_a_nuisance_has_no_label_and_hurts_no_memory_or_link(nuisance, calm):
    fleet = fleet_with(nuisance)
    block = fleet.whole()
    assert fleet.labels == ()
    assert codes(fleet) <= {45}
    for signal in (Field.DBE, Field.REMAP_FAILURE, Field.NVLINK_DATA, Field.THERMAL_VIOLATION):
        assert np.nanmax(block.gpu[signal]) == np.nanmax(calm.gpu[signal])
    # Something is different, or the nuisance would test nothing.
    changed = any(not np.array_equal(block.gpu[name], calm.gpu[name], equal_nan=True) for name in block.gpu)
    logged = any("Xid" in line.text for line in fleet.extra_log())
    assert changed or logged


def test_maintenance_takes_both_targets_and_starts_counters_again():
    fleet = fleet_with(Maintenance(node=IDLE, at_s=AT))
    block = fleet.whole()
    off, back = steps(AT, AT + 5400), steps(AT + 5400, AT + 5460).start
    assert (block.dcgm_up[off, IDLE] == 0).all()
    assert (block.node_up[off, IDLE] == 0).all()
    assert block.node[hosts.BOOT_TIME][back, IDLE] > block.node[hosts.BOOT_TIME][0, IDLE]
    assert block.node[hosts.INTERRUPTS][back, IDLE] < block.node[hosts.INTERRUPTS][0, IDLE] / 100
    assert block.gpu[Field.ENERGY][back, IDLE * 8] < block.gpu[Field.ENERGY][0, IDLE * 8] / 100


def test_a_sticky_gauge_is_cleared_by_an_exporter_restart_only():
    at_first = fleet_with(StickyXid(node=IDLE, slot=2, at_s=0), ExporterRestart(node=IDLE, at_s=AT)).whole()
    gauge = at_first.gpu[Field.XID][:, IDLE * 8 + 2]
    assert (gauge[: steps(AT, AT).start] == 31).all()
    assert (gauge[steps(AT + 180, 8 * HOUR)] == 0).all()


def test_the_window_count_rises_with_each_xid_and_ends_after_five_minutes():
    fleet = fleet_with(GspHang(**AT_GPU))
    counts = fleet.whole().xid_counts[(GPU, 119)]
    there = counts[~np.isnan(counts)]
    assert there.max() >= 8
    assert np.isnan(counts[: steps(AT - 60, AT).start]).all()
    last = max(event.at_s for event in fleet.events if event.code == 119)
    assert np.isnan(counts[steps(last + 301, 8 * HOUR)]).all()


def test_the_rest_of_a_job_goes_on_without_the_failed_node():
    fleet = fleet_with(OffBus(**AT_GPU))
    block = fleet.whole()
    later = steps(fleet.planted[0].failed_s + 1800, 8 * HOUR)
    assert level(block, Field.UTIL, later.start * 60, 8 * HOUR, gpu=0) > 80
    assert (block.gpu[Field.UTIL][later, NODE * 8] == 0).all()
    assert [run.nodes for run in fleet.runs] == [(0, 1, 2), (0, 2)]


def test_each_fault_of_the_day_is_alone_on_its_gpu_while_it_lasts(day):
    rows = [(row.gpu_uuid, row.onset_s) for row in day.labels if row.gpu_uuid]
    assert len({uuid for uuid, _ in rows}) == len(rows)
    assert {item.kind for item in day.planted if item.cause} == {
        "off_bus", "ecc_uncontained", "ecc_contained", "remap_failure", "sbe_storm", "nvlink_degraded", "fan_failing",
        "power_brake", "pcie_width_loss", "gsp_hang", "app_xids", "driver_rollout", "idle_hot", "straggler",
        "nic_error_storm", "nfs_stall",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        pytest.param(scenarios.day, 7, id="the day"),
        *(pytest.param(scenarios.demo, seed, id=f"the demo with seed {seed}") for seed in (1, 2, 7, 23)),
    ],
)
def test_nothing_planted_is_hidden_by_something_else(scenario, seed):
    fleet = scenario(seed)
    block = fleet.whole()
    for item in fleet.planted:
        without = replace(fleet, planted=tuple(other for other in fleet.planted if other is not item))
        logs = [[klog.log_lines(one, one.shape.nodes[node]) for node in item.nodes_hit] for one in (fleet, without)]
        if logs[0] != logs[1]:
            continue
        calm = without.whole()
        shown = any(not np.array_equal(block.gpu[name], calm.gpu[name], equal_nan=True) for name in block.gpu)
        shown |= any(not np.array_equal(block.node[name], calm.node[name], equal_nan=True) for name in block.node)
        assert shown, f"{item.kind} on node {item.node} leaves nothing"
