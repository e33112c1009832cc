"""The section `loki`: what is refused, and that nothing in a line can make its own labels."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from daemon.config import load_config
from daemon.loki.client import Trouble, go_seconds, refusal
from tests.loki.life import config


@pytest.mark.parametrize(
    "query",
    [
        '{job="journal"}',
        '{job=~"node-.+", transport!="stdout",}',
        '{job="a"} |= "NVRM" |~ `Xid|SXid` != "test"',
        '{job="a"} |= "NVRM" or "SXid"',
        '{job="a"} | transport="kernel" | node=~"gpu.*" and rack="r1"',
        '{job="a \\"quoted\\" }"}',
    ],
)
def test_a_query_selects_streams_lines_and_labels(query: str) -> None:
    assert config(query=query).query == query


@pytest.mark.parametrize(
    "query",
    [
        "",
        "job",
        "{}",
        '{job="a"',
        '{job="a"} | json',
        '{job="a"} | logfmt | transport="kernel"',
        '{job="a"} | regexp "(?P<transport>kernel)"',
        '{job="a"} | label_format transport="kernel"',
        '{job="a"} | line_format "{{.x}}"',
        'rate({job="a"}[5m])',
        '{job="a"}; {job="b"}',
    ],
)
def test_a_query_that_parses_formats_or_counts_is_refused(query: str) -> None:
    with pytest.raises(ValidationError, match="stream selector"):
        config(query=query)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        pytest.param({"url": "loki:3100"}, "http://HOST:PORT", id="an address without http"),
        pytest.param({"trusted_labels": {"detected_level": "error"}}, "made of what a line says", id="Loki's guess"),
        pytest.param({"trusted_labels": {"transport": ""}}, "value that each has to have", id="an empty value"),
        pytest.param({"node_label": "a b"}, "pattern", id="no label's name"),
        pytest.param({"tenant": "a\nb"}, "pattern", id="a tenant of two lines"),
        pytest.param({"limit": 0}, "greater than", id="no lines"),
        pytest.param({"every": 0.1}, "greater than", id="asks too often"),
        pytest.param(
            {"url": "http://me:pass@loki", "bearer_token_file": "token"}, "one Authorization", id="two identities"
        ),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        config(**keys)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gpuwarden.yaml"
    path.write_text("loki: {url: http://loki, query: '{a=\"b\"}', bearer_token_file: token, ca_file: ca.pem}\n")
    loki = load_config(path).loki
    assert loki is not None
    assert (loki.bearer_token_file, loki.ca_file) == (tmp_path / "token", tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("168h0m0s", 604_800), ("7d", 604_800), ("1h30m", 5400), ("0s", 0), ("2.5s", 2.5), ("", None), ("soon", None)],
)
def test_durations_as_loki_prints_them(text: str, seconds: float | None) -> None:
    assert go_seconds(text) == seconds


@pytest.mark.parametrize(
    ("status", "said", "trouble", "allowed"),
    [
        (400, "max entries limit per query exceeded, limit > max_entries_limit (9 > 5)", Trouble.LIMIT, 5),
        (400, "max entries limit per query exceeded, limit > max_entries_limit_per_query (9 > 5)", Trouble.LIMIT, 5),
        (400, "this data is no longer available, it is past now - max_query_lookback (1h0m0s)", Trouble.TOO_OLD, 3600),
        (400, "the query time range exceeds the limit (query length: 9h, limit: 1h)", Trouble.SPAN, None),
        (400, "the query would read too many bytes (query: 9GB, limit: 1GB)", Trouble.TOO_LARGE, None),
        (400, "parse error at line 1, col 1", Trouble.REFUSED, None),
        (403, "", Trouble.REFUSED, None),
        (429, "", Trouble.THROTTLED, None),
        (500, "rpc error", Trouble.HTTP, None),
        (504, "", Trouble.TIMEOUT, None),
    ],
)
def test_what_loki_refuses_and_why(status: int, said: str, trouble: Trouble, allowed: float | None) -> None:
    error = refusal(status, said, "http://loki")
    assert (error.trouble, error.allowed) == (trouble, allowed)
