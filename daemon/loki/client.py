"""The HTTP edge to Loki: asks for one page of lines, bounds it, and names what went wrong.

Of the documented semantics it relies on: `start` is inclusive and `end` is not, times are nanoseconds as text, and a
page in the direction `forward` holds the oldest lines of its span. What stands outside of the span is left out: Loki
has answered with such lines.
"""

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec
import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_auth_from_url

from daemon.bearer import Bearer
from daemon.loki.config import LokiConfig
from daemon.secrets import without_password
from daemon.version import own_version

_PATH = "/loki/api/v1/query_range"
_CHUNK_BYTES = 1 << 16
_TOLD_BYTES = 300
_HIGHER_NS = 1 << 62
_ENTRIES_LIMIT = re.compile(r"max[ _]entries[ _]limit.*?\(\s*\d+\s*>\s*(\d+)\s*\)", re.DOTALL)
_TOO_OLD = re.compile(r"data is no longer available.*?max_query_lookback\s*\(([^)]*)\)", re.DOTALL)
_TOO_LONG = re.compile(r"time range exceeds the limit")
_TOO_MUCH = re.compile(
    r"too many bytes|too large to execute|max number of chunks limit|maximum number of series|received message larger"
)
_GO_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class Trouble(StrEnum):
    """Why there is no page."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    HTTP = "http"
    THROTTLED = "throttled"
    #: the request itself: the query, the identity, the address
    REFUSED = "refused"
    GARBAGE = "garbage"
    TOO_LARGE = "too_large"
    #: Loki gives no page of so many lines
    LIMIT = "limit"
    #: nor of so long a span
    SPAN = "span"
    #: nor of so long ago
    TOO_OLD = "too_old"
    #: there is a page, and Loki warns that it is not whole
    PARTIAL = "partial"


class LokiError(Exception):
    """Loki gave no page.

    `allowed` is the number of lines that it would give (LIMIT) or the seconds that it looks back (TOO_OLD), where it
    says so. `after_s` is how long it asks to be left alone.
    """

    def __init__(self, trouble: Trouble, detail: str, *, allowed: float | None = None, after_s: float = 0.0) -> None:
        self.trouble = trouble
        self.allowed = allowed
        self.after_s = after_s
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `key` tells it from every other one. `trusted` is what its labels say."""

    at_ns: int
    key: int
    node: str
    trusted: bool
    text: str


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its lines by time. `count` and `last_ns` (-1: none) are those of all entries, also unusable ones."""

    lines: tuple[Line, ...]
    count: int
    last_ns: int
    malformed: int = 0
    warnings: tuple[str, ...] = ()


class _Stream(msgspec.Struct):
    stream: dict[str, Any]
    values: list[Any]


class _Data(msgspec.Struct):
    kind: str = msgspec.field(name="resultType")
    result: list[msgspec.Raw] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data
    warnings: list[Any] | None = None


class Client:
    """One connection; only one thread calls it."""

    def __init__(self, config: LokiConfig) -> None:
        self._config = config
        self._shown = without_password(config.url) + _PATH
        self._session = requests.Session()
        self._session.headers["User-Agent"] = f"gpuwarden/{own_version()}"
        if config.tenant:
            self._session.headers["X-Scope-OrgID"] = config.tenant
        if config.ca_file is not None:
            self._session.verify = str(config.ca_file)

    def page(self, query: str, start_ns: int, end_ns: int, limit: int) -> Page:
        """The oldest `limit` lines of [start, end). Raises LokiError."""
        params = {
            "query": query, "start": str(start_ns), "end": str(end_ns), "limit": str(limit), "direction": "forward",
        }  # fmt: skip
        return read_page(self._get(params), start_ns, end_ns, self._config)

    def close(self) -> None:
        """Give the connection back."""
        self._session.close()

    def _get(self, params: dict[str, str]) -> bytes:
        timeout_s = self._config.timeout
        deadline_s = time.monotonic() + timeout_s
        try:
            with self._session.get(
                self._config.url + _PATH, params=params, auth=self._auth(), timeout=timeout_s, stream=True,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                body = self._bounded(answer, deadline_s)
                status, after = answer.status_code, answer.headers.get("Retry-After", "")
        except requests.Timeout as error:
            raise self._late() from error
        except (requests.RequestException, OSError, ValueError) as error:  # ValueError: a header that is no Latin-1
            if "Read timed out" in str(error):  # how requests puts a time-out in the middle of a body
                raise self._late() from error
            said = f"{self._shown}: {type(error).__name__}; is loki.url right?"
            raise LokiError(Trouble.UNREACHABLE, said) from error
        if status != requests.codes.ok:
            raise refusal(status, body.decode("utf-8", "replace"), self._shown, after)
        return body

    def _auth(self) -> AuthBase:
        """Read at each request, so that a token that was rotated is taken up. Raises LokiError."""
        user, password = get_auth_from_url(self._config.url)
        if user or password:
            return HTTPBasicAuth(user, password)
        path = self._config.bearer_token_file
        try:
            token = path.read_text(encoding="utf-8").strip() if path is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            said = f"loki.bearer_token_file {path} cannot be read: {error}"
            raise LokiError(Trouble.UNREACHABLE, said) from error
        if not token.isascii() or not token.replace(" ", "").isprintable():
            raise LokiError(Trouble.UNREACHABLE, f"loki.bearer_token_file {path} holds no token")
        return Bearer(token)

    def _bounded(self, answer: requests.Response, deadline_s: float) -> bytes:
        body, most = bytearray(), self._config.max_response_bytes
        for chunk in answer.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > most:
                raise LokiError(Trouble.TOO_LARGE, f"{self._shown}: an answer of over {most} bytes")
            if time.monotonic() > deadline_s:
                raise self._late()
        return bytes(body)

    def _late(self) -> LokiError:
        return LokiError(Trouble.TIMEOUT, f"{self._shown} did not answer within {self._config.timeout:g} s")


def refusal(status: int, said: str, url: str, after: str = "") -> LokiError:
    """What another status than 200 means; `after` is its Retry-After."""
    detail = f"{url} answered {status}: {' '.join(said[:_TOLD_BYTES].split())}"
    if status == requests.codes.too_many_requests:
        after_s = float(after) if after.strip().isdecimal() else 0.0
        return LokiError(Trouble.THROTTLED, detail, after_s=after_s)
    if status == requests.codes.gateway_timeout:
        return LokiError(Trouble.TIMEOUT, detail)
    found = _ENTRIES_LIMIT.search(said)
    if found is not None:
        return LokiError(Trouble.LIMIT, detail, allowed=float(found[1][:9]))
    found = _TOO_OLD.search(said)
    if found is not None:
        return LokiError(Trouble.TOO_OLD, detail, allowed=go_seconds(found[1]))
    return LokiError(_trouble_of(status, said), detail)


def _trouble_of(status: int, said: str) -> Trouble:
    if _TOO_LONG.search(said) is not None:
        return Trouble.SPAN
    if _TOO_MUCH.search(said) is not None:
        return Trouble.TOO_LARGE
    return Trouble.HTTP if status >= 500 else Trouble.REFUSED


def go_seconds(text: str) -> float | None:
    """Seconds of a duration as Go or Loki prints it (`168h0m0s`, `7d`); None for anything else."""
    found = _GO_DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def read_page(body: bytes, start_ns: int, end_ns: int, config: LokiConfig) -> Page:
    """An answer's bytes as a page; single lines that make no sense are counted. Raises LokiError."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (ValueError, RecursionError) as error:
        raise LokiError(Trouble.GARBAGE, f"no answer of Loki's: {error}") from error
    if answer.status != "success" or answer.data.kind != "streams":
        said = f"no lines but status {answer.status[:40]!r} with {answer.data.kind[:40]!r}; is loki.query a log query?"
        raise LokiError(Trouble.GARBAGE, said)
    lines: list[Line] = []
    count, malformed, last_ns = 0, 0, -1
    for raw in answer.data.result:
        try:
            stream = msgspec.json.decode(raw, type=_Stream)
        except (ValueError, RecursionError) as error:  # how many lines it has nobody knows, and so whether more follow
            raise LokiError(Trouble.GARBAGE, f"no stream of Loki's: {error}") from error
        name = _name_of(stream.stream)
        node, trusted = _whose(stream.stream, config)
        count += len(stream.values)
        for value in stream.values:
            at_ns, text = _entry(value)
            if at_ns is None or text is None:
                malformed += 1
            if at_ns is None or not start_ns <= at_ns < end_ns:
                continue
            last_ns = max(last_ns, at_ns)
            if text is not None:
                lines.append(Line(at_ns, _key(name, at_ns, text), node, trusted, text))
    lines.sort(key=lambda line: line.at_ns)
    warnings = tuple(str(one)[:_TOLD_BYTES] for one in answer.warnings or ())
    return Page(tuple(lines), count, last_ns, malformed, warnings)


def _entry(value: object) -> tuple[int | None, str | None]:
    """Time and text of `["<nanoseconds>", "<line>", ...]`; None for what is not there."""
    if not isinstance(value, list) or len(value) < 2:
        return None, None
    at, text = value[0], value[1]
    if not isinstance(at, str) or not at.isascii() or not at.isdigit() or len(at) > 20 or int(at) >= _HIGHER_NS:
        return None, None
    return int(at), text if isinstance(text, str) else None


def _whose(labels: dict[str, Any], config: LokiConfig) -> tuple[str, bool]:
    """The node that a stream's labels name, and whether they say that the kernel wrote it."""
    node = labels.get(config.node_label)
    wanted = config.trusted_labels
    trusted = bool(wanted) and all(labels.get(name) == value for name, value in wanted.items())
    return node if isinstance(node, str) else "", trusted


def _name_of(labels: dict[str, Any]) -> bytes:
    return msgspec.json.encode(sorted((name, str(value)) for name, value in labels.items()))


def _key(name: bytes, at_ns: int, text: str) -> int:
    """Loki keeps one of two lines with the same labels, time and text, so these tell a line from every other one."""
    digest = blake2b(name, digest_size=8)
    digest.update(b"\0%d\0" % at_ns)
    digest.update(text.encode("utf-8", "replace"))
    return int.from_bytes(digest.digest())
