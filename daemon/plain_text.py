"""Tells by its first bytes that a file is no text: a compressed log, UTF-16, a journal's own file.

No line of such a file looks like a fault, so without a word it would pass for the log of a healthy node. The audit
refuses it; `gpuwarden xid decode` says so beside its empty answer.
"""

#: How a file begins, what it then is, and the command that makes text of it.
_BEGINNINGS = (
    (b"\x1f\x8b", "gzip data", "zcat FILE"),
    (b"\x28\xb5\x2f\xfd", "zstd data", "zstdcat FILE"),
    (b"\xfd7zXZ\x00", "xz data", "xzcat FILE"),
    (b"BZh", "bzip2 data", "bzcat FILE"),
    (b"LPKSHHRH", "a journal's own file", "journalctl -k -o json --file FILE"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE"),
)


def why_no_text(head: bytes) -> str:
    """What a file is, and how to make text of it, from its first bytes; "" where it may be text."""
    for begins, kind, command in _BEGINNINGS:
        if head.startswith(begins):
            return f"it is {kind}, not plain text; give what `{command}` prints"
    return ""
