"""A proxy before the API server that does what networks and busy servers do, when a test says so.

Tests of `remediation.cluster` connect through it. Without an API server behind it, it still answers what `Fault` says.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import urllib3
from kubernetes.client import Configuration

#: Headers that speak of one connection, not of the answer.
HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


@dataclass
class Fault:
    """What happens, `times` times, to requests whose "METHOD /path?query" has all of `match` in it.

    With a `code`: that answer. `hang`: none until the proxy closes. `mute`: the real answer without its body's events.
    `inject`: the first piece of a streamed answer. `cut`: the connection breaks after `inject`.
    """

    match: tuple[str, ...] = ()
    times: int = 1
    code: int = 0
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    mute: bool = False
    inject: bytes = b""
    cut: bool = False


class FaultProxy(ThreadingHTTPServer):
    """Plain HTTP on loopback; `upstream` is the real connection, None for no API server at all."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: Configuration | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.asked: list[str] = []
        self.over = threading.Event()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        authority = upstream.ssl_ca_cert if upstream else None
        self.pool = urllib3.PoolManager(ca_certs=authority, retries=False)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join()
        self.pool.clear()

    @property
    def configuration(self) -> Configuration:
        """For a client that goes through here."""
        found = Configuration()
        found.proxy = None
        found.host = f"http://127.0.0.1:{self.server_address[1]}"
        if self.upstream is not None:
            found.api_key = dict(self.upstream.api_key)
        return found

    def plan(self, *faults: Fault) -> None:
        """Add faults; for each request the first that matches and has times left happens."""
        with self._lock:
            self._faults += faults

    def heal(self) -> None:
        """Drop all faults."""
        with self._lock:
            self._faults.clear()

    def fault_for(self, request: str) -> Fault:
        """What is to happen to this request; a plain `Fault` is nothing."""
        with self._lock:
            self.asked.append(request)
            for fault in self._faults:
                if fault.times > 0 and all(part in request for part in fault.match):
                    fault.times -= 1
                    return fault
        return Fault()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client or server that went away is what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.fault_for(f"{self.command} {self.path}")
        if fault.hang:
            self.server.over.wait()
            self.close_connection = True
        elif fault.code:
            sent = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
            self.begin(fault.code, {"Content-Length": str(len(sent)), **fault.headers})
            self.wfile.write(sent)
        else:
            self.forward(body, fault)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815 - http.server's names

    def forward(self, body: bytes, fault: Fault) -> None:
        assert self.server.upstream is not None, f"no fault is planned for {self.command} {self.path}"
        headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP | {"host"}}
        answer = self.server.pool.request(
            self.command, self.server.upstream.host + self.path, body=body, headers=headers, preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=30),
        )  # fmt: skip
        try:
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in HOP}
            self.begin(answer.status, kept | {"Transfer-Encoding": "chunked"})
            self.chunk(fault.inject)
            if fault.cut:
                self.close_connection = True
                return
            for piece in answer.stream(1 << 16):
                self.chunk(b"" if fault.mute else piece)
            self.wfile.write(b"0\r\n\r\n")
        finally:
            answer.close()

    def begin(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def chunk(self, piece: bytes) -> None:
        if piece:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Quiet."""
