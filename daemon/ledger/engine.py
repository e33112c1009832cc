"""How the ledger's database is connected: the settings that make a commit durable and a wait finite.

Used by `daemon.ledger.store` only. SQLite runs in WAL mode with an fsync at each commit, so a crash of the process
or the machine loses nothing that was acknowledged, and readers never wait for the writer.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from daemon.ledger.errors import LedgerError, LedgerUnavailable, Trouble

_OWNER_ONLY = 0o600
_WRITES = "ledger_writes"
_WAL_RETRY_S = 0.02
#: The advisory lock that makes writers take turns on PostgreSQL; the number is ours alone ("gpuw" in ASCII).
_TURN = 0x67707577


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """The SQLite file an engine has open, by its identity on the volume rather than by its name."""

    path: Path
    device: int
    inode: int

    @staticmethod
    def of(path: Path) -> "LedgerFile":
        """The file that now has this name. Raises OSError."""
        found = path.stat()
        return LedgerFile(path, found.st_dev, found.st_ino)

    def require_in_place(self, what: str, where: str) -> None:
        """Refuses when the name leads to another file or to none: SQLite itself goes on writing to the old one.

        Raises:
            LedgerUnavailable: with Trouble.GONE.
        """
        try:
            now = LedgerFile.of(self.path)
        except FileNotFoundError as error:
            raise LedgerUnavailable(what, where, Trouble.GONE, "the file was deleted or moved") from error
        if now != self:
            raise LedgerUnavailable(what, where, Trouble.GONE, "the file was replaced by another one")


def parse_url(url: str) -> URL:
    """The database's URL, checked: `sqlite:///FILE` or `postgresql://...` (psycopg 3 drives it).

    Raises:
        LedgerError: another database, an SQLite ledger in memory, or text that is no URL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise LedgerError(
            f"ledger URL {url!r} is not understood; write sqlite:////var/lib/gpuwarden/ledger.db or "
            "postgresql://user@host/database"
        ) from error
    match parsed.get_backend_name():
        case "sqlite" if parsed.database in (None, "", ":memory:"):
            raise LedgerError(f"ledger URL {url!r} names no file; a ledger in memory would forget what it promised")
        case "sqlite" if str(parsed.database).startswith("file:") or parsed.query:
            raise LedgerError(f"ledger URL {url!r} has SQLite options; name the file alone: sqlite:////path/to/file")
        case "sqlite":
            return parsed
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise LedgerError(f"ledger on {other} is not supported; use sqlite or postgresql")


def prepare_file(url: URL) -> Path | None:
    """Makes the SQLite file (mode 0600) and its folder if they are absent; None where the URL is no SQLite.

    An existing file keeps its mode. Raises OSError.
    """
    if url.get_backend_name() != "sqlite":
        return None
    path = Path(str(url.database)).absolute()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ONLY))
    except FileExistsError:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "the path is a folder, not a file", str(path)) from None
    return path


def connect(url: URL, busy_timeout_s: float) -> Engine:
    """An engine whose transactions are ours to begin and whose waits for a lock end after `busy_timeout_s`.

    Raises:
        LedgerError: the driver for the database is not installed.
    """
    sqlite = url.get_backend_name() == "sqlite"
    try:
        if sqlite:
            return _with_sqlite_settings(create_engine(url, connect_args={"timeout": busy_timeout_s}), busy_timeout_s)
        return create_engine(url, pool_pre_ping=True, connect_args=_postgresql_arguments(busy_timeout_s))
    except (ModuleNotFoundError, NoSuchModuleError) as error:
        raise LedgerError(
            f"ledger {url.render_as_string()}: the driver is not installed ({error}); pip install 'psycopg[binary]'"
        ) from error


def _postgresql_arguments(busy_timeout_s: float) -> dict[str, Any]:
    milliseconds = max(1, round(busy_timeout_s * 1000))
    return {
        "connect_timeout": max(2, round(busy_timeout_s)),  # whole seconds; libpq rounds 1 up to 2
        "application_name": "gpuwarden",
        "options": f"-c lock_timeout={milliseconds} -c synchronous_commit=on",
    }


def _with_sqlite_settings(engine: Engine, busy_timeout_s: float) -> Engine:
    def set_pragmas(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # or the driver begins transactions of its own, and none around DDL
        try:
            _use_wal(connection, busy_timeout_s)
            for pragma in ("synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {pragma}").close()
        except sqlite3.Error:
            connection.close()  # SQLAlchemy 2.0 leaves it open when a listener fails
            raise

    def begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock at once: a transaction that reads first and then upgrades can fail
        # with "locked" without waiting at all.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "begin", begin)
    return engine


def _use_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to WAL. SQLite's own time-out does not hold for the switch: two that open a new file at once collide."""
    give_up = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One writer's turn: a transaction that no other writer runs beside, committed at the end or undone."""
    with engine.execution_options(**{_WRITES: True}).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:turn)"), {"turn": _TURN})
        yield connection
