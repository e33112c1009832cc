"""Faults that people who run GPU fleets have reported in public, as far as decoding a log decides them.

The ids are those of the collected field cases; each test states a report's input in our own lines, and what is right.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from detectors.events import KernelEvent
from detectors.kernel_text import ResetPhase, reset_phase
from detectors.kernel_time import NOTE_BEFORE_BOOT, NOTE_IN_FUTURE
from rules.vocabulary import EventKind

Decode = Callable[..., list[dict[str, Any]]]
Read = Callable[..., list[KernelEvent]]

BOOT = datetime(2025, 3, 1, 8, 0, tzinfo=UTC)
#: What asks for no more than a person's look, and so takes nothing out of service.
MILD = {"none", "restart_app", "follow_154", "inspect"}


def xid(second: float, code: int, detail: str, pci: str = "0000:07:00") -> str:
    return f"[{second:12.6f}] NVRM: Xid (PCI:{pci}): {code}, {detail}"


@pytest.mark.parametrize(
    "number_first", [pytest.param(False, id="FC037 the number second"), pytest.param(True, id="FC037 the number first")]
)
def test_fc037_a_loss_told_in_three_lines_and_by_number_is_one_cause(decoded: Decode, number_first: bool) -> None:
    words = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ]
    number = [xid(1843.5, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "0000:b3:00")]
    log = [*number, *words] if number_first else [*words, *number]
    first, second = decoded("\n".join(log))
    assert {first["kind"], second["kind"]} == {"xid", "off_bus"}
    assert first["code"] == second["code"] == second["secondary_to"] == 79
    assert first["pci"] == second["pci"] == "0000:b3:00"
    assert (first["secondary_to"], first["line"], first["action"]) == (None, 1, "reboot_node")


KMSG = "4,{},{},-;NVRM: Xid (PCI:0000:07:00): 31, pid=1, name=a, Ch 00000010"


@pytest.mark.parametrize(
    "step",
    [pytest.param(-300, id="FC040 the clock was set back"), pytest.param(300, id="FC040 the clock was set forward")],
)
def test_fc040_seconds_since_boot_become_time_by_the_boot_time_given_now(read: Read, step: int) -> None:
    boot = BOOT + timedelta(seconds=step)
    (event,) = read(KMSG.format(88, 3_600_000_000), boot_time=boot)
    assert (event.at, event.sequence, event.notes) == (boot + timedelta(hours=1), 88, ())


@pytest.mark.parametrize(
    ("line", "at", "note"),
    [
        pytest.param(KMSG.format(88, 3_600_000_000), BOOT + timedelta(minutes=30), NOTE_IN_FUTURE, id="FC040 future"),
        pytest.param(
            "[Sat Mar  1 07:00:00 2025] NVRM: Xid (PCI:0000:07:00): 31", BOOT, NOTE_BEFORE_BOOT, id="FC040 before boot"
        ),
    ],
)
def test_fc040_an_impossible_time_is_clamped_and_said(read: Read, line: str, at: datetime, note: str) -> None:
    (event,) = read(line, boot_time=BOOT, now=BOOT + timedelta(minutes=30))
    assert (event.at, event.notes) == (at, (note,))


def test_fc040_a_file_may_be_older_than_this_boot(read: Read) -> None:
    (event,) = read("2025-02-01T07:00:00Z node-a kernel: NVRM: Xid (PCI:0000:07:00): 31", boot_time=BOOT)
    assert (event.at, event.notes) == (datetime(2025, 2, 1, 7, tzinfo=UTC), ())


@pytest.mark.parametrize(
    ("text", "severity", "actions"),
    [
        pytest.param(
            "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 0x00000000",
            "nonfatal",
            MILD,
            id="FC044 Nonfatal, cut off",
        ),
        pytest.param(
            "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000010 0x0)",
            "nonfatal",
            MILD,
            id="FC044 Nonfatal although its sub-code asks for a reset",
        ),
        pytest.param("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17", "nonfatal", MILD, id="FC044 Nonfatal, no registers"),
        pytest.param(
            "145, RLW_SRC_TRACK Fatal XC1 i0 Link 17 (0x04084507 0x00000010 0x0)",
            "fatal",
            {"reset_gpu"},
            id="FC044 Fatal",
        ),
        pytest.param(
            "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x0)",
            "fatal",
            {"reset_gpu"},
            id="FC044 149",
        ),
        pytest.param(
            "146, TLW_RX_PIPE0 XC0 i0 Link 08 (0x0000000a 0x00000001 0x0)", "nonfatal", {"none"}, id="FC044 ignore"
        ),
    ],
)
def test_fc044_word_and_sub_code_decide_and_not_the_number(
    decoded: Decode, text: str, severity: str, actions: set[str]
) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0000:c5:00): {text}")
    assert (fault["severity"], fault["cause_class"]) == (severity, "link")
    assert fault["action"] in actions


@pytest.mark.parametrize("log", [pytest.param("GPU-I:05 GPU-CI:00", id="FC046")])
def test_fc046_the_mig_instance_is_read_inside_the_brackets(decoded: Decode, log: str) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0000:01:00 {log}): 94, pid=7194, Contained: CE User Channel (0x9). RST: No")
    assert (fault["code"], fault["pci"], fault["pid"]) == (94, "0000:01:00", 7194)
    assert (fault["gpu_instance"], fault["compute_instance"]) == (5, 0)


@pytest.mark.parametrize(
    ("detail", "action"),
    [
        pytest.param("from 0x0 (None) to 0x4 (Drain and Reset)", "reset_gpu", id="FC048 drain and reset"),
        pytest.param("from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)", "reset_gpu", id="FC048 reset"),
        pytest.param("from 0x1 (GPU Reset Required) to 0x2 (Node Reboot Required)", "reboot_node", id="FC048 reboot"),
        pytest.param("from 0x1 (GPU Reset Required) to 0x0 (None)", "none", id="FC048 back to none"),
        pytest.param("from 0x0 (None) to 0x63 (Something New)", "inspect", id="FC048 something new"),
    ],
)
def test_fc048_the_recommendation_is_the_new_one(decoded: Decode, detail: str, action: str) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed {detail}")
    assert (fault["code"], fault["action"]) == (154, action)


@pytest.mark.parametrize(
    ("text", "severity", "actions"),
    [
        pytest.param(
            "63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
            "nonfatal",
            {"none", "reset_gpu"},
            id="FC049 a row will be remapped",
        ),
        pytest.param(
            "64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x2eebc4100) - All reserved rows are remapped",
            "fatal",
            {"replace"},
            id="FC050 a row can't be remapped",
        ),
        pytest.param(
            "94, pid=7062, name=a, Contained: SM (0x1). RST: No, D-RST: No",
            "nonfatal",
            {"restart_app"},
            id="FC052 contained",
        ),
        pytest.param(
            "94, pid=7062, name=a, Contained: SM (0x1). RST: Yes, D-RST: No",
            "fatal",
            {"reset_gpu"},
            id="FC052 with reset",
        ),
        pytest.param(
            "109, pid=7062, name=a, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
            "nonfatal",
            {"reset_gpu"},
            id="FC052 a context switch timed out",
        ),
        pytest.param(
            "95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", "fatal", {"reset_gpu"}, id="FC053"
        ),
        pytest.param("68, pid=7062, name=a, Ch 00000008", "nonfatal", MILD, id="FC054 the vendors disagree"),
        pytest.param(
            "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0)",
            "fatal",
            MILD,
            id="FC063 a link is watched",
        ),
    ],
)
def test_one_record_asks_for_the_right_thing(decoded: Decode, text: str, severity: str, actions: set[str]) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0000:01:00): {text}")
    assert fault["severity"] == severity
    assert fault["action"] in actions


@pytest.mark.parametrize("repeats", [pytest.param(20, id="FC057")])
def test_fc057_a_dead_firmware_asks_for_one_reset_with_the_first_as_root(decoded: Decode, repeats: int) -> None:
    gsp = "pid='<unknown>', name=<unknown>, GSP Error: Task 1 raised error code 0x5 for reason 0x0"
    timeout = "pid='<unknown>', name=<unknown>, Timeout waiting for RPC from GSP! Expected function FREE (0x0 0x0)."
    faults = decoded("\n".join([xid(0, 120, gsp), *(xid(16 + n, 119, timeout) for n in range(repeats))]))
    assert {fault["action"] for fault in faults} == {"reset_gpu"}
    assert {fault["cause_class"] for fault in faults} == {"driver"}
    assert [fault["secondary_to"] for fault in faults] == [None, *[120] * repeats]


@pytest.mark.parametrize("pci", [pytest.param("0000:07:00", id="FC059")])
def test_fc059_a_chain_has_one_root_and_its_last_record_says_what_to_do(decoded: Decode, pci: str) -> None:
    chain = [
        xid(0, 62, "pid=1, name=a, 2027(3d84) 00000000 00000000", pci),
        xid(4, 45, "pid=1, name=a, Ch 00000008", pci),
        xid(12, 119, "pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU0 GSP!", pci),
        xid(20, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", pci),
    ]
    faults = decoded("\n".join(chain))
    assert [(fault["code"], fault["secondary_to"]) for fault in faults] == [(62, None), (45, 62), (119, 62), (154, 62)]
    assert faults[-1]["action"] == "reboot_node"


@pytest.mark.parametrize("code", [pytest.param(20034, id="FC060")])
def test_fc060_the_storm_of_the_switches_follows_from_the_lost_gpu(decoded: Decode, code: int) -> None:
    log = [xid(100, 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "0000:18:00")]
    places = [(0, 63), (1, 48), (2, 60), (2, 37), (0, 62)]
    for part in range(3):
        for step, (switch, link) in enumerate(places):
            said = (
                f"Fatal, Link {link:02d} LTSSM Fault Up",
                f"Severity 1 Engine instance {link:02d} Sub-engine instance 00",
                "Data {0x10000000, 0x10000000, 0x00000000}",
            )[part]
            stamp = 111.4 + 0.002 * (part * len(places) + step)
            log.append(f"[{stamp:.6f}] nvidia-nvswitch{switch}: SXid (PCI:0000:{switch + 5:02x}:00.0): {code}, {said}")
    loss, *storm = decoded("\n".join(log))
    assert (loss["code"], loss["action"], loss["secondary_to"]) == (79, "reboot_node", None)
    assert [fault["pci"] for fault in storm] == [f"0000:{switch + 5:02x}:00" for switch, _ in places]
    assert {(fault["kind"], fault["severity"], fault["secondary_to"]) for fault in storm} == {("sxid", "fatal", 79)}


@pytest.mark.parametrize("link", [pytest.param(14, id="FC063")])
def test_fc063_link_and_registers_are_kept(read: Read, link: int) -> None:
    text = f"NVLink: fatal error detected on link {link}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    (event,) = read(xid(1, 74, f"pid='<unknown>', name=<unknown>, {text}"))
    assert (event.place, event.registers) == ("link 14", (0, 0, 0x10000, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("text", "phase", "kind"),
    [
        pytest.param(
            "GPU reset begin!", ResetPhase.BEGIN, EventKind.RAS, id="FC066 a reset begins: open until it ends"
        ),
        pytest.param("GPU reset(2) succeeded!", ResetPhase.DONE, EventKind.GPU_RESET, id="FC066 a reset ends"),
        pytest.param("GPU reset(2) failed", ResetPhase.FAILED, EventKind.RAS, id="FC066 a reset fails"),
    ],
)
def test_fc066_begin_and_end_of_a_reset_are_told_apart(
    read: Read, text: str, phase: ResetPhase, kind: EventKind
) -> None:
    (event,) = read(f"[  100.5] amdgpu 0000:c3:00.0: amdgpu: {text}")
    assert (event.kind, event.pci, reset_phase(event.text)) == (kind, "0000:c3:00", phase)


@pytest.mark.parametrize(
    "detail",
    [
        pytest.param("Ch 00000008", id="FC117 the plain words"),
        pytest.param(
            "Preemptive cleanup, due to previous errors -- Most likely to see when running...", id="FC117 others"
        ),
        pytest.param("No Error", id="FC117 words that deny it"),
    ],
)
def test_fc117_the_number_decides_whatever_words_a_version_prints(decoded: Decode, detail: str) -> None:
    (fault,) = decoded(xid(1, 45, f"pid=1, name=a, {detail}"))
    assert (fault["code"], fault["cause_class"], fault["action"]) == (45, "application", "none")
