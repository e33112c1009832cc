"""The intake: takes what agents on the nodes report, and answers once it is in the ledger.

Every replica answers, also one that does not lead: the loop of the one that does reads the ledger
(`daemon.event_inbox`). An agent speaks only for the node that its token is bound to, and no node gets in another's way:
what one may ask is bounded, and no lock is held while anything is read, asked or written.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus

import structlog

from daemon.agent.wire import MAX_BATCH_BYTES, PATH, RESULT_HEADER, Receipt, Report, WireError, encode
from daemon.agent_events import Parcel, entries_of, opened
from daemon.config import IntakeConfig
from daemon.group_commit import GroupCommit
from daemon.ledger import Ledger, LedgerUnavailable
from daemon.metrics import Metrics
from daemon.quota import Quotas, Room
from daemon.web import Posted, Reply
from remediation.agents import Denial, Denied, Identities, IdentityUnavailable, Speaker
from rules.vocabulary import FAULT_KINDS

log = structlog.get_logger()

#: Tokens that are not known yet, from one address: so many at once, and so many a second.
_STRANGERS, _STRANGERS_PER_S = 200.0, 50.0
#: A request waits so long for a place among those that are worked on.
_PLACE_WITHIN_S = 2.0
_MOST_TOKEN = 16_384
#: Where nobody can say when to come back.
_LATER_S = 5.0
#: A trouble of one node is told this often.
_TOLD_EVERY_S = 60.0
_MOST_TOLD = 4096
_MOST_SAID = 300


class Result(StrEnum):
    """How a request ended; fit for a metric's label. Those of a token that is not taken are Denied's."""

    TAKEN = "taken"
    CROWDED = "crowded"
    NO_LENGTH = "no_length"
    TOO_LARGE = "too_large"
    RATE = "rate"
    BUSY = "busy"
    NO_IDENTITY = "no_identity"
    SLOW = "slow"
    BROKEN = "broken"
    MALFORMED = "malformed"
    OTHER_NODE = "other_node"
    NO_LEDGER = "no_ledger"


class Fate(StrEnum):
    """What came of a report; fit for a metric's label."""

    TAKEN = "taken"
    KNOWN = "known"
    REFUSED = "refused"


_STATUS = {
    Result.NO_LENGTH: HTTPStatus.LENGTH_REQUIRED,
    Result.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Result.RATE: HTTPStatus.TOO_MANY_REQUESTS,
    Result.BUSY: HTTPStatus.TOO_MANY_REQUESTS,
    Result.NO_IDENTITY: HTTPStatus.SERVICE_UNAVAILABLE,
    Result.SLOW: HTTPStatus.REQUEST_TIMEOUT,
    Result.BROKEN: HTTPStatus.REQUEST_TIMEOUT,
    Result.MALFORMED: HTTPStatus.BAD_REQUEST,
    Result.OTHER_NODE: HTTPStatus.FORBIDDEN,
    Result.NO_LEDGER: HTTPStatus.SERVICE_UNAVAILABLE,
    Denied.FORBIDDEN: HTTPStatus.FORBIDDEN,
}
#: What the one who showed a token is told; the rest is for the controller's own log.
_SAID = {
    Denied.NO_TOKEN: "no bearer token",
    Denied.INVALID: "the API server does not know this token",
    Denied.EXPIRED: "the token has expired",
    Denied.AUDIENCE: "the token is for another audience",
    Denied.ACCOUNT: "the token is of no service account in intake.service_accounts",
    Denied.UNBOUND: "the token is bound to no pod that runs on a node",
    Denied.FORBIDDEN: "this service account may not create agentevents.gpuwarden.io",
}


class _Ended(Exception):
    """A request ends here. `after_s` is when to come back, `told` is for our own log, where it is told once a `who`."""

    def __init__(
        self, result: Result | Denied, said: str, after_s: float = 0.0, *, told: str = "", who: str = ""
    ) -> None:
        super().__init__(said)
        self.result, self.after_s, self.who = result, after_s, who
        self.said, self.told = said[:_MOST_SAID], told[:_MOST_SAID]


class Intake:
    """Answers posts at `path`, in any number of threads. `bell` is rung when a fault came that cannot wait.

    `now` and `monotonic` are clocks.
    """

    path = PATH

    def __init__(
        self,
        config: IntakeConfig,
        identities: Identities,
        ledger: Ledger,
        metrics: Metrics,
        bell: threading.Event,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identities = identities
        self._commit = GroupCommit(ledger)
        self._metrics = metrics
        self._bell = bell
        self._now = now
        self._monotonic = monotonic
        self._strangers = Quotas({"tokens": (_STRANGERS, _STRANGERS_PER_S)})
        minute, day = config.reports_per_minute, config.reports_per_day
        self._quotas = Quotas(
            {
                "bytes": (config.bytes_per_minute, config.bytes_per_minute / 60),
                "minute": (minute, minute / 60),
                "day": (day, day / 86_400),
            }
        )
        self._room: Room[str] = Room(config.requests, config.requests_per_node)
        #: at most half of those that are worked on wait for the API server, so that known agents get through
        self._asking: Room[str] = Room(max(1, config.requests // 2), max(1, config.requests // 2))
        self._told = _Told()
        for result in (*Result, *Denied):
            metrics.intake_requests.labels(result.value)
        for fate in Fate:
            metrics.intake_reports.labels(fate.value)

    def take(self, posted: Posted) -> Reply:
        """Answer one request: a receipt, or why there is none."""
        began_s = self._monotonic()
        try:
            receipt = self._taken(posted)
        except _Ended as end:
            self._metrics.intake_requests.labels(end.result.value).inc()
            self._tell(posted.address, end)
            return _refusal(end)
        self._metrics.intake_requests.labels(Result.TAKEN.value).inc()
        self._metrics.intake_seconds.observe(max(0.0, self._monotonic() - began_s))
        return Reply(HTTPStatus.OK, encode(receipt), "application/json")

    def turned_away(self) -> None:
        """A connection was closed unheard, since there were too many."""
        self._metrics.intake_requests.labels(Result.CROWDED.value).inc()

    # ------------------------------------------------------------------------------------------------- step by step

    def _taken(self, posted: Posted) -> Receipt:
        """All the checks, the cheap ones first. Raises _Ended."""
        size = _size(posted)
        who = self._speaker(posted)
        with ExitStack() as stack:
            self._enter(stack, who)
            self._hold_to_quota(who.node, size)
            return self._written(self._read(posted, size, who), who)

    def _speaker(self, posted: Posted) -> Speaker:
        token = _token(posted)
        found = self._identities.known(token)
        if found is None:
            wait_s = self._strangers.take(posted.address, self._monotonic(), tokens=1)
            if wait_s:
                raise _Ended(Result.RATE, "too many unknown tokens from this address", wait_s)
            found = self._asked(token)
        if isinstance(found, Denial):
            raise _Ended(found.why, _SAID[found.why], told=found.detail)
        return found

    def _asked(self, token: str) -> Speaker | Denial:
        with self._asking.a_place("") as has_place:
            if not has_place:
                raise _Ended(Result.NO_IDENTITY, "the API server is asked about too many tokens at once", 1.0)
            try:
                return self._identities.ask(token)
            except IdentityUnavailable as error:
                said = "the API server cannot be asked whose token this is"
                raise _Ended(Result.NO_IDENTITY, said, _LATER_S, told=str(error), who="any") from error

    def _enter(self, stack: ExitStack, who: Speaker) -> None:
        if not stack.enter_context(self._room.a_place(who.node, _PLACE_WITHIN_S)):
            raise _Ended(Result.BUSY, "too many requests at once", 1.0, who=who.node)

    def _hold_to_quota(self, node: str, size: int) -> None:
        """Before anything is read. Reports are counted once they are in the ledger: known ones cost nothing."""
        now_s = self._monotonic()
        wait_s = self._quotas.wait_s(node, now_s, minute=1, day=1) or self._quotas.take(node, now_s, bytes=size)
        if wait_s:
            raise _Ended(Result.RATE, f"{node} has sent too much for now", wait_s, who=node)

    def _read(self, posted: Posted, size: int, who: Speaker) -> Parcel:
        try:
            body = posted.read(size)
        except TimeoutError as slow:
            raise _Ended(Result.SLOW, "the request took too long to come", who=who.node) from slow
        except OSError as broken:
            raise _Ended(Result.BROKEN, f"the connection broke: {broken}", who=who.node) from broken
        if len(body) < size:
            raise _Ended(Result.BROKEN, f"{len(body)} of {size} bytes came", who=who.node)
        try:
            parcel = opened(body, self._now())
        except WireError as error:
            raise _Ended(Result.MALFORMED, str(error), who=who.node) from error
        if parcel.node != who.node:
            said = f"the token is bound to node {who.node}, and the batch is of another"
            raise _Ended(Result.OTHER_NODE, said, told=f"{who.user} reported for {parcel.node!r}", who=who.node)
        return parcel

    def _written(self, parcel: Parcel, who: Speaker) -> Receipt:
        entries = entries_of(parcel.good, who.node, parcel.version, who.pod, self._now())
        try:
            ids = self._commit.append(entries) if entries else []
        except LedgerUnavailable as error:
            self._metrics.ledger_errors.labels(error.trouble.value).inc()
            said = "the ledger takes nothing now"
            raise _Ended(Result.NO_LEDGER, said, _LATER_S, told=str(error), who="any") from error
        new = [report for report, entry_id in zip(parcel.good, ids, strict=True) if entry_id]
        if any(_is_urgent(report) for report in new):
            self._bell.set()
        self._quotas.spend(who.node, self._monotonic(), minute=len(new), day=len(new))
        self._count(parcel, len(new), who)
        return Receipt(tuple(report.id for report in parcel.good), parcel.refused)

    def _count(self, parcel: Parcel, new: int, who: Speaker) -> None:
        for fate, amount in (
            (Fate.TAKEN, new), (Fate.KNOWN, len(parcel.good) - new), (Fate.REFUSED, len(parcel.refused)),
        ):  # fmt: skip
            self._metrics.intake_reports.labels(fate.value).inc(amount)
        if parcel.refused and self._told.is_due(("report", who.node), self._monotonic()):
            first = parcel.refused[0]
            more = len(parcel.refused) - 1
            log.warning("report refused", node=who.node, report=first.id, detail=first.why, more=more)

    def _tell(self, address: str, end: _Ended) -> None:
        if self._told.is_due((end.result.value, end.who or address), self._monotonic()):
            log.warning(
                "intake", result=end.result.value, node=end.who, client=address, said=end.said, detail=end.told
            )  # fmt: skip


class _Told:
    """What was told a short while ago, so that a flood of one trouble is no flood of lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[tuple[str, str], float] = {}

    def is_due(self, what: tuple[str, str], now_s: float) -> bool:
        """Whether it is time to tell it again; takes it as told."""
        with self._lock:
            if now_s < self._at.get(what, -_TOLD_EVERY_S) + _TOLD_EVERY_S:
                return False
            if len(self._at) >= _MOST_TOLD:
                self._at.clear()
            self._at[what] = now_s
            return True


def _size(posted: Posted) -> int:
    """The length of the body, by its header. Raises _Ended."""
    told: Sequence[str] = posted.headers.get_all("Content-Length") or ()
    if "Transfer-Encoding" in posted.headers or len(told) != 1 or not (told[0].isascii() and told[0].isdecimal()):
        raise _Ended(Result.NO_LENGTH, "give Content-Length, and no Transfer-Encoding")
    digits = told[0].lstrip("0")
    if len(digits) > len(str(MAX_BATCH_BYTES)) or int(digits or "0") > MAX_BATCH_BYTES:
        raise _Ended(Result.TOO_LARGE, f"a batch has at most {MAX_BATCH_BYTES} bytes")
    return int(digits or "0")


def _token(posted: Posted) -> str:
    scheme, _, token = str(posted.headers.get("Authorization") or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise _Ended(Denied.NO_TOKEN, _SAID[Denied.NO_TOKEN])
    if len(token) > _MOST_TOKEN:
        raise _Ended(Denied.INVALID, _SAID[Denied.INVALID], told=f"{len(token)} characters")
    return token


def _is_urgent(report: Report) -> bool:
    return report.event.trusted and report.event.kind in FAULT_KINDS


def _refusal(end: _Ended) -> Reply:
    status = _STATUS.get(end.result, HTTPStatus.UNAUTHORIZED)
    headers = {RESULT_HEADER: end.result.value}
    if end.after_s:
        headers["Retry-After"] = str(math.ceil(end.after_s))
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Reply(status, f"{end.said}\n".encode("utf-8", "replace"), headers=headers)
