"""Real `gpuwarden agent` processes, each with a kernel log of its own in the form that rsyslog writes."""

import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tests.bench_agent.measuring import scraped_sum
from tests.bench_agent.site import COMMAND, Controller
from tests.bench_cluster.site import ROOT
from tests.prometheus_server import free_port

KMSG = Path("/dev/kmsg")


def frame(node: str) -> str:
    """What stands before a message that the kernel writes now."""
    return f"{datetime.now(UTC).isoformat()} {node} kernel: [{time.clock_gettime(time.CLOCK_BOOTTIME):12.6f}] "


class NodeAgent:
    """One node's agent. Its log is a plain file, or /dev/kmsg with `kmsg`."""

    def __init__(self, folder: Path, node: str, token: Path, controller: Controller, *, kmsg: bool = False) -> None:
        self.node = node
        self.folder = folder / f"agent-{node}"
        self.folder.mkdir()
        self.log = KMSG if kmsg else self.folder / "kern.log"
        if not kmsg:
            self.log.write_bytes(b"")
        self.port = free_port()
        told: dict[str, Any] = {
            "node": node, "source": "kmsg" if kmsg else "file", "path": str(self.log),
            "spool": str(self.folder / "spool"), "controller": controller.url, "token_file": str(token),
            "ca_file": str(controller.certificate), "listen": {"port": self.port},
        }  # fmt: skip
        config = self.folder / "gpuwarden.yaml"
        config.write_text(yaml.safe_dump({"agent": told}), encoding="utf-8")
        with (self.folder / "agent.log").open("ab") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "agent", "--config", str(config)], cwd=ROOT, stdout=file, stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def says(self, text: str) -> float:
        """The kernel writes a line; when it did, in unix seconds."""
        with self.log.open("ab", buffering=0) as file:
            file.write(f"{frame(self.node)}{text}\n".encode())
        return time.time()

    def metric(self, start: str) -> float:
        """The sum of the samples whose line begins like this; 0 while nothing answers."""
        return scraped_sum(f"http://127.0.0.1:{self.port}/metrics", start)

    @property
    def is_reading(self) -> bool:
        """Whether it has stored its place in the log, which is how its first look ends."""
        return self.metric("gpuwarden_agent_log_readable") == 1 and self.metric("gpuwarden_agent_spool_bytes") > 0

    def end(self) -> None:
        """Stop it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)


def gone(pci: str) -> str:
    """A GPU has fallen off the bus: a fact that needs no second opinion."""
    return f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def everyday(pci: str, number: int) -> str:
    """A fault that an application caused, of the kind that every cluster sees all day."""
    return f"NVRM: Xid (PCI:{pci}): 31, pid={10_000 + number}, name=python3, Ch {number % 64:08x}, intr 10000000."
