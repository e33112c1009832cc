"""What is wrong with the database is said in one type with a next step, and nothing is half written.

The ledger works again when the cause is gone.
"""

import errno
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from daemon.ledger import Entry, Ledger, LedgerUnavailable, Trouble
from daemon.ledger.engine import connect, parse_url, writing
from daemon.ledger.errors import NEXT_STEP, guarded

Clock = Callable[[], datetime]
EntryMaker = Callable[..., Entry]


def test_the_error_says_what_where_why_and_the_next_step(on_sqlite: Ledger, sqlite_path: Path) -> None:
    sqlite_path.rename(sqlite_path.with_suffix(".old"))
    with pytest.raises(LedgerUnavailable) as refused:
        on_sqlite.append([])
    error = refused.value
    assert (error.what, error.where) == ("append 0 entries", f"sqlite:///{sqlite_path}")
    assert str(error) == (
        f"cannot append 0 entries: ledger sqlite:///{sqlite_path}: gone: the file was deleted or moved; "
        "next: put the file back or restart gpuwarden; what is written to the old file would be lost"
    )


def test_every_trouble_has_a_next_step() -> None:
    assert set(NEXT_STEP) == set(Trouble)


# ------------------------------------------------------------------------------------------- locked


def test_a_lock_that_another_holds_ends_the_wait_and_a_later_append_works(
    on_sqlite: Ledger, sqlite_path: Path, entry: EntryMaker
) -> None:
    on_sqlite.append([entry(node="before")])
    other = sqlite3.connect(sqlite_path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        began_s = time.monotonic()
        with pytest.raises(LedgerUnavailable) as refused:
            on_sqlite.append([entry(node="while")])
        waited_s = time.monotonic() - began_s
        assert refused.value.trouble is Trouble.LOCKED
        with pytest.raises(LedgerUnavailable):
            on_sqlite.check_writable()
        assert [read.node for read in on_sqlite.entries()] == ["before"], "a reader waits for no writer"
        other.execute("ROLLBACK")
    finally:
        other.close()
    assert 0.05 <= waited_s < 4, "the wait is the configured one, not the default of 5 s"
    assert on_sqlite.append([entry(node="after")]) == [2]


def test_a_lock_on_postgresql_ends_the_wait_and_a_later_append_works(
    postgresql_url: str, now: Clock, entry: EntryMaker
) -> None:
    other = connect(parse_url(postgresql_url), busy_timeout_s=5)
    with Ledger.open(postgresql_url, now=now, busy_timeout_s=0.05) as ledger:
        with writing(other), pytest.raises(LedgerUnavailable) as refused:
            ledger.append([entry()])
        assert refused.value.trouble is Trouble.LOCKED
        assert ledger.append([entry()]) == [1]
    other.dispose()


# --------------------------------------------------------------------------------------------- full


def test_a_database_that_may_not_grow_refuses_the_whole_tick(sqlite_path: Path, now: Clock, entry: EntryMaker) -> None:
    limit_pages = 40

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit_pages}")

    event.listen(Pool, "connect", limit)
    try:
        with Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
            refuses_the_tick_that_does_not_fit(ledger, entry)
    finally:
        event.remove(Pool, "connect", limit)
    with Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
        assert len(ledger.append([entry() for _ in range(500)])) == 500


@pytest.fixture
def tiny_volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("FULL AND READ-ONLY VOLUMES NOT TESTED: mounting a tmpfs needs root")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"FULL AND READ-ONLY VOLUMES NOT TESTED: no tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_volume_refuses_the_whole_tick_until_space_is_freed(
    tiny_volume: Path, now: Clock, entry: EntryMaker
) -> None:
    filler = tiny_volume / "filler"
    with Ledger.open(f"sqlite:///{tiny_volume / 'ledger.db'}", now=now) as ledger:
        filler.write_bytes(b"x" * 500_000)
        refuses_the_tick_that_does_not_fit(ledger, entry)
        before = len(list(ledger.entries()))
        filler.unlink()
        ledger.check_writable()
        assert ledger.append([entry(node="after")]) == [before + 1]


def refuses_the_tick_that_does_not_fit(ledger: Ledger, entry: EntryMaker) -> None:
    """One small tick goes in; one of 3 MB is refused, without a trace of its entries or its state."""
    ledger.append([entry(node="fits")], state={"engine": b"fits"})
    with pytest.raises(LedgerUnavailable) as refused:
        ledger.append([entry(body={"text": "x" * 30_000}) for _ in range(100)], state={"engine": b"lost"})
    assert refused.value.trouble is Trouble.FULL
    assert [read.node for read in ledger.entries()] == ["fits"]
    assert ledger.state("engine") == b"fits"


# ---------------------------------------------------------------------------------------- read-only


def test_a_volume_that_turned_read_only_cannot_be_written(tiny_volume: Path, now: Clock, entry: EntryMaker) -> None:
    path = tiny_volume / "ledger.db"
    with Ledger.open(f"sqlite:///{path}", now=now) as ledger:
        ledger.append([entry()])
    subprocess.run(["mount", "-o", "remount,ro", tiny_volume], check=True)
    with pytest.raises(LedgerUnavailable) as refused, Ledger.open(f"sqlite:///{path}", now=now) as ledger:
        ledger.append([entry()])
    assert refused.value.trouble in {Trouble.READ_ONLY, Trouble.NO_ACCESS}


def test_a_ledger_that_may_only_be_read_says_so_and_is_read(sqlite_path: Path, now: Clock, entry: EntryMaker) -> None:
    with Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
        ledger.append([entry()])

    def forbid_writing(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    event.listen(Pool, "connect", forbid_writing)
    try:
        with Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
            for write in (ledger.check_writable, lambda: ledger.append([entry()])):
                with pytest.raises(LedgerUnavailable) as refused:
                    write()
                assert refused.value.trouble is Trouble.READ_ONLY
            assert len(list(ledger.entries())) == 1
    finally:
        event.remove(Pool, "connect", forbid_writing)


@pytest.mark.parametrize(
    ("mode", "trouble"),
    [
        pytest.param(0o400, Trouble.READ_ONLY, id="its owner may only read it"),
        pytest.param(0o000, Trouble.NO_ACCESS, id="nobody may touch it"),
    ],
)
def test_a_file_without_permission_is_named(
    sqlite_path: Path, now: Clock, entry: EntryMaker, mode: int, trouble: Trouble
) -> None:
    Ledger.open(f"sqlite:///{sqlite_path}", now=now).close()
    sqlite_path.chmod(mode)
    if os.access(sqlite_path, os.W_OK):
        pytest.skip("FILE MODES NOT TESTED: this user (root?) may read and write everything")
    with pytest.raises(LedgerUnavailable) as refused, Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
        ledger.append([entry()])
    assert refused.value.trouble is trouble


# ------------------------------------------------------------------------------ gone, strange, corrupt


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced by another file"])
def test_a_file_that_went_away_takes_no_more_entries_until_it_is_back(
    on_sqlite: Ledger, sqlite_path: Path, entry: EntryMaker, replaced: bool
) -> None:
    on_sqlite.append([entry()])
    aside = sqlite_path.with_suffix(".old")
    sqlite_path.rename(aside)
    if replaced:
        sqlite_path.touch()
    with pytest.raises(LedgerUnavailable) as refused:
        on_sqlite.append([entry()])
    assert refused.value.trouble is Trouble.GONE
    aside.rename(sqlite_path)
    assert on_sqlite.append([entry()]) == [2]


def make_text(path: Path) -> None:
    """A file that never was a database."""
    path.parent.mkdir()
    path.write_text("this is a log\n" * 1_000)


def make_folder(path: Path) -> None:
    """A folder where the file should be."""
    path.mkdir(parents=True)


def make_file_for_folder(path: Path) -> None:
    """A file where the folder should be."""
    path.parent.write_text("")


@pytest.mark.parametrize(
    ("spoil", "trouble"),
    [
        pytest.param(make_text, Trouble.CORRUPT, id="a text file"),
        pytest.param(make_folder, Trouble.NO_ACCESS, id="a folder"),
        pytest.param(make_file_for_folder, Trouble.NO_ACCESS, id="a file in place of the folder"),
    ],
)
def test_what_is_no_ledger_cannot_be_opened(
    sqlite_path: Path, now: Clock, spoil: Callable[[Path], None], trouble: Trouble
) -> None:
    spoil(sqlite_path)
    with pytest.raises(LedgerUnavailable) as refused:
        Ledger.open(f"sqlite:///{sqlite_path}", now=now)
    assert refused.value.trouble is trouble


def test_a_ledger_whose_pages_are_overwritten_is_called_corrupt(
    sqlite_path: Path, now: Clock, entry: EntryMaker
) -> None:
    with Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
        ledger.append([entry(body={"text": "x" * 500}) for _ in range(500)])
    page_bytes = 4096
    with sqlite_path.open("r+b") as file:
        file.seek(page_bytes)
        file.write(b"\xa5" * (sqlite_path.stat().st_size - page_bytes))
    with pytest.raises(LedgerUnavailable) as refused, Ledger.open(f"sqlite:///{sqlite_path}", now=now) as ledger:
        list(ledger.entries())
    assert refused.value.trouble is Trouble.CORRUPT


# --------------------------------------------------------------------------------------- PostgreSQL


def test_a_postgresql_that_is_down_is_said_to_be_down(tmp_path: Path, now: Clock) -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL NOT TESTED: psycopg is not installed")
    with pytest.raises(LedgerUnavailable) as refused:
        Ledger.open(f"postgresql://warden:hunter2@/ledger?host={tmp_path}", now=now)
    assert refused.value.trouble is Trouble.DOWN
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        pytest.param(errno.ENOSPC, Trouble.FULL, id="no space left"),
        pytest.param(errno.EACCES, Trouble.NO_ACCESS, id="permission denied"),
        pytest.param(errno.EROFS, Trouble.READ_ONLY, id="a read-only file system"),
        pytest.param(errno.ENAMETOOLONG, Trouble.OTHER, id="anything else"),
    ],
)
def test_an_error_of_the_operating_system_becomes_a_trouble(code: int, trouble: Trouble) -> None:
    with pytest.raises(LedgerUnavailable) as refused, guarded("open it", "here"):
        raise OSError(code, os.strerror(code))
    assert refused.value.trouble is trouble
    assert os.strerror(code) in str(refused.value)
