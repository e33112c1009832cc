"""A process that is killed while it appends loses nothing that was acknowledged, and leaves no half tick."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from daemon.ledger import Ledger

ROOT = Path(__file__).parents[2]
APPENDER = Path(__file__).with_name("appender.py")
ENTRIES_A_TICK = 5


@pytest.mark.parametrize("promises", [1, 40, 400], ids=lambda number: f"killed after {number} acknowledged ticks")
def test_kill_9_loses_nothing_that_was_acknowledged(url: str, now: Callable[[], datetime], promises: int) -> None:
    acknowledged = kill_after(promises, url)
    with Ledger.open(url, now=now) as ledger:
        parts = Counter(entry.body["tick"] for entry in ledger.entries())
        state = ledger.state("tick")
        ledger.check_writable()
    assert set(range(acknowledged + 1)) <= set(parts)
    assert set(parts.values()) == {ENTRIES_A_TICK}
    assert state == str(max(parts)).encode()


def kill_after(promises: int, url: str) -> int:
    """Kills the appender in full flight once it has acknowledged so many ticks; the last tick that it acknowledged."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, APPENDER, url], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(promises):
            assert child.stdout.readline(), "the appender ended by itself"
        child.kill()
        rest = child.stdout.read()
    whole_lines = rest[: rest.rfind("\n") + 1].split()
    return int(whole_lines[-1]) if whole_lines else promises - 1
