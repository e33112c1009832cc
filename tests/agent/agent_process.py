"""An agent as a process of its own, to be killed: `python -m tests.agent.agent_process FOLDER SOCKET BOOT_ID_PATH URL`.

It reads the ring buffer that the test serves at the socket, and is the real agent in all else.
"""

import errno
import socket
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from daemon.agent.config import AgentConfig
from daemon.agent.kmsg import KmsgSource
from daemon.agent.metrics import AgentMetrics
from daemon.agent.run import Agent, Parts
from daemon.agent.sender import Sender, Who
from daemon.agent.spool import Spool
from tests.agent.machine import RULES, Buffer, OpenBuffer

RECORD, NONE_YET, OVERRUN = b"+", b"-", b"!"
_LONGEST = 1 << 16


class ServedRing:
    """The test's ring buffer, as an open device."""

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(str(path))

    def read(self) -> bytes | None:
        self._connection.send(b"r")
        answer = self._connection.recv(_LONGEST)
        if answer == OVERRUN:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        if answer[:1] == RECORD:
            return answer[1:]
        return None

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))

    def close(self) -> None:
        self._connection.close()


class RingServer:
    """Serves a buffer to any number of agents, each from the oldest record on."""

    def __init__(self, buffer: Buffer, path: Path) -> None:
        self.buffer = buffer
        self.path = path
        self.lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self.lock:
            opened = self.buffer.open(self.path)
        with connection:
            try:
                while connection.recv(16):
                    connection.send(self._answer(opened))
            except OSError:
                return

    def _answer(self, opened: OpenBuffer) -> bytes:
        with self.lock:
            try:
                raw = opened.read()
            except BrokenPipeError:
                return OVERRUN
        return NONE_YET if raw is None else RECORD + raw


def main(folder: Path, ring: Path, boot_id_path: Path, url: str) -> None:
    """Until somebody ends it."""
    config = AgentConfig(controller=url, token_file=folder / "token", backoff_max=0.5)
    with closing(Spool(folder / "spool", 4 << 20)) as spool:
        source = KmsgSource(
            RULES, "n1", spool.position, boot_id_path=boot_id_path, open_ring=lambda _: ServedRing(ring)
        )
        sender = Sender(config, Who("n1", boot_id_path.read_text().strip(), "1.0"))
        Agent(Parts(source, spool, sender, AgentMetrics(), backoff_max_s=0.5)).run(threading.Event())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
