"""The rows of the matrices: which GPUs and nodes have ever been seen, under which attributes.

Rows only grow while the process lives, so a GPU that vanishes keeps its row: its absence is something to see.
"""

from collections import defaultdict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daemon.ingest.nodes import is_machine_name
from detectors.identity import GpuRef, NodeRef

_ATTRIBUTES = ("index", "pci", "model", "serial", "driver")


class Fleet:
    """GPUs by UUID and MIG instance, nodes by name. `version` rises with every change."""

    def __init__(self) -> None:
        self.gpus: list[GpuRef] = []
        self.nodes: list[NodeRef] = []
        self.racks: dict[str, str] = {}
        self.version = 0
        self._gpu_row: dict[tuple[str, int], int] = {}
        self._node_row: dict[str, int] = {}
        self._node_of: list[int] = []
        self._full_name: dict[int, str] = {}
        self._rows_by_short: defaultdict[str, list[int]] = defaultdict(list)
        self._device_of_uuid: dict[str, int] = {}
        self._device_of: list[int] = []

    def node_row(self, name: str, *, resolved: bool = True) -> tuple[int, bool]:
        """The row of a node and whether it is new. `n1` and `n1.cluster.local` are one node."""
        row = self.find_node(name)
        is_new = row is None
        if row is None:
            row = len(self.nodes)
            self.nodes.append(NodeRef(name, resolved=resolved))
            self.version += 1
        elif resolved and not self.nodes[row].resolved:
            self.nodes[row] = replace(self.nodes[row], resolved=True)
            self.version += 1
        if name not in self._node_row:
            self._node_row[name] = row
            short, dot, _ = name.partition(".")
            if dot and is_machine_name(name):
                self._full_name.setdefault(row, name)
                self._rows_by_short[short].append(row)
        return row, is_new

    def find_node(self, name: str) -> int | None:
        """The row of a node already known under this name or under its other form.

        A short name finds the one full name that begins with it, and the other way round. Two full names are two
        nodes, and an address has no other form.
        """
        row = self._node_row.get(name)
        if row is not None or not is_machine_name(name):
            return row
        short, dot, _ = name.partition(".")
        if dot:
            row = self._node_row.get(short)
            return row if row is not None and self._full_name.get(row, name) == name else None
        rows = self._rows_by_short.get(name, ())
        return rows[0] if len(rows) == 1 else None

    def gpu_row(self, gpu: GpuRef, node_row: int) -> tuple[int, bool]:
        """The row of a GPU and whether it is new; attributes that were unknown or changed are taken over.

        A GPU moves to the node that its newest series name, except from a node that is certain to one that is not:
        an exporter that came back under an address nobody knows yet has moved nothing.
        """
        row = self._gpu_row.get(gpu.key)
        if row is None:
            row = self._gpu_row[gpu.key] = len(self.gpus)
            self.gpus.append(replace(gpu, node=self.nodes[node_row].name))
            self._node_of.append(node_row)
            self._device_of.append(self._device_of_uuid.setdefault(gpu.uuid, row))
            self.version += 1
            return row, True
        known, home = self.gpus[row], self._node_of[row]
        if node_row != home and (self.nodes[node_row].resolved or not self.nodes[home].resolved):
            home = node_row
        update = {name: said for name in _ATTRIBUTES if (said := getattr(gpu, name)) and said != getattr(known, name)}
        if update or home != self._node_of[row]:
            self.gpus[row] = replace(known, node=self.nodes[home].name, **update)
            self._node_of[row] = home
            self.version += 1
        return row, False

    def node_row_of(self, gpu_row: int) -> int:
        """Node row of one GPU row."""
        return self._node_of[gpu_row]

    def node_of(self) -> NDArray[np.intp]:
        """Node row of each GPU row."""
        return np.array(self._node_of, np.intp)

    def device_of(self) -> NDArray[np.intp]:
        """For each GPU row the first row of the same device: MIG instances share one, a whole GPU is its own."""
        return np.array(self._device_of, np.intp)

    def home_of(self, uuid: str) -> str | None:
        """The node of a GPU already known by this UUID."""
        row = self._device_of_uuid.get(uuid)
        return None if row is None else self.gpus[row].node

    def find_gpu(self, gpu: GpuRef) -> int | None:
        """The row of a GPU already known."""
        return self._gpu_row.get(gpu.key)
