"""A Prometheus that misbehaves on demand, over a simulated fleet: down, slow, wrong, or well again, query by query."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fixtures.fleet.responder import Answers, answer

#: What is done about one query: None answers it properly, a number is an HTTP status, bytes are the whole answer.
DOWN = "down"
SLOW = "slow"
Trouble = None | str | int | bytes
Script = Callable[[str], Trouble]


def well(_promql: str) -> Trouble:
    """Answer everything."""
    return None


def always(trouble: Trouble) -> Script:
    """The same for every query."""
    return lambda _promql: trouble


def only(part: str, trouble: Trouble) -> Script:
    """Trouble for the queries that hold this text."""
    return lambda promql: trouble if part in promql else None


@dataclass
class ScriptedPrometheus:
    """`script` may be changed while it serves. `asked` lists the queries that came, in their order.

    `rewrite` changes what is answered: another site's labels.
    """

    answers: Answers
    now_s: float
    script: Script = well
    rewrite: Callable[[str], str] = str
    asked: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @contextmanager
    def serving(self) -> Iterator["ScriptedPrometheus"]:
        """Listen on a free loopback port until the context ends."""
        server = _Server(("127.0.0.1", 0), _handler(self))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is what some tests are about."""


def _handler(prometheus: ScriptedPrometheus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's acknowledgement

        def do_GET(self) -> None:
            self._serve(parse_qs(urlsplit(self.path).query))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            self._serve(parse_qs(body))

        def _serve(self, form: dict[str, list[str]]) -> None:
            path = urlsplit(self.path).path
            promql = form.get("query", [path])[0]
            prometheus.asked.append(promql)
            trouble = prometheus.script(promql)
            if trouble == SLOW:
                prometheus.release.wait(30)
            if trouble in (DOWN, SLOW):
                self.close_connection = True
                return
            if isinstance(trouble, int):
                self._send(trouble, b'{"status":"error","errorType":"bad_data","error":"no"}')
            elif isinstance(trouble, bytes):
                self._send(200, trouble)
            else:
                data = answer(prometheus.answers, path, form, int(prometheus.now_s * 1000))
                self._send(200, f'{{"status":"success","data":{prometheus.rewrite(data or "[]")}}}'.encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            """Say nothing."""

    return Handler
