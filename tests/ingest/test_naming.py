"""From labels to meaning: exporters of all ages, MIG, racks, and whose work it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.ingest.naming import Named, Namer, Refused
from detectors.identity import Workload
from rules.schema import RuleBook
from rules.vocabulary import SignalKind, SignalScope
from tests.ingest.builders import ENERGY, TEMP, Labels, gpu, host, namer


def named(rules: RuleBook, labels: Labels, **more: Any) -> Named:
    got = namer(rules, **more).name(labels)
    assert isinstance(got, Named), got
    return got


EXPORTERS = [
    pytest.param(
        {
            "__name__": "dcgm_gpu_temp",
            "gpu": "0",
            "uuid": "GPU-a",
            "instance": "n1:9400",
            "pod_name": "",
            "container_name": "",
        },
        "gpu_temp",
        1.0,
        id="dcgm-exporter 1, lower case and uuid",
    ),
    pytest.param(
        {"__name__": "dcgm_power_violation", "gpu": "0", "UUID": "GPU-a", "instance": "n1:9400"},
        "power_violation_seconds",
        1e-9,
        id="dcgm-exporter 1 in nanoseconds",
    ),
    pytest.param(
        {"__name__": "dcgm_fi_prof_gr_engine_active", "gpu": "0", "uuid": "GPU-a", "instance": "n1:9400"},
        "gr_engine_active",
        1.0,
        id="FC016 the upper-case name in lower case",
    ),
    pytest.param(
        {"__name__": "DCGM_FI_DEV_FB_USED", "gpu": "0", "UUID": "GPU-a", "device": "nvidia0", "instance": "n1:9400"},
        "fb_used_mib",
        1.0,
        id="dcgm-exporter 2, without model and host",
    ),
    pytest.param(gpu(ENERGY) | {"UUID": "GPU-a"}, "energy_joules", 1e-3, id="dcgm-exporter 3, millijoules"),
    pytest.param(
        gpu("DCGM_FI_DEV_BOARD_POWER_WATTS") | {"UUID": "GPU-a"}, "power_watts", 1.0, id="dcgm-exporter 4.6, a new name"
    ),
    pytest.param(
        gpu("DCGM_FI_DEV_SM_CLOCK_HERTZ") | {"UUID": "GPU-a"}, "sm_clock_mhz", 1e-6, id="dcgm-exporter 4.7, hertz"
    ),
    pytest.param(
        {
            "__name__": "gpu_junction_temperature",
            "gpu_id": "0",
            "serial_number": "GPU-a",
            "hostname": "n1",
            "card_model": "AMD Instinct MI300X",
            "instance": "10.0.0.9:5000",
        },
        "gpu_temp",
        1.0,
        id="AMD's exporter",
    ),
    pytest.param(
        {
            "__name__": "gpu_energy_consumed",
            "gpu_id": "0",
            "serial_number": "GPU-a",
            "hostname": "n1",
            "instance": "10.0.0.9:5000",
        },
        "energy_joules",
        1e-6,
        id="AMD's exporter, microjoules",
    ),
]


@pytest.mark.parametrize(("labels", "signal", "scale"), EXPORTERS)
def test_every_exporter_says_the_same_thing(rules: RuleBook, labels: Labels, signal: str, scale: float) -> None:
    got = named(rules, {name: value for name, value in labels.items() if value})
    assert got.gpu is not None
    assert (got.signal, got.scale, got.gpu.uuid, got.gpu.index, got.node.name) == (signal, scale, "GPU-a", "0", "n1")
    assert (got.scope, got.catalogued) == (SignalScope.GPU, True)


def test_attributes_of_a_gpu_are_taken_over(rules: RuleBook) -> None:
    got = named(rules, gpu(TEMP, 3, DCGM_FI_DRIVER_VERSION="580.105.08", DCGM_FI_DEV_SERIAL="165"))
    assert got.gpu is not None
    assert got.gpu.pci == "0000:13:00"
    assert (got.gpu.model, got.gpu.driver, got.gpu.serial) == ("NVIDIA H100 80GB HBM3", "580.105.08", "165")


def test_amd_clocks_are_told_apart_by_type_and_joined_over_dies(rules: RuleBook) -> None:
    amd = {"__name__": "gpu_clock", "serial_number": "s1", "hostname": "n1", "clock_index": "2"}
    system = named(rules, amd | {"clock_type": "system"})
    memory = named(rules, amd | {"clock_type": "memory"})
    assert (system.signal, memory.signal, system.combine) == ("sm_clock_mhz", "memory_clock_mhz", "max")
    assert system.component != named(rules, amd | {"clock_type": "system", "clock_index": "3"}).component


def test_node_signals_need_no_gpu_and_are_added_up_over_their_parts(rules: RuleBook) -> None:
    got = named(rules, host("node_cpu_seconds_total", mode="idle", cpu="7"))
    assert (got.signal, got.scope, got.gpu, got.combine) == ("node_cpu_idle_seconds", SignalScope.NODE, None, "sum")


REFUSED = [
    pytest.param({"instance": "n1:9400"}, "no_name", id="a series without a name"),
    pytest.param({"__name__": TEMP, "instance": "n1:9400"}, "no_gpu_identity", id="a GPU signal that names no GPU"),
    pytest.param({"__name__": TEMP, "UUID": "GPU-a"}, "no_node", id="no label that leads to a machine"),
    pytest.param(gpu("DCGM_EXP_XID_ERRORS_COUNT"), "no_code", id="a count of codes without the code"),
    pytest.param(gpu("DCGM_EXP_XID_ERRORS_COUNT", xid="79?"), "no_code", id="a code that is no number"),
    pytest.param(gpu("DCGM_EXP_XID_ERRORS_COUNT", xid="²"), "no_code", id="a digit that int() refuses"),
    pytest.param(gpu("DCGM_EXP_XID_ERRORS_COUNT", xid="9" * 5000), "no_code", id="a number without end"),
]


@pytest.mark.parametrize(("labels", "reason"), REFUSED)
def test_what_says_nothing_usable_is_refused_with_a_reason(rules: RuleBook, labels: Labels, reason: str) -> None:
    assert namer(rules).name(labels) == Refused(reason)


_label_names = st.sampled_from(
    [
        "__name__",
        "instance",
        "job",
        "UUID",
        "uuid",
        "gpu",
        "Hostname",
        "pod",
        "exported_pod",
        "namespace",
        "GPU_I_ID",
        "xid",
        "pci_bus_id",
        "node",
        "container",
        "serial_number",
        "mode",
    ]
)
_label_values = st.text(max_size=12) | st.sampled_from(
    [TEMP, "DCGM_EXP_XID_ERRORS_COUNT", "http://[::1", "[::1", "10.0.0.7:9400", "::1", "a:b:c", "²", "00000000:10:00.0"]
)


@pytest.fixture(scope="module")
def naming(rules: RuleBook) -> Namer:
    return namer(rules)


@given(labels=st.dictionaries(_label_names, _label_values.filter(bool)))
def test_any_labels_are_named_or_refused(naming: Namer, labels: Labels) -> None:
    got = naming.name(labels)
    assert isinstance(got, Named | Refused)
    if isinstance(got, Named):
        assert got.node.name


# ------------------------------------------------------------------------------------------------- MIG, racks, raw


def test_a_mig_instance_is_uuid_and_instance_whatever_its_profile_says(rules: RuleBook) -> None:
    """FC020: the profile label may name a size that the node doesn't have."""
    one = named(rules, gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", GPU_I_ID="7", GPU_I_PROFILE="1g.11gb"))
    two = named(rules, gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", GPU_I_ID="7", GPU_I_PROFILE="1g.12gb"))
    assert one.gpu is not None
    assert one == two
    assert one.gpu.key == ("GPU-n1-0", 7)


def test_an_instance_id_that_is_no_number_is_the_whole_gpu(rules: RuleBook) -> None:
    got = named(rules, gpu(TEMP, GPU_I_ID="²"))
    assert got.gpu is not None
    assert got.gpu.gpu_instance is None


def test_a_rack_comes_from_the_first_label_that_has_one(rules: RuleBook) -> None:
    assert named(rules, gpu(TEMP, topology_rack="r7")).rack == "r7"
    assert named(rules, gpu(TEMP)).rack == ""


def test_a_series_outside_the_catalog_is_its_name_and_what_tells_it_from_its_sisters(rules: RuleBook) -> None:
    got = named(rules, gpu("my_gpu_errors_total", 1, link="3", err_msg="x", GPU_I_PROFILE="1g.10gb"))
    assert (got.signal, got.kind, got.catalogued) == ("my_gpu_errors_total{link=3}", SignalKind.COUNTER, False)


def test_a_disk_has_a_serial_number_too_and_is_no_gpu(rules: RuleBook) -> None:
    got = named(
        rules, host("smartctl_device_temperature", serial_number="S4XN", device="sda"), is_known=lambda _gpu: False
    )
    assert (got.scope, got.gpu) == (SignalScope.NODE, None)


# ------------------------------------------------------------------------------------------------- whose work


WORK = [
    pytest.param(
        {"pod": "dcgm-exporter-x", "namespace": "gpu-operator", "exported_pod": "train-0", "exported_namespace": "ml"},
        Workload("ml", "train-0", "train"),
        id="FC012 the exported pod is the work",
    ),
    pytest.param(
        {"pod": "train-0", "namespace": "ml", "container": "main"},
        Workload("ml", "train-0", "train"),
        id="FC012 with honorLabels the pod is the work",
    ),
    pytest.param(
        {"pod": "dcgm-exporter-x", "namespace": "gpu-operator", "container": "nvidia-dcgm-exporter"},
        None,
        id="FC012 an idle GPU's pod is the exporter's own",
    ),
    pytest.param(
        {"pod": "telemetry-x7k2p", "namespace": "m", "job": "telemetry"},
        None,
        id="an exporter that is called after its scrape job",
    ),
    pytest.param(
        {"pod": "weird-name", "namespace": "m", "instance": "10.0.0.7:9400", "job": "scrape"},
        None,
        id="the pod behind the target is never the work, however it is called",
    ),
    pytest.param(
        {"pod": "weird-name", "namespace": "ml", "instance": "10.0.0.8:9400", "job": "scrape"},
        Workload("ml", "weird-name", "weird-name"),
        id="the same pod on another target is work",
    ),
    pytest.param(
        {"pod": "dcgm-exporter-x", "namespace": "m", "pod_name": "train-0", "pod_namespace": "ml"},
        Workload("ml", "train-0", "train"),
        id="dcgm-exporter 1 calls it pod_name",
    ),
    pytest.param({}, None, id="nobody"),
    pytest.param(
        {"exported_pod": "llama-worker-3", "exported_namespace": "ml", "training_job": "llama-70b"},
        Workload("ml", "llama-worker-3", "llama-70b"),
        id="a label names the job",
    ),
]


@pytest.mark.parametrize(("labels", "work"), WORK)
def test_the_work_on_a_gpu(rules: RuleBook, labels: Labels, work: Workload | None) -> None:
    pods = {("10.0.0.7:9400", "scrape"): "weird-name"}
    got = named(
        rules, gpu(TEMP, instance="n1:9400") | labels, target_pod=lambda instance, job: pods.get((instance, job))
    )
    assert got.workload == work
