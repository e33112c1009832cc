"""Who may act: what to do about the Lease that candidates share, decided from what this process saw and when.

Pure; `remediation.cluster.lease` reads and writes the Lease and asks here in between. Times are of this process' own
steady clock, and no time that another machine wrote is ever compared with it, so clocks may be off by years. It has to
be one that goes on while the machine sleeps (CLOCK_BOOTTIME), and `me` has to be new with each start of the process.

Why two never hold at once: a holder counts from before it sent the write that succeeded, and stops after `deadline`; a
challenger counts from when it first saw that write, and starts after the longer `duration`; the write itself is a
compare-and-swap on the Lease's resourceVersion.
"""

from dataclasses import dataclass
from enum import StrEnum

from rules.schema import LeasePolicy


class Move(StrEnum):
    """What to do next. Only HOLD and RENEW belong to a leader; after STEP_DOWN the write of before counts no more."""

    HOLD = "hold"
    RENEW = "renew"
    ACQUIRE = "acquire"
    STAND_BY = "stand_by"
    STEP_DOWN = "step_down"


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease as far as it is decided by. `holder` is "" where it was released; `version` is its resourceVersion."""

    holder: str
    duration_s: float
    version: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease as read last (None: there is none), and when by our clock this very version was seen first."""

    record: Record | None
    at_s: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A move, why, and in how many seconds to look again."""

    move: Move
    reason: str
    again_s: float


def see(before: Seen | None, record: Record | None, now_s: float) -> Seen:
    """What is known after reading the Lease at `now_s`: the same version keeps the time at which it was first seen."""
    return before if before is not None and before.record == record else Seen(record, now_s)


def holds(confirmed_s: float | None, now_s: float, policy: LeasePolicy) -> bool:
    """Whether this process may act now; asked again before each write to the cluster.

    `confirmed_s` is when, by our clock, the last write of ours that succeeded was *sent*; None where there is none.
    """
    return confirmed_s is not None and 0 <= now_s - confirmed_s < policy.deadline


def next_move(seen: Seen, me: str, confirmed_s: float | None, now_s: float, policy: LeasePolicy) -> Choice:
    """What to do about the Lease. The caller drops `confirmed_s` after STEP_DOWN."""
    if confirmed_s is not None:
        return _as_leader(seen.record, me, confirmed_s, now_s, policy)
    return _as_candidate(seen, me, now_s, policy)


def _as_leader(record: Record | None, me: str, confirmed_s: float, now_s: float, policy: LeasePolicy) -> Choice:
    since_s = now_s - confirmed_s
    if not holds(confirmed_s, now_s, policy):
        return Choice(Move.STEP_DOWN, f"not renewed for {since_s:.0f} s, limit {policy.deadline:.0f} s", 0.0)
    if record is None:
        return Choice(Move.STEP_DOWN, "somebody deleted the lease", 0.0)
    if record.holder != me:
        return Choice(Move.STEP_DOWN, f"the lease is held by {record.holder or 'nobody'}", 0.0)
    if since_s >= policy.renew:
        return Choice(Move.RENEW, f"renewed {since_s:.0f} s ago", policy.renew)
    return Choice(Move.HOLD, f"renewed {since_s:.0f} s ago", policy.renew - since_s)


def _as_candidate(seen: Seen, me: str, now_s: float, policy: LeasePolicy) -> Choice:
    record = seen.record
    if record is not None and record.holder == "":
        return Choice(Move.ACQUIRE, "the lease was released", policy.renew)
    if record is not None and record.holder == me:
        return Choice(Move.ACQUIRE, "the lease names this process, whose last write was not confirmed", policy.renew)
    # A lease that is not there may have been deleted under its holder, so it is waited out as well.
    wait_s = max(record.duration_s, policy.duration) if record is not None else policy.duration
    unchanged_s = now_s - seen.at_s
    whose = f"the lease of {record.holder}" if record is not None else "the lack of a lease"
    said = f"{whose} has not changed for {unchanged_s:.0f} s of {wait_s:.0f} s"
    if unchanged_s >= wait_s:
        return Choice(Move.ACQUIRE, said, policy.renew)
    return Choice(Move.STAND_BY, said, min(policy.renew, wait_s - unchanged_s))
