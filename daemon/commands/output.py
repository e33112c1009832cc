"""What commands share: printing in three forms, errors on stderr with a stable exit code, progress on a terminal.

Results go to stdout and nothing else does, so that `-o json` can be piped into a program.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

from daemon.config import Config, ConfigError, load_config
from rules.loader import RuleError, load_rules
from rules.schema import RuleBook

#: How wide a table is where nobody's terminal limits it.
_PIPE_WIDTH = 200


class ExitCode(IntEnum):
    """Stable: scripts depend on them."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    SOURCE = 3
    LEDGER = 4
    FILE = 5


class CommandError(Exception):
    """What ends a command: one message for people and an exit code for scripts."""

    def __init__(self, message: str, code: ExitCode) -> None:
        self.code = code
        super().__init__(message)


def say(text: str = "") -> None:
    """One line of result on stdout."""
    sys.stdout.write(f"{text}\n")


def complain(message: str) -> None:
    """One message on stderr."""
    sys.stderr.write(f"gpuwarden: {message}\n")


def settings(path: Path | None) -> tuple[Config, RuleBook]:
    """Configuration and rules. Raises CommandError that names what is wrong with which line."""
    try:
        config = load_config(path)
        return config, load_rules(config.rules)
    except (ConfigError, RuleError) as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


def show(data: Any, form: str, table: Iterable[Sequence[str]] | None = None, head: Sequence[str] = ()) -> None:
    """Print data as JSON or YAML, or the rows of `table` under `head`. Colour only where stdout is a terminal."""
    if form == "json":
        import json

        say(json.dumps(data, indent=2, sort_keys=False, default=str))
    elif form == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        from rich.console import Console
        from rich.table import Table

        shown = Table(*head, box=None, pad_edge=False, header_style="bold")
        for row in table or ():
            shown.add_row(*(str(cell) for cell in row))
        # No markup and no emoji: cells hold kernel lines and PromQL, whose brackets and colons are their own.
        is_terminal = sys.stdout.isatty()
        console = Console(
            highlight=False, markup=False, emoji=False, force_terminal=is_terminal,
            width=None if is_terminal else _PIPE_WIDTH,
        )  # fmt: skip
        console.print(shown)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested mapping as dotted keys, for tables."""
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr where that is a terminal; yields a function that is told how far it is."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
