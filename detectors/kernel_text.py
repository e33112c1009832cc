"""What a kernel message says: the grammar of the NVIDIA, NVSwitch and amdgpu drivers' records.

Takes a record's text without its frame (`detectors.kernel_framing`) and returns the event it states, or the part it is
of a longer statement, which `detectors.kernel_assembly` puts together. Nothing is judged here: class, action and the
meaning of a number come from the rule packs (`detectors.classify`).
"""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from detectors.events import KernelEvent
from detectors.identity import normal_pci
from rules.schema import RuleBook
from rules.vocabulary import EventKind, Severity

#: The driver's name for a GPU that stopped answering on PCIe. Records without a number get the number of this row.
OFF_BUS_MNEMONIC = "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"

_OURS = re.compile(r"NVRM:|nvidia-nvswitch[0-9]+:? SXid|\[drm\] amdgpu\b|\[drm:amdgpu|(?:kfd kfd: )?amdgpu\b")
_HEX_PCI = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_PCI = re.compile(rf"(?<![0-9a-fA-F])(?<![0-9a-fA-F]:){_HEX_PCI}(?![0-9a-fA-F:])")
_OLD_PCI = re.compile(r"[0-9a-fA-F]{2}([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?![0-9a-fA-F:])")

_XID = re.compile(
    r"NVRM:\s*Xid\s*\((?P<where>[^()]{1,120})\)\s*:\s*(?P<code>[0-9]{1,6})(?!\w)(?P<detail>.*)", re.DOTALL
)
_XID_WORD = re.compile(r"NVRM:\s*Xid\b")
_SXID = re.compile(
    r"nvidia-nvswitch[0-9]+:? SXid\s*\((?P<where>[^()]{1,60})\)\s*:\s*(?P<code>[0-9]{1,6})(?!\w)(?P<detail>.*)",
    re.DOTALL,
)
_GPU_INSTANCE = re.compile(r"\bGPU-I:\s*([0-9]{1,4})")
_COMPUTE_INSTANCE = re.compile(r"\bGPU-CI:\s*([0-9]{1,4})")
_PID = re.compile(r"\s*,\s*pid=(?:([0-9]{1,10})\b|[^,]*)")
_NAME = re.compile(r"\s*,\s*name=")
#: What follows a process name in the driver's records; a name may itself hold a comma.
_AFTER_NAME = re.compile(
    r"Ch\b|[Cc]hannel\b|engmask|errorString|Graphics|GPU\b|GSP|Timeout|(?:Unc|C)ontained|Class |Row |NVLink|Info|MMU"
)
_MAX_NAME = 64
_GPC_TPC = re.compile(r"\bGPC\s*([0-9]{1,4})\s*,?\s*TPC\s*([0-9]{1,4})")
_LINK = re.compile(r"\blink\s*([0-9]{1,4})", re.IGNORECASE)
_ENGINE_INSTANCE = re.compile(r"\bSeverity\s+([0-9]+)\s+Engine instance\s+([0-9]{1,4})")
_REGISTERS = re.compile(r"[({]\s*((?:0x[0-9a-fA-F]{1,16}\b[,\s]*)+)")
_HEX = re.compile(r"0x([0-9a-fA-F]{1,16})\b")
#: `RLW_SRC_TRACK Nonfatal XC1 i0 Link 17`: the unit, and the driver's own word for how grave it is.
_UNIT_AND_WORD = re.compile(
    r"\b([A-Z][A-Z0-9_/]{2,40}(?: (?!Link|Non|Fatal)[A-Z][a-z]+)?)\s+(?:Link )?((?i:Non-?fatal|Fatal))\b"
)
_SXID_DATA = re.compile(r"\s*,\s*Data\s*\{")
_SXID_WORD = re.compile(r"\s*,\s*(Non-?fatal|Fatal)\b", re.IGNORECASE)
_RECOVERY = re.compile(r"recovery action\b.*?\bto\s+0x([0-9a-fA-F]{1,8})\b", re.IGNORECASE | re.DOTALL)

_OFF_BUS = "fallen off the bus"
_OFF_BUS_HEAD = re.compile(rf"NVRM:\s*The NVIDIA GPU\s+({_HEX_PCI})\b")
_OFF_BUS_BODY = re.compile(r"NVRM:\s*(?:\(PCI ID|installed in this|fallen off the bus)")
_LOAD = re.compile(r"NVRM:\s*loading NVIDIA UNIX.*?\s([0-9]{3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?)(?![0-9.])")
_AMD_LOAD = re.compile(r"\[drm\] amdgpu kernel modesetting enabled")
_GPU_MAP = re.compile(rf"NVRM:\s*GPU at (?:PCI:)?({_HEX_PCI}):\s*(GPU-[0-9a-fA-F-]{{36}})")
_PROBE_FAILED = re.compile(r"NVRM:\s*The NVIDIA probe routine failed\b")
_RESET = re.compile(
    r"\bGPU reset(?:\s*\([0-9]+\))?\s+"
    r"(?:(?P<begin>begin|start)|(?P<done>succeeded|complete|done|executed)|(?P<failed>failed|end with ret = -))",
    re.IGNORECASE,
)


class Part(StrEnum):
    """Which part of a statement a record is. WHOLE needs nothing else."""

    WHOLE = "whole"
    OFF_BUS_HEAD = "off_bus_head"
    OFF_BUS_BODY = "off_bus_body"
    OFF_BUS_TAIL = "off_bus_tail"
    SXID_TEXT = "sxid_text"
    SXID_SEVERITY = "sxid_severity"
    SXID_DATA = "sxid_data"


class ResetPhase(StrEnum):
    """How far a GPU reset has come; a BEGIN without a DONE is a reset that hangs (ROCm/legacy-rocm-build#3766)."""

    BEGIN = "begin"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Statement:
    """What one record states. `event` has text, code and place, and neither line nor time yet."""

    event: KernelEvent
    part: Part = Part.WHOLE


@dataclass(frozen=True, slots=True)
class Malformed:
    """A record that begins like a fault and then makes no sense: worth a count, not a fault."""

    text: str


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What the grammar needs from the rule packs: one number, and the patterns of AMD's fault lines."""

    off_bus_code: int | None
    ras: tuple[re.Pattern[str], ...]

    @staticmethod
    def of(rules: RuleBook) -> "Lexicon":
        """The lexicon of a rule book."""
        return Lexicon(
            off_bus_code=off_bus_code(rules),
            ras=tuple(re.compile(rule.pattern) for rule in rules.ras.values()),
        )


def off_bus_code(rules: RuleBook) -> int | None:
    """The code of a GPU that fell off the bus, found by the driver's name for it; None where no pack has the row."""
    return next((code for code, rule in rules.xid.items() if OFF_BUS_MNEMONIC in rule.mnemonic), None)


def reset_phase(text: str) -> ResetPhase | None:
    """How far the GPU reset in this text has come; None where the text is about something else.

    >>> reset_phase("amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) succeeded!")
    <ResetPhase.DONE: 'done'>
    """
    found = _RESET.search(text)
    return None if found is None or found.lastgroup is None else ResetPhase(found.lastgroup)


def said_severity(event: KernelEvent) -> Severity:
    """The driver's own word in the event's text for how grave the fault is, whatever has been judged since."""
    if event.kind is EventKind.XID:
        return _unit_and_severity(spoken(event))[1]
    found = _SXID.match(event.text) if event.kind is EventKind.SXID else None
    return _sxid_severity(found["detail"]) if found is not None else Severity.UNKNOWN


def spoken(event: KernelEvent) -> str:
    """The record's text without the process name, which is no word of the driver's: a user may choose it."""
    if event.process is None:
        return event.text
    return event.text.replace(f"name={event.process}", "name=", 1)


def read_text(text: str, lexicon: Lexicon, *, trusted: bool = True) -> Statement | Malformed | None:
    """The statement in a record's text, or None where it says nothing about a GPU.

    Text before the driver's own prefix means that somebody else is speaking: the event is then not trusted.
    """
    start = _OURS.search(text)
    if start is None:
        return None
    said = text[start.start() :].rstrip()
    found = _read(said, lexicon)
    if isinstance(found, Statement) and not (trusted and start.start() == 0):
        return replace(found, event=replace(found.event, trusted=False))
    return found


def _read(text: str, lexicon: Lexicon) -> Statement | Malformed | None:
    if text.startswith("NVRM:"):
        if _XID_WORD.match(text):
            return _xid(text)
        return _off_bus(text, lexicon) or _nvidia(text)
    if text.startswith("nvidia-nvswitch"):
        return _sxid(text)
    return _amd(text, lexicon)


def _xid(text: str) -> Statement | Malformed:
    found = _XID.match(text)
    pci = _pci_of(found["where"]) if found is not None else None
    if found is None or pci is None:
        return Malformed(text)
    where, detail = found["where"], found["detail"]
    pid, process, rest = _process(detail)
    unit, severity = _unit_and_severity(rest)
    recovery = _RECOVERY.search(rest)
    event = KernelEvent(
        kind=EventKind.XID,
        code=int(found["code"]),
        text=text,
        pci=pci,
        gpu_instance=_number(_GPU_INSTANCE.search(where)),
        compute_instance=_number(_COMPUTE_INSTANCE.search(where)),
        pid=pid,
        process=process,
        severity=severity,
        unit=unit,
        place=_place(rest),
        registers=_registers(rest),
        recovery_value=int(recovery[1], 16) if recovery is not None else None,
    )
    return Statement(event)


def _process(detail: str) -> tuple[int | None, str | None, str]:
    """Process id and name out of what follows the code, and the rest, which nobody but the driver wrote."""
    pid = _PID.match(detail)
    if pid is None:
        return None, None, detail
    number = int(pid[1]) if pid[1] else None
    rest = detail[pid.end() :]
    named = _NAME.match(rest)
    if named is None:
        return number, None, rest
    rest = rest[named.end() :]
    commas = [comma.start() for comma in re.finditer(", ", rest[:_MAX_NAME])]
    cut = next((comma for comma in commas if _AFTER_NAME.match(rest, comma + 2)), commas[0] if commas else len(rest))
    name = rest[:cut][:_MAX_NAME]
    return number, None if name in ("", "<unknown>", "'<unknown>'") else name, rest[cut:]


def _sxid(text: str) -> Statement | Malformed:
    found = _SXID.match(text)
    pci = _pci_of(found["where"]) if found is not None else None
    if found is None or pci is None:
        return Malformed(text)
    detail = found["detail"]
    event = KernelEvent(
        kind=EventKind.SXID,
        code=int(found["code"]),
        text=text,
        pci=pci,
        severity=_sxid_severity(detail),
        registers=_registers(detail),
    )
    engine = _ENGINE_INSTANCE.search(detail)
    if engine is not None:
        # The engine instance of a link's error is the link's number (nvswitch error_nvswitch.c).
        return Statement(replace(event, place=f"link {int(engine[2])}"), Part.SXID_SEVERITY)
    if _SXID_DATA.match(detail):
        return Statement(event, Part.SXID_DATA)
    return Statement(replace(event, place=_place(detail)), Part.SXID_TEXT)


def _sxid_severity(detail: str) -> Severity:
    """The word of the text record, or the number of the severity record: 0 is non-fatal and 1 fatal."""
    number = _ENGINE_INSTANCE.search(detail)
    if number is not None:
        return Severity.FATAL if number[1].strip("0") else Severity.NONFATAL
    word = _SXID_WORD.match(detail)
    return _severity(word[1]) if word is not None else Severity.UNKNOWN


def _off_bus(text: str, lexicon: Lexicon) -> Statement | None:
    """A GPU that is gone, told without a number: in one record, or as a part of three."""
    head = _OFF_BUS_HEAD.match(text)
    off_bus = KernelEvent(EventKind.OFF_BUS, lexicon.off_bus_code, text, pci=normal_pci(head[1]) if head else None)
    if _OFF_BUS in text:
        if head is None and _OFF_BUS_BODY.match(text):
            return Statement(off_bus, Part.OFF_BUS_TAIL)
        return Statement(off_bus if head else replace(off_bus, pci=_pci_of(text)))
    if head is not None:
        return Statement(off_bus, Part.OFF_BUS_HEAD)
    return Statement(off_bus, Part.OFF_BUS_BODY) if _OFF_BUS_BODY.match(text) else None


def _nvidia(text: str) -> Statement | None:
    """What the driver says about itself and the GPUs it found."""
    load = _LOAD.match(text)
    if load is not None:
        return Statement(KernelEvent(EventKind.DRIVER_LOAD, None, text, driver_version=load[1]))
    mapped = _GPU_MAP.match(text)
    if mapped is not None:
        return Statement(KernelEvent(EventKind.GPU_MAP, None, text, pci=normal_pci(mapped[1]), gpu_uuid=mapped[2]))
    if _PROBE_FAILED.match(text):
        return Statement(KernelEvent(EventKind.PROBE_FAILED, None, text))
    return _reset(text)


def _amd(text: str, lexicon: Lexicon) -> Statement | None:
    if _AMD_LOAD.match(text):
        return Statement(KernelEvent(EventKind.DRIVER_LOAD, None, text))
    for pattern in lexicon.ras:
        found = pattern.search(text)
        if found is not None:
            return None if _is_zero(found) else Statement(KernelEvent(EventKind.RAS, None, text, pci=_pci_of(text)))
    # A pack may call the begin of a reset a fault, which its end then clears; the end is never a fault.
    return _reset(text)


def _is_zero(found: re.Match[str]) -> bool:
    """Whether the pattern's `count` group is 0: the driver reports health the same way as faults."""
    count = found.groupdict().get("count")
    return count is not None and count.isdecimal() and not count.strip("0")


def _reset(text: str) -> Statement | None:
    if reset_phase(text) is None:
        return None
    return Statement(KernelEvent(EventKind.GPU_RESET, None, text, pci=_pci_of(text)))


def _pci_of(text: str) -> str | None:
    found = _PCI.search(text)
    if found is not None:
        return normal_pci(found[0])
    old = _OLD_PCI.search(text)  # drivers before 256 print bus (four digits) and device
    return f"0000:{old[1]}:{old[2]}".lower() if old is not None else None


def _place(text: str) -> str | None:
    gpc = _GPC_TPC.search(text)
    if gpc is not None:
        return f"GPC {int(gpc[1])} TPC {int(gpc[2])}"
    link = _LINK.search(text)
    return f"link {int(link[1])}" if link is not None else None


def _registers(text: str) -> tuple[int, ...]:
    """The first bracketed list of hexadecimal numbers, complete or cut off."""
    found = _REGISTERS.search(text)
    return tuple(int(value, 16) for value in _HEX.findall(found[1])) if found is not None else ()


def _severity(word: str) -> Severity:
    return Severity.FATAL if word.lower() == "fatal" else Severity.NONFATAL


def _unit_and_severity(words: str) -> tuple[str | None, Severity]:
    found = _UNIT_AND_WORD.search(words)
    return (found[1], _severity(found[2])) if found is not None else (None, Severity.UNKNOWN)


def _number(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found is not None else None
