"""Names inside the page that links can point at, made from outside text. `page` calls it."""

import re
from collections.abc import Iterable

_UNSAFE = re.compile(r"[^A-Za-z0-9]+")


def unique_anchors(names: Iterable[str], prefix: str) -> list[str]:
    """One anchor for each name, in order: safe in an id, a URL fragment and CSS, and never twice the same."""
    seen: set[str] = set()
    anchors: list[str] = []
    for name in names:
        base = f"{prefix}{_UNSAFE.sub('-', name)[:80].strip('-')}"
        anchor, number = base, 2
        while anchor in seen:
            anchor, number = f"{base}.{number}", number + 1
        seen.add(anchor)
        anchors.append(anchor)
    return anchors
