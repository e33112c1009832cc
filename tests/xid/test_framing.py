"""Frames: who wrote a record and when, for every way a kernel log reaches us."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from detectors.events import KernelEvent

Read = Callable[..., list[KernelEvent]]

FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=train, Ch 00000010"
BOOT = datetime(2025, 3, 1, 8, 0, tzinfo=UTC)
NOON = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)


def journal(message: object, **fields: object) -> str:
    return json.dumps({"MESSAGE": message, "_TRANSPORT": "kernel", **fields})


@pytest.mark.parametrize(
    ("prefix", "at"),
    [
        pytest.param("", None, id="a bare line"),
        pytest.param("          ", None, id="a bare line, indented"),
        pytest.param("[Sat Mar  1 12:00:00 2025] ", NOON, id="dmesg --ctime"),
        pytest.param("[14400.000000] ", NOON, id="dmesg, seconds since boot"),
        pytest.param("[    0] ", BOOT, id="dmesg, whole seconds since boot"),
        pytest.param("[14400.000000][ T1234] ", NOON, id="dmesg with the caller"),
        pytest.param("[  +0.000061] ", None, id="dmesg with time differences"),
        pytest.param("2025-03-01T12:00:00,000000+00:00 ", NOON, id="dmesg --time-format iso"),
        pytest.param("kern  :err   : 2025-03-01T13:00:00,000000+01:00 ", NOON, id="dmesg --decode, iso, another zone"),
        pytest.param("kern  :warn  : [14400.0] ", NOON, id="dmesg --decode, seconds since boot"),
        pytest.param("kern  :crit  : [Sat Mar  1 12:00:00 2025] ", NOON, id="dmesg --decode --ctime"),
        pytest.param("10.0.0.1: kern: err: [2025-03-01T12:00:00.000000000Z]: ", NOON, id="talosctl dmesg"),
        pytest.param("Mar  1 12:00:00 node-a kernel: ", NOON, id="syslog"),
        pytest.param("Mar  1 12:00:00 node-a kernel: [14000.5] ", NOON, id="syslog with seconds since boot"),
        pytest.param("mar 01 12:00:00.000123 node-a kernel: ", NOON.replace(microsecond=123), id="journalctl precise"),
        pytest.param("kwi 15 07:56:59 node-a kernel: ", None, id="syslog with a month in another language"),
        pytest.param("Feb 30 07:56:59 node-a kernel: ", None, id="syslog with a day that doesn't exist"),
        pytest.param("2025-03-01T12:00:00.000000+00:00 node-a kernel: ", NOON, id="rsyslog RFC 3339"),
        pytest.param("2025-03-01T12:00:00Z node-a kernel: [14000.5] ", NOON, id="rsyslog RFC 3339, both times"),
        pytest.param("Sat 2025-03-01 12:00:00 UTC node-a kernel: ", NOON, id="journalctl full"),
        pytest.param("[14400.000000] node-a kernel: ", NOON, id="journalctl monotonic"),
        pytest.param("<3>1 2025-03-01T12:00:00Z node-a kernel - - - ", NOON, id="RFC 5424"),
        pytest.param('<3>1 - - kernel - - [meta x="1\\]"] [14400.0] ', NOON, id="RFC 5424 with structured data"),
        pytest.param("<4>[14400.0] ", NOON, id="raw printk"),
        pytest.param("<3>Mar  1 12:00:00 node-a kernel: ", NOON, id="RFC 3164 with its priority"),
        pytest.param("kernel: [14400.0] ", NOON, id="a kernel tag alone"),
        pytest.param("4,1227,14400000000,c;", NOON, id="kmsg"),
        pytest.param("6,1227,14400000000,-,caller=T77;", NOON, id="kmsg with the caller"),
        pytest.param("\ufeff[14400.0] ", NOON, id="after a byte order mark"),
        pytest.param("\x1b[32m[14400.0] \x1b[0m\x1b[31m", NOON, id="in colour"),
        pytest.param("[14400.0]\t", NOON, id="a tab"),
        pytest.param("\x00\x00[14400.0] ", NOON, id="after NULs"),
        pytest.param("2025-02-31T12:00:00Z node-a kernel: ", None, id="a date that doesn't exist"),
    ],
)
def test_a_kernel_record_is_found_trusted_and_dated(read: Read, prefix: str, at: datetime | None) -> None:
    (event,) = read(prefix + FAULT + "\r", boot_time=BOOT, now=datetime(2025, 3, 2, tzinfo=UTC))
    assert (event.code, event.pci, event.pid, event.process) == (31, "0000:3b:00", 77, "train")
    assert event.trusted
    assert event.at == at
    assert event.text == FAULT


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("syslog:err   : 2025-05-27T04:18:56,089671+00:00 ", id="another facility"),
        pytest.param("user  :warn  : [12.5] ", id="the user facility"),
        pytest.param("Apr 15 07:56:59 node-a python[123]: ", id="a process with its id"),
        pytest.param("Apr 15 07:56:59 node-a logger: ", id="a process without its id"),
        pytest.param("Apr 15 07:56:59 node-a kernel[123]: ", id="a process that calls itself kernel"),
        pytest.param("Apr 15 07:56:59 node-a app: kernel: ", id="a process that writes a kernel tag"),
        pytest.param("app: kernel: ", id="a kernel tag after another tag"),
        pytest.param("2025-03-01T12:00:00Z node-a containerd[9]: ", id="a process, RFC 3339"),
        pytest.param("2025-03-01T12:00:00.1Z stderr F ", id="a container's log"),
        pytest.param("<12>", id="the user facility as a number"),
        pytest.param("<14>1 2025-03-01T12:00:00Z node-a kernel - - - ", id="RFC 5424, the user facility"),
        pytest.param("<3>1 2025-03-01T12:00:00Z node-a train - - - ", id="RFC 5424, a process"),
        pytest.param("12,1227,437812449,-;", id="kmsg written by a program"),
        pytest.param("I saw this: ", id="any words before it"),
        pytest.param("4,1227,437812449,-;usb 1-1: Product: ", id="a device name that quotes a fault"),
    ],
)
def test_text_that_is_not_the_kernels_is_shown_and_not_trusted(read: Read, prefix: str) -> None:
    (event,) = read(prefix + FAULT)
    assert (event.code, event.pci, event.trusted) == (31, "0000:3b:00", False)


@pytest.mark.parametrize(
    ("line", "trusted"),
    [
        pytest.param(journal(FAULT), True, id="text"),
        pytest.param(journal(list(FAULT.encode())), True, id="an array of byte values"),
        pytest.param(journal(list(FAULT.encode()), SYSLOG_FACILITY="0"), True, id="the kernel facility"),
        pytest.param(journal(FAULT, SYSLOG_FACILITY="1"), False, id="a program that wrote to /dev/kmsg"),
        pytest.param(journal(FAULT, _TRANSPORT="stdout"), False, id="a program's output"),
        pytest.param(journal(FAULT, _TRANSPORT=["kernel", "stdout"]), False, id="two transports"),
        pytest.param(json.dumps({"MESSAGE": FAULT}), False, id="no transport"),
        pytest.param(json.dumps({"log": FAULT}), False, id="another program's JSON"),
        pytest.param(journal(FAULT)[:-4], False, id="JSON cut off"),
    ],
)
def test_a_journal_entry_is_trusted_by_its_transport_and_facility(read: Read, line: str, trusted: bool) -> None:
    (event,) = read(line)
    assert (event.code, event.trusted) == (31, trusted)


def test_a_journal_entry_keeps_time_boot_and_host(read: Read) -> None:
    fields = {"_BOOT_ID": "b1", "_HOSTNAME": "node-a", "__REALTIME_TIMESTAMP": "1740830400000001"}
    (event,) = read(journal(FAULT, **fields, _SOURCE_MONOTONIC_TIMESTAMP="5000000"))
    assert (event.boot_id, event.node, event.source) == ("b1", "node-a", "journal")
    assert event.at == NOON.replace(microsecond=1)
    assert event.monotonic_s == 5.0


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(None, id="no message"),
        pytest.param([999], id="a value that is no byte"),
        pytest.param(["NVRM"], id="an array of words"),
        pytest.param(17, id="a number"),
    ],
)
def test_a_journal_entry_without_a_usable_message_gives_nothing(read: Read, message: object) -> None:
    assert read(journal(message)) == []


def test_kmsg_escapes_are_decoded_and_its_dictionary_is_no_text(read: Read) -> None:
    log = (
        r"4,88,5000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=\xc3\xa9t\x0ab\x5cc, Ch 00000010"
        "\n SUBSYSTEM=pci\n DEVICE=NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    )
    (event,) = read(log)
    assert event.process == "ét\nb\\c"
    assert (event.sequence, event.monotonic_s, event.source) == (88, 5.0, "kmsg")


def test_bytes_that_are_no_text_are_replaced(read: Read) -> None:
    (event,) = read(b"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=\xff\xfe, Ch 00000010")
    assert event.process == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("stamp", "options", "year"),
    [
        pytest.param("Mar  1 12:00:00", {"year": 2023}, 2023, id="the year is given"),
        pytest.param("Dec 31 23:59:00", {"now": datetime(2025, 1, 1, tzinfo=UTC)}, 2024, id="last year's December"),
        pytest.param("Jan  1 00:10:00", {"now": datetime(2025, 1, 1, tzinfo=UTC)}, 2025, id="a clock a little ahead"),
        pytest.param("Feb 29 12:00:00", {"now": datetime(2027, 3, 1, tzinfo=UTC)}, 2024, id="the last leap day"),
        pytest.param("Mar  1 12:00:00", {}, None, id="nothing is known"),
    ],
)
def test_a_syslog_stamp_gets_a_year(
    read: Read, stamp: str, options: dict[str, int | datetime], year: int | None
) -> None:
    (event,) = read(f"{stamp} node-a kernel: {FAULT}", **options)
    assert (event.at.year if event.at is not None else None) == year


def test_the_owner_of_the_log_beats_the_host_in_the_line(read: Read) -> None:
    line = f"Mar  1 12:00:00 node-a kernel: {FAULT}"
    assert [event.node for event in read(line)] == ["node-a"]
    assert [event.node for event in read(line, node="node-b")] == ["node-b"]
