"""Leader election on a coordination.k8s.io Lease: reads and writes it, and lets `remediation.leadership` decide.

One thread turns it. `may_act` answers from any thread, at any time, from this process' own clock alone, so a leader
that was frozen knows the moment it wakes that its time is over.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.client import Cluster
from remediation.cluster.wire import Object
from remediation.leadership import Choice, Move, Record, Seen, holds, next_move, see
from rules.schema import LeasePolicy

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who stands for election, and where: `identity` has to be new with each start of the process."""

    namespace: str
    name: str
    identity: str


class Election:
    """This process' part in the election. `steady` is a clock that goes on while the machine sleeps, in seconds."""

    def __init__(
        self,
        cluster: Cluster,
        candidate: Candidate,
        policy: LeasePolicy,
        *,
        steady: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._candidate = candidate
        self._policy = policy
        self._steady = steady
        self._wall = wall
        self._seen: Seen | None = None
        self._confirmed_s: float | None = None
        self._looked_s: float | None = None
        #: how often this process has stood for the lease; what was decided in an earlier term is void
        self.term = 0

    def may_act(self) -> bool:
        """Whether this process leads at this very moment. Ask before each write to the cluster."""
        return holds(self._confirmed_s, self._steady(), self._policy)

    def other_leader(self) -> str:
        """Who else holds the lease, as far as it was last read; "" where nobody is known to."""
        record = self._seen.record if self._seen is not None else None
        if record is None or self.may_act() or record.holder == self._candidate.identity:
            return ""
        return record.holder

    @property
    def out_of_touch(self) -> bool:
        """Whether this process was frozen for so long that another one may lead, and has not looked again since."""
        if self._looked_s is None or self.may_act():
            return False
        return self._steady() - self._looked_s >= self._policy.duration

    def run(self, stop: threading.Event) -> None:
        """Stand for election until told to stop, then give the lease back."""
        while not stop.is_set():
            stop.wait(self.turn().again_s)
        self.resign()

    def turn(self) -> Choice:
        """Look at the lease once and do what follows. Raises nothing: an API server that is away wins no election."""
        led, began_s = self.may_act(), self._steady()
        try:
            lease = self._cluster.get_lease(self._candidate.namespace, self._candidate.name, self._policy.renew)
            now_s = self._steady()
            self._seen = see(self._seen, _record(lease), now_s)
            choice = next_move(self._seen, self._candidate.identity, self._confirmed_s, now_s, self._policy)
            self.term += choice.move is Move.ACQUIRE
            if choice.move in (Move.ACQUIRE, Move.RENEW):
                self._write(lease)
        except ClusterError as error:
            choice = Choice(Move.STAND_BY, f"the lease can't be reached: {error}", self._policy.renew)
            if error.kind not in (Failure.CONFLICT, Failure.EXISTS):
                log.warning("lease", detail=str(error))
        if choice.move is Move.STEP_DOWN:
            self._confirmed_s = None
        self._looked_s = began_s
        if led != self.may_act():
            log.info("leadership", leads=self.may_act(), why=choice.reason, identity=self._candidate.identity)
        return choice

    def resign(self) -> None:
        """Give the lease back where it is ours, so that the next need not wait for it to run out."""
        led, self._confirmed_s = self.may_act(), None
        if not led:
            return
        try:
            lease = self._cluster.get_lease(self._candidate.namespace, self._candidate.name, self._policy.renew)
            record = _record(lease)
            if lease is not None and record is not None and record.holder == self._candidate.identity:
                self._patch(lease, {"holderIdentity": ""})
        except ClusterError as error:
            log.warning("lease", detail=f"not given back: {error}")

    def _write(self, lease: Object | None) -> None:
        """Take or renew the lease; the time that counts is that before the write was sent."""
        sent_s, stamp = self._steady(), f"{self._wall():%Y-%m-%dT%H:%M:%S.%fZ}"
        spec: dict[str, Any] = {
            "holderIdentity": self._candidate.identity,
            "leaseDurationSeconds": round(self._policy.duration),
            "renewTime": stamp,
        }
        mine = lease is not None and lease["spec"].get("holderIdentity") == self._candidate.identity
        if not mine:
            spec["acquireTime"] = stamp
        if lease is None:
            written = self._cluster.create_lease(
                self._candidate.namespace, self._candidate.name, spec, self._policy.renew
            )
        else:
            if not mine:
                spec["leaseTransitions"] = int(lease["spec"].get("leaseTransitions") or 0) + 1
            written = self._patch(lease, spec)
        self._confirmed_s = sent_s
        self._seen = see(self._seen, _record(written), self._steady())

    def _patch(self, lease: Object, spec: dict[str, Any]) -> Object:
        version = lease["metadata"]["resourceVersion"]
        candidate = self._candidate
        return self._cluster.patch_lease(candidate.namespace, candidate.name, spec, version, self._policy.renew)


def _record(lease: Object | None) -> Record | None:
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration_s=float(spec.get("leaseDurationSeconds") or 0.0),
        version=lease["metadata"]["resourceVersion"],
    )
