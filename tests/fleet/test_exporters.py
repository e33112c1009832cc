"""Names and labels by exporter generation, and what Prometheus makes of them."""

import re
from itertools import pairwise

import numpy as np
import pytest

from fixtures.fleet.exporters import epochs, exporter_labels, field_name, scraped, series_of, targets
from fixtures.fleet.shape import Exporter
from fixtures.fleet.signals import Field


def node_with(day, exporter):
    return next(node for node in day.shape.nodes if node.exporter is exporter)


NAMES = [
    (Exporter.DCGM2, Field.POWER, "DCGM_FI_DEV_POWER_USAGE"),
    (Exporter.DCGM2, Field.NVLINK_TX, None),
    (Exporter.DCGM2, Field.REMAP_FAILURE, None),
    (Exporter.DCGM3, Field.CLOCK_REASONS, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"),
    (Exporter.DCGM4, Field.CLOCK_REASONS, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    (Exporter.DCGM4, Field.XID, "DCGM_FI_DEV_XID_ERRORS"),
    (Exporter.DCGM46, Field.XID, "DCGM_FI_DEV_XID_ERROR"),
    (Exporter.DCGM46, Field.POWER, "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    (Exporter.DCGM46, Field.REMAP_UNCORRECTABLE, "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
    (Exporter.DCGM46, Field.SM_CLOCK, "DCGM_FI_DEV_SM_CLOCK"),
]


@pytest.mark.parametrize(
    ("exporter", "signal", "name"), [pytest.param(*row, id=f"{row[1].name.lower()} of {row[0]}") for row in NAMES]
)
def test_published_name(exporter, signal, name, day):
    assert field_name(signal, node_with(day, exporter)) == name


LABELS = {
    Exporter.DCGM2: ["gpu", "UUID", "device", "container", "namespace", "pod"],
    Exporter.DCGM3: [
        "gpu", "UUID", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION", "container", "namespace", "pod",
    ],
    Exporter.DCGM4: [
        "gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION", "container",
        "namespace", "pod",
    ],
}  # fmt: skip


@pytest.mark.parametrize("exporter", LABELS)
def test_labels_of_a_busy_gpu(exporter, day):
    node = node_with(day, exporter)
    busy = next(epoch for epoch in epochs(day, node.index, 0, day.steps) if epoch.pod)
    labels = exporter_labels(node, node.gpus[2], busy)
    assert [name for name, _ in labels] == LABELS[exporter]
    assert dict(labels)["UUID"] == node.gpus[2].uuid


def test_labels_are_those_of_a_recorded_scrape(day, shared):
    recorded = (shared / "data" / "dcgm" / "dcgm4_h100_aicr.prom").read_text(encoding="utf-8").splitlines()
    bare = next(line for line in recorded if 'gpu="3"' in line)
    names = re.findall(r'(\w+)="', bare)
    node = node_with(day, Exporter.DCGM4)
    idle = next(epoch for epoch in epochs(day, node.index, 0, day.steps) if not epoch.pod)
    labels = exporter_labels(node, node.gpus[3], idle)
    assert [name for name, _ in labels] == names
    assert dict(labels)["pci_bus_id"] == re.search(r'pci_bus_id="([^"]+)"', bare)[1]


CLASHES = [
    pytest.param((("pod", "train-0"),), False, {"pod": "exporter", "exported_pod": "train-0"}, id="the target wins"),
    pytest.param((("pod", "train-0"),), True, {"pod": "train-0"}, id="the exporter wins with honorLabels"),
    pytest.param((("pod", ""),), True, {"pod": "exporter"}, id="an empty label is none"),
    pytest.param((("gpu", "0"),), False, {"pod": "exporter", "gpu": "0"}, id="no clash"),
]


@pytest.mark.parametrize(("own", "honor", "expected"), CLASHES)
def test_scraped_labels(own, honor, expected):
    assert dict(scraped(own, (("pod", "exporter"),), honor=honor)) == expected


def test_no_two_series_have_the_same_labels(day, day_block):
    seen = [series.labels for series in series_of(day, day_block, targets(day))]
    assert len(seen) == len(set(seen))
    assert all(labels == tuple(sorted(labels)) for labels in seen)
    assert all(value for labels in seen for _, value in labels)


def test_label_epochs_cover_the_span_without_gap_or_overlap(day):
    for node in day.shape.nodes:
        found = epochs(day, node.index, 0, day.steps)
        assert found[0].first == 0
        assert found[-1].last == day.steps
        assert all(one.last == other.first for one, other in pairwise(found))


def test_a_gpu_has_one_series_of_a_metric_at_a_time(day, day_block):
    seen: dict[tuple[str, str, int], np.ndarray] = {}
    for series in series_of(day, day_block, targets(day)):
        labels = dict(series.labels)
        if "UUID" not in labels or "xid" in labels:
            continue
        here = np.zeros(day.steps, np.int64)
        here[series.first : series.first + len(series.values)] = ~np.isnan(series.values)
        key = labels["__name__"], labels["UUID"], series.target
        seen[key] = seen.get(key, 0) + here
    assert max(int(count.max()) for count in seen.values()) == 1


def test_two_replicas_scrape_the_same_values_at_other_moments(day):
    twice = [target for target in targets(day) if target.node == 15 and target.dcgm]
    assert [dict(target.labels)["prometheus_replica"] for target in twice] == ["prometheus-0", "prometheus-1"]
    assert twice[0].offset_ms != twice[1].offset_ms


def test_blank_values_reach_prometheus_from_old_exporters_only(day, day_block):
    blanks = {}
    for series in series_of(day, day_block, targets(day)):
        if series.name.startswith("DCGM") and np.nanmax(series.values) > 1.4e14 and "PROF" in series.name:
            blanks.setdefault(series.name, set()).add(dict(series.labels)["instance"])
    assert set(blanks) == {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE",
    }  # fmt: skip
    assert set().union(*blanks.values()) == {"gpu013:9400"}
