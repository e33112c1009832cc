"""How NVIDIA's Fabric Manager is, by its own log: without it no GPU of an NVSwitch machine starts any work.

Its records have a level and a thread, `[ERROR] [tid 25] ...`; once it is done, it has `Successfully configured` the
switches (as public reports show it). What it says of single links is the kernel's to tell, as SXIDs: an error here
is shown and asks for a look, nothing more.
"""

import os
import re
from pathlib import Path

PATH = Path("/var/log/fabricmanager.log")
_RECORD = re.compile(rb"\[(ERROR|CRITICAL)\]|Successfully configured")
#: So much of the log's end is read in one look.
_WINDOW_BYTES = 64 * 1024
_MOST_TEXT = 300


class FabricLog:
    """Its log from look to look; a file that was made anew is read from its begin."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path
        self._file = 0
        self._offset = 0
        self._state: str | None = None

    def look(self) -> str | None:
        """The last error after which nothing was configured, "" where all is well, None where there is no log."""
        try:
            with self._path.open("rb") as log:
                about = os.fstat(log.fileno())
                if about.st_ino != self._file or about.st_size < self._offset:
                    self._file, self._offset, self._state = about.st_ino, 0, ""
                log.seek(max(self._offset, about.st_size - _WINDOW_BYTES))
                data = log.read(_WINDOW_BYTES)
                whole = data.rfind(b"\n") + 1
                self._offset = log.tell() - len(data) + whole
        except OSError:
            self._file, self._state = 0, None
            return None
        for line in data[:whole].splitlines():
            found = _RECORD.search(line)
            if found is not None:
                self._state = line.decode("utf-8", "replace").strip()[:_MOST_TEXT] if found[1] else ""
        return self._state
