"""What the agent has heard and the controller has not confirmed yet: reports on the disk, and the place in the log.

`daemon.agent.run` adds what the log said together with the place after it, hands out what waits, and lets go of what
the controller has. A report that was handed out never changes again, since the controller knows it by its id.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from daemon.agent.disk import Disk, Files, SpoolError, SpoolFull
from daemon.agent.position import Position
from daemon.agent.segment_format import RECORD_OVERHEAD
from daemon.agent.segments import KEPT, LEAST_BYTES, Item, Record, Segments
from daemon.agent.spool_draft import Bounds, Draft, Fit, Index
from daemon.agent.spool_records import (
    GONE,
    STATE,
    UPDATE,
    Entry,
    Kept,
    Lost,
    State,
    Update,
    decoded,
    entry_of,
    gone_payloads,
    grown,
    repacked,
)
from daemon.agent.spool_recovery import Recovery, Saved, load, save
from daemon.agent.spool_relief import Relief, relief
from daemon.agent.spool_turn import in_turn
from daemon.agent.wire import Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind

__all__ = ["Counts", "Spool", "SpoolError", "SpoolFull"]

#: The source of the events that tell what the spool could not keep.
SOURCE = "spool"
#: The controller takes no longer report.
_LONGEST_REPORT = 8192
#: Beside the reports of one group stands what is known then.
_STATE_BYTES = 2048
#: A report that waits costs memory too: each of them takes so many bytes of the limit.
_BYTES_A_REPORT = 2048


@dataclass(frozen=True, slots=True)
class Counts:
    """What happened since this process opened the spool.

    Reports: `added` as their own, `merged` into an equal one, `known` from before, `acknowledged`. Events: `dropped`.
    `torn` are writes that a crash cut off (nothing is lost by them), `broken` places that could not be read back.
    """

    added: int = 0
    merged: int = 0
    known: int = 0
    acknowledged: int = 0
    dropped: int = 0
    torn: int = 0
    broken: int = 0


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _at_once(_: bytes) -> bool:
    return True


class Spool:
    """One folder, of at most `limit_bytes` on the disk. For one thread at a time.

    Raises SpoolError: the folder cannot be used, others may write to it, or another process has it.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int = 32 << 20,
        now: Callable[[], datetime] = _utc_now,
        files: Files | None = None,
    ) -> None:
        if limit_bytes < LEAST_BYTES:
            raise ValueError(f"a spool needs at least {LEAST_BYTES} bytes, got {limit_bytes}")
        self._now = now
        self._disk = Disk(files or Files(folder), folder)
        self._log = Segments(self._disk, limit_bytes, self)
        self._most_reports = limit_bytes // _BYTES_A_REPORT
        self._entries: dict[str, Entry] = {}
        self._index = Index()
        self._state = State()
        self._counts: Counter[str] = Counter()
        self._untold = Lost()
        self._saved_in = 0
        try:
            self._recover()
        except BaseException:
            self._disk.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many reports wait."""
        return len(self._entries)

    @property
    def position(self) -> Position | None:
        """Up to here the log was taken in; None before the first."""
        return self._state.position

    @property
    def counts(self) -> Counts:
        """What happened since the spool was opened."""
        return Counts(**self._counts)

    @property
    def disk_bytes(self) -> int:
        """What the spool takes of the disk."""
        return self._log.disk_bytes

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest report that waits was written; None where none waits, or nobody knows."""
        entry = next(iter(self._entries.values()), None)
        kept = self._read(entry) if entry is not None else None
        return kept.report.event.at if kept is not None else None

    def add(self, events: Sequence[Report], position: Position | None = None) -> None:
        """Keep reports, and the place in the log after them (None: it is where it was). On the disk when this returns.

        Reports of the log that the position is of come in the order of their sequences. What was in the spool before
        is known by that, or by its id. Up to some hundred different reports are stored together with the position, or
        not at all; more of them in pieces, the position with the last.

        Raises:
            SpoolFull: there is no room on the disk. The position is as it was: add the same again later.
            SpoolError: the disk does not work.
        """
        self._tell_losses()
        log = (position or self.position or Position("")).source
        draft: Draft | None = None
        for report in events:
            if report.id in self._entries or self._state.knows(report.event, log) or (draft and draft.has(report)):
                self._counts["known"] += 1
                continue
            draft = draft or self._new_draft(log)
            fit = draft.take(report)
            if fit is Fit.LATER:
                self._commit(draft, None)
                draft = self._new_draft(log)
                fit = draft.take(report)
            if fit is not Fit.YES:
                self._untold.add(report.event, report.event.count, report.last_at)
                self._counts["dropped"] += report.event.count
        self._commit(draft, position)
        self._tell_losses()

    @property
    def faults(self) -> set[bytes]:
        """Which faults wait to be told, by their rough keys."""
        return {entry.rough_key for entry in self._entries.values()}

    def pending(self, most: int, is_due: Callable[[bytes], bool] = _at_once) -> list[Report]:
        """Reports that go out now, at most so many: those of faults that are due, in their turn.

        They never change again. A repeat waits until its equal is acknowledged.
        """
        found: list[Report] = []
        unreadable: list[Entry] = []
        for entry in in_turn(self._entries.values(), is_due):
            if len(found) >= most:
                break
            kept = self._read(entry)
            if kept is None:
                unreadable.append(entry)
                continue
            entry.sealed = True
            entry.handed += 1
            found.append(kept.report)
        for entry in unreadable:
            self._vanish(entry)
        return found

    def acknowledge(self, ids: Collection[str]) -> None:
        """The controller has these: let them go. Durable when this returns; ids that are not here are passed over.

        Raises:
            SpoolFull: there is no room on the disk to say so. They still wait.
            SpoolError: the disk does not work.
        """
        found = [self._entries[one] for one in dict.fromkeys(ids) if one in self._entries]
        if not found:
            return
        self._log.append([Record(GONE, payload) for payload in gone_payloads(found)])
        for entry in found:
            self._remove(entry)
        self._counts["acknowledged"] += len(found)
        with suppress(SpoolFull):
            self._log.compact()
        self._save_seldom()

    def close(self) -> None:
        """Give the folder back."""
        self._save()
        self._disk.close()

    # -------------------------------------------------------------------------------------- what the segments ask for

    def head(self) -> bytes:
        """All that is known beside the reports."""
        return msgspec.json.encode(self._state)

    def payload(self, item: Item) -> bytes | None:
        """A report's record as it stands now."""
        if not isinstance(item, Entry):
            return None
        kept = self._read(item)
        if kept is None:
            self._vanish(item)
            return None
        return repacked(kept, item.length)

    # --------------------------------------------------------------------------------------------------------- adding

    def _new_draft(self, source: str) -> Draft:
        """Raises what `add` raises, where room has to be made first."""
        self._make_room()
        log = self._log
        size = min(log.longest_group - _STATE_BYTES, max(_LONGEST_REPORT, log.capacity - log.live_bytes))
        bounds = Bounds(size, _LONGEST_REPORT - RECORD_OVERHEAD, max(1, self._most_reports // 4))
        return Draft(self._index, self._state.next_number, source, bounds)

    def _commit(self, draft: Draft | None, position: Position | None) -> None:
        news = draft.state if draft is not None else State()
        news.position = position if position != self._state.position else None
        records = draft.records() if draft is not None else []
        if not records and news.position is None:
            return
        self._log.append([*records, Record(STATE, msgspec.json.encode(news))])
        self._state.take(news)
        if draft is not None:
            draft.commit()
            self._entries.update((entry.id, entry) for entry in draft.entries)
            self._counts["added"] += len(draft.entries)
            self._counts["merged"] += draft.merged
        self._save_seldom()

    def _save_seldom(self) -> None:
        """The second copy of what is known, once a segment."""
        if self._saved_in != self._log.end[0]:
            self._saved_in = self._log.end[0]
            self._save()

    def _save(self) -> None:
        """Where there is no room for a second copy, the first one does."""
        with suppress(SpoolError):
            save(self._disk, Saved(self._log.end, self._state))

    # ------------------------------------------------------------------------------------------------ reading, removing

    def _read(self, entry: Entry) -> Kept | None:
        """A report as it stands now; None where the disk has it no more."""
        payload = self._log.read(entry)
        kept = decoded(payload, Kept) if payload is not None else None
        return grown(kept, entry) if kept is not None and kept.number == entry.number else None

    def _remove(self, entry: Entry, into: Entry | None = None) -> None:
        if self._entries.get(entry.id) is not entry:
            return
        self._log.let_go(entry)
        del self._entries[entry.id]
        entry.is_here, entry.before = False, None
        self._index.forget(entry, into)

    def _vanish(self, entry: Entry) -> None:
        """A report that the disk has no more."""
        self._remove(entry)
        self._untold.broken += 1
        self._counts["broken"] += 1

    # ---------------------------------------------------------------------------------------------------- no more room

    def _make_room(self) -> None:
        """So that more reports fit: by another slot, or else by letting go of what is needed least."""
        log = self._log
        while self._entries and log.live_bytes + log.longest_group > log.capacity and log.grow():
            pass
        most_bytes, most_reports = log.capacity - _LONGEST_REPORT, self._most_reports * 3 // 4
        if most_bytes > 0 and (log.live_bytes > most_bytes or len(self._entries) > most_reports):
            self._relieve(most_bytes - log.capacity // 8, most_reports - self._most_reports // 8)

    def _relieve(self, most_bytes: int, most_reports: int) -> None:
        """Down to so many. What is dropped is told in an event."""
        found = relief(list(self._entries.values()), most_bytes, most_reports, self._read)
        self._let_go(found)
        self._log.compact()
        self._counts["merged"] += sum(into is not None for into in found.gone.values())
        self._counts["dropped"] += found.lost.events

    def _tell_losses(self) -> None:
        """Where that has no room it is told by the next call."""
        if self._untold:
            told, self._untold = self._untold, Lost()
            try:
                self._let_go(Relief(lost=told))
            except SpoolError:
                self._untold.take(told)

    def _let_go(self, found: Relief) -> None:
        """Let reports go, others stand for more, and an event tell what is lost. Raises SpoolFull and SpoolError.

        An earlier such event that was not handed out yet goes too, and the new one tells of both.
        """
        gaps = [one for one in self._entries.values() if one.lost is not None] if found.lost else []
        untold = [one for one in gaps if not one.handed]
        records = []
        gap: Entry | None = None
        if found.lost:
            kept = self._gap(found.lost, untold)
            gap = entry_of(kept)
            gap.before = next((one for one in reversed(gaps) if one.handed), None)
            records.append(Record(KEPT, msgspec.json.encode(kept), gap))
        larger = [Update(one.number, count, at) for one, (count, at) in found.larger.items()]
        records += [Record(UPDATE, msgspec.json.encode(one)) for one in larger]
        records += [Record(GONE, payload) for payload in gone_payloads([*found.gone, *untold])]
        self._log.append(records)
        for entry, (count, last_at) in found.larger.items():
            entry.count, entry.last_at = count, last_at
        for entry in (*found.gone, *untold):
            self._remove(entry, found.gone.get(entry))
        if gap is not None:
            self._entries[gap.id] = gap
            self._state.next_number = gap.number + 1

    def _gap(self, lost: Lost, earlier: Sequence[Entry]) -> Kept:
        """The event that tells of a loss, and of those that were told to nobody yet."""
        total = Lost()
        for one in (lost, *(entry.lost for entry in earlier if entry.lost is not None)):
            total.take(one)
        now, position = self._now(), self._state.position
        event = KernelEvent(
            EventKind.COVERAGE_LOST, None, total.text(), at=min(total.until or now, now),
            sequence=self._state.next_number, boot_id=position.boot_id if position is not None else "", source=SOURCE,
        )  # fmt: skip
        return Kept(self._state.next_number, Report(report_id(event), event), total)

    # ------------------------------------------------------------------------------------------------------- recovery

    def _recover(self) -> None:
        saved = load(self._disk)
        recovery = Recovery(self._log, saved or Saved())
        damage = self._log.recover(recovery.take, saved.end if saved is not None else (0, 0))
        for entry in recovery.entries():
            if entry.id in self._entries:
                self._log.let_go(entry)
                continue
            self._entries[entry.id] = self._index.newest[entry.key] = entry
        self._state = recovery.state
        self._state.next_number = self._state.next_number or int(self._now().timestamp() * 1e6)
        self._untold.broken = damage.broken + recovery.strange
        self._counts.update(torn=damage.torn, broken=self._untold.broken + (saved is None))
        self._tell_losses()
        with suppress(SpoolFull):
            self._log.renew()
            self._log.compact()

    # ------------------------------------------------------------------- last, since it hides the type of the same name

    @property
    def bytes(self) -> int:
        """Bytes of the reports that wait."""
        return self._log.live_bytes
