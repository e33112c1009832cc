"""Writes a flood into a log: `python -m tests.bench_agent.flood LOG NODE PCI KIND LINES_PER_S SECONDS`.

KIND `repeats` is one XID over and over; `mixed` is half of that, and half the same fault with another process, channel
and address in each line. One JSON object at the end: how many lines and bytes, in how many seconds.
"""

import json
import sys
import time
from pathlib import Path

from tests.bench_agent.agents import frame

SLICE_S = 0.02


def slice_of(head: str, pci: str, kind: str, count: int, first: int) -> bytes:
    """So many lines at one moment."""
    same = f"{head}NVRM: Xid (PCI:{pci}): 31, pid=4711, name=python3, Ch 00000008, intr 10000000. MMU Fault\n"
    if kind == "repeats":
        return (same * count).encode()
    half = count // 2
    lines = [
        f"{head}NVRM: Xid (PCI:{pci}): 31, pid={first + n}, name=rank{n & 7}, Ch {n & 63:08x}, intr 10000000. "
        f"MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_{n & 15} faulted @ 0x7f{(first + n) * 4096:010x}. "
        "Fault is of type FAULT_PDE\n"
        for n in range(half)
    ]
    return "".join(line for distinct in lines for line in (same, distinct)).encode() + (same * (count % 2)).encode()


def main() -> int:
    log, node, pci, kind, rate, seconds = sys.argv[1:7]
    count = round(float(rate) * SLICE_S)
    lines = size = 0
    began_s = time.monotonic()
    with Path(log).open("ab", buffering=0) as file:
        for number in range(round(float(seconds) / SLICE_S)):
            time.sleep(max(0.0, began_s + number * SLICE_S - time.monotonic()))
            data = slice_of(frame(node), pci, kind, count, lines)
            file.write(data)
            lines, size = lines + count, size + len(data)
    print(json.dumps({"lines": lines, "bytes": size, "seconds": time.monotonic() - began_s}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
