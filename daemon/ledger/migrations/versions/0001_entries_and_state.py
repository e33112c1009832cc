"""The append-only entries, the state beside them, and the triggers that refuse to change an entry.

A later migration that rebuilds `entries` in batch mode has to make the triggers again: SQLite drops them with
the old table.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER entries_refuse_update BEFORE UPDATE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries are never changed'); END
    """,
    """
    CREATE TRIGGER entries_refuse_delete BEFORE DELETE ON entries
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries are never deleted'); END
    """,
    # INSERT OR REPLACE deletes the row in its way without firing the trigger above.
    """
    CREATE TRIGGER entries_refuse_replace BEFORE INSERT ON entries
    WHEN EXISTS (SELECT 1 FROM entries WHERE id = NEW.id OR key = NEW.key)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: entries are never replaced'); END
    """,
)

_POSTGRESQL_TRIGGERS = (
    """
    CREATE FUNCTION entries_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the ledger is append-only: % of entries is refused', TG_OP; END $$
    """,
    """
    CREATE TRIGGER entries_refuse_change BEFORE UPDATE OR DELETE ON entries
    FOR EACH ROW EXECUTE FUNCTION entries_refuse_change()
    """,
    """
    CREATE TRIGGER entries_refuse_truncate BEFORE TRUNCATE ON entries
    FOR EACH STATEMENT EXECUTE FUNCTION entries_refuse_change()
    """,
)


def upgrade() -> None:
    """Makes both tables, their indexes and the triggers."""
    op.create_table(
        "entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("written_us", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("incident", sa.Text),
        sa.Column("node", sa.Text),
        sa.Column("gpu_uuid", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_entries_key", "entries", ["key"], unique=True)
    for column in ("kind", "incident", "node", "gpu_uuid"):
        op.create_index(f"ix_entries_{column}_id", "entries", [column, "id"])
    op.create_table(
        "state",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("at_us", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _SQLITE_TRIGGERS if sqlite else _POSTGRESQL_TRIGGERS:
        op.execute(statement)


def downgrade() -> None:
    """Refused: there is nothing below the first schema but the loss of the record."""
    raise NotImplementedError("the ledger keeps its past; to go back to an older gpuwarden restore a backup")
