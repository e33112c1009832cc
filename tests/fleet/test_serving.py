"""The live exporters and the command line."""

import json
from pathlib import Path

import pytest
import requests

from fixtures.__main__ import main
from fixtures.fleet import scenarios
from fixtures.fleet.serve import GROUPS, Clock, Pages, discovery, serving


def test_a_page_shows_the_moment_and_a_fault_when_its_time_has_come():
    fleet = scenarios.live(1_800_000_000.0, nodes=2, fault_after_s=60)
    pages = Pages(fleet)
    uuid = fleet.planted[0].gpu(fleet.site).uuid
    status, early = pages.page("gpu001", "dcgm", 30)
    assert status == 200
    assert f'UUID="{uuid}"' in early
    assert "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter" in early
    status, late = pages.page("gpu001", "dcgm", 400)
    assert status == 200
    assert f'UUID="{uuid}"' not in late
    assert 'gpu="' in late


def test_a_host_page_types_its_metrics():
    text = Pages(scenarios.live(0.0, nodes=1)).page("gpu001", "node", 10)[1]
    assert "# TYPE node_load1 gauge" in text
    assert "# TYPE node_intr_total counter" in text
    assert 'node_uname_info{machine="x86_64",nodename="gpu001"' in text
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))


PLACES = [
    pytest.param("gpu099", "dcgm", 10, 404, id="no such node"),
    pytest.param("gpu001", "nothing", 10, 404, id="no such exporter"),
    pytest.param("gpu001", "dcgm", -5, 503, id="before the start"),
    pytest.param("gpu008", "node", 3.5 * 3600, 503, id="a node that is switched off"),
    pytest.param("gpu005", "dcgm", 0.7 * 3600 + 60, 503, id="an exporter that restarts"),
    pytest.param("gpu005", "node", 0.7 * 3600 + 60, 200, id="its node meanwhile"),
    pytest.param("gpu001", "dcgm", 8 * 3600, 503, id="after the end"),
]


@pytest.mark.parametrize(("name", "kind", "at_s", "status"), PLACES)
def test_status_of_a_page(name, kind, at_s, status):
    assert Pages(scenarios.demo()).page(name, kind, at_s)[0] == status


def test_discovery_lists_each_target_once():
    fleet = scenarios.day()
    paths = [row["labels"]["__metrics_path__"] for group in GROUPS for row in discovery(fleet, "127.0.0.1:1", group)]
    assert len(paths) == len(set(paths)) == 32


def test_everything_listed_can_be_fetched():
    moments = iter([float(second) for second in range(1000)])
    clock = Clock(0.0, speed=60, wall=lambda: next(moments))
    with serving(scenarios.demo(), clock) as url, requests.Session() as session:
        listed = session.get(url, timeout=10).text.split()
        assert len(listed) == 1 + len(GROUPS) + 16
        assert {session.get(f"{url}{path}", timeout=10).status_code for path in listed} == {200}
        assert session.get(f"{url}/nothing", timeout=10).status_code == 404


def test_write_leaves_what_its_help_promises(tmp_path, capsys):
    arguments = ["write", "--scenario", "healthy", "--nodes", "1", "--hours", "0.5", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert (tmp_path / "labels.csv").read_text(encoding="utf-8") == "node,gpu_uuid,class,onset,failed_at\n"
    assert json.loads((tmp_path / "planted.json").read_text(encoding="utf-8")) == []
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["gpu001.log"]
    assert [path.name for path in (tmp_path / "openmetrics").iterdir()] == ["0000.om"]
    assert "8 GPUs on 1 nodes, 2026-03-02T00:00:00Z to 2026-03-02T00:30:00Z" in capsys.readouterr().out


def test_the_truth_of_a_day_is_written_as_the_audit_reads_it(tmp_path):
    assert main(["write", "--out", str(tmp_path), "--no-openmetrics"]) == 0
    rows = [line.split(",") for line in (tmp_path / "labels.csv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["node", "gpu_uuid", "class", "onset", "failed_at"]
    assert len(rows) == 22
    assert all(len(row) == 5 and row[3] <= row[4] and row[4].endswith("Z") for row in rows[1:])
    planted = json.loads((tmp_path / "planted.json").read_text(encoding="utf-8"))
    assert {item["kind"] for item in planted if not item["fault"]} >= {"maintenance", "exporter_restart", "scrape_gap"}
    assert all(item["what"].endswith(".") for item in planted)


def test_a_scenario_that_cannot_be_is_told(tmp_path, capsys):
    assert main(["write", "--nodes", "4", "--out", str(tmp_path)]) == 1
    assert "16 nodes, got 4" in capsys.readouterr().err


def test_tsdb_without_promtool_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["write", "--scenario", "healthy", "--no-openmetrics", "--tsdb", "--out", str(tmp_path)]) == 1
    assert "promtool is not on the PATH" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["write"], ["respond"], ["serve"]])
def test_help_teaches(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "usage: python -m fixtures" in capsys.readouterr().out


def test_the_simulated_fleet_stays_out_of_the_wheel(root: Path):
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    include = text[text.index("[tool.setuptools.packages.find]") :].split("\n\n")[0]
    assert "fixtures" not in include
