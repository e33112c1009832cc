"""A webhook on loopback that takes tickets, and answers in whatever way a test wants."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the receiver answers: after it has called `before`, and once `wait` is set."""

    status: int = 201
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    before: Callable[[], object] = lambda: None
    wait: threading.Event | None = None


@dataclass
class Post:
    """One post as it came; `at_s` is of the monotonic clock."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def ticket(self) -> dict[str, Any]:
        """What it holds."""
        return dict(json.loads(self.body))

    @property
    def key(self) -> str:
        """What tells one ticket from another."""
        return self.headers["Idempotency-Key"]


class Receiver:
    """`posts` are all so far; `replies` are given in turn, the usual one where there is none."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.replies: deque[Reply] = deque()
        self.usual: Callable[[Post], Reply] = lambda _post: Reply()
        self.port = 0

    @property
    def url(self) -> str:
        """Where to post."""
        return f"http://127.0.0.1:{self.port}/tickets"

    @property
    def keys(self) -> list[str]:
        """The key of each post."""
        return [post.key for post in self.posts]

    def reply(self, post: Post) -> Reply:
        """The answer to one post."""
        self.posts.append(post)
        return self.replies.popleft() if self.replies else self.usual(post)

    @contextmanager
    def serving(self, port: int = 0) -> Iterator["Receiver"]:
        """Take posts until the context ends."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                post = Post(self.command, self.path, dict(self.headers), body, time.monotonic())
                reply = receiver.reply(post)
                reply.before()
                if reply.wait is not None:
                    reply.wait.wait(60)
                try:
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    self.wfile.write(reply.body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # whoever posted has given up

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        self.port = server.server_address[1]
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
