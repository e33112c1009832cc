"""journalctl as a process: a question with an answer, or the journal as it grows. The journal's own library is in C."""

import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from daemon.agent.position import SourceError

#: What is printed of each entry beside its times, its boot and its cursor.
FIELDS = "MESSAGE,MESSAGE_ID,SYSLOG_FACILITY,_TRANSPORT,_HOSTNAME,_SOURCE_MONOTONIC_TIMESTAMP"
#: As JSON, an entry that is longer than this is none of the kernel's.
_LINE_BYTES = 256 * 1024
_CHUNK_BYTES = 64 * 1024
_CHUNKS = 16
_ANSWER_S = 60.0
_END_S = 5.0
_SAID_BYTES = 2000


class Refused(Exception):
    """journalctl ended with an error; the text is what it said."""


class Ended(Exception):
    """The process that followed the journal is gone; the text is what it said."""


class Follower(Protocol):
    """The journal as it grows."""

    def read(self) -> list[bytes]:
        """Entries that are there, each as a line of JSON. Raises Ended once there will be no more."""
        ...

    def wait(self, seconds: float) -> None:
        """Until there is something to read, or so long."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Program(Protocol):
    """What the source asks of journalctl. Arguments are journalctl's own."""

    def ask(self, arguments: Sequence[str]) -> list[bytes]:
        """All entries, each as a line of JSON. Raises Refused, and SourceError where the program cannot be run."""
        ...

    def follow(self, arguments: Sequence[str]) -> Follower:
        """The entries that are there and those that will be. Raises SourceError where the program cannot be run."""
        ...


class Journalctl:
    """The real one. `folder` is where the journal's files are, None for the machine's own."""

    def __init__(self, program: str = "journalctl", folder: Path | None = None) -> None:
        place = () if folder is None else (f"--directory={folder}",)
        self._command = (program, "--output=json", "--all", "--no-pager", f"--output-fields={FIELDS}", *place)

    def ask(self, arguments: Sequence[str]) -> list[bytes]:
        """All entries. Raises Refused, SourceError."""
        try:
            answer = subprocess.run(  # noqa: S603 - the program is the site's, the arguments are ours
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_ANSWER_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"{self._command[0]} gave no answer within {_ANSWER_S:.0f} s") from error
        except OSError as error:
            raise self._missing(error) from error
        if answer.returncode != 0:
            raise Refused(_words(answer.stderr) or f"exit code {answer.returncode}")
        return answer.stdout.split(b"\n")

    def follow(self, arguments: Sequence[str]) -> "Process":
        """The entries that are there and those that will be. Raises SourceError."""
        try:
            return Process([*self._command, "--follow", "--no-tail", *arguments])
        except OSError as error:
            raise self._missing(error) from error

    def _missing(self, error: OSError) -> SourceError:
        return SourceError(
            f"{self._command[0]} cannot be run: {error.strerror}; the agent's image needs systemd's journalctl, or set"
            " agent.source to kmsg"
        )


class Process:
    """A journalctl that follows. Ends by itself once nobody reads it any more."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - as above
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdout is not None  # noqa: S101 - since both are pipes
        assert self._process.stderr is not None  # noqa: S101
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._poll = select.poll()
        for descriptor in (self._out, self._err):
            os.set_blocking(descriptor, False)
        self._poll.register(self._out, select.POLLIN)
        self._partial = b""
        self._skipping = False
        self._said = b""

    def read(self) -> list[bytes]:
        """The entries that are there, some at a time. Raises Ended."""
        lines: list[bytes] = []
        for _ in range(_CHUNKS):
            self._said = (self._said + (_chunk(self._err) or b""))[-_SAID_BYTES:]
            chunk = _chunk(self._out)
            if chunk is None:
                break
            if not chunk:
                if lines:
                    break
                raise Ended(self._end())
            lines += self._lines(chunk)
        return lines

    def _lines(self, chunk: bytes) -> list[bytes]:
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        if self._skipping and whole:
            del whole[0]
            self._skipping = False
        if len(self._partial) > _LINE_BYTES:
            self._partial, self._skipping = b"", True
        return whole

    def wait(self, seconds: float) -> None:
        """Until there is something to read, or so long."""
        self._poll.poll(max(0.0, seconds) * 1000)

    def close(self) -> None:
        """End the process."""
        self._end()

    def _end(self) -> str:
        self._process.terminate()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._said = (self._said + (_chunk(self._err) or b""))[-_SAID_BYTES:]
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return _words(self._said) or f"exit code {code}"


def _chunk(descriptor: int) -> bytes | None:
    """What there is; None for nothing yet, empty at the end."""
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:
        return None


def _words(said: bytes) -> str:
    return " ".join(said.decode("utf-8", "replace").split())
