"""A daemon over a small simulated fleet: a clock that a test turns, a Prometheus that a test spoils, a real ledger."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from daemon.commands import output
from daemon.config import Config
from daemon.event_inbox import EventInbox
from daemon.inlets import Inlet
from daemon.ledger import Entry, EntryKind, Ledger
from daemon.logs import utc
from daemon.loop import Loop, Tick
from daemon.metrics import Metrics
from fixtures.fleet.faults import Maintenance
from fixtures.fleet.responder import Answers
from fixtures.fleet.shape import H100, Framing, Gpu, Pool, build_shape
from fixtures.fleet.telemetry import Fleet
from fixtures.fleet.workload import Run, WorkKind
from rules.loader import load_rules
from rules.schema import RuleBook
from tests.scripted_prometheus import ScriptedPrometheus

START_S = 1772409600.0
POLL_S = 60.0


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    return load_rules()


@pytest.fixture
def loaded(rules: RuleBook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this process use the rules that are loaded already, which saves each a second."""
    monkeypatch.setattr(output, "load_rules", lambda _extra: rules)


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """Three nodes that train for three hours, and nothing wrong: what goes wrong, a test writes into a kernel log.

    The third node is rebooted after 2 h 12 min.
    """
    shape = build_shape(7, (Pool(H100, 3, framings=(Framing.RFC3339,)),), START_S)
    run = Run("llama", "training", WorkKind.TRAIN, (0, 1, 2), 300.0, 3 * 3600.0)
    reboot = Maintenance(node=2, at_s=2.2 * 3600.0, lasts_s=900.0)
    return Fleet(7, shape, (run,), (reboot,), START_S, 3, 60.0)


@pytest.fixture(scope="session")
def answers(fleet: Fleet) -> Answers:
    return Answers(fleet)


@pytest.fixture
def prometheus(fleet: Fleet, answers: Answers) -> Iterator[ScriptedPrometheus]:
    with ScriptedPrometheus(answers, fleet.end.timestamp()).serving() as serving:
        yield serving


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The daemon's log lines go nowhere, unless a test captures them."""
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent


@dataclass
class Clock:
    """Stands still until a test moves it."""

    at_s: float

    def __call__(self) -> float:
        return self.at_s


@dataclass
class Daemon:
    """One daemon with everything that a test turns and looks at."""

    prometheus: ScriptedPrometheus
    rules: RuleBook
    folder: Path
    fleet: Fleet
    clock: Clock
    warm_up: float = 0.0
    timeout: float = 5.0
    loops: list[Loop] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    bell: threading.Event = field(default_factory=threading.Event)
    #: other roads of the next process, over its ledger
    other_inlets: Callable[[Ledger], list[Inlet]] = lambda _: []

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.folder / "ledger.db"

    def log_of(self, node: int) -> Path:
        """A node's kernel log, made empty where it is not there yet."""
        path = self.folder / f"{self.name(node)}.log"
        path.touch()
        return path

    def name(self, node: int) -> str:
        return self.fleet.shape.nodes[node].name

    def gpu(self, node: int, slot: int) -> Gpu:
        return self.fleet.shape.nodes[node].gpus[slot]

    def config(self) -> Config:
        return Config.model_validate(
            {
                "prometheus": {
                    "url": self.prometheus.url, "poll_interval": POLL_S, "slow_interval": 300, "backoff_max": 300,
                    "timeout": self.timeout, "warm_up": self.warm_up,
                },
                "ledger": {"url": f"sqlite:///{self.path}"},
                "listen": {"port": 0},
                "kernel_logs": [
                    {"node": node.name, "path": str(self.log_of(node.index))} for node in self.fleet.shape.nodes
                ],
            }
        )  # fmt: skip

    def start(self) -> Loop:
        """A new process over what the last one left."""
        self.stop()
        ledger = Ledger.open(f"sqlite:///{self.path}", now=lambda: utc(self.clock()), busy_timeout_s=0.05)
        self.ledgers.append(ledger)
        inlets: list[Inlet] = [EventInbox(ledger, self.rules, self.bell), *self.other_inlets(ledger)]
        loop = Loop(self.config(), self.rules, ledger, metrics=Metrics(), inlets=inlets, clock=self.clock)
        self.loops.append(loop)
        loop.start()
        return loop

    def stop(self) -> None:
        while self.loops:
            self.loops.pop().close()
        while self.ledgers:
            self.ledgers.pop().close()

    def tick(self, times: int = 1) -> Tick:
        """Let a poll interval pass and tick; gives the last tick."""
        for _ in range(times):
            self.clock.at_s += POLL_S
            last = self.loop.tick()
        return last

    @property
    def loop(self) -> Loop:
        return self.loops[-1]

    def say(self, node: int, text: str, *, at_s: float | None = None) -> None:
        """A line in a node's kernel log, as rsyslog writes it."""
        stamp = datetime.fromtimestamp(self.clock() if at_s is None else at_s, UTC).isoformat(timespec="microseconds")
        with self.log_of(node).open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {self.name(node)} kernel: {text}\n")

    def lose_gpu(self, node: int = 1, slot: int = 5) -> str:
        """The driver says that a GPU fell off the bus; gives its UUID."""
        gpu = self.gpu(node, slot)
        self.say(node, f"NVRM: Xid (PCI:{gpu.pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
        return gpu.uuid

    def break_memory(self, node: int = 1, slot: int = 5) -> str:
        """The driver says that a GPU's memory is broken, which a reload of the driver ends; gives its UUID."""
        gpu = self.gpu(node, slot)
        self.say(
            node, f"NVRM: Xid (PCI:{gpu.pci}): 95, pid=77, name=python3, Uncontained: LTC TAG (0x2, 0x1). RST: Yes"
        )
        return gpu.uuid

    def reload_driver(self, node: int = 1) -> None:
        """The driver says that it was loaded."""
        self.say(node, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024")

    def entries(self, *kinds: EntryKind) -> list[Entry]:
        """What the ledger holds of these kinds (of all kinds where none is named)."""
        return list(self.ledgers[-1].entries(kind=kinds or None))


@pytest.fixture
def daemon(prometheus: ScriptedPrometheus, rules: RuleBook, tmp_path: Path, fleet: Fleet) -> Iterator[Daemon]:
    """A daemon one hour into the fleet's time, not started yet."""
    made = Daemon(prometheus, rules, tmp_path, fleet, Clock(START_S + 3600.0))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def started(daemon: Daemon) -> Daemon:
    """A daemon that has seen its fleet for three ticks."""
    daemon.start()
    daemon.tick(3)
    return daemon


Metric = Callable[..., float]


@pytest.fixture
def metric(daemon: Daemon) -> Metric:
    """The value of one sample of the running daemon's metrics; 0 where there is none."""

    def read(name: str, **labels: str) -> float:
        return daemon.loop.metrics.registry.get_sample_value(name, labels) or 0.0

    return read
