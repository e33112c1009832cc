"""Every model name that we have met has its row, and what a model cannot have is not missed."""

import pytest

from rules.schema import ModelSpec, matches_any
from tests.rules.metric_packs import ALL, METRICS, series

MODELS: dict[str, ModelSpec] = ALL["models.yaml"].models


def rows_of(model: str) -> list[str]:
    return [row for row, spec in MODELS.items() if matches_any(model, spec.match)]


# ---------------------------------------------------------------------------------------------------- models

#: Model name as exporters give it, its row, how many NVLinks a healthy board always has.
KNOWN_MODELS = [
    ("NVIDIA H100 80GB HBM3", "h100_sxm", 18),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100_sxm", 18),
    ("NVIDIA H100 PCIe", "h100_pcie", 0),
    ("NVIDIA H100 NVL", "h100_nvl", 0),
    ("NVIDIA H200", "h200", 18),
    ("NVIDIA H200 NVL", "h200_nvl", 0),
    ("NVIDIA H20", "h20", 18),
    ("NVIDIA GH200 480GB", "gh200", 18),
    ("NVIDIA A100-SXM4-40GB", "a100_sxm4_40", 12),
    ("A100-SXM4-40GB", "a100_sxm4_40", 12),
    ("NVIDIA A100-SXM4-80GB", "a100_sxm4_80", 12),
    ("NVIDIA A100 80GB PCIe", "a100_pcie_80", 0),
    ("NVIDIA A100-PCIE-40GB", "a100_pcie_40", 0),
    ("NVIDIA B200", "b200", 18),
    ("NVIDIA B300 SXM6 AC", "b300", 18),
    ("NVIDIA GB200", "gb200", 18),
    ("NVIDIA GB300", "gb300", 18),
    ("NVIDIA L40S", "l40s", 0),
    ("NVIDIA L40", "l40", 0),
    ("NVIDIA L4", "l4", 0),
    ("NVIDIA A10", "a10", 0),
    ("NVIDIA A30", "a30", 0),
    ("NVIDIA A40", "a40", 0),
    ("Tesla T4", "t4", 0),
    ("Tesla V100-SXM2-32GB", "v100_sxm2", 6),
    ("Tesla V100-SXM3-32GB", "v100_sxm3", 6),
    ("Tesla V100-PCIE-16GB", "v100_pcie", 0),
    ("AMD Instinct MI210", "mi210", 0),
    ("AMD Instinct MI250X/MI250", "mi250x", 0),
    ("AMD Instinct MI300A", "mi300a", 0),
    ("AMD Instinct MI300X", "mi300x", 0),
    ("AMD Instinct MI325X", "mi325x", 0),
    ("MI350X", "mi350x", 0),
    ("MI355X", "mi355x", 0),
]


@pytest.mark.parametrize(("model", "row", "nvlinks"), [pytest.param(*case, id=case[0]) for case in KNOWN_MODELS])
def test_a_model_name_has_one_row_and_its_links(model, row, nvlinks):
    assert rows_of(model) == [row]
    assert MODELS[row].nvlinks == nvlinks


def test_every_row_is_met_by_a_known_name():
    assert {row for _, row, _ in KNOWN_MODELS} == MODELS.keys()


@pytest.mark.parametrize(("model", "nvlinks"), [pytest.param(name, links, id=name) for name, _, links in KNOWN_MODELS])
def test_no_nvlink_traffic_is_expected_where_no_links_are(model, nvlinks):
    """FC071 and FC072: zero traffic is a finding on a model with links and says nothing on one without."""
    assert METRICS["nvlink_bandwidth"].applies_to(model) == (nvlinks > 0)


@pytest.mark.parametrize(
    ("signal", "model", "applies"),
    [
        pytest.param("memory_temp", "Tesla T4", False, id="a T4 has no memory sensor (FC008)"),
        pytest.param("memory_temp", "NVIDIA H100 80GB HBM3", True, id="an H100 has one"),
        pytest.param("row_remap_failure", "Tesla V100-SXM2-32GB", False, id="a V100 retires pages, it remaps no rows"),
        pytest.param("row_remap_failure", "NVIDIA A100-SXM4-80GB", True, id="an A100 remaps rows"),
        pytest.param("nvlink_replay_errors", "NVIDIA A100 80GB PCIe", True, id="a bridged pair counts errors too"),
        pytest.param("nvlink_replay_errors", "NVIDIA L4", False, id="an L4 has no connector"),
        pytest.param("nvlink_replay_errors", "AMD Instinct MI300X", False, id="an MI300X speaks XGMI"),
        pytest.param("nvlink_link_recovery_failures", "NVIDIA GB200", True, id="NVLink 5 on Blackwell"),
        pytest.param("nvlink_link_recovery_failures", "NVIDIA H100 80GB HBM3", False, id="no NVLink 5 on Hopper"),
        pytest.param("xgmi_rx", "AMD Instinct MI300X", True, id="XGMI on AMD"),
        pytest.param("xgmi_rx", "NVIDIA B200", False, id="no XGMI on NVIDIA"),
    ],
)
def test_a_signal_that_a_model_cannot_have_is_not_missed(signal, model, applies):
    assert METRICS[signal].applies_to(model) is applies


def test_the_recorded_model_names_have_rows(shared):
    names = {
        labels["modelName"]
        for path in (shared / "data/dcgm").glob("*.prom")
        for _, labels, _ in series(path)
        if "modelName" in labels
    }
    assert {name: rows_of(name) for name in names} == {"NVIDIA H100 80GB HBM3": ["h100_sxm"], "Tesla T4": ["t4"]}


def test_a_t4_slows_down_where_its_scrape_says(shared):
    reported = {
        value
        for name, _, value in series(shared / "data/dcgm/dcgm3_t4_datadog.prom")
        if name == "DCGM_FI_DEV_SLOWDOWN_TEMP"
    }
    assert reported == {MODELS["t4"].slowdown_celsius}
