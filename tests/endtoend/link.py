"""One gpuwarden's way to the API server: who wrote what can be told, and a test can act at one certain request.

All replicas are the same user, as in a real cluster; a link puts its own name in as the user agent, which the audit log
has. A `Trip` happens once, when the first request that it is about arrives or has just been answered.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes.client import Configuration

from tests.cluster.proxy import HOP, Fault, FaultProxy, _Handler

_CONNECTIONS = 64


class Moment(StrEnum):
    """When, as the API server sees it; the one who asked never gets the answer."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request; `body` is {} where it had none."""

    method: str
    path: str
    query: str
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


#: Whether it is this request, after these that its process has had answered before.
Matches = Callable[[Asked, Sequence[Asked]], bool]


@dataclass
class Trip:
    """`link` is the one at which it happened, once it has; what happened then is over."""

    matches: Matches
    moment: Moment
    happened: threading.Event = field(default_factory=threading.Event)
    link: "Link | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Link(FaultProxy):
    """Plain HTTP on loopback before the real API server."""

    request_queue_size = 128

    def __init__(self, name: str, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["cluster"]
        upstream = Configuration()
        upstream.host, authority = cluster["server"], cluster["certificate-authority"]
        super().__init__(upstream)
        self.RequestHandlerClass = _Passing
        self.pool = urllib3.PoolManager(ca_certs=authority, retries=False, maxsize=_CONNECTIONS)
        self.name = name
        #: as the one that was given, but through here
        self.kubeconfig = kubeconfig.with_name(f"{kubeconfig.stem}-{name}.kubeconfig")
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.server_address[1]}"}
        self.kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.kubeconfig.chmod(0o600)
        self.passed: list[Asked] = []
        #: what a trip does
        self.act: Callable[[], object] = lambda: None
        self.trip: Trip | None = None

    def reach(self, asked: Asked, moment: Moment) -> bool:
        """Whether it was this request's turn, and the one who asked is to hear no more."""
        trip = self.trip
        if trip is None or trip.moment is not moment:
            return False
        with trip.lock:
            if trip.link is not None or not trip.matches(asked, self.passed):
                return False
            trip.link = self
        self.act()
        trip.happened.set()
        return True


class _Passing(_Handler):
    server: Link
    disable_nagle_algorithm = True

    def forward(self, body: bytes, _fault: Fault) -> None:
        path, _, query = self.path.partition("?")
        asked = Asked(self.command, path, query, json.loads(body) if body else {})
        if self.server.reach(asked, Moment.BEFORE):
            self.close_connection = True
            return
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP | {"host"}}
        assert self.server.upstream is not None
        answer = self.server.pool.request(
            self.command, self.server.upstream.host + self.path, body=body, preload_content=False,
            headers=headers | {"User-Agent": self.server.name}, timeout=urllib3.Timeout(connect=5, read=120),
        )  # fmt: skip
        try:
            self.server.passed.append(asked)
            if self.server.reach(asked, Moment.AFTER):
                self.close_connection = True
                return
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP}
            self.begin(answer.status, kept | {"Transfer-Encoding": "chunked"})
            for piece in answer.stream(1 << 16, decode_content=False):
                self.chunk(piece)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            answer.close()
