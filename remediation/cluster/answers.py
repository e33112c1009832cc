"""What the API server's answers mean, as types: errors that say whether another try helps, and how an eviction ended.

Pure. `client` calls it with what came over the wire; its callers match on these types and never on HTTP codes.
"""

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

import msgspec

#: Causes that the API server names in `details.causes` (policy/v1 and core/v1 types).
_BUDGET_CAUSE = "DisruptionBudget"
_TERMINATING_CAUSE = "NamespaceTerminating"
#: The eviction's own words, for which there is no reason and no cause (registry/core/pod/storage/eviction.go).
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
#: Of the store and of the eviction before it.
_WRONG_UID = ("UID in precondition", "UID in the precondition")


class Failure(StrEnum):
    """What kind of thing went wrong with a request."""

    UNCONFIGURED = "unconfigured"
    UNREACHABLE = "unreachable"  # never sent
    TIMED_OUT = "timed_out"  # sent, no answer in time
    DISCONNECTED = "disconnected"  # sent, the answer broke off
    UNREADABLE = "unreadable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    CONFLICT = "conflict"
    EXPIRED = "expired"  # 410: that resourceVersion or page is no longer kept
    INVALID = "invalid"
    OVERLOADED = "overloaded"
    SERVER = "server"


#: Another try of the same request can help.
_RETRYABLE = frozenset(
    {
        Failure.UNREACHABLE,
        Failure.TIMED_OUT,
        Failure.DISCONNECTED,
        Failure.UNREADABLE,
        Failure.OVERLOADED,
        Failure.SERVER,
    }
)
#: The server may have done what was asked, though it didn't say so.
_OPEN_OUTCOME = frozenset({Failure.TIMED_OUT, Failure.DISCONNECTED, Failure.UNREADABLE, Failure.SERVER})
_BY_STATUS = {
    401: Failure.UNAUTHORIZED,
    403: Failure.FORBIDDEN,
    404: Failure.NOT_FOUND,
    409: Failure.CONFLICT,
    410: Failure.EXPIRED,
    429: Failure.OVERLOADED,
}


class ClusterError(Exception):
    """A request that the API server did not fulfil.

    `status` is the HTTP code, or that of the Status object where a 2xx or a watch carried one; 0 where none came.
    `retry_after_s` is what the server asks to wait, None where it names no time.
    """

    def __init__(
        self,
        kind: Failure,
        request: str,
        detail: str,
        status: int = 0,
        reason: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        said = " ".join(filter(None, [str(status or ""), reason]))
        super().__init__(f"{request}: {kind}{f' ({said})' if said else ''}: {detail}")
        self.kind = kind
        self.request = request
        self.detail = detail
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later without anybody changing anything."""
        return self.kind in _RETRYABLE

    @property
    def outcome_unknown(self) -> bool:
        """Whether a write may have happened all the same: read the object before the next step."""
        return self.kind in _OPEN_OUTCOME


class _Cause(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    kind: str | None = None
    causes: list[_Cause] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """Kubernetes' own Status object, as far as anybody here reads it."""

    kind: str | None = None
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None

    def cause(self, reason: str) -> str | None:
        """The message of the first cause with this reason ("" where it has none), None where there is no such cause."""
        causes = (self.details.causes if self.details else None) or ()
        return next((cause.message or "" for cause in causes if cause.reason == reason), None)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of the server. `retry_after_s` is its Retry-After header."""

    code: int
    body: bytes
    retry_after_s: float | None = None

    @property
    def status(self) -> Status | None:
        """Its Status object, None where the body is something else."""
        try:
            found = msgspec.json.decode(self.body, type=Status)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return found if found.kind == "Status" else None

    @property
    def failed(self) -> bool:
        """Whether it is a refusal: by its code, or by a Status of failure that came in a 2xx."""
        if not self.is_2xx:
            return True
        status = self.status
        return status is not None and status.status == "Failure"

    @property
    def is_2xx(self) -> bool:
        """Whether the code says success."""
        return HTTPStatus.OK <= self.code < HTTPStatus.MULTIPLE_CHOICES


def retry_after(header: str | None) -> float | None:
    """Seconds of a Retry-After header; None for none, for a date (the API server sends none) and for garbage."""
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def error_of(request: str, answer: Answer) -> ClusterError:
    """The error that a failed answer stands for."""
    status = answer.status or Status(message=answer.body[:300].decode("utf-8", "replace").strip())
    code = (status.code or HTTPStatus.INTERNAL_SERVER_ERROR) if answer.is_2xx else answer.code
    kind = _BY_STATUS.get(code) or (Failure.SERVER if code >= HTTPStatus.INTERNAL_SERVER_ERROR else Failure.INVALID)
    if status.reason == "AlreadyExists":
        kind = Failure.EXISTS
    return ClusterError(kind, request, status.message or "no message", code, status.reason or "", _wait(answer, status))


def _wait(answer: Answer, status: Status) -> float | None:
    if answer.retry_after_s is not None:
        return answer.retry_after_s
    return (status.details.retry_after_seconds if status.details else None) or None


class Eviction(StrEnum):
    """How the API server took an eviction."""

    DONE = "done"  # accepted: the pod is being ended; in a dry run: it would be
    GONE = "gone"  # no such pod
    REPLACED = "replaced"  # a pod of that name, with another UID
    BLOCKED = "blocked"  # a disruption budget says not now
    OVERLOADED = "overloaded"
    SEVERAL_PDBS = "several_pdbs"  # until a person changes the budgets
    NAMESPACE_TERMINATING = "namespace_terminating"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Evicted:
    """The server's verdict on one eviction, with its own words. `retry_after_s` is None where it names no time."""

    result: Eviction
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more has to be asked for: the pod ends, has ended, or is another one."""
        return self.result in (Eviction.DONE, Eviction.GONE, Eviction.REPLACED)

    @property
    def retryable(self) -> bool:
        """Whether the same eviction may be accepted later without a person's doing."""
        return self.result in (Eviction.BLOCKED, Eviction.OVERLOADED, Eviction.NAMESPACE_TERMINATING)


def evicted_of(request: str, answer: Answer) -> Evicted:
    """What an answer to an eviction means.

    Raises:
        ClusterError: the server came to no verdict (5xx, 401, or a CONFLICT with another writer of the pod or of its
            budget, after which the pod has to be read again).
    """
    if not answer.failed:
        return Evicted(Eviction.DONE)
    status = answer.status or Status()
    error = error_of(request, answer)
    result = _verdict(status, error)
    if result is None:
        raise error
    blocked = status.cause(_BUDGET_CAUSE) if result is Eviction.BLOCKED else None
    return Evicted(result, blocked or error.detail, error.retry_after_s)


_VERDICTS = {
    Failure.OVERLOADED: Eviction.OVERLOADED,
    Failure.FORBIDDEN: Eviction.REFUSED,
    Failure.NOT_FOUND: Eviction.REFUSED,
    Failure.INVALID: Eviction.REFUSED,
}


def _verdict(status: Status, error: ClusterError) -> Eviction | None:
    match error.kind:
        case _ if _SEVERAL_BUDGETS in error.detail:
            return Eviction.SEVERAL_PDBS
        case Failure.OVERLOADED if status.cause(_BUDGET_CAUSE) is not None:
            return Eviction.BLOCKED
        case Failure.FORBIDDEN if status.cause(_TERMINATING_CAUSE) is not None:
            return Eviction.NAMESPACE_TERMINATING
        # A 404 that no Status explains comes from something between us and the server, which knows nothing of the pod.
        case Failure.NOT_FOUND if status.details is not None and status.details.kind == "pods":
            return Eviction.GONE
        case Failure.CONFLICT if any(words in error.detail for words in _WRONG_UID):
            return Eviction.REPLACED
    return _VERDICTS.get(error.kind)
