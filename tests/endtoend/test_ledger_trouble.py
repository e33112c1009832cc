"""A ledger that cannot be written for a while: nothing is done then, and afterwards all that was begun goes on."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest

from tests.endtoend.acts import ours_on, running, unbound
from tests.endtoend.site import Daemon, Site
from tests.endtoend.stories import (
    assert_given_back,
    crews,
    make_room,
    writes,
)
from tests.testbed.waiting import until

POLICY = unbound()
Trouble = Callable[[Site], AbstractContextManager[None]]


@contextmanager
def locked(site: Site) -> Iterator[None]:
    """Another program has the write lock."""
    with closing(sqlite3.connect(site.folder / "ledger.db", timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def full(site: Site) -> Iterator[None]:
    """The volume has no room left: the write-ahead log is short, and cannot grow."""
    with closing(sqlite3.connect(site.folder / "ledger.db", timeout=60, isolation_level=None)) as connection:
        short = "PRAGMA wal_checkpoint(TRUNCATE)"
        until("a short write-ahead log", lambda: connection.execute(short).fetchone()[0] == 0, within_s=60)
        filler = (site.folder / "ledger.db").resolve().with_name("filler")
        with filler.open("wb", buffering=0) as file:
            _fill(file.fileno())
        yield
    filler.unlink()


def _fill(descriptor: int) -> None:
    for size in (1 << 16, 1 << 9, 1):
        try:
            while os.write(descriptor, b"x" * size):
                pass
        except OSError:
            continue


@contextmanager
def small_volume(site: Site) -> Iterator[None]:
    """The ledger lives on a volume of its own."""
    volume = site.folder / "volume"
    volume.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(volume)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no tmpfs may be mounted here (run as root), so a full volume was not tried")
    try:
        (site.folder / "ledger.db").symlink_to(volume / "ledger.db")
        yield
        site.close()
    finally:
        subprocess.run(["umount", "--lazy", str(volume)], check=True)


def test_while_the_ledger_is_locked_nothing_is_done(site: Site) -> None:
    the_story_waits_for_the_ledger(site, locked)


def test_while_the_volume_of_the_ledger_is_full_nothing_is_done(site: Site) -> None:
    with small_volume(site):
        the_story_waits_for_the_ledger(site, full)


def the_story_waits_for_the_ledger(site: Site, trouble: Trouble) -> None:
    """In the middle of one node's drain, and before anything was done about another node."""
    begun, fresh, spares = site.nodes[0], site.nodes[1], site.nodes[-2:]
    crews(site, [begun, fresh], spares, min_available=2)
    daemon = site.start(policy=POLICY)
    until("all is well", lambda: all(site.condition(name) == "True" for name in site.nodes), within_s=60)
    site.xid(begun)
    until("the drain waits for room", lambda: len(running(site, begun, begun)) == 2 and site.is_cordoned(begun), 90)
    until("it is shown", lambda: site.condition(begun) == "False", within_s=60)

    with trouble(site):
        mark = site.plane.audit_mark()
        make_room(site, begun)
        make_room(site, fresh)
        site.xid(fresh)
        until("it has tried", lambda: failures(daemon) >= 2, within_s=120)
        assert "ledger" in daemon.readiness()
        assert daemon.metric("gpuwarden_ledger_writable") == 0
        done_meanwhile = [(one.verb, one.uri) for one in writes(site, mark)]
    assert done_meanwhile == []

    for name in (begun, fresh):
        until(f"{name} quarantined", lambda name=name: site.stage(name) == "quarantined", within_s=120)
        assert not running(site, name, name)
        site.boots(name)
    for name in (begun, fresh):
        until(f"{name} given back", lambda name=name: not ours_on(site, name), within_s=120)
        until("it is shown", lambda name=name: site.condition(name) == "True", within_s=60)
        until("it is written down", lambda name=name: ("release", "done") in site.outcomes(name), within_s=60)
    for name in (begun, fresh):
        assert_given_back(site, name)
    assert daemon.ready()


def failures(daemon: Daemon) -> float:
    return daemon.metric("gpuwarden_ledger_errors_total")
