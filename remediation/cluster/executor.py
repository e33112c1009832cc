"""The executor: makes the cluster what the newest tick wants, while this process leads and its orders are fresh.

Four threads: one keeps marks, so that a node is cordoned at once whatever else goes on, one keeps drains going, one
restarts of whole jobs, one the work on nodes themselves. None queues anything: a new tick's orders replace the old
ones, and a process that starts anew finds what is left to do by looking at the cluster.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from remediation.cluster.client import Cluster
from remediation.cluster.draining import Drainer
from remediation.cluster.evictions import Evictor
from remediation.cluster.hands import Hands
from remediation.cluster.marking import Marker, Tools
from remediation.cluster.operating import Operator
from remediation.cluster.restoring import Restorer
from remediation.cluster.view import ClusterView
from remediation.orders import Orders
from remediation.record import Record
from rules.schema import Policy

log = structlog.get_logger()

#: Between two looks where nothing new was ordered.
_BEAT_S = 0.5
_AFTER_A_BUG_S = 5.0


@dataclass(frozen=True, slots=True)
class Reach:
    """What the executor acts on, and with how many requests at once."""

    cluster: Cluster
    view: ClusterView
    parallel: int = 16


class Executor:
    """Carries orders out. `leads` is asked before every write; `give` may be called from any thread.

    `counts` has the evictions by their result.
    """

    def __init__(
        self,
        reach: Reach,
        record: Record,
        policy: Policy,
        leads: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._view = reach.view
        self._policy = policy
        self._leads = leads
        self._now = now
        self._stop = threading.Event()
        self._news = {name: threading.Event() for name in ("mark", "drain", "restore", "operate")}
        self._pool = ThreadPoolExecutor(reach.parallel, thread_name_prefix="hands")
        self._evictor = Evictor(reach.cluster, self.may_act, parallel=reach.parallel)
        self._tools = Tools(reach.cluster, Hands(reach.cluster, self.may_act), record, self._pool, self.may_act, now)
        self.counts: Counter[str] = Counter()
        self.begin_anew()
        self._threads = [
            threading.Thread(target=self._turns, args=("mark", self.mark), name="act-mark", daemon=True),
            threading.Thread(target=self._turns, args=("drain", self.drain), name="act-drain", daemon=True),
            threading.Thread(target=self._turns, args=("restore", self.restore), name="act-restore", daemon=True),
            threading.Thread(target=self._turns, args=("operate", self.operate), name="act-operate", daemon=True),
        ]

    def begin_anew(self) -> None:
        """Forget what was ordered, shown and tried so far: another process may have acted since."""
        self._orders = Orders(datetime.min.replace(tzinfo=UTC))
        self._marker = Marker(self._tools, self._policy.limits.hold_off)
        self._drainer = Drainer(self._tools, self._evictor, self._policy, self.counts)
        self._restorer = Restorer(self._tools, self._policy)
        self._operator = Operator(self._tools, self._policy)

    def may_act(self) -> bool:
        """Whether anything may be changed at this very moment: a leader, with orders from a tick that is recent."""
        return self._leads() and not self._orders.is_stale(self._now(), self._policy.limits.max_snapshot_age)

    def give(self, orders: Orders) -> None:
        """These are the orders from now on."""
        self._orders = orders
        for event in self._news.values():
            event.set()

    def start(self) -> None:
        """Begin to carry orders out."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after what is being asked for right now, and wait for it."""
        self._stop.set()
        for event in self._news.values():
            event.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._evictor.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def mark(self) -> None:
        """One turn of the marks."""
        if self.may_act() and self._view.stale_s <= self._policy.limits.max_cluster_age:
            self._marker.turn(self._orders, self._view.nodes())

    def drain(self) -> None:
        """One turn of the drains. Where no node is to be emptied, and none is being, no pods are looked at."""
        orders = self._orders
        if not self.may_act():
            return
        if not any(wish.drain for wish in orders.wishes.values()) and not self._tools.record.pending():
            return
        seen = self._view.snapshot()
        if seen.stale_s <= self._policy.limits.max_cluster_age:
            self._drainer.turn(orders, seen)

    def restore(self) -> None:
        """One turn of the restarts. Where no job is to be restarted, and none is being, no pods are looked at."""
        orders = self._orders
        if not self.may_act():
            return
        wanted = self._policy.restart.enabled and any(wish.drain or wish.asks for wish in orders.wishes.values())
        if not wanted and not any(one.stage.is_open for one in self._tools.record.restarts().values()):
            return
        seen = self._view.snapshot()
        if seen.stale_s <= self._policy.limits.max_cluster_age:
            self._restorer.turn(orders, seen)

    def operate(self) -> None:
        """One turn of the work on nodes themselves."""
        orders = self._orders
        if not self.may_act() or self._view.stale_s > self._policy.limits.max_cluster_age:
            return
        if orders.operations or any(one.is_open for one in self._tools.record.operations().values()):
            self._operator.turn(orders, self._view.nodes())

    def _turns(self, name: str, turn: Callable[[], None]) -> None:
        """A thread's whole life. The outermost frame: a bug in one turn is logged, and the next one still comes."""
        while not self._stop.is_set():
            self._news[name].wait(_BEAT_S)
            self._news[name].clear()
            if self._stop.is_set():
                return
            try:
                turn()
            except Exception:  # the outermost frame; see the docstring
                log.exception("acting failed", what=name, next="report it with this trace; nothing is lost by it")
                self._stop.wait(_AFTER_A_BUG_S)
