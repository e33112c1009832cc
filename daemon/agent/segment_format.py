"""How records stand in a file of the spool: groups with a checksum, one after the other. Values and bytes; no I/O.

A group is read back as a whole or not at all. Its checksum covers its segment's number and its place, so what an older
segment left in the same file is never taken for its own. After the last group stands an empty one, which marks the end.
"""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

#: The first byte is in no JSON, so no text in a log can pass for a group.
_MAGIC = b"\xffGWS"
#: magic, number of the segment, length of the body, checksum
_GROUP = struct.Struct("<4sQII")
_SEED = struct.Struct("<QII")
#: kind, length of the payload, checksum
_RECORD = struct.Struct("<cII")
#: What a group costs beside its records, and a record beside its payload.
GROUP_OVERHEAD, RECORD_OVERHEAD = _GROUP.size, _RECORD.size


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it stands in a group, its payload at `offset`."""

    kind: bytes
    payload: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A file: its newest segment's number, where the groups of it begin, and where the last one ends.

    `broken` counts the places within it that cannot be read; `is_ragged`: after its last group stands no end.
    """

    number: int
    groups: tuple[int, ...]
    end: int
    broken: int
    is_ragged: bool


def packed(number: int, offset: int, records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A group of records (kind of one byte, payload) as it stands at a place of a segment."""
    body = b"".join(
        part for kind, data in records for part in (_RECORD.pack(kind, len(data), zlib.crc32(data)), data)
    )  # fmt: skip
    return _GROUP.pack(_MAGIC, number, len(body), _sum(number, offset, body)) + body


def unpacked(data: bytes, offset: int) -> list[Stored]:
    """The records of the group at a place; none where there is no whole group."""
    found = _group_at(data, offset)
    at, records = offset + GROUP_OVERHEAD, list[Stored]()
    end = at + (found[1] if found is not None else 0)
    while at < end:
        kind, length, _ = _RECORD.unpack_from(data, at)
        at += RECORD_OVERHEAD
        records.append(Stored(kind, data[at : at + length], at))
        at += length
    return records


def whole(data: bytes) -> bytes | None:
    """The payload of a record that was read by itself, None where it is not as it was written."""
    if len(data) < RECORD_OVERHEAD:
        return None
    _, length, checksum = _RECORD.unpack_from(data)
    payload = data[RECORD_OVERHEAD:]
    return payload if length == len(payload) and zlib.crc32(payload) == checksum else None


def scan(data: bytes) -> Scan | None:
    """A whole file; None where there is no group in it."""
    groups: list[tuple[int, int, int]] = []
    at = 0
    while at >= 0:
        found = _group_at(data, at)
        if found is None:
            at = data.find(_MAGIC, at + 1)
            continue
        number, length = found
        if length:
            groups.append((number, at, at + GROUP_OVERHEAD + length))
        at += GROUP_OVERHEAD + length
    if not groups:
        return None
    newest = max(number for number, _, _ in groups)
    own = [(begin, end) for number, begin, end in groups if number == newest]
    end = own[-1][1]
    broken = sum(begin != before for (begin, _), before in zip(own, (0, *(after for _, after in own)), strict=False))
    return Scan(newest, tuple(begin for begin, _ in own), end, broken, _group_at(data, end) != (newest, 0))


def _sum(number: int, offset: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(_SEED.pack(number, offset, len(body))))


def _group_at(data: bytes, offset: int) -> tuple[int, int] | None:
    """Number and length of the whole group at a place."""
    begin = offset + GROUP_OVERHEAD
    if begin > len(data) or not data.startswith(_MAGIC, offset):
        return None
    _, number, length, checksum = _GROUP.unpack_from(data, offset)
    if begin + length > len(data) or _sum(number, offset, memoryview(data)[begin : begin + length]) != checksum:
        return None
    return number, length
