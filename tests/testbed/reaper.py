"""Nothing of a testbed outlives the process that started it, not even when that process is killed.

A control plane starts this file as a process of its own, in its own session, and tells it through a pipe which process
groups and folders there are. When the pipe closes, because the control plane was stopped or because the test run died,
whatever is left is killed and removed. (The kernel's parent-death signal would do less: it fires when the *thread* that
started the server ends, and it removes no folder.)

`Reaper` is the control plane's side, `main` the other one; it imports nothing outside the standard library.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PATIENCE_S = 10


class Reaper:
    """The end of the pipe that a control plane holds."""

    def __init__(self) -> None:
        # -I -S: no site, no environment; it starts in some 15 ms and depends on nothing.
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def tell(self, word: str, about: int | Path) -> None:
        """`kill` or `spare` a process group, `remove` or `keep` a folder, once the pipe closes."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {about}\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Close the pipe and wait until all is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main(lines: Iterable[str]) -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    for line in lines:
        word, _, about = line.rstrip("\n").partition(" ")
        if word == "kill":
            groups.add(int(about))
        elif word == "spare":
            groups.discard(int(about))
        elif word == "remove":
            folders.add(about)
        elif word == "keep":
            folders.discard(about)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    # A process that is being killed may still create a file or two, so once is not enough.
    deadline = time.monotonic() + PATIENCE_S
    while any(map(os.path.exists, folders)) and time.monotonic() < deadline:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.stdin)
