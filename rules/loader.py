"""Reads rule packs: ours from `rules/packs`, then a site's own on top, key by key.

Called once at start by the daemon and by `gpuwarden rules check`. A wrong pack stops the start with the file, the
line, the key and the reason; no rule is dropped in silence.
"""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rules.schema import Pack, RuleBook

PACKS = Path(__file__).parent / "packs"
#: A site's own pod template replaces the shipped one: half of each would run what nobody wrote.
_WHOLE = frozenset({"template"})
_HEADER = ("version", "name", "owner", "source")


class RuleError(Exception):
    """A pack that cannot be used: each problem says file, line, key, reason."""

    def __init__(self, problems: list["Problem"]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one key of one file. `line` is 1-based, 0 where the file as a whole is meant."""

    file: str
    line: int
    key: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.reason}" if self.key else f"{where}: {self.reason}"


#: libyaml reads the packs some ten times faster than Python does; without it, Python will do.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _OnceLoader(_SafeLoader):  # type: ignore[valid-type, misc]  # chosen at import
    """SafeLoader that refuses a key given twice (YAML would keep the last one without a word)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML calls it so
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int)):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _line_of(node: yaml.Node | None, path: tuple[str | int, ...]) -> int:
    """1-based line of a key path inside a composed YAML tree; the deepest part of the path that exists."""
    line = 0
    for part in path:
        if node is None:
            break
        line = node.start_mark.line + 1
        found = None
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.value == str(part):
                    line, found = key_node.start_mark.line + 1, value_node
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
            line = found.start_mark.line + 1
        node = found
    return line


def problems_of(error: ValidationError, path: Path) -> list[Problem]:
    """A pydantic error about a YAML file as one problem a key, in the order of the file."""
    tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=_SafeLoader)
    problems = [
        Problem(str(path), _line_of(tree, item["loc"]), ".".join(str(part) for part in item["loc"]), _reason(item))
        for item in error.errors(include_url=False)
    ]
    return sorted(problems, key=lambda problem: problem.line)


def _reason(item: ErrorDetails) -> str:
    """What is wrong, in words for whoever wrote the file: pydantic's own are for whoever wrote the model."""
    if item["type"] == "extra_forbidden":
        return "there is no such key; check its spelling and how far it is indented"
    return item["msg"].removeprefix("Value error, ")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as a mapping. Raises RuleError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{error}; it must be UTF-8"
        raise RuleError([Problem(str(path), 0, "", f"cannot be read: {reason}")]) from error
    try:
        data = yaml.load(text, Loader=_OnceLoader)  # noqa: S506 - a SafeLoader, with a check more
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # PyYAML lets a ValueError through for what only looks like a date or a number (2025-13-45).
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        raise RuleError([Problem(str(path), mark.line + 1 if mark else 0, "", str(reason))]) from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RuleError([Problem(str(path), 1, "", "the top level must be a map of sections")])
    return data


def _merge(base: dict[Any, Any], extra: Mapping[Any, Any]) -> dict[Any, Any]:
    merged = dict(base)
    for key, value in extra.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping) and key not in _WHOLE:
            merged[key] = _merge(mine, value)
        else:
            merged[key] = value
    return merged


def pack_files(extra: Iterable[Path] = ()) -> list[Path]:
    """The files that make the rule book, ours first, in a fixed order."""
    return [*sorted(PACKS.rglob("*.yaml")), *extra]


def load_rules(extra: Iterable[Path] = ()) -> RuleBook:
    """Every shipped pack with the site's packs merged over them, checked as a whole.

    Raises:
        RuleError: a file cannot be read, is not YAML, or says something the schema refuses.
    """
    merged: dict[Any, Any] = {}
    problems: list[Problem] = []
    files = pack_files(extra)
    for path in files:
        data = read_yaml(path)
        body = {key: value for key, value in data.items() if key not in _HEADER}
        shipped = PACKS in path.parents
        candidate = (
            data if shipped else {**{k: data.get(k) for k in _HEADER if k in data}, **_merge(_only(merged, body), body)}
        )
        try:
            Pack.model_validate(candidate)
        except ValidationError as error:
            problems.extend(problems_of(error, path))
            continue
        merged = _merge(merged, copy.deepcopy(body))
    if problems:
        raise RuleError(problems)
    digest = hashlib.sha256(json.dumps(merged, sort_keys=True, default=str).encode()).hexdigest()[:16]
    header = {"version": 1, "name": "all", "owner": "gpuwarden"}
    try:
        return RuleBook.model_validate({**header, **merged, "files": tuple(str(p) for p in files), "digest": digest})
    except ValidationError as error:
        raise RuleError(problems_of(error, files[-1])) from error


def _only(merged: Mapping[Any, Any], body: Mapping[Any, Any]) -> dict[Any, Any]:
    """The parts of the merged packs that a site's pack changes, so that a partial rule validates over its base."""
    picked: dict[Any, Any] = {}
    for section, entries in body.items():
        base = merged.get(section)
        if isinstance(base, dict) and isinstance(entries, Mapping):
            picked[section] = {key: base[key] for key in entries if key in base}
    return picked
