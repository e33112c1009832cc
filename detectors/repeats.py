"""What repetition says: one contained error is an accident, three in a day at one place are a sick GPU.

Occurrences outlive the fault they belong to (a program's fault is over after minutes, the pattern takes a day), so
they are kept here. Used by `detectors.faults`.
"""

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from rules.schema import Escalation, RuleBook

#: Repeats by one job or process within this time are one occurrence: a fault is often told several times.
_BURST = timedelta(seconds=60)
#: Newest occurrences that are remembered of one code at one GPU.
_REMEMBERED = 64


class Occurrence(NamedTuple):
    """One time that a code was seen. `job` and `pid` are whose work it hit, as far as that is known."""

    at: datetime
    place: str
    job: str
    pid: int | None
    exported: bool


class Repeats:
    """Occurrences by node, GPU (or PCI address) and rule name. Only codes with an escalation come here."""

    def __init__(self, rules: RuleBook) -> None:
        steps = [step for rule in (*rules.xid.values(), *rules.sxid.values()) for step in rule.escalate]
        self._longest = timedelta(seconds=max((step.within for step in steps), default=0.0))
        self._seen: dict[tuple[str, str, str], deque[Occurrence]] = {}

    def add(self, node: str, where: str, name: str, new: Occurrence) -> None:
        """Take an occurrence in, unless it is a repeat of one burst or an exporter's echo of what a log said."""
        seen = self._seen.setdefault((node, where, name), deque(maxlen=_REMEMBERED))
        if new.exported and any(not old.exported for old in seen):
            return
        if not new.exported:
            for echo in [old for old in seen if old.exported]:
                seen.remove(echo)
        who = new.place, new.job, new.pid if not new.job else None
        for old in seen:
            if (old.place, old.job, old.pid if not old.job else None) == who and abs(new.at - old.at) < _BURST:
                return
        seen.append(new)

    def reached(self, node: str, where: str, name: str, step: Escalation, place: str, now: datetime) -> int:
        """How many occurrences fulfil an escalation at this moment; 0 where it isn't fulfilled.

        Jobs tell a sick GPU from a sick program. Where no job is known, processes do, but only at one and the same
        place: a sick program that is restarted is another process, and it hits any place.
        """
        at_one_place = step.same != "gpu"
        if at_one_place and not place:
            return 0
        since = now - timedelta(seconds=step.within)
        recent = [
            one
            for one in self._seen.get((node, where, name), ())
            if one.at >= since and (not at_one_place or one.place == place)
        ]
        if len(recent) < step.count or _different(recent, by_process=at_one_place) < step.distinct_jobs:
            return 0
        return len(recent)

    def move(self, node: str, before: str, after: str) -> None:
        """A place's GPU became known: what was seen at the address was seen at the GPU."""
        for key in [key for key in self._seen if key[:2] == (node, before)]:
            mine, (_, _, name) = self._seen.pop(key), key
            for one in mine:
                self.add(node, after, name, one)

    def forget_gpu(self, gpu: str) -> None:
        """The GPU was replaced."""
        for key in [key for key in self._seen if key[1] == gpu]:
            del self._seen[key]

    def expire(self, now: datetime) -> None:
        """Forget what is older than any escalation looks back."""
        for key in [key for key, seen in self._seen.items() if seen[-1].at < now - self._longest]:
            del self._seen[key]


def _different(recent: Sequence[Occurrence], *, by_process: bool) -> int:
    """How many different jobs, or processes where no job is known; at least one."""
    jobs = {one.job for one in recent if one.job}
    if not jobs and by_process:
        return max(1, len({one.pid for one in recent if one.pid is not None}))
    return max(1, len(jobs))
