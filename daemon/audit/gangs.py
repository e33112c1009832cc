"""Whose work each incident of an audit hit: the jobs on its GPUs, with all of their GPUs, as the metrics tell it.

An audit knows no cluster: who runs where is what exporters say of pods. `daemon.audit.tally` feeds it each tick;
`daemon.audit.report` asks it, and counts from it what was lost.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detectors.findings import Incident
from detectors.identity import Workload
from detectors.snapshot import Snapshot

_LONGEST_SILENCE = timedelta(hours=1)
Users = tuple[Workload, ...]
#: A job by namespace and name.
JobName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hit:
    """The jobs that an incident hit, and how many GPUs they had together; None where no metric says who runs there."""

    gpus: int | None
    jobs: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What was taken of one incident so far: the places that it names, and each job's GPUs when it was first hit."""

    named: tuple[tuple[str, ...], tuple[str, ...]]
    uuids: set[str] = field(default_factory=set)
    jobs: dict[JobName, frozenset[str]] = field(default_factory=dict)


class Gangs:
    """Remembers who used each GPU, and takes down the jobs of an incident when it first names their GPUs.

    A job that the fault has killed may be gone from the metrics by the time its incident opens, and a GPU that fails
    may fall silent before its fault is told. So the last use of a GPU counts where it is no earlier than the incident's
    first signal, or where the GPU has said nothing since, for an hour at most.
    """

    def __init__(self) -> None:
        self._incidents: dict[str, _Seen] = {}
        self._now: Sequence[Users] = ()
        self._at: datetime | None = None
        #: of rows whose users have changed: when the ones before were last seen, and who
        self._before: dict[int, tuple[datetime, Users]] = {}
        #: those of them whose GPU has had no fresh sample since
        self._silent: set[int] = set()
        #: nodes whose metrics have named a pod
        self._telling: set[str] = set()

    def take(self, snapshot: Snapshot, incidents: Iterable[Incident]) -> None:
        """Add one tick."""
        self._look(snapshot)
        for incident in incidents:
            named = (incident.gpu_uuids, incident.nodes)
            seen = self._incidents.get(incident.id)
            if seen is not None and seen.named == named:
                continue
            if seen is None:
                seen = self._incidents[incident.id] = _Seen(named)
            seen.named = named
            self._add(seen, incident, snapshot)

    def hit(self, incident: Incident) -> Hit:
        """What an incident hit."""
        seen = self._incidents.get(incident.id)
        if seen is None or (not seen.jobs and self._telling.isdisjoint(incident.nodes)):
            return Hit(None)
        gpus = frozenset[str]().union(*seen.jobs.values())
        return Hit(len(gpus), tuple(sorted(f"{namespace}/{job}" for namespace, job in seen.jobs)))

    def _look(self, snapshot: Snapshot) -> None:
        """Who uses which GPU now, and who did just before."""
        users = snapshot.workloads
        if users is not self._now:
            for row, before in enumerate(self._now):
                if before and self._at is not None and users[row : row + 1] != (before,):
                    self._before[row] = (self._at, before)
                    self._silent.add(row)
            self._telling.update(gpu.node for gpu, here in zip(snapshot.gpus, users, strict=False) if here)
            self._now = users
        self._at = snapshot.at
        lately = snapshot.at - timedelta(seconds=2 * snapshot.interval_s)  # users and samples may age a tick apart
        fresh = snapshot.coverage.signal_share
        self._silent = {row for row in self._silent if fresh[row] == 0 or self._before[row][0] >= lately}

    def _add(self, seen: _Seen, incident: Incident, snapshot: Snapshot) -> None:
        """The jobs on GPUs that the incident has not named before, with all GPUs that they have at this moment."""
        nodes, uuids = frozenset(incident.nodes), frozenset(incident.gpu_uuids)
        here = [
            (row, gpu.uuid)
            for row, gpu in enumerate(snapshot.gpus)
            if (gpu.uuid in uuids if uuids else gpu.node in nodes) and gpu.uuid not in seen.uuids
        ]
        seen.uuids.update(uuid for _, uuid in here)
        since = incident.first_signal_at - timedelta(seconds=2 * snapshot.interval_s)
        found: defaultdict[JobName, set[str]] = defaultdict(set)
        for row, uuid in here:
            for work in self._users(row, since, silent=True):
                found[work.namespace, work.job].add(uuid)
        new = found.keys() - seen.jobs.keys()
        for row, gpu in enumerate(snapshot.gpus) if new else ():
            for work in self._users(row, since):
                if (work.namespace, work.job) in new:
                    found[work.namespace, work.job].add(gpu.uuid)
        seen.jobs.update({job: frozenset(found[job]) for job in new})

    def _users(self, row: int, since: datetime, *, silent: bool = False) -> Users:
        """Who uses a GPU now, or did last since then; or before it fell silent, where that is asked for."""
        now = self._now[row] if row < len(self._now) else ()
        if now:
            return now
        at, before = self._before.get(row, (since, ()))
        return before if at >= since or (silent and row in self._silent and at >= since - _LONGEST_SILENCE) else ()
