"""Lines on their way to a reading: what a flood costs, and what it never hides."""

from dataclasses import replace

import pytest

from daemon.agent.gathering import MAX_VARIANTS, NOTE_VARIANTS, Gathering
from daemon.agent.position import Position
from detectors.events import KernelEvent
from rules.loader import load_rules
from rules.schema import RuleBook

RULES = load_rules(())


class Lines:
    """A log's lines as the kernel writes them, handed over when a test asks."""

    def __init__(self, rules: RuleBook) -> None:
        self.gathering: Gathering[int] = Gathering(
            rules, "n1", lambda event, _: replace(event, boot_id="b", source="kmsg")
        )
        self.number = 0

    def say(self, text: str) -> None:
        self.number += 1
        line = f"4,{self.number},{self.number},-;{text}".encode()
        self.gathering.take(line, self.number, self.number, (0, text.encode()))

    def told(self) -> list[KernelEvent]:
        self.gathering.pause()
        return list(self.gathering.hand_over(Position("kmsg"), float(self.number)).events)


@pytest.fixture
def lines() -> Lines:
    return Lines(RULES)


def mmu_fault(pid: int, pci: str = "0000:5c:00", code: int = 31) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid={pid}, name=python, MMU Fault: faulted @ 0x7f_{pid:08x}"


def test_a_fault_in_ever_new_detail_is_a_few_events_that_count_them_all(lines: Lines) -> None:
    for pid in range(2000):
        lines.say(mmu_fault(pid))
    events = lines.told()
    assert len(events) == MAX_VARIANTS
    assert sum(event.count for event in events) == 2000
    assert NOTE_VARIANTS in events[-1].notes
    assert lines.gathering.counts["malformed"] == 0


def test_a_storm_hides_no_other_fault(lines: Lines) -> None:
    for pid in range(500):
        lines.say(mmu_fault(pid))
    others = [
        mmu_fault(1, pci="0000:5d:00"),
        mmu_fault(1, code=13),
        "NVRM: Xid (PCI:0000:5c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:5c:00 GPU-I:05): 31, pid=1, name=python, MMU Fault",
    ]
    for text in others:
        lines.say(text)
    told = {(event.code, event.pci, event.gpu_instance) for event in lines.told()}
    assert {(31, "0000:5d:00", None), (13, "0000:5c:00", None), (79, "0000:5c:00", None), (31, "0000:5c:00", 5)} <= told


def test_what_a_program_writes_counts_in_nothing_of_the_kernels(lines: Lines) -> None:
    for pid in range(100):
        lines.say(mmu_fault(pid))
    text = mmu_fault(7)
    lines.gathering.take(f"12,999,999,-;{text}".encode(), 999, 999, (1, text.encode()))
    events = lines.told()
    assert sum(event.count for event in events if event.trusted) == 100
    assert [event.count for event in events if not event.trusted] == [1]


def test_a_storm_of_one_severity_hides_none_of_another(lines: Lines) -> None:
    def link(number: int, severity: str) -> str:
        return (
            f"NVRM: Xid (PCI:0000:5c:00): 149, NETIR_LINK_EVT {severity} XC0 i0 Link {number % 18} "
            f"(0x004505c6 0x{number:08x} 0x00000000 0x00000000 0x00000000 0x00000000)"
        )

    for number in range(300):
        lines.say(link(number, "Nonfatal"))
    lines.say(link(5, "Fatal"))
    events = lines.told()
    assert [event.count for event in events if event.severity == "fatal"] == [1]
    assert sum(event.count for event in events if event.severity == "nonfatal") == 300


def test_after_a_reset_the_same_fault_is_another_one(lines: Lines) -> None:
    for pid in range(100):
        lines.say(mmu_fault(pid))
    lines.say("NVRM: GPU 0000:5c:00.0: RmInitAdapter succeeded!")
    lines.say("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 23:15:11 UTC 2025")
    lines.say(mmu_fault(101))
    kinds = [event.kind.value for event in lines.told()]
    assert kinds[-1] == "xid"
    assert "driver_load" in kinds
    assert kinds.index("driver_load") == len(kinds) - 2
