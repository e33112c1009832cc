"""The hands: mark a node, release it, say its condition. Each reads the live node, patches it, and reads it back.

Idempotent and safe to repeat after any interruption: what has to change is worked out anew from the node as it is
(`remediation.patches`). Only patches under the resourceVersion of the read are sent, so nobody else's change is lost;
a conflict means reading again. Nothing here decides whether to act.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.client import Cluster
from remediation.cluster.parse import BadObject, parse_node
from remediation.objects import CONDITION, NodeView
from remediation.ownership import claimed_by_others, opted_out
from remediation.patches import (
    Order,
    Patch,
    Shown,
    apply,
    condition_patch,
    forget,
    order_of,
    put_on_probation,
    release,
)
from remediation.wish import Condition, NodeWish

#: A node's resourceVersion moves with its kubelet's status; somebody else may write in between now and then.
_TRIES = 6
#: An API server that has just started refuses for a moment what its roles allow; and a role can be mended.
_REFUSED = frozenset({Failure.UNAUTHORIZED, Failure.FORBIDDEN})


class Done(StrEnum):
    """How a change of a node ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"  # it was so already
    ORDERED = "ordered"  # a person took our marks back: stop, and hold off
    REFUSED = "refused"  # the live node says that it isn't ours to touch
    GONE = "gone"
    CONTESTED = "contested"  # others kept changing the node, or took the change back at once
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the API server answered and what was read back afterwards, in words for the ledger.

    `again`: it did not come about, and the same may work a little later without anybody's doing.
    """

    done: Done
    node: str
    detail: str
    order: Order = Order.NONE
    again: bool = False

    @property
    def is_so(self) -> bool:
        """Whether the node now is as it was to be."""
        return self.done in (Done.CHANGED, Done.UNCHANGED)


class _ShownCondition(msgspec.Struct, rename="camel"):
    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _Status(msgspec.Struct):
    conditions: list[_ShownCondition] = []


class _WithStatus(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class Hands:
    """Changes nodes of one cluster. `may_act` is asked before every write: leadership may have been lost meanwhile."""

    def __init__(self, cluster: Cluster, may_act: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._may_act = may_act

    def mark(self, node: str, wish: NodeWish) -> Outcome:
        """Taint, cordon and annotate a node as wished, unless its owner or another tool says otherwise by now."""
        return self._change(node, lambda seen: apply(seen, wish), heeds_orders=True, guard=not_ours_to_touch)

    def release(self, node: str) -> Outcome:
        """Take back what is ours: taint, cordon, marks."""
        return self._change(node, release, heeds_orders=True)

    def put_on_probation(self, node: str, now: datetime) -> Outcome:
        """Open it to new work, with a taint that prefers other nodes."""
        return self._change(node, lambda seen: put_on_probation(seen, now), heeds_orders=True)

    def forget(self, node: str) -> Outcome:
        """After a person's order: drop our marks and taint, and leave the node as the person left it."""
        return self._change(node, forget, heeds_orders=False)

    def show(self, node: str, wanted: Condition, now: datetime) -> Outcome:
        """Write the node condition GPUHealthy, where it says something else."""
        path = _path(node)
        try:
            seen = msgspec.convert(self._cluster.get(path), _WithStatus)
            patch = condition_patch(CONDITION, wanted, _shown(seen), now)
            if patch is None:
                return Outcome(Done.UNCHANGED, node, f"{CONDITION} is {wanted.status} already")
            if not self._may_act():
                return _not_ours(node)
            self._cluster.patch_strategic(path, dict(patch))
        except ClusterError as error:
            return _failed(node, error)
        except msgspec.ValidationError as error:
            return Outcome(Done.FAILED, node, f"its status can't be read: {error}")
        return Outcome(Done.CHANGED, node, f"{CONDITION} is {wanted.status}: {wanted.reason}")

    def look(self, node: str) -> NodeView:
        """The node as it is at this moment. Raises ClusterError, BadObject."""
        return self._read(_path(node))

    def _change(
        self,
        node: str,
        work_out: Callable[[NodeView], Patch | None],
        *,
        heeds_orders: bool,
        guard: Callable[[NodeView], str] = lambda _: "",
    ) -> Outcome:
        for _ in range(_TRIES):
            try:
                outcome = self._try(node, work_out, guard, heeds_orders=heeds_orders)
            except ClusterError as error:
                if error.kind is Failure.CONFLICT or error.outcome_unknown:
                    continue  # somebody was faster, or nobody knows: the next read tells
                return _failed(node, error)
            except BadObject as error:
                return Outcome(Done.FAILED, node, f"the node can't be read: {error}")
            if outcome is not None:
                return outcome
        said = f"not done after {_TRIES} tries: others keep changing the node"
        return Outcome(Done.CONTESTED, node, said, again=True)

    def _try(
        self,
        node: str,
        work_out: Callable[[NodeView], Patch | None],
        guard: Callable[[NodeView], str],
        *,
        heeds_orders: bool,
    ) -> Outcome | None:
        """Read, patch, read back; None where what was read back is not what was written."""
        path = _path(node)
        seen = self._read(path)
        order = order_of(seen)
        if heeds_orders and order is not Order.NONE:
            return Outcome(Done.ORDERED, node, f"a person has {order} it: an order to stop", order)
        refusal = guard(seen)
        if refusal:
            return Outcome(Done.REFUSED, node, refusal)
        patch = work_out(seen)
        if patch is None:
            return Outcome(Done.UNCHANGED, node, "it was so already")
        if not self._may_act():
            return _not_ours(node)
        self._cluster.patch_merge(path, dict(patch))
        return Outcome(Done.CHANGED, node, "done, and read back") if work_out(self._read(path)) is None else None

    def _read(self, path: str) -> NodeView:
        return parse_node(msgspec.json.encode(self._cluster.get(path)), {})


def not_ours_to_touch(node: NodeView) -> str:
    """Why nobody here may lay a hand on a node that was just read; "" where one may."""
    return "; ".join(filter(None, (opted_out(node), *claimed_by_others(node))))


def _path(node: str) -> str:
    return f"/api/v1/nodes/{node}"


def _not_ours(node: str) -> Outcome:
    return Outcome(Done.FAILED, node, "not done: this process may not act any more (not the leader)", again=True)


def _failed(node: str, error: ClusterError) -> Outcome:
    if error.kind is Failure.NOT_FOUND:
        return Outcome(Done.GONE, node, "the node isn't there any more")
    return Outcome(Done.FAILED, node, str(error), again=error.retryable or error.kind in _REFUSED)


def _shown(seen: _WithStatus) -> Shown | None:
    for one in seen.status.conditions:
        if one.type == CONDITION and one.last_transition_time is not None:
            return Shown(Condition(one.status, one.reason, one.message), one.last_transition_time)
    return None
