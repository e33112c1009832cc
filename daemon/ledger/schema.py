"""Brings a ledger's database to the schema of this version, from whichever older one it has.

Called once by `Ledger.open`. The migrations are part of the package; no configuration file is involved.
"""

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from daemon.ledger.engine import writing
from daemon.ledger.errors import LedgerSchemaError


def migrate(engine: Engine, where: str) -> None:
    """Runs the migrations that are missing, all in one transaction; a database that is up to date is only read.

    Raises:
        LedgerSchemaError: the database has a migration that this version doesn't know.
        sqlalchemy.exc.DBAPIError: the database refuses.
    """
    config = Config()
    config.set_main_option("script_location", f"{__package__}:migrations")
    script = ScriptDirectory.from_config(config)
    with engine.connect() as connection:
        if _is_current(connection, script, where):
            return
    with writing(engine) as connection:
        if _is_current(connection, script, where):
            return
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _is_current(connection: Connection, script: ScriptDirectory, where: str) -> bool:
    applied = MigrationContext.configure(connection).get_current_heads()
    known = {revision.revision for revision in script.walk_revisions()}
    strange = sorted(set(applied) - known)
    if strange:
        raise LedgerSchemaError(
            f"ledger {where} has schema {', '.join(strange)}; this gpuwarden knows up to {script.get_current_head()}. "
            "A newer version wrote it: run that version or a later one, or name another ledger"
        )
    return set(applied) == set(script.get_heads())
