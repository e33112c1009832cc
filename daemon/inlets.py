"""What every road has in common by which events of kernel logs reach the loop beside the files that it follows.

`daemon.hearing` holds them: agents' reports (`daemon.event_inbox`) and Loki (`daemon.loki.inlet`).
"""

from collections import Counter
from datetime import datetime
from typing import Protocol

from daemon.logs import Folded


class Inlet(Protocol):
    """One road. Only the loop's thread calls it; whatever waits for somebody else does so in a thread of its own."""

    def resume(self, last_tick: datetime | None) -> None:
        """Go on behind what was taken before this process; `last_tick` is when it last ticked.

        Raises LedgerUnavailable.
        """

    def look(self, now: datetime, counts: Counter[str]) -> None:
        """Fetch what has come since the last look; it waits for nothing. `counts` gets what could not be used."""

    @property
    def is_urgent(self) -> bool:
        """Whether something waits that can't wait for the next poll."""

    def take(self, until: datetime, into: Folded) -> None:
        """Add what happened by `until`, repeats folded."""

    def memory(self) -> dict[str, bytes]:
        """How far all of it was taken, for the ledger's state table."""

    def close(self) -> None:
        """Give back threads."""
