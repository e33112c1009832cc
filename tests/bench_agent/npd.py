"""node-problem-detector beside ours on the same log: built from its own module, with its own file log plugin.

It gets one rule for every XID (an Event) and one for a lost GPU (a node condition), the smallest window of lines, and
an administrator's rights, so that neither its rules nor the API server's limits slow it down.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench_agent.agents import NodeAgent, gone
from tests.bench_agent.measuring import Mark, memory_mb, scraped_sum, spread
from tests.bench_agent.site import Watch
from tests.prometheus_server import free_port
from tests.testbed.build import BuildFailed, Unavailable, node_problem_detector
from tests.testbed.control_plane import ControlPlane
from tests.testbed.waiting import TestbedError, until

CONDITION = "NvidiaGPULost"
Say = Callable[[str], None]


def found(say: Say) -> tuple[Path | None, str]:
    """The program, or None and why there is none."""
    try:
        return node_problem_detector(say), ""
    except (Unavailable, BuildFailed) as failure:
        say(f"node-problem-detector is left out: {failure}")
        return None, str(failure)


class Detector:
    """One node-problem-detector for a node, on the log of that node's agent."""

    def __init__(self, program: Path, plane: ControlPlane, agent: NodeAgent) -> None:
        self.agent = agent
        self.program = program
        rules = agent.folder / "npd.json"
        rules.write_text(json.dumps(_rules(agent.log)), encoding="utf-8")
        server = f"{plane.url}?inClusterConfig=false&auth={plane.kubeconfig}"
        self._port = free_port()
        self.log = agent.folder / "npd.log"
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    str(program), f"--config.system-log-monitor={rules}", f"--apiserver-override={server}",
                    f"--hostname-override={agent.node}", "--port=0", f"--prometheus-port={self._port}",
                ],
                stdout=file, stderr=file, env={**os.environ, "NODE_NAME": agent.node},
            )  # fmt: skip

    @property
    def read_bytes(self) -> int:
        """How far it has come in the log, by the place of its open file."""
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            if link.readlink() == self.agent.log:
                told = Path(f"/proc/{self.process.pid}/fdinfo/{link.name}").read_text(encoding="ascii")
                return int(told.split()[1])
        return 0

    @property
    def problems(self) -> float:
        """Lines that its own counter of problems has."""
        return scraped_sum(f"http://127.0.0.1:{self._port}/metrics", 'problem_counter{reason="NvidiaXid"')

    @property
    def version(self) -> str:
        """As it says itself."""
        return subprocess.run(
            [str(self.program), "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout.strip()

    def end(self) -> None:
        """Stop it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)


def _rules(log: Path) -> dict[str, Any]:
    return {
        "plugin": "filelog",
        "pluginConfig": {
            "timestamp": "^(\\S+)",
            "message": "kernel: \\[.*?\\] (.*)",
            "timestampFormat": "2006-01-02T15:04:05.999999999-07:00",
        },
        "logPath": str(log), "lookback": "1s", "bufferSize": 1, "source": "nvidia-monitor",
        "conditions": [{"type": CONDITION, "reason": "NvidiaGPUPresent", "message": "all GPUs are on the bus"}],
        "rules": [
            {"type": "temporary", "reason": "NvidiaXid", "pattern": "NVRM: Xid .*"},
            {
                "type": "permanent", "condition": CONDITION, "reason": "NvidiaGPUOffBus",
                "pattern": "NVRM: Xid \\(.*\\): 79, .*",
            },
        ],
    }  # fmt: skip


def one_by_one(detector: Detector, watch: Watch, pci: str, pauses_s: list[float]) -> dict[str, Any]:
    """From a line to its Event, and from the first lost GPU to the condition, as another client sees them."""
    agent, took, missed = detector.agent, [], 0
    mark = Mark.of(detector.process.pid, time.monotonic())
    for number, pause_s in enumerate(pauses_s):
        time.sleep(pause_s)
        text = f"NVRM: Xid (PCI:{pci}): 31, pid={77_000 + number}, name=python3, Ch 0000000{number % 8}, intr 10000000."
        wrote = agent.says(text)
        try:
            seen = until("its Event", lambda text=text: watch.event_seen(text), within_s=20, every_s=0.01)
        except TestbedError:
            missed += 1
            continue
        took.append(seen - wrote)
    told = {"line_to_event": spread(took), "events_that_never_came": missed}
    told["quiet"] = mark.since(time.monotonic())
    wrote = agent.says(gone(pci))
    try:
        until("its condition", lambda: agent.node in watch.condemned, within_s=20, every_s=0.01)
        told["line_to_condition_s"] = watch.condemned[agent.node] - wrote
        until("our taint", lambda: agent.node in watch.tainted, within_s=60, every_s=0.01)
        told["the_same_line_to_our_taint_s"] = watch.tainted[agent.node] - wrote
    except TestbedError as late:
        told["never"] = str(late)
    return told


def kept_up(detector: Detector, mark: Mark, line_bytes: float, began_at_bytes: int, ended_s: float) -> dict[str, Any]:
    """How many lines of a flood it read while that lasted, and what each cost. To be called at the flood's end.

    Then it is stopped: what it has not read yet would take the machine from whoever else catches up.
    """
    used = mark.since(ended_s)
    lines = (detector.read_bytes - began_at_bytes) / line_bytes
    told = {
        **used,
        "lines_read": lines,
        "lines_per_s": lines / used["seconds"],
        "cpu_us_per_line": used["cpu_s"] * 1e6 / max(lines, 1.0),
        "counted": detector.problems,
        "log_it_wrote_mb": detector.log.stat().st_size / (1 << 20),
        "peak_memory_mb": memory_mb(detector.process.pid, "VmHWM"),
    }
    detector.end()
    return told
