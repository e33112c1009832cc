"""Run as a process of its own by the crash test: appends ticks to the ledger at argv[1] until it is killed.

It writes a tick's number only after `append` returned, so a number on stdout is a promise.
"""

import sys
from datetime import UTC, datetime
from itertools import count

from daemon.ledger import Entry, EntryKind, Ledger

ENTRIES_A_TICK = 5


def main(url: str) -> None:
    """Appends ticks of five entries and their state for ever."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    with Ledger.open(url, now=lambda: at) as ledger:
        for tick in count():
            entries = [
                Entry(EntryKind.VERDICT_CHANGED, at, {"tick": tick, "part": part, "text": "x" * 2_000})
                for part in range(ENTRIES_A_TICK)
            ]
            ledger.append(entries, state={"tick": str(tick).encode()})
            sys.stdout.write(f"{tick}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
