"""What is new or wrong in what a node says of itself, as events; level-triggered, so none of them has to arrive.

What is wrong is told again while it lasts, since a controller that hears nothing of it for a while takes it for over,
and once when it is over. One look proves nothing: drivers take their time to load and tools to answer.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta

from daemon.agent.node_facts import NodeFacts
from detectors.events import KernelEvent
from rules.vocabulary import EventKind, Severity

SOURCE = "node"
#: Looks in a row that have to agree before something is wrong.
_SURE = 2
_AGAIN = timedelta(minutes=10)


class NodeWatch:
    """`expected_gpus` is how many the node should have, 0: as many as its PCI bus has shown since the agent's start."""

    def __init__(self, boot_id: str, expected_gpus: int = 0) -> None:
        self._boot_id = boot_id
        self._expected = expected_gpus
        self._before: NodeFacts | None = None
        self._seen: frozenset[str] = frozenset()
        self._looks: dict[str, int] = {}
        self._told: dict[str, datetime] = {}

    def events(self, facts: NodeFacts, now: datetime) -> list[KernelEvent]:
        """What to tell after one more look."""
        before, self._before = self._before, facts
        new = set(facts.uuids) - set(before.uuids if before is not None else ())
        found = [
            self._event(EventKind.GPU_MAP, f"GPU {uuid} at {pci}", now, pci=pci, gpu_uuid=uuid)
            for pci, uuid in sorted(new)
        ]
        if facts.driver and before is not None and before.driver != facts.driver:
            text = f"NVIDIA driver {facts.driver} is loaded"
            told = f"{text} {now.isoformat()}"  # the same version again is another load
            found.append(self._event(EventKind.DRIVER_LOAD, text, now, told=told, driver_version=facts.driver))
        self._seen |= frozenset(facts.on_bus)
        return [*found, *self._states(self._wrong(facts), now)]

    def _wrong(self, facts: NodeFacts) -> Mapping[str, str]:
        """What is wrong at this look, by its name."""
        wrong = {}
        if facts.answers is False:
            wrong["gpu_stack"] = "the driver's own tool does not answer: the GPU stack may hang"
        gone, unknown = self._seen - set(facts.on_bus), set(facts.on_bus) - set(facts.driven)
        if gone or len(facts.on_bus) < self._expected:
            expected = max(self._expected, len(self._seen))
            wrong["gpu_count"] = f"{len(facts.on_bus)} of {expected} GPUs are on the PCI bus{_listed(gone)}"
        elif facts.driver and unknown:
            there = len(facts.on_bus)
            wrong["gpu_count"] = f"the driver knows {there - len(unknown)} of {there} GPUs{_listed(unknown)}"
        if facts.fabric:
            wrong["fabric_manager"] = f"Fabric Manager's last word is an error: {facts.fabric}"
        return wrong

    def _states(self, wrong: Mapping[str, str], now: datetime) -> list[KernelEvent]:
        self._looks = {name: self._looks.get(name, 0) + 1 for name in wrong}
        found = []
        for name, text in sorted(wrong.items()):
            due = name not in self._told or now - self._told[name] >= _AGAIN or now < self._told[name]
            if self._looks[name] >= _SURE and due:
                self._told[name] = now
                found.append(self._state(name, text, Severity.NONFATAL, now))
        for name in [name for name in self._told if name not in wrong]:
            del self._told[name]
            found.append(self._state(name, f"{name} is well again", Severity.INFO, now))
        return found

    def _state(self, name: str, text: str, severity: Severity, now: datetime) -> KernelEvent:
        return self._event(
            EventKind.NODE_STATE, text, now, told=f"{name} {now.isoformat()}", place=name, severity=severity
        )

    def _event(self, kind: EventKind, text: str, now: datetime, told: str = "", **about: str) -> KernelEvent:
        """Its sequence is a hash of what it tells, so that the same told again in one boot is the same report."""
        number = int.from_bytes(hashlib.sha256((told or text).encode()).digest()[:6], "big")
        return KernelEvent(kind, None, text, at=now, boot_id=self._boot_id, sequence=number, source=SOURCE, **about)  # type: ignore[arg-type]


def _listed(places: frozenset[str] | set[str]) -> str:
    return f"; missing: {', '.join(sorted(places))}" if places else ""
