"""The kernel's own ring buffer, /dev/kmsg, as a source of the agent: one record at a time, by number.

A record is `priority,sequence,microseconds,flags;text` and perhaps lines ` KEY=value` after it (the kernel's
`Documentation/ABI/testing/dev-kmsg`). Records are numbered from 0 at boot, so what was overwritten before it was read
shows as missing numbers. Facility 0 is the kernel's, and a program that writes to /dev/kmsg never gets it: such text is
not trusted (`detectors.kernel_framing`).

The buffer holds this boot only: what the kernel said between the last look and a reboot is a gap.
Stamps leave out suspended time: what was written before a suspend and is first read after it comes out as much later.
"""

import errno
import os
import re
import select
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from daemon.agent.clock import BOOT_ID, Clock, boot_id, measure
from daemon.agent.gap import gap, reboot_gap
from daemon.agent.gathering import HOLD_S, Gathering
from daemon.agent.position import Position, Reading, SourceError
from detectors.events import KernelEvent
from rules.schema import RuleBook

SOURCE = "kmsg"
PATH = Path("/dev/kmsg")
#: The kernel's longest record has 8 KiB with its escapes; a smaller buffer gets EINVAL.
_RECORD_BYTES = 16 * 1024
#: So many records in a row before anything is handed over.
_SLICE = 4096
#: How long the rest of a line that came in pieces is waited for.
_FRAGMENT_S = 0.1
_HEADER = re.compile(rb"(\d{1,10}),(\d{1,18}),(\d{1,16}),([^,;\n]{0,8})[^;\n]{0,80};([^\n]*)")
_OURS = re.compile(rb"NVRM:|nvidia-nvswitch|amdgpu|\[drm")


class Ring(Protocol):
    """An open kernel log."""

    def read(self) -> bytes | None:
        """The next record, None where there is none yet.

        Raises:
            BrokenPipeError: records were overwritten before they were read; the next call goes on after them.
            OSError: the record is too long (EINVAL), or the log is broken.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Until there is a record, or so long."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Device:
    """A file descriptor that gives one record at each read; it has to be non-blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @staticmethod
    def open(path: Path) -> "Device":
        """Raises OSError."""
        return Device(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def read(self) -> bytes | None:
        """The next record. Raises what `Ring.read` does."""
        try:
            return os.read(self._descriptor, _RECORD_BYTES) or None
        except BlockingIOError:
            return None

    def wait(self, seconds: float) -> None:
        """Until there is a record, or so long."""
        self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        """Give it back."""
        os.close(self._descriptor)


class _Mark(NamedTuple):
    """Where a record stands. It was not there yet at `not_before_s` after boot."""

    sequence: int
    stamp_s: float
    not_before_s: float


@dataclass(slots=True)
class _Fragment:
    """The begin of a line whose rest may follow in records of its own, up to the record `last`."""

    line: bytes
    mark: _Mark
    facility: int
    last: int
    since_s: float


class KmsgSource:
    """`since` is where a process before this one stopped, None on the very first start.

    Then only what is younger than `lookback_s` is taken in; on a new boot all that the buffer holds; else what follows
    `since`. `boot_id_path`, `clock` and `open_ring` are the machine's own unless a test has others.
    """

    def __init__(
        self,
        rules: RuleBook,
        node: str,
        since: Position | None,
        *,
        path: Path = PATH,
        lookback_s: float = 0.0,
        boot_id_path: Path = BOOT_ID,
        clock: Clock = measure,
        open_ring: Callable[[Path], Ring] = Device.open,
        hold_s: float = HOLD_S,
    ) -> None:
        self._path = path
        self._clock = clock
        self._open_ring = open_ring
        self._gathering: Gathering[_Mark] = Gathering(rules, node, self._settle, hold_s)
        self.counts = self._gathering.counts
        self._boot = boot_id(boot_id_path)
        self._ring: Ring | None = None
        #: the number that the next record has, None where the buffer was just opened
        self._next: int | None = None
        #: the last record that was taken in: its number, its place where this process saw it, else when it was written
        self._known = -1
        self._last: _Mark | None = None
        self._known_at: datetime | None = None
        #: the past is what was stamped until then, while the buffer is read for the first time
        self._past_until_s: float | None = None
        self._fragment: _Fragment | None = None
        #: when the buffer was last known to hold no more
        self._empty_s = 0.0
        moment = self._clock()
        if since is None:
            self._past_until_s, self._known_at = moment.since_boot_s - lookback_s, moment.now
        elif since.boot_id != self._boot:
            self._known_at = moment.booted
            if since.source == SOURCE and since.boot_id:
                self._gathering.lose(reboot_gap(since, moment.booted, SOURCE))
        elif since.source == SOURCE:
            self._known, self._known_at = since.sequence, since.at
        else:
            age_s = (moment.now - since.at).total_seconds() if since.at is not None else moment.since_boot_s
            # The clock was set back since: nobody knows what is past, so nothing of this boot is.
            self._past_until_s = moment.since_boot_s - age_s if age_s >= 0 else 0.0

    def read(self, wait_s: float) -> Reading | None:
        """What is new since the last call; None where nothing came within `wait_s`. Raises SourceError.

        The first reading on the very first start comes at once, so that the place where the log begins can be stored.
        """
        ring = self._ring if self._ring is not None else self._opened()
        end_s = self._clock().since_boot_s + wait_s
        while True:
            drained = self._drain(ring, self._clock().since_boot_s)
            now_s = self._clock().since_boot_s
            rest_s = self._gathering.rest_s(now_s)
            if rest_s == 0.0 and self._past_until_s is None:
                at = self._known_at if self._last is None else self._placed(self._last)[0]
                position = Position(SOURCE, boot_id=self._boot, sequence=self._known, at=at)
                return self._gathering.hand_over(position, now_s)
            if now_s >= end_s:
                return None
            if drained:
                pauses = (end_s - now_s, rest_s, _FRAGMENT_S if self._fragment is not None else None)
                ring.wait(min(pause for pause in pauses if pause is not None))

    def close(self) -> None:
        """Give the device back."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    # ------------------------------------------------------------------------------------------------------- reading

    def _opened(self) -> Ring:
        """The log, from its oldest record on."""
        try:
            self._ring = ring = self._open_ring(self._path)
        except OSError as error:
            raise SourceError(
                f"the kernel's log {self._path} cannot be opened: {error.strerror}; give the agent the host's /dev/kmsg"
                " and the capability SYSLOG, or set agent.source to journal"
            ) from error
        self._next = self._fragment = None
        return ring

    def _drain(self, ring: Ring, now_s: float) -> bool:
        """Take in what there is; False where a slice was not enough for it."""
        drained = False
        for _ in range(_SLICE):
            try:
                raw = ring.read()
            except BrokenPipeError:
                continue  # the next record's number tells how many are gone
            except OSError as error:
                if error.errno == errno.EINVAL:
                    self.counts["too_long"] += 1
                    continue
                self.close()
                raise SourceError(
                    f"the kernel's log {self._path} cannot be read: {error.strerror}; it is opened again"
                ) from error
            if raw is None:
                drained = True
                self._empty(now_s)
                break
            self._record(raw, now_s)
        self._gathering.pause()
        return drained

    def _empty(self, now_s: float) -> None:
        """The buffer holds no more."""
        self._empty_s = now_s
        if self._fragment is not None and now_s - self._fragment.since_s >= _FRAGMENT_S:
            self._release()
        if self._past_until_s is not None:
            self._past_until_s = None
            self._gathering.move(at_once=True)

    def _record(self, raw: bytes, now_s: float) -> None:
        self.counts["records"] += 1
        found = _HEADER.match(raw)
        if found is None:
            self.counts["malformed"] += 1
            return
        mark = _Mark(int(found[2]), int(found[3]) / 1e6, self._empty_s)
        if self._next is not None and mark.sequence < self._next:
            self.counts["out_of_order"] += 1
            return
        if self._past_until_s is not None:
            past = mark.stamp_s <= self._past_until_s
        else:
            past = mark.sequence <= self._known
            first = max(self._known + 1, self._next or 0)
            if mark.sequence > first:
                self._miss(first, mark)
        self._next = mark.sequence + 1
        self._line(found, mark, now_s, past=past)

    def _miss(self, first: int, mark: _Mark) -> None:
        """The records from `first` up to this one are not there any more."""
        self._release()
        begin = self._known_at if self._last is None else self._placed(self._last)[0]
        what = f"{mark.sequence - first} records, {first} to {mark.sequence - 1}, were overwritten unread"
        self._gathering.lose(
            gap(begin, self._placed(mark)[0], what, sequence=mark.sequence - 1, boot_id=self._boot, source=SOURCE)
        )

    def _line(self, found: re.Match[bytes], mark: _Mark, now_s: float, *, past: bool) -> None:
        """Take in a record's text.

        A line that was printed in pieces has the flag `c` at its first record and `+` at the others (kernels before
        4.10). Later kernels put the pieces together, and mark with `c` a piece that came too late for it.
        """
        facility, flags, text = int(found[1]) >> 3, found[4], found[5]
        fragment = self._fragment
        if fragment is not None and flags == b"+" and fragment.facility == facility:
            fragment.line = (fragment.line + text)[:_RECORD_BYTES]
            fragment.last = mark.sequence
            return
        self._release()
        if past:
            self._gathering.skip(found[0], mark)
        elif flags == b"c" and _OURS.match(text):
            self._fragment = _Fragment(found[0], mark, facility, mark.sequence, now_s)
            return
        else:
            self._gathering.take(found[0], mark.sequence, mark, (facility, text))
        self._last, self._known = mark, max(self._known, mark.sequence)

    def _release(self) -> None:
        """The line in pieces is as whole as it gets."""
        if self._fragment is not None:
            fragment, self._fragment = self._fragment, None
            self._gathering.take(fragment.line, fragment.mark.sequence, fragment.mark)
            self._last, self._known = fragment.mark, fragment.last

    # -------------------------------------------------------------------------------------------------------- events

    def _placed(self, mark: _Mark) -> tuple[datetime, tuple[str, ...]]:
        return self._clock().place(mark.stamp_s, mark.not_before_s)

    def _settle(self, event: KernelEvent, mark: _Mark) -> KernelEvent:
        at, notes = self._placed(mark)
        return replace(event, at=at, boot_id=self._boot, source=SOURCE, notes=notes)
