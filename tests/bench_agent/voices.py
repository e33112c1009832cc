"""Simulated agents, many in one process: `python -m tests.bench_agent.voices PLAN`, ended by SIGTERM.

Each has the agent's own sender with its own connection and the token of its own node, and reports one fault of an
application a minute over the real protocol. It has no log, no spool and no place to go on from. PLAN is JSON with
`controller`, `ca_file`, `every_s`, `pci`, and `tokens` by node; what came of it is written beside it as `PLAN.told`.
"""

import heapq
import json
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.agent.config import AgentConfig
from daemon.agent.sender import Sender, Unsent, Who
from daemon.agent.wire import Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.bench_agent.measuring import spread

THREADS = 8
BOOT = "0d7f1c1e-0000-4000-8000-00000000b0b0"


class Voices:
    """All of them, and how their requests went."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._senders = {
            node: Sender(
                AgentConfig(controller=plan["controller"], ca_file=plan["ca_file"], token_file=path),
                Who(node, BOOT, "bench"),
            )
            for node, path in plan["tokens"].items()
        }
        self._lock = threading.Lock()
        self._took: list[float] = []
        self._failed: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """Report in turn, spread over the minute, until told to stop."""
        dice, now_s = random.Random(11), time.monotonic()
        every_s = float(self._plan["every_s"])
        turns = [(now_s + dice.uniform(0, every_s), node, 1) for node in self._senders]
        heapq.heapify(turns)
        with ThreadPoolExecutor(THREADS) as pool:
            while turns:
                due_s, node, number = turns[0]
                if stop.wait(max(0.0, due_s - time.monotonic())):
                    return
                heapq.heapreplace(turns, (due_s + every_s, node, number + 1))
                pool.submit(self._report, node, number)

    def told(self) -> dict[str, Any]:
        """How many reports were taken, how long that took, and what went wrong."""
        return {
            "agents": len(self._senders),
            **spread(self._took),
            "failed": len(self._failed),
            "why": self._failed[:3],
        }

    def _report(self, node: str, number: int) -> None:
        pci = self._plan["pci"]
        text = f"NVRM: Xid (PCI:{pci}): 31, pid={number}, name=python3, Ch 00000001, intr 10000000."
        event = KernelEvent(
            kind=EventKind.XID, code=31, text=text, at=datetime.now(UTC), pci=pci, pid=number, sequence=number,
            boot_id=BOOT, source="kmsg",
        )  # fmt: skip
        began_s = time.monotonic()
        try:
            receipt = self._senders[node].send([Report(report_id(event), event)])
        except Unsent as unsent:
            with self._lock:
                self._failed.append(f"{node}: {unsent}")
            return
        with self._lock:
            self._took.append(time.monotonic() - began_s)
            self._failed += [f"{node}: {one.why}" for one in receipt.refused]


def main() -> int:
    path = Path(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    voices = Voices(json.loads(path.read_text(encoding="utf-8")))
    voices.run(stop)
    path.with_suffix(".told").write_text(json.dumps(voices.told()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
