"""One reading of Loki from process to process, on clocks that a test turns, without a thread."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from daemon.loki.client import LokiError
from daemon.loki.config import LokiConfig
from daemon.loki.cursor import Cursor
from daemon.loki.reading import Batch, Gap, Reader
from detectors.events import KernelEvent
from rules.schema import RuleBook
from tests.loki.stand_in import Direct, S, StandIn

NOW_NS = 1_800_000_000 * S
KERNEL = {"job": "journal", "transport": "kernel"}


def config(**keys: Any) -> LokiConfig:
    """A configuration that believes in the journal's kernel transport."""
    known = {"url": "http://loki", "query": '{job="journal"}', "trusted_labels": {"transport": "kernel"}}
    return LokiConfig.model_validate(known | keys)


def xid(pid: int = 77, code: int = 79) -> str:
    return f"NVRM: Xid (PCI:0000:5c:00): {code}, pid={pid}, name=python3, GPU has fallen off the bus."


@dataclass
class Life:
    """`taken` and `gaps` hold what ticks took; what was read and not taken dies with its process."""

    rules: RuleBook
    loki: StandIn = field(default_factory=StandIn)
    config: LokiConfig = field(default_factory=config)
    now_ns: int = NOW_NS
    steady_s: float = 0.0
    stored: bytes | None = None
    taken: list[KernelEvent] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    held: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process, which goes on where ticks had come."""
        begin_ns = self.now_ns - round(self.config.lookback * S)
        cursor = Cursor(begin_ns) if self.stored is None else Cursor.unpack(self.stored)
        self.cursor, self.held = cursor.copy(), []
        asks = Direct(self.loki, self.config)
        self.reader = Reader(self.config, asks, self.rules, cursor, lambda: self.now_ns, lambda: self.steady_s)
        if self.stored is None:
            self.take()

    def push(self, at_s: float, line: str, node: str = "n1", **labels: str) -> None:
        """A line whose time is so many seconds after the test's begin."""
        self.loki.push(NOW_NS + round(at_s * S), line, node=node, **(KERNEL | labels))

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)
        self.steady_s += seconds

    def read(self, times: int = 1) -> None:
        """Rounds, as the thread does them; an error ends one."""
        for _ in range(times):
            try:
                for batch in self.reader.round():
                    self.held.append(batch)
            except LokiError as error:
                self.errors.append(error.trouble.value)

    def take(self, most: int | None = None) -> None:
        """A tick takes what was read, and the ledger has it."""
        for batch in self.held[:most]:
            self.cursor.move(batch.step)
            self.taken += batch.events
            self.gaps += batch.gaps
            self.counts.update(batch.counts)
        self.held = [] if most is None else self.held[most:]
        self.stored = self.cursor.pack()

    def go(self, seconds: float = 0.0) -> list[int | None]:
        """Wait, read, take; gives the pids of the new events."""
        before = len(self.taken)
        self.wait(seconds)
        self.read()
        self.take()
        return [event.pid for event in self.taken[before:]]

    def again(self, **keys: Any) -> None:
        """Another process with another configuration."""
        self.config = replace_keys(self.config, **keys)
        self.restart()

    @property
    def whole_gaps(self) -> list[Gap]:
        """Those that are more than a word about late lines."""
        return [replace(gap) for gap in self.gaps if not gap.is_mild]


def replace_keys(old: LokiConfig, **keys: Any) -> LokiConfig:
    return LokiConfig.model_validate(old.model_dump() | keys)
