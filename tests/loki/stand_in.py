"""A stand-in for Loki with the documented semantics of `query_range`, spoiled on demand, on a real HTTP server.

Streams by their labels; nanoseconds as text; `start` inclusive, `end` not; at most `limit` lines, the oldest ones in
the direction `forward`; equal lines of one stream at one time are one; lines may arrive in any order; what is too old
is gone.
Of LogQL it knows selectors, line filters and label filters. It was written from Loki's documentation and error texts.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from daemon.loki.client import Page, read_page, refusal
from daemon.loki.config import LokiConfig

S = 1_000_000_000
_STAGE = re.compile(
    r'\s*(?:(?P<filter>\|=|!=|\|~|!~)\s*"(?P<text>(?:[^"\\]|\\.)*)"'
    r'|\|\s*(?P<name>\w+)\s*(?P<sign>=~|!~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)")'
)
_MATCHER = re.compile(r'\s*,?\s*(?P<name>\w+)\s*(?P<sign>=~|!~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)"')
#: (status, body, headers)
Answer = tuple[int, bytes, dict[str, str]]


@dataclass
class StandIn:
    """`spoil` is for the next answers, one each: an answer, a number of seconds to hang, None for a proper one."""

    streams: dict[tuple[tuple[str, str], ...], dict[tuple[int, str], None]] = field(default_factory=dict)
    most: int = 5000
    longest_s: float = 721 * 3600.0
    kept_from_ns: int = 0
    #: a query that lies wholly before this is refused: (nanoseconds, the duration that Loki tells)
    refused_before: tuple[int, str] = (0, "0s")
    warnings: list[str] = field(default_factory=list)
    spoil: list[Answer | float | None] = field(default_factory=list)
    always: Answer | float | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def push(self, at_ns: int, line: str, **labels: str) -> None:
        self.streams.setdefault(tuple(sorted(labels.items())), {})[at_ns, line] = None

    def answer(self, params: dict[str, str]) -> Answer:
        """What Loki says to these parameters."""
        self.asked.append(params)
        spoiled = self.spoil.pop(0) if self.spoil else self.always
        if isinstance(spoiled, tuple):
            return spoiled
        if spoiled is not None:
            self.release.wait(spoiled)
        start, end, limit = int(params["start"]), int(params["end"]), int(params["limit"])
        if limit > self.most:
            said = f"max entries limit per query exceeded, limit > max_entries_limit_per_query ({limit} > {self.most})"
            return 400, said.encode(), {}
        if (end - start) / S > self.longest_s:
            said = f"the query time range exceeds the limit (query length: {(end - start) // S}s, limit: 1h)"
            return 400, said.encode(), {}
        if end <= self.refused_before[0]:
            said = f"this data is no longer available, it is past now - max_query_lookback ({self.refused_before[1]})"
            return 400, said.encode(), {}
        return 200, json.dumps(self._found(params["query"], max(start, self.kept_from_ns), end, limit)).encode(), {}

    def _found(self, query: str, start: int, end: int, limit: int) -> dict[str, Any]:
        labels_end = query.index("}")
        matchers = [found.groupdict() for found in _MATCHER.finditer(query[1:labels_end])]
        stages = [found.groupdict() for found in _STAGE.finditer(query[labels_end + 1 :])]
        found = []
        for stream, lines in self.streams.items():
            labels = dict(stream)
            tests = [*matchers, *(stage for stage in stages if stage["name"])]
            if not all(_matches(labels.get(one["name"], ""), one["sign"], one["value"]) for one in tests):
                continue
            found += [
                (at, stream, line)
                for at, line in lines
                if start <= at < end
                and all(_passes(line, stage["filter"], stage["text"]) for stage in stages if stage["filter"])
            ]
        found.sort(key=lambda one: one[0])
        by_stream: dict[tuple[tuple[str, str], ...], list[list[str]]] = {}
        for at, stream, line in found[:limit]:
            by_stream.setdefault(stream, []).append([str(at), line])
        result = [{"stream": dict(stream), "values": values} for stream, values in by_stream.items()]
        told = {"warnings": self.warnings} if self.warnings else {}
        return {"status": "success", "data": {"resultType": "streams", "result": result, "stats": {}}, **told}

    @contextmanager
    def serving(self) -> Iterator["StandIn"]:
        """Listen on a free loopback port until the context ends."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            server.server_close()
            thread.join()


@dataclass
class Direct:
    """The stand-in without HTTP, for tests that ask thousands of times."""

    loki: StandIn
    config: LokiConfig

    def page(self, query: str, start_ns: int, end_ns: int, limit: int) -> Page:
        status, body, headers = self.loki.answer(
            {"query": query, "start": str(start_ns), "end": str(end_ns), "limit": str(limit)}
        )
        if status != 200:
            raise refusal(status, body.decode(), "loki", headers.get("Retry-After", ""))
        return read_page(body, start_ns, end_ns, self.config)


def _matches(has: str, sign: str, wanted: str) -> bool:
    wanted = wanted.replace('\\"', '"').replace("\\\\", "\\")
    equal = has == wanted if "~" not in sign else re.fullmatch(wanted, has) is not None
    return equal is not sign.startswith("!")


def _passes(line: str, sign: str, text: str) -> bool:
    there = text in line if sign in ("|=", "!=") else re.search(text, line) is not None
    return there is not sign.startswith("!")


def _handler(loki: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            assert parts.path == "/loki/api/v1/query_range"
            loki.headers.append(dict(self.headers))
            params = dict(parse_qsl(parts.query))
            assert params["direction"] == "forward"
            status, body, headers = loki.answer(params)
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # who asked has given up

        def log_message(self, *_: object) -> None:
            pass

    return Handler
