"""The whole path in one process: a log, an agent with its spool on the disk, the intake over HTTP, the ledger.

The log is one of the stand-ins beside this file. Time is the machine's: node and controller have the same clock, and
only a test turns it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

from daemon.agent.config import AgentConfig
from daemon.agent.kmsg import KmsgSource
from daemon.agent.metrics import AgentMetrics
from daemon.agent.plain_file import FileSource
from daemon.agent.position import Position, Source, SourceError
from daemon.agent.run import Agent, Parts
from daemon.agent.sender import Sender, Unsent, Who
from daemon.agent.spool import Spool
from daemon.agent_events import AgentEvent
from daemon.config import ListenConfig
from daemon.ledger import Entry, decode_body
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.agent.machine import RULES, Buffer, Machine
from tests.agent.served import NOW, Served, serving, token_of

#: Makes a source from the place that the spool has.
Start = Callable[[Position | None], Source]
NODE_NAME = "n1"


class Controller:
    """The intake and its ledger. It may be away, and comes back on the same port with the same ledger."""

    def __init__(self, folder: Path, now: datetime = NOW) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._at_s = 1000.0 + (now - NOW).total_seconds()
        self._port = 0
        self.served: Served | None = None
        self.start()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self.served = self._stack.enter_context(serving(self._folder, ListenConfig(port=self._port)))
        self.served.clock.at_s = self._at_s
        self._port = self.served.web.port

    def stop(self) -> None:
        self.served = None
        self._stack.close()

    def let_pass(self, seconds: float) -> None:
        self._at_s += seconds
        if self.served is not None:
            self.served.clock.at_s = self._at_s

    @property
    def here(self) -> Served:
        assert self.served is not None
        return self.served

    def entries(self) -> list[Entry]:
        """What the ledger has of agents, in the order in which it was written."""
        return self.here.entries()

    def events(self) -> list[KernelEvent]:
        return [decode_body(entry.body, AgentEvent).event for entry in self.entries()]

    def gaps(self) -> list[KernelEvent]:
        return [event for event in self.events() if event.kind is EventKind.COVERAGE_LOST]

    def codes(self) -> list[int | None]:
        """Of the faults, in the ledger's order."""
        return [event.code for event in self.events() if event.kind is EventKind.XID]

    def times(self) -> Counter[int | None]:
        """How often each code was told."""
        told: Counter[int | None] = Counter()
        for event in self.events():
            if event.kind is EventKind.XID:
                told[event.code] += event.count
        return told


@dataclass
class Node(Machine):
    """A machine whose time is the controller's too; only its wall clock may be set to another one."""

    now: datetime = NOW
    controller: Controller | None = None

    def let_pass(self, seconds: float) -> None:
        super().let_pass(seconds)
        if self.controller is not None:
            self.controller.let_pass(seconds)

    def reboot(self, after_s: float = 300.0, up_s: float = 20.0) -> None:
        super().reboot(after_s, up_s)
        if self.controller is not None:
            self.controller.let_pass(after_s + up_s)


@dataclass
class Life:
    """One node with its machine, its log and its agent, and the controller that it reports to."""

    folder: Path
    machine: Machine
    controller: Controller
    start_source: Start
    spool_bytes: int = 4 << 20
    agent: Agent | None = field(default=None, init=False)
    spool: Spool | None = field(default=None, init=False)
    source: Source | None = field(default=None, init=False)
    sent_in_vain: int = field(default=0, init=False)

    def start(self) -> None:
        """The agent's process begins."""
        self.spool = Spool(self.folder / "spool", self.spool_bytes, lambda: self.machine.now)
        self.source = self.start_source(self.spool.position)
        sender = Sender(self.config, Who(NODE_NAME, self.machine.boot_id, "1.0"))
        parts = Parts(self.source, self.spool, sender, AgentMetrics())
        self.agent = Agent(parts, lambda: self.machine.up_s)

    @property
    def config(self) -> AgentConfig:
        token = self.machine.folder / "token"
        token.write_text(token_of(NODE_NAME))
        return AgentConfig(controller=self.controller.url, token_file=token, timeout=10.0)

    def kill(self) -> None:
        """The process is gone between two calls: nothing is said or stored any more."""
        if self.spool is not None:
            self.spool._disk.close()  # the system gives the lock back
        if self.source is not None:
            self.source.close()
        self.agent = self.spool = self.source = None

    def read(self) -> None:
        """One look at the log."""
        assert self.agent is not None
        with suppress(SourceError):
            self.agent.read(threading.Event())

    def send(self) -> bool:
        """Send what is due, until nothing is left or the controller is away."""
        assert self.agent is not None
        for _ in range(5000):
            try:
                rest_s = self.agent.send()
            except Unsent:
                self.sent_in_vain += 1
                return False
            if rest_s is None:
                return True
            self.machine.let_pass(rest_s)
        raise AssertionError("it sends without end")

    def turn(self) -> None:
        """A look at the log and a request."""
        if self.agent is None:
            self.start()
        self.read()
        self.send()

    def settle(self) -> None:
        """Until the log is read to its end, and the controller has it all."""
        if self.agent is None:
            self.start()
        for _ in range(6):
            self.machine.let_pass(1.0)
            self.read()
            assert self.send()
        assert self.spool is not None
        assert len(self.spool) == 0


def kmsg_of(buffer: Buffer, lookback_s: float = 0.0) -> Start:
    """The ring buffer as a source."""
    machine = buffer.machine

    def start(since: Position | None) -> Source:
        return KmsgSource(
            RULES, NODE_NAME, since, lookback_s=lookback_s, boot_id_path=machine.boot_id_path, clock=machine.clock,
            open_ring=buffer.open,
        )  # fmt: skip

    return start


def file_of(machine: Machine, path: Path) -> Start:
    """A plain file as a source."""

    def start(since: Position | None) -> Source:
        return FileSource(
            RULES,
            NODE_NAME,
            since,
            path=path,
            boot_id_path=machine.boot_id_path,
            clock=machine.clock,
            sleep=machine.wait,
        )

    return start


@contextmanager
def living(machine: Machine, start: Start) -> Iterator[Life]:
    """A node whose agent has begun to listen, and its controller."""
    controller = Controller(machine.folder)
    made = Life(machine.folder, machine, controller, start)
    if isinstance(machine, Node):
        machine.controller = controller
    with patch("daemon.agent.run._READ_WAIT_S", 0.0):  # nothing is waited for but what a test lets pass
        try:
            made.turn()
            yield made
        finally:
            made.kill()
            if controller.served is not None:
                controller.stop()
