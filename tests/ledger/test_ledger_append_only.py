"""No statement changes, deletes or replaces an entry, whoever sends it."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.ledger import Clock, Entry, Ledger

EntryMaker = Callable[..., Entry]

CHANGES = [
    pytest.param("UPDATE entries SET node = 'other'", id="an update"),
    pytest.param("DELETE FROM entries", id="a delete"),
]
INSERT = "INTO entries (id, at_us, written_us, kind, key, body) VALUES"


@pytest.mark.parametrize(
    "statement",
    [
        *CHANGES,
        pytest.param(f"INSERT OR REPLACE {INSERT} (1, 0, 0, 'human', NULL, '{{}}')", id="a replacement by id"),
        pytest.param(f"INSERT OR REPLACE {INSERT} (9, 0, 0, 'human', 'k', '{{}}')", id="a replacement by key"),
        pytest.param(
            f"INSERT {INSERT} (1, 0, 0, 'human', NULL, '{{}}') ON CONFLICT (id) DO UPDATE SET body = 'x'",
            id="an upsert",
        ),
    ],
)
def test_sqlite_refuses(on_sqlite: Ledger, sqlite_path: Path, entry: EntryMaker, statement: str) -> None:
    on_sqlite.append([entry(key="k", node="n")])
    before = list(on_sqlite.entries())
    connection = sqlite3.connect(sqlite_path)
    try:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    finally:
        connection.close()
    assert list(on_sqlite.entries()) == before


@pytest.mark.parametrize("statement", [*CHANGES, pytest.param("TRUNCATE entries", id="a truncate")])
def test_postgresql_refuses(postgresql_url: str, entry: EntryMaker, now: Clock, statement: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with Ledger.open(postgresql_url, now=now) as ledger:
        ledger.append([entry(node="n")])
        before = list(ledger.entries())
        with (
            psycopg.connect(postgresql_url) as connection,
            pytest.raises(psycopg.errors.RaiseException, match="append-only"),
        ):
            connection.execute(statement)
        assert list(ledger.entries()) == before
