"""The section `loki` of `gpuwarden.yaml`: where nodes' kernel logs are, and whose word counts."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from daemon.web_address import http_address
from rules.schema import Seconds, Strict

_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
_TEXT = r'(?:"(?:[^"\\\n]|\\.)*"|`[^`]*`)'
_MATCH = rf"{_NAME}\s*(?:=~|!~|!=|=)\s*{_TEXT}"
_LINE_FILTER = rf"(?:\|=|!=|\|~|!~)\s*{_TEXT}(?:\s+or\s+{_TEXT})*"
_LABEL_FILTER = rf"\|\s*{_MATCH}(?:\s+(?:and|or)\s+{_MATCH})*"
_QUERY = re.compile(
    rf"\s*\{{\s*{_MATCH}(?:\s*,\s*{_MATCH})*\s*,?\s*\}}(?:\s*(?:{_LINE_FILTER}|{_LABEL_FILTER}))*\s*", re.DOTALL
)
#: Labels that Loki makes of what a line says.
_OF_THE_LINE = frozenset({"detected_level", "level_extracted"})


class LokiConfig(Strict):
    """Where the lines are, which of them the kernel wrote, and how they are asked for."""

    url: str
    #: a stream selector with line and label filters
    query: str
    node_label: str = Field(default="node", pattern=rf"^{_NAME}$")
    #: labels that only lines of the kernel have; without any, nothing is acted on
    trusted_labels: dict[str, str] = {}
    tenant: str = Field(default="", max_length=1024, pattern=r"^[!-~]*$")
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    every: Seconds = Field(default=2.0, ge=0.5, le=300)
    timeout: Seconds = Field(default=10.0, gt=0, le=300)
    #: lines that come so late are still taken
    settle: Seconds = Field(default=600.0, ge=1, le=86_400)
    #: lines that come so much later than that are told as a gap
    watch: Seconds = Field(default=3600.0, ge=1, le=86_400)
    #: between two looks at the lines that came late
    sweep: Seconds = Field(default=30.0, ge=0.5, le=3600)
    lookback: Seconds = Field(default=0.0, ge=0, le=604_800)
    #: how far back Loki is asked for what it may have kept
    retention: Seconds = Field(default=604_800.0, ge=60, le=31_536_000)
    #: how long a backlog may take before its rest is passed over
    catch_up: Seconds = Field(default=120.0, ge=1, le=86_400)
    limit: int = Field(default=5000, ge=1, le=100_000)
    max_response_bytes: int = Field(default=64 << 20, ge=1024)
    backoff_max: Seconds = Field(default=60.0, ge=1, le=3600)

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        http_address(value, "http://HOST:PORT or https://…")
        return value.rstrip("/")

    @field_validator("query")
    @classmethod
    def _only_selects(cls, value: str) -> str:
        if _QUERY.fullmatch(value) is None:
            raise ValueError(
                'expected a stream selector, with line and label filters at most, such as {job="systemd-journal", '
                'transport="kernel"}. A parser or a formatter would let a line make its own labels, and those say '
                f"whether it is trusted; got {value!r}"
            )
        return value.strip()

    @field_validator("trusted_labels")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for name, wanted in value.items():
            if re.fullmatch(_NAME, name) is None or not wanted:
                raise ValueError(f"expected label names with the value that each has to have, got {name!r}: {wanted!r}")
            if name in _OF_THE_LINE:
                raise ValueError(f"{name} is made of what a line says, so it says nothing about who wrote the line")
        return value

    @model_validator(mode="after")
    def _one_identity(self) -> Self:
        if self.bearer_token_file is not None and "@" in urlsplit(self.url).netloc:
            raise ValueError(
                "give either bearer_token_file or a user in the url: a request has one Authorization header"
            )
        return self
