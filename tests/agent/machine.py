"""A machine for the tests of the agent's sources: two clocks that a test turns, a boot id, the kernel's ring buffer."""

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from daemon.agent.clock import Moment
from daemon.agent.position import Position, Reading, Source
from daemon.agent.wire import report_id
from detectors.events import KernelEvent
from rules.loader import load_rules
from rules.vocabulary import EventKind

RULES = load_rules()
#: When every machine of these tests was switched on.
BOOT = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Machine:
    """Up for an hour; time passes when a test or a waiting source lets it."""

    folder: Path
    boots: int = 1
    up_s: float = 3600.0
    now: datetime = BOOT + timedelta(hours=1)
    #: called at each wait of a source
    meanwhile: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.boot_id_path.write_text(f"{self.boot_id}\n")

    @property
    def boot_id_path(self) -> Path:
        return self.folder / "boot_id"

    @property
    def boot_id(self) -> str:
        return str(UUID(int=self.boots))

    def clock(self) -> Moment:
        return Moment(self.now, self.up_s)

    def wait(self, seconds: float) -> None:
        """What a source that waits sees: somebody else's turn, and its time gone."""
        self.meanwhile()
        self.let_pass(max(seconds, 0.001))

    def let_pass(self, seconds: float) -> None:
        self.up_s += seconds
        self.now += timedelta(seconds=seconds)

    def set_clock(self, by_s: float) -> None:
        """The wall clock is set; the other one goes on."""
        self.now += timedelta(seconds=by_s)

    def suspend(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def reboot(self, after_s: float = 300.0, up_s: float = 20.0) -> None:
        self.now += timedelta(seconds=after_s + up_s)
        self.up_s = up_s
        self.boots += 1
        self.boot_id_path.write_text(f"{self.boot_id}\n")


@dataclass
class Buffer:
    """The kernel's side of /dev/kmsg: numbered records, of which the newest `size` are kept."""

    machine: Machine
    size: int = 10_000
    records: dict[int, bytes] = field(default_factory=dict)
    oldest: int = 0
    written: int = 0
    opened: int = 0
    #: errors that the next reads give
    errors: deque[int] = field(default_factory=deque)

    def say(self, text: str, *, priority: int = 3, flags: str = "-", after: str = "", up_s: float | None = None) -> int:
        """One record; gives its number."""
        stamp = int((self.machine.up_s if up_s is None else up_s) * 1e6)
        return self.put(f"{priority},{self.written},{stamp},{flags};{text}\n{after}".encode())

    def put(self, raw: bytes) -> int:
        self.records[self.written] = raw
        self.written += 1
        self.lose(len(self.records) - self.size)
        return self.written - 1

    def lose(self, count: int) -> None:
        """The oldest records are overwritten, never the newest one."""
        for _ in range(min(count, len(self.records) - 1)):
            del self.records[self.oldest]
            self.oldest += 1

    def clear(self) -> None:
        """What a reboot leaves."""
        self.records.clear()
        self.oldest = self.written = 0

    def open(self, _path: Path) -> "OpenBuffer":
        self.opened += 1
        return OpenBuffer(self, self.oldest)


@dataclass
class OpenBuffer:
    """An open file of it: one record a read, EPIPE where the next one was overwritten."""

    buffer: Buffer
    next: int

    def read(self) -> bytes | None:
        if self.buffer.errors:
            raise OSError(self.buffer.errors.popleft(), "made up by the test")
        if self.next < self.buffer.oldest:
            self.next = self.buffer.oldest
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if self.next >= self.buffer.written:
            return None
        raw = self.buffer.records[self.next]
        self.next += 1
        return raw

    def wait(self, seconds: float) -> None:
        self.buffer.machine.wait(seconds)

    def close(self) -> None:
        self.next = -1


def xid(code: int, pid: int = 1, pci: str = "0000:5c:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, pid={pid}, name=python3, Ch 00000008"


def switch_error(code: int, link: int = 14) -> list[str]:
    """The records of one NVSwitch error."""
    head = f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {code}"
    return [
        f"{head}, Fatal, Link {link:02d} LTSSM Fault Up",
        f"{head}, Severity 1 Engine instance {link:02d} Sub-engine instance 00",
        f"{head}, Data {{0x10000000, 0x10000000}}",
    ]


def off_bus(pci: str = "0000:b3:00.0") -> list[str]:
    """The records of a GPU that is gone, told without a number."""
    return [
        f"NVRM: The NVIDIA GPU {pci}",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]


RESET = "NVRM: GPU 0000:5c:00.0: GPU reset succeeded"


def everything(source: Source, *, waits_s: float = 3.0) -> list[Reading]:
    """All readings until nothing comes for so long."""
    readings = []
    while (reading := source.read(waits_s)) is not None:
        readings.append(reading)
    return readings


def events(readings: list[Reading]) -> list[KernelEvent]:
    return [event for reading in readings for event in reading.events]


def codes(readings: list[Reading]) -> list[int | None]:
    return [event.code for event in events(readings)]


class Heard(dict[str, KernelEvent]):
    """What was told, by its id: each event once, and by that only is known what was told before."""

    def __init__(self) -> None:
        super().__init__()
        self._highest: dict[str, int] = {}

    def take(self, reading: Reading) -> None:
        """Sequences of one boot grow, but for those of events that are told again after a restart."""
        for event in reading.events:
            highest = self._highest.get(event.boot_id, -1)
            assert event.sequence is not None
            assert 0 <= event.sequence < 1 << 63
            if event.kind is not EventKind.COVERAGE_LOST:  # one that is told again may have grown
                assert (report_id(event) in self) == (event.sequence <= highest)
            self.setdefault(report_id(event), event)
            self._highest[event.boot_id] = max(highest, event.sequence)


def place(readings: list[Reading], before: Position | None = None) -> Position | None:
    return readings[-1].position if readings else before


def gaps(readings: list[Reading]) -> list[KernelEvent]:
    """The stretches of the log that nobody read."""
    return [event for event in events(readings) if event.kind is EventKind.COVERAGE_LOST]


def first_place(source: Source) -> Position:
    """Where the log begins for a source on its very first start, which has no event yet."""
    reading = source.read(0.0)
    assert reading is not None
    assert not reading.events
    return reading.position
