"""Statements that take several records: counted once, never swallowing another fault, in the order of the log."""

from collections.abc import Callable

import pytest

from detectors.events import KernelEvent
from detectors.kernel_log import KernelLogParser
from rules.schema import RuleBook
from rules.vocabulary import EventKind, Severity

Read = Callable[..., list[KernelEvent]]
Line = Callable[[float, str], str]

HEAD = "NVRM: The NVIDIA GPU {}"
BODY = "NVRM: (PCI ID: 10de:26b5) installed in this system has"
TAIL = "NVRM: fallen off the bus and is not responding to commands."


def stamped(log: list[tuple[float, str]]) -> str:
    return "\n".join(f"[{at:12.6f}] {text}" for at, text in log)


def switch_error(switch: int, code: int, link: int, word: str = "Fatal") -> tuple[str, str, str]:
    """The three records of one NVSwitch error, as the driver prints them."""
    prefix = f"nvidia-nvswitch{switch}: SXid (PCI:0000:{switch + 5:02x}:00.0): {code}"
    return (
        f"{prefix}, {word}, Link {link:02d} LTSSM Fault Up",
        f"{prefix}, Severity {int(word == 'Fatal')} Engine instance {link:02d} Sub-engine instance 00",
        f"{prefix}, Data {{0x10000000, 0x10000000, 0x00000000}}",
    )


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([HEAD.format("0000:b3:00.0"), BODY, TAIL], id="three records"),
        pytest.param(
            [f"[ 1843.308145] {HEAD.format('0000:b3:00.0')}", f"               {BODY}", f"               {TAIL}"],
            id="one stamp, two indented lines",
        ),
        pytest.param(
            [f"[ 1843.30814{i}] {text}" for i, text in enumerate((HEAD.format("0000:b3:00.0"), BODY, TAIL))],
            id="three stamps",
        ),
        pytest.param(
            [HEAD.format("0000:b3:00.0") + " (PCI ID: 10de:26b5)", "NVRM: installed in this system has", TAIL],
            id="another cut",
        ),
        pytest.param(
            [HEAD.format("0000:b3:00.0"), "NVRM: (PCI ID: 10de:26b5) installed in this system has fallen off the bus"],
            id="two records",
        ),
        pytest.param(
            ["4,9,1843308145,-;" + r"\x0a".join((HEAD.format("0000:b3:00.0"), BODY, TAIL))], id="one kmsg record"
        ),
        pytest.param(
            [HEAD.format("0000:b3:00.0"), "eth0: link up", BODY, "usb 1-1: new device", TAIL], id="others in between"
        ),
    ],
)
def test_a_gpu_that_is_off_the_bus_at_boot_is_one_fault(read: Read, lines: list[str]) -> None:
    (event,) = read("\n".join(["eth0: link up", *lines]))
    assert (event.kind, event.code, event.pci, event.line) == (EventKind.OFF_BUS, 79, "0000:b3:00", 2)
    assert "fallen off the bus" in event.text


def test_two_gpus_may_be_told_in_turns(read: Read) -> None:
    heads = [HEAD.format("0000:b3:00.0"), HEAD.format("0000:b4:00.0")]
    events = read("\n".join([*heads, BODY, BODY, TAIL, TAIL]))
    assert [(event.pci, event.line) for event in events] == [("0000:b3:00", 1), ("0000:b4:00", 2)]


def test_a_fault_inside_the_statement_comes_after_it(read: Read) -> None:
    other = "NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=a, Ch 00000008"
    events = read("\n".join([HEAD.format("0000:b3:00.0"), other, BODY, other, TAIL, other]))
    assert [event.line for event in events] == [1, 2, 4, 6]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        pytest.param([HEAD.format("0000:b3:00.0")], [], id="the log ends after the first record"),
        pytest.param(
            [HEAD.format("0000:b3:00.0"), "NVRM: installed in this system is not supported by the", TAIL],
            [(None, 3)],
            id="the statement was about something else",
        ),
        pytest.param([TAIL], [(None, 1)], id="the first record was lost"),
        pytest.param(
            [HEAD.format("0000:b3:00.0"), *["noise"] * 40, TAIL], [(None, 42)], id="too many lines in between"
        ),
        pytest.param(
            [f"[10.0] {HEAD.format('0000:b3:00.0')}", f"[12.5] {TAIL}"], [(None, 2)], id="too much time in between"
        ),
        pytest.param(
            [f"[10.0] {HEAD.format('0000:b3:00.0')}", *["[10.5] noise"] * 40, f"[10.9] {TAIL}"],
            [("0000:b3:00", 1)],
            id="many lines and little time",
        ),
        pytest.param(
            [HEAD.format("0000:b3:00.0"), f"user  :err   : [1.0] {TAIL}"],
            [(None, 2)],
            id="a program cannot end the kernel's statement",
        ),
    ],
)
def test_a_statement_that_stays_incomplete_loses_no_fault(
    read: Read, lines: list[str], found: list[tuple[str | None, int]]
) -> None:
    assert [(event.pci, event.line) for event in read("\n".join(lines))] == found


def test_nothing_waits_for_ever(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    assert list(parser.feed(HEAD.format("0000:b3:00.0").encode())) == []
    assert list(parser.feed(b"NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=a, Ch 00000008")) == []
    released = [event.line for _ in range(40) for event in parser.feed(b"noise")]
    assert released == [2]


def test_a_quiet_log_gives_what_it_held_when_asked(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    parser.feed(HEAD.format("0000:b3:00.0").encode())
    parser.feed(b"NVRM: Xid (PCI:0000:01:00): 43, pid=1, name=a, Ch 00000008")
    assert [event.code for event in parser.flush()] == [43]
    assert parser.flush() == []


def test_a_statement_may_go_on_after_a_pause_in_a_followed_log(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    found = []
    for text in (HEAD.format("0000:b3:00.0"), *switch_error(0, 20034, 60), BODY, TAIL):
        found += [*parser.feed(text.encode()), *parser.flush()]
    assert [(event.kind, event.line) for event in found] == [(EventKind.SXID, 2), (EventKind.OFF_BUS, 1)]


def test_a_switch_error_of_three_records_counts_once(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    events = [event for text in switch_error(2, 20034, 60) for event in parser.feed(text.encode())]
    assert [(event.code, event.pci, event.place, event.severity) for event in events] == [
        (20034, "0000:07:00", "link 60", Severity.FATAL)
    ]
    assert parser.stats.folded == 2


def test_a_second_data_record_belongs_to_the_same_error(read: Read) -> None:
    text, severity, data = switch_error(2, 20034, 60)
    assert len(read(f"{text}\n{severity}\n{data}\n{data}")) == 1
    assert len(read(f"{text}\n{severity}\n{data}\n{data}\n{data}")) == 2


def test_the_errors_of_several_switches_may_be_told_in_turns(read: Read) -> None:
    errors = [switch_error(0, 20034, 63), switch_error(1, 20034, 48), switch_error(2, 20034, 60)]
    log = [
        (10 + 0.004 * step, error[part]) for step, (part, error) in enumerate((p, e) for p in range(3) for e in errors)
    ]
    assert [event.place for event in read(stamped(log))] == ["link 63", "link 48", "link 60"]


def test_two_links_of_one_switch_may_be_told_in_turns(read: Read) -> None:
    one, two = switch_error(2, 20034, 60), switch_error(2, 20034, 37)
    assert [event.place for event in read("\n".join([one[0], two[0], two[1], one[1], one[2], two[2]]))] == [
        "link 60",
        "link 37",
    ]


@pytest.mark.parametrize(
    ("lines", "count"),
    [
        pytest.param([switch_error(0, 20034, 60)[1]], 1, id="a lone severity record"),
        pytest.param([switch_error(0, 20034, 60)[2]], 1, id="a lone data record"),
        pytest.param(switch_error(0, 20034, 60)[1:], 1, id="severity and data, the text lost"),
        pytest.param([switch_error(0, 20034, 60)[1], switch_error(0, 20034, 37)[1]], 2, id="two severities, two links"),
        pytest.param([switch_error(0, 20034, 60)[1]] * 2, 2, id="the same severity twice"),
        pytest.param(
            [switch_error(0, 20034, 60)[0], switch_error(0, 20034, 37)[1]], 2, id="the severity of another link"
        ),
        pytest.param(
            [switch_error(0, 20034, 60)[0], switch_error(1, 20034, 60)[1]], 2, id="the severity of another switch"
        ),
        pytest.param(
            [switch_error(0, 20034, 60)[0], switch_error(0, 20009, 60)[1]], 2, id="the severity of another code"
        ),
        pytest.param(
            [switch_error(0, 20009, 4)[0], switch_error(0, 20009, 4, "Non-fatal")[1]], 2, id="another gravity"
        ),
        pytest.param([switch_error(0, 20034, 60)[0]] * 2, 2, id="the same text twice"),
        pytest.param(
            [switch_error(0, 20034, 60)[0], *["noise"] * 40, switch_error(0, 20034, 60)[1]], 2, id="far apart"
        ),
        pytest.param(
            [switch_error(0, 20034, 60)[0], "12,5,1000,-;" + switch_error(0, 20034, 60)[1]], 2, id="a program"
        ),
    ],
)
def test_folding_never_swallows_another_fault(read: Read, lines: list[str], count: int) -> None:
    assert len(read("\n".join(lines))) == count


def test_time_decides_where_it_is_known(read: Read) -> None:
    text, severity, _ = switch_error(0, 20034, 60)
    assert len(read(stamped([(10.0, text), (10.9, severity)]))) == 1
    assert len(read(stamped([(10.0, text), (11.5, severity)]))) == 2
    assert len(read(f"2025-03-01T12:00:00Z n kernel: {text}\n2025-03-01T12:00:02Z n kernel: {severity}")) == 2


def test_a_record_goes_with_the_newest_error_it_can_reach(read: Read) -> None:
    text, severity, data = switch_error(0, 20034, 60)
    events = read(stamped([(10.0, text), (20.0, text), (20.1, severity), (20.2, data), (30.0, severity)]))
    assert [event.line for event in events] == [1, 2, 5]


def test_a_storm_over_many_switches_and_codes_is_held_in_bounds(rules: RuleBook) -> None:
    parser = KernelLogParser(rules)
    for code in range(2000):
        parser.feed(switch_error(code % 7, 10000 + code, 1)[0].encode())
    assert len(parser._assembler._switch_errors) <= 300
    assert parser.stats.events == 2000
