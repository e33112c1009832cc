"""Reading the API server's record while it is being written."""

import json
from pathlib import Path

from tests.testbed.audit import events_in


def line(verb: str) -> bytes:
    event = {
        "requestReceivedTimestamp": "2026-11-01T00:00:00Z", "requestURI": "/api", "user": {"username": "u"},
        "verb": verb, "stage": "ResponseComplete",
    }  # fmt: skip
    return json.dumps(event).encode() + b"\n"


def test_an_offset_in_the_middle_of_a_line_and_a_line_that_is_not_finished_yet_break_nothing(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    first, second, third = line("get"), line("patch"), line("create")
    log.write_bytes(first + second + third[:20])
    found = {
        since: [event.verb for event in events_in(log, since)]
        for since in (0, len(first) - 5, len(first), len(first) + 3)
    }
    assert found == {0: ["get", "patch"], len(first) - 5: ["patch"], len(first): ["patch"], len(first) + 3: []}
