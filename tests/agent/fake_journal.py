"""A journal that answers as journalctl 252 does, for the tests of the agent's source.

Run as a program, it is journalctl. It takes the folder with `--directory`: `entries` there has one entry a line,
`refuse` is what it says instead of anything, and `die` ends it. It knows what the agent asks for: matches, and the
options cursor, reverse, lines, until and follow.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Fields = dict[str, object]


def cursor_of(text: str) -> dict[str, str]:
    """The parts of a cursor. Raises ValueError, as journalctl does."""
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    if not {"s", "i", "b", "m", "t", "x"} <= parts.keys():
        raise ValueError("Failed to seek to cursor: Invalid argument")
    return parts


def is_before(entry: Fields, parts: dict[str, str]) -> bool:
    """Whether an entry lies before a cursor's place: by number in one series, by uptime in one boot, else by time."""
    ours = cursor_of(str(entry["__CURSOR"]))
    if ours["s"] == parts["s"]:
        return int(ours["i"], 16) < int(parts["i"], 16)
    if ours["b"] == parts["b"]:
        return int(ours["m"], 16) < int(parts["m"], 16)
    return int(ours["t"], 16) < int(parts["t"], 16)


def is_at(entry: Fields, parts: dict[str, str]) -> bool:
    ours = cursor_of(str(entry["__CURSOR"]))
    return all(ours[name] == parts[name] for name in ("b", "m", "t", "x"))


def fits(entry: Fields, matches: Sequence[str]) -> bool:
    """FIELD=VALUE all of them, or all of those after a `+`."""
    terms: list[list[str]] = [[]]
    for match in matches:
        if match == "+":
            terms.append([])
        else:
            terms[-1].append(match)
    return any(all(entry.get(one.partition("=")[0]) == one.partition("=")[2] for one in term) for term in terms)


def options(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options and matches."""
    named = dict(one.removeprefix("--").partition("=")[::2] for one in arguments if one.startswith("--"))
    return named, [one for one in arguments if not one.startswith("--")]


def answer(entries: Iterable[Fields], arguments: Sequence[str]) -> Iterator[Fields]:
    """What journalctl prints of these entries. Raises ValueError."""
    named, matches = options(arguments)
    found = [entry for entry in entries if fits(entry, matches)]
    if "until" in named:
        until_us = float(named["until"].removeprefix("@")) * 1e6
        found = [entry for entry in found if int(str(entry["__REALTIME_TIMESTAMP"])) <= until_us]
    at = cursor_of(named["cursor"]) if "cursor" in named else None
    if "reverse" in named:
        found = [one for one in found if at is None or is_before(one, at) or is_at(one, at)][::-1]
    elif at is not None:
        found = [one for one in found if not is_before(one, at)]
    return iter(found[: int(named["lines"])] if "lines" in named else found)


def main(arguments: Sequence[str]) -> int:
    named, _ = options(arguments)
    folder = Path(named["directory"])
    if (folder / "refuse").exists():
        sys.stderr.write((folder / "refuse").read_text())
        return 1
    path = folder / "entries"
    try:
        for entry in answer(map(json.loads, path.read_text().splitlines()), arguments):
            print(json.dumps(entry), flush=True)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "follow" not in named:
        return 0
    with path.open() as file:
        file.seek(0, 2)
        while not (folder / "die").exists():
            for line in file:
                if fits(json.loads(line), options(arguments)[1]):
                    print(line.rstrip("\n"), flush=True)
            time.sleep(0.01)
    sys.stderr.write("Journal file corrupted, aborting.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
