"""The parts of `make bench-agent` that measure: quiet, faults one by one, the kernel's own buffer, and floods."""

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.ledger import EntryKind, Ledger
from tests.bench_agent.agents import KMSG, NodeAgent, everyday, gone
from tests.bench_agent.measuring import Mark, give_way, memory_mb, spread
from tests.bench_agent.npd import Detector, kept_up
from tests.bench_agent.site import Controller, Watch
from tests.bench_cluster.site import ROOT
from tests.testbed.waiting import TestbedError, until

Say = Callable[[str], None]
_CAUGHT_UP_WITHIN_S = 300.0
_SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Wrote:
    """A fault that was written into a node's log, in unix seconds, and when its taint was seen."""

    node: str
    at: float
    seen: float

    @property
    def took_s(self) -> float:
        """From the line to the taint."""
        return self.seen - self.at


def quiet(controller: Controller, idle: NodeAgent, seconds: float) -> dict[str, Any]:
    """What an agent with a silent log costs, and the controller at normal rates."""
    now_s = time.monotonic()
    marks = {"agent": Mark.of(idle.process.pid, now_s), "controller": Mark.of(controller.process.pid, now_s)}
    time.sleep(seconds)
    return {name: mark.since(time.monotonic()) for name, mark in marks.items()}


def fault(agent: NodeAgent, watch: Watch, pci: str) -> Wrote:
    """One GPU falls off the bus. Raises TestbedError where its node is not tainted within a minute."""
    at = agent.says(gone(pci))
    until(f"{agent.node} tainted", lambda: agent.node in watch.tainted, within_s=60, every_s=0.01)
    return Wrote(agent.node, at, watch.tainted[agent.node])


def one_by_one(agents: Sequence[NodeAgent], watch: Watch, pci: str) -> list[Wrote]:
    """Each node's GPU is lost, after a random pause."""
    dice, found = random.Random(7), []
    for agent in agents:
        time.sleep(dice.uniform(0.5, 3.0))
        found.append(fault(agent, watch, pci))
    return found


@contextmanager
def murmur(agents: Sequence[NodeAgent], pci: str, every_s: float) -> Iterator[None]:
    """Each of these logs gets a fault of an application now and then."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.wait(every_s / max(1, len(agents))):
            agents[number % len(agents)].says(everyday(pci, number))
            number += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# ----------------------------------------------------------------------------------------------------------- /dev/kmsg


def kernel_buffer(agent: NodeAgent, controller: Controller, count: int) -> dict[str, Any]:
    """From a write to /dev/kmsg to the entry in the ledger: user space cannot write as the kernel, so nothing is done.

    The time that the entry says is used, so that asking for it takes nothing away from it.
    """
    took, texts = [], []
    for number in range(count):
        time.sleep(2.5)  # after the last one stopped being a repeat, and below the kernel's own limit
        text = f"NVRM: Xid (PCI:0000:5c:00): 31, pid={88_000 + number}, name=bench-agent, Ch 00000001"
        texts.append((text, time.time()))
        with KMSG.open("wb", buffering=0) as file:
            file.write(f"bench-agent: {text}\n".encode())
    time.sleep(2.0)
    written = {str(one[2]): one[0] for one in _events(controller, agent.node)}
    for text, at in texts:
        hit = [moment for told, moment in written.items() if text in told]
        if hit:
            took.append(min(hit) - at)
    return {"line_to_ledger": spread(took), "written": count, "in_the_ledger": len(took)}


def _events(controller: Controller, node: str) -> list[tuple[float, str, str]]:
    with Ledger.open(controller.ledger, now=lambda: datetime.now(UTC), busy_timeout_s=30) as ledger:
        return [
            (one.written.timestamp(), node, str(one.body["event"]["text"]))
            for one in ledger.entries(kind=EntryKind.EVENT, node=node)
            if one.written is not None
        ]


# -------------------------------------------------------------------------------------------------------------- floods


class Sampler:
    """The flooding agent while it is flooded: how far it has read, and the most that its spool held."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._stop = threading.Event()
        self.read_before = self.lines_read
        self.sent_before = agent.metric('gpuwarden_agent_requests_total{result="ok"}')
        self.reports_before = agent.metric('gpuwarden_agent_reports_total{result="taken"}')
        self.most = {"spool_bytes": 0.0, "spool_reports": 0.0}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def lines_read(self) -> float:
        """Lines that the agent has taken in, by its own counter."""
        return self._agent.metric('gpuwarden_agent_log_total{what="records"}')

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            for name in self.most:
                self.most[name] = max(self.most[name], self._agent.metric(f"gpuwarden_agent_{name}"))

    def end(self) -> dict[str, float]:
        """What crossed the wire, and the spool's most."""
        self._stop.set()
        self._thread.join()
        agent = self._agent
        return {
            **self.most,
            "requests": agent.metric('gpuwarden_agent_requests_total{result="ok"}') - self.sent_before,
            "reports": agent.metric('gpuwarden_agent_reports_total{result="taken"}') - self.reports_before,
        }


def flood(
    noisy: NodeAgent,
    others: Sequence[NodeAgent],
    controller: Controller,
    watch: Watch,
    pcis: tuple[str, str],
    what: tuple[str, float, float],
    detector: Detector | None = None,
) -> dict[str, Any]:
    """One log gets `what` (kind, lines a second, seconds) while GPUs of other nodes are lost.

    Half-way a GPU of the flooded node is lost too, which that flood must not hide. The flooded node's own processes get
    what the others leave of the CPU, as if they had a node of their own; but not beside a rival on the same log.
    """
    kind, rate, seconds = what
    sampler, began_s, size = Sampler(noisy), time.monotonic(), noisy.log.stat().st_size
    pids = {"agent": noisy.process.pid, "controller": controller.process.pid}
    marks = {name: Mark.of(pid, began_s) for name, pid in pids.items()}
    rival = Mark.of(detector.process.pid, began_s) if detector is not None else None
    writer = subprocess.Popen(
        [
            sys.executable, "-m", "tests.bench_agent.flood", str(noisy.log), noisy.node, pcis[0], kind, str(rate),
            str(seconds),
        ],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if detector is None:
        for pid in (writer.pid, noisy.process.pid):
            give_way(pid)
    own: list[float] = []
    half = threading.Timer(seconds / 2, lambda: own.append(noisy.says(gone(pcis[1]))))
    half.start()
    found = _while_it_lasts(writer, others, watch, pcis[0])
    told = json.loads(writer.communicate(timeout=seconds * 4 + 60)[0])
    half.join()
    ended_s = time.monotonic()
    give_way(noisy.process.pid, 0)
    read_in_time = sampler.lines_read - sampler.read_before
    used = {name: mark.since(ended_s) for name, mark in marks.items()}
    answer: dict[str, Any] = {
        "kind": kind,
        "asked_lines_per_s": rate,
        "written": {**told, "lines_per_s": told["lines"] / told["seconds"]},
        "others": spread([one.took_s for one in found]),
        **used,
    }
    if detector is not None and rival is not None:
        answer["node_problem_detector"] = kept_up(detector, rival, told["bytes"] / told["lines"], size, ended_s)
    answer["agent"] |= _caught_up(sampler, read_in_time, told["lines"], ended_s, marks["agent"])
    if own and detector is None:
        answer["own_fault_s"] = _seen(watch, noisy.node, own[0])
    answer["wire"] = sampler.end()
    answer["agent"]["peak_memory_mb"] = memory_mb(noisy.process.pid, "VmHWM")
    return answer


def _while_it_lasts(
    writer: "subprocess.Popen[str]", others: Sequence[NodeAgent], watch: Watch, pci: str
) -> list[Wrote]:
    dice, found = random.Random(13), []
    for agent in others:
        time.sleep(dice.uniform(0.5, 2.0))
        if writer.poll() is not None:
            break
        found.append(fault(agent, watch, pci))
    return found


def _caught_up(sampler: Sampler, in_time: float, lines: int, ended_s: float, mark: Mark) -> dict[str, float | None]:
    """How many lines it had read when the flood ended, and how long it took it to read the rest."""
    until_s = ended_s + _CAUGHT_UP_WITHIN_S
    while sampler.lines_read - sampler.read_before < lines and time.monotonic() < until_s:
        time.sleep(0.25)
    now_s = time.monotonic()
    read = sampler.lines_read - sampler.read_before
    return {
        "lines_read_in_time": in_time,
        "lines_read_per_s": in_time / max(ended_s - mark.at_s, 1e-9),
        "lines_read": read,
        "caught_up_after_s": now_s - ended_s if read >= lines else None,
        "cpu_us_per_line": mark.since(now_s)["cpu_s"] * 1e6 / max(read, 1.0),
    }


def _seen(watch: Watch, node: str, at: float) -> float | None:
    try:
        until(f"{node} tainted", lambda: node in watch.tainted, within_s=_CAUGHT_UP_WITHIN_S, every_s=0.05)
    except TestbedError:
        return None
    return watch.tainted[node] - at


# ------------------------------------------------------------------------------------------------- where the time went


def stages(controller: Controller, found: Sequence[Wrote]) -> dict[str, Any]:
    """Medians and the most of each step, by the times in the ledger: line, report, attempt, the taint as seen."""
    steps: dict[str, list[float]] = {"line_to_report": [], "report_to_attempt": [], "attempt_to_taint_seen": []}
    with Ledger.open(controller.ledger, now=lambda: datetime.now(UTC), busy_timeout_s=30) as ledger:
        for one in found:
            told = [_since(entry.written, one.at) for entry in ledger.entries(kind=EntryKind.EVENT, node=one.node)]
            tried = [_since(entry.written, one.at) for entry in ledger.entries(kind=EntryKind.ATTEMPT, node=one.node)]
            reports, attempts = sorted(x for x in told if x >= 0), sorted(x for x in tried if x >= 0)
            if reports and attempts:
                steps["line_to_report"].append(reports[0])
                steps["report_to_attempt"].append(attempts[0] - reports[0])
                steps["attempt_to_taint_seen"].append(one.took_s - attempts[0])
    return {name: {"p50_s": statistics.median(some), "max_s": max(some)} for name, some in steps.items() if some}


def _since(moment: datetime | None, at: float) -> float:
    return -1.0 if moment is None else moment.timestamp() - at


def load() -> list[float]:
    """Load averages of the machine over 1, 5 and 15 minutes."""
    return [float(word) for word in Path("/proc/loadavg").read_text(encoding="ascii").split()[:3]]
