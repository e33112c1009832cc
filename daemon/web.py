"""The daemon's own HTTP: /metrics, /healthz (is the loop alive?) and /readyz (can its word be relied on?)."""

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from daemon.config import ListenConfig

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is told. `why` says in words what is wrong; where it is ready, what is worth knowing anyway."""

    alive: bool
    ready: bool
    why: tuple[str, ...]


class Web:
    """A small server in threads of its own. Making one takes the port: raises OSError where that cannot be had."""

    def __init__(self, listen: ListenConfig, registry: CollectorRegistry, health: Callable[[], Health]) -> None:
        server = _ServerV6 if ":" in listen.host else _Server
        self._server = server((listen.host, listen.port), _handler(registry, health))
        self._thread = threading.Thread(target=self._server.serve_forever, name="web", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on (chosen by the system where the configuration says 0)."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without http.server's look-up of the host's name, which waits for a name server that may not be there."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """A prober that hangs up is no news; anything else is one line and never the end of the server."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("request failed", client=str(client_address[0]), error=repr(error), exc_info=error)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _handler(registry: CollectorRegistry, health: Callable[[], Health]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "gpuwarden"
        sys_version = ""
        timeout = 10

        def do_GET(self) -> None:
            path = self.path.split("?", 1)[0]
            if path == "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(registry))
            elif path in ("/healthz", "/readyz"):
                now = health()
                good = now.alive if path == "/healthz" else now.ready
                body = json.dumps({"ok": good, "why": list(now.why)}).encode()
                self._answer(200 if good else 503, "application/json", body)
            else:
                self._answer(404, "text/plain; charset=utf-8", b"try /metrics, /healthz or /readyz\n")

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            """Probes and scrapes are no news."""

    return Handler
