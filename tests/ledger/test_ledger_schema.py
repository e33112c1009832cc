"""Opening a ledger makes or migrates it, tells a newer one from an older one, and configures nothing but itself."""

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from daemon.ledger import Entry, Ledger, LedgerError, LedgerSchemaError
from daemon.ledger.engine import connect, parse_url
from daemon.ledger.tables import METADATA

Clock = Callable[[], datetime]
EntryMaker = Callable[..., Entry]


def test_a_new_ledger_lies_in_a_new_folder_readable_by_its_owner_only(on_sqlite: Ledger, sqlite_path: Path) -> None:
    on_sqlite.check_writable()
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in sqlite_path.parent.iterdir()}
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), "0o600")
    assert stat.S_IMODE(sqlite_path.parent.stat().st_mode) == 0o700


def test_the_umask_does_not_widen_a_new_ledger(sqlite_path: Path, now: Clock) -> None:
    before = os.umask(0)
    try:
        Ledger.open(f"sqlite:///{sqlite_path}", now=now).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(sqlite_path.stat().st_mode) == 0o600


def test_every_connection_syncs_each_commit_and_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    with connected(f"sqlite:///{tmp_path / 'ledger.db'}") as connection:
        found = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 50}


def test_the_migrations_make_what_the_code_expects(url: str, now: Clock) -> None:
    Ledger.open(url, now=now).close()
    with connected(url) as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_ledger_that_is_opened_again_goes_on_where_it_was(url: str, now: Clock, entry: EntryMaker) -> None:
    for run in (1, 2, 3):
        with Ledger.open(url, now=now) as ledger:
            assert ledger.append([entry()], state={"run": str(run).encode()}) == [run]
            assert ledger.state("run") == str(run).encode()


def test_many_that_open_a_new_ledger_at_once_all_succeed(url: str, now: Clock, entry: EntryMaker) -> None:
    def open_and_append(_: int) -> list[int]:
        with Ledger.open(url, now=now, busy_timeout_s=30) as ledger:
            return ledger.append([entry()])

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(open_and_append, range(4)))
    assert sorted(ids) == [[1], [2], [3], [4]]


def test_a_newer_schema_is_refused_and_left_alone(url: str, now: Clock) -> None:
    Ledger.open(url, now=now).close()
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LedgerSchemaError, match=r"has schema 9999; this gpuwarden knows up to 0001.*newer version"):
        Ledger.open(url, now=now)
    assert execute(url, "SELECT version_num FROM alembic_version") == "9999"


def test_an_entry_of_a_kind_from_a_newer_version_is_named(on_sqlite: Ledger, sqlite_path: Path) -> None:
    execute(
        f"sqlite:///{sqlite_path}",
        "INSERT INTO entries (id, at_us, written_us, kind, body) VALUES (1, 0, 0, 'dream', '{}') RETURNING id",
    )
    with pytest.raises(LedgerSchemaError, match="entry 1 has kind 'dream'"):
        list(on_sqlite.entries())


def test_opening_leaves_the_process_logging_alone(sqlite_path: Path, now: Clock) -> None:
    root = logging.getLogger()
    other = logging.getLogger("test_ledger_schema.other")
    before = (root.level, list(root.handlers), other.disabled)
    Ledger.open(f"sqlite:///{sqlite_path}", now=now).close()
    assert (root.level, list(root.handlers), other.disabled) == before


def test_the_folder_one_works_in_does_not_matter(
    sqlite_path: Path, tmp_path: Path, now: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.open("sqlite:///state/ledger.db", now=now).close()
    assert execute(f"sqlite:///{sqlite_path}", "SELECT count(*) FROM entries") == 0


@pytest.mark.parametrize(
    ("url", "says"),
    [
        pytest.param("ledger.db", "not understood", id="a bare file name"),
        pytest.param("mysql://host/db", "mysql is not supported", id="another database"),
        pytest.param("sqlite://", "names no file", id="SQLite in memory"),
        pytest.param("sqlite:///:memory:", "names no file", id="SQLite in memory by its other name"),
        pytest.param("sqlite:///file:x?mode=ro&uri=true", "options", id="SQLite's own URL syntax"),
    ],
)
def test_a_url_that_cannot_hold_a_ledger_is_refused(url: str, says: str, now: Clock) -> None:
    with pytest.raises(LedgerError, match=says):
        Ledger.open(url, now=now)


def test_a_missing_driver_is_named_and_the_password_is_not(now: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match="driver is not installed") as refused:
        Ledger.open("postgresql://warden:hunter2@db.invalid/ledger", now=now)
    assert "hunter2" not in str(refused.value)


def execute(url: str, statement: str) -> object:
    """Runs one statement past the ledger; the first value of its answer, if it has one."""
    with connected(url) as connection:
        result = connection.execute(text(statement))
        return result.scalar() if result.returns_rows else None


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A transaction beside the ledger's own, on a connection set up as the ledger does, with a wait of 50 ms."""
    engine = connect(parse_url(url), busy_timeout_s=0.05)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()
