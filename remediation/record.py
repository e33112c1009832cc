"""What the hands write down: an attempt before a change, its outcome after it.

`daemon.journal` keeps it in the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from remediation.limits import Attempt, Ending
from remediation.operations import Operation
from remediation.people import Said, Saying
from remediation.restoring import Restart


class RecordUnavailable(Exception):
    """Nothing can be written down now, so nothing may be done. The text says why."""


class Record(Protocol):
    """Safe to use from many threads."""

    @property
    def said(self) -> Said:
        """What people have said, as far as it was read."""
        ...

    def history(self) -> tuple[Attempt, ...]:
        """All attempts that are known, oldest first."""
        ...

    def pending(self) -> tuple[Attempt, ...]:
        """The attempts that have begun and not ended, oldest first."""
        ...

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Write that these begin, all or none; one that is pending already is gone on with.

        Where nothing new begins, it is checked that something could be written.

        Raises:
            RecordUnavailable: nothing was written.
        """
        ...

    def end(self, endings: Iterable[tuple[Attempt, Ending, str]], at: datetime) -> None:
        """Write how attempts ended, as one. What cannot be written now is kept and written later; it raises nothing."""
        ...

    def restarts(self) -> Mapping[str, Restart]:
        """The restarts of jobs that are known, by id, as they were written last."""
        ...

    def note(self, restarts: Sequence[Restart]) -> None:
        """Write how far these restarts have come, all or none.

        Raises:
            RecordUnavailable: nothing was written.
        """
        ...

    def operations(self) -> Mapping[str, Operation]:
        """The work on nodes themselves that is known, by id, as it was written last."""
        ...

    def note_operation(self, operation: Operation) -> None:
        """Write how far it has come.

        Raises:
            RecordUnavailable: nothing was written.
        """
        ...

    def say(self, sayings: Sequence[Saying]) -> None:
        """Write what somebody has said by changing the cluster.

        Raises:
            RecordUnavailable: nothing was written.
        """
        ...
