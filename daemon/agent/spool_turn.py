"""Which of the reports that wait may go out now, and in which order. Pure.

Faults and what may end them (a reset, a driver's load) stay in the order of the log. Between two of these the first
report of each fault goes before the repeats of others, so that no flood holds up what is new.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from daemon.agent.spool_records import Entry

#: A report whose equal was handed out so often without an answer waits for it no longer.
_PATIENCE = 256


def in_turn(entries: Iterable[Entry], is_due: Callable[[bytes], bool]) -> Iterator[Entry]:
    """Those that may go, of all that wait, oldest first. `is_due` says of a fault's rough key whether it may be told.

    What was handed out before is due again. Nothing overtakes a boundary: where something after it may go, all that
    comes before it has to.
    """
    stretches, behind = _stretches(entries)
    due = [[_may_go(entry, is_due) for entry in stretch] for stretch in stretches]
    last = max((number for number, flags in enumerate(due) if any(flags)), default=-1)
    if any(_may_go(entry, is_due) for entry in behind):
        last = len(stretches)  # all before it goes now
    for number, (stretch, flags) in enumerate(zip(stretches[: last + 1], due, strict=False)):
        whole = number < last or (stretch[-1].is_boundary and flags[-1])
        yield from _new_ones_first(entry for entry, flag in zip(stretch, flags, strict=True) if whole or flag)


def _may_go(entry: Entry, is_due: Callable[[bytes], bool]) -> bool:
    return entry.handed > 0 or is_due(entry.rough_key)


def _stretches(entries: Iterable[Entry]) -> tuple[list[list[Entry]], list[Entry]]:
    """From boundary to boundary, each with the one that ends it; and what comes from one on that has to wait."""
    found: list[list[Entry]] = [[]]
    held = False
    waiting = iter(entries)
    for entry in waiting:
        waits = _waits(entry)
        if entry.is_boundary and (waits or held):
            return [stretch for stretch in found if stretch], [entry, *waiting]  # it may end what waits
        if waits:
            held |= entry.lost is None
            continue
        found[-1].append(entry)
        if entry.is_boundary:
            found.append([])
    return [stretch for stretch in found if stretch], []


def _waits(entry: Entry) -> bool:
    """Whether an equal one that was handed out has to be answered before."""
    before = entry.before
    return before is not None and before.is_here and (entry.lost is not None or before.handed < _PATIENCE)


def _new_ones_first(stretch: Iterable[Entry]) -> Iterator[Entry]:
    seen: set[bytes] = set()
    first: list[Entry] = []
    others: list[Entry] = []
    end: list[Entry] = []
    for entry in stretch:
        part = end if entry.is_boundary else others if entry.rough_key in seen else first
        part.append(entry)
        seen.add(entry.rough_key)
    return chain(first, others, end)
