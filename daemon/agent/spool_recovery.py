"""From the records on the disk back to what the spool holds, after a stop of any kind. Used by `daemon.agent.spool`."""

import msgspec

from daemon.agent.disk import Disk
from daemon.agent.segment_format import Stored, packed, unpacked
from daemon.agent.segments import HEAD, KEPT, Segment, Segments
from daemon.agent.spool_records import GONE, STATE, UPDATE, Entry, Kept, State, Update, decoded, entry_of

#: The second copy of what is known beside the reports, as a file that is replaced as a whole.
_FILE = "position"
_LONGEST_FILE = 1 << 16


class Saved(msgspec.Struct, frozen=True):
    """The second copy: `end` is the segment, and the place in it, after which it was made."""

    end: tuple[int, int] = (0, 0)
    state: State = msgspec.field(default_factory=State)


def save(disk: Disk, saved: Saved) -> None:
    """Replace the second copy. Raises SpoolFull and SpoolError; then the one before stands."""
    disk.replace(_FILE, packed(0, 0, [(STATE, msgspec.json.encode(saved))]))


def load(disk: Disk) -> Saved | None:
    """The second copy, empty where there is none yet; None where it cannot be read. Raises SpoolError."""
    if _FILE not in disk.names():
        return Saved()
    records = unpacked(disk.read(_FILE, 0, _LONGEST_FILE), 0)
    return decoded(records[0].payload, Saved) if records else None


class Recovery:
    """Takes the records in the order in which they were written."""

    def __init__(self, log: Segments, saved: Saved) -> None:
        self._log = log
        self._saved: Saved | None = saved
        self._entries: dict[int, Entry] = {}
        self.state = State()
        #: records that are whole, and that this version cannot make out
        self.strange = 0

    def take(self, segment: Segment, record: Stored) -> None:
        """One more record."""
        if self._saved is not None and (segment.number, record.offset) >= self._saved.end:
            self._take_saved(self._saved)
        if not self._understood(segment, record):
            self.strange += 1
            self._log.distrust(segment)

    def entries(self) -> list[Entry]:
        """The reports that wait, oldest first. Any of them may have been handed out before."""
        if self._saved is not None:
            self._take_saved(self._saved)
        newest: dict[bytes, Entry] = {}
        found = [self._entries[number] for number in sorted(self._entries)]
        for entry in found:
            entry.sealed = True
            entry.before = newest.get(entry.key)
            newest[entry.key] = entry
        if found:
            self.state.next_number = max(self.state.next_number, found[-1].number + 1)
        return found

    def _take_saved(self, saved: Saved) -> None:
        self.state.take(saved.state)
        self._saved = None

    def _understood(self, segment: Segment, record: Stored) -> bool:
        if record.kind == KEPT:
            kept = decoded(record.payload, Kept)
            if kept is not None:
                self._keep(kept, segment, record)
            return kept is not None
        if record.kind == UPDATE:
            update = decoded(record.payload, Update)
            if update is not None and update.number in self._entries:
                entry = self._entries[update.number]
                entry.count, entry.last_at = update.count, update.last_at
            return update is not None
        if record.kind == GONE:
            numbers = decoded(record.payload, list[int])
            for number in numbers or ():
                entry_gone = self._entries.pop(number, None)
                if entry_gone is not None:
                    self._log.let_go(entry_gone)
            return numbers is not None
        state = decoded(record.payload, State) if record.kind in (HEAD, STATE) else None
        if state is not None:
            self.state.take(state)
        return state is not None

    def _keep(self, kept: Kept, segment: Segment, record: Stored) -> None:
        """A report, or one that was written again at the end."""
        entry = self._entries.get(kept.number)
        if entry is None:
            entry = self._entries[kept.number] = entry_of(kept)
        entry.count, entry.last_at = kept.report.event.count, kept.report.last_at
        self._log.adopt(entry, segment, record)
        self.state.next_number = max(self.state.next_number, kept.number + 1)
