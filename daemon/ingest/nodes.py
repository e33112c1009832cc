"""Which machine an address or an exporter's pod belongs to, learned from node_uname_info and kube_pod_info.

`daemon.ingest.naming` asks it for series that carry no node label of their own. A wrong machine is worse than none,
so an address that two machines claim at once names neither.
"""

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

Key = TypeVar("Key", bound=Hashable)

_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f.]*:[0-9a-f:.]*(%\w+)?", re.IGNORECASE)
#: What every machine calls itself: as an instance label it tells no two of them apart.
_ANY_MACHINE = frozenset({"localhost", "localhost.localdomain", "localhost6"})


def host_of(instance: str) -> str:
    """The host of an instance label: `10.0.0.7:9400` and `http://n1:9400/metrics` give the address alone."""
    if "://" in instance:
        try:
            return urlsplit(instance).hostname or instance
        except ValueError:  # an unclosed bracket
            return instance
    if instance.startswith("["):
        return instance[1:].split("]", 1)[0]
    head, _, port = instance.rpartition(":")
    return head if head and port.isdigit() and ":" not in head else instance


def is_machine_name(host: str) -> bool:
    """Whether a host is a name that can be one machine's own, not an address and not `localhost`."""
    return bool(host) and _ADDRESS.fullmatch(host) is None and host.lower() not in _ANY_MACHINE


def same_node(one: str, other: str) -> bool:
    """Whether two names are of one node: `n1` and `n1.cluster.local` are, two different full names never."""
    if one == other:
        return True
    if not (is_machine_name(one) and is_machine_name(other)):
        return False
    return one == other.split(".", 1)[0] or other == one.split(".", 1)[0]


class NodeNames:
    """Addresses and pods by node, as of the newest answer that spoke of them.

    `generation` rises whenever an answer says something new, so that names given before can be looked at again.
    """

    def __init__(self) -> None:
        self._host_of_uname: dict[str, str] = {}
        self._host_of_pod: dict[str, str] = {}
        self._pods: dict[tuple[str, str], str] = {}
        self._known: frozenset[str] = frozenset()
        self.generation = 0

    def learn(self, label_sets: Iterable[Mapping[str, str]]) -> None:
        """Take one answer's label sets of node_uname_info (instance, nodename) and kube_pod_info (pod, node, IPs).

        What an answer says replaces what the last one said, so memory is that of the present cluster; an answer
        without any kube_pod_info (its exporter is down) takes nothing back.
        """
        unames: dict[str, set[str]] = {}
        addresses: dict[str, set[str]] = {}
        pods: dict[tuple[str, str], set[str]] = {}
        for labels in label_sets:
            # where a scrape has labels of the same name, kube-state-metrics' own ones are called exported_*
            node = labels.get("exported_node") or labels.get("node") or labels.get("nodename")
            if not node:
                continue
            if labels.get("__name__") == "kube_pod_info":
                pod = labels.get("exported_pod") or labels.get("pod")
                if pod:
                    namespace = labels.get("exported_namespace") or labels.get("namespace", "")
                    pods.setdefault((namespace, pod), set()).add(node)
                for key in ("host_ip", "pod_ip", "internal_ip"):
                    if labels.get(key):
                        addresses.setdefault(labels[key], set()).add(node)
            elif labels.get("instance"):
                unames.setdefault(host_of(labels["instance"]), set()).add(node)
        by_uname = _unclaimed_twice(unames) or self._host_of_uname
        by_address = _unclaimed_twice(addresses) or self._host_of_pod
        by_pod = _unclaimed_twice(pods) or self._pods
        if (
            by_uname.items() - self._host_of_uname.items()
            or by_address.items() - self._host_of_pod.items()
            or by_pod.items() - self._pods.items()
        ):
            self.generation += 1
        self._host_of_uname, self._host_of_pod, self._pods = by_uname, by_address, by_pod
        self._known = frozenset({*by_uname.values(), *by_address.values(), *by_pod.values()})

    def of_host(self, instance: str) -> str | None:
        """The node at an address, with or without a port."""
        host = host_of(instance)
        return self._host_of_uname.get(host) or self._host_of_pod.get(host)

    def of_pod(self, namespace: str, pod: str) -> str | None:
        """The node a pod runs on."""
        return self._pods.get((namespace, pod))

    def knows(self, name: str) -> bool:
        """Whether a name is that of a node in this form; True where no node is known at all."""
        return not self._known or name in self._known


def _unclaimed_twice(claims: Mapping[Key, set[str]]) -> dict[Key, str]:
    return {key: next(iter(nodes)) for key, nodes in claims.items() if len(nodes) == 1}
