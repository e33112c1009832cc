"""One post of a ticket to the site's webhook: what goes out, and what the receiver's answer means.

`daemon.tickets` calls it, as often as it takes. Nothing that it says holds a secret: neither the token nor more of the
URL than its host, and so none of what requests puts into its errors.
"""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_auth_from_url

from daemon.bearer import Bearer
from daemon.config import TicketsConfig
from daemon.ledger import to_jsonable
from daemon.secrets import SECRET, only_host
from daemon.version import own_version
from remediation.tickets import Ticket

#: Client errors that another try may find gone.
_PASSING = frozenset({408, 425, 429})
#: Redirects that keep the method and the body.
_KEEPS_POST = frozenset({307, 308})
_MOST_REDIRECTS = 3
#: So much of an answer is told.
_TOLD_BYTES = 300


class Result(StrEnum):
    """What came of one try. RETRIED may go better another time, REFUSED will not."""

    SENT = "sent"
    REFUSED = "refused"
    RETRIED = "retried"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver answered, or why it did not. `after_s` is how long it asks to be left alone."""

    result: Result
    detail: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Way:
    """How a ticket is posted: from which address on, as whom, and what of it must not be told."""

    url: str
    auth: AuthBase
    secret: str
    timeout_s: float

    @property
    def shown(self) -> str:
        """The address for people."""
        return only_host(self.url)


def post(config: TicketsConfig, ticket: Ticket, now: datetime) -> Answer:
    """Post a ticket once. It raises nothing: whatever fails is an answer too."""
    try:
        token = _token(config.token_file) if config.token_file is not None else ""
    except (OSError, ValueError) as error:
        return Answer(Result.RETRIED, f"tickets.token_file {config.token_file}: {error}")
    user, password = get_auth_from_url(config.url)
    auth = HTTPBasicAuth(user, password) if user or password else Bearer(token)
    way = _Way(config.url, auth, token or password, config.timeout)
    try:
        return _send(way, ticket, now)
    except requests.Timeout:
        return Answer(Result.RETRIED, f"{way.shown} did not answer within {way.timeout_s:g} s")
    except (requests.RequestException, OSError, ValueError) as error:  # ValueError: a host that urllib3 cannot parse
        return Answer(Result.RETRIED, f"{way.shown}: {_cause(error)}")


def _token(path: Path) -> str:
    """Read at each try, so that one that was rotated is taken up. Raises OSError, ValueError."""
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("holds no token; expected one word of ASCII")
    return token


def _send(way: _Way, ticket: Ticket, now: datetime) -> Answer:
    """Raises what requests does."""
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": ticket.id,
        "User-Agent": f"gpuwarden/{own_version()}",
    }
    body = json.dumps(to_jsonable(ticket)).encode()
    url = way.url
    with requests.Session() as session:
        for _ in range(1 + _MOST_REDIRECTS):
            with session.post(
                url, data=body, headers=headers, auth=way.auth, timeout=(way.timeout_s, way.timeout_s), verify=True,
                allow_redirects=False, stream=True,
            ) as answer:  # fmt: skip
                there = _location(answer, url)
                if answer.status_code not in _KEEPS_POST or _origin(there) != _origin(url):
                    return _judged(answer, there, way, now)
            url = there
    return Answer(Result.RETRIED, f"{way.shown} redirects again and again")


def _location(answer: requests.Response, url: str) -> str:
    """Where a redirect leads, "" where that is no address or it is none."""
    if not answer.is_redirect:
        return ""
    try:
        there = urljoin(url, answer.headers["Location"])
        _origin(there)
    except ValueError:
        return ""
    return there


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port. Raises ValueError."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _judged(answer: requests.Response, there: str, way: _Way, now: datetime) -> Answer:
    status = answer.status_code
    if 200 <= status < 300:
        return Answer(Result.SENT, f"answered {status}")
    if 300 <= status < 400:
        led = f" to {only_host(there)}" if there else ""
        said = f"{way.shown} redirects{led} ({status}), which is not followed; set tickets.url to where it belongs"
        return Answer(Result.RETRIED, said)
    said = _text(answer, way)
    detail = f"{way.shown} answered {status}{': ' if said else ''}{said}"
    if status in _PASSING or not 400 <= status < 500:
        return Answer(Result.RETRIED, detail, _asked_s(answer.headers.get("Retry-After", ""), now))
    return Answer(Result.REFUSED, detail)


def _text(answer: requests.Response, way: _Way) -> str:
    """The beginning of what it says, as far as that comes in time, on one line."""
    told, deadline_s = bytearray(), time.monotonic() + way.timeout_s
    try:
        for byte in answer.iter_content(1):
            told += byte
            if len(told) >= _TOLD_BYTES or time.monotonic() > deadline_s:
                break
    except (requests.RequestException, OSError):
        pass  # the status alone says what to do
    text = " ".join(told.decode("utf-8", "replace").split())
    return text.replace(way.secret, SECRET) if way.secret else text


def _asked_s(text: str, now: datetime) -> float:
    """Seconds of a Retry-After, which may also be a date; 0 for what is neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds())
    except (ValueError, OverflowError):
        return 0.0


def _cause(error: Exception) -> str:
    """The innermost reason of a failed request. The outer ones tell the whole URL, and that may hold a secret."""
    innermost: BaseException = error
    while (inner := _inner(innermost)) is not None:
        innermost = inner
    return type(error).__name__ if innermost is error else f"{type(innermost).__name__}: {innermost}"


def _inner(error: BaseException) -> BaseException | None:
    found = (getattr(error, "reason", None), *error.args)
    return next((one for one in found if isinstance(one, BaseException)), None)
