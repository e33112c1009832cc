"""The ledger: what gpuwarden saw, concluded, decided and caused, in the order in which it was written.

The loop appends to it before it touches the cluster, the console and reports read it, and a restart goes on from
the state it holds. Nothing that was written is ever changed.
"""

from daemon.ledger.entries import Body, Entry, EntryError, EntryKind, decode_body, encode_body, to_jsonable
from daemon.ledger.errors import LedgerError, LedgerSchemaError, LedgerUnavailable, Trouble
from daemon.ledger.store import Clock, Ledger

__all__ = [
    "Body",
    "Clock",
    "Entry",
    "EntryError",
    "EntryKind",
    "Ledger",
    "LedgerError",
    "LedgerSchemaError",
    "LedgerUnavailable",
    "Trouble",
    "decode_body",
    "encode_body",
    "to_jsonable",
]
