"""What can be wrong with the ledger, in words an operator can act on.

`daemon.ledger.store` wraps each access in `guarded`; the loop catches LedgerUnavailable and does not act, which
is why every failure of the database arrives as that one type.
"""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError


class Trouble(StrEnum):
    """Why the ledger cannot be used; fit for a metric's label."""

    LOCKED = "locked"
    FULL = "full"
    READ_ONLY = "read_only"
    NO_ACCESS = "no_access"
    CORRUPT = "corrupt"
    GONE = "gone"
    IO = "io"
    DOWN = "down"
    OTHER = "other"


NEXT_STEP = {
    Trouble.LOCKED: "find out who holds it (`fuser` on the file, pg_locks on PostgreSQL) or raise the busy time-out",
    Trouble.FULL: "free space on the volume; the next tick tries again",
    Trouble.READ_ONLY: "mount the volume writable, or open the ledger as the user that owns it",
    Trouble.NO_ACCESS: "give the user that runs gpuwarden read and write access to the file and its folder",
    Trouble.CORRUPT: "keep the file for inspection and restore the newest backup, or name a new file",
    Trouble.GONE: "put the file back or restart gpuwarden; what is written to the old file would be lost",
    Trouble.IO: "check the volume (kernel log, quota, network file system)",
    Trouble.DOWN: "check that the database server is up and reachable and that the credentials hold",
    Trouble.OTHER: "read the reason above; if the schema was edited by hand, restore the newest backup",
}

#: SQLite's primary result codes (https://sqlite.org/rescode.html).
_SQLITE = {
    3: Trouble.NO_ACCESS,
    5: Trouble.LOCKED,
    6: Trouble.LOCKED,
    8: Trouble.READ_ONLY,
    10: Trouble.IO,
    11: Trouble.CORRUPT,
    13: Trouble.FULL,
    14: Trouble.NO_ACCESS,
    23: Trouble.NO_ACCESS,
    26: Trouble.CORRUPT,
}

#: PostgreSQL's SQLSTATE by code or class (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_POSTGRESQL = {
    "25006": Trouble.READ_ONLY,
    "28": Trouble.NO_ACCESS,
    "3D": Trouble.NO_ACCESS,
    "40": Trouble.LOCKED,
    "42501": Trouble.NO_ACCESS,
    "53100": Trouble.FULL,
    "53300": Trouble.DOWN,
    "55P03": Trouble.LOCKED,
    "57014": Trouble.LOCKED,
    "57P": Trouble.DOWN,
    "58": Trouble.IO,
    "08": Trouble.DOWN,
    "XX": Trouble.CORRUPT,
}

_ERRNO = {
    errno.EACCES: Trouble.NO_ACCESS,
    errno.EPERM: Trouble.NO_ACCESS,
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
    errno.EIO: Trouble.IO,
    errno.ENOTDIR: Trouble.NO_ACCESS,
    errno.EISDIR: Trouble.NO_ACCESS,
    errno.EEXIST: Trouble.NO_ACCESS,
}


class LedgerError(Exception):
    """Something about the ledger that has to change before it can be used: an URL, a driver, a version."""


class LedgerSchemaError(LedgerError):
    """The database was written by another version of gpuwarden than this one can read."""


class LedgerUnavailable(LedgerError):
    """The ledger could not do what was asked. Nothing of it was written; `trouble` says in one word why."""

    def __init__(self, what: str, where: str, trouble: Trouble, why: str) -> None:
        self.what, self.where, self.trouble, self.why = what, where, trouble, why
        self.next_step = NEXT_STEP[trouble]
        super().__init__(f"cannot {what}: ledger {where}: {trouble}: {why}; next: {self.next_step}")


@contextmanager
def guarded(what: str, where: str) -> Iterator[None]:
    """Turns every failure of the database or its file inside the block into LedgerUnavailable."""
    try:
        yield
    except DBAPIError as error:
        raise LedgerUnavailable(what, where, trouble_of(error), _first_line(error.orig or error)) from error
    except PoolTimeoutError as error:
        raise LedgerUnavailable(what, where, Trouble.LOCKED, "every connection is in use") from error
    except OSError as error:
        trouble = _ERRNO.get(error.errno or 0, Trouble.OTHER)
        raise LedgerUnavailable(what, where, trouble, error.strerror or str(error)) from error


def trouble_of(error: DBAPIError) -> Trouble:
    """The one word for a driver's error: from SQLite's result code or PostgreSQL's SQLSTATE, never from its text."""
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF, Trouble.OTHER)
    state = getattr(error.orig, "sqlstate", None)
    if not state:
        return Trouble.DOWN  # libpq gives no SQLSTATE when it has no connection at all
    found = (_POSTGRESQL.get(state[:length]) for length in (5, 3, 2))
    return next((trouble for trouble in found if trouble is not None), Trouble.OTHER)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
