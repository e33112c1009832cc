"""What people have said: approvals, rejections, holds, and orders to give a node back. Pure.

The ledger keeps each saying as an entry; every tick reads them as input. The newest word on a thing is the one that
holds. Somebody who takes our marks off a node in the cluster has said something too: stop, and hold off.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rules.vocabulary import Action


class Word(StrEnum):
    """What a person can say."""

    APPROVE = "approve"  # do what is planned about this incident
    REJECT = "reject"  # do nothing about this incident
    HOLD = "hold"  # leave this node alone
    RESUME = "resume"  # the end of a hold
    RELEASE = "release"  # give this node back, and leave it alone as far as its present incidents go
    FENCED = "fenced"  # this node is off for certain: nothing on it can write any more
    RESET_BREAKER = "reset_breaker"


_ON_INCIDENTS = frozenset({Word.APPROVE, Word.REJECT, Word.RELEASE})


@dataclass(frozen=True, slots=True)
class Saying:
    """One thing that somebody said.

    `incidents` are those it is about: the one that is approved or rejected, or those that were open on a node that is
    given back. `actions` are the ones that an approval covers: a plan that has grown since needs a new one; `gates` are
    those that had stopped the plan when it was approved. `until` is the end of a hold; None holds until somebody ends
    it. `by` is whoever said it.
    """

    at: datetime
    word: Word
    by: str
    node: str = ""
    incidents: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    gates: tuple[str, ...] = ()
    until: datetime | None = None
    why: str = ""

    @property
    def source(self) -> str:
        """Who and when, and why where they said it."""
        return f"{self.by} at {self.at:%Y-%m-%d %H:%M} UTC{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class Said:
    """All that has been said, oldest first."""

    sayings: tuple[Saying, ...] = ()

    @staticmethod
    def of(sayings: Iterable[Saying]) -> "Said":
        """In the order of their times; the order given decides between equal ones."""
        return Said(tuple(sorted(sayings, key=lambda saying: saying.at)))

    def approved(self, incident: str) -> tuple[Action, ...]:
        """Which actions somebody has approved for an incident, where the last word on it is an approval."""
        approval = self.approval(incident)
        return approval.actions if approval is not None else ()

    def approval(self, incident: str) -> Saying | None:
        """The approval that is the last word on an incident."""
        last = self.last_on(incident)
        return last if last is not None and last.word is Word.APPROVE else None

    def rejected(self, incident: str) -> str:
        """Who wants nothing done about an incident; "" where nobody does."""
        last = self.last_on(incident)
        if last is not None and last.word is Word.REJECT:
            return f"rejected by {last.source}"
        if last is not None and last.word is Word.RELEASE:
            return f"{last.node} was given back by {last.source}"
        return ""

    def on_hold(self, nodes: Collection[str], now: datetime) -> str:
        """Which of these nodes is to be left alone, and by whose word; "" where none is."""
        for node in sorted(nodes):
            held = self.hold_on(node, now)
            if held is not None:
                until = f"until {held.until:%Y-%m-%d %H:%M} UTC" if held.until else "until somebody ends it"
                return f"{node} is on hold {until}, by {held.source}"
        return ""

    def hold_on(self, node: str, now: datetime) -> Saying | None:
        """The hold on a node that is in force."""
        last = next((s for s in reversed(self.sayings) if s.node == node and s.word in (Word.HOLD, Word.RESUME)), None)
        if last is None or last.word is Word.RESUME:
            return None
        return last if last.until is None or now < last.until else None

    def fenced(self, node: str, since: datetime) -> bool:
        """Whether somebody has said, after `since`, that this node is off for certain."""
        return self.fence_of(node, since) is not None

    def fence_of(self, node: str, since: datetime) -> Saying | None:
        """Who said so, the newest word first."""
        told = (s for s in reversed(self.sayings) if s.word is Word.FENCED and s.node == node and s.at >= since)
        return next(told, None)

    def given_back(self, node: str, incident: str) -> Saying | None:
        """The order to give a node back that is about this incident, where nobody has said otherwise since."""
        last = self.last_on(incident, node)
        return last if last is not None and last.word is Word.RELEASE else None

    def breaker_reset(self) -> Saying | None:
        """The last word that closed the circuit breaker."""
        return next((s for s in reversed(self.sayings) if s.word is Word.RESET_BREAKER), None)

    def last_on(self, incident: str, node: str | None = None) -> Saying | None:
        """The word on an incident that holds: an approval, a rejection, or an order to give a node back.

        With `node`, orders to give another node back are passed over.
        """
        about = (s for s in reversed(self.sayings) if s.word in _ON_INCIDENTS and incident in s.incidents)
        return next((s for s in about if node is None or s.word is not Word.RELEASE or s.node == node), None)
