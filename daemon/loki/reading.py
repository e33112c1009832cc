"""One reading of Loki: what is asked for next, what of the answers is new, and what was lost.

Every round asks for what came since the last one, with some seconds of overlap. From time to time a round is a sweep:
it asks for all that the cursor remembers, and so finds lines that came late. A page that is full is followed by the
next one, from the time of its last line on. What cannot be had is a `Gap`, never silence.

`daemon.loki.inlet` calls `Reader.round` again and again. It has no thread and no clock of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from daemon.logs import Folded, fold
from daemon.loki.client import Line, LokiError, Page, Trouble
from daemon.loki.config import LokiConfig
from daemon.loki.cursor import MOST_SEEN, Cursor, Step
from daemon.loki.lines import LineReader, unix_ns
from detectors.events import KernelEvent
from rules.schema import RuleBook

_S = 1_000_000_000
#: What is asked for once more by the next round.
_OVERLAP_NS = 10 * _S
#: A node's clock may be ahead by this; what is further ahead is taken when its time has come.
_AHEAD_NS = 60 * _S
#: The longest and the shortest span of one request.
_LONGEST_NS, _SHORTEST_NS = 6 * 3600 * _S, _S
#: So often the shortest span may fail before it is passed over.
_TRIES = 3
#: Nodes that are asked for one by one where they crowd one timestamp.
_MOST_CROWDING = 50
#: Only lines with one of these words can say anything (`detectors.kernel_log`).
FILTER = ' |~ "NVRM|SXid|amdgpu"'

#: Troubles that a smaller request may not meet.
_SHRINKS = frozenset({Trouble.TIMEOUT, Trouble.TOO_LARGE, Trouble.GARBAGE, Trouble.SPAN})
#: Of these, those that it is worth to try at once.
_AT_ONCE = frozenset({Trouble.TOO_LARGE, Trouble.SPAN})
#: Troubles of an answer that will come again for the same lines.
_STAYS = frozenset({Trouble.TOO_LARGE, Trouble.GARBAGE})


class Asks(Protocol):
    """Gives pages (`daemon.loki.client.Client`)."""

    def page(self, query: str, start_ns: int, end_ns: int, limit: int) -> Page:
        """The oldest `limit` lines of [start, end). Raises LokiError."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What was not had: lines of [from_ns, to_ns] of a node ("": of any node); how many, where that is known.

    `is_mild` where only lines that come late will not be had.
    """

    from_ns: int
    to_ns: int
    why: str
    node: str = ""
    lines: int = 0
    is_mild: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """What one page came to, and how far the cursor moves with it."""

    step: Step
    events: tuple[KernelEvent, ...] = ()
    gaps: tuple[Gap, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)


class Reader:
    """Reads on behind a cursor, which it moves with each batch that it gives. Only one thread calls it."""

    def __init__(
        self,
        config: LokiConfig,
        client: Asks,
        rules: RuleBook,
        cursor: Cursor,
        now_ns: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.cursor = cursor
        self._config = config
        self._client = client
        self._now_ns = now_ns
        self._monotonic = monotonic
        self._lines = LineReader(rules)
        self._query = config.query + FILTER
        self._round_ns = now_ns()
        self._most = self._limit = config.limit
        self._span_ns = _LONGEST_NS
        self._sweep_at_s = -float("inf")
        self._is_primed = False
        #: a span in which something fails
        self._bad = (0, 0)
        self._failed_at_ns, self._failures = -1, 0
        self._doubts = 0
        #: timestamps of which it was told that not all of their lines can be had
        self._crowds: set[tuple[int, str]] = set()

    def round(self) -> Iterator[Batch]:
        """Ask for everything that is due. Raises LokiError, before which batches may have come."""
        now_ns = self._round_ns = self._now_ns()
        if self.cursor.edge_ns > now_ns:
            unread = Gap(now_ns - _ns(self._config.settle), now_ns, "the clock was set back")
            yield self._moved(now_ns, now_ns, now_ns, gaps=[unread])
        oldest_ns = now_ns - _ns(self._config.retention)
        if self.cursor.covered_ns < oldest_ns:
            yield self._skipped(self.cursor.covered_ns, oldest_ns, "longer ago than loki.retention")
        sweeps = self._monotonic() >= self._sweep_at_s
        cursor = self.cursor
        start_ns = max(cursor.edge_ns, min(cursor.covered_ns, now_ns) - _OVERLAP_NS)
        yield from self._pass(cursor.edge_ns if sweeps else start_ns, now_ns, primes=sweeps and not self._is_primed)
        if sweeps:
            self._is_primed = True
            self._sweep_at_s = self._monotonic() + self._config.sweep
            keep_ns = _ns(min(self._config.settle + self._config.watch, self._config.retention))
            edge_ns = max(cursor.edge_ns, min(now_ns, cursor.covered_ns) - keep_ns)
            yield self._moved(swept_ns=max(now_ns, edge_ns), edge_ns=edge_ns)

    # -------------------------------------------------------------------------- passes

    def _pass(self, start_ns: int, now_ns: int, *, primes: bool) -> Iterator[Batch]:
        """Page by page from `start_ns` on to what stands there now."""
        end_ns = now_ns + _AHEAD_NS
        until_s = self._monotonic() + self._config.catch_up
        while start_ns < (end_ns if len(self.cursor) < 2 * MOST_SEEN else now_ns):
            to_ns = min(self._end_of(start_ns), end_ns)
            limit = self._limit
            try:
                page = self._ask(self._query, start_ns, to_ns, limit)
            except LokiError as error:
                yield from self._adapted(error, start_ns, to_ns)
                start_ns = max(start_ns, self.cursor.edge_ns)
                continue
            is_full = page.count >= min(limit, self._most)
            if is_full and page.last_ns < 0:
                wrong = LokiError(Trouble.GARBAGE, "a page of lines none of which lies in the span that was asked for")
                yield from self._adapted(wrong, start_ns, to_ns)
                start_ns = max(start_ns, self.cursor.edge_ns)
                continue
            reached_ns = page.last_ns if is_full else to_ns
            yield from self._doubted(page, min(reached_ns, now_ns), primes=primes)
            yield self._taken(page, min(reached_ns, now_ns), primes=primes)
            self._well(start_ns, reached_ns)
            if is_full and reached_ns <= start_ns:
                yield from self._beyond_a_page(start_ns, primes=primes)
                reached_ns = start_ns + 1
            start_ns = reached_ns
            if not is_full:
                until_s = self._monotonic() + self._config.catch_up
            elif start_ns < now_ns and self._monotonic() > until_s:
                to_ns = max(start_ns, self._now_ns() - _OVERLAP_NS)
                yield self._skipped(start_ns, to_ns, "more lines than could be read in time")
                return

    def _end_of(self, start_ns: int) -> int:
        """Up to where a request from there on goes: a span that failed is halved until what is wrong stands alone."""
        begin_ns, end_ns = self._bad
        if start_ns < begin_ns:
            return min(start_ns + self._span_ns, begin_ns)
        if start_ns < end_ns - _SHORTEST_NS:
            return start_ns + min(self._span_ns, max(_SHORTEST_NS, (end_ns - start_ns) // 2))
        return start_ns + self._span_ns if start_ns >= end_ns else end_ns

    def _doubted(self, page: Page, reached_ns: int, *, primes: bool) -> Iterator[Batch]:
        """A page about which Loki warns is taken and asked for again; after a few times it stands, with a gap.

        Raises LokiError to ask again.
        """
        if not page.warnings:
            self._doubts = 0
            return
        self._doubts += 1
        if self._doubts < _TRIES:
            yield self._taken(page, primes=primes)
            raise LokiError(Trouble.PARTIAL, f"Loki warns: {page.warnings[0]}")
        if self.cursor.covered_ns < reached_ns:
            yield self._moved(gaps=[Gap(self.cursor.covered_ns, reached_ns, "Loki warns that its answer is not whole")])

    def _ask(self, query: str, start_ns: int, end_ns: int, limit: int) -> Page:
        """A page of at most `limit` lines, or of as many as Loki gives at once. Raises LokiError."""
        try:
            return self._client.page(query, start_ns, end_ns, limit)
        except LokiError as error:
            if error.trouble is not Trouble.LIMIT or error.allowed is None or not 1 <= error.allowed < limit:
                raise
            self._most = int(error.allowed)
            self._limit = min(self._limit, self._most)
            return self._client.page(query, start_ns, end_ns, self._most)

    def _beyond_a_page(self, at_ns: int, *, primes: bool) -> Iterator[Batch]:
        try:
            yield from self._crowded(at_ns, primes=primes)
        except LokiError as error:
            if error.trouble is not Trouble.TOO_LARGE:
                raise
            yield from self._lost(at_ns)

    def _crowded(self, at_ns: int, *, primes: bool) -> Iterator[Batch]:
        """More lines at one timestamp than a page holds: node by node, so that one that floods hides no other."""
        query, known = self._query, set[str]()
        for _ in range(_MOST_CROWDING):
            page = self._ask(query, at_ns, at_ns + 1, self._most)
            yield self._taken(page, primes=primes)
            if page.count < self._most:
                return
            crowding = sorted({line.node for line in page.lines} - known)
            if not crowding or len(known) + len(crowding) > _MOST_CROWDING:
                break
            for node in crowding:
                one = self._ask(self._query + self._of("=", node), at_ns, at_ns + 1, self._most)
                yield self._taken(one, primes=primes)
                if one.count >= self._most:
                    yield from self._lost(at_ns, node)
                query += self._of("!=", node)
            known.update(crowding)
        yield from self._lost(at_ns)

    def _of(self, sign: str, node: str) -> str:
        quoted = node.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f' | {self._config.node_label}{sign}"{quoted}"'

    # ------------------------------------------------------------------------- answers

    def _taken(self, page: Page, covered_ns: int = -1, *, primes: bool) -> Batch:
        """What is new in a page. What came later than lines may is a gap, and is not told."""
        counts: Counter[str] = Counter(loki_malformed=page.malformed)
        cursor, settle_ns = self.cursor, _ns(self._config.settle)
        oldest_ns = min(cursor.swept_ns, self._round_ns) - settle_ns
        had: dict[int, int] = {}
        late: list[tuple[str, int]] = []
        fed: list[tuple[Line, bool]] = []
        for line in page.lines:
            is_new = not cursor.knows(line.key) and line.key not in had
            if is_new:
                had[line.key] = line.at_ns
            if is_new and line.at_ns < oldest_ns:
                late.append((line.node, line.at_ns))
            elif is_new or primes:
                fed.append((line, is_new))
        folded: Folded = {}
        for event, line in self._lines.events(fed, cursor.began_ns, counts):
            happened_ns = line.at_ns if event.at is None else unix_ns(event.at)
            if happened_ns < line.at_ns - settle_ns:
                late.append((line.node, happened_ns))
            else:
                fold(folded, event)
        gaps = _late(late)
        counts["loki_late"] += len(late)
        crowded_ns = min(cursor.crowded_edge(had.values()), page.last_ns, self._round_ns - _OVERLAP_NS)
        edge_ns = max(cursor.edge_ns, crowded_ns)
        if edge_ns > cursor.edge_ns:
            is_mild = edge_ns <= self._round_ns - settle_ns
            gaps.append(replace(_forgotten(cursor.edge_ns, edge_ns), is_mild=is_mild))
        return self._moved(
            max(cursor.covered_ns, covered_ns), edge_ns=edge_ns, had=tuple(had.items()), events=tuple(folded.values()),
            gaps=gaps, counts=counts,
        )  # fmt: skip

    def _moved(
        self,
        covered_ns: int | None = None,
        swept_ns: int | None = None,
        edge_ns: int | None = None,
        had: tuple[tuple[int, int], ...] = (),
        events: tuple[KernelEvent, ...] = (),
        gaps: list[Gap] | None = None,
        counts: Counter[str] | None = None,
    ) -> Batch:
        cursor = self.cursor
        edge_ns = cursor.edge_ns if edge_ns is None else edge_ns
        step = Step(
            max(edge_ns, cursor.covered_ns if covered_ns is None else covered_ns),
            max(edge_ns, cursor.swept_ns if swept_ns is None else swept_ns),
            edge_ns,
            had,
        )
        cursor.move(step)
        return Batch(step, events, tuple(gaps or ()), Counter() if counts is None else +counts)

    # -------------------------------------------------------------------------- losses

    def _adapted(self, error: LokiError, start_ns: int, to_ns: int) -> Iterator[Batch]:
        """Ask for less the next time. Raises `error` where it is better to wait before that."""
        trouble = error.trouble
        if trouble is Trouble.TOO_OLD:
            yield from self._too_old(error, to_ns)
            return
        if trouble not in _SHRINKS:
            raise error
        is_smallest = to_ns - start_ns <= _SHORTEST_NS and (self._limit == 1 or trouble is not Trouble.TOO_LARGE)
        self._bad = (start_ns, to_ns)
        if trouble is Trouble.SPAN:
            self._span_ns = max(_SHORTEST_NS, (to_ns - start_ns) // 2)
        elif trouble is Trouble.TOO_LARGE:
            self._limit = max(1, self._limit // 2)
        if not is_smallest and trouble in _AT_ONCE:
            return
        self._failures = self._failures + 1 if is_smallest and self._failed_at_ns == start_ns else 1
        self._failed_at_ns = start_ns
        to_ns = min(to_ns, self._round_ns)
        if not is_smallest or trouble not in _STAYS or self._failures < _TRIES or to_ns <= start_ns:
            raise error
        self._failures = 0
        yield self._skipped(start_ns, to_ns, f"an answer that cannot be used ({trouble})")

    def _too_old(self, error: LokiError, to_ns: int) -> Iterator[Batch]:
        """Loki gives nothing of what is older than it says. Raises `error` where it gives nothing at all."""
        reached_ns = to_ns if error.allowed is None else self._round_ns - _ns(error.allowed)
        oldest_ns = min(reached_ns, self._round_ns)
        if self.cursor.edge_ns >= oldest_ns:
            raise error
        if self.cursor.covered_ns < oldest_ns:
            yield self._skipped(self.cursor.covered_ns, oldest_ns, "so long ago that Loki does not tell it")
        else:
            yield self._moved(edge_ns=oldest_ns, gaps=[_forgotten(self.cursor.edge_ns, oldest_ns)])

    def _well(self, start_ns: int, reached_ns: int) -> None:
        """A request went well: what is wrong stands behind it, and it may be larger again."""
        begin_ns, end_ns = self._bad
        if begin_ns <= start_ns < end_ns:
            self._bad = (min(reached_ns, end_ns), end_ns)
        self._limit = min(self._most, self._limit * 2)

    def _skipped(self, from_ns: int, to_ns: int, why: str) -> Batch:
        """Go on at `to_ns`, and look for nothing before it any more."""
        gaps = [Gap(from_ns, to_ns, why)]
        if self.cursor.edge_ns < from_ns:
            gaps.append(_forgotten(self.cursor.edge_ns, from_ns))
        return self._moved(edge_ns=to_ns, gaps=gaps)

    def _lost(self, at_ns: int, node: str = "") -> Iterator[Batch]:
        """Told once for each timestamp, which sweeps come back to."""
        if (at_ns, node) not in self._crowds:
            self._crowds = {one for one in self._crowds if one[0] >= self.cursor.edge_ns} | {(at_ns, node)}
            yield self._moved(gaps=[Gap(at_ns, at_ns, "more lines at one timestamp than Loki gives at once", node)])


def _late(lines: Iterable[tuple[str, int]]) -> list[Gap]:
    """Lines that came too late (node and time), as one gap a node."""
    times: dict[str, list[int]] = {}
    for node, at_ns in lines:
        times.setdefault(node, []).append(at_ns)
    return [
        Gap(min(found), max(found), "lines that came later than loki.settle", node, len(found))
        for node, found in times.items()
    ]


def _forgotten(from_ns: int, to_ns: int) -> Gap:
    return Gap(from_ns, to_ns, "what comes late from there is not looked for any more", is_mild=True)


def _ns(seconds: float) -> int:
    return round(seconds * _S)
