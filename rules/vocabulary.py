"""The words every other part uses: choices that packs, detectors and plans share.

Lowest module of the house: it imports nothing of ours. The values are what people see in YAML, in reports
and in the ledger, so a value, once released, keeps its meaning.
"""

from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """How strong a piece of evidence is. What a tier may cause is policy, above one floor: SUSPICION never drains."""

    FACT = 0
    TREND = 1
    SUSPICION = 2


class CauseClass(StrEnum):
    """What kind of thing went wrong, as an incident says it."""

    HARDWARE = "hardware"
    MEMORY = "memory"
    LINK = "link"
    THERMAL = "thermal"
    POWER = "power"
    DRIVER = "driver"
    APPLICATION = "application"
    JOB = "job"
    STORAGE = "storage"
    NETWORK = "network"
    TELEMETRY = "telemetry"
    MAINTENANCE = "maintenance"
    UNKNOWN = "unknown"


class FaultClass(StrEnum):
    """The coarser class that one log line can support (`gpuwarden xid decode`)."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    DRIVER = "driver"
    LINK = "link"
    THERMAL = "thermal"
    INFO = "info"
    UNKNOWN = "unknown"


class FaultAction(StrEnum):
    """What a fault asks for, from the driver's or the catalog's point of view. Ordered by `RANK`."""

    NONE = "none"
    RESTART_APP = "restart_app"
    FOLLOW_154 = "follow_154"
    INSPECT = "inspect"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        """Position in the order of severity, so that the strongest of several requests wins."""
        return list(FaultAction).index(self)


class Action(StrEnum):
    """What gpuwarden decides about a node, a GPU or a job."""

    WATCH = "watch"
    RESTART_JOB = "restart_job"
    CHECKPOINT = "checkpoint"
    NO_NEW_WORK = "no_new_work"
    CORDON = "cordon"
    DRAIN = "drain"
    DIAGNOSE = "diagnose"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    QUARANTINE = "quarantine"
    RELEASE = "release"


#: Actions that end somebody's work or take capacity away until they are undone.
DISRUPTIVE = frozenset(
    {Action.CORDON, Action.DRAIN, Action.RESET_GPU, Action.REBOOT_NODE, Action.QUARANTINE, Action.RESTART_JOB}
)

#: Actions that are work on the node itself, which a Job does there where policy has switched it on.
OPERATIONS = (Action.DIAGNOSE, Action.RESET_GPU, Action.REBOOT_NODE)


class EventKind(StrEnum):
    """What a kernel log record says."""

    XID = "xid"
    SXID = "sxid"
    RAS = "ras"
    OFF_BUS = "off_bus"
    DRIVER_LOAD = "driver_load"
    GPU_RESET = "gpu_reset"
    PROBE_FAILED = "probe_failed"
    GPU_MAP = "gpu_map"
    COVERAGE_LOST = "coverage_lost"
    NODE_STATE = "node_state"


#: Kinds that are faults, the ones `gpuwarden xid decode` prints.
FAULT_KINDS = frozenset({EventKind.XID, EventKind.SXID, EventKind.RAS, EventKind.OFF_BUS})


class Severity(StrEnum):
    """How grave the record itself says the fault is, or the catalog where the record doesn't."""

    INFO = "info"
    NONFATAL = "nonfatal"
    FATAL = "fatal"
    UNKNOWN = "unknown"


class SignalKind(StrEnum):
    """How the numbers of a signal behave, which decides the arithmetic that is allowed on it."""

    GAUGE = "gauge"  # a level; average and compare freely
    COUNTER = "counter"  # only grows; a decrease is a reset, and only its increase means anything
    STATE = "state"  # a bit mask or an enumeration; test bits, never average
    CODE = "code"  # the last code seen; categorical, sticky, no arithmetic at all
    RATE = "rate"  # a gauge that is already per second, whatever its TYPE line says
    WINDOW_COUNT = "window_count"  # a count inside a sliding window; only its rises mean anything
    LIFETIME = "lifetime"  # a persistent level that grows over years; a drop means the part was swapped


class SignalScope(StrEnum):
    """What one value of a signal belongs to."""

    GPU = "gpu"
    NODE = "node"


class IncidentScope(StrEnum):
    """How far one cause reaches."""

    GPU = "gpu"
    NODE = "node"
    LINK = "link"
    SWITCH = "switch"
    RACK = "rack"
    FLEET = "fleet"


class Boundary(StrEnum):
    """What ends a fault that the log opened."""

    REBOOT = "reboot"
    DRIVER_RELOAD = "driver_reload"
    GPU_RESET = "gpu_reset"
    RECOVERY_NONE = "recovery_none"
    SERVICE = "service"  # only a person or a repair record
