"""The two tables of the ledger as this version of the code sees them.

`migrations/` makes them; a test holds both against each other.
"""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

METADATA = MetaData()

#: A 64-bit id. SQLite spells it INTEGER, or it would not be the rowid.
_ID = BigInteger().with_variant(Integer(), "sqlite")

ENTRIES = Table(
    "entries",
    METADATA,
    Column("id", _ID, primary_key=True, autoincrement=False),
    Column("at_us", BigInteger, nullable=False),
    Column("written_us", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("incident", Text),
    Column("node", Text),
    Column("gpu_uuid", Text),
    Column("key", Text),
    Column("body", Text, nullable=False),
    Index("ix_entries_key", "key", unique=True),
    Index("ix_entries_kind_id", "kind", "id"),
    Index("ix_entries_incident_id", "incident", "id"),
    Index("ix_entries_node_id", "node", "id"),
    Index("ix_entries_gpu_uuid_id", "gpu_uuid", "id"),
)

STATE = Table(
    "state",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
