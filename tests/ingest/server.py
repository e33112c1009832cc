"""A Prometheus on loopback that holds what a test gives it and fails in whatever way the test wants."""

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fixtures.fleet.promql import QueryError, parse
from tests.ingest.builders import Labels, Points, compact, number


@dataclass
class Reply:
    """What the server sends. `wait` holds the answer back until it is set; `drip` cuts the body off in the middle."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    drip: bool = False


@dataclass
class Question:
    """One call, as it came."""

    path: str
    form: dict[str, str]
    method: str
    headers: dict[str, str]

    @property
    def promql(self) -> str:
        return self.form.get("query", "")


#: Gives the reply to a question, or None for the usual one.
Mood = Callable[[Question], Reply | None]


class FakePrometheus:
    """Series in memory. `asked` are all calls so far; `mood` may answer instead."""

    def __init__(self) -> None:
        self.url = ""
        self.series: list[tuple[Labels, Points]] = []
        self.warnings: list[str] = []
        self.asked: list[Question] = []
        self.mood: Mood = lambda _question: None
        self.expressions: dict[str, list[tuple[Labels, float, Any]]] = {}

    def reply(self, question: Question) -> Reply:
        """The answer to one call."""
        self.asked.append(question)
        special = self.mood(question)
        if special is not None:
            return special
        if question.path.endswith("/label/__name__/values"):
            names = sorted({labels["__name__"] for labels, _ in self.series})
            return Reply(compact({"status": "success", "data": names}))
        at = float(question.form["time"])
        if question.promql in self.expressions:
            found = self.expressions[question.promql]
            result = [{"metric": labels, "value": [when, number(value)]} for labels, when, value in found]
            return self._data("vector", result)
        try:
            selector = parse(question.promql)
        except QueryError as error:
            return Reply(compact({"status": "error", "errorType": "bad_data", "error": str(error)}), 400)
        result = []
        for labels, points in self.series:
            if all(matcher.accepts(labels.get(matcher.label, "")) for matcher in selector.matchers):
                since = at - (selector.range_ms or 300_000) / 1000
                inside = [[when, number(value)] for when, value in points if since < when <= at]
                if inside and selector.range_ms is not None:
                    result.append({"metric": labels, "values": inside})
                elif inside:
                    result.append({"metric": labels, "value": [at, inside[-1][1]]})
        return self._data("matrix" if selector.range_ms is not None else "vector", result)

    def _data(self, kind: str, result: list[Any]) -> Reply:
        answer = {"status": "success", "data": {"resultType": kind, "result": result}}
        return Reply(compact(answer | ({"warnings": self.warnings} if self.warnings else {})))

    def queries(self) -> list[str]:
        """The PromQL of all calls so far; forgets them."""
        asked = [question.promql for question in self.asked if question.promql]
        self.asked.clear()
        return asked

    @contextmanager
    def start(self) -> Iterator["FakePrometheus"]:
        """Serve until the context ends."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(urlsplit(self.path).query)

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())

            def _answer(self, text: str) -> None:
                form = {name: values[0] for name, values in parse_qs(text, keep_blank_values=True).items()}
                question = Question(urlsplit(self.path).path, form, self.command, dict(self.headers))
                reply = fake.reply(question)
                if reply.wait is not None:
                    reply.wait.wait(10)
                try:
                    self._send(reply)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client has given up

            def _send(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body[: len(reply.body) // 2] if reply.drip else reply.body)
                if reply.drip:
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def zipped(body: bytes) -> Reply:
    """The same answer, compressed."""
    return Reply(gzip.compress(body), headers={"Content-Encoding": "gzip"})


def answers(status: int, body: str | bytes, **headers: str) -> Reply:
    """A reply in one line."""
    return Reply(body.encode() if isinstance(body, str) else body, status, headers)
