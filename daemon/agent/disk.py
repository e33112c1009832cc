"""The folder of the spool and the files in it: who may use it, and the few calls that decide what survives.

`Files` makes the calls of the system, one by one, so that a test can stand in for a disk that is full or loses its
power. `Disk` is what `daemon.agent.segments` uses: the same with typed errors, and with the steps that belong together.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OWNER_ONLY = 0o600
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NEW = ".new"
_PIECE = 1 << 16


class SpoolError(Exception):
    """The spool cannot be used: where, why, and what to do."""


class SpoolFull(SpoolError):
    """There is no room on the disk. Nothing was stored by this call, and the position is as it was."""


class Files:
    """One folder that this process alone uses. Every call may raise OSError.

    The folder is made where it is missing (mode 0700), and locked until `close`.
    Raises SpoolError where it cannot be had, others may write to it, or another process has it.
    """

    def __init__(self, folder: Path) -> None:
        self._open: dict[str, int] = {}
        self._folder = _opened(folder)
        try:
            _require_ours(folder, self._folder)
            _lock(folder, self._folder)
            os.fchmod(self._folder, 0o700)
        except BaseException:
            os.close(self._folder)
            raise

    def names(self) -> list[str]:
        """What is in the folder, in a fixed order."""
        return sorted(os.listdir(self._folder))  # noqa: PTH208 - a descriptor has no path

    def size(self, name: str) -> int:
        """In bytes."""
        return os.fstat(self._descriptor(name)).st_size

    def create(self, name: str) -> None:
        """An empty file that was not there."""
        self._open[name] = self._opened_file(name, os.O_CREAT | os.O_EXCL)

    def allocate(self, name: str, size: int) -> None:
        """Take the room on the disk for a new file, so that writing within it needs no more."""
        descriptor = self._descriptor(name)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            done = 0
            while done < size:
                done += os.pwrite(descriptor, bytes(min(_PIECE, size - done)), done)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """What there is, at most `length` bytes."""
        return os.pread(self._descriptor(name), length, offset)

    def write(self, name: str, offset: int, data: bytes) -> int:
        """How many bytes were written."""
        return os.pwrite(self._descriptor(name), data, offset)

    def sync(self, name: str) -> None:
        """What was written is on the disk when this returns."""
        os.fdatasync(self._descriptor(name))

    def rename(self, name: str, new: str) -> None:
        """In the place of what has the new name."""
        os.rename(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._forget(new)
        self._open[new] = self._open.pop(name)

    def remove(self, name: str) -> None:
        """Delete a file."""
        self._forget(name)
        os.unlink(name, dir_fd=self._folder)

    def sync_folder(self) -> None:
        """Names that came or changed are on the disk when this returns."""
        os.fsync(self._folder)

    def close(self) -> None:
        """Close all files, and let another process have the folder."""
        for name in list(self._open):
            self._forget(name)
        os.close(self._folder)

    def _descriptor(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = self._opened_file(name)
        return self._open[name]

    def _opened_file(self, name: str, how: int = 0) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | how
        opened = os.open(name, flags, _OWNER_ONLY, dir_fd=self._folder)
        os.fchmod(opened, _OWNER_ONLY)
        return opened

    def _forget(self, name: str) -> None:
        if name in self._open:
            os.close(self._open.pop(name))


def _opened(folder: Path) -> int:
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True)
            above = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(above)
            finally:
                os.close(above)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SpoolError(
            f"the spool's folder {folder} cannot be opened: {error.strerror}; name a folder that the agent may write to"
        ) from error


def _require_ours(folder: Path, descriptor: int) -> None:
    state = os.fstat(descriptor)
    mode = stat.S_IMODE(state.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SpoolError(
            f"others may write to the spool's folder {folder} (mode {mode:04o}): chmod 0700 {folder}, or name a folder"
            " below it"
        )
    if state.st_uid != os.geteuid():
        raise SpoolError(
            f"the spool's folder {folder} belongs to user {state.st_uid}, and the agent is user {os.geteuid()}:"
            f" chown {os.geteuid()} {folder}, or name a folder below it"
        )


def _lock(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SpoolError(
            f"another process has the spool {folder}: stop that agent, or give this one a folder of its own"
        ) from error
    except OSError as error:
        raise SpoolError(
            f"the spool's folder {folder} cannot be locked: {error.strerror}; it has to be on a local disk"
        ) from error


class Disk:
    """The files of one folder, with what went wrong as SpoolError, or SpoolFull where there is no room.

    `where` is how the folder is called in an error.
    """

    def __init__(self, files: Files, where: Path) -> None:
        self._files = files
        self._where = where

    def names(self) -> list[str]:
        """What is in the folder."""
        with self._told("listed", "the folder"):
            return self._files.names()

    def size(self, name: str) -> int:
        """In bytes."""
        with self._told("read", name):
            return self._files.size(name)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """What there is, at most `length` bytes."""
        with self._told("read", name):
            found = b""
            while len(found) < length:
                more = self._files.read(name, offset + len(found), length - len(found))
                if not more:
                    break
                found += more
            return found

    def store(self, name: str, offset: int, data: bytes) -> None:
        """Write, and return once it is on the disk."""
        with self._told("written", name):
            self._write(name, offset, data)
            self._files.sync(name)

    def make(self, name: str, size: int) -> None:
        """A new file with all the room that it will ever need."""
        with self._told("made", name):
            self._files.create(name)
            try:
                self._files.allocate(name, size)
                self._files.sync(name)
                self._files.sync_folder()
            except OSError:
                with suppress(OSError):
                    self._files.remove(name)
                raise

    def replace(self, name: str, data: bytes) -> None:
        """A small file as a whole: what was there before, or this, whatever happens in between."""
        new = name + _NEW
        with self._told("written", name):
            if new in self._files.names():
                self._files.remove(new)
            self._files.create(new)
            self._write(new, 0, data)
            self._files.sync(new)
            self._files.rename(new, name)
            self._files.sync_folder()

    def remove(self, name: str) -> None:
        """Delete a file."""
        with self._told("deleted", name):
            self._files.remove(name)

    def close(self) -> None:
        """Give the folder back."""
        self._files.close()

    def _write(self, name: str, offset: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = self._files.write(name, offset, bytes(left))
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            left = left[written:]
            offset += written

    @contextmanager
    def _told(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"spool {self._where}: {name} cannot be {what}: {error.strerror or error}"
            if error.errno in _FULL:
                raise SpoolFull(
                    f"{text}; what could not be stored is still in the log: free space on this disk"
                ) from error
            raise SpoolError(f"{text}; check this disk and the folder's permissions") from error
