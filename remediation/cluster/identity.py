"""Whose token an agent shows, as the API server says: TokenReview, SubjectAccessReview, and a pod where need be.

`daemon.intake` asks through `remediation.agents.Identities`. What was found out is kept for a short while, by the
token's hash: a token that was taken back goes on for at most a minute.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

import msgspec

from remediation.agents import (
    Access,
    BoundPod,
    Claims,
    Denial,
    Denied,
    IdentityUnavailable,
    Pod,
    Review,
    Speaker,
    access_review,
    claims_of,
    judged,
    placed,
    refused_unasked,
    token_review,
)
from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.client import Cluster
from remediation.cluster.wire import Object

T = TypeVar("T")

#: How long a token is known that was taken, and one that was not.
_GOOD_S = 60.0
_BAD_S = 5.0
#: Tokens of each kind that are remembered: a flood of bad ones pushes no good one out.
_MOST = 8192
#: No request of an agent waits longer for one answer of the API server.
_WITHIN_S = 5.0
_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class TokenIdentities:
    """Service accounts' tokens of one audience. `users` are the names of those that may report. For any thread."""

    def __init__(
        self,
        cluster: Cluster,
        audience: str,
        users: Collection[str],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._audience = audience
        self._users = frozenset(users)
        self._clock = clock
        self._monotonic = monotonic
        self._good: _Recent[Speaker] = _Recent(_MOST)
        self._bad: _Recent[Denial] = _Recent(_MOST)

    def known(self, token: str) -> Speaker | Denial | None:
        """What was found out a short while ago; None where it has to be asked."""
        name, now_s = _name(token), self._monotonic()
        return self._good.get(name, now_s) or self._bad.get(name, now_s)

    def ask(self, token: str) -> Speaker | Denial:
        """Ask the API server. Raises IdentityUnavailable."""
        claims = claims_of(token)
        denial = refused_unasked(claims, self._audience, self._users)
        if denial is not None or claims is None:
            return denial or Denial(Denied.INVALID)
        try:
            found = self._asked(token, claims)
        except ClusterError as error:
            raise IdentityUnavailable(str(error)) from error
        name, now_s = _name(token), self._monotonic()
        if isinstance(found, Speaker):
            self._good.put(name, found, now_s + min(_GOOD_S, claims.exp - self._clock()))
        else:
            self._bad.put(name, found, now_s + _BAD_S)
        return found

    def close(self) -> None:
        """Close idle connections to the API server."""
        self._cluster.close()

    def _asked(self, token: str, claims: Claims) -> Speaker | Denial:
        answer = self._cluster.review(_TOKEN_REVIEWS, token_review(token, self._audience), _WITHIN_S)
        review: Review = _status(_TOKEN_REVIEWS, answer, Review)
        found = judged(review, claims, self._audience, self._users, self._clock())
        if isinstance(found, Denial):
            return found
        answer = self._cluster.review(_ACCESS_REVIEWS, access_review(review.user), _WITHIN_S)
        access: Access = _status(_ACCESS_REVIEWS, answer, Access)
        if not access.allowed:
            return Denial(Denied.FORBIDDEN, f"{review.user.username} may not report: {access.reason or 'no role'}")
        return self._placed(found, review.user.username) if isinstance(found, BoundPod) else found

    def _placed(self, bound: BoundPod, user: str) -> Speaker | Denial:
        path = f"/api/v1/namespaces/{bound.namespace}/pods/{bound.name}"
        try:
            pod = _read(path, self._cluster.get(path, attempts=1, timeout_s=_WITHIN_S), Pod)
        except ClusterError as failure:
            if failure.kind is not Failure.NOT_FOUND:
                raise
            pod = None
        return placed(bound, pod, user)


def _name(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _status(path: str, answer: Object, kind: type[Any]) -> Any:
    return _read(path, answer.get("status") or {}, kind)


def _read(path: str, found: object, kind: type[Any]) -> Any:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise ClusterError(Failure.UNREADABLE, f"POST {path}", str(error)) from error


class _Recent(Generic[T]):
    """The newest answers by token, each until its time; the oldest go first where there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, tuple[T, float]] = OrderedDict()

    def get(self, name: bytes, now_s: float) -> T | None:
        """The answer, None where there is none or its time is over."""
        with self._lock:
            found = self._found.get(name)
            if found is None or now_s < found[1]:
                return found and found[0]
            del self._found[name]
            return None

    def put(self, name: bytes, answer: T, until_s: float) -> None:
        """Keep an answer until then."""
        with self._lock:
            self._found[name] = answer, until_s
            self._found.move_to_end(name)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
