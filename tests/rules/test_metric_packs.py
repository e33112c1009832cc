"""The shape, the kinds, the units and the bounds of the shipped metric packs.

Matrix: every blank value and every recorded value x every bound. The recorded files are outside the repository, so
those tests skip without them.
"""

import json

import pytest

from rules.schema import MetricSpec
from rules.vocabulary import SignalKind, SignalScope
from tests.rules.metric_packs import ALL, FILES, METRICS, aliases, find, series

#: Blanks that NVIDIA's libraries return for "no value", as a scrape carries them (data/dcgm/sentinels.json).
INT32_BLANKS = (2147483632.0, 2147483633.0, 2147483634.0, 2147483635.0)
FP64_BLANKS = (140737488355328.0, 140737488355329.0, 140737488355330.0, 140737488355331.0)
INT64_BLANKS = (9223372036854775792.0, 9223372036854775795.0)


def within(spec: MetricSpec, value: float) -> bool:
    return (spec.low is None or spec.low <= value) and (spec.high is None or value <= spec.high)


# ---------------------------------------------------------------------------------------------------- shape


@pytest.mark.parametrize("file", FILES)
def test_a_pack_says_what_it_is_and_where_it_comes_from(file):
    pack = ALL[file]
    assert pack.owner == "gpuwarden"
    assert pack.name
    assert pack.source


def test_no_signal_stands_in_two_packs():
    assert not ALL["gpu.yaml"].metrics.keys() & ALL["node.yaml"].metrics.keys()


def test_the_scope_of_a_signal_is_that_of_its_pack():
    assert {spec.scope for spec in ALL["gpu.yaml"].metrics.values()} == {SignalScope.GPU}
    assert {spec.scope for spec in ALL["node.yaml"].metrics.values()} == {SignalScope.NODE}


def test_every_signal_is_bounded_and_every_bound_leaves_room():
    assert [
        name for name, spec in METRICS.items() if spec.low is None or spec.high is None or spec.low >= spec.high
    ] == []


def test_one_series_never_means_two_signals():
    pairs = [(signal, alias) for signal, _, alias in aliases()]
    clashes = [
        (one, other, a.metric)
        for index, (one, a) in enumerate(pairs)
        for other, b in pairs[index + 1 :]
        if a.metric.upper() == b.metric.upper()
        and all(a.labels[key] == b.labels[key] for key in a.labels.keys() & b.labels.keys())
    ]
    assert clashes == []


def test_there_are_signals_enough_and_the_fast_ones_stay_few():
    fast = [name for name, spec in METRICS.items() if spec.fast]
    assert len(ALL["gpu.yaml"].metrics) >= 60
    assert 40 <= len(fast) <= 70


# ---------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        pytest.param("DCGM_FI_DEV_XID_ERRORS", SignalKind.CODE, id="the last XID is a code, not a count (FC030)"),
        pytest.param("DCGM_EXP_XID_ERRORS_COUNT", SignalKind.WINDOW_COUNT, id="a window count falls by itself (FC003)"),
        pytest.param("DCGM_FI_PROF_PCIE_TX_BYTES", SignalKind.RATE, id="PCIe bytes sent are a rate (FC028)"),
        pytest.param("DCGM_FI_PROF_PCIE_RX_BYTES", SignalKind.RATE, id="PCIe bytes received are a rate (FC028)"),
        pytest.param("DCGM_FI_PROF_NVLINK_TX_BYTES", SignalKind.RATE, id="NVLink bytes sent are a rate (FC028)"),
        pytest.param("DCGM_FI_PROF_NVLINK_RX_BYTES", SignalKind.RATE, id="NVLink bytes received are a rate (FC028)"),
        pytest.param("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", SignalKind.RATE, id="NVLink bandwidth is a rate"),
        pytest.param("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", SignalKind.COUNTER, id="the new byte totals are counters"),
        pytest.param("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", SignalKind.COUNTER, id="energy is a counter"),
        pytest.param("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", SignalKind.COUNTER, id="volatile ECC restarts with the driver"),
        pytest.param("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", SignalKind.LIFETIME, id="aggregate ECC belongs to the board"),
        pytest.param("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", SignalKind.LIFETIME, id="remapped rows stay for life"),
        pytest.param("DCGM_FI_DEV_ROW_REMAP_FAILURE", SignalKind.STATE, id="a failed remap is a state"),
        pytest.param("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", SignalKind.STATE, id="clock reasons are a bit mask"),
        pytest.param("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", SignalKind.STATE, id="the recovery action is a state"),
    ],
)
def test_the_kind_is_ours_and_not_the_exporters(metric, kind):
    found = find(metric, {})
    assert found is not None
    assert found[1].kind is kind


def test_codes_and_states_are_never_scaled_or_added_up():
    wrong = [
        (signal, alias.metric)
        for signal, spec, alias in aliases()
        if spec.kind in (SignalKind.CODE, SignalKind.STATE) and (alias.scale != 1.0 or alias.sum_over)
    ]
    assert wrong == []


def test_codes_are_never_compared_by_size():
    assert [s for s, spec, alias in aliases() if spec.kind is SignalKind.CODE and alias.max_over] == []


def test_a_count_by_code_names_the_label_of_its_code():
    labels = {name: spec.code_label for name, spec in METRICS.items() if spec.kind is SignalKind.WINDOW_COUNT}
    assert labels == {"xid_window_count": "xid", "clock_event_count": "clock_event"}


# --------------------------------------------------------------------------------------------- units and blanks


@pytest.mark.parametrize(
    ("metric", "raw", "expected"),
    [
        pytest.param("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 4.5e8, 4.5e5, id="energy comes in mJ"),
        pytest.param("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 4.5e5, 4.5e5, id="the newer energy field is in J"),
        pytest.param("gpu_energy_consumed", 4.5e11, 4.5e5, id="AMD energy comes in uJ"),
        pytest.param("DCGM_FI_DEV_THERMAL_VIOLATION", 2.5e9, 2.5, id="violation time comes in ns"),
        pytest.param("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", 1e9, 1.0, id="slowdown time comes in ns"),
        pytest.param("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9, 1980.0, id="the newer clock field is in Hz"),
        pytest.param("DCGM_FI_DEV_FAN_SPEED_RATIO", 0.4, 40.0, id="the newer fan field is a ratio"),
    ],
)
def test_an_exporters_unit_becomes_ours(metric, raw, expected):
    found = find(metric, {})
    assert found is not None
    assert raw * found[2].scale == pytest.approx(expected)


def test_the_blanks_are_the_documented_ones(shared):
    documented = json.loads((shared / "data/dcgm/sentinels.json").read_text(encoding="utf-8"))
    assert set(INT32_BLANKS) == {float(value) for value in documented["int32"].values()}
    assert set(FP64_BLANKS) == {float(value) for value in documented["fp64"].values()}
    assert set(INT64_BLANKS) == {float(value) for value in documented["int64"].values()}


def test_a_64_bit_blank_is_outside_every_bound_even_after_scaling():
    inside = [
        (signal, alias.metric)
        for signal, spec, alias in aliases()
        for blank in INT64_BLANKS
        if spec.scope is SignalScope.GPU and within(spec, blank * alias.scale)
    ]
    assert inside == []


def test_a_floating_blank_is_outside_every_bound_but_those_of_large_integer_counters():
    inside = {
        signal
        for signal, spec, alias in aliases()
        for blank in (*FP64_BLANKS, FP64_BLANKS[0] * 100)
        if spec.scope is SignalScope.GPU and within(spec, blank * alias.scale)
    }
    # Bytes, joules and nanoseconds are integer fields, which never carry the floating blank.
    assert {METRICS[signal].kind for signal in inside} == {SignalKind.COUNTER}
    assert {METRICS[signal].unit for signal in inside} == {"bytes", "joules", "seconds"}


def test_a_32_bit_blank_is_outside_the_bounds_of_every_level_state_and_code():
    level = (SignalKind.GAUGE, SignalKind.STATE, SignalKind.CODE, SignalKind.WINDOW_COUNT)
    inside = [
        (signal, alias.metric)
        for signal, spec, alias in aliases()
        for blank in INT32_BLANKS
        if spec.scope is SignalScope.GPU
        and spec.kind in level
        and alias.scale >= 1
        and within(spec, blank * alias.scale)
    ]
    assert inside == []


@pytest.mark.parametrize(
    "file", ["dcgm4_h100_aicr.prom", "dcgm3_t4_datadog.prom", "dcgm2_readme_blank.prom", "amd_metricslist_samples.prom"]
)
def test_recorded_values_are_inside_the_bounds_unless_they_are_blank(shared, file):
    blanks = {*INT32_BLANKS, *FP64_BLANKS, *INT64_BLANKS}
    outside = []
    checked = 0
    for name, labels, value in series(shared / "data/dcgm" / file):
        if (found := find(name, labels)) is None:
            continue
        signal, spec, alias = found
        checked += 1
        if within(spec, value * alias.scale) == (value in blanks):
            outside.append((signal, value))
    assert checked
    assert outside == []


@pytest.mark.parametrize(
    ("signal", "value"),
    [
        pytest.param("power_watts", 1500.0, id="a GB200 may draw 1500 W"),
        pytest.param("thermal_margin", -2.0, id="a margin may be negative (FC070)"),
        pytest.param("gpu_util_percent", 100.0, id="a busy GPU"),
        pytest.param("xid_last", 172.0, id="the highest XID known"),
        pytest.param("clock_event_reasons", 511.0, id="every clock reason at once"),
        pytest.param("recovery_action", 7.0, id="recovery actions beyond those of DCGM 4.6"),
    ],
)
def test_real_extremes_are_data(signal, value):
    assert within(METRICS[signal], value)


def test_an_offset_to_the_thermal_limit_is_not_taken_for_a_slowdown_temperature():
    assert not within(METRICS["slowdown_temp"], -2.0)
