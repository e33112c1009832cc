"""Reading Loki: each line once, in whatever order and pages it comes, or a gap that says what was lost."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daemon.loki.cursor as cursor_module
from daemon.loki.cursor import Cursor, Step
from rules.loader import load_rules
from rules.vocabulary import EventKind
from tests.loki.life import NOW_NS, Life, config, xid
from tests.loki.stand_in import S

RULES = load_rules()


def test_a_line_is_taken_once_however_often_it_is_read(life: Life) -> None:
    life.push(1, xid(1))
    assert life.go(2) == [1]
    assert [life.go(2) for _ in range(30)] == [[]] * 30
    (event,) = life.taken
    assert (event.node, event.code, event.source, event.trusted) == ("n1", 79, "loki", True)
    assert event.at is not None
    assert event.at.timestamp() == NOW_NS / S + 1


def test_the_past_is_left_alone_on_the_very_first_start(life: Life) -> None:
    life.push(-1, xid(1))
    life.push(1, xid(2))
    assert life.go(2) == [2]
    life.push(-2, xid(3))
    life.wait(life.config.sweep)
    assert life.go() == []
    assert life.gaps == []


def test_as_much_of_the_past_is_taken_as_the_configuration_says(rules) -> None:
    life = Life(rules, config=config(lookback=60))
    life.push(-61, xid(1))
    life.push(-59, xid(2))
    assert life.go() == [2]


def test_a_line_that_comes_late_is_taken_within_the_settle_window(life: Life) -> None:
    life.go(400)
    life.push(1, xid(1))
    life.push(395, xid(2))
    assert set(life.go(life.config.sweep)) == {1, 2}
    assert life.gaps == []


def test_a_line_that_comes_later_than_that_is_a_gap_of_its_node_told_once(life: Life) -> None:
    life.go(1000)
    life.push(1, xid(1), node="n2")
    life.push(2, xid(2), node="n2")
    assert [life.go(life.config.sweep) for _ in range(3)] == [[], [], []]
    (gap,) = life.gaps
    assert (gap.node, gap.lines, gap.is_mild) == ("n2", 2, False)
    assert (gap.from_ns, gap.to_ns) == (NOW_NS + S, NOW_NS + 2 * S)


def test_a_restart_goes_on_behind_what_ticks_took(life: Life) -> None:
    life.push(1, xid(1))
    life.go(2)
    life.push(3, xid(2))
    life.wait(2)
    life.read()  # and nobody takes it
    life.restart()
    life.push(-5000, xid(9))
    life.wait(3600)
    life.push(1800, xid(3))
    assert life.go() == [2, 3]
    assert life.gaps == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_that_end_within_one_timestamp_lose_nothing(rules, limit: int) -> None:
    life = Life(rules, config=config(limit=max(limit, 2)))
    for pid in range(20):
        life.push(1 + pid // limit, xid(pid), node=f"n{pid % 3}")
    assert sorted(life.go(30)) == list(range(20))
    assert life.gaps == []


def test_a_node_that_crowds_one_timestamp_hides_no_other_node(rules) -> None:
    life = Life(rules, config=config(limit=5))
    for pid in range(50):
        life.push(1, xid(pid), node="noisy")
    life.push(1, xid(100), node="quiet")
    life.push(2, xid(101), node="quiet")
    got = life.go(5)
    assert {100, 101} <= set(got)
    (gap,) = life.gaps
    assert (gap.node, gap.from_ns, gap.to_ns) == ("noisy", NOW_NS + S, NOW_NS + S)
    assert [life.go(life.config.sweep) for _ in range(3)] == [[], [], []]
    assert len(life.gaps) == 1


def test_more_lines_than_can_be_read_in_time_are_passed_over_and_told(rules) -> None:
    life = Life(rules, config=config(limit=10, catch_up=5))
    for pid in range(200):
        life.push(pid, xid(pid))
    life.push(399, xid(999))
    life.wait(400)
    asks, page = life.reader._client, type(life.reader._client).page

    class Slow:
        def page(self, *arguments):
            life.wait(1)
            return page(asks, *arguments)

    life.reader._client = Slow()
    life.read(2)
    life.take()
    (gap, *_) = life.whole_gaps
    assert "in time" in gap.why
    lost = {pid for pid in range(200) if gap.from_ns <= NOW_NS + pid * S <= gap.to_ns}
    assert {event.pid for event in life.taken} | lost == {*range(200), 999}
    assert 999 in {event.pid for event in life.taken}


def test_away_for_longer_than_loki_keeps_lines_is_a_gap(rules) -> None:
    life = Life(rules, config=config(retention=3600))
    life.go(1)
    life.push(5000, xid(1))
    life.push(100, xid(2))
    life.loki.kept_from_ns = NOW_NS + 4000 * S
    assert life.go(8000) == [1]
    gap = life.whole_gaps[0]
    assert (gap.from_ns, gap.to_ns, gap.node) == (NOW_NS + S, NOW_NS + (8001 - 3600) * S, "")


@pytest.mark.parametrize("said", ["1h0m0s", "nothing that can be read"], ids=["with its reach", "without"])
def test_what_loki_refuses_as_too_old_is_a_gap(life: Life, said: str) -> None:
    life.go(1)
    life.push(100_000 - 60, xid(1))
    life.wait(100_000)
    life.loki.refused_before = (life.now_ns - 3600 * S, said)
    assert life.go() == [1]
    assert life.whole_gaps
    assert life.whole_gaps[0].from_ns == NOW_NS + S
    assert max(gap.to_ns for gap in life.whole_gaps) <= life.now_ns - 3600 * S + 6 * 3600 * S


def test_a_smaller_limit_of_loki_is_taken_up(rules) -> None:
    life = Life(rules, config=config(limit=5000))
    life.loki.most = 3
    for pid in range(10):
        life.push(pid / 10, xid(pid))
    assert sorted(life.go(2)) == list(range(10))
    assert life.loki.asked[-1]["limit"] == "3"


def test_a_span_that_loki_finds_too_long_is_asked_for_in_parts(life: Life) -> None:
    life.go(1)
    life.loki.longest_s = 600
    life.push(5000, xid(1))
    life.push(9000, xid(2))
    life.wait(10_000)
    life.read()
    life.take()
    assert [event.pid for event in life.taken] == [1, 2]
    assert life.gaps == []


GARBAGE = (200, b"<html>login</html>", {})
TROUBLES = [
    pytest.param((429, b"too many outstanding requests", {"Retry-After": "7"}), "throttled", id="too many requests"),
    pytest.param((500, b"ring is empty", {}), "http", id="an error of Loki's own"),
    pytest.param((504, b"context deadline exceeded", {}), "timeout", id="a gateway that gave up"),
    pytest.param((401, b"no org id", {}), "refused", id="no tenant"),
    pytest.param((400, b"parse error at line 1, col 2", {}), "refused", id="a query that is none"),
    pytest.param((302, b"", {"Location": "http://else"}), "refused", id="a redirect"),
    pytest.param(GARBAGE, "garbage", id="a login page"),
    pytest.param((200, b'{"status":"success"', {}), "garbage", id="half an answer"),
    pytest.param((200, b'{"status":"error","data":{"resultType":"streams"}}', {}), "garbage", id="an error with 200"),
    pytest.param((200, b'{"status":"success","data":{"resultType":"matrix"}}', {}), "garbage", id="numbers"),
    pytest.param((200, b"[" * 100_000, {}), "garbage", id="endless brackets"),
    pytest.param(
        (200, b'{"status":"success","data":{"resultType":"streams","result":[{"stream":[],"values":[]}]}}', {}),
        "garbage", id="a stream of another type",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "trouble"), TROUBLES)
def test_no_line_is_lost_while_loki_is_in_trouble(life: Life, answer, trouble: str) -> None:
    life.push(1, xid(1))
    life.loki.spoil = [answer] * 3
    life.wait(2)
    life.read(3)
    assert life.errors == [trouble] * 3
    assert life.go(60) == [1]
    assert life.gaps == []


def test_lines_that_make_no_sense_are_counted_and_the_others_taken(life: Life) -> None:
    good = [str(NOW_NS + S), xid(1)]
    bad = [[str(NOW_NS + S)], [NOW_NS + S, xid(2)], ["soon", xid(3)], [str(NOW_NS + S), 7], None, ["1" * 40, xid(4)]]
    result = [{"stream": {"node": "n1", "transport": "kernel"}, "values": [*bad, good, [*good, {"more": "x"}]]}]
    body = json.dumps({"status": "success", "data": {"resultType": "streams", "result": result}}).encode()
    life.loki.spoil = [(200, body, {})]
    assert life.go(2) == [1]
    assert life.counts["loki_malformed"] == len(bad)


def test_an_answer_that_stays_unusable_costs_a_second_and_not_the_rest(life: Life) -> None:
    life.go(1)
    poisoned = range(NOW_NS + 100 * S, NOW_NS + 100 * S + 1)

    answer = life.loki.answer

    def poison(params):
        if int(params["start"]) <= poisoned.start < int(params["end"]):
            life.loki.asked.append(params)
            return GARBAGE
        return answer(params)

    life.loki.answer = poison
    life.push(50, xid(1))
    life.push(200, xid(2))
    life.wait(300)
    for _ in range(60):
        life.read()
        life.wait(60)
    life.take()
    assert {event.pid for event in life.taken} == {1, 2}
    (gap,) = life.whole_gaps
    assert gap.from_ns <= poisoned.start <= gap.to_ns <= gap.from_ns + S


def test_an_answer_that_stays_partial_is_taken_and_is_a_gap(life: Life) -> None:
    life.loki.warnings = ["some ingesters did not answer"]
    life.push(1, xid(1))
    life.wait(2)
    life.read(2)
    assert life.errors == ["partial", "partial"]
    assert life.go() == [1]
    (gap,) = life.gaps
    assert (gap.from_ns, gap.to_ns) == (NOW_NS, NOW_NS + 2 * S)
    life.loki.warnings = []
    life.push(1.5, xid(2))
    assert life.go(3) == [2], "what was missing is taken once it is there"
    assert len(life.gaps) == 1


def test_a_clock_that_is_set_back_is_told_and_reading_goes_on(life: Life) -> None:
    life.go(1)
    life.wait(10 * 86_400)
    life.go()
    life.now_ns = NOW_NS + 10 * S
    assert life.go(5) == []
    life.push(16, xid(1))
    assert life.go(5) == [1]
    assert any("clock" in gap.why for gap in life.gaps)


def test_a_flood_shortens_what_is_remembered_and_says_so(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "MOST_SEEN", 100)
    for pid in range(1000):
        life.push(pid / 100, xid(pid))
    life.go(60)
    assert sorted(event.pid or 0 for event in life.taken) == list(range(1000))
    assert len(life.cursor) <= 1000
    assert life.gaps
    assert not any(gap.is_mild for gap in life.gaps), "lines of other nodes may come so late any time"
    assert [life.go(life.config.sweep) for _ in range(2)] == [[], []]


# ---------------------------------------------------------------------------------------------------- what a line says


@pytest.mark.parametrize(
    ("labels", "line", "trusted"),
    [
        pytest.param({}, xid(), True, id="the kernel's transport"),
        pytest.param({"transport": "syslog"}, xid(), False, id="another transport"),
        pytest.param({"transport": ""}, xid(), False, id="no transport"),
        pytest.param({}, f"trainer[77]: {xid()}", False, id="another program's words under the kernel's label"),
        pytest.param({}, json.dumps({"MESSAGE": xid(), "_TRANSPORT": "kernel"}), True, id="the journal's JSON"),
        pytest.param({}, json.dumps({"MESSAGE": xid(), "_TRANSPORT": "stdout"}), False, id="JSON of a program"),
        pytest.param(
            {"transport": "stdout"}, json.dumps({"MESSAGE": xid(), "_TRANSPORT": "kernel"}), False,
            id="a program that writes the journal's JSON",
        ),
    ],
)  # fmt: skip
def test_only_what_labels_and_line_both_say_is_the_kernels_is_trusted(
    life: Life, labels: dict[str, str], line: str, trusted: bool
) -> None:
    life.push(1, line, **labels)
    life.go(2)
    assert [event.trusted for event in life.taken] == ([trusted] if life.taken else [])
    assert not trusted or life.taken


def test_without_trusted_labels_nothing_is_trusted(rules) -> None:
    life = Life(rules, config=config(trusted_labels={}))
    life.push(1, xid(1))
    assert life.go(2) == [1]
    assert not life.taken[0].trusted


def test_the_records_own_time_counts_where_it_has_one(life: Life) -> None:
    life.push(5, f"2027-01-15T08:00:03.000000+00:00 n9 kernel: {xid(1)}")
    life.go(10)
    (event,) = life.taken
    assert event.at is not None
    assert event.at.timestamp() == NOW_NS / S + 3
    assert event.node == "n1", "the label names the node, not the line"


def test_a_line_of_no_node_is_counted_and_left_out(life: Life) -> None:
    life.push(1, xid(1), node="")
    assert life.go(2) == []
    assert life.counts["loki_no_node"] == 1


def test_an_old_file_that_is_sent_again_is_a_gap_and_no_news(life: Life) -> None:
    life.go(5000)
    life.push(5001, f"2027-01-15T08:10:00+00:00 n1 kernel: {xid(1)}")
    assert life.go(5) == []
    (gap,) = life.gaps
    assert gap.node == "n1"


OFF_BUS = [
    "NVRM: The NVIDIA GPU 0000:5c:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_statement_of_several_lines_is_put_together_across_a_restart(life: Life, cut: int) -> None:
    for number, line in enumerate(OFF_BUS[: cut + 1]):
        life.push(1 + number / 1000, line)
    life.go(2)
    life.restart()
    for number, line in enumerate(OFF_BUS[cut + 1 :], cut + 1):
        life.push(1 + number / 1000, line)
    life.go(2)
    assert [event.kind for event in life.taken] == [EventKind.OFF_BUS]
    life.restart()
    life.go(2)
    assert len(life.taken) == 1


def test_a_cursor_survives_its_packing() -> None:
    cursor = Cursor(5)
    cursor.move(Step(20, 15, 10, ((1 << 63, 12), (7, 11))))
    again = Cursor.unpack(cursor.pack())
    assert again.pack() == cursor.pack()
    assert again.knows(1 << 63)
    with pytest.raises(ValueError, match=r"unpack|decode|truncated|trailing|Expected"):
        Cursor.unpack(b"\x00garbage")


# ------------------------------------------------------------------------------------------------ whatever the order is


@dataclass(frozen=True)
class Arrival:
    """A line that the node wrote `late_s` before it came."""

    late_s: float
    node: str


LATENESS = st.one_of(st.floats(0, 5), st.floats(0, 60), st.floats(100, 300), st.just(0.0))
ARRIVALS = st.builds(Arrival, LATENESS, st.sampled_from(("a", "b", "c")))
STEPS = st.lists(
    st.one_of(
        st.lists(ARRIVALS, max_size=4),
        st.floats(0.5, 40),
        st.sampled_from(("read", "take", "take_one", "restart", "fail", "garbage", "partial", "crowd")),
    ),
    max_size=25,
)


class Story:
    """What nodes wrote while a reading of them lived."""

    def __init__(self, limit: int, grain_ns: int) -> None:
        self.life = Life(RULES, config=config(limit=limit, settle=50, watch=400, sweep=20))
        self.grain_ns = grain_ns
        self.wrote: dict[int, tuple[str, int]] = {}

    def write(self, late_s: float, node: str) -> None:
        at_ns = max(NOW_NS, self.life.now_ns - round(late_s * S)) // self.grain_ns * self.grain_ns
        pid = len(self.wrote) + 1
        self.wrote[pid] = (node, at_ns)
        self.life.push((at_ns - NOW_NS) / S, xid(pid), node=node)

    def go_on(self, step: list[Arrival] | float | str) -> None:
        life = self.life
        if isinstance(step, str):
            getattr(self, step)()
        elif isinstance(step, float):
            life.wait(step)
            life.read()
        else:
            for one in step:
                self.write(one.late_s, one.node)

    def read(self) -> None:
        self.life.read()

    def take(self) -> None:
        self.life.take()

    def take_one(self) -> None:
        self.life.take(1)

    def restart(self) -> None:
        self.life.restart()

    def fail(self) -> None:
        self.life.loki.spoil = [(503, b"", {})]

    def garbage(self) -> None:
        self.life.loki.spoil = [None, GARBAGE]

    def partial(self) -> None:
        self.life.loki.warnings = [] if self.life.loki.warnings else ["shards missing"]

    def crowd(self) -> None:
        for _ in range(6):
            self.write(0, "a")

    def is_told(self, pid: int) -> bool:
        """Whether a gap says that this line is lost."""
        node, at_ns = self.wrote[pid]
        return any(gap.node in ("", node) and gap.from_ns <= at_ns <= gap.to_ns for gap in self.life.gaps)


@settings(max_examples=300)
@given(STEPS, st.integers(1, 4), st.sampled_from((1_000_000, S)))
def test_each_line_is_taken_once_or_lies_in_a_gap(
    steps: list[list[Arrival] | float | str], limit: int, grain_ns: int
) -> None:
    story = Story(limit, grain_ns)
    for step in steps:
        story.go_on(step)
    life = story.life
    life.loki.spoil, life.loki.warnings = [], []
    for _ in range(12):
        life.wait(10)
        life.read()
    life.take()
    seen = [event.pid for event in life.taken]
    assert len(seen) == len(set(seen)), "no line is taken twice"
    assert [pid for pid in story.wrote if pid not in seen and not story.is_told(pid)] == []
