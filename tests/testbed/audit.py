"""The API server's own record of who asked for what. Tests read it through `control_plane.audit_events()`.

What it records is in audit-policy.yaml: all writes but the simulated kubelets' Lease renewals, with their bodies unless
a system component wrote them, and all reads by others than system components.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

READS = frozenset({"get", "list", "watch"})


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One request. A watch counts twice: when it starts (`stage` ResponseStarted) and when it ends.

    `resource` carries a subresource, as in "pods/eviction"; `group` is "" for core; `code` is 0 where none was sent.
    `body` is what was sent (for a patch: the patch), where the policy records it.
    """

    at: datetime
    user: str
    user_agent: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    stage: str
    dry_run: bool
    uri: str
    body: Any

    @property
    def is_write(self) -> bool:
        """Whether it asked to change something; a dry run does not."""
        return self.verb not in READS and not self.dry_run

    @property
    def succeeded(self) -> bool:
        """Whether the answer was a 2xx."""
        return 200 <= self.code < 300

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Read one line of the audit log."""
        raw = json.loads(line)
        about = raw.get("objectRef", {})
        body = raw.get("requestObject")
        subresource = about.get("subresource")
        query = parse_qs(urlsplit(raw["requestURI"]).query)
        return cls(
            at=datetime.fromisoformat(raw["requestReceivedTimestamp"]),
            user=raw["user"].get("username", ""),
            user_agent=raw.get("userAgent", ""),
            verb=raw["verb"],
            group=about.get("apiGroup", ""),
            resource="/".join(filter(None, [about.get("resource", ""), subresource])),
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
            code=raw.get("responseStatus", {}).get("code", 0),
            stage=raw["stage"],
            dry_run="dryRun" in query or _dry_run_in(body, subresource),
            uri=raw["requestURI"],
            body=body,
        )


def _dry_run_in(body: Any, subresource: str | None) -> bool:
    """An eviction, and a delete, may ask for a dry run in their body instead of the URL."""
    if not isinstance(body, dict):
        return False
    options = body.get("deleteOptions") if subresource == "eviction" else body
    return bool(isinstance(options, dict) and options.get("dryRun"))


def events_in(log: Path, since_byte: int = 0) -> Iterator[AuditEvent]:
    """The complete lines of the log that begin at a byte offset or after it.

    The offset may lie in a line that was just being written when it was taken: that one is left out.
    """
    with log.open("rb") as lines:
        if since_byte:
            lines.seek(since_byte - 1)
            lines.readline()
        for line in lines:
            if line.endswith(b"\n"):
                yield AuditEvent.from_line(line)
