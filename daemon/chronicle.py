"""Which things are chronic, for the decisions of a tick; and since when the cluster has each node, kept in the ledger.

Used by `daemon.acting`. Where policy does nothing by the score, no score is made, and its statistics are not loaded.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from daemon.ledger import Ledger, LedgerUnavailable
from daemon.memory import CREATED, Place, pack_created, read_created
from detectors.findings import Incident
from remediation.limits import Fleet
from rules.restore_schema import ChronicPolicy

if TYPE_CHECKING:
    from daemon.outages import OutageBook

log = structlog.get_logger()


class Chronicle:
    """One process' answer to "who is chronic?". Called by the loop's thread; never raises for want of the ledger."""

    def __init__(self, ledger: Ledger, policy: ChronicPolicy) -> None:
        self._ledger = ledger
        #: as the ledger has it, None while nobody has asked it
        self._created: dict[str, datetime] | None = None
        self._book = _book(ledger, policy) if policy.quarantine else None

    def look(
        self, fleet: Fleet, incidents: Sequence[Incident], closed: Sequence[Incident], places: Mapping[str, Place]
    ) -> dict[str, str]:
        """Why things of the open incidents are chronic, as `Scene.chronic` has it; {} where policy acts by no score.

        `closed` are the incidents that have just ended, `places` says where each GPU sits that is known.
        """
        created = self._known(fleet)
        return self._book.chronic(incidents, places, created, closed) if self._book is not None else {}

    def _known(self, fleet: Fleet) -> Mapping[str, datetime]:
        """Since when the cluster has each node, written down where that is news."""
        seen = {name: node.created for name, node in fleet.nodes.items() if node.created is not None}
        try:
            if self._created is None:
                self._created = self._before()
            known = self._created | seen
            if known != self._created:
                if len(known) > 2 * len(seen):
                    known = seen  # names come and go where nodes are made to order
                self._ledger.append((), state={CREATED: pack_created(known)})
                self._created = known
        except LedgerUnavailable:
            return (self._created or {}) | seen  # the loop tells of it, and the next tick tries again
        return known

    def _before(self) -> dict[str, datetime]:
        try:
            return read_created(self._ledger)
        except ValueError as error:
            log.warning("not taken up from before", what=CREATED, detail=str(error))
            return {}


def _book(ledger: Ledger, policy: ChronicPolicy) -> "OutageBook":
    from daemon.outages import OutageBook  # noqa: PLC0415 - scipy takes its time to import

    return OutageBook(ledger, policy)
