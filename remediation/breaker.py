"""The circuit breaker: too many nodes taken out in a short time, and nothing more is taken until somebody has looked.

Pure. The state is a value that the ledger keeps, so a restart closes nothing. It queues nothing either: what was held
back while it was open is decided anew from what is wrong when it closes. Recovery and observation go on all the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from remediation.gates import GateResult
from remediation.limits import LIMITED
from remediation.people import Said
from remediation.plan import Plan
from remediation.shares import at_most
from rules.schema import BreakerPolicy

#: Most nodes that a reason names; the rest is a number.
_NAMED = 8


@dataclass(frozen=True, slots=True)
class TakenOut:
    """A node was taken out of service at this time, for this incident."""

    node: str
    at: datetime
    incident: str = ""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """Open since when and why; closed where `open_since` is None, and then `reason` says how it came to be so.

    What was taken out up to `counts_from` is settled: it doesn't trip a breaker that was closed after it.
    """

    open_since: datetime | None = None
    reason: str = "it has never tripped"
    counts_from: datetime | None = None


def limit(policy: BreakerPolicy, fleet: int) -> int:
    """With how many nodes within the window it trips, in a fleet of so many nodes with GPUs."""
    return at_most(policy.share, policy.max_nodes, fleet, floor=policy.min_nodes)


def advance(
    state: BreakerState, taken: Iterable[TakenOut], policy: BreakerPolicy, *, fleet: int, now: datetime
) -> BreakerState:
    """The state at `now`: trips where the window is full, closes where the cool-down has passed.

    `taken` may hold any part of the past, in any order; each node counts once. Asking again changes nothing.
    """
    if state.open_since is not None:
        open_s = (now - state.open_since).total_seconds()
        if policy.cool_down is None or open_s < policy.cool_down:
            return state
        return BreakerState(None, f"closed by itself after {open_s:.0f} s", counts_from=now)
    since = now - timedelta(seconds=policy.window)
    if state.counts_from is not None:
        since = max(since, state.counts_from)
    nodes = sorted({one.node for one in taken if one.at > since})
    most = limit(policy, fleet)
    if len(nodes) < most:
        return state
    named = ", ".join(nodes[:_NAMED]) + (f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else "")
    said = f"{len(nodes)} of {fleet} nodes were taken out within {policy.window:.0f} s, limit {most}: {named}"
    return BreakerState(now, said, state.counts_from)


def reset(state: BreakerState, *, by: str, now: datetime) -> BreakerState:
    """A person closes it; a closed one stays as it is."""
    return state if state.open_since is None else BreakerState(None, f"closed by {by}", counts_from=now)


def heard(state: BreakerState, said: Said, now: datetime) -> BreakerState:
    """The state once a person's word has been heard, if one came after it tripped."""
    word = said.breaker_reset()
    if word is None or state.open_since is None or word.at <= state.open_since:
        return state
    return reset(state, by=word.source, now=now)


def breaker(state: BreakerState, plan: Plan) -> GateResult:
    """Whether a plan may go ahead as far as the breaker is concerned."""
    if state.open_since is None:
        return GateResult("breaker", passed=True, reason=f"closed: {state.reason}")
    since = f"open since {state.open_since.isoformat(timespec='seconds')}: {state.reason}"
    if plan.does(LIMITED):
        return GateResult("breaker", passed=False, reason=since)
    return GateResult("breaker", passed=True, reason=f"{plan.action} goes on; {since}")
