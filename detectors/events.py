"""What kernel logs say, as values: one driver fault or boundary a record.

Made by `detectors.kernel_log`, used by `detectors.faults`; `gpuwarden xid decode` prints them.
"""

from dataclasses import dataclass, field
from datetime import datetime

from rules.vocabulary import EventKind, FaultAction, FaultClass, Severity

#: The source of an event that came as a metric; all others are logs.
EXPORTER = "exporter"


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One fault or boundary that the driver logged.

    `at` is None where the record has no absolute time; `monotonic_s` is seconds since boot where the record has
    that. `source` is the road by which the event came (log, journal, kmsg, loki, exporter; with `agent` before it where
    a node's agent read it): the same by two roads is one event. `trusted` is False for text that did not come from the
    kernel: such an event is shown and never acted on. `place` is where on the GPU it happened
    (`GPC 1 TPC 3`, `link 14`), for rules that look for repeats at one place. `line` is 1-based.
    """

    kind: EventKind
    code: int | None
    text: str
    line: int = 0
    at: datetime | None = None
    monotonic_s: float | None = None
    sequence: int | None = None
    pci: str | None = None
    gpu_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: int | None = None
    process: str | None = None
    severity: Severity = Severity.UNKNOWN
    cause_class: FaultClass = FaultClass.UNKNOWN
    action: FaultAction = FaultAction.NONE
    secondary_to: int | None = None
    trusted: bool = True
    node: str = ""
    boot_id: str = ""
    source: str = "log"
    unit: str | None = None
    place: str | None = None
    registers: tuple[int, ...] = ()
    recovery_value: int | None = None
    driver_version: str | None = None
    count: int = 1
    notes: tuple[str, ...] = field(default=())

    @property
    def is_boundary(self) -> bool:
        """Whether a fault before it and the same fault after it are two: a reset, a reload, the driver's own advice."""
        ends = self.kind in (EventKind.GPU_RESET, EventKind.DRIVER_LOAD) or self.recovery_value is not None
        return self.trusted and ends
