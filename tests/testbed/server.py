"""One process of the control plane: started, stopped, frozen. `control_plane` makes one for each program."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.testbed.reaper import Reaper
from tests.testbed.waiting import TestbedError, until

#: Below the range that the kernel takes outgoing connections' ports from. A client that retries a server which is down
#: would else meet, sooner or later, its own port as its peer: connected to itself, and the server's port taken.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody uses at this moment and that no outgoing connection will take."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise TestbedError(f"no free loopback port among 100 tried in {PORTS.start} to {PORTS.stop}")


class Server:
    """A program with its arguments and its log file. All but `start` may be called in any state."""

    def __init__(self, command: Sequence[str], log: Path, reaper: Reaper) -> None:
        self.name = Path(command[0]).name
        self.log = log
        self._command = list(command)
        self._reaper = reaper
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether it was stopped or frozen since whoever cares has set it back.
        self.was_away = False

    @property
    def running(self) -> bool:
        """Whether the process lives, be it frozen."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process, which leads a group of its own. Raises TestbedError where it has not been started."""
        if self._process is None:
            raise TestbedError(f"{self.name} does not run")
        return self._process.pid

    def start(self) -> None:
        """Start the process in a group of its own; its log goes on where it was."""
        if self.running:
            raise TestbedError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_ENV
            )
        self._reaper.tell("kill", self._process.pid)

    def stop(self) -> None:
        """Kill it, as a crash would: no notice to its clients, nothing finished."""
        self.was_away = True
        self._send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._reaper.tell("spare", self._process.pid)
            self._process = None

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers. Returns once no thread of it runs any more."""
        self.was_away = True
        self._send(signal.SIGSTOP)
        if self.running:
            until(f"{self.name} frozen", lambda: _thread_states(self.pid) == {"T"}, every_s=0.001)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._send(signal.SIGCONT)

    def check(self) -> None:
        """Raise TestbedError with the end of its log if it has ended by itself."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise TestbedError(f"{self.name} ended with exit code {code}; {self.log} ends with:\n{self.log_tail()}")

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _thread_states(pid: int) -> set[str]:
    """The state letters of a process's threads: T is stopped."""
    states = set()
    for stat in Path("/proc", str(pid), "task").glob("*/stat"):
        with suppress(FileNotFoundError):  # a thread that has just ended
            states.add(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0])
    return states


# A proxy or a kubeconfig of whoever runs the tests is none of the control plane's business.
_ENV = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "GOGC", "GOMAXPROCS")}
