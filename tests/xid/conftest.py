"""What the tests of the kernel-log path share: the shipped rules, and short ways from text to events and to output."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from daemon.commands.xid import decode
from detectors.events import KernelEvent
from detectors.kernel_log import parse_lines
from rules.loader import load_rules
from rules.schema import RuleBook

Fault = dict[str, Any]
Decode = Callable[..., list[Fault]]
Read = Callable[..., list[KernelEvent]]


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    """The rule book as it is shipped."""
    return load_rules()


@pytest.fixture(scope="session")
def decoded(rules: RuleBook) -> Decode:
    """The output of `gpuwarden xid decode` for a log, one dict a line."""

    def run(log: str | bytes, driver_version: str | None = None) -> list[Fault]:
        raw = log.encode() if isinstance(log, str) else log
        out = io.StringIO()
        assert decode(io.BytesIO(raw), out, rules, driver_version) == 0
        return [json.loads(line) for line in out.getvalue().splitlines()]

    return run


@pytest.fixture(scope="session")
def read(rules: RuleBook) -> Read:
    """The events of a log, before they are classified."""

    def run(log: str | bytes, **options: Any) -> list[KernelEvent]:
        raw = log.encode() if isinstance(log, str) else log
        return list(parse_lines(raw.split(b"\n"), rules, **options))

    return run
