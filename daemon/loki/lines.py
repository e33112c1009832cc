"""Lines of Loki as kernel events: the framing of every other log, with what Loki knows where the line does not say it.

One parser a node and trust, since one statement of the driver may take several lines. A line that was had before is
read again after a restart for what it is the beginning of; what it completes itself is not told again.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from daemon.loki.client import Line
from detectors.events import KernelEvent
from detectors.kernel_log import KernelLogParser
from rules.schema import RuleBook

#: By this an event's road is known.
SOURCE = "loki"
#: Nodes whose unfinished statements are remembered, each trusted or not.
_MOST_PARSERS = 8192
_EPOCH = datetime.fromtimestamp(0, UTC)
#: A clock that was never set says 1970.
_FIRST_YEAR = 2000


class LineReader:
    """Remembers what is unfinished. Only one thread calls it."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._parsers: OrderedDict[tuple[str, bool], KernelLogParser] = OrderedDict()

    def events(
        self, lines: Iterable[tuple[Line, bool]], began_ns: int, counts: Counter[str]
    ) -> list[tuple[KernelEvent, Line]]:
        """The events of lines in their order, each with its line. With each line comes whether it is new.

        `counts` gets what was not used. An event's time is that of its record, else Loki's. None that happened before
        `began_ns` is told.
        """
        told: list[KernelEvent] = []
        fed = list(lines)
        speakers = set()
        for number, (line, is_new) in enumerate(fed):
            if not line.node:
                counts["loki_no_node"] += is_new
                continue
            speakers.add((line.node, line.trusted))
            parser = self._parser(line.node, line.trusted)
            malformed, truncated = parser.stats.malformed, parser.stats.truncated
            told += parser.feed(line.text.encode("utf-8", "replace"), number)
            if is_new:
                counts["log_lines"] += 1
                counts["log_malformed"] += parser.stats.malformed - malformed
                counts["log_truncated"] += parser.stats.truncated - truncated
        for speaker in speakers:
            told += self._parser(*speaker).flush()
        told.sort(key=lambda event: event.sequence or 0)
        found = []
        for one in told:
            line, is_new = fed[one.sequence or 0]
            event = _placed(one, line, began_ns, counts) if is_new else None
            if event is not None:
                found.append((event, line))
        return found

    def _parser(self, node: str, trusted: bool) -> KernelLogParser:  # noqa: FBT001 - half of a key
        key = (node, trusted)
        parser = self._parsers.get(key)
        if parser is None:
            parser = self._parsers[key] = KernelLogParser(self._rules, node=node)
            if len(self._parsers) > _MOST_PARSERS:
                self._parsers.popitem(last=False)
        self._parsers.move_to_end(key)
        return parser


def _placed(event: KernelEvent, line: Line, began_ns: int, counts: Counter[str]) -> KernelEvent | None:
    """The event with its time and road; None where it is older than all that is wanted."""
    at = event.at if event.at is not None and event.at.year >= _FIRST_YEAR else when(line.at_ns)
    if at < when(began_ns):
        counts["log_too_old"] += event.count
        return None
    trusted = event.trusted and line.trusted
    counts["log_untrusted"] += not trusted
    return replace(event, at=at, trusted=trusted, source=SOURCE, sequence=None)


def when(at_ns: int) -> datetime:
    """An aware time from unix nanoseconds."""
    return _EPOCH + timedelta(microseconds=at_ns // 1000)


def unix_ns(at: datetime) -> int:
    """Unix nanoseconds of an aware time."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
