"""docs/workloads.md against the code: its tables, its manifest, and its program on a real API server."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from remediation import contract
from remediation.contract import ACK, CHECKPOINT_AT, REQUEST, asking_of, checkpoint_of, has_answered
from remediation.jobs import ADAPTERS, RESTART, RESTARTED
from remediation.objects import PREFIX
from remediation.restoring import LEVELS, Stage
from rules.restore_schema import RestartPolicy
from tests.jobs.kinds import ONE_BY_ONE, WHOLE, Row, parsed
from tests.project.test_docs import settings
from tests.testbed.control_plane import ControlPlane
from tests.testbed.manifests import job

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
ANNOTATIONS = [
    value for name, value in vars(contract).items() if name.isupper() and str(value).startswith(f"{PREFIX}checkpoint-")
]


def block(language: str) -> str:
    """The one block of code in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


MANIFESTS = list(yaml.safe_load_all(block("yml")))


@pytest.mark.parametrize(("key", "default"), [*settings(RestartPolicy, "restart.")])
def test_each_key_stands_in_the_table_with_its_default(key: str, default: str) -> None:
    assert f"| `{key}` | {default} | " in PAGE


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda one: f"{one.api_version} {one.kind}")
def test_each_kind_stands_in_the_table(adapter) -> None:
    rows = re.findall(r"^\| `([^`]+)` ([\w, ]+) \| (.+?) \|", PAGE, re.MULTILINE)
    named = {(version, kind): how for version, kinds, how in rows for kind in kinds.split(", ")}
    how = named[adapter.api_version, adapter.kind]
    field = next((".".join(row.suspends) for row in WHOLE if row.adapter is adapter), "")
    by = "eviction" if adapter in [row.adapter for row in ONE_BY_ONE] else f"`{field}`"
    if adapter.api_version == "batch.volcano.sh/v1alpha1":
        by = "the Commands `AbortJob` and `ResumeJob`"
    assert how.startswith(by)


@pytest.mark.parametrize("name", [*ANNOTATIONS, RESTART, RESTARTED])
def test_each_annotation_is_in_the_contract(name: str) -> None:
    assert re.search(rf"^\| `{re.escape(name)}` \| (job|owner|gpuwarden) \| `[^`]+` \| \S", PAGE, re.MULTILINE)


def test_each_level_and_each_stage_is_told() -> None:
    assert re.findall(r"^\| L(\d) \|", PAGE, re.MULTILINE) == [str(level) for level in range(len(LEVELS))]
    assert {f"`{stage}`" for stage in Stage} <= set(re.findall(r"`\w+`", PAGE))


def test_the_manifest_is_a_job_that_can_be_asked() -> None:
    made = MANIFESTS[0]
    made["metadata"]["uid"] = "uid-1"
    asking = asking_of(parsed(made), longest_s=600)
    assert (asking.possible, asking.deadline_s, asking.wrong) == (True, 300, "")
    assert made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"] == [
        {"name": "ROOT", "value": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/train/jobsets/llama"}
    ]


def test_the_program_tells_of_its_checkpoints_with_the_rights_of_the_manifest(
    cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rights on a Job, since the cluster has no JobSets."""
    made = job("llama", cluster.namespace("train"))
    made["spec"]["suspend"] = True
    cluster.admin.create(made)
    rules = [MANIFESTS[1]["rules"][0] | {"apiGroups": ["batch"], "resources": ["jobs"]}]
    (tmp_path / "token").write_text(cluster.service_account("train", "llama", rules), encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes(cluster.admin.authority.read_bytes())
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv("ROOT", "/apis/batch/v1/namespaces/train/jobs/llama")
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    program: dict[str, Any] = {}
    exec(block("python"), program)  # noqa: S102 - the page's own program is what is tested
    program["ACCOUNT"] = tmp_path

    assert program["asked"]() is None
    cluster.admin.patch("Job", "llama", {"metadata": {"annotations": {REQUEST: "gw-1"}}}, "train")
    assert program["asked"]() == "gw-1"
    program["saved"](12000, "s3://ckpt/llama/12000")
    told = seen(cluster)
    assert told.annotation(CHECKPOINT_AT)
    assert program["asked"]() == "gw-1", "a checkpoint of its own is no answer to the id"
    program["saved"](12100, "s3://ckpt/llama/12100", program["asked"]())
    told = seen(cluster)
    assert told.annotation(ACK) == "gw-1"
    assert program["asked"]() is None
    now = datetime.now(UTC)
    last = checkpoint_of(told, (), now)
    assert (last.is_known, last.step) == (True, 12100)
    assert has_answered(told, "gw-1", now, last)


def seen(cluster: ControlPlane):
    return parsed(cluster.admin.get("Job", "llama", "train"))


def test_the_role_for_restarts_reaches_each_kind_and_no_further() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    (role,) = [
        one for one in documents if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", "gpuwarden-restart")
    ]
    given = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert given.pop(("bus.volcano.sh", "commands")) == {"create"}
    assert given == {place(row): {"get", "patch"} for row in WHOLE}


def place(row: Row) -> tuple[str, str]:
    return row.adapter.api_version.rpartition("/")[0], f"{row.adapter.kind.lower()}s"
