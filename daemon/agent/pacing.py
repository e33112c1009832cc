"""When a report goes out: what is new waits for nobody, and repeats of one fault come ever more seldom. Pure.

The spool keeps what belongs to one fault together as a few reports with counts. A flood of it is told after 1, 2, 4 ...
seconds and then every five minutes, so a day of it is some hundred messages, and none of the others waits for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

#: The first repeat waits so long, each other one twice as long as the one before it, up to the longest wait.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
#: So many different faults are remembered; beyond that a repeat may be sent at once.
_REMEMBERED = 1024


@dataclass(slots=True)
class Pace:
    """Which faults may be told now, by their keys. Times are of a monotonic clock, in seconds."""

    #: when it was sent last, and how long the next one waits
    _sent: dict[bytes, tuple[float, float]] = field(default_factory=dict)

    def is_due(self, key: bytes, now_s: float) -> bool:
        """Whether it is new, or was sent long enough ago."""
        return now_s >= self._due_s(key, now_s)

    def rest_s(self, keys: Iterable[bytes], now_s: float) -> float | None:
        """Until the first of these is due; None for none of them."""
        due_s = min((self._due_s(key, now_s) for key in keys), default=None)
        return None if due_s is None else max(0.0, due_s - now_s)

    def sent(self, keys: Iterable[bytes], now_s: float) -> None:
        """These have gone out. One that was quiet for twice its wait begins anew."""
        for key in dict.fromkeys(keys):
            sent_s, wait_s = self._sent.pop(key, (float("-inf"), 0.0))
            again = now_s - sent_s < 2 * wait_s
            self._sent[key] = now_s, min(2 * wait_s, LONGEST_WAIT_S) if again else FIRST_WAIT_S
        while len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def begin_anew(self) -> None:
        """A boundary went out (a reset, a driver's load): the same fault after it is another one."""
        self._sent = {key: (sent_s, FIRST_WAIT_S) for key, (sent_s, _) in self._sent.items()}

    def _due_s(self, key: bytes, now_s: float) -> float:
        sent_s, wait_s = self._sent.get(key, (now_s, 0.0))
        return sent_s + wait_s
