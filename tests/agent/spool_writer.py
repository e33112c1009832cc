"""A process that uses a spool like an agent until it is killed: `python -m tests.agent.spool_writer FOLDER SEED`.

It reads on from the spool's position, and says on stdout, one JSON object a line, what it added, what the controller
would have got, and what was acknowledged; each only once that has been done.
"""

import json
import random
import sys
from pathlib import Path

from daemon.agent.position import Position
from daemon.agent.spool import Spool
from daemon.agent.wire import Report
from tests.agent.test_spool import report

LIMIT = 2 << 20


def logged(sequence: int) -> Report:
    """What the log of this node says there: floods of a fault, facts of one line, now and then a reset."""
    digest = (sequence * 2654435761) % 1000
    return report(sequence, code=1000 + sequence) if digest < 120 else report(sequence, code=digest % 3)


def main(folder: Path, seed: int) -> None:
    """Until somebody ends it."""
    rng = random.Random(seed)
    spool = Spool(folder, LIMIT)
    while True:
        begin = spool.position.sequence + 1 if spool.position is not None else 0
        some = [logged(number) for number in range(begin, begin + rng.randrange(1, 90))]
        spool.add(some, Position("kmsg", "boot", some[-1].event.sequence))
        say(added=some[-1].event.sequence)
        if rng.random() < 0.7:
            batch = spool.pending(rng.randrange(1, 100))
            say(taken=[(one.id, one.event.code, one.event.count) for one in batch])
            if rng.random() < 0.8:
                spool.acknowledge([one.id for one in batch])
                say(acknowledged=[one.id for one in batch])


def say(**what: object) -> None:
    """On stdout, at once."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
