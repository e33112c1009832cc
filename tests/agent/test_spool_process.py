"""The spool on a real disk: a process that is killed at any moment, and a disk that is really full."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from daemon.agent.spool import Spool
from tests.agent.spool_writer import LIMIT, logged

ROOT = Path(__file__).parents[2]
KILLS = 12


class Controller:
    """What it has got, by id. A report that comes again is the same."""

    def __init__(self) -> None:
        self.taken: dict[str, tuple[int, int]] = {}
        self.acknowledged: set[str] = set()
        self.added = -1

    def hears(self, said: dict) -> None:
        self.added = max(self.added, said.get("added", -1))
        self.acknowledged.update(said.get("acknowledged", ()))
        for name, code, count in said.get("taken", ()):
            assert name not in self.acknowledged or "acknowledged" in said
            assert self.taken.setdefault(name, (code, count)) == (code, count)


def test_a_process_that_is_killed_at_any_moment_loses_nothing_and_tells_nothing_twice(tmp_path: Path):
    folder, rng, controller = tmp_path / "spool", random.Random(7), Controller()
    for seed in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.agent.spool_writer", str(folder), str(seed)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        ) as writer:  # fmt: skip
            for _ in range(rng.randrange(1, 60)):
                controller.hears(json.loads(writer.stdout.readline()))
            writer.kill()
            rest = [line for line in writer.stdout.read().split("\n") if line.endswith("}")]
        for line in rest:
            controller.hears(json.loads(line))
    with Spool(folder, LIMIT) as spool:
        assert spool.position.sequence >= controller.added
        assert spool.counts.broken == 0
        while batch := spool.pending(500):
            controller.hears({"taken": [(one.id, one.event.code, one.event.count) for one in batch]})
            spool.acknowledge([one.id for one in batch])
        told, up_to = Counter(), spool.position.sequence
    for code, count in controller.taken.values():
        told[code] += count
    assert told == Counter(logged(number).event.code for number in range(up_to + 1))


FULL_DISK = """if True:
    import os, sys
    from pathlib import Path
    from daemon.agent.spool import Spool, SpoolFull
    from tests.agent.test_spool import add, different, report

    disk = Path(sys.argv[1])
    filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)

    def fill():
        size = 1 << 16
        while size:
            try:
                os.write(filler, bytes(size))
            except OSError:
                size //= 2

    fill()
    spool = Spool(disk / "spool", 2 << 20)
    try:
        add(spool, report(0))
        sys.exit("a full disk took a report")
    except SpoolFull as error:
        print(error)
    assert spool.position is None

    os.ftruncate(filler, 100_000)
    os.lseek(filler, 0, os.SEEK_END)
    add(spool, report(0))
    for begin in range(1, 3001, 20):
        fill()
        add(spool, *different(range(begin, begin + 20)))
        assert spool.position.sequence == begin + 19
    spool.close()

    fill()
    spool = Spool(disk / "spool", 2 << 20)
    told = delivered = 0
    while batch := spool.pending(100):
        told += sum(int(one.event.text.split()[2]) for one in batch if one.event.source == "spool")
        delivered += sum(one.event.count for one in batch if one.event.source == "kmsg")
        spool.acknowledge([one.id for one in batch])
        fill()
    assert delivered > 100, delivered
    assert told > 1000, told
    assert told + delivered == 3001, (told, delivered)
    assert spool.position.sequence == 3000
    print("passed")
"""


def test_a_disk_that_is_really_full_stops_neither_the_agent_nor_the_telling_of_what_is_lost(tmp_path: Path):
    mount = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'
    unshare = shutil.which("unshare")
    ways = [[unshare, "--mount"], [unshare, "--map-root-user", "--mount"]] if unshare else []
    for way in ways:
        if subprocess.run([*way, "sh", "-c", mount, tmp_path, "true"], capture_output=True, check=False).returncode:
            continue
        ran = subprocess.run(
            [*way, "sh", "-c", mount, tmp_path, sys.executable, "-c", FULL_DISK, tmp_path],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ran.returncode, ran.stderr) == (0, "")
        first, last = ran.stdout.splitlines()
        assert "No space left on device" in first
        assert last == "passed"
        return
    pytest.skip("no small tmpfs can be mounted here, so the spool saw only a simulated full disk")


def test_a_process_that_may_write_no_large_files_says_so(tmp_path: Path):
    code = """if True:
        import resource, sys
        from pathlib import Path
        from daemon.agent.spool import Spool, SpoolFull
        from tests.agent.test_spool import add, report
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        spool = Spool(Path(sys.argv[1]) / "spool", 2 << 20)
        try:
            add(spool, report(0))
        except SpoolFull as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        add(spool, report(0))
        print(len(spool))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    first, last = ran.stdout.splitlines()
    assert "File too large" in first
    assert last == "1"
