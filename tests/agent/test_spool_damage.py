"""A spool whose files were damaged: it opens, gives what can still be read, and says that something is gone."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.agent.segments import KEPT, Record
from daemon.agent.spool import Spool
from daemon.agent.wire import Report
from rules.vocabulary import EventKind
from tests.agent.brittle import Brittle
from tests.agent.test_spool import SMALL, add, different, gaps, report, spool_on, upto


def filled() -> tuple[Brittle, dict[str, Report]]:
    """Several segments with reports that wait, that grew, and that have gone; and what waits, by id."""
    files = Brittle()
    spool = spool_on(files, 1 << 20)
    add(spool, report(0))
    for begin in range(1, 250, 10):
        add(spool, *different(range(begin, begin + 9)), report(begin + 9))
        if begin % 50 == 1:
            spool.acknowledge([f"kmsg:boot:{begin + 3}"])
    spool.close()
    return files, {one.id: one for one in spool.pending(1000)}


FILES, WAITING = filled()


def damaged(change) -> Brittle:
    files = FILES.after_kill()
    change(files.nodes)
    return files.after_kill()


def overwrite(name: str, offset: int, data: bytes):
    def change(nodes) -> None:
        seen = nodes[name].seen
        offset_in = offset % len(seen)
        seen[offset_in : offset_in + len(data)] = data[: len(seen) - offset_in]

    return change


def as_it_was(found: list[Report]) -> bool:
    """Whether each report is one that was there, with as much of its growth as could be read."""
    for one in found:
        before = WAITING.get(one.id)
        if before is not None and (one.event.code, one.event.text) != (before.event.code, before.event.text):
            return False
        if before is not None and one.event.count > before.event.count:
            return False
    return True


@given(
    name=st.sampled_from(sorted(FILES.nodes)),
    offset=st.integers(0, (128 << 10) - 1),
    data=st.binary(min_size=1, max_size=64) | st.just(bytes(5000)) | st.just(b"\xff" * 5000) | st.just(b"\xffGWS" * 9),
)
def test_bytes_anywhere_may_be_anything(name: str, offset: int, data: bytes):
    files = damaged(overwrite(name, offset, data))
    spool = spool_on(files, 1 << 20)
    found = spool.pending(1000)
    assert as_it_was(found)
    ids = {one.id for one in found}
    counts = spool.counts
    if {one for one in WAITING if one not in ids} or any(
        one.event.count < WAITING[one.id].event.count for one in found if one.id in WAITING
    ):
        assert counts.broken
        assert gaps(spool)[0].startswith("spool broken: ")
    # and it goes on as if nothing had happened
    add(spool, report(5000, code=1))
    spool.acknowledge([one.id for one in found])
    again = spool_on(files.after_power_cut(), 1 << 20)
    assert again.position == upto(5000)
    assert report(5000, code=1) in again.pending(1000)
    assert not {one.id for one in again.pending(1000)} & ids
    assert again.counts.broken == 0, "what was broken is told once"


@given(st.randoms(use_true_random=False))
def test_many_places_may_be_broken_at_once(rng: random.Random):
    def change(nodes) -> None:
        for _ in range(rng.randrange(1, 30)):
            node = rng.choice(sorted(nodes))
            overwrite(node, rng.randrange(1 << 17), rng.randbytes(rng.randrange(1, 9)))(nodes)

    spool = spool_on(damaged(change), 1 << 20)
    assert as_it_was(spool.pending(1000))


@given(st.randoms(use_true_random=False))
def test_bytes_may_change_under_a_spool_that_is_open(rng: random.Random):
    files = FILES.after_kill()
    spool = spool_on(files, 1 << 20)
    for _ in range(20):
        overwrite(rng.choice(sorted(files.nodes)), rng.randrange(1 << 17), rng.randbytes(30))(files.nodes)
    found = spool.pending(1000)
    assert as_it_was(found)
    broken = spool.counts.broken
    assert len(found) + broken == len(WAITING)
    add(spool, report(5000, code=1))
    assert bool(gaps(spool)) == bool(broken)
    spool.acknowledge([one.id for one in found])


@pytest.mark.parametrize("name", sorted(FILES.nodes))
@pytest.mark.parametrize("how", ["gone", "empty", "cut in half", "all zero", "of another size"])
def test_whole_files_may_be_missing_or_cut(name: str, how: str):
    def change(nodes) -> None:
        node = nodes[name]
        match how:
            case "gone":
                del nodes[name]
            case "empty":
                node.seen.clear()
            case "cut in half":
                del node.seen[len(node.seen) // 2 :]
            case "all zero":
                node.seen[:] = bytes(len(node.seen))
            case _:
                node.seen.extend(b"more")

    files = damaged(change)
    spool = spool_on(files, 1 << 20)
    found = spool.pending(1000)
    assert as_it_was(found)
    missing = WAITING.keys() - {one.id for one in found}
    assert not missing or spool.counts.broken
    assert spool.position == upto(250), "there is a second copy of it"
    add(spool, report(5000, code=1))
    assert spool_on(files.after_power_cut(), 1 << 20).position == upto(5000)


def test_a_broken_segment_costs_only_itself():
    slots = [name for name in FILES.nodes if name.startswith("slot-") and any(FILES.nodes[name].seen)]
    assert len(slots) >= 2
    spool = spool_on(damaged(overwrite(slots[0], 0, b"\xaa" * (128 << 10))), 1 << 20)
    found = spool.pending(1000)
    assert 0 < sum(one.id in WAITING for one in found) < len(WAITING)
    assert spool.counts.broken == 1
    (said,) = gaps(spool)
    assert said == "spool broken: 1 place could not be read back, what was reported there may be missing"


def test_a_write_that_was_cut_off_is_counted_and_no_loss():
    files = Brittle()
    spool = spool_on(files)
    add(spool, report(0))
    end = spool._log.end[1]
    add(spool, report(1, code=48))
    cut = files.after_kill()
    cut.nodes["slot-000"].seen[end + 100 :] = bytes(len(cut.nodes["slot-000"].seen) - end - 100)
    again = spool_on(cut)
    assert (again.position, again.pending(9)) == (upto(0), [report(0)])
    assert (again.counts.torn, again.counts.broken) == (1, 0)
    assert spool_on(cut.after_power_cut()).counts.torn == 0, "it is told once"
    add(again, report(1, code=48))
    assert spool_on(cut.after_power_cut()).pending(9) == [report(0), report(1, code=48)]


def test_files_of_others_in_the_folder_are_left_alone():
    files = FILES.after_kill()
    files.create("lost+found")
    files.create("slot-000.bak")
    spool = spool_on(files, 1 << 20)
    assert len(spool.pending(1000)) == len(WAITING)
    assert {"lost+found", "slot-000.bak"} <= files.nodes.keys()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        pytest.param(
            KEPT, b'{"number":7,"report":{"id":"a","event":{"kind":"later","code":1,"text":""}}}', id="a report"
        ),
        pytest.param(b"Z", b"{}", id="another kind"),
        pytest.param(b"U", b"[1]", id="a growth"),
        pytest.param(b"G", b'["x"]', id="what has gone"),
        pytest.param(b"S", b"no JSON", id="what is known"),
        pytest.param(b"S", b"[" * 5000, id="a nest without an end"),
    ],
)
def test_a_record_of_a_later_version_is_told_once_and_does_not_stop_the_others(kind: bytes, payload: bytes):
    files = Brittle()
    spool = spool_on(files)
    add(spool, report(0))
    spool._log.append([Record(kind, payload)])
    add(spool, report(1, code=48))
    again = spool_on(files.after_kill())
    found = again.pending(9)
    assert [one.event.code for one in found] == [79, 48, None]
    assert (again.counts.broken, found[2].event.kind) == (1, EventKind.COVERAGE_LOST)
    assert spool_on(files.after_kill()).counts.broken == 1
    assert spool_on(again._disk._files.after_power_cut()).counts.broken == 0


def test_text_in_a_log_cannot_pass_for_a_record(tmp_path: Path):
    with Spool(tmp_path / "spool", SMALL) as spool:
        forged = (tmp_path / "spool" / "slot-000").read_bytes().decode("latin-1")[:60] if len(spool) else ""
        add(spool, report(0, text="\u00ffGWS" * 20 + forged, trusted=False))
        raw = (tmp_path / "spool" / "slot-000").read_bytes()
        add(spool, report(1, text=raw[:400].decode("latin-1"), trusted=False, code=1))
    with Spool(tmp_path / "spool", SMALL) as spool:
        assert [one.event.sequence for one in spool.pending(9)] == [0, 1]
        assert spool.counts.broken == spool.counts.torn == 0
