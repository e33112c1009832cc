"""Every name in the recorded scrapes and metric lists has its signal; skipped where those files are not there."""

import json
import re
from pathlib import Path

import pytest

from tests.rules.metric_packs import aliases, find, series

#: Names in the recorded inputs that are deliberately no signal of ours, and why.
UNMAPPED = {
    "DCGM_FI_DEV_COUNT": "repeats the node's GPU count on every GPU; the inventory counts GPUs itself",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "one link of many; the total over all links is the signal",
}


LISTED = re.compile(r"^(?:#\s*)?(?P<name>(?:DCGM|dcgm)_\w+)\s*,\s*(?P<type>gauge|counter)\s*,")


def listed(path: Path) -> list[str]:
    """Field names of an exporter's metric list, the ones switched off (commented out) too; labels are no metrics."""
    return [match["name"] for line in path.read_text(encoding="utf-8").splitlines() if (match := LISTED.match(line))]


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "file", ["dcgm4_h100_aicr.prom", "dcgm3_t4_datadog.prom", "dcgm2_readme_blank.prom", "amd_metricslist_samples.prom"]
)
def test_every_recorded_name_has_a_signal(shared, file):
    names = {name: {} for name, _, _ in series(shared / "data/dcgm" / file)}
    known = {alias.metric for _, _, alias in aliases()}
    assert names
    assert {name for name in names if name not in known} <= UNMAPPED.keys()


def test_every_name_in_the_recorded_api_answers_has_a_signal(shared):
    answers = json.loads((shared / "data/dcgm/prometheus_api_h100_aicr.json").read_text(encoding="utf-8"))
    names = {item["metric"]["__name__"] for answer in answers for item in answer["data"]["result"]}
    assert names
    assert [name for name in names if find(name, {}) is None] == []


@pytest.mark.parametrize("file", ["default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv"])
def test_every_name_in_the_exporters_own_lists_has_a_signal(shared, file):
    names = listed(shared / "data/dcgm" / file)
    assert len(names) > 40
    assert {name for name in names if find(name, {}) is None} <= UNMAPPED.keys()


def test_the_exceptions_are_still_needed(shared):
    folder = shared / "data/dcgm"
    seen = {name for path in folder.glob("*.csv") for name in listed(path)}
    seen |= {name for path in folder.glob("*.prom") for name, _, _ in series(path)}
    assert UNMAPPED.keys() <= seen
    assert [name for name in UNMAPPED if find(name, {}) is not None] == []


def test_lower_case_spellings_find_the_same_signal():
    found = find("dcgm_fi_prof_gr_engine_active", {"uuid": "GPU-a", "pod_name": ""})
    assert found is not None
    assert found[0] == "gr_engine_active"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", id="temperature"),
        pytest.param("DCGM_FI_DEV_GPU_TEMP_LIMIT", "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS", id="margin"),
        pytest.param("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", id="power"),
        pytest.param("DCGM_FI_DEV_POWER_USAGE_INSTANT", "DCGM_FI_DEV_BOARD_POWER_RAW_WATTS", id="power now"),
        pytest.param("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", id="utilisation"),
        pytest.param("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", id="last XID"),
        pytest.param("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", id="PCIe replays"),
        pytest.param(
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", id="remapped rows"
        ),
        pytest.param("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED", id="remap failure"),
        pytest.param("DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", id="retired pages"),
        pytest.param(
            "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", id="flit CRC"
        ),
        pytest.param("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", id="NVLink traffic"),
        pytest.param("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", id="tensor"),
        pytest.param("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", id="clock reasons"),
        pytest.param("DCGM_FI_DEV_GPU_TEMP", "dcgm_gpu_temp", id="the 1.x spelling of temperature (FC016)"),
    ],
)
def test_a_renamed_field_stays_the_same_signal(old, new):
    one, other = find(old, {}), find(new, {})
    assert one is not None
    assert other is not None
    assert one[0] == other[0]
    assert one[2].scale == other[2].scale


@pytest.mark.parametrize(
    ("metric", "labels", "signal"),
    [
        pytest.param("gpu_clock", {"clock_type": "system"}, "sm_clock_mhz", id="AMD system clock drives the cores"),
        pytest.param("gpu_clock", {"clock_type": "memory"}, "memory_clock_mhz", id="AMD memory clock"),
        pytest.param("gpu_clock", {"clock_type": "video"}, None, id="AMD video clock is no signal"),
        pytest.param("gpu_afid_errors", {"severity": "fatal", "afid_index": "0"}, "afid_fatal", id="first fatal AFID"),
        pytest.param("gpu_afid_errors", {"severity": "fatal", "afid_index": "1"}, None, id="not the second AFID"),
        pytest.param("amd_gpu_junction_temperature", {}, "gpu_temp", id="AMD with its operator's prefix"),
        pytest.param("node_cpu_seconds_total", {"mode": "iowait", "cpu": "3"}, "node_cpu_iowait_seconds", id="iowait"),
        pytest.param("node_cpu_seconds_total", {"mode": "nice", "cpu": "3"}, None, id="other modes are no signal"),
    ],
)
def test_labels_decide_which_signal_a_shared_name_is(metric, labels, signal):
    found = find(metric, labels)
    assert (found[0] if found else None) == signal
