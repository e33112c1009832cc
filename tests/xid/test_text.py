"""Texts: what the drivers' words say, and what they don't."""

from collections.abc import Callable
from typing import Any

import pytest

from detectors.events import KernelEvent
from detectors.kernel_log import KernelLogParser
from detectors.kernel_text import ResetPhase, reset_phase
from rules.schema import RuleBook
from rules.vocabulary import EventKind, Severity

Read = Callable[..., list[KernelEvent]]


@pytest.mark.parametrize(
    ("where", "pci", "gpu_instance", "compute_instance"),
    [
        pytest.param("PCI:0000:9b:00", "0000:9b:00", None, None, id="as usual"),
        pytest.param("0000:01:00", "0000:01:00", None, None, id="older drivers: no PCI word"),
        pytest.param("0001:00", "0000:01:00", None, None, id="oldest drivers: bus and device"),
        pytest.param("PCI:0000:B3:00.0", "0000:b3:00", None, None, id="a function, upper case"),
        pytest.param("PCI:00000000:5c:00.0", "0000:5c:00", None, None, id="an eight-digit domain"),
        pytest.param("PCI:10000:e1:00", "10000:e1:00", None, None, id="a five-digit domain"),
        pytest.param("PCI:0001:ab:cd", "0001:ab:cd", None, None, id="a domain that is not zero"),
        pytest.param("PCI:0000:01:00 GPU-I:05", "0000:01:00", 5, None, id="a MIG GPU instance"),
        pytest.param("PCI:0000:01:00 GPU-I:05 GPU-CI:00", "0000:01:00", 5, 0, id="a MIG compute instance"),
        pytest.param("PCI:0000:01:00 GPU-CI:03 GPU-I:12", "0000:01:00", 12, 3, id="a MIG instance, the other order"),
    ],
)
def test_the_brackets_say_which_gpu(
    read: Read, where: str, pci: str, gpu_instance: int | None, compute_instance: int | None
) -> None:
    (event,) = read(f"NVRM: Xid ({where}): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No")
    assert (event.pci, event.gpu_instance, event.compute_instance) == (pci, gpu_instance, compute_instance)
    assert (event.code, event.pid, event.process) == (94, 7194, None)


@pytest.mark.parametrize(
    ("detail", "pid", "process"),
    [
        pytest.param("", None, None, id="nothing after the number"),
        pytest.param(", Ch 00000003, engmask 00000101", None, None, id="older drivers: no process"),
        pytest.param(", pid=123, name=python3, Ch 00000008", 123, "python3", id="as usual"),
        pytest.param(", pid=123, name=python3", 123, "python3", id="nothing after the name"),
        pytest.param(", pid=123, Ch 00000008", 123, None, id="no name"),
        pytest.param(", pid='<unknown>', name=<unknown>, Ch 00000008", None, None, id="unknown"),
        pytest.param(", pid=, name=, Ch 00000008", None, None, id="empty"),
        pytest.param(
            ", pid=1582259, name=nvc:[driver], GPU has fallen off the bus.", 1582259, "nvc:[driver]", id="colon"
        ),
        pytest.param(", pid=12, name=a,b, Ch 00000008", 12, "a,b", id="a comma in the name"),
        pytest.param(", pid=12, name=a, b, Ch 00000008", 12, "a, b", id="a comma and a space in the name"),
        pytest.param(", pid=12, name=pid=99, Ch 00000008", 12, "pid=99", id="a name that looks like a pid"),
        pytest.param(", pid=12, name=x (0x1) link 3, Ch 00000008", 12, "x (0x1) link 3", id="a name full of tricks"),
        pytest.param(", pid=12, name=VLLM::Worker, Ch 00000008", 12, "VLLM::Worker", id="two colons"),
    ],
)
def test_the_process_is_named(read: Read, detail: str, pid: int | None, process: str | None) -> None:
    (event,) = read("NVRM: Xid (PCI:0000:01:00): 43" + detail)
    assert (event.code, event.pid, event.process) == (43, pid, process)
    assert (event.place, event.registers) == (None, ())


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        pytest.param(
            "13, pid=1, name=a, Graphics SM Warp Exception on (GPC 7, TPC 3, SM 0): Illegal Instruction Parameter",
            {"place": "GPC 7 TPC 3"},
            id="where on the GPU",
        ),
        pytest.param(
            "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0)",
            {"place": "link 14", "registers": (0, 0, 0x10000, 0), "severity": Severity.UNKNOWN},
            id="a link and its registers",
        ),
        pytest.param(
            "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 0x00",
            {
                "place": "link 17",
                "registers": (0x04084507, 4, 0, 0),
                "unit": "RLW_SRC_TRACK",
                "severity": Severity.NONFATAL,
            },
            id="NVLink 5, cut off",
        ),
        pytest.param(
            "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)",
            {"unit": "NETIR_LINK_EVT", "severity": Severity.FATAL, "place": "link 8"},
            id="NVLink 5, more spaces",
        ),
        pytest.param(
            "149, NETIR_LINK_EVT Link Fatal XC0 i0 Link 08",
            {"unit": "NETIR_LINK_EVT", "severity": Severity.FATAL, "registers": ()},
            id="NVLink 5, no registers",
        ),
        pytest.param(
            "150, MSE Degraded Fatal XC0 i0 Link 01 (0x0 0x0)",
            {"unit": "MSE Degraded", "severity": Severity.FATAL},
            id="a unit of two words",
        ),
        pytest.param(
            "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            {"recovery_value": 4},
            id="the driver recommends",
        ),
        pytest.param("154, GPU recovery action changed from 0x0 (None) to 0x", {"recovery_value": None}, id="cut off"),
        pytest.param("154 (", {"recovery_value": None}, id="unbalanced brackets"),
    ],
)
def test_the_words_say_what_happened(read: Read, detail: str, expected: dict[str, Any]) -> None:
    (event,) = read("NVRM: Xid (PCI:0000:c5:00): " + detail)
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("NVRM: Xid : 32, pid=2280636", id="no brackets"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636", id="no number"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): 32x, pid=2280636", id="a number that goes on as a word"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): -1, pid=2280636", id="a negative number"),
        pytest.param("NVRM: Xid (PCI:0000:66:00): " + "9" * 5000, id="a number without end"),
        pytest.param("NVRM: Xid (): 32", id="empty brackets"),
        pytest.param("NVRM: Xid (PCI:zz:zz): 32", id="no address"),
        pytest.param("NVRM: Xid (PCI:0000:66:00", id="cut off in the address"),
        pytest.param("NVRM: Xid", id="cut off after the word"),
        pytest.param("nvidia-nvswitch0: SXid (PCI:0000:06:00.0): , Fatal", id="an SXid without a number"),
    ],
)
def test_a_malformed_record_gives_nothing_and_is_counted(rules: RuleBook, line: str) -> None:
    parser = KernelLogParser(rules)
    assert [*parser.feed(line.encode()), *parser.flush()] == []
    assert parser.stats.malformed == 1


@pytest.mark.parametrize(
    ("line", "kind", "expected"),
    [
        pytest.param(
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11 UTC 2025",
            EventKind.DRIVER_LOAD,
            {"driver_version": "580.105.08"},
            id="the driver loads",
        ),
        pytest.param(
            "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build  (dvs-builder)",
            EventKind.DRIVER_LOAD,
            {"driver_version": "570.86.15"},
            id="the open driver loads",
        ),
        pytest.param(
            "[drm] amdgpu kernel modesetting enabled.",
            EventKind.DRIVER_LOAD,
            {"driver_version": None},
            id="amdgpu loads",
        ),
        pytest.param(
            "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15300",
            EventKind.GPU_MAP,
            {"pci": "0000:00:05", "gpu_uuid": "GPU-efbdfde9-5798-a6e7-4c46-12518fa15300"},
            id="which GPU sits where",
        ),
        pytest.param(
            "NVRM: The NVIDIA probe routine failed for 1 device(s).", EventKind.PROBE_FAILED, {}, id="a probe failed"
        ),
        pytest.param(
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) succeeded!",
            EventKind.GPU_RESET,
            {"pci": "0000:c3:00"},
            id="AMD reset",
        ),
        pytest.param(
            "NVRM: GPU 0000:c3:00.0: GPU reset complete", EventKind.GPU_RESET, {"pci": "0000:c3:00"}, id="NVIDIA reset"
        ),
        pytest.param(
            "NVRM: GPU 0000:02:00.0: GPU has fallen off the bus.",
            EventKind.OFF_BUS,
            {"pci": "0000:02:00", "code": 79},
            id="off the bus without a number",
        ),
        pytest.param(
            "NVRM: GPU has fallen off the bus.",
            EventKind.OFF_BUS,
            {"pci": None, "code": 79},
            id="off the bus, no address",
        ),
        pytest.param(
            "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
            EventKind.RAS,
            {"pci": "0000:c3:00", "code": None},
            id="AMD errors",
        ),
        pytest.param(
            "kfd kfd: amdgpu: ring comp_1 timeout",
            EventKind.RAS,
            {"pci": None, "trusted": True},
            id="AMD, another prefix",
        ),
    ],
)
def test_other_facts_are_events_of_their_own(read: Read, line: str, kind: EventKind, expected: dict[str, Any]) -> None:
    (event,) = read(line)
    assert event.kind is kind
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("NVRM: GPU Board Serial Number: 1650400000000", id="a serial number"),
        pytest.param("NVRM: GPU 0000:02:00.0: GPU serial number is 0322500000000.", id="a serial number after a loss"),
        pytest.param("amdgpu 0000:e3:00.0: amdgpu: MEM ECC is active.", id="ECC is on"),
        pytest.param(
            "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block", id="no errors"
        ),
        pytest.param(
            "amdgpu 0000:42:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000", id="a register"
        ),
        pytest.param("NVRM: (PCI ID: 10de:26b5) installed in this system has", id="the middle of a statement"),
        pytest.param("NVRM: GPU 0000:c3:00.0: a GPU reset required by policy", id="a reset that nobody did"),
        pytest.param("Modules linked in: nvidia_uvm amdgpu", id="an oops that names a module"),
        pytest.param("", id="an empty line"),
    ],
)
def test_what_is_no_fault_gives_nothing(read: Read, line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("amdgpu 0000:c3:00.0: amdgpu: GPU reset begin!", ResetPhase.BEGIN),
        ("amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) succeeded!", ResetPhase.DONE),
        ("amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) failed", ResetPhase.FAILED),
        ("amdgpu 0000:c3:00.0: amdgpu: GPU reset end with ret = -110", ResetPhase.FAILED),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU Reset Required", None),
    ],
)
def test_a_reset_says_how_far_it_came(text: str, phase: ResetPhase | None) -> None:
    assert reset_phase(text) is phase
