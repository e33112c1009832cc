"""Which GPU sits at which PCI address of which node, so that a log line is about a GPU.

Three sources: the exporter's own PCI label, the driver's line that maps the two, and, where neither exists, an
exporter's code edge: the same code on the same node within minutes, if only one address and one GPU can be meant.
Used by `detectors.faults`.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import NamedTuple

from detectors.events import EXPORTER, KernelEvent
from detectors.identity import GpuRef, same_refs
from detectors.snapshot import Snapshot

#: A log line and the exporter's edge about it lie no further apart (scrape and sampling intervals add up).
SAME_FAULT = timedelta(minutes=3)


class Place(NamedTuple):
    """A PCI address of a node, and the GPU that is known to sit there."""

    node: str
    pci: str
    gpu: str


class GpuMap:
    """All that is known of the fleet's places, and the sightings that may tell more."""

    def __init__(self) -> None:
        self._gpus: tuple[GpuRef, ...] = ()
        self._replaced: tuple[tuple[str, str], ...] = ()
        self._at: dict[tuple[str, str], str] = {}
        self._drivers: dict[str, str] = {}
        self._sightings: dict[tuple[str, int, str, str], datetime] = {}

    def see(self, snapshot: Snapshot) -> list[Place]:
        """Take the inventory in; returns the places whose GPU was unknown until now."""
        if same_refs(snapshot.gpus, self._gpus) and snapshot.replaced == self._replaced:
            return []
        self._gpus, self._replaced = snapshot.gpus, snapshot.replaced
        old = {before for before, _ in snapshot.replaced}
        learned = []
        for gpu in snapshot.gpus:
            if gpu.driver and gpu.uuid not in old:
                self._drivers[gpu.node] = gpu.driver
            if gpu.pci and gpu.uuid not in old and self.learn(gpu.node, gpu.pci, gpu.uuid):
                learned.append(Place(gpu.node, gpu.pci, gpu.uuid))
        return learned

    def learn(self, node: str, pci: str, gpu: str) -> bool:
        """Take one place in; returns whether its GPU was unknown."""
        new = (node, pci) not in self._at
        self._at[node, pci] = gpu
        return new

    def gpu_at(self, node: str, pci: str | None) -> str:
        """The GPU at a place, "" where nobody knows."""
        return self._at.get((node, pci or ""), "")

    def driver_of(self, node: str) -> str | None:
        """The node's driver version, where a GPU's label or the driver's load line said it."""
        return self._drivers.get(node)

    def loaded(self, node: str, version: str | None) -> None:
        """The driver of a node was loaded and may have said its version."""
        if version is not None:
            self._drivers[node] = version

    def sight(self, event: KernelEvent, at: datetime) -> None:
        """Remember an event that knows only one of the two: the address (a log's) or the GPU (an exporter's)."""
        if event.code is None or not event.trusted or bool(event.pci) == bool(event.gpu_uuid):
            return
        if event.pci and (event.node, event.pci) not in self._at:
            self._sightings[event.node, event.code, event.pci, ""] = at
        elif event.gpu_uuid and event.source == EXPORTER:
            self._sightings[event.node, event.code, "", event.gpu_uuid] = at

    def pair(self, now: datetime) -> list[Place]:
        """Places that follow from the sightings: one address and one GPU of a node had the same code, and no other did.

        Where several could be meant (a job that crashed on eight GPUs), nothing is concluded.
        """
        self._sightings = {key: at for key, at in self._sightings.items() if now - at <= 2 * SAME_FAULT}
        addresses: dict[tuple[str, int], list[tuple[str, datetime]]] = defaultdict(list)
        gpus: dict[tuple[str, int], list[tuple[str, datetime]]] = defaultdict(list)
        taken = {(node, gpu) for (node, _), gpu in self._at.items()} if self._sightings else set()
        for (node, code, pci, gpu), at in sorted(self._sightings.items()):
            if pci and (node, pci) not in self._at:
                addresses[node, code].append((pci, at))
            elif gpu and (node, gpu) not in taken:
                gpus[node, code].append((gpu, at))
        learned = []
        for (node, code), at_pci in addresses.items():
            of_gpu = gpus.get((node, code), [])
            if len(at_pci) == 1 and len(of_gpu) == 1 and abs(at_pci[0][1] - of_gpu[0][1]) <= SAME_FAULT:
                learned.append(Place(node, at_pci[0][0], of_gpu[0][0]))
        return [place for place in learned if self.learn(*place)]
