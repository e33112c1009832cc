"""How far gpuwarden may go by itself: one mode for each kind of action. Pure; configuration and command line set it.

Modes are no gate: what is decided is the same in all of them, and only who carries it out differs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile

from rules.vocabulary import Action


class Mode(StrEnum):
    """OBSERVE decides and records; APPROVE waits for a person to release each plan; AUTO acts."""

    OBSERVE = "observe"
    APPROVE = "approve"
    AUTO = "auto"


_RANK = (Mode.OBSERVE, Mode.APPROVE, Mode.AUTO)
#: What this version has hands for, beside the operations that policy switches on. The other rungs are planned, shown,
#: and passed over.
HANDS = frozenset({Action.NO_NEW_WORK, Action.CORDON, Action.DRAIN, Action.QUARANTINE, Action.RELEASE})


@dataclass(frozen=True, slots=True)
class Modes:
    """`default` holds for each action that `of_action` says nothing about. `hands` are the actions that can be done."""

    default: Mode = Mode.OBSERVE
    of_action: Mapping[Action, Mode] = field(default_factory=dict)
    hands: frozenset[Action] = HANDS

    def able(self, operations: Iterable[Action]) -> "Modes":
        """With hands for these operations too, which policy has switched on."""
        return replace(self, hands=self.hands | frozenset(operations))

    def of(self, action: Action) -> Mode:
        """The mode of one action."""
        return self.of_action.get(action, self.default)

    @property
    def acts(self) -> bool:
        """Whether anything can ever be changed."""
        return any(self.of(action) is not Mode.OBSERVE for action in self.hands)

    def at_most(self, mode: Mode) -> "Modes":
        """`mode` for everything, but what is set apart for an action only where it is stricter: for `run --mode`."""
        stricter = {action: min(own, mode, key=_RANK.index) for action, own in self.of_action.items()}
        return Modes(mode, stricter, self.hands)

    def carried_out(self, steps: Iterable[Action], approved: Iterable[Action] = ()) -> tuple[Action, ...]:
        """The steps that may be done now, in order, up to the first that nobody may do.

        Steps without hands are passed over: they change nothing, whatever their mode.
        """
        released = frozenset(approved)
        done = []
        for action in steps:
            if action not in self.hands:
                continue
            mode = self.of(action)
            if mode is Mode.OBSERVE or (mode is Mode.APPROVE and action not in released):
                break
            done.append(action)
        return tuple(done)

    def would_happen(self, steps: Iterable[Action], approved: Iterable[Action] = ()) -> tuple[Action, ...]:
        """The steps that count as done when it is worked out how much is taken out.

        What OBSERVE only decides counts as if AUTO did it, so both decide alike; what waits for an approval does not.
        """
        released = frozenset(approved)
        return tuple(takewhile(lambda action: not self._waits(action, released), steps))

    def _waits(self, action: Action, approved: frozenset[Action]) -> bool:
        return action in self.hands and self.of(action) is Mode.APPROVE and action not in approved

    def __str__(self) -> str:
        apart = ", ".join(f"{action} {mode}" for action, mode in sorted(self.of_action.items()))
        return f"{self.default}{f' ({apart})' if apart else ''}"


#: Nothing is ever changed.
OBSERVE_ALL = Modes()
