"""Fault codes that arrive as metrics: edges of the last-code gauge, rises of the windowed count.

A gauge of the last code is sticky for days and blind to repeats, so it is only a lower bound beside the kernel log:
a change to a non-zero code is one event, and whatever it held when first seen is none (DCGM 277, dcgm-exporter 190).
A windowed count falls by itself; only its rises are events, never a fall or a rate (dcgm-exporter 502).
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from detectors.events import KernelEvent
from detectors.identity import GpuRef
from rules.vocabulary import EventKind

#: Two sources that show the same edge within this time show one event.
SAME_EDGE_S = 150.0


@dataclass(slots=True)
class _Last:
    at: float
    value: float


class CodeEdges:
    """Turns samples of code signals into kernel events.

    State is by GPU row, source and code, so it outlives label sets that change with every pod; sources that are gone
    are forgotten by `keep`.
    """

    def __init__(self) -> None:
        self._gauge: dict[tuple[int, str], _Last] = {}
        self._window: dict[tuple[int, str, int], _Last] = {}
        self._emitted: dict[tuple[int, int], tuple[float, str]] = {}
        self._events: list[KernelEvent] = []

    def gauge(self, row: int, gpu: GpuRef, source: str, samples: Iterable[tuple[float, float]]) -> None:
        """Samples (unix seconds, code) of the last-code gauge of one GPU by one source."""
        key = (row, source)
        for at, value in sorted(samples):
            last = self._gauge.get(key)
            if last is None:
                self._gauge[key] = _Last(at, value)
                continue
            if at <= last.at:
                continue
            if value not in (last.value, 0.0):
                self._emit(row, gpu, int(value), at, 1, f"gauge {source}")
            self._gauge[key] = _Last(at, value)

    def window(
        self,
        row: int,
        gpu: GpuRef,
        source: str,
        code: int,
        samples: Iterable[tuple[float, float]],
        *,
        gone_after_s: float = SAME_EDGE_S,
    ) -> None:
        """Samples (unix seconds, count) of the windowed count of one code. A series that appears counts from zero.

        A series counts as new after `gone_after_s` without a sample; that must be longer than the scrape interval.
        """
        key = (row, source, code)
        for at, value in sorted(samples):
            last = self._window.get(key)
            if last is not None and at <= last.at:
                continue
            before = last.value if last is not None and at - last.at < gone_after_s else 0.0
            if value > before and code != 0:
                self._emit(row, gpu, code, at, int(value - before), f"window {source}")
            self._window[key] = _Last(at, value)

    def _emit(self, row: int, gpu: GpuRef, code: int, at: float, count: int, road: str) -> None:
        last_at, last_road = self._emitted.get((row, code), (float("-inf"), road))
        if road != last_road and at - last_at < SAME_EDGE_S:
            return
        self._emitted[row, code] = at, road
        self._events.append(
            KernelEvent(
                kind=EventKind.XID, code=code, text=f"exporter reports code {code}", at=datetime.fromtimestamp(at, UTC),
                pci=gpu.pci or None, gpu_uuid=gpu.uuid, gpu_instance=gpu.gpu_instance, node=gpu.node, source="exporter",
                count=count,
            )
        )  # fmt: skip

    def keep(self, sources: Container[str]) -> None:
        """Forget what was seen by any other source than these."""
        self._gauge = {key: last for key, last in self._gauge.items() if key[1] in sources}
        self._window = {key: last for key, last in self._window.items() if key[1] in sources}

    def take(self) -> tuple[KernelEvent, ...]:
        """The events since the last call, in the order of their times."""
        events, self._events = tuple(sorted(self._events, key=lambda event: (event.at, event.node))), []
        return events
