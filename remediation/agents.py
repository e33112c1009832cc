"""For which node an agent may speak, as the API server's answers about its token say. Pure.

`remediation.cluster.identity` asks the API server, `daemon.intake` goes by what comes of it.
"""

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

#: What an agent has to be allowed, in RBAC's words: `create` on a resource that nothing stores.
GROUP = "gpuwarden.io"
RESOURCE = "agentevents"
VERB = "create"
_NODE = "authentication.kubernetes.io/node-name"
_POD = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_ACCOUNT = "system:serviceaccount:"


class Denied(StrEnum):
    """Why a token does not speak for a node; fit for a metric's label."""

    NO_TOKEN = "no_token"  # noqa: S105 - the word for its lack
    INVALID = "invalid"
    EXPIRED = "expired"
    AUDIENCE = "audience"
    ACCOUNT = "account"
    UNBOUND = "unbound"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Denial:
    """A token that is not taken. `detail` is for the log of the controller, not for who showed it."""

    why: Denied
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who showed a token: the node that it is bound to, the user's name, and the pod's where it has one."""

    node: str
    user: str
    pod: str = ""


class IdentityUnavailable(Exception):
    """Nobody can say whose token it is now: the API server is away, or does not let us ask. The text says why."""


class Identities(Protocol):
    """Whose token it is. For any thread."""

    def known(self, token: str) -> Speaker | Denial | None:
        """What was found out a short while ago, without asking anybody; None where it has to be asked."""
        ...

    def ask(self, token: str) -> Speaker | Denial:
        """Find out. Raises IdentityUnavailable."""
        ...


# ------------------------------------------------------------------------------------------------------------ the token


class Claims(msgspec.Struct, frozen=True):
    """What a token says of itself, unverified: enough to refuse it by, never to take it by. `exp` in unix seconds."""

    sub: str = ""
    aud: str | list[str] = ""
    exp: float = 0.0

    @property
    def audiences(self) -> tuple[str, ...]:
        """For whom it is."""
        return (self.aud,) if isinstance(self.aud, str) else tuple(self.aud)


def claims_of(token: str) -> Claims | None:
    """The claims of a JSON web token, None where the text is none."""
    parts = token.split(".")
    if len(parts) != 3 or not token.isascii():  # noqa: PLR2004 - header, claims, signature
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=Claims)
    except (ValueError, RecursionError):
        return None


def users_of(accounts: Collection[str], namespace: str) -> frozenset[str]:
    """User names of service accounts, each given as NAMESPACE/NAME or as NAME in `namespace`.

    >>> sorted(users_of(["gpuwarden-agent", "gpu/reader"], "gpuwarden"))
    ['system:serviceaccount:gpu:reader', 'system:serviceaccount:gpuwarden:gpuwarden-agent']
    """
    pairs = (account.rpartition("/") for account in accounts)
    return frozenset(f"{_ACCOUNT}{space or namespace}:{name}" for space, _, name in pairs)


def refused_unasked(claims: Claims | None, audience: str, users: Collection[str]) -> Denial | None:
    """What a token's own claims already rule out; None where the API server has to be asked."""
    if claims is None:
        return Denial(Denied.INVALID, "no JSON web token")
    if audience not in claims.audiences:
        return Denial(Denied.AUDIENCE, f"for {', '.join(claims.audiences) or 'nobody'}")
    if claims.sub not in users:
        return Denial(Denied.ACCOUNT, claims.sub)
    return None


# ---------------------------------------------------------------------------------------------------------- TokenReview


class User(msgspec.Struct, frozen=True):
    """Who a token stands for, as the API server has it."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}

    def claim(self, name: str) -> str:
        """The first value of one of its extra fields, "" where there is none."""
        return next(iter(self.extra.get(name, ())), "")


class Review(msgspec.Struct, frozen=True):
    """The status of a TokenReview."""

    authenticated: bool = False
    user: User = User()
    audiences: list[str] = []
    error: str = ""


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that a token is bound to, to be read where the token does not name the node itself."""

    namespace: str
    name: str
    uid: str


def judged(
    review: Review, claims: Claims, audience: str, users: Collection[str], now_s: float
) -> Speaker | BoundPod | Denial:
    """What a TokenReview's answer comes to; the right to report is asked for besides."""
    if not review.authenticated:
        return Denial(Denied.EXPIRED if 0 < claims.exp <= now_s else Denied.INVALID, review.error)
    user = review.user
    if audience not in review.audiences:
        return Denial(Denied.AUDIENCE, f"for {', '.join(review.audiences) or 'nobody'}")
    if user.username not in users:
        return Denial(Denied.ACCOUNT, user.username)
    node, pod, uid = (user.claim(name) for name in (_NODE, _POD, _POD_UID))
    if node:
        return Speaker(node, user.username, pod)
    if pod and uid:
        return BoundPod(user.username.removeprefix(_ACCOUNT).partition(":")[0], pod, uid)
    return Denial(Denied.UNBOUND, f"a token of {user.username} that is bound to no pod and no node")


class _Meta(msgspec.Struct, frozen=True):
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True):
    """As much of a pod as says where it runs."""

    metadata: _Meta = _Meta()
    spec: _Spec = _Spec()


def placed(bound: BoundPod, pod: Pod | None, user: str) -> Speaker | Denial:
    """The node of the pod that a token is bound to; `pod` is None where there is none of that name."""
    where = f"{bound.namespace}/{bound.name}"
    if pod is None or pod.metadata.uid != bound.uid:
        return Denial(Denied.UNBOUND, f"its pod {where} is gone")
    if not pod.spec.node_name:
        return Denial(Denied.UNBOUND, f"its pod {where} runs on no node yet")
    return Speaker(pod.spec.node_name, user, bound.name)


def token_review(token: str, audience: str) -> dict[str, object]:
    """The question whose token it is."""
    spec = {"token": token, "audiences": [audience]}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}


def access_review(user: User) -> dict[str, object]:
    """The question whether a user may report events."""
    asked: Mapping[str, str] = {"group": GROUP, "resource": RESOURCE, "verb": VERB}
    groups: Sequence[str] = user.groups
    spec = {
        "user": user.username, "uid": user.uid, "groups": list(groups), "extra": dict(user.extra),
        "resourceAttributes": dict(asked),
    }  # fmt: skip
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


class Access(msgspec.Struct, frozen=True):
    """The status of a SubjectAccessReview."""

    allowed: bool = False
    reason: str = ""
