"""A ledger on each database: SQLite always, PostgreSQL where its server and psycopg are installed.

The PostgreSQL server is private to the run: its own folder, a unix socket and no TCP port, started as an ordinary
user because it refuses to run as root.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

from daemon.ledger import Entry, EntryKind, Ledger

START = datetime(2026, 3, 1, 12, 0, 0, 123457, tzinfo=UTC)

EntryMaker = Callable[..., Entry]


@pytest.fixture
def now() -> Callable[[], datetime]:
    """A clock that moves one microsecond each time somebody looks."""
    ticks = count()
    return lambda: START + timedelta(microseconds=next(ticks))


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where this test's SQLite ledger lies; its folder is not there yet."""
    return tmp_path / "state" / "ledger.db"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The folder of a running PostgreSQL's socket; skips where there is no PostgreSQL."""
    # Debian keeps the server off the PATH, one folder a version.
    folders = [os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    server = shutil.which("postgres", path=os.pathsep.join(folders))
    if server is None:
        pytest.skip("PostgreSQL NOT TESTED: no `postgres` on the PATH")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL NOT TESTED: psycopg is not installed")
    try:
        owner = pwd.getpwnam("postgres") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    except KeyError:
        pytest.skip("PostgreSQL NOT TESTED: run by root, and there is no user `postgres` to run the server as")
    programs = Path(server).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="ledger-pg-"))  # short: a socket's path has at most 107 bytes
    os.chown(folder, owner.pw_uid, owner.pw_gid)

    as_owner = ["runuser", "-u", owner.pw_name, "--"] if os.geteuid() == 0 else []

    def run(program: str, *arguments: str) -> None:
        command = [*as_owner, str(programs / program), "-D", str(folder / "data"), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)

    try:
        run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        run("pg_ctl", "--wait", "start", "-o", options, "-l", str(folder / "server.log"))
        try:
            yield str(folder)
        finally:
            run("pg_ctl", "--wait", "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder)


_databases = count()


@pytest.fixture
def postgresql_url(postgresql: str) -> str:
    """A new, empty database of its own on the private server."""
    psycopg = pytest.importorskip("psycopg")
    name = f"ledger_{next(_databases)}"
    with psycopg.connect(f"host={postgresql} user=postgres dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={quote(postgresql, safe='')}"


@pytest.fixture(
    params=[pytest.param("sqlite", id="on SQLite"), pytest.param("postgresql", id="on PostgreSQL")]
)  # each test of a behaviour runs on both
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    """The URL of a ledger that doesn't exist yet, on each database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{sqlite_path}"
    found: str = request.getfixturevalue("postgresql_url")
    return found


@pytest.fixture
def ledger(url: str, now: Callable[[], datetime]) -> Iterator[Ledger]:
    """An empty ledger on each database in turn."""
    with Ledger.open(url, now=now) as opened:
        yield opened


@pytest.fixture
def on_sqlite(sqlite_path: Path, now: Callable[[], datetime]) -> Iterator[Ledger]:
    """An empty ledger on SQLite, for what only a file can suffer; it waits for a lock no longer than 50 ms."""
    with Ledger.open(f"sqlite:///{sqlite_path}", now=now, busy_timeout_s=0.05) as opened:
        yield opened


@pytest.fixture
def entry() -> EntryMaker:
    """Makes an entry of which only what matters is given: `entry(node="n1", body={...})`."""

    def make(kind: EntryKind = EntryKind.DECISION, **given: object) -> Entry:
        return Entry(kind, **{"at": START, "body": {}, **given})  # type: ignore[arg-type]  # the test says the fields

    return make
