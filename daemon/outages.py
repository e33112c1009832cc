"""Outages of this site's GPUs, nodes and slots, out of the incidents in the ledger, and who is chronic by them.

`daemon.acting` asks at each tick where policy sends chronic things to service; `gpuwarden plan` and `gpuwarden chronic`
ask too. A score is looked at when an incident opens, and what it said then holds for as long as that incident is open:
nothing is taken out by its score alone, and what a person has given back stays so until its next outage.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from daemon.ledger import EntryError, EntryKind, Ledger, LedgerUnavailable, decode_body
from daemon.memory import Place
from detectors.chronic import ChronicLimits, ChronicScore, scores
from detectors.findings import Incident
from detectors.hazard import Exposure, Outage, kind_of
from remediation.shares import at_most
from rules.restore_schema import NO_OUTAGE, ChronicPolicy
from rules.vocabulary import Tier

log = structlog.get_logger()

_KINDS = (EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CLOSED)
#: What begins at the very moment of the question has begun.
_NOW = timedelta(seconds=1)
_NOWHERE: Place = ("", "", "")


def is_outage(incident: Incident) -> bool:
    """Whether an incident counts against the things that it is seen on: no suspicion, no common cause, hardware."""
    return incident.tier is not Tier.SUSPICION and not incident.held and incident.cause_class not in NO_OUTAGE


def outages_of(
    incidents: Iterable[Incident], places: Mapping[str, Place], created: Mapping[str, datetime] = {}
) -> Iterator[Outage]:
    """Each incident once for every GPU, slot and node that it was seen on.

    `places` says where GPUs sit, `created` since when the cluster has each node: what began before is an outage of
    another node of that name, and of its slots. A GPU that sits elsewhere by now takes no slot along.
    """
    for one in incidents:
        if not is_outage(one):
            continue
        began = _began(one)
        things = things_of(one, created)
        for gpu in one.gpu_uuids:
            node, index, _ = places.get(gpu, _NOWHERE)
            if index and node in one.nodes:
                things.append(_of_node(f"slot:{node}/{index}", node, began, created))
        for thing in things:
            yield Outage(thing, began, one.closed, one.cause_class.value)


def things_of(incident: Incident, created: Mapping[str, datetime]) -> list[str]:
    """The nodes and GPUs of an incident, as outages name them."""
    began = _began(incident)
    nodes = [_of_node(f"node:{node}", node, began, created) for node in incident.nodes]
    return nodes + [f"gpu:{gpu}" for gpu in incident.gpu_uuids]


def exposures_of(
    places: Mapping[str, Place], kind: str, since: datetime, created: Mapping[str, datetime] = {}
) -> Iterator[Exposure]:
    """All things of a kind that the daemon knows, also those that never failed.

    A node that the cluster has for a shorter time than `since` begins with its creation, and so do its slots; the one
    that had the name before ends there.
    """
    if kind == "gpu":
        things = {(f"gpu:{gpu}", "") for gpu in places}
    elif kind == "node":
        things = {(f"node:{node}", node) for node, _, _ in places.values() if node}
    else:
        things = {(f"slot:{node}/{index}", node) for node, index, _ in places.values() if node and index}
    for thing, node in sorted(things):
        born = created.get(node)
        if born is None or born <= since:
            yield Exposure(thing, since)
        else:
            yield Exposure(thing, born)
            yield Exposure(_of_node(thing, node, since, created), since, born)


def too_many(ranked: Sequence[ChronicScore], policy: ChronicPolicy) -> str:
    """Why nothing should be done by the scores of one kind: more of it is chronic than may be; "" where not."""
    chronic, most = sum(one.chronic for one in ranked), at_most(policy.max_share, None, len(ranked))
    if chronic <= most:
        return ""
    return (
        f"{chronic} of {len(ranked)} {kind_of(ranked[0].thing)}s are chronic at once, limit {most}: a common cause, or"
        " too little is known, so nothing is done by the score"
    )


class OutageBook:
    """What is known of outages, kept up to date from the ledger and from what this process sees itself.

    Not for several threads at once.
    """

    def __init__(self, ledger: Ledger, policy: ChronicPolicy) -> None:
        self._ledger = ledger
        self._policy = policy
        self._limits = ChronicLimits.of(policy)
        #: without their signals
        self._incidents: dict[str, Incident] = {}
        self._last_id = 0
        self._since: datetime | None = None
        #: by incident that is open: each of its things, and why it was chronic when it opened ("" where it was not)
        self._told: dict[str, dict[str, str]] = {}
        self._too_many: dict[str, str] = {}
        self._trouble = ""

    def chronic(
        self,
        incidents: Sequence[Incident],
        places: Mapping[str, Place],
        created: Mapping[str, datetime],
        closed: Sequence[Incident] = (),
    ) -> dict[str, str]:
        """Why things of the open incidents are chronic, by `gpu:<UUID>` or `node:<name>`; others are not in it.

        `closed` are the incidents that have just ended. Where the ledger cannot be read nothing is raised: nothing is
        said of new incidents, and it is asked again at the next call.
        """
        for one in (*closed, *incidents):
            self._incidents[one.id] = replace(one, signals=())
        mine = {one.id: one for one in incidents if is_outage(one)}
        self._told = {name: told for name, told in self._told.items() if name in mine}
        things = {name: things_of(one, created) for name, one in mine.items()}
        new = [mine[name] for name, of in things.items() if not set(of) <= self._told.get(name, {}).keys()]
        if new and self._read():
            outages = list(outages_of(self._incidents.values(), {}, created))
            for opened in sorted({one.opened for one in new}):
                here = [one.id for one in new if one.opened == opened]
                about = {thing for name in here for thing in things[name]}
                why = self._why(opened, about, outages, places, created)
                self._told |= {name: {thing: why.get(thing, "") for thing in things[name]} for name in here}
        return {thing: why for told in self._told.values() for thing, why in told.items() if why}

    def _why(
        self,
        opened: datetime,
        about: set[str],
        outages: Sequence[Outage],
        places: Mapping[str, Place],
        created: Mapping[str, datetime],
    ) -> dict[str, str]:
        """Why things were chronic at that moment. Scores are made only for kinds of which one of `about` could be."""
        at, why = opened + _NOW, dict[str, str]()
        counts = Counter(one.thing for one in outages if one.began < at)
        for kind in sorted({kind_of(thing) for thing in about if counts[thing] >= self._policy.min_outages}):
            mine = (one for one in outages if kind_of(one.thing) == kind)
            ranked = scores(mine, exposures_of(places, kind, self._since or opened, created), at, self._limits)
            self._tell(kind, too_many(ranked, self._policy))
            if not self._too_many[kind]:
                why |= {one.thing: one.why for one in ranked if one.chronic}
        return why

    def _tell(self, kind: str, why: str) -> None:
        if bool(why) != bool(self._too_many.get(kind)):
            told = log.warning if why else log.info
            told("chronic things", kind=kind, held=why or "no longer", next="see `gpuwarden chronic`")
        self._too_many[kind] = why

    def _read(self) -> bool:
        """Take up what the ledger has since the last time; False where it cannot be read, which is told once."""
        try:
            if self._since is None:
                begun = next(iter(self._ledger.entries(kind=EntryKind.RUN_STARTED, limit=1)), None)
                self._since = begun.at if begun is not None else None
            for entry in self._ledger.entries(kind=_KINDS, after_id=self._last_id):
                self._last_id = entry.id
                try:
                    self._take(entry.kind, decode_body(entry.body, Incident))
                except EntryError as error:
                    log.warning("not taken up from before", entry=entry.id, detail=str(error))
        except LedgerUnavailable as error:
            if str(error) != self._trouble:
                log.warning("outages cannot be read", detail=str(error), next="nobody is called chronic until they can")
            self._trouble = str(error)
            return False
        self._trouble = ""
        return True

    def _take(self, kind: EntryKind, incident: Incident) -> None:
        """What this process sees of an open incident is newer than the record of its opening."""
        if kind is EntryKind.INCIDENT_OPENED:
            self._incidents.setdefault(incident.id, replace(incident, signals=()))
        elif is_outage(incident):
            self._incidents[incident.id] = replace(incident, signals=())
        else:
            self._incidents.pop(incident.id, None)


def _began(incident: Incident) -> datetime:
    return min(incident.first_signal_at, incident.closed or incident.first_signal_at)


def _of_node(thing: str, node: str, at: datetime, created: Mapping[str, datetime]) -> str:
    """A node, or a slot of one, by the name that it had at that time: before its creation it was another one."""
    born = created.get(node)
    return thing if born is None or at >= born else f"{thing} before {born.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
