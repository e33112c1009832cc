"""The spool under crashes at every boundary: whatever stops when, each event reaches the controller exactly once.

A node in small: a log, an agent that reads it from the spool's position on, and a controller that remembers ids. The
process is killed and the power is cut before, in and after each call that changes something on the disk.
"""

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.agent.position import Position
from daemon.agent.spool import Spool
from daemon.agent.wire import Report, report_id
from detectors.events import KernelEvent
from rules.vocabulary import EventKind
from tests.agent.brittle import Brittle, PowerCut

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
RESET = "reset"
SMALL = 128 << 10


def report(sequence: int, what: str) -> Report:
    """What was said: `WORDS`, or `CODE WORDS` for another code than 79, whose words are details."""
    kind = EventKind.GPU_RESET if what == RESET else EventKind.XID
    event = KernelEvent(
        kind, code_of(what), what, at=AT + timedelta(seconds=sequence), pci="0000:5c:00",
        sequence=sequence, boot_id="boot", source="kmsg",
    )  # fmt: skip
    return Report(report_id(event), event)


def code_of(what: str) -> int | None:
    first = what.partition(" ")[0]
    return None if what == RESET else int(first) if first.isdecimal() else 79


def second(at: datetime) -> int:
    return int((at - AT).total_seconds())


class Node(RuleBasedStateMachine):
    """`limit` is the spool's."""

    limit = 1 << 20

    @initialize(rng=st.randoms(use_true_random=False))
    def start(self, rng) -> None:
        self.log: list[str] = []
        self.files = Brittle(rng=rng)
        self.taken: dict[str, Report] = {}
        self.arrivals: list[int] = []
        self.acknowledged: set[str] = set()
        self.spool = self.opened()

    def opened(self) -> Spool:
        return Spool(Path("spool"), self.limit, lambda: AT, self.files)

    def survives(self, what, cut_after: int | None, power: bool) -> bool:
        """Do it; whether it came to its end. Otherwise the next process finds what is left, once it gets going."""
        self.files.cut_after = cut_after
        try:
            what()
        except PowerCut:
            self.files = self.files.after_power_cut() if power else self.files.after_kill()
            self.spool = self.opened()
            return False
        self.files.cut_after = None
        return True

    @property
    def read_up_to(self) -> int:
        position = self.spool.position
        return position.sequence if position is not None else -1

    # ---------------------------------------------------------------------------------------------------------- rules

    @rule(what=st.sampled_from(["fell off the bus", "ecc", "ecc", RESET]), repeats=st.integers(1, 30))
    def says(self, what: str, repeats: int) -> None:
        self.log += [what] * repeats

    @precondition(lambda self: len(self.spool) + len(self.log) - self.read_up_to < 200)
    @rule(number=st.integers(1, 120))
    def says_much_that_is_different(self, number: int) -> None:
        self.log += [f"{1000 + len(self.log) + one} happened" for one in range(number)]

    @rule(most=st.integers(1, 200), cut_after=st.none() | st.integers(0, 12), power=st.booleans())
    def reads(self, most: int, cut_after: int | None, power: bool) -> None:
        begin = self.read_up_to + 1
        some = [report(number, self.log[number]) for number in range(begin, min(len(self.log), begin + most))]
        if some:
            before, after = self.spool.position, Position("kmsg", "boot", some[-1].event.sequence)
            if self.survives(lambda: self.spool.add(some, after), cut_after, power):
                assert self.spool.position == after
            else:
                assert self.spool.position in (before, after)

    @rule(most=st.integers(1, 60), cut_after=st.none() | st.integers(0, 8), power=st.booleans(), lost=st.booleans())
    def sends(self, most: int, cut_after: int | None, power: bool, lost: bool) -> None:
        batch = self.spool.pending(most)
        assert not self.acknowledged & {one.id for one in batch}
        for one in batch:
            if one.id not in self.taken:
                self.arrivals.append(one.event.sequence)
            assert self.taken.setdefault(one.id, one) == one
        if not lost and batch:
            ids = [one.id for one in batch]
            if self.survives(lambda: self.spool.acknowledge(ids), cut_after, power):
                self.acknowledged |= set(ids)

    @rule()
    def cannot_reach_the_controller(self) -> None:
        for _ in range(20):
            self.spool.pending(3)

    @rule(cut_after=st.none() | st.integers(0, 6), power=st.booleans())
    def restarts(self, cut_after: int | None, power: bool) -> None:
        if self.survives(self.spool.close, cut_after, power):
            self.spool = self.opened()

    @rule(power=st.booleans())
    def stops_without_a_word(self, power: bool) -> None:
        self.files = self.files.after_power_cut() if power else self.files.after_kill()
        self.spool = self.opened()

    @rule(cut_after=st.integers(0, 30), power=st.booleans())
    def stops_while_it_starts(self, cut_after: int, power: bool) -> None:
        self.files = self.files.after_kill()
        self.survives(lambda: setattr(self, "spool", self.opened()), cut_after, power)

    @rule()
    def reads_some_again(self) -> None:
        some = [report(number, self.log[number]) for number in range(max(0, self.read_up_to - 50), self.read_up_to + 1)]
        before = len(self.spool), self.spool.counts.known
        self.spool.add(some)
        assert (len(self.spool), self.spool.counts.known) == (before[0], before[1] + len(some))

    @invariant()
    def stays_within_its_limit(self) -> None:
        assert self.files.nodes == {} or self.spool.disk_bytes <= self.limit

    # -------------------------------------------------------------------------------------------------------- the end

    def drain(self) -> None:
        while self.read_up_to + 1 < len(self.log) or len(self.spool):
            self.reads(60, None, False)
            self.sends(60, None, False, False)

    def delivered(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.taken.values():
            found[one.event.text] += one.event.count
        return found

    def teardown(self) -> None:
        if not hasattr(self, "spool"):
            return
        self.drain()
        self.check()
        assert self.spool.bytes == 0
        assert self.spool.oldest_at is None

    def check(self) -> None:
        assert self.delivered() == Counter(self.log)
        for place, number in enumerate(self.arrivals):
            if self.log[number] == RESET:
                assert max(self.arrivals[:place], default=-1) < number
                assert min(self.arrivals[place + 1 :], default=len(self.log)) > number
        assert self.spool.counts.dropped == self.spool.counts.broken == 0
        resets = [number for number, what in enumerate(self.log) if what == RESET]
        for one in self.taken.values():
            first, last = one.event.sequence, second(one.last_at or one.event.at)
            between = [number for number in resets if first < number < last]
            assert one.event.text == RESET or not between, "a fault before a reset and one after it are two"


class FullNode(Node):
    """The same with little room: what is not delivered is said to be dropped."""

    limit = SMALL

    @precondition(lambda self: len(self.log) < 1500)
    @rule(number=st.integers(50, 150))
    def floods(self, number: int) -> None:
        self.log += [f"{1000 + len(self.log) + one} happened" for one in range(number)]

    @precondition(lambda self: len(self.log) < 1500)
    @rule(number=st.integers(50, 150))
    def floods_with_details(self, number: int) -> None:
        self.log += [f"13 at {len(self.log) + one:x}" for one in range(number)]

    def check(self) -> None:
        dropped = 0
        delivered: Counter[int | None] = Counter()
        for one in self.taken.values():
            if one.event.source != "spool":
                delivered[one.event.code] += one.event.count
                continue
            assert one.event.kind is EventKind.COVERAGE_LOST
            dropped += int(re.match(r"spool full: (\d+) events dropped", one.event.text)[1])
        logged = Counter(map(code_of, self.log))
        assert delivered <= logged
        # what was told and handed out just before a crash may be told again, so more may be said than was dropped
        assert dropped >= (logged - delivered).total()
        assert self.spool.counts.broken == 0


TestNode = Node.TestCase
TestFullNode = FullNode.TestCase
TestNode.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFullNode.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("cut_after", range(14))
def test_an_add_that_is_cut_short_is_there_as_a_whole_or_not_at_all(cut_after: int, power: bool):
    files = Brittle()
    spool = Spool(Path("spool"), SMALL, lambda: AT, files)
    spool.add([report(0, "first")], Position("kmsg", "boot", 0))
    files.cut_after = cut_after
    try:
        spool.add([report(1, "second"), report(2, "third"), report(3, "first")], Position("kmsg", "boot", 3))
    except PowerCut:
        files = files.after_power_cut() if power else files.after_kill()
        spool = Spool(Path("spool"), SMALL, lambda: AT, files)
    assert spool.position is not None
    texts = [(one.event.text, one.event.count) for one in spool.pending(10)]
    assert (spool.position.sequence, texts) in [
        (0, [("first", 1)]),
        (3, [("first", 2), ("second", 1), ("third", 1)]),
    ]


def works_through(cut_after: int | None, power: bool, seed: int, limit: int = SMALL) -> int:
    """A fixed log through a spool that is cut short once; how many calls were made. All of it is delivered."""
    files, taken, rng = Brittle(rng=random.Random(seed)), dict[str, Report](), random.Random(seed)
    long = "x" * 1500  # so that a few reports fill a segment
    log = [f"{1000 + number} {long}" if number % 3 else rng.choice(["ecc", RESET]) for number in range(60)]
    files.cut_after = cut_after
    spool = None
    calls = 0
    while spool is None or len(spool) or spool.position != Position("kmsg", "boot", len(log) - 1):
        try:
            spool = spool or Spool(Path("spool"), limit, lambda: AT, files)
            begin = spool.position.sequence + 1 if spool.position is not None else 0
            some = [report(number, log[number]) for number in range(begin, min(len(log), begin + rng.randrange(1, 9)))]
            if some and len(spool) < 8:
                spool.add(some, Position("kmsg", "boot", some[-1].event.sequence))
            batch = spool.pending(rng.randrange(1, 9) if some else 50)
            for one in batch:
                assert taken.setdefault(one.id, one) == one
            spool.acknowledge([one.id for one in batch])
            if rng.random() < 0.05:
                spool.close()
                spool = None
        except PowerCut:
            calls += len(files.calls)
            files, spool = files.after_power_cut() if power else files.after_kill(), None
    delivered: Counter[str] = Counter()
    for one in taken.values():
        delivered[one.event.text] += one.event.count
    assert delivered == Counter(log)
    assert spool.counts.broken == spool.counts.dropped == 0
    return calls + len(files.calls)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_a_cut_at_any_call_of_a_long_run_loses_nothing(power: bool):
    for cut_after in range(works_through(None, power, seed=1)):
        works_through(cut_after, power, seed=1)
