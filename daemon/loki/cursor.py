"""How far Loki was read, and how that outlives a restart. Pure.

Lines come late, out of order, several at one time, and page by page. So a position in time is not enough: the cursor
remembers each line from `edge_ns` on that it has had, and what is read again is known. `daemon.loki.reading` moves it,
and `daemon.loki.inlet` moves a copy as far as ticks took what was read; the copy is what is stored.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

#: Lines that are remembered; in a flood, fewer seconds of them.
MOST_SEEN = 100_000
_PAIR = struct.Struct("<QQ")


class _Stored(msgspec.Struct, frozen=True):
    began: int
    covered: int
    swept: int
    edge: int
    seen: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """One move of a cursor: lines that were had (key and time), and where it stands then. All times are nanoseconds."""

    covered_ns: int
    swept_ns: int
    edge_ns: int
    had: tuple[tuple[int, int], ...] = ()


class Cursor:
    """Where one reading stands.

    `began_ns` is where it began: nothing that happened before is taken. All before `covered_ns` has been asked for;
    `swept_ns` is when late lines were last looked for. Nothing before `edge_ns` is asked for any more.
    """

    def __init__(self, at_ns: int) -> None:
        self.began_ns = self.covered_ns = self.swept_ns = self.edge_ns = at_ns
        self._seen: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def knows(self, key: int) -> bool:
        """Whether this line was had."""
        return key in self._seen

    def move(self, step: Step) -> None:
        """Go on by one step."""
        self.covered_ns, self.swept_ns = step.covered_ns, step.swept_ns
        self._seen.update(step.had)
        if step.edge_ns < self.edge_ns:  # the clock was set back
            self._seen = dict(step.had)
        elif step.edge_ns > self.edge_ns:
            self._seen = {key: at_ns for key, at_ns in self._seen.items() if at_ns >= step.edge_ns}
        self.edge_ns = step.edge_ns

    def crowded_edge(self, more: Collection[int]) -> int:
        """Where the edge has to lie for all lines from there on, and those at these times too, to be remembered."""
        if len(self._seen) + len(more) <= MOST_SEEN:
            return self.edge_ns
        times = sorted((*self._seen.values(), *more))
        return max(self.edge_ns, times[len(times) - MOST_SEEN * 3 // 4] + 1)

    def copy(self) -> "Cursor":
        """Another one at the same place."""
        made = Cursor(self.began_ns)
        made.covered_ns, made.swept_ns, made.edge_ns = self.covered_ns, self.swept_ns, self.edge_ns
        made._seen = dict(self._seen)
        return made

    def pack(self) -> bytes:
        """The state entry."""
        seen = b"".join(_PAIR.pack(key, at_ns) for key, at_ns in self._seen.items())
        return msgspec.msgpack.encode(_Stored(self.began_ns, self.covered_ns, self.swept_ns, self.edge_ns, seen))

    @staticmethod
    def unpack(blob: bytes) -> "Cursor":
        """Raises ValueError."""
        stored = msgspec.msgpack.decode(blob, type=_Stored)
        made = Cursor(stored.began)
        made.covered_ns, made.swept_ns, made.edge_ns = stored.covered, stored.swept, stored.edge
        try:
            made._seen = dict(_PAIR.iter_unpack(stored.seen))
        except struct.error as error:
            raise ValueError(f"what was read of Loki cannot be unpacked: {error}") from error
        return made
