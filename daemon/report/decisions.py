"""Folds the audit's decisions into what a person reads: the same answer on many ticks is one line. `page` calls it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from daemon.report.reading import DecisionRow
from remediation.decide import Ruling
from rules.vocabulary import DISRUPTIVE, Action

_ORDER = (Ruling.ACT, Ruling.ASK, Ruling.WAIT, Ruling.REFUSE)
_LEAD = {
    Ruling.ACT: "Would {}",
    Ruling.ASK: "Would ask a person to let it {}",
    Ruling.WAIT: "Would wait before it may {}",
    Ruling.REFUSE: "Would refuse to {}",
}
_VERB = {
    Action.WATCH: "watch {}",
    Action.RESTART_JOB: "restart the job on {}",
    Action.CHECKPOINT: "ask the job on {} for a checkpoint",
    Action.NO_NEW_WORK: "keep new work off {}",
    Action.CORDON: "cordon {}",
    Action.DRAIN: "drain {}",
    Action.DIAGNOSE: "run diagnostics on {}",
    Action.RESET_GPU: "reset the GPU on {}",
    Action.REBOOT_NODE: "reboot {}",
    Action.QUARANTINE: "quarantine {}",
    Action.RELEASE: "give {} back to the scheduler",
}


@dataclass(frozen=True, slots=True)
class Ruled:
    """One decision as it stood from `first` to `last`, taken `count` times with the same gates and the same answer."""

    decision: DecisionRow
    first: datetime
    last: datetime
    count: int

    @property
    def sentence(self) -> str:
        """What would be done, as the start of a sentence."""
        one = self.decision
        return _LEAD[one.verdict].format(_VERB[one.action].format(one.node or "the fleet"))

    @property
    def is_disruptive(self) -> bool:
        """Whether it would end somebody's work or take capacity away."""
        return self.decision.verdict is Ruling.ACT and self.decision.action in DISRUPTIVE


def fold(decisions: Iterable[DecisionRow]) -> tuple[Ruled, ...]:
    """Decisions that say the same joined, the strongest answer first, then by time.

    Gates are the same when they passed the same; the reasons (which may carry changing numbers) are the last ones said.
    """
    folded: dict[tuple[object, ...], Ruled] = {}
    for one in sorted(decisions, key=lambda decision: decision.at):
        gates = tuple((gate.name, gate.passed) for gate in one.gates)
        key = (one.incident, one.node, one.gpu_uuid, one.action, one.verdict, gates)
        before = folded.get(key)
        if before is None:
            folded[key] = Ruled(one, one.at, one.at, 1)
        else:
            folded[key] = replace(before, decision=one, last=one.at, count=before.count + 1)
    return tuple(sorted(folded.values(), key=_strength))


def _strength(ruled: Ruled) -> tuple[bool, int, bool, datetime]:
    one = ruled.decision
    return one.action is Action.WATCH, _ORDER.index(one.verdict), one.action not in DISRUPTIVE, ruled.first


def would_act(ruled: Sequence[Ruled]) -> tuple[Ruled, ...]:
    """Those that would have been carried out; watching is no action."""
    return tuple(one for one in ruled if one.decision.verdict is Ruling.ACT and one.decision.action is not Action.WATCH)
