"""The daemon's own HTTP: /metrics, /healthz (is the loop alive?) and /readyz (can its word be relied on?).

Something else may take posts at one path (`daemon.intake`). Whoever asks has so long to do so, whatever he sends, and
only so many are listened to at once.
"""

import contextlib
import io
import json
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from daemon.config import ListenConfig
from daemon.tls import Certificate

log = structlog.get_logger()

#: A request has to have come after so long, and its answer to have gone within as long again.
PATIENCE_S = 15.0
#: What a client sends on although it was refused is read for so long, or it would never see its answer.
_LINGER_S = 2.0
_PIECE_BYTES = 1 << 16
_LINGER_PIECES = 64


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe is told. `why` says in words what is wrong; where it is ready, what is worth knowing anyway."""

    alive: bool
    ready: bool
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Posted:
    """A post whose body has not been read yet.

    `read` gives so many bytes of it, fewer where the client ended early. Raises TimeoutError where he is too slow.
    """

    address: str
    headers: Message
    read: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class Taker(Protocol):
    """Takes posts at one path, in as many threads as there are connections."""

    @property
    def path(self) -> str:
        """The path."""
        ...

    def take(self, posted: Posted) -> Reply:
        """Answer one."""
        ...

    def turned_away(self) -> None:
        """A connection was closed unheard, since there were too many."""
        ...


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many connections there may be at once, in all and from one address."""

    most: int = 512
    most_of_one: int = 64


class Web:
    """A small server in threads of its own.

    Making one takes the port: raises OSError where that cannot be had, CertificateError where its certificate cannot.
    """

    def __init__(
        self,
        listen: ListenConfig,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        taker: Taker | None = None,
        crowd: Crowd = Crowd(),
    ) -> None:
        server = _ServerV6 if ":" in listen.host else _Server
        cert = None
        if listen.tls_cert is not None and listen.tls_key is not None:
            cert = Certificate(listen.tls_cert, listen.tls_key)
        self._server = server((listen.host, listen.port), _Handler, registry, health, cert, taker, crowd)
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
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        registry: CollectorRegistry,
        health: Callable[[], Health],
        cert: Certificate | None,
        taker: Taker | None,
        crowd: Crowd,
    ) -> None:
        self.registry, self.health, self.taker = registry, health, taker
        self._cert, self._crowd = cert, crowd
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Without http.server's look-up of the host's name, which waits for a name server that may not be there."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for it, unless there are too many."""
        address = str(client_address[0])
        with self._lock:
            has_room = self._open.total() < self._crowd.most and self._open[address] < self._crowd.most_of_one
            if has_room:
                self._open[address] += 1
        if has_room:
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be had
                self._left(address)
                raise
            return
        if self.taker is not None:
            self.taker.turned_away()
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The thread's whole life."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left(str(client_address[0]))

    def _left(self, address: str) -> None:
        with self._lock:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer it; where there is a certificate, over TLS. Its handshake is part of the thread's work."""
        request.settimeout(PATIENCE_S)
        if self._cert is None:
            super().finish_request(request, client_address)
            return
        with self._cert.context().wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """A prober that hangs up is no news; anything else is one line and never the end of the server."""
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("request failed", client=str(client_address[0]), error=repr(error), exc_info=error)


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Patient(io.RawIOBase):
    """What comes over a connection, until a time: raises TimeoutError after that, however often something trickles."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self.until_s = until_s

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As much as there is."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "gpuwarden"
    sys_version = ""
    timeout = PATIENCE_S

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._raw = _Patient(self.connection, time.monotonic() + PATIENCE_S)
        self.rfile = io.BufferedReader(self._raw)
        self._is_read = False

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, content_type, encode(self.server.registry))
        elif path in ("/healthz", "/readyz"):
            now = self.server.health()
            good = now.alive if path == "/healthz" else now.ready
            body = json.dumps({"ok": good, "why": list(now.why)}).encode()
            self._answer(200 if good else 503, "application/json", body)
        else:
            self._answer(404, "text/plain; charset=utf-8", b"try /metrics, /healthz or /readyz\n")

    def do_POST(self) -> None:
        taker = self.server.taker
        if taker is None or self.path.split("?", 1)[0] != taker.path:
            self._answer(404, "text/plain; charset=utf-8", b"nothing is taken here\n")
            self._linger()
            return
        reply = taker.take(Posted(str(self.client_address[0]), self.headers, self._read))
        self._answer(reply.status, reply.content_type, reply.body, reply.headers)
        if not self._is_read:
            self._linger()

    def _read(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size and (piece := self.rfile.read1(min(_PIECE_BYTES, size - len(pieces)))):
            pieces += piece
        self._is_read = True
        return bytes(pieces)

    def _answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.connection.settimeout(PATIENCE_S)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _linger(self) -> None:
        """A connection that is closed with something unread takes the answer along that was sent."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._raw.until_s = time.monotonic() + _LINGER_S
            for _ in range(_LINGER_PIECES):
                if not self.rfile.read1(_PIECE_BYTES):
                    break

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Probes and scrapes are no news."""
