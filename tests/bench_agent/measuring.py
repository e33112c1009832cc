"""What processes use, what their metrics say, and percentiles: for the parts of `make bench-agent`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """VmRSS or VmHWM, in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """How much CPU a process had used at a moment of the monotonic clock."""

    pid: int
    at_s: float
    cpu_s: float

    @staticmethod
    def of(pid: int, now_s: float) -> "Mark":
        """Now."""
        return Mark(pid, now_s, cpu_s(pid))

    def since(self, now_s: float) -> dict[str, float]:
        """What it has used since then, and its memory."""
        used = cpu_s(self.pid) - self.cpu_s
        return {
            "seconds": now_s - self.at_s,
            "cpu_s": used,
            "cpu_share": used / max(now_s - self.at_s, 1e-9),
            "memory_mb": memory_mb(self.pid),
            "peak_memory_mb": memory_mb(self.pid, "VmHWM"),
        }


def scraped_sum(url: str, start: str, verify: str | bool = True) -> float:
    """The sum of the samples whose line begins like this; 0 while nothing answers."""
    try:
        text = requests.get(url, timeout=20, verify=verify).text
    except requests.RequestException:
        return 0.0
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def spread(seconds: Sequence[float]) -> dict[str, Any]:
    """How many, and P50, P90, P99 and the most of them."""
    if not seconds:
        return {"events": 0}
    p50, p90, p99 = (float(np.percentile(seconds, share)) for share in (50, 90, 99))
    return {"events": len(seconds), "p50_s": p50, "p90_s": p90, "p99_s": p99, "max_s": max(seconds)}


def give_way(pid: int, nice: int = 10) -> None:
    """All threads of a process run when no other wants to; 0 takes that back, which only root may."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
