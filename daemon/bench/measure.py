"""Measures a piece of work in a process of its own: wall time, CPU time, and the memory it needed on top.

A forked child starts with what its parent has, so the peak counts from there; its CPU time is its own.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Measured:
    """What one piece of work cost. `seconds` and `cpu_seconds` are of the timed part only; `peak_mb` of all of it."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    extra: dict[str, float]

    def as_data(self) -> dict[str, Any]:
        """For printing."""
        return {
            "seconds": round(self.seconds, 4),
            "cpu_seconds": round(self.cpu_seconds, 4),
            "peak_mb": round(self.peak_mb, 1),
            **{name: round(value, 4) for name, value in self.extra.items()},
        }


class Stopwatch:
    """Adds up the time inside `with` blocks; the work tells by it what counts."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.extra: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._wall
        self.cpu_seconds += time.process_time() - self._cpu


def alone(work: Callable[[Stopwatch], None]) -> Measured:
    """Do the work in a forked child and say what it cost. Raises RuntimeError where the child fails."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, send))
    child.start()
    send.close()
    try:
        result: Measured = receive.recv()
    except EOFError as error:
        child.join()
        raise RuntimeError(f"the measured part ended with exit code {child.exitcode}") from error
    child.join()
    return result


def _child(work: Callable[[Stopwatch], None], send: Connection) -> None:
    before_mb = _resident_mb()
    watch = Stopwatch()
    work(watch)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    send.send(Measured(watch.seconds, watch.cpu_seconds, max(0.0, peak_mb - before_mb), watch.extra))
    send.close()


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20
