"""What Alembic runs around the migrations: it uses the connection and the transaction of `daemon.ledger.schema`.

It configures no logging, since the process has its own.
"""

from alembic import context

from daemon.ledger.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,  # SQLite cannot alter most of a table in place
)
with context.begin_transaction():
    context.run_migrations()
