"""Which machine a series is about: nodes under many names, and addresses that several claim."""

import pytest

from daemon.ingest.naming import NodeName
from daemon.ingest.nodes import NodeNames, host_of, same_node
from rules.schema import RuleBook
from tests.ingest.builders import Labels, namer

# ------------------------------------------------------------------------------------------------- nodes


def cluster() -> NodeNames:
    """node-7 has host address 10.0.0.7, and its exporter pod 10.1.0.7."""
    nodes = NodeNames()
    nodes.learn(
        [
            {"__name__": "node_uname_info", "instance": "10.0.0.7:9100", "nodename": "node-7"},
            {
                "__name__": "kube_pod_info",
                "namespace": "gpu-operator",
                "pod": "nvidia-dcgm-exporter-d2khm",
                "node": "node-7",
                "host_ip": "10.0.0.7",
                "pod_ip": "10.1.0.7",
            },
            {
                "__name__": "kube_pod_info",
                "namespace": "monitoring",
                "pod": "kube-state-metrics-0",
                "node": "cpu-1",
                "exported_namespace": "gpu-operator",
                "exported_pod": "exporter-of-node-8",
                "exported_node": "node-8",
            },
        ]
    )
    return nodes


WHERE = [
    pytest.param(
        {"node": "node-7", "Hostname": "other", "instance": "1.2.3.4:9400"}, "node-7", True, id="the node label first"
    ),
    pytest.param({"Hostname": "node-7", "instance": "1.2.3.4:9400"}, "node-7", True, id="then the host name"),
    pytest.param(
        {
            "Hostname": "nvidia-dcgm-exporter-d2khm",
            "pod": "nvidia-dcgm-exporter-d2khm",
            "namespace": "gpu-operator",
            "instance": "1.2.3.4:9400",
        },
        "node-7",
        True,
        id="FC015 a host name that is the exporter's pod leads to the pod's node",
    ),
    pytest.param(
        {"Hostname": "nvidia-dcgm-exporter-d2khm", "instance": "10.0.0.7:9400"},
        "node-7",
        True,
        id="FC015 then to the node at the address",
    ),
    pytest.param(
        {"Hostname": "nvidia-dcgm-exporter-xxxxx", "instance": "10.1.0.7:9400"},
        "node-7",
        True,
        id="FC015 then to the node of the pod at the address",
    ),
    pytest.param(
        {"Hostname": "nvidia-dcgm-exporter-xxxxx", "instance": "10.9.9.9:9400"},
        "10.9.9.9",
        False,
        id="FC015 what cannot be resolved is an address, unresolved",
    ),
    pytest.param(
        {"Hostname": "telemetry-x", "pod": "telemetry-x", "namespace": "m", "instance": "10.0.0.7:9400"},
        "node-7",
        True,
        id="a host name that equals the target's pod is a pod, whatever it is called",
    ),
    pytest.param(
        {"pod": "exporter-of-node-8", "namespace": "gpu-operator", "instance": "1.2.3.4:9400"},
        "node-8",
        True,
        id="kube-state-metrics' own node label doesn't hide the pod's",
    ),
    pytest.param({"instance": "node-3:9100"}, "node-3", True, id="an instance by name"),
    pytest.param({"instance": "http://node-3:9100/metrics"}, "node-3", True, id="an instance as a URL"),
    pytest.param({"instance": "cafe:9100"}, "cafe", True, id="a name in hexadecimal letters is a name"),
    pytest.param({"instance": "[fe80::1]:9400"}, "fe80::1", False, id="an IPv6 address"),
    pytest.param({"instance": "localhost:9400"}, "localhost", False, id="localhost is no one machine"),
    pytest.param({"instance": "127.0.0.1:9400", "Hostname": "localhost"}, "127.0.0.1", False, id="nor by its address"),
    pytest.param(
        {"instance": "dcgm-exporter.gpu-operator.svc:9400"},
        "dcgm-exporter.gpu-operator.svc",
        False,
        id="a service is no node",
    ),
]


@pytest.mark.parametrize(("labels", "name", "resolved"), WHERE)
def test_the_machine_behind_a_series(rules: RuleBook, labels: Labels, name: str, resolved: bool) -> None:
    got = namer(rules, cluster()).node_of(labels)
    assert (got.name, got.resolved) == (name, resolved)


def test_only_what_a_series_says_itself_is_final(rules: RuleBook) -> None:
    of_cluster = namer(rules, cluster())
    assert of_cluster.node_of({"node": "node-7"}).labelled
    assert of_cluster.node_of({"instance": "10.0.0.7:9400"}) == NodeName("node-7", resolved=True, labelled=False)


def test_an_address_that_two_nodes_claim_names_neither() -> None:
    """A finished pod keeps its address in kube_pod_info after another pod got it."""
    nodes = NodeNames()
    pod = {"__name__": "kube_pod_info", "namespace": "ml", "pod_ip": "10.1.0.7"}
    nodes.learn([pod | {"pod": "done", "node": "node-1"}, pod | {"pod": "new", "node": "node-2"}])
    assert nodes.of_host("10.1.0.7:9400") is None
    assert nodes.of_pod("ml", "new") == "node-2"


def test_what_is_learned_follows_the_cluster_and_outlives_an_empty_answer() -> None:
    nodes = NodeNames()
    pod = {"__name__": "kube_pod_info", "namespace": "ml"}
    nodes.learn([pod | {"pod": "a", "node": "node-1"}])
    generation = nodes.generation
    nodes.learn([])
    assert (nodes.of_pod("ml", "a"), nodes.generation) == ("node-1", generation)
    nodes.learn([pod | {"pod": "b", "node": "node-1"}])
    assert (nodes.of_pod("ml", "a"), nodes.of_pod("ml", "b"), nodes.generation) == (None, "node-1", generation + 1)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param("n1", "n1", True, id="equal"),
        pytest.param("n1", "n1.cluster.local", True, id="short and full"),
        pytest.param("n1.a", "n1.b", False, id="two full names"),
        pytest.param("n1", "n11", False, id="one begins like the other"),
        pytest.param("10.0.0.7", "10.0.0.9", False, id="two addresses"),
        pytest.param("10", "10.0.0.9", False, id="a number and an address"),
    ],
)
def test_two_names_of_one_node(one: str, other: str, same: bool) -> None:
    assert same_node(one, other) is same_node(other, one) is same


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        pytest.param("10.0.0.7:9400", "10.0.0.7", id="address and port"),
        pytest.param("n1", "n1", id="no port"),
        pytest.param("https://u@n1:9/metrics?x=1", "n1", id="a URL"),
        pytest.param("http://[::1", "http://[::1", id="a URL that is none"),
        pytest.param("[::1]:9400", "::1", id="IPv6 with a port"),
        pytest.param("fe80::1", "fe80::1", id="IPv6 alone"),
        pytest.param(":9400", ":9400", id="a port alone"),
    ],
)
def test_the_host_of_an_instance(instance: str, expected: str) -> None:
    assert host_of(instance) == expected
