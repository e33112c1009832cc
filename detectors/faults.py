"""Open faults: what the kernel log (or an exporter's codes) said that has not been ended by anything yet.

Level-triggered: events only open, repeat or close faults; what is decided follows from the faults that are open now.
A fault ends by what its rule names (reboot, driver reload, GPU reset, a cancelling code, long silence), never because
a message about it was lost. Repeats cost a counter, not memory.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from detectors.boundaries import BootWatch
from detectors.classify import classify
from detectors.events import EXPORTER, KernelEvent
from detectors.fault import Fault, FaultKey
from detectors.findings import Signal
from detectors.gpu_map import SAME_FAULT, GpuMap, Place
from detectors.kernel_text import ResetPhase, reset_phase
from detectors.repeats import Occurrence, Repeats
from detectors.secondary import SecondaryTracker
from detectors.snapshot import Snapshot
from detectors.standing import Standing, escalations, standing_of
from detectors.thresholds import jobs_on
from rules.schema import RuleBook
from rules.vocabulary import FAULT_KINDS, Boundary, CauseClass, EventKind, FaultAction, Severity

#: Faults that may be open on one node before places are dropped, so that garbage in a log costs no memory. Lines that
#: the kernel did not write have little room of their own and never take a real fault's.
_MOST_TRUSTED, _MOST_UNTRUSTED = 512, 32
#: A cause may be logged so much later than its consequence.
_DISORDER = timedelta(seconds=10)
#: A line that comes later than this is not asked whether something has ended its fault meanwhile.
_LATEST = timedelta(days=7)
_EXPIRED = "expired"


class FaultBook:
    """All open faults of the fleet. `take` is given a snapshot's events and returns the signals that stand."""

    def __init__(self, rules: RuleBook) -> None:
        self._rules = rules
        self._open: dict[str, dict[FaultKey, Fault]] = defaultdict(dict)
        self._map = GpuMap()
        self._boots = BootWatch()
        self._repeats = Repeats(rules)
        self._secondary = SecondaryTracker(rules)
        self._recovery: dict[tuple[str, str], tuple[datetime, FaultAction]] = {}
        self._boundaries: dict[tuple[str, Boundary, str], datetime] = {}
        self._ended: dict[tuple[str, str, str], datetime] = {}
        self.counts: Counter[str] = Counter()

    def take(self, snapshot: Snapshot) -> list[Signal]:
        """Fold the snapshot's events in, let faults end, and return one signal an open fault.

        The order of the events does not matter: they are taken in the order of their times.
        """
        for old, _ in snapshot.replaced:
            self._forget_gpu(old)
        for place in self._map.see(snapshot):
            self._placed(place)
        for node, at in self._boots.look(snapshot):
            self._close(node, Boundary.REBOOT, at)
        rows = {gpu.uuid: row for row, gpu in enumerate(snapshot.gpus)} if snapshot.events else {}
        for event in sorted(snapshot.events, key=lambda event: _order(event, snapshot.at)):
            gpu = event.gpu_uuid or self._map.gpu_at(event.node, event.pci)
            jobs = jobs_on(snapshot, rows[gpu]) if gpu in rows else ()
            self._event(event, event.at or snapshot.at, gpu, jobs)
        for place in self._map.pair(snapshot.at):
            self._placed(place)
        self._end(lambda fault: fault.is_over(snapshot.at), _EXPIRED)
        self._repeats.expire(snapshot.at)
        self._boundaries = {key: at for key, at in self._boundaries.items() if snapshot.at - at < _LATEST}
        self._ended = {key: at for key, at in self._ended.items() if snapshot.at - at < _LATEST}
        return self._signals(snapshot.at)

    def open_faults(self) -> tuple[Fault, ...]:
        """What is open, in a fixed order."""
        return tuple(faults[key] for _, faults in sorted(self._open.items()) for key in sorted(faults))

    def restore(self, faults: Iterable[Fault]) -> None:
        """Take up faults that were open before a restart; they end by what would have ended them anyway.

        A node that booted meanwhile has ended its own already.
        """
        for fault in faults:
            over = self._boots.is_over(fault.node, fault.boot_id, fault.last)
            if over and Boundary.REBOOT in fault.standing.cleared_by:
                continue
            self._boots.remember(fault.node, fault.boot_id, fault.last)
            self._open[fault.node][fault.key] = fault
            if fault.asked is not None and fault.asked_at is not None:
                self._recovery[fault.node, fault.where] = fault.asked_at, fault.asked

    # ------------------------------------------------------------- taking in

    def _event(self, event: KernelEvent, at: datetime, gpu: str, jobs: tuple[str, ...]) -> None:
        self.counts[event.kind] += event.count
        booted = self._boots.told_by(event, at)
        if booted is not None:
            self._close(event.node, Boundary.REBOOT, booted)
        if event.kind in FAULT_KINDS:
            self._fault(event, at, gpu, jobs)
        elif event.trusted:
            self._boundary(event, at)

    def _boundary(self, event: KernelEvent, at: datetime) -> None:
        match event.kind:
            case EventKind.GPU_MAP if event.pci and event.gpu_uuid:
                if self._map.learn(event.node, event.pci, event.gpu_uuid):
                    self._placed(Place(event.node, event.pci, event.gpu_uuid))
            case EventKind.DRIVER_LOAD:
                self._secondary.mark(event)
                self._map.loaded(event.node, event.driver_version)
                self._close(event.node, Boundary.DRIVER_RELOAD, at)
            case EventKind.GPU_RESET if event.pci or event.gpu_uuid:
                if reset_phase(event.text) not in (ResetPhase.BEGIN, ResetPhase.FAILED):
                    self._close(event.node, Boundary.GPU_RESET, at, event.pci, gpu=event.gpu_uuid or "")
            case _:
                pass

    def _fault(self, event: KernelEvent, at: datetime, gpu: str, jobs: tuple[str, ...]) -> None:
        standing = standing_of(event, self._rules)
        if Boundary.REBOOT in standing.cleared_by and self._boots.is_over(event.node, event.boot_id, at):
            self.counts["before_boot"] += event.count
            return
        if self._was_ended(event, standing, at, gpu):
            self.counts["after_its_end"] += event.count
            return
        driver = self._map.driver_of(event.node) or event.driver_version
        event = self._secondary.mark(classify(event, self._rules, driver))
        self._map.sight(event, at)
        if event.trusted:
            for code in standing.cancels:
                self._cancel(event.node, gpu or event.pci or "", code)
            if standing.recovery:
                standing = self._recover(event, standing, at, gpu or event.pci or "")
        if standing.open:
            self._add(event, standing, at, gpu, jobs)

    def _recover(self, event: KernelEvent, standing: Standing, at: datetime, where: str) -> Standing:
        """The driver says what it needs: its newest word for the GPU counts, and `none` ends what it can end.

        It rides on another fault. Where none is open (the log was rotated), the request stands for itself.
        """
        known = self._recovery.get((event.node, where))
        if known is None or known[0] <= at:
            self._recovery[event.node, where] = at, event.action
        others = [fault for fault in self._open[event.node].values() if fault.where == where and _may_ask(fault)]
        for fault in others:
            fault.hear(event.action, at)
        if event.action is FaultAction.NONE:
            self._close(event.node, Boundary.RECOVERY_NONE, at, event.pci, gpu=where)
            return standing
        alone = all(fault.standing.recovery for fault in others) and event.action.rank >= FaultAction.RESET_GPU.rank
        return replace(standing, open=alone, cleared_by=standing.cleared_by | {Boundary.RECOVERY_NONE})

    def _add(self, event: KernelEvent, standing: Standing, at: datetime, gpu: str, jobs: tuple[str, ...]) -> None:
        """Open a fault, or count one more occurrence of it."""
        of_job = standing.cause_class is CauseClass.APPLICATION and bool(jobs)
        new = Fault(
            node=event.node,
            gpu=gpu,
            pci=event.pci or "",
            kind=event.kind,
            code=event.code,
            place=event.place or "",
            job=jobs[0] if of_job else "",
            first=at,
            last=at,
            text=event.text[:400],
            action=event.action,
            severity=Severity.UNKNOWN if standing.recovery else event.severity,
            trusted=event.trusted,
            secondary_to=event.secondary_to,
            standing=standing,
            boot_id=event.boot_id,
            heard={event.source: event.count},
            jobs=set(jobs),
        )
        heard = self._recovery.get((event.node, new.where))
        if heard is not None and _may_ask(new):
            new.hear(heard[1], heard[0])
        fault = self._keep(new)
        steps = escalations(event, self._rules)
        if fault is None or not steps:
            return
        who = Occurrence(at, fault.place, jobs[0] if jobs else "", event.pid, event.source == EXPORTER)
        self._repeats.add(event.node, fault.where, standing.name, who)
        for step in steps:
            times = self._repeats.reached(event.node, fault.where, standing.name, step, fault.place, at)
            if times:
                fault.escalate(step, times)

    def _keep(self, new: Fault) -> Fault | None:
        """The open fault that the new one is, or is part of; None where an untrusted one finds no room."""
        faults = self._open[new.node]
        most = _MOST_TRUSTED if new.trusted else _MOST_UNTRUSTED
        if new.key not in faults and sum(fault.trusted is new.trusted for fault in faults.values()) >= most:
            self.counts["over_limit"] += new.count
            if not new.trusted:
                return None
            new.place = new.job = ""
        known = faults.get(new.key)
        if known is not None:
            known.merge(new)
            return known
        faults[new.key] = new
        if new.trusted and new.kind in (EventKind.XID, EventKind.OFF_BUS):
            self._explain(new)
        return new

    def _explain(self, cause: Fault) -> None:
        """Mark what the new fault explains although it was logged, or arrived, a little before it."""
        for fault in self._open[cause.node].values():
            if (
                fault is not cause
                and fault.secondary_to is None
                and cause.code in fault.standing.explained_by
                and (fault.where == cause.where or fault.kind is EventKind.SXID)
                and -_DISORDER <= fault.first - cause.first <= timedelta(seconds=fault.standing.explained_within_s)
            ):
                fault.secondary_to = cause.code if cause.secondary_to is None else cause.secondary_to

    # --------------------------------------------------------- places and GPUs

    def _placed(self, place: Place) -> None:
        """A place's GPU became known: what was open at the address is open at the GPU."""
        faults = self._open[place.node]
        for key in [key for key in faults if key.where == place.pci]:
            fault = faults.pop(key)
            fault.gpu = place.gpu
            known = faults.setdefault(fault.key, fault)
            if known is not fault:
                known.merge(fault)
        recovery = self._recovery.pop((place.node, place.pci), None)
        if recovery is not None:
            self._recovery[place.node, place.gpu] = recovery
        self._repeats.move(place.node, place.pci, place.gpu)

    def _forget_gpu(self, gpu: str) -> None:
        """The board was replaced: its faults went with it, whatever else would have ended them."""
        self._end(lambda fault: fault.gpu == gpu, "replaced")
        self._recovery = {key: value for key, value in self._recovery.items() if key[1] != gpu}
        self._repeats.forget_gpu(gpu)

    # ---------------------------------------------------------------- ending

    def _close(self, node: str, boundary: Boundary, at: datetime, pci: str | None = None, gpu: str = "") -> None:
        """End what a boundary ends, on a whole node or at one GPU of it."""
        places = {place for place in (pci, gpu or self._map.gpu_at(node, pci)) if place}
        for place in places or {""}:
            self._boundaries[node, boundary, place] = max(at, self._boundaries.get((node, boundary, place), at))

        def ended(fault: Fault) -> bool:
            here = not places or bool(places & {fault.gpu, fault.pci})
            return here and boundary in fault.standing.cleared_by and fault.last < at

        self._end(ended, f"closed_by_{boundary}", node)
        if boundary is Boundary.RECOVERY_NONE:
            return
        # What the driver asked for before is answered, also for what outlives the boundary.
        for key in [key for key in self._recovery if key[0] == node and (not places or key[1] in places)]:
            if self._recovery[key][0] < at:
                del self._recovery[key]
        for fault in self._open[node].values():
            if (not places or places & {fault.gpu, fault.pci}) and fault.asked_at is not None and fault.asked_at < at:
                fault.asked = fault.asked_at = None

    def _was_ended(self, event: KernelEvent, standing: Standing, at: datetime, gpu: str) -> bool:
        """Whether its fault was over before the event came: by another road it may come late."""
        told = self._ended.get((event.node, gpu or event.pci or "", standing.name))
        if event.source == EXPORTER and told is not None and at - told < SAME_FAULT:
            return True
        return any(
            at < self._boundaries.get((event.node, boundary, place), at)
            for boundary in standing.cleared_by
            for place in {"", event.pci or "", gpu}
        )

    def _cancel(self, node: str, where: str, code: int) -> None:
        self._end(lambda fault: fault.code == code and fault.where == where, "cancelled", node)

    def _end(self, ended: Callable[[Fault], bool], why: str, node: str | None = None) -> None:
        for faults in self._open.values() if node is None else [self._open[node]]:
            for key in [key for key, fault in faults.items() if ended(fault)]:
                fault = faults.pop(key)
                if fault.is_logged and why != _EXPIRED:  # that one was silent for long, and so was its exporter
                    self._ended[fault.node, fault.where, fault.standing.name] = fault.last
                self.counts[why] += 1

    # --------------------------------------------------------------- telling

    def _signals(self, now: datetime) -> list[Signal]:
        weights = self._rules.policy.verdict
        found = []
        for fault in self.open_faults():
            secondary_to = fault.secondary_to if self._is_explained(fault) else None
            found.append(fault.signal(weights, now, secondary_to))
        return found

    def _is_explained(self, fault: Fault) -> bool:
        """Whether the fault that explains this one still stands and is no weaker; else it speaks for itself.

        A row that could not be remapped is a consequence of the memory error before it, and outlives it.
        """
        return fault.secondary_to is not None and any(
            other.code == fault.secondary_to
            and other is not fault
            and other.secondary_to is None
            and other.trusted
            and other.tier <= fault.tier
            and (other.where == fault.where or fault.kind is EventKind.SXID)
            for other in self._open[fault.node].values()
        )


def _may_ask(fault: Fault) -> bool:
    """Whether the driver's word about the GPU is about this fault: a program's is none of its business."""
    return fault.trusted and fault.cause_class is not CauseClass.APPLICATION


def _order(event: KernelEvent, now: datetime) -> tuple[object, ...]:
    """A total order: by time, then by everything that tells two events apart."""
    return (
        event.at or now,
        event.node,
        event.line,
        event.kind,
        -1 if event.code is None else event.code,
        event.pci or "",
        event.gpu_uuid or "",
        event.place or "",
        -1 if event.pid is None else event.pid,
        event.source,
        event.trusted,
        event.text,
        event.count,
        event.registers,
    )
