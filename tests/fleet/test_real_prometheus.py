"""A real Prometheus takes what we write, and answers exactly as our look-alike does."""

import time

import pytest
import requests

from fixtures.fleet import scenarios
from fixtures.fleet.openmetrics import BackfillError, backfill, write_files
from fixtures.fleet.responder import Responder
from fixtures.fleet.serve import Clock, serving
from tests.prometheus_server import PrometheusServer, wait_until

QUERIES = [
    pytest.param('{__name__=~"DCGM_.*|node_.*|up"}[10m]', 3600, id="everything of ten minutes"),
    pytest.param("DCGM_FI_DEV_POWER_USAGE", 3000.5, id="an instant"),
    pytest.param('DCGM_FI_DEV_GPU_TEMP{Hostname!~"gpu00.",UUID=~"GPU-[0-7].*"}[90s]', 4000, id="matchers"),
    pytest.param('{__name__=~"up|node_load1"}[5m]', 2600, id="a restart of an exporter"),
    pytest.param('DCGM_FI_DEV_POWER_USAGE{nothing="here"}', 3000, id="nothing"),
]


@pytest.fixture(scope="module")
def both(promtool_binary, prometheus_binary, tmp_path_factory):
    """The first two hours of the demo in a Prometheus and in the look-alike."""
    folder = tmp_path_factory.mktemp("prometheus")
    demo = scenarios.demo(7)
    fleet = type(demo)(demo.seed, demo.shape, demo.planned, demo.planted, demo.start_s, 2, demo.step_s, demo.name)
    assert backfill(fleet, folder / "tsdb", promtool_binary) > 300_000
    (folder / "p.yml").write_text("global: {scrape_interval: 60s}\n", encoding="utf-8")
    with (
        PrometheusServer(prometheus_binary, folder / "p.yml", folder / "tsdb") as real,
        Responder(fleet).start() as url,
    ):
        yield fleet, real.url, url


@pytest.mark.parametrize(("query", "after_s"), QUERIES)
def test_the_look_alike_answers_byte_for_byte(query, after_s, both):
    fleet, real, ours = both
    form = {"query": query, "time": str(fleet.start_s + after_s)}
    answers = [requests.post(f"{url}/api/v1/query", data=form, timeout=60) for url in (real, ours)]
    assert answers[0].ok
    # The order of an instant query's result is not promised.
    if "[" in query:
        assert answers[0].content == answers[1].content
    key = str
    real_rows, our_rows = (sorted(one.json()["data"]["result"], key=key) for one in answers)
    assert real_rows == our_rows


def test_a_range_query_is_the_same_byte_for_byte(both):
    fleet, real, ours = both
    # Of series without a gap: files can't carry the staleness markers that a scraping Prometheus writes.
    form = {"query": "node_load1", "start": fleet.start_s + 1800, "end": fleet.start_s + 3600, "step": "60"}
    one, other = (requests.get(f"{url}/api/v1/query_range", params=form, timeout=60) for url in (real, ours))
    assert one.content == other.content
    assert len(one.json()["data"]["result"]) == 8


@pytest.mark.parametrize("query", ["", "{}", "up[5x]", 'up{a=~"("}', 'up{a="b"'])
def test_a_bad_query_is_bad_for_both(query, both):
    _, real, ours = both
    for url in (real, ours):
        refused = requests.get(f"{url}/api/v1/query", params={"query": query}, timeout=10)
        assert refused.status_code == 400
        assert refused.json()["errorType"] == "bad_data"


def test_a_live_fleet_can_be_scraped(prometheus_binary, tmp_path):
    fleet = scenarios.live(1_800_000_000.0, nodes=2, step_s=1)
    with serving(fleet, Clock(time.time() - 60)) as url:
        config = tmp_path / "prometheus.yml"
        config.write_text(requests.get(f"{url}/prometheus.yml", timeout=10).text, encoding="utf-8")

        def rows(query):
            answer = requests.get(f"{real.url}/api/v1/query", params={"query": query}, timeout=10)
            return answer.json()["data"]["result"]

        with PrometheusServer(prometheus_binary, config, tmp_path / "tsdb") as real:
            wait_until("series", lambda: len(rows("DCGM_FI_DEV_GPU_TEMP")) == 16 and len(rows("node_load1")) == 2)
            labels = rows("DCGM_FI_DEV_GPU_TEMP")[0]["metric"]
            assert labels["exported_pod"].startswith("llama-70b-worker-")
            assert labels["pod"].startswith("nvidia-dcgm-exporter-")
            assert labels["instance"].endswith(":9400")
            assert {row["value"][1] for row in rows("up")} == {"1"}


def test_promtool_refusing_a_file_is_told(tmp_path):
    promtool = tmp_path / "promtool"
    promtool.write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n", encoding="utf-8")
    promtool.chmod(0o755)
    with pytest.raises(BackfillError, match="ended with 3: no such thing"):
        backfill(scenarios.healthy(nodes=1, hours=0.2), tmp_path / "tsdb", promtool)


def test_an_openmetrics_document_groups_families_and_ends(tmp_path):
    fleet = scenarios.healthy(nodes=1, hours=0.2)
    (path, samples), *more = write_files(fleet, tmp_path)
    assert not more
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "# EOF"
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert families == sorted(set(families))
    assert len(lines) == len(families) + samples + 1
    now = ""
    for line in lines[:-1]:
        if line.startswith("#"):
            now = line.split()[2]
        else:
            assert line.startswith((f"{now}{{", f"{now} "))
