"""The controller's intake on loopback: a real ledger and a real server, and tokens that a test makes up.

`token_of` a node speaks for it; each other token is refused, for the reason that it names if it names one.
"""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

from daemon.agent.wire import PATH, Batch, Receipt, Report, decode_receipt, encode, report_id
from daemon.config import IntakeConfig, ListenConfig
from daemon.intake import Intake
from daemon.ledger import Entry, EntryKind, Ledger
from daemon.metrics import Metrics
from daemon.web import Crowd, Health, Web
from detectors.events import KernelEvent
from remediation.agents import Denial, Denied, IdentityUnavailable, Speaker
from rules.vocabulary import EventKind

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def token_of(node: str) -> str:
    """A token that is bound to a pod on this node."""
    return f"agent-on-{node}"


def xid(sequence: int, code: int | None = 79, **fields: Any) -> Report:
    """A fault that the kernel of a node reported, under the id that it has to have."""
    about: dict[str, Any] = {
        "at": NOW - timedelta(seconds=60) + timedelta(seconds=sequence % 60), "sequence": sequence, "boot_id": "b1",
        "source": "kmsg", "pci": "0000:5c:00", "kind": EventKind.XID, "code": code, "text": f"NVRM: Xid {code}",
    }  # fmt: skip
    event = KernelEvent(**about | fields)
    return Report(report_id(event), event)


@dataclass
class Identities:
    """Whose token it is, by what the token says. With `away`, nobody can say."""

    away: bool = False
    asked: list[str] = field(default_factory=list)
    found: dict[str, Speaker | Denial] = field(default_factory=dict)

    def known(self, token: str) -> Speaker | Denial | None:
        return self.found.get(token)

    def ask(self, token: str) -> Speaker | Denial:
        self.asked.append(token)
        if self.away:
            raise IdentityUnavailable("nobody is there")
        if token.startswith("agent-on-"):
            found: Speaker | Denial = Speaker(token.removeprefix("agent-on-"), "agent", "agent-x")
        else:
            found = Denial(Denied(token) if token in set(Denied) else Denied.INVALID, "told to nobody")
        self.found[token] = found
        return found


@dataclass
class Clock:
    """Seconds that only a test moves."""

    at_s: float = 1000.0

    def __call__(self) -> float:
        return self.at_s

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.at_s - 1000.0)


@dataclass
class Served:
    """One controller's intake."""

    ledger: Ledger
    identities: Any
    clock: Clock
    bell: threading.Event
    metrics: Metrics
    web: Web
    url: str

    def post(self, node: str, *reports: Report, token: str | None = None, says: str | None = None) -> requests.Response:
        """A batch as an agent on this node sends it; with `says`, it is of that node."""
        batch = Batch(says or node, "b1", "1.0", reports)
        return self.raw(encode(batch), {"Authorization": f"Bearer {token or token_of(node)}"})

    def raw(self, body: Any, headers: Mapping[str, str] = {}) -> requests.Response:
        """Any body."""
        with requests.Session() as session:
            session.trust_env = False
            return session.post(self.url + PATH, data=body, headers=dict(headers), timeout=30)

    def receipt(self, node: str, *reports: Report) -> Receipt:
        """The receipt for a batch that has to be taken."""
        answer = self.post(node, *reports)
        assert answer.status_code == 200, answer.text
        return decode_receipt(answer.content)

    def bytes(self, sent: bytes, *, ends: bool = True) -> bytes:
        """What comes back over a bare connection for these bytes, until it is closed."""
        with socket.create_connection(("127.0.0.1", self.web.port), timeout=30) as connection:
            connection.sendall(sent)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def entries(self) -> list[Entry]:
        return list(self.ledger.entries(kind=EntryKind.EVENT))

    def keys(self) -> list[str]:
        return [str(entry.key) for entry in self.entries()]

    def requests(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("gpuwarden_intake_requests_total", {"result": result}) or 0.0

    def reports(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("gpuwarden_intake_reports_total", {"result": result}) or 0.0


@contextmanager
def serving(
    folder: Path, listen: ListenConfig | None = None, *, identities: Any = None, **settings: Any
) -> Iterator[Served]:
    """Until the context ends; `settings` are those of the section `intake`."""
    listen = listen or ListenConfig(port=0)
    config = IntakeConfig.model_validate({"enabled": True, "connections_per_address": 512} | settings)
    clock, metrics, bell, identities = Clock(), Metrics(), threading.Event(), identities or Identities()
    with Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=clock.now, busy_timeout_s=0.2) as ledger:
        intake = Intake(config, identities, ledger, metrics, bell, clock.now, clock)
        crowd = Crowd(config.connections, config.connections_per_address)
        web = Web(listen, metrics.registry, lambda: Health(alive=True, ready=True, why=()), intake, crowd)
        web.start()
        scheme = "https" if listen.tls_cert is not None else "http"
        try:
            yield Served(ledger, identities, clock, bell, metrics, web, f"{scheme}://127.0.0.1:{web.port}")
        finally:
            web.stop()


def batch_of(node: str, *reports: Any) -> bytes:
    """A batch whose reports may be anything that JSON holds."""
    return json.dumps({"node": node, "boot_id": "b1", "version": "1.0", "reports": list(reports)}).encode()


def plain(report: Report) -> dict[str, Any]:
    """A report as JSON has it, for a test to spoil."""
    return dict(json.loads(encode(Batch("", "", "", (report,))))["reports"][0])
