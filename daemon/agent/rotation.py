"""Where the lines of a log go when it is rotated: the files beside it, and how to know one again.

A file is known by its inode, which a new name does not change, and by a hash of its first bytes, which a copy has too.
`daemon.agent.plain_file` reads what is found here.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path

from daemon.plain_text import why_no_text

#: A log's first lines have times, so two logs differ early.
_PRINT_BYTES = 1024
#: Fewer bytes may well be the same in two logs.
_TELLING_BYTES = 64
_HEAD_BYTES = 16
_CHUNK_BYTES = 64 * 1024
#: What an older part has after the log's name: a number, a date, or that it is old.
_OLDER = re.compile(r"[._-](?:[0-9].*|old)")


@dataclass(slots=True)
class Part:
    """An open part of a log, read up to `offset`.

    `generation` counts the parts, so that sequences grow and no two lines have the same one. `print_of` is the hash of
    its first bytes.
    """

    descriptor: int
    inode: int
    offset: int
    generation: int
    print_of: str = ""
    #: why it cannot be read, "" where it can; `until` is when it was changed last
    lost: str = ""
    until: datetime | None = None
    #: size and time of change when it was read to its end
    seen: tuple[int, int] | None = None
    #: up to here the line that begins at `offset` has no end
    scanned: int = 0

    @property
    def sequence(self) -> int:
        """The number of the line that begins at `offset`."""
        return self.generation << 40 | self.offset

    def close(self) -> None:
        """Give the file back; one that could not be opened has none."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


def open_part(path: Path, offset: int = 0, generation: int = 0) -> Part:
    """Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return Part(descriptor, os.fstat(descriptor).st_ino, offset, generation, fingerprint(descriptor))


def fingerprint(descriptor: int) -> str:
    """How many of the first bytes, and their hash."""
    head = os.pread(descriptor, _PRINT_BYTES, 0)
    return f"{len(head)}:{blake2b(head, digest_size=16).hexdigest()}"


def grown(descriptor: int, known: str) -> str:
    """The fingerprint anew where it was taken of a file that had fewer bytes than it takes."""
    return known if _length(known) == _PRINT_BYTES else fingerprint(descriptor)


def is_same(descriptor: int, known: str) -> bool:
    """Whether the file begins as the one did of which the fingerprint was taken."""
    length = _length(known)
    head = os.pread(descriptor, length, 0)
    return len(head) == length and known in ("", f"{length}:{blake2b(head, digest_size=16).hexdigest()}")


def is_telling(known: str) -> bool:
    """Whether a fingerprint is of enough bytes to know a file by it alone."""
    return _length(known) >= _TELLING_BYTES


def _length(known: str) -> int:
    length = known.partition(":")[0]
    return min(int(length), _PRINT_BYTES) if length.isascii() and length.isdecimal() else 0


def odd(path: Path) -> str:
    """Why a file is no text ("" where it may be); unreadable ones are text until they are read."""
    try:
        with path.open("rb") as file:
            return why_no_text(file.read(_HEAD_BYTES))
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Older:
    """A file that may be a part of the log."""

    path: Path
    inode: int
    changed_ns: int
    size: int


def older(path: Path) -> list[Older]:
    """The files beside a log that may be parts of it, the oldest first."""
    found = list(_beside(path))
    return sorted(found, key=lambda one: (one.changed_ns, one.path))


def present(path: Path) -> Older | None:
    """What stands under the log's own name, if anything does. Raises OSError."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return Older(path, state.st_ino, state.st_mtime_ns, state.st_size)


def is_copy(part: Part, other: Part, path: Path) -> bool:
    """Whether a part is somebody's copy: of the other one, or of what stands under the path."""
    if is_same(other.descriptor, part.print_of):
        return True
    try:
        log = open_part(path)
    except OSError:
        return False
    try:
        return is_same(log.descriptor, part.print_of)
    finally:
        log.close()


def written_after(part: Part, path: Path, log: Older | None) -> list[Part]:
    """The parts of the log at `path` that were written after this one, open, the oldest first; `log` stands there now.

    One that cannot be read says why. Raises OSError: the log itself cannot be opened, or a part has another name by now
    (FileNotFoundError).
    """
    begin, last = os.fstat(part.descriptor).st_mtime_ns, part
    found: list[Part] = []
    try:
        for one in [*older(path), *([log] if log is not None else ())]:
            if one.inode == part.inode or not one.size or (one.path != path and one.changed_ns <= begin):
                continue
            after = _opened(one, last.generation + 1, is_log=one.path == path)
            if not after.lost and one.path != path and is_copy(after, part, path):
                after.close()
                continue
            last = after
            found.append(after)
    except OSError:
        for one_part in found:
            one_part.close()
        raise
    while found and found[-1].lost:
        found.pop()  # of an unreadable part it is told when there is something after it
    return found


def _opened(one: Older, generation: int, *, is_log: bool) -> Part:
    """Raises OSError where it is the log itself, or is not there."""
    changed = datetime.fromtimestamp(one.changed_ns / 1e9, UTC)
    if odd(one.path):
        return Part(-1, one.inode, 0, generation, lost=f"{one.path.name} is compressed", until=changed)
    try:
        return open_part(one.path, generation=generation)
    except OSError as error:
        if is_log or isinstance(error, FileNotFoundError):
            raise
        why = f"{one.path.name} cannot be opened: {error.strerror}"
        return Part(-1, one.inode, 0, generation, lost=why, until=changed)


def _beside(path: Path) -> Iterator[Older]:
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - names only; a folder of logs may be large
    except OSError:
        return
    for name in names:
        if not (name.startswith(path.name) and _OLDER.fullmatch(name, len(path.name))):
            continue
        try:
            state = (path.parent / name).stat()
        except OSError:
            continue
        if os.path.isfile(path.parent / name):  # noqa: PTH113 - no pipe or device is opened
            yield Older(path.parent / name, state.st_ino, state.st_mtime_ns, state.st_size)


def find(path: Path, known: str, offset: int, inode: int = 0) -> Path | None:
    """The file beside the log that was read up to `offset`: by its inode, else a copy of it; None where it is gone."""
    candidates = [one for one in older(path) if one.size >= offset and not odd(one.path)]
    candidates.sort(key=lambda one: one.inode != inode)
    for one in candidates:
        if one.inode != inode and not is_telling(known):
            continue
        try:
            part = open_part(one.path)
        except OSError:
            continue
        try:
            if is_same(part.descriptor, known):
                return one.path
        finally:
            part.close()
    return None


def stands(part: Part, path: Path) -> bool:
    """Whether the path leads to this file."""
    try:
        return path.stat().st_ino == part.inode
    except FileNotFoundError:
        return False


def last_line_end(descriptor: int) -> int:
    """The byte after the last whole line."""
    end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - _CHUNK_BYTES)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
