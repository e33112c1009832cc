"""The HTTP edge to Prometheus, or to anything that answers its API: asks, bounds, and names what went wrong.

POST for queries (selectors outgrow URLs), a time-out on every call, a bound on every answer. Meaning is given to the
bytes elsewhere (`daemon.ingest`).
"""

import threading
import time
from pathlib import Path

import msgspec
import requests

from daemon.bearer import Bearer
from daemon.config import PrometheusConfig
from daemon.ingest.decode import PrometheusError
from daemon.secrets import without_password

_CHUNK_BYTES = 1 << 18
#: A time-out is for each wait; an answer that trickles in may take so many of them in all.
_TIMEOUTS_AN_ANSWER = 3.0


class _Strings(msgspec.Struct):
    status: str
    data: list[str] = []
    error: str = ""


class Prometheus:
    """A client; safe to call from several threads, each of which keeps its own connection."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._config = config
        self._shown = without_password(config.url)
        self._local = threading.local()

    @property
    def url(self) -> str:
        """The base address."""
        return self._config.url

    def query(self, promql: str, at: float) -> bytes:
        """An instant query at unix second `at`: the answer's bytes. Raises PrometheusError."""
        limit_ms = max(1, round(1000 * self._config.timeout))
        return self._post("/api/v1/query", {"query": promql, "time": f"{at:.3f}", "timeout": f"{limit_ms}ms"})

    def query_range(self, promql: str, start: float, end: float, step_s: float) -> bytes:
        """A range query: the answer's bytes. Raises PrometheusError."""
        fields = {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}
        return self._post("/api/v1/query_range", fields)

    def metric_names(self, start: float, end: float) -> frozenset[str]:
        """The names of all metrics that have samples in a span. Raises PrometheusError."""
        path = "/api/v1/label/__name__/values"
        url = self._shown + path
        answer = self._send("GET", path, {"start": f"{start:.3f}", "end": f"{end:.3f}"})
        try:
            parsed = msgspec.json.decode(answer, type=_Strings)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PrometheusError("garbage", f"{url}: not a list of names: {error}") from error
        if parsed.status != "success":
            raise PrometheusError("api", f"{url}: {parsed.error or parsed.status}")
        return frozenset(parsed.data)

    def _post(self, path: str, fields: dict[str, str]) -> bytes:
        return self._send("POST", path, fields)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            session.headers.update(self._config.headers)
            if self._config.insecure_skip_verify:
                session.verify = False
            elif self._config.ca_file is not None:
                session.verify = str(self._config.ca_file)
        if self._config.bearer_token_file is not None:
            session.headers["Authorization"] = f"Bearer {_token(self._config.bearer_token_file)}"
        if "Authorization" in session.headers:
            session.auth = Bearer("")  # else what a ~/.netrc says of the host would replace it
        return session

    def _send(self, method: str, path: str, fields: dict[str, str]) -> bytes:
        url = self._shown + path  # for people; the one that is asked may hold a password
        data, params = (fields, None) if method == "POST" else (None, fields)
        timeout_s = self._config.timeout
        try:
            session = self._session()
            asked = self._config.url + path
            with session.request(method, asked, params=params, data=data, timeout=timeout_s, stream=True) as answer:
                body = self._bounded(answer, url)
                status = answer.status_code
        except requests.Timeout as error:
            raise self._late(url) from error
        except (requests.RequestException, OSError, UnicodeError) as error:  # UnicodeError: a header that isn't Latin-1
            if "Read timed out" in str(error):  # how requests puts a time-out in the middle of a body
                raise self._late(url) from error
            raise PrometheusError("unreachable", f"{url}: {error}; is prometheus.url right?") from error
        if status != requests.codes.ok:
            # 4xx will not get better by asking again, except for too many requests
            retryable = status >= 500 or status == requests.codes.too_many_requests
            said = body[:300].decode("utf-8", "replace")
            raise PrometheusError("http", f"{url} answered {status}: {said}", retryable=retryable)
        return body

    def _bounded(self, answer: requests.Response, url: str) -> bytes:
        limit = self._config.max_response_bytes
        deadline = time.monotonic() + _TIMEOUTS_AN_ANSWER * self._config.timeout
        chunks, size = [], 0
        for chunk in answer.iter_content(_CHUNK_BYTES):
            size += len(chunk)
            if size > limit:
                said = f"{url}: over {limit} bytes; narrow prometheus.matchers"
                raise PrometheusError("too_large", said, retryable=False)
            if time.monotonic() > deadline:
                raise self._late(url)
            chunks.append(chunk)
        return b"".join(chunks)

    def _late(self, url: str) -> PrometheusError:
        return PrometheusError("timeout", f"{url} did not answer within {self._config.timeout:g} s")


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PrometheusError("unreachable", f"prometheus.bearer_token_file {path} cannot be read: {error}") from error
