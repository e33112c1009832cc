"""The pull beside the loop: a big fleet's poll takes seconds, and a fault in a log waits for none of them.

While it goes on, the stores are its thread's alone. Whoever ticks meanwhile goes by the last snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime

from daemon.ingest.assemble import Assembler
from daemon.ingest.poller import Poller
from detectors.snapshot import ExprResult, SourceState

#: A tick that seems to be longer ago than the longest poll comes from a clock that was set back.
_LONGEST_POLL_S = 600.0
_LEAST_APART_S = 0.001


class TickTimes:
    """A time for each tick of its own, by which the entries of the ledger are told apart."""

    def __init__(self) -> None:
        self._last = 0.0

    def next(self, began_at: float, clock: Callable[[], float]) -> float:
        """The time of a tick that began then, in unix seconds: another one may have come while it was polling."""
        came_meanwhile = self._last - _LONGEST_POLL_S < began_at <= self._last
        self._last = max(clock(), self._last + _LEAST_APART_S) if came_meanwhile else began_at
        return self._last


@dataclass(frozen=True, slots=True)
class Answers:
    """What Prometheus said; whether it did so for this very tick (`is_new`), and whether it said anything (`some`)."""

    state: SourceState
    exprs: Sequence[ExprResult]
    is_new: bool = True
    some: bool = True
    #: by UID of a job that names a metric for it: when its last checkpoint was committed
    measured: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def sees(self) -> bool:
        """Whether something is known by them."""
        return self.state.ok or self.some


class Pull:
    """Pulls in a thread of its own. Only the loop's thread calls this."""

    def __init__(
        self,
        poller: Poller,
        assembler: Assembler,
        look_s: float,
        measure: Callable[[float], Mapping[str, datetime]] = lambda _: {},
    ) -> None:
        self.last: Answers | None = None
        self._poller = poller
        self._assembler = assembler
        self._look_s = look_s
        self._measure = measure
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pull")
        self._is_pulling = False

    def answers(self, now: float, meanwhile: Callable[[], object]) -> Answers:
        """Ask for everything that is due at `now`; `meanwhile` is called again and again while that takes its time.

        An error in `meanwhile` comes out of here once the pull is over.
        """
        pulling = self._pool.submit(self._ask, now)
        self._is_pulling = True
        try:
            while not wait((pulling,), self._look_s).done:
                meanwhile()
        finally:
            if not pulling.done():
                wait((pulling,))
            self._is_pulling = False
        self.last = pulling.result()
        return self.last

    def _ask(self, now: float) -> Answers:
        state, exprs = self._poller.poll(now)
        some = self._poller.answered > 0
        return Answers(state, exprs, some=some, measured=self._measure(now) if some else {})

    def again(self) -> Answers | None:
        """The last answers, for a tick that asks for none; None where there are none."""
        return None if self.last is None else replace(self.last, is_new=False)

    def boot_at(self, node: str) -> float | None:
        """When a node booted, in unix seconds; None where nobody knows, and while the stores are another thread's."""
        return None if self._is_pulling else self._assembler.boot_at(node)

    def close(self) -> None:
        """Stop after what is being asked for."""
        self._poller.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
