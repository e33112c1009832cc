"""The ledger itself: opened once by the process, appended to once a tick, read by reports and the console.

A tick's entries and the engine's state are one transaction, so a restart never finds the one without the other.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row, Select, delete, func, insert, select

from daemon.ledger.engine import LedgerFile, connect, parse_url, prepare_file, writing
from daemon.ledger.entries import (
    INCIDENT_KINDS,
    Body,
    Entry,
    EntryError,
    EntryKind,
    dump,
    from_micros,
    load,
    to_micros,
)
from daemon.ledger.errors import LedgerSchemaError, LedgerUnavailable, Trouble, guarded
from daemon.ledger.schema import migrate
from daemon.ledger.tables import ENTRIES, STATE
from daemon.ledger.turns import Turns

Clock = Callable[[], datetime]

#: Rows read, and keys looked up, in one statement: below SQLite's limit of variables, and small in memory.
_PAGE = 1000
#: The name in `state` that `check_writable` writes.
_PROBE = "ledger.probe"


class Ledger:
    """The append-only record. Safe to use from several threads; several processes take turns to write.

    Every method raises LedgerUnavailable where the database cannot do what is asked; nothing is written then. On
    PostgreSQL a connection that breaks during the commit itself leaves that open: give entries a `key` and retry.
    """

    def __init__(
        self, engine: Engine, file: LedgerFile | None, where: str, now: Clock, busy_timeout_s: float = 5.0
    ) -> None:
        self._engine = engine
        self._file = file
        self._now = now
        self._turns = Turns()
        self._busy_timeout_s = busy_timeout_s
        self.where = where

    @classmethod
    def open(cls, url: str, *, now: Clock, busy_timeout_s: float = 5.0) -> Self:
        """The ledger at an URL, made if it is absent and migrated if it is older than this version.

        `now` is the clock that stamps what is written. `busy_timeout_s` is how long to wait for another writer.

        Raises:
            LedgerUnavailable: the file or the server cannot be used.
            LedgerSchemaError: a newer gpuwarden wrote it.
            LedgerError: the URL names no database that we support, or its driver is not installed.
        """
        parsed = parse_url(url)
        where = parsed.render_as_string(hide_password=True)
        engine = connect(parsed, busy_timeout_s)
        try:
            with guarded("open it", where):
                path = prepare_file(parsed)
                migrate(engine, where)
                file = LedgerFile.of(path) if path else None
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, file, where, now, busy_timeout_s)

    def close(self) -> None:
        """Gives back every connection; SQLite folds its write-ahead log into the file."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------------------------------- writing

    def append(self, entries: Sequence[Entry], *, state: Mapping[str, bytes] | None = None) -> list[int]:
        """Writes a tick, all of it or nothing, and returns when it is on the disk.

        Returns one id for each entry, in their order; 0 where an entry with the same key had been written before (or
        comes earlier in `entries`), so this one was ignored. `state` replaces the values of the names it has.

        Raises:
            EntryError: an entry is written already, or its body is no plain JSON.
            LedgerUnavailable: see the class.
        """
        for entry in entries:
            if entry.id:
                raise EntryError(f"entry {entry.id} ({entry.kind}) is in the ledger already; append a new one")
        bodies = [dump(entry.body) for entry in entries]
        written_us = to_micros(self._now())
        ids: list[int] = []
        rows: list[dict[str, Any]] = []
        with self._writing(f"append {len(entries)} entries") as connection:
            taken = _taken(connection, [entry.key for entry in entries if entry.key is not None])
            next_id = (connection.scalar(select(func.max(ENTRIES.c.id))) or 0) + 1
            for entry, body in zip(entries, bodies, strict=True):
                if entry.key in taken:
                    ids.append(0)
                    continue
                if entry.key is not None:
                    taken.add(entry.key)
                rows.append(_row(next_id, entry, body, written_us))
                ids.append(next_id)
                next_id += 1
            if rows:
                connection.execute(insert(ENTRIES), rows)
            if state:
                _replace_state(connection, state, written_us)
        return ids

    def check_writable(self) -> None:
        """Writes a mark and waits until it is on the disk: what must succeed before gpuwarden acts.

        Raises:
            LedgerUnavailable: see the class.
        """
        with self._writing("write a mark") as connection:
            _replace_state(connection, {_PROBE: b""}, to_micros(self._now()))

    @contextmanager
    def _writing(self, what: str) -> Iterator[Connection]:
        with self._turns.one(self._busy_timeout_s) as is_mine, guarded(what, self.where):
            if not is_mine:
                raise LedgerUnavailable(what, self.where, Trouble.LOCKED, "other threads of this process are writing")
            if self._file is not None:
                self._file.require_in_place(what, self.where)
            with writing(self._engine) as connection:
                yield connection

    # ---------------------------------------------------------------------------------------- reading

    def entries(
        self,
        *,
        kind: EntryKind | Collection[EntryKind] | None = None,
        incident: str | Collection[str] | None = None,
        node: str | None = None,
        gpu: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after_id: int = 0,
        before_id: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Entry]:
        """Entries that match everything given, in the order of ids; all of them by default.

        `since` <= `at` < `until`; `after_id` < id < `before_id`; `gpu` is a GPU's UUID. What is appended while the
        iterator is consumed is not part of it, and no lock is held between two pages of it.
        """
        query = select(ENTRIES)
        if kind is not None:
            kinds = (kind,) if isinstance(kind, EntryKind) else tuple(kind)
            query = query.where(ENTRIES.c.kind.in_([one.value for one in kinds]))
        if incident is not None:
            query = query.where(ENTRIES.c.incident.in_([incident] if isinstance(incident, str) else list(incident)))
        for column, value in ((ENTRIES.c.node, node), (ENTRIES.c.gpu_uuid, gpu)):
            if value is not None:
                query = query.where(column == value)
        if since is not None:
            query = query.where(ENTRIES.c.at_us >= to_micros(since))
        if until is not None:
            query = query.where(ENTRIES.c.at_us < to_micros(until))
        return self._pages(query, after_id, before_id, limit, newest_first=newest_first)

    def _pages(
        self, query: Select[Any], after_id: int, before_id: int | None, limit: int | None, *, newest_first: bool
    ) -> Iterator[Entry]:
        order = ENTRIES.c.id.desc() if newest_first else ENTRIES.c.id
        low, high, left = after_id, before_id, limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            with guarded("read entries", self.where), self._engine.begin() as connection:
                if high is None:
                    high = (connection.scalar(select(func.max(ENTRIES.c.id))) or 0) + 1
                page = query.where(ENTRIES.c.id > low, ENTRIES.c.id < high).order_by(order).limit(size)
                rows = connection.execute(page).all()
            yield from map(_entry, rows)
            if len(rows) < size:
                return
            low, high = (low, rows[-1].id) if newest_first else (rows[-1].id, high)
            left = None if left is None else left - size

    def open_incidents(self) -> list[Body]:
        """The newest body of each incident that is not closed, in the order in which they were last written."""
        kinds = [kind.value for kind in INCIDENT_KINDS]
        newest = (
            select(func.max(ENTRIES.c.id))
            .where(ENTRIES.c.kind.in_(kinds), ENTRIES.c.incident.is_not(None))
            .group_by(ENTRIES.c.incident)
        )
        query = (
            select(ENTRIES.c.body)
            .where(ENTRIES.c.id.in_(newest), ENTRIES.c.kind != EntryKind.INCIDENT_CLOSED.value)
            .order_by(ENTRIES.c.id)
        )
        with guarded("read the open incidents", self.where), self._engine.begin() as connection:
            return [load(body) for body in connection.scalars(query)]

    def state(self, name: str) -> bytes | None:
        """What `append` last stored under this name; None where it never did."""
        with guarded(f"read the state {name}", self.where), self._engine.begin() as connection:
            return connection.scalar(select(STATE.c.body).where(STATE.c.name == name))


def _taken(connection: Connection, keys: Sequence[str]) -> set[str]:
    """Those of the keys that entries have already."""
    taken: set[str] = set()
    for start in range(0, len(keys), _PAGE):
        some = keys[start : start + _PAGE]
        taken.update(filter(None, connection.scalars(select(ENTRIES.c.key).where(ENTRIES.c.key.in_(some)))))
    return taken


def _replace_state(connection: Connection, state: Mapping[str, bytes], at_us: int) -> None:
    connection.execute(delete(STATE).where(STATE.c.name.in_(state)))
    connection.execute(insert(STATE), [{"name": name, "at_us": at_us, "body": body} for name, body in state.items()])


def _row(entry_id: int, entry: Entry, body: str, written_us: int) -> dict[str, Any]:
    return {
        "id": entry_id,
        "at_us": to_micros(entry.at),
        "written_us": written_us,
        "kind": entry.kind.value,
        "incident": entry.incident,
        "node": entry.node,
        "gpu_uuid": entry.gpu_uuid,
        "key": entry.key,
        "body": body,
    }


def _entry(row: Row[Any]) -> Entry:
    try:
        kind = EntryKind(row.kind)
    except ValueError as error:
        raise LedgerSchemaError(
            f"entry {row.id} has kind {row.kind!r}, which this gpuwarden doesn't know; a newer version wrote it"
        ) from error
    return Entry(
        id=row.id,
        kind=kind,
        at=from_micros(row.at_us),
        written=from_micros(row.written_us),
        incident=row.incident,
        node=row.node,
        gpu_uuid=row.gpu_uuid,
        key=row.key,
        body=load(row.body),
    )
