"""One request to the API server over the official client's connection, and one watch. Only `client` uses it.

The `kubernetes` package gives what is hard to get right: kubeconfig, tokens and their renewal, TLS. Its models are left
out, because they cost most of a list's time and drop fields that they don't know.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException

from remediation.cluster.answers import Answer, ClusterError, Failure, error_of, retry_after
from remediation.objects import OWNER

Object = dict[str, Any]
#: Connections kept open: a watch for each kind, and as many evictions side by side as anybody asks for.
CONNECTIONS = 80
LONGEST_EVENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. Empty query values are left out. As text it is "PATCH /api/v1/...", for messages."""

    method: Literal[
        "GET", "POST", "PATCH", "DELETE"
    ]  # whole objects are never put, and pods are evicted instead of deleted
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Object | None = None
    content: str = "application/json"

    def __str__(self) -> str:
        return f"{'WATCH' if 'watch' in self.query else self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """ADDED, MODIFIED, DELETED or BOOKMARK, with the object undecoded and its resourceVersion."""

    type: str
    object: msgspec.Raw
    version: str


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Wire:
    """Connections of one identity to one API server. Safe to use from many threads."""

    def __init__(self, configuration: Configuration) -> None:
        # urllib3's own retries would hide a Retry-After, and repeat what must not be repeated.
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS
        self.host: str = configuration.host
        self._api = ApiClient(configuration)
        self._http: urllib3.PoolManager = self._api.rest_client.pool_manager
        self._auth = threading.Lock()

    def close(self) -> None:
        """Close idle connections."""
        self._http.clear()
        self._api.close()

    def ask(self, request: Request, timeout: urllib3.Timeout) -> Answer:
        """Send it once, whatever comes back. Raises ClusterError where no whole answer came."""
        return _answer(request, self._open(request, timeout))

    def stream(self, request: Request, timeout: urllib3.Timeout) -> "Watch":
        """Start a watch. Raises ClusterError where the server doesn't take it."""
        response = self._open(request, timeout, stream=True)
        if response.status != HTTPStatus.OK:
            try:
                raise error_of(str(request), _answer(request, response))
            finally:
                response.close()
        return Watch(request, response)

    def _open(self, request: Request, timeout: urllib3.Timeout, *, stream: bool = False) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": OWNER}
        try:
            with self._auth:  # a token may be renewed here
                self._api.update_params_for_auth(headers, [], ["BearerToken"])
        except (ConfigException, OSError, ValueError) as bad:
            raise ClusterError(Failure.UNCONFIGURED, str(request), f"no token could be had: {bad}") from bad
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content
            body = msgspec.json.encode(request.body)
        url = f"{self.host}{request.path}?{urlencode({key: value for key, value in request.query.items() if value})}"
        try:
            return self._http.request(
                request.method, url, body=body, headers=headers, timeout=timeout, preload_content=not stream,
                redirect=False,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as broken:
            raise _network_error(request, broken) from broken


class Watch:
    """A running watch, as an iterator of events; it ends by itself after its `timeout_s`. Close it when done.

    Iterating raises ClusterError: EXPIRED where the server no longer keeps what would come next, TIMED_OUT after a
    silence, DISCONNECTED where the connection broke.
    """

    def __init__(self, request: Request, response: urllib3.BaseHTTPResponse) -> None:
        self._request = request
        self._response = response

    def __iter__(self) -> Iterator[WatchEvent]:
        buffer = b""
        try:
            for chunk in self._response.stream(1 << 16, decode_content=True):
                *lines, buffer = (buffer + chunk).split(b"\n")
                if len(buffer) > LONGEST_EVENT_BYTES:
                    raise ClusterError(
                        Failure.UNREADABLE, str(self._request), f"an event over {LONGEST_EVENT_BYTES} bytes"
                    )
                for line in filter(None, lines):
                    yield self._event(line)
        except urllib3.exceptions.HTTPError as broken:
            raise _network_error(self._request, broken) from broken
        except ValueError as closed:
            # `close` in another thread, just before the TLS layer began to read.
            raise ClusterError(
                Failure.DISCONNECTED, str(self._request), f"closed while it was read: {closed}"
            ) from closed

    def close(self) -> None:
        """End it; a thread that is waiting for its next event gets the end or a ClusterError at once."""
        with suppress(ValueError, RuntimeError, OSError):
            self._response.shutdown()

    def release(self) -> None:
        """Close the connection. For the thread that iterates, after it has stopped."""
        self._response.close()

    def _event(self, line: bytes) -> WatchEvent:
        event = decoded(self._request, line, _Event)
        if event.type == "ERROR":
            raise error_of(str(self._request), Answer(200, bytes(event.object)))
        meta = decoded(self._request, event.object, _Versioned).metadata
        return WatchEvent(event.type, event.object, meta.resource_version)


def _answer(request: Request, response: urllib3.BaseHTTPResponse) -> Answer:
    try:
        body = response.data
    except urllib3.exceptions.HTTPError as broken:
        raise _network_error(request, broken) from broken
    return Answer(response.status, body, retry_after(response.headers.get("Retry-After")))


def _network_error(request: Request, broken: urllib3.exceptions.HTTPError) -> ClusterError:
    exceptions = urllib3.exceptions
    never_sent = (exceptions.ConnectTimeoutError, exceptions.NewConnectionError, exceptions.ProxyError)
    bad_certificate = isinstance(broken, exceptions.SSLError) and "CERTIFICATE" in str(broken).upper()
    if isinstance(broken, never_sent) or bad_certificate:
        kind = Failure.UNREACHABLE
    elif isinstance(broken, exceptions.TimeoutError):
        kind = Failure.TIMED_OUT
    else:
        kind = Failure.DISCONNECTED
    return ClusterError(kind, str(request), str(broken))


def decoded(request: Request, body: bytes | msgspec.Raw, kind: Any) -> Any:
    """The body as this type. Raises ClusterError UNREADABLE."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as bad:
        said = f"{bad}; it starts with {bytes(body)[:120]!r}"
        raise ClusterError(Failure.UNREADABLE, str(request), said) from bad
