"""Which GPU exporters answer their scrapes: `up` of the targets, brought to the nodes they stand for.

A target belongs to a node because GPU series came from it. Only a node whose exporter has never said a word about a
GPU is given one by the target's name, since that is all there is to go by (gpu-operator 2854).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from daemon.ingest.decode import Batch, PrometheusError, decode_labels

Labels = Mapping[str, str]

_GPU_EXPORTER = re.compile(
    r"dcgm|amd[-_]?(gpu|metrics)|device[-_]metrics[-_]exporter|(gpu|nvidia)[-_a-z0-9]*exporter", re.IGNORECASE
)
_OTHER_EXPORTER = re.compile(r"node[-_]?(status[-_])?exporter|operator", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Targets:
    """State of the nodes' GPU exporters as scrape targets: `up` and `down` hold node rows."""

    up: frozenset[int]
    down: frozenset[int]


@dataclass(slots=True)
class _Proof:
    """Which node rows a target's series spoke of, and the pod that stood behind the target then."""

    pod: str
    rows: set[int]


class TargetHealth:
    """The newest sample of `up` of every target. `node_row` finds the row of the node that a label set names."""

    def __init__(self, node_row: Callable[[Labels], int | None]) -> None:
        self._node_row = node_row
        self._hashes = np.empty(0, np.int64)
        self._slots = np.empty(0, np.intp)
        self._slot_of: dict[int, int] = {}
        self._labels: list[Labels] = []
        self._at = np.empty(0)
        self._up = np.empty(0)
        self._proofs: dict[tuple[str, str], _Proof] = {}
        self._of_target: dict[tuple[str, str], list[int]] = {}
        self._guesses: list[int] = []
        self._pods: dict[tuple[str, str], str] = {}

    def absorb(self, batch: Batch) -> int:
        """Take samples of `up` in; returns how many label sets made no sense."""
        bad = 0
        if not np.array_equal(self._hashes, batch.hashes):
            for number, raw in zip(batch.hashes.tolist(), batch.labels, strict=True):
                if number not in self._slot_of:
                    bad += self._add(number, raw)
            added = len(self._labels) - len(self._at)
            self._at = np.concatenate([self._at, np.full(added, -np.inf)])
            self._up = np.concatenate([self._up, np.zeros(added)])
            self._hashes = batch.hashes
            self._slots = np.array([self._slot_of[number] for number in batch.hashes.tolist()], np.intp)
        order = np.argsort(batch.at, kind="stable")
        slot, at, value = self._slots[batch.series[order]], batch.at[order], batch.value[order]
        newer = np.isfinite(value) & (at >= self._at[slot])
        # of several samples of one target the last is the newest
        self._at[slot[newer]], self._up[slot[newer]] = at[newer], value[newer]
        return bad

    def _add(self, number: int, raw: bytes) -> int:
        bad = 0
        try:
            labels: Labels = decode_labels(raw)
        except PrometheusError:
            labels, bad = {}, 1
        slot = self._slot_of[number] = len(self._labels)
        self._labels.append(labels)
        self._index(slot)
        return bad

    def _index(self, slot: int) -> None:
        labels = self._labels[slot]
        key = _key(labels)
        self._of_target.setdefault(key, []).append(slot)
        if labels.get("pod"):
            self._pods[key] = labels["pod"]
        called = f"{labels.get('job', '')} {labels.get('pod', '')} {labels.get('service', '')}"
        if _GPU_EXPORTER.search(_OTHER_EXPORTER.sub("", called)):
            self._guesses.append(slot)

    def pod_of(self, instance: str, job: str) -> str | None:
        """The pod behind a target, where `up` names it."""
        return self._pods.get((instance, job))

    def proves(self, labels: Labels, row: int) -> None:
        """A catalogued GPU series with these labels spoke of the node at `row`: its target is that node's exporter."""
        key, pod = _key(labels), labels.get("pod", "")
        proof = self._proofs.get(key)
        if proof is None or proof.pod != pod:  # an address that another pod has now
            self._proofs[key] = _Proof(pod, {row})
        else:
            proof.rows.add(row)

    def state(self, now: float, fresh_s: float) -> Targets:
        """Nodes whose exporter answers and nodes whose exporter does not, by samples of the last `fresh_s` seconds.

        Two that scrape the same exporter may disagree; one that reaches it is enough for `up`.
        """
        up: set[int] = set()
        down: set[int] = set()
        fresh = now - self._at <= fresh_s
        proved: set[int] = set()
        for key, proof in self._proofs.items():
            for slot in self._of_target.get(key, ()):
                if fresh[slot]:
                    (up if self._up[slot] > 0 else down).update(proof.rows)
                    proved |= proof.rows
        for slot in self._guesses:
            if fresh[slot] and _key(self._labels[slot]) not in self._proofs:
                row = self._node_row(self._labels[slot])
                if row is not None and row not in proved:
                    (up if self._up[slot] > 0 else down).add(row)
        return Targets(frozenset(up), frozenset(down - up))

    def tidy(self, before: float) -> None:
        """Forget targets whose last sample lies before a moment."""
        stays = np.flatnonzero(self._at >= before)
        gone = [key for key, slots in self._of_target.items() if not any(self._at[slot] >= before for slot in slots)]
        for key in gone:
            self._proofs.pop(key, None)
            self._pods.pop(key, None)
        new_slot = {int(old): new for new, old in enumerate(stays)}
        self._slot_of = {number: new_slot[slot] for number, slot in self._slot_of.items() if slot in new_slot}
        self._labels = [self._labels[slot] for slot in stays]
        self._at, self._up = self._at[stays], self._up[stays]
        self._hashes = np.empty(0, np.int64)
        self._of_target.clear()
        self._guesses.clear()
        for slot in range(len(self._labels)):
            self._index(slot)


def _key(labels: Labels) -> tuple[str, str]:
    return labels.get("instance", ""), labels.get("job", "")
