"""One round of evictions of a drain: each pod is asked for once, under its UID, and never with less grace than its own.

Level-triggered: what is left is worked out anew for the next round (`remediation.drain`), so nothing here waits for a
pod to end or retries a budget's refusal. Rounds ask several pods at a time, because the API server takes its time over
an eviction (some 100 ms with Kubernetes 1.34) whoever asks.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import Self

from remediation.cluster.answers import ClusterError, Evicted
from remediation.cluster.client import Cluster
from remediation.disruption import Passage, passages
from remediation.drain import Fate, PodFate
from remediation.objects import PdbView, PodView


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What came of one pod in this round. `evicted` is None where the server was not `asked`, or gave no verdict."""

    pod: PodView
    evicted: Evicted | None
    detail: str
    asked: bool = True

    @property
    def needs_a_person(self) -> bool:
        """Whether no further round will help."""
        return self.evicted is not None and not (self.evicted.is_over or self.evicted.retryable)


class Evictor:
    """Evicts pods of one cluster. `may_act` is asked before each eviction. A context manager: it keeps threads."""

    def __init__(self, cluster: Cluster, may_act: Callable[[], bool], *, parallel: int = 16) -> None:
        self._cluster = cluster
        self._may_act = may_act
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="evict")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads after what they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def round(
        self, fates: Iterable[PodFate], budgets: Iterable[PdbView], *, dry_run: bool = False
    ) -> tuple[PodOutcome, ...]:
        """Ask for each pod whose fate is eviction, in their order, as far as its disruption budgets leave room.

        A pod that the budgets certainly refuse is not asked for: each request would only be one more refusal. In a dry
        run the server judges and changes nothing.
        """
        wanted = [fate for fate in fates if fate.fate is Fate.EVICT]
        told = {one.pod.uid: one for one in passages((fate.pod for fate in wanted), budgets)}
        held = {uid for uid, one in told.items() if one.passage in (Passage.BLOCKED, Passage.NEVER)}
        asked = {
            fate.pod.uid: self._pool.submit(self._evict, fate, dry_run=dry_run)
            for fate in wanted
            if fate.pod.uid not in held
        }
        return tuple(
            PodOutcome(fate.pod, None, f"not asked for: {told[fate.pod.uid].reason}", asked=False)
            if fate.pod.uid in held
            else asked[fate.pod.uid].result()
            for fate in wanted
        )

    def _evict(self, fate: PodFate, *, dry_run: bool) -> PodOutcome:
        pod = fate.pod
        if not self._may_act():
            said = "not asked for: this process may not act any more (not the leader)"
            return PodOutcome(pod, None, said, asked=False)
        grace_s = ceil(fate.grace_s) if fate.grace_s > pod.grace_s else None
        try:
            evicted = self._cluster.evict(pod.namespace, pod.name, pod.uid, grace_s, dry_run=dry_run)
        except ClusterError as error:
            return PodOutcome(pod, None, f"no verdict: {error}")
        return PodOutcome(pod, evicted, evicted.detail or evicted.result.value)
