"""A folder in memory that loses what was not synced, stops in the midst of a call, or is full: for the spool."""

import errno
import os
import random
from dataclasses import dataclass, field

from daemon.agent.disk import Files

SECTOR = 512


class PowerCut(BaseException):
    """The process stops here. No code may catch it."""


@dataclass
class Node:
    """A file: what programs see, what the disk has, and the writes in between."""

    seen: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, bytes]] = field(default_factory=list)


class Brittle(Files):
    """`cut_after` calls that change something, the next one is not or only half done and the process stops.

    `room` is the size of the disk; `fails` makes calls of that name fail with that number.
    """

    def __init__(self, room: int = 1 << 30, rng: random.Random | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.safe_names: dict[str, Node] = {}
        self.moves: list[tuple[str, str, Node | None]] = []
        self.room = room
        self.rng = rng or random.Random(0)
        self.cut_after: int | None = None
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []

    # --------------------------------------------------------------------------------------------- what Files can do

    def names(self):
        return sorted(self.nodes)

    def size(self, name):
        return len(self._node(name).seen)

    def create(self, name):
        self._change("create")
        if name in self.nodes:
            raise FileExistsError(errno.EEXIST, "File exists")
        self.nodes[name] = node = Node()
        self.moves.append(("create", name, node))

    def allocate(self, name, size):
        self._change("allocate")
        node = self._node(name)
        self._take_room(size - len(node.seen))
        node.dirty.append((0, bytes(node.seen).ljust(size, b"\0")))
        node.seen.extend(bytes(size - len(node.seen)))

    def read(self, name, offset, length):
        self._fail("read")
        return bytes(self._node(name).seen[offset : offset + length])

    def write(self, name, offset, data):
        node = self._node(name)
        try:
            self._change("write")
        except PowerCut:
            self._write(node, offset, data[: self.rng.randrange(len(data) + 1)])
            raise
        self._take_room(offset + len(data) - len(node.seen))
        some = data[: self.rng.randrange(1, len(data) + 1)] if self.rng.random() < 0.1 else data
        self._write(node, offset, some)
        return len(some)

    def sync(self, name):
        self._change("sync")
        node = self._node(name)
        node.safe, node.dirty = bytearray(node.seen), []

    def rename(self, name, new):
        self._change("rename")
        self.nodes[new] = node = self.nodes.pop(name)
        self.moves.append(("remove", name, None))
        self.moves.append(("create", new, node))

    def remove(self, name):
        self._change("remove")
        self._node(name)
        del self.nodes[name]
        self.moves.append(("remove", name, None))

    def sync_folder(self):
        self._change("sync_folder")
        self.safe_names, self.moves = dict(self.nodes), []

    def close(self):
        pass

    # -------------------------------------------------------------------------------------------- what a test can do

    def after_kill(self):
        """What the next process finds: the system still has all that was written."""
        return self._next({name: bytes(node.seen) for name, node in self.nodes.items()})

    def after_power_cut(self):
        """What is found when the power is back: of what was not synced any part, in sectors."""
        names = dict(self.safe_names)
        for what, name, node in self.moves[: self.rng.randrange(len(self.moves) + 1)]:
            if what == "create":
                names[name] = node
            else:
                names.pop(name, None)
        return self._next({name: self._survivor(node) for name, node in names.items()})

    def _survivor(self, node):
        found = bytearray(node.safe)
        for offset, data in node.dirty:
            for begin in range(0, len(data), SECTOR):
                if self.rng.random() < 0.5:
                    some = data[begin : begin + SECTOR]
                    found.extend(bytes(max(0, offset + begin + len(some) - len(found))))
                    found[offset + begin : offset + begin + len(some)] = some
        return bytes(found)

    def _next(self, content):
        new = Brittle(self.room, self.rng)
        for name, data in content.items():
            new.nodes[name] = new.safe_names[name] = Node(bytearray(data), bytearray(data))
        return new

    # --------------------------------------------------------------------------------------------------------- inside

    def _node(self, name):
        if name not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.nodes[name]

    def _write(self, node, offset, data):
        node.dirty.append((offset, bytes(data)))
        node.seen.extend(bytes(max(0, offset - len(node.seen))))
        node.seen[offset : offset + len(data)] = data

    def _take_room(self, more):
        if more > 0 and more + sum(len(node.seen) for node in self.nodes.values()) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _change(self, call):
        self.calls.append(call)
        if self.cut_after is not None:
            if self.cut_after == 0:
                raise PowerCut
            self.cut_after -= 1
        self._fail(call)

    def _fail(self, call):
        if call in self.fails:
            raise OSError(self.fails[call], os.strerror(self.fails[call]))
