"""What must hold for any log: no input raises, order is kept, and folding never loses a fault."""

import io
import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from daemon.commands.xid import decode
from detectors.kernel_log import KernelLogParser, bounded_lines, parse_lines
from rules.loader import load_rules

RULES = load_rules()

#: Pieces that the grammar knows, so that random logs come close to real ones.
PIECES = st.sampled_from(
    [
        b"NVRM: ", b"Xid (PCI:0000:01:00): ", b"Xid (", b"79", b"145", b"154", b", pid=", b"12", b", name=", b"a\\x0ab",
        b"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): ", b"20034, ", b"Fatal, Link 3", b"Severity 1 Engine instance 3",
        b"Data {0x1, 0x2}", b"amdgpu 0000:c3:00.0: ", b"2 uncorrectable hardware errors detected in umc block",
        b"The NVIDIA GPU 0000:b3:00.0", b"(PCI ID: 10de:26b5) installed in this system has", b"fallen off the bus",
        b"RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004", b"GPU recovery action changed to 0x4 (Drain",
        b"loading NVIDIA UNIX x86_64 Kernel Module  580.105.08", b"GPU reset(1) succeeded!", b"[ 12.5] ",
        b"4,1,5000,-;", b")",
        b"[Fri Aug 30 11:43:09 2024] ", b"Apr 15 07:56:59 node-a kernel: ", b"kern  :err   : ", b"<4>", b'{"MESSAGE":"',
        b'","_TRANSPORT":"kernel"}', b'{"MESSAGE":[78,86,82,77]}', b"\x1b[31m", b"\x00", b"\r", b"\n", b"\t", b"\xff",
    ]
)  # fmt: skip
BYTES = st.lists(PIECES | st.binary(max_size=8), max_size=60).map(b"".join)


def faults(log: bytes) -> list[dict[str, Any]]:
    out = io.StringIO()
    assert decode(io.BytesIO(log), out, RULES, None) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


@given(BYTES)
def test_any_bytes_decode_without_an_error_and_in_order(log: bytes) -> None:
    lines = [fault["line"] for fault in faults(log)]
    assert lines == sorted(lines)
    assert all(1 <= line <= log.count(b"\n") + 1 for line in lines)


@given(st.lists(BYTES, max_size=5))
def test_any_chunks_may_be_fed_as_lines(chunks: list[bytes]) -> None:
    parser = KernelLogParser(RULES)
    events = [event for chunk in chunks for event in parser.feed(chunk)] + parser.flush()
    assert parser.stats.lines == len(chunks)
    assert parser.stats.events == len(events)


@given(BYTES, st.integers(1, 50))
def test_the_size_of_the_reads_changes_nothing(log: bytes, size: int) -> None:
    whole = list(bounded_lines(io.BytesIO(log)))
    pieces = list(bounded_lines(io.BufferedReader(io.BytesIO(log), buffer_size=size)))
    assert whole == pieces


ERRORS = st.tuples(st.integers(0, 2), st.sampled_from([20034, 20009]), st.integers(0, 5))


def records(error: tuple[int, int, int]) -> list[str]:
    """The three records of one NVSwitch error."""
    switch, code, link = error
    prefix = f"nvidia-nvswitch{switch}: SXid (PCI:0000:{switch + 5:02x}:00.0): {code}"
    return [
        f"{prefix}, Fatal, Link {link:02d} LTSSM Fault Up",
        f"{prefix}, Severity 1 Engine instance {link:02d} Sub-engine instance 00",
        f"{prefix}, Data {{0x10000000, 0x10000000}}",
    ]


@given(st.lists(ERRORS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_interleaved_switch_errors_count_once_each(errors: list[tuple[int, int, int]], random: Any) -> None:
    """Each error's own three records keep their order; those of different errors mix freely."""
    queues = [records(error) for error in errors]
    log: list[str] = []
    while any(queues):
        log.append(random.choice([queue for queue in queues if queue]).pop(0))
    found = Counter((event.pci, event.code) for event in parse_lines([line.encode() for line in log], RULES))
    assert found == Counter((f"0000:{switch + 5:02x}:00", code) for switch, code, _ in errors)


@given(st.lists(st.sampled_from(["xid", "text", "severity", "data", "head", "body", "tail", "noise"]), max_size=40))
def test_folding_loses_no_fault(kinds: list[str]) -> None:
    """Whatever is mixed in, every Xid and every switch error's text comes out, once."""
    said = {
        "xid": "NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=a, Ch 00000008",
        "head": "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "body": "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "tail": "NVRM: fallen off the bus and is not responding to commands.",
        "noise": "eth0: link up",
        **dict(zip(("text", "severity", "data"), records((0, 20034, 3)), strict=True)),
    }
    events = list(parse_lines([said[kind].encode() for kind in kinds], RULES))
    lines = [event.line for event in events]
    wanted = [number for number, kind in enumerate(kinds, 1) if kind in ("xid", "text")]
    assert lines == sorted(lines)
    assert set(wanted) <= set(lines)
    assert sum(event.kind == "off_bus" for event in events) == kinds.count("tail")


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_a_log_of_any_length_is_read_in_bounded_memory(gaps: list[int]) -> None:
    """What is held back never spans more lines than the assembler's reach."""
    parser = KernelLogParser(RULES)
    held = 0
    for gap in gaps:
        for line in [b"[1.0] NVRM: The NVIDIA GPU 0000:b3:00.0", *[b"[1.0] NVRM: Xid (PCI:0000:01:00): 43"] * gap]:
            held += line.endswith(b"43") - len(list(parser.feed(line)))
            assert held <= 256
