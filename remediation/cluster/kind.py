"""One kind of object, kept up to date by list and watch in a thread of its own. `view` has one of these for each kind.

A watch lives half a minute at most, so one that silently died is found as soon; every few minutes a whole list replaces
what the watches have built, so that nothing wrong stays for longer than that. A kind that a cluster may lack is asked
for no more often than that either.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Generic, TypeVar

import msgspec

from remediation.cluster.answers import ClusterError, Failure
from remediation.cluster.client import Cluster
from remediation.cluster.parse import BadObject, Shared, parse_key
from remediation.cluster.wire import Watch

T = TypeVar("T")
Key = tuple[str, str]
Parse = Callable[[msgspec.Raw, Shared], T]
#: For a moment after its start, the API server refuses (403) what it will allow: this often makes it no accident.
REFUSALS = 6
#: Nobody waits longer than this many attempts for a kind that need not be there.
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How a kind keeps up: a watch every `watch_s`, and a list every `resync_s`.

    Where nothing changes, the server may send nothing, not even bookmarks, but it ends a watch after
    `watch_s`; `silence_s` without anything means that it is not there. A Retry-After counts up to `longest_asked_s`.
    """

    watch_s: int = 30
    silence_s: float = 35.0
    resync_s: float = 300.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 15.0
    longest_asked_s: float = 60.0
    page: int = 500


RHYTHM = Rhythm()


@dataclass(frozen=True, slots=True)
class KindHealth:
    """How one kind's list and watch have gone since the start.

    `error` is the last failure, until an answer comes after it, or else the last object since the last list that could
    not be read (`unreadable` counts these). A kind that the cluster doesn't have is never stale: `is_absent`.
    """

    name: str
    objects: int
    stale_s: float
    lists: int
    failures: int
    unreadable: int
    error: str
    is_absent: bool = False


@dataclass(slots=True)
class _Counts:
    lists: int = 0
    failures: int = 0
    error: str = ""


@dataclass(slots=True)
class _State(Generic[T]):
    """What one list and the events after it have given."""

    objects: dict[Key, T] = field(default_factory=dict)
    shared: Shared = field(default_factory=dict)
    version: str = ""
    unreadable: int = 0
    last_unreadable: str = ""


class Kind(Generic[T]):
    """One kind's list and watch. Start its `thread`; it ends after `stop` is set.

    One that is `optional` may be absent from the cluster (404) or not ours to read (403). Then it is empty, and is
    looked for again every `resync_s`. `listed` is set once it was listed, or an optional one was asked for in vain.
    """

    def __init__(
        self,
        name: str,
        path: str,
        parse: Parse[T],
        cluster: Cluster,
        rhythm: Rhythm,
        monotonic: Callable[[], float],
        stop: threading.Event,
        field_selector: str = "",
        *,
        optional: bool = False,
    ) -> None:
        self.name = name
        self.listed = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"view-{name}", daemon=True)
        self._path = path
        self._parse: Parse[T] = parse
        self._cluster = cluster
        self._rhythm = rhythm
        self._monotonic = monotonic
        self._stop = stop
        self._field_selector = field_selector
        self._optional = optional
        self._lock = threading.Lock()  # held for moments, over all below
        self._state: _State[T] = _State()
        self._heard = -math.inf
        self._relist_at = -math.inf
        self._counts = _Counts()
        self._failures_in_row = 0
        self._refusals = 0  # since the last answer
        self._missing: Failure | None = None  # why it is taken for empty: NOT_FOUND or FORBIDDEN
        self._watch: Watch | None = None

    # ------------------------------------------------------------------------------------------ called by other threads

    def objects(self) -> list[T]:
        """All of them, as of now."""
        with self._lock:
            return list(self._state.objects.values())

    def health(self) -> KindHealth:
        """How it is doing."""
        with self._lock:
            counts, state, absent = self._counts, self._state, self._missing is Failure.NOT_FOUND
            stale_s = 0.0 if absent else self._monotonic() - self._heard
            return KindHealth(
                self.name, len(state.objects), stale_s, counts.lists, counts.failures, state.unreadable,
                counts.error or state.last_unreadable, absent,
            )  # fmt: skip

    @property
    def is_read(self) -> bool:
        """Whether what it holds is what the cluster holds: up to date and whole, or empty since it is absent."""
        longest_s = self._rhythm.silence_s + self._rhythm.longest_wait_s
        return self._missing is not Failure.FORBIDDEN and self.health().stale_s <= longest_s

    def interrupt(self) -> None:
        """End its watch at once."""
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    # ------------------------------------------------------------------------------------------------- called by itself

    def _run(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(self._turn())

    def _turn(self) -> float:
        """A list where one is due, and a watch; returns how long to wait before the next."""
        # After a silence a list tells at once that the server is back; a watch is only heard at its first event.
        silent = self._monotonic() - self._heard > self._rhythm.silence_s
        if not self._state.version or silent or self._monotonic() >= self._relist_at:
            try:
                self._list()
            except ClusterError as failure:
                wait_s = self._without(failure) if self._is_missing(failure) else self._failed(failure)
                if self._optional and (self._missing or self._failures_in_row >= ATTEMPTS):
                    self.listed.set()
                return wait_s
        if self._stop.is_set():
            return 0.0
        try:
            self._follow()
        except ClusterError as failure:
            if failure.kind is Failure.EXPIRED or self._is_missing(failure):
                self._state.version = ""
            return self._failed(failure)
        return 0.0

    def _is_missing(self, failure: ClusterError) -> bool:
        return self._optional and failure.kind in (Failure.NOT_FOUND, Failure.FORBIDDEN)

    def _without(self, failure: ClusterError) -> float:
        """Be empty until the next look; returns how long to wait for it."""
        if failure.kind is Failure.FORBIDDEN:
            self._refusals += 1
            wait_s = self._failed(failure)
            if self._missing is not Failure.FORBIDDEN and self._refusals < REFUSALS:
                return wait_s
        self._failures_in_row = 0
        with self._lock:
            self._state, self._missing = _State(), failure.kind
            if failure.kind is Failure.NOT_FOUND:
                self._counts.error = ""
        return self._resync_s()

    def _resync_s(self) -> float:
        return self._rhythm.resync_s * _JITTER.uniform(0.9, 1.1)

    def _list(self) -> None:
        """Build the state anew, beside the old one, which stays in use until the last page."""
        fresh: _State[T] = _State()
        pages = self._cluster.list_pages(self._path, self._rhythm.page, self._field_selector, attempts=1)
        for page in pages:
            if self._stop.is_set():
                return
            for raw in page.items:
                self._take(raw, fresh)
            fresh.version = page.version
        with self._lock:
            self._state, self._missing, self._heard = fresh, None, self._monotonic()
            self._counts.lists += 1
            self._counts.error = ""
        self._refusals = 0
        self._relist_at = self._monotonic() + self._resync_s()
        self.listed.set()

    def _follow(self) -> None:
        """One watch, from its beginning to its end."""
        began, heard = self._monotonic(), False
        rhythm = self._rhythm
        watch = self._cluster.watch(
            self._path, self._state.version, rhythm.watch_s, self._field_selector, rhythm.silence_s
        )
        with self._lock:
            self._watch = watch  # from here on, `interrupt` reaches it; before, the loop below sees `_stop`
        try:
            for event in () if self._stop.is_set() else watch:
                if self._stop.is_set():
                    return
                if event.type == "DELETED":
                    self._drop(event.object)
                elif event.type != "BOOKMARK":
                    self._take(event.object, self._state)
                self._state.version = event.version or self._state.version
                self._failures_in_row = 0
                self._hear()
                heard = True
        finally:
            with self._lock:
                self._watch = None
            watch.release()
        if heard or self._stop.is_set() or self._monotonic() - began >= rhythm.watch_s / 2:
            self._failures_in_row = 0
            self._hear()
        else:
            raise ClusterError(Failure.DISCONNECTED, f"WATCH {self._path}", "it ended as soon as it had begun")

    def _hear(self) -> None:
        with self._lock:
            self._heard = self._monotonic()
            self._counts.error = ""

    def _take(self, raw: msgspec.Raw, into: _State[T]) -> None:
        try:
            key, found = parse_key(raw), self._parse(raw, into.shared)
        except BadObject as bad:
            self._skip(bad, into)
            return
        with self._lock:
            into.objects[key] = found

    def _drop(self, raw: msgspec.Raw) -> None:
        try:
            key = parse_key(raw)
        except BadObject as bad:
            self._skip(bad, self._state)
            return
        with self._lock:
            self._state.objects.pop(key, None)

    def _skip(self, bad: BadObject, from_: _State[T]) -> None:
        with self._lock:
            from_.unreadable += 1
            from_.last_unreadable = str(bad)

    def _failed(self, failure: ClusterError) -> float:
        """Count a failure; returns how long to wait."""
        if self._stop.is_set():
            return 0.0
        rhythm = self._rhythm
        wait_s = min(rhythm.longest_wait_s, rhythm.first_wait_s * 2.0 ** min(self._failures_in_row, 16))
        self._failures_in_row += 1
        with self._lock:
            self._counts.failures += 1
            self._counts.error = str(failure)
        return max(min(failure.retry_after_s or 0.0, rhythm.longest_asked_s), wait_s * _JITTER.uniform(0.5, 1.0))


_JITTER = SystemRandom()
