"""Faults that people who run GPU fleets have reported in public, as far as ingest decides them.

The ids are those of the collected field cases; each test feeds a report's input in our own words, as Prometheus would
answer it, and states what is right about the snapshot and about what the detectors make of it.
"""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.logs import EventQueue, LogFile, read_log
from detectors.engine import Detection
from detectors.events import KernelEvent
from detectors.findings import GpuState, Verdict
from detectors.identity import Workload
from detectors.snapshot import Reset
from rules.schema import RuleBook
from rules.vocabulary import EventKind, FaultAction, SignalKind
from tests.ingest.builders import (
    ENERGY,
    ENGINE_ACTIVE,
    POWER,
    SBE,
    STEP_S,
    T0,
    TEMP,
    UTIL,
    XID,
    XID_COUNT,
    Labels,
    Rig,
    batch,
    gpu,
    healthy,
    host,
    up,
)

TELEMETRY_ONLY = {"telemetry"}


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(T0 + seconds, UTC)


def verdict_of(detection: Detection, uuid: str) -> Verdict:
    (verdict,) = [one for one in detection.verdicts if one.gpu == uuid]
    return verdict


def codes(events: tuple[KernelEvent, ...]) -> list[tuple[int | None, int]]:
    return [(event.code, event.count) for event in events]


def with_value(series: list[tuple[Labels, Any]], metric: str, uuid_number: str, value: Any) -> list[tuple[Labels, Any]]:
    """The same scrape, one number changed; None takes the series away."""
    changed = []
    for labels, old in series:
        hit = labels["__name__"] == metric and labels["gpu"] == uuid_number
        if not hit:
            changed.append((labels, old))
        elif value is not None:
            changed.append((labels, value))
    return changed


@pytest.mark.parametrize(
    ("code", "scrapes"),
    [
        pytest.param(31, 40, id="FC001 a program's code: one event, and never a score"),
        pytest.param(94, 260, id="FC001 a contained memory error: one event, and the score comes back within the day"),
    ],
)
def test_fc001_a_gauge_that_keeps_its_last_code_is_one_event(rig: Rig, code: int, scrapes: int) -> None:
    events = []
    scores = []
    for step in range(scrapes):
        shown = 0 if step < 2 else code
        rig.now += 0.0 if step < 60 else 570.0  # the rest of the day in longer steps
        snapshot, detection = rig.judge(with_value(healthy(2, step=step), XID, "0", shown))
        events += codes(snapshot.events)
        scores.append(verdict_of(detection, "GPU-n1-0").score)
    assert events == [(code, 1)]
    assert scores[-1] == 0
    assert (max(scores) > 0) == (code == 94)
    assert verdict_of(detection, "GPU-n1-0").state is GpuState.HEALTHY


def test_fc001_what_the_gauge_held_when_it_was_first_seen_is_no_event(rig: Rig) -> None:
    events = [
        event for step in range(5) for event in rig.scrape(with_value(healthy(1, step=step), XID, "0", 79)).events
    ]
    assert events == []


def test_fc001_a_boot_clears_what_only_a_boot_can(rig: Rig) -> None:
    boot = T0 - 86_400
    states = []
    for step in range(120):
        booted = boot if step < 60 else T0 + 59 * STEP_S
        series = with_value(healthy(2, step=step), XID, "0", 79 if 2 <= step < 60 else 0)
        _, detection = rig.judge([*series, (host("node_boot_time_seconds"), booted)])
        states.append(verdict_of(detection, "GPU-n1-0").state)
    assert states[10] is GpuState.FAILED
    assert states[-1] is GpuState.HEALTHY


def test_fc002_two_equal_codes_are_two_by_the_log_and_at_least_one_by_the_gauge(
    rig: Rig, rules: RuleBook, tmp_path: Path
) -> None:
    lines = [
        f"{at(second).isoformat()} n1 kernel: NVRM: Xid (PCI:0000:10:00): 43, pid={pid}, name=a, Ch 00000008\n"
        for second, pid in ((10, 4100), (70, 4200))
    ]
    log = tmp_path / "kern.log"
    log.write_text("".join(lines))
    counts: Counter[str] = Counter()
    queue = EventQueue({"n1": read_log(LogFile("n1", log), rules, boots=[], start=at(0), end=at(300), counts=counts)})
    from_gauge: list[tuple[int | None, int]] = []
    for step in range(6):
        series = with_value(healthy(1, step=step), XID, "0", 0 if step == 0 else 43)
        snapshot = rig.scrape(series, events=queue.until(datetime.fromtimestamp(rig.now, UTC)))
        from_gauge += codes(tuple(event for event in snapshot.events if event.source == "exporter"))
        detection = rig.engine.step(snapshot)
    assert from_gauge == [(43, 1)]
    (signal,) = [signal for signal in detection.signals if signal.code == 43]
    assert signal.count == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([1, 1, 2, 1, None, None], [1, 1], id="FC003 each rise is an event, a fall is nothing"),
        pytest.param([3, 3], [3], id="FC003 a series that appears counts from zero"),
        pytest.param([1, None, None, None, None, None, None, 1], [1, 1], id="FC003 a series that comes back is new"),
        pytest.param([2, 1, 2, 1, 2], [2, 1, 1], id="FC003 a window that slides over rises"),
    ],
)
def test_fc003_a_windowed_count_shows_events_by_its_rises_alone(
    rig: Rig, values: list[int | None], expected: list[int]
) -> None:
    counts = []
    for value in values:
        count = [] if value is None else [(gpu(XID_COUNT, 0, xid="94", window_size_in_ms="300000"), value)]
        snapshot = rig.scrape([(gpu(TEMP), 60), *count])
        counts += [event.count for event in snapshot.events]
        assert np.isnan(snapshot.gpu.of("xid_window_count", "increase")).all()
        assert snapshot.resets == ()
    assert counts == expected


def test_fc005_a_series_that_is_gone_after_an_upgrade_is_lost_coverage_and_no_lost_gpu(rig: Rig) -> None:
    warned = []
    for step in range(60):
        snapshot, detection = rig.judge(healthy(8, step=step, without=[XID] if step >= 5 else []))
        warned.append([signal for signal in detection.signals if signal.rule == "metrics_lost"])
    assert snapshot.coverage.lost_signals == (("0", "xid_last"),)
    assert np.isnan(snapshot.gpu.of("xid_last")).all()
    assert not snapshot.coverage.gpu_missing.any()
    assert (snapshot.coverage.signal_share < 1).all()
    assert [len(signals) for signals in (warned[10], warned[-1])] == [0, 1]
    assert "xid_last" in warned[-1][0].text
    assert {signal.detector for signal in detection.signals} == TELEMETRY_ONLY
    assert {verdict.state for verdict in detection.verdicts} == {GpuState.HEALTHY}
    assert all(verdict.confidence < 1 for verdict in detection.verdicts)


def test_fc006_a_blank_is_a_missing_value_and_the_rest_is_judged_on(rig: Rig) -> None:
    for step in range(20):
        busy = 0.6 if step < 5 else 140737488355328.0
        series = [*healthy(1, step=step), (gpu(ENGINE_ACTIVE), busy)]
        snapshot, detection = rig.judge(series)
    assert np.isnan(snapshot.gpu.of("gr_engine_active")[0])
    assert dict(snapshot.coverage.counts)["blank"] == 15
    assert snapshot.coverage.lost_signals == (("0", "gr_engine_active"),)
    assert verdict_of(detection, "GPU-n1-0").state is GpuState.HEALTHY
    assert np.nanmax(snapshot.gpu.value) < 1e9


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        pytest.param(
            "DCGM_FI_DEV_MEMORY_TEMP", {"modelName": "Tesla T4"}, "9223372036854776000", id="FC008 degrees of a T4"
        ),
        pytest.param(
            "DCGM_FI_DEV_GPU_UTIL", {"GPU_I_ID": "1"}, "9.223372036854776e+18", id="FC008 percent of a MIG parent"
        ),
        pytest.param("DCGM_FI_DEV_MEMORY_TEMP", {}, "9223372036854775794", id="FC008 digit by digit"),
    ],
)
def test_fc008_nine_quintillion_degrees_is_no_temperature(rig: Rig, metric: str, labels: Labels, value: str) -> None:
    for _ in range(20):
        snapshot, detection = rig.judge([(gpu(TEMP, 0, **labels), 60), (gpu(metric, 0, **labels), value)])
    assert np.isnan(snapshot.gpu.of("memory_temp")).all()
    assert np.isnan(snapshot.gpu.of("gpu_util_percent")).all()
    assert dict(snapshot.coverage.counts)["blank"] == 20
    assert detection.signals == ()


def test_fc010_forty_series_that_stand_still_are_a_frozen_feed_and_nothing_is_drained(rig: Rig) -> None:
    values = {POWER: 113.611, ENERGY: 4.5e11, TEMP: 41, UTIL: 0, "DCGM_FI_DEV_FB_USED": 12, "DCGM_FI_DEV_SM_CLOCK": 345}
    for _ in range(30):
        snapshot, detection = rig.judge([(gpu(metric, n), value) for n in range(8) for metric, value in values.items()])
    assert snapshot.coverage.gpu_frozen.all()
    assert {signal.rule for signal in detection.signals} == {"gpu_frozen"}
    assert {verdict.state for verdict in detection.verdicts} == {GpuState.UNKNOWN}
    assert {incident.action for incident in detection.incidents} <= {FaultAction.NONE, FaultAction.INSPECT}


def test_fc011_one_gpu_that_loses_one_series_is_known_less_than_its_siblings(rig: Rig) -> None:
    for step in range(10):
        series = with_value(healthy(8, step=step), UTIL, "2", None if step > 3 else 95)
        snapshot, detection = rig.judge(series)
    share = snapshot.coverage.signal_share
    assert share[2] == pytest.approx(7 / 8)
    assert np.delete(share, 2).tolist() == [1.0] * 7
    assert np.isnan(snapshot.gpu.of("gpu_util_percent")[2])
    confidence = {verdict.gpu: verdict.confidence for verdict in detection.verdicts}
    assert confidence["GPU-n1-2"] < min(value for uuid, value in confidence.items() if uuid != "GPU-n1-2")


def test_fc011_a_series_that_was_never_there_on_one_gpu_is_missed_too(rig: Rig) -> None:
    snapshot = rig.scrape(with_value(healthy(8), UTIL, "2", None))
    assert snapshot.coverage.signal_share[2] == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("labels", "workloads"),
    [
        pytest.param(
            {
                "pod": "dcgm-exporter-x",
                "namespace": "gpu-operator",
                "exported_pod": "train-0",
                "exported_namespace": "ml",
            },
            (Workload("ml", "train-0", "train"),),
            id="FC012 exported labels name the work",
        ),
        pytest.param(
            {"pod": "train-0", "namespace": "ml"}, (Workload("ml", "train-0", "train"),), id="FC012 honorLabels does"
        ),
        pytest.param({"pod": "telemetry-0", "namespace": "m"}, (), id="FC012 the scrape's own target is no work"),
    ],
)
def test_fc012_the_exporter_is_never_the_work(rig: Rig, labels: Labels, workloads: tuple[Workload, ...]) -> None:
    rig.assembler.targets(batch((up(pod="telemetry-0", namespace="m"), [(T0, 1)])))
    snapshot = rig.scrape([(gpu(TEMP, **labels), 60)], up_of=())
    assert snapshot.workloads == (workloads,)


@pytest.mark.parametrize(
    "newest_first", [pytest.param(True, id="FC014 the new pod's series first"), pytest.param(False, id="FC014 last")]
)
def test_fc014_a_gpu_is_one_thing_under_every_pod_and_its_newest_sample_counts(rig: Rig, newest_first: bool) -> None:
    old = gpu(SBE, exported_pod="p1"), [(T0, 7), (T0 + 30, 9)]
    new = gpu(SBE, exported_pod="p2"), [(T0 + 60, 12), (T0 + 90, 12)]
    rig.feed(old)
    rig.tick(T0 + 31)
    rig.feed(*((new, old) if newest_first else (old, new)))
    snapshot = rig.tick(T0 + 91)
    assert len(snapshot.gpus) == 1
    assert snapshot.gpu.of("ecc_sbe_volatile")[0] == 12
    assert snapshot.gpu.of("ecc_sbe_volatile", "increase")[0] == 3
    assert snapshot.gpu.of("ecc_sbe_volatile", "age_s")[0] == 1
    assert snapshot.resets == ()


def test_fc014_the_series_of_a_pod_that_has_gone_lingers_and_is_not_the_newest(rig: Rig) -> None:
    rig.feed((gpu(TEMP, exported_pod="p1"), [(T0, 71)]), (gpu(TEMP, exported_pod="p2"), [(T0 + 30, 44)]))
    assert rig.tick(T0 + 31).gpu.of("gpu_temp")[0] == 44


@pytest.mark.parametrize(
    ("learned", "node", "resolved"),
    [
        pytest.param([], "10.0.0.7", False, id="FC015 nobody knows: observed only"),
        pytest.param(
            [
                {
                    "__name__": "kube_pod_info",
                    "namespace": "gpu-operator",
                    "pod": "nvidia-dcgm-exporter-d2khm",
                    "node": "node-7",
                }
            ],
            "node-7",
            True,
            id="FC015 by the exporter's pod",
        ),
        pytest.param(
            [{"__name__": "node_uname_info", "instance": "10.0.0.7:9100", "nodename": "node-7"}],
            "node-7",
            True,
            id="FC015 by the address",
        ),
    ],
)
def test_fc015_a_pods_name_is_no_node(rig: Rig, learned: list[Labels], node: str, resolved: bool) -> None:
    rig.assembler.learn(batch(*((labels, [(T0, 1)]) for labels in learned)))
    labels = {"Hostname": "nvidia-dcgm-exporter-d2khm", "instance": "10.0.0.7:9400", "namespace": "gpu-operator"}
    snapshot = rig.scrape([(gpu(TEMP, pod="nvidia-dcgm-exporter-d2khm", **labels), 60)])
    assert [(one.name, one.resolved) for one in snapshot.nodes] == [(node, resolved)]


def test_fc016_old_and_lower_case_names_are_the_same_signals_and_empty_labels_are_none(rig: Rig) -> None:
    old = {"__name__": "dcgm_gpu_temp", "gpu": "0", "UUID": "GPU-a", "pod": "", "instance": "n1:9400"}
    low = {"__name__": "dcgm_fi_prof_gr_engine_active", "uuid": "GPU-a", "pod_name": "", "instance": "n1:9400"}
    snapshot = rig.scrape([(old, 54), (low, 0)])
    assert [one.uuid for one in snapshot.gpus] == ["GPU-a"]
    assert snapshot.gpu.of("gpu_temp")[0] == 54
    assert snapshot.gpu.of("gr_engine_active")[0] == 0
    assert snapshot.workloads == ((),)


def test_fc018_pods_that_share_a_gpu_are_one_gpu_and_four_pods(rig: Rig) -> None:
    snapshot = rig.scrape([(gpu(UTIL, exported_pod=f"w{n}", exported_namespace="ml"), 99) for n in range(1, 5)])
    assert len(snapshot.gpus) == 1
    assert snapshot.gpu.of("gpu_util_percent").tolist() == [99]
    assert [work.pod for work in snapshot.workloads[0]] == ["w1", "w2", "w3", "w4"]
    assert snapshot.coverage.sample_share[0] == 1


def test_fc020_a_mig_instance_is_known_by_its_number_whatever_profile_the_exporter_names(rig: Rig) -> None:
    wrong, right = (gpu(ENGINE_ACTIVE, GPU_I_ID="3", GPU_I_PROFILE=profile) for profile in ("1g.11gb", "1g.12gb"))
    rig.scrape([(wrong, 0.5)])
    snapshot = rig.scrape([(right, 0.7)])
    assert [one.key for one in snapshot.gpus] == [("GPU-n1-0", 3)]
    assert snapshot.gpu.of("gr_engine_active")[0] == np.float32(0.7)
    assert "1g." not in repr(snapshot.gpus)


def test_fc022_what_a_dead_target_said_minutes_ago_is_stale_and_never_healthy(rig: Rig) -> None:
    for step in range(3):
        rig.judge(healthy(8, step=step))
    lingering = [(labels, [(rig.now - STEP_S, value)]) for labels, value in healthy(8, step=2)]
    rig.feed(*lingering)
    rig.assembler.targets(batch((up(), [(rig.now + 210, 0)])))
    snapshot = rig.tick(rig.now + 210)
    detection = rig.engine.step(snapshot)
    assert snapshot.gpu.of("gpu_temp", "age_s").tolist() == [240] * 8
    assert np.isnan(snapshot.gpu.value).all()
    assert snapshot.coverage.gpu_stale.all()
    assert snapshot.coverage.exporter_down.tolist() == [True]
    assert {verdict.state for verdict in detection.verdicts} == {GpuState.UNKNOWN}


def test_fc024_the_gpu_that_is_gone_is_named_by_the_inventory(rig: Rig) -> None:
    for step in range(3):
        rig.judge(healthy(8, step=step))
    for step in range(3, 20):
        snapshot, detection = rig.judge([one for one in healthy(8, step=step) if one[0]["gpu"] != "6"])
    assert len(snapshot.gpus) == 8
    assert [snapshot.gpus[row].uuid for row in np.flatnonzero(snapshot.coverage.gpu_missing)] == ["GPU-n1-6"]
    assert [signal.gpu for signal in detection.signals if signal.rule == "gpu_missing"] == ["GPU-n1-6"]
    assert verdict_of(detection, "GPU-n1-6").state is GpuState.UNKNOWN


@pytest.mark.parametrize(
    ("values", "value", "low", "high", "dropped"),
    [
        pytest.param(["61", "NaN", "62", "+Inf"], 62, 61, 62, 2, id="FC025 what is no number is skipped and counted"),
        pytest.param(["NaN", "NaN"], np.nan, np.nan, np.nan, 2, id="FC025 nothing but NaN is not known"),
        pytest.param(["-Inf", "0"], 0, 0, 0, 1, id="FC025 a zero that was measured is one"),
    ],
)
def test_fc025_a_sample_that_is_no_number_is_neither_zero_nor_the_end_of_the_others(
    rig: Rig, values: list[str], value: float, low: float, high: float, dropped: int
) -> None:
    rig.feed((gpu(TEMP), [(T0 + 10 * n, text) for n, text in enumerate(values)]))
    snapshot = rig.tick(T0 + 31)
    for matrix, expected in (("value", value), ("low", low), ("high", high)):
        np.testing.assert_equal(float(snapshot.gpu.of("gpu_temp", matrix)[0]), float(expected))
    assert dict(snapshot.coverage.counts)["not_finite"] == dropped


def test_fc027_gaps_of_one_gpu_are_seen_and_its_error_rate_alarms(rig: Rig) -> None:
    """Under load the sick GPU answers every third scrape; its corrected errors come at 4,647 a second."""
    for step in range(120):
        answers = step % 3 == 0
        series = with_value(healthy(8, step=step), SBE, "4", 4647.0 * STEP_S * step)
        series = [one for one in series if one[0]["gpu"] != "4" or answers]
        snapshot, detection = rig.judge(series)
    assert snapshot.coverage.sample_share[4] < 0.6
    assert np.delete(snapshot.coverage.sample_share, 4).min() > 0.99
    rules = {signal.rule for signal in detection.signals if signal.gpu == "GPU-n1-4"}
    assert {"samples_lost", "ecc_sbe_storm"} <= rules
    assert {signal.gpu for signal in detection.signals} <= {"GPU-n1-4"}


def test_fc028_a_rate_that_calls_itself_a_counter_has_no_resets_and_no_growth(rig: Rig) -> None:
    metric = "DCGM_FI_PROF_PCIE_TX_BYTES"
    rig.feed((gpu(metric), [(T0, 78_398_480), (T0 + 30, 12_000), (T0 + 60, 81_000_000)]))
    snapshot = rig.tick(T0 + 61)
    assert snapshot.gpu.of("pcie_tx_bytes_rate")[0] == 81_000_000
    assert np.isnan(snapshot.gpu.of("pcie_tx_bytes_rate", "increase")[0])
    assert snapshot.gpu.of("pcie_tx_bytes_rate", "low")[0] == 12_000
    assert snapshot.resets == ()


def test_fc028_own_kinds_rule_for_every_profiling_rate(rules: RuleBook) -> None:
    rates = {
        name
        for name, spec in rules.metrics.items()
        for alias in spec.aliases
        if alias.metric.startswith("DCGM_FI_PROF_") and alias.metric.endswith("_BYTES")
    }
    assert rates
    assert {rules.metrics[name].kind for name in rates} == {SignalKind.RATE}


def test_fc029_a_zero_that_never_changes_proves_nothing(rig: Rig) -> None:
    for step in range(40):
        links = [(gpu("NVSWITCH_LINK_THROUGHPUT_TX", n), 0) for n in range(2)]
        traffic = [(gpu("DCGM_FI_PROF_NVLINK_TX_BYTES", n), 5e9 + step) for n in range(2)]
        snapshot, detection = rig.judge([*healthy(2, step=step), *links, *traffic])
    assert snapshot.gpu.of("nvlink_tx_bytes_rate")[0] == np.float32(5e9 + 39)
    assert detection.signals == ()
    assert {verdict.state for verdict in detection.verdicts} == {GpuState.HEALTHY}


def test_fc030_codes_stay_codes(rig: Rig) -> None:
    shown = [31, 0, 48, 0, 0, 0, 0, 0]
    rig.scrape([(gpu(XID, n), 0) for n in range(8)])
    snapshot = rig.scrape([(gpu(XID, n), code) for n, code in enumerate(shown)])
    assert snapshot.gpu.of("xid_last").tolist() == shown
    assert np.isnan(snapshot.gpu.of("xid_last", "increase")).all()
    assert {(event.gpu_uuid, event.code, event.kind) for event in snapshot.events} == {
        ("GPU-n1-0", 31, EventKind.XID),
        ("GPU-n1-2", 48, EventKind.XID),
    }


def test_fc030_an_average_of_codes_is_no_code(rig: Rig) -> None:
    rig.scrape([(gpu(XID), 0)])
    snapshot = rig.scrape([(gpu(XID), 9.875)])
    assert snapshot.events == ()
    assert dict(snapshot.coverage.counts)["bad_codes"] == 1


def test_fc030_no_rule_does_arithmetic_on_a_code(rules: RuleBook) -> None:
    forbidden = {
        name for name, spec in rules.metrics.items() if spec.kind in {SignalKind.CODE, SignalKind.WINDOW_COUNT}
    }
    assert forbidden
    used = {rule.signal for rule in rules.thresholds.values()} | {rule.signal for rule in rules.peers.values()}
    assert not used & forbidden


def test_fc033_counters_that_begin_again_after_a_driver_reload_are_reset_and_not_negative(
    rig: Rig, rules: RuleBook, tmp_path: Path
) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"{at(45).isoformat()} n1 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05\n")
    events = list(read_log(LogFile("n1", log), rules, boots=[], start=at(0), end=at(300), counts=Counter()))
    aggregate = "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL"
    before = {SBE: 91_200, ENERGY: 4.5e8, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 12, aggregate: 700_000}
    after = {SBE: 0, ENERGY: 1.2e4, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3, aggregate: 700_000}
    for _ in range(2):
        rig.judge([(gpu(metric), value) for metric, value in before.items()])
    snapshot, detection = rig.judge([(gpu(metric), value) for metric, value in after.items()], events=events)
    grown = {signal: float(snapshot.gpu.of(signal, "increase")[0]) for signal in snapshot.gpu.signals}
    assert grown == {
        "ecc_sbe_volatile": 0,
        "energy_joules": pytest.approx(12),
        "pcie_replay": 3,
        "ecc_sbe_aggregate": 0,
    }
    assert set(snapshot.resets) == {Reset(0, name) for name in ("ecc_sbe_volatile", "energy_joules", "pcie_replay")}
    assert snapshot.gpu.of("ecc_sbe_aggregate")[0] == 700_000
    assert [event.kind for event in snapshot.events] == [EventKind.DRIVER_LOAD]
    assert detection.signals == ()


def test_every_report_of_this_area_is_tested(shared: Path) -> None:
    """The collected cases name those that ingest decides; each of them is in this file by its number."""
    import yaml  # noqa: PLC0415 - only where the cases are there

    cases = yaml.safe_load((shared / "field_cases.yaml").read_text(encoding="utf-8"))
    wanted = {case["id"].lower() for case in cases if case["area"] == "ingest"}
    tested = {name.split("_")[1] for name in globals() if name.startswith("test_fc")}
    assert tested == wanted
