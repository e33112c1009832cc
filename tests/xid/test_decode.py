"""`gpuwarden xid decode`: the contract of its output, and that no input breaks it."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from daemon.commands.xid import decode
from detectors.kernel_log import MAX_LINE_BYTES, KernelLogParser, bounded_lines
from rules.schema import RuleBook

Decode = Callable[..., list[dict[str, Any]]]

FIELDS = [
    "line", "kind", "code", "pci", "gpu_instance", "compute_instance", "pid", "process", "severity", "cause_class",
    "action", "secondary_to", "trusted", "text",
]  # fmt: skip
LOST = "NVRM: Xid (PCI:0000:0a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_each_fault_is_one_object_with_the_fields_of_the_contract(decoded: Decode) -> None:
    (fault,) = decoded(f"[  1.0] eth0: link up\n[  2.0] {LOST}\n")
    assert list(fault) == FIELDS
    assert fault == {
        "line": 2,
        "kind": "xid",
        "code": 79,
        "pci": "0000:0a:00",
        "gpu_instance": None,
        "compute_instance": None,
        "pid": None,
        "process": None,
        "severity": "fatal",
        "cause_class": "hardware",
        "action": "reboot_node",
        "secondary_to": None,
        "trusted": True,
        "text": LOST,
    }


@pytest.mark.parametrize(
    ("code", "cause_class", "action"),
    [
        (13, "application", "restart_app"),
        (31, "application", "restart_app"),
        (64, "hardware", "replace"),
        (74, "link", "inspect"),
        (79, "hardware", "reboot_node"),
        (94, "hardware", "restart_app"),
        (95, "hardware", "reset_gpu"),
        (119, "driver", "reset_gpu"),
        (120, "driver", "reset_gpu"),
        (999, "unknown", "inspect"),
    ],
)
def test_the_shipped_rules_judge_the_common_codes(decoded: Decode, code: int, cause_class: str, action: str) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0000:0a:00): {code}, pid=1, name=a, Ch 00000008")
    assert (fault["code"], fault["cause_class"], fault["action"]) == (code, cause_class, action)


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_a_fault_of_an_application_asks_for_nothing_beyond_its_restart(decoded: Decode, code: int) -> None:
    (fault,) = decoded(f"NVRM: Xid (PCI:0000:0a:00): {code}, pid=1, name=a, Ch 00000008")
    assert fault["cause_class"] == "application"
    assert fault["action"] in ("none", "restart_app")


def test_lines_without_a_fault_give_nothing(decoded: Decode) -> None:
    log = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08\nNVRM: GPU Board Serial Number: 1\n\n"
    assert decoded(log) == []
    assert decoded("") == []


def test_the_last_line_may_lack_its_newline(decoded: Decode) -> None:
    assert [fault["line"] for fault in decoded(f"x\n{LOST}")] == [2]


def test_a_fault_held_back_at_the_end_is_written(decoded: Decode) -> None:
    assert [fault["line"] for fault in decoded(f"NVRM: The NVIDIA GPU 0000:b3:00.0\n{LOST}")] == [2]


#: For this unit the same first register means RLW_REMAP up to R570 and nothing from R575 on.
OLD_LAYOUT = "NVRM: Xid (PCI:0000:0a:00): 145, RLW_REMAP Fatal XC1 i0 Link 17 (0x00000082 0x00000040 0x00000000)"


def test_the_driver_version_chooses_the_bit_layout(decoded: Decode) -> None:
    load = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {}  Release Build"
    benign = "NVRM: Xid (PCI:0000:0a:00): 145, XC1 i0 Link 17 (0x00000082 0x00000100 0x00000000)"
    assert [fault["action"] for fault in decoded(benign, "570.86.15")] == ["none"]
    assert [fault["action"] for fault in decoded(benign, "580.105.08")] == ["inspect"]
    assert [fault["action"] for fault in decoded(f"{load.format('570.86.15')}\n{benign}")] == ["none"]
    assert [fault["action"] for fault in decoded(f"{load.format('580.105.08')}\n{benign}")] == ["inspect"]
    assert [fault["action"] for fault in decoded(f"{load.format('580.105.08')}\n{benign}", "570.86.15")] == ["none"]
    assert [fault["action"] for fault in decoded(OLD_LAYOUT, "570.86.15")] == ["reset_gpu"]


def test_every_framing_in_one_log_keeps_the_order(decoded: Decode) -> None:
    log = "\n".join(
        [
            f"[Fri Aug 30 11:43:09 2024] {LOST}",
            f"Apr 15 07:56:59 node-a python[123]: {LOST}",
            f"4,1227,437812449,c;{LOST}",
            json.dumps({"MESSAGE": LOST, "_TRANSPORT": "kernel"}),
        ]
    )
    faults = decoded(log)
    assert [fault["line"] for fault in faults] == [1, 2, 3, 4]
    assert [fault["trusted"] for fault in faults] == [True, False, True, True]


def test_what_cannot_be_used_is_told_once(rules: RuleBook) -> None:
    notes, out = io.StringIO(), io.StringIO()
    log = b"NVRM: Xid : 32\nNVRM: Xid (PCI:0000:66:00): abc\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\n"
    assert decode(io.BytesIO(log), out, rules, None, notes=notes) == 0
    assert out.getvalue() == ""
    assert notes.getvalue() == (
        "xid decode: 2 malformed Xid or SXid records, which give nothing; "
        "1 lines over 16384 bytes, of which the rest is not read\n"
    )


def test_a_clean_log_needs_no_note(rules: RuleBook) -> None:
    notes = io.StringIO()
    decode(io.BytesIO(LOST.encode()), io.StringIO(), rules, None, notes=notes)
    assert notes.getvalue() == ""


class EndlessLine(io.RawIOBase):
    """A stream of one line of ten million bytes, and a fault after it; it counts the largest piece asked for."""

    def __init__(self) -> None:
        self.left = 10_000_000
        self.tail = f"\n{LOST}\n".encode()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.left:
            size = min(len(buffer), self.left)
            buffer[:size] = b"NVRM" * (size // 4) + b"x" * (size % 4)
            self.left -= size
            return size
        size = len(self.tail)
        buffer[:size], self.tail = self.tail, b""
        return size


def test_a_line_of_ten_megabytes_is_cut_counted_and_passed(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    sizes, lines = [], []
    for line in bounded_lines(io.BufferedReader(EndlessLine())):
        sizes.append(len(line))
        lines += [event.line for event in parser.feed(line)]
    assert max(sizes) == MAX_LINE_BYTES + 1
    assert lines == [2]
    assert (parser.stats.lines, parser.stats.truncated) == (2, 1)


def test_a_fault_at_the_begin_of_an_endless_line_is_kept(decoded: Decode) -> None:
    (fault,) = decoded(LOST + " " + "x" * 50_000)
    assert fault["code"] == 79
    assert len(fault["text"]) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"[" * 16000 + b"NVRM: Xid (PCI:0000:0a:00): 79", id="brackets"),
        pytest.param(b'{"MESSAGE":' + b"[" * 16000, id="deep JSON"),
        pytest.param(b'{"a":' * 3000 + b'"NVRM: Xid (PCI:0000:0a:00): 79"', id="deep JSON objects"),
        pytest.param(b'{"MESSAGE":"NVRM: Xid \\ud800 (PCI:0000:0a:00): 79"}', id="half a surrogate pair"),
        pytest.param(b"4," + b"9" * 19 + b"," + b"9" * 19 + b",-;NVRM: Xid (PCI:0000:0a:00): 79", id="huge numbers"),
        pytest.param(b"[9999999999.9] NVRM: Xid (PCI:0000:0a:00): 79", id="a stamp in 300 years"),
        pytest.param(b"0000-00-00T00:00:00Z node-a kernel: NVRM: Xid (PCI:0000:0a:00): 79", id="the year zero"),
        pytest.param(b"0001-01-01T00:00:00+23:00 node-a kernel: NVRM: Xid (PCI:0000:0a:00): 79", id="before time"),
        pytest.param("[١٢.٣] NVRM: Xid (PCI:0000:0a:00): ٧٩".encode(), id="other digits"),
        pytest.param(b"NVRM: Xid (PCI:0000:0a:00): 145, A Fatal (0x" + b"f" * 500, id="a long register"),
        pytest.param(b"NVRM: Xid (PCI:0000:0a:00): 145, A Fatal (" + b"0x1 " * 3000, id="many registers"),
        pytest.param(
            b"nvidia-nvswitch0: SXid (PCI:0000:0a:00.0): 1, Severity " + b"9" * 9000 + b" Engine instance 1",
            id="severity",
        ),
    ],
)
def test_hostile_lines_do_no_harm(decoded: Decode, line: bytes) -> None:
    faults = decoded(line + b"\n" + LOST.encode())
    assert faults[-1]["line"] == 2
    assert len(faults) <= 2
