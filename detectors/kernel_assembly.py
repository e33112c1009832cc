"""Puts together what the drivers spread over several records, and keeps the order of the log.

Two statements take more than one record: a GPU that is off the bus at boot (three records, the fault is only known at
the last one), and an NVSwitch error (text, severity, data). Other records may lie in between, of another switch or of
another GPU. `detectors.kernel_log` pushes every event here and yields what comes out.
"""

from collections import deque
from dataclasses import dataclass, replace

from detectors.events import KernelEvent
from detectors.kernel_text import Part
from rules.vocabulary import Severity

#: How far apart the records of one statement may lie: seconds where both say when, else lines.
REACH_S = 1.0
REACH_LINES = 32
#: Even with equal time stamps nothing waits longer than this many lines, so memory stays bounded.
MAX_LINES = 256
#: An NVSwitch error has one data record, or two where it has more than eight words of data.
MAX_DATA_RECORDS = 2

_Switch = tuple[str, str | None, int | None, bool]


def near(first: KernelEvent, line: int, later: KernelEvent | None) -> bool:
    """Whether the statement of `first` can go on at `line`: with the record `later`, or (None) with one yet to come."""
    gap = line - first.line
    if gap > MAX_LINES:
        return False
    if later is None:
        return gap <= REACH_LINES or first.monotonic_s is not None or first.at is not None
    if _same_speaker(first, later):
        if first.monotonic_s is not None and later.monotonic_s is not None:
            return abs(later.monotonic_s - first.monotonic_s) <= REACH_S
        if first.at is not None and later.at is not None:
            return abs((later.at - first.at).total_seconds()) <= REACH_S
    return gap <= REACH_LINES


def _same_speaker(one: KernelEvent, other: KernelEvent) -> bool:
    """Whether two records' times compare, and whether one may complete the other: same machine, same trust."""
    return one.node == other.node and one.trusted == other.trusted


@dataclass(slots=True)
class _Slot:
    """A place in the order of the log. It is `open` while it waits for the last record of a statement."""

    event: KernelEvent
    open: bool


@dataclass(slots=True)
class _SwitchError:
    """An NVSwitch error that was counted, and the further records of it that may still come."""

    event: KernelEvent
    has_severity: bool
    data_records: int = 0


class Assembler:
    """Events in, whole events out, in the order of their first lines. Holds no more than MAX_LINES lines' events."""

    def __init__(self) -> None:
        self.folded = 0
        self._slots: deque[_Slot] = deque()
        self._switch_errors: dict[_Switch, deque[_SwitchError]] = {}

    @property
    def waiting(self) -> bool:
        """Whether some event is held back."""
        return bool(self._slots)

    def push(self, event: KernelEvent, part: Part) -> list[KernelEvent]:
        """Takes one event, which has its line and its time, and returns the events that are complete now."""
        self._expire(event.line, event)
        match part:
            case Part.OFF_BUS_HEAD:
                self._slots.append(_Slot(event, open=True))
            case Part.OFF_BUS_BODY:
                self._off_bus_body(event)
            case Part.OFF_BUS_TAIL:
                self._off_bus_tail(event)
            case Part.SXID_TEXT | Part.SXID_SEVERITY | Part.SXID_DATA if self._belongs_to_known(event, part):
                self.folded += 1
            case _:
                if part in (Part.SXID_TEXT, Part.SXID_SEVERITY):
                    self._remember(_SwitchError(event, has_severity=part is Part.SXID_SEVERITY))
                self._slots.append(_Slot(event, open=False))
        return self._release()

    def tick(self, line: int) -> list[KernelEvent]:
        """Returns the events that no longer wait for anything, now that the log has come to `line`."""
        self._expire(line, None)
        return self._release()

    def flush(self) -> list[KernelEvent]:
        """The events that only wait for their turn. An incomplete statement stays, and may still be completed."""
        done = [slot.event for slot in self._slots if not slot.open]
        self._slots = deque(slot for slot in self._slots if slot.open)
        return done

    def _release(self) -> list[KernelEvent]:
        done = []
        while self._slots and not self._slots[0].open:
            done.append(self._slots.popleft().event)
        return done

    def _expire(self, line: int, later: KernelEvent | None) -> None:
        if self._slots and not all(near(slot.event, line, later) for slot in self._slots if slot.open):
            self._slots = deque(slot for slot in self._slots if not slot.open or near(slot.event, line, later))

    def _open_head(self, event: KernelEvent) -> _Slot | None:
        """The oldest off-bus statement that this record, from the same machine and as trustworthy, can go on."""
        for slot in self._slots:
            if slot.open and _same_speaker(slot.event, event):
                return slot
        return None

    def _off_bus_body(self, event: KernelEvent) -> None:
        slot = self._open_head(event)
        if slot is None:
            return
        if "installed in this" in event.text and not event.text.endswith(" has"):
            self._slots.remove(slot)  # the same first record also begins "installed in this system is not supported by"
        else:
            slot.event = replace(slot.event, text=_joined(slot.event.text, event.text))

    def _off_bus_tail(self, event: KernelEvent) -> None:
        slot = self._open_head(event)
        if slot is None:
            self._slots.append(_Slot(event, open=False))  # its first record was lost: a fault of an unknown GPU
        else:
            slot.event = replace(slot.event, text=_joined(slot.event.text, event.text), sequence=event.sequence)
            slot.open = False

    def _remember(self, error: _SwitchError) -> None:
        """Keeps an error for the records that may follow it, and drops those that nothing can follow any more."""
        known = self._switch_errors.setdefault(_switch(error.event), deque())
        known.append(error)
        while not near(known[0].event, error.event.line, error.event):
            known.popleft()
        if len(self._switch_errors) > MAX_LINES:
            oldest = error.event.line - MAX_LINES
            recent = [(key, errors) for key, errors in self._switch_errors.items() if errors]
            self._switch_errors = {key: errors for key, errors in recent if errors[-1].event.line >= oldest}

    def _belongs_to_known(self, event: KernelEvent, part: Part) -> bool:
        """Whether a severity or data record goes on an NVSwitch error that was already counted, and notes that it came.

        The driver prints text, severity, data and, for some errors, a second data record (nvswitch
        error_nvswitch.c). Severity repeats the link and the gravity of its text; another link is another error.
        """
        if part is Part.SXID_TEXT:
            return False
        same = self._switch_errors.get(_switch(event), deque())
        while same and not near(same[0].event, event.line, event):
            same.popleft()
        if part is Part.SXID_SEVERITY:
            for known in same:
                if not known.has_severity and _may_be_same_error(known.event, event):
                    known.has_severity = True
                    return True
            return False
        emptiest = min(same, key=lambda known: known.data_records, default=None)
        if emptiest is None or emptiest.data_records >= MAX_DATA_RECORDS:
            return False
        emptiest.data_records += 1
        return True


def _switch(event: KernelEvent) -> _Switch:
    return event.node, event.pci, event.code, event.trusted


def _may_be_same_error(text: KernelEvent, severity: KernelEvent) -> bool:
    same_link = text.place is None or text.place == severity.place
    return same_link and text.severity in (Severity.UNKNOWN, severity.severity)


def _joined(first: str, more: str) -> str:
    return f"{first} {more.removeprefix('NVRM:').strip()}"
