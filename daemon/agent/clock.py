"""The machine's two clocks, read together: what time it is, and how long it has been up.

A kernel record is stamped with seconds since boot. The wall clock may be set at any time, so a boot time that was
measured once is soon wrong; the sources of `daemon.agent` measure again at each look.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daemon.agent.position import SourceError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: A stamp that had to be moved by more than this is marked.
_NOTED_S = 1.0
NOTE_MOVED = "stamp does not fit when the record was read; moved"


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, by both clocks. `since_boot_s` stands still while the machine is suspended, as the kernel's stamps do."""

    now: datetime
    since_boot_s: float

    @property
    def booted(self) -> datetime:
        """When the machine booted, by the wall clock as it is set now; suspended time counts as none."""
        return self.now - timedelta(seconds=self.since_boot_s)

    def place(self, stamp_s: float, not_before_s: float = 0.0) -> tuple[datetime, tuple[str, ...]]:
        """The time of a stamp in seconds since boot, and a note where it had to be moved.

        A record that was not there at `not_before_s` and is there now was written in between, whatever its stamp says:
        the clock of the stamps drifts by minutes a month, and not every machine stops it in a suspend.
        """
        inside_s = min(max(stamp_s, not_before_s), self.since_boot_s)
        notes = (NOTE_MOVED,) if abs(inside_s - stamp_s) > _NOTED_S else ()
        return self.now - timedelta(seconds=self.since_boot_s - inside_s), notes


#: Gives the present moment.
Clock = Callable[[], Moment]


def measure() -> Moment:
    """The moment by this machine's clocks.

    printk's stamps are no clock that a program can read. CLOCK_MONOTONIC runs as they do but for the drift, and like
    them leaves out suspended time; CLOCK_BOOTTIME does not.
    """
    return Moment(datetime.now(UTC), time.clock_gettime(time.CLOCK_MONOTONIC))


def boot_id(path: Path = BOOT_ID) -> str:
    """The id of the machine's present boot, with dashes as Kubernetes shows it. Raises SourceError."""
    try:
        found = dashed(path.read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the boot's id {path} cannot be read: {error}; boots cannot be told apart") from error
    if not found:
        raise SourceError(f"the boot's id {path} is empty; boots cannot be told apart")
    return found


def dashed(boot: str) -> str:
    """A boot id in the kernel's spelling; the journal leaves the dashes out.

    >>> dashed("264650fb0ced4d21b853052cc4bc2898")
    '264650fb-0ced-4d21-b853-052cc4bc2898'
    """
    if len(boot) == 32 and boot.isalnum():
        return "-".join((boot[:8], boot[8:12], boot[12:16], boot[16:20], boot[20:]))
    return boot
