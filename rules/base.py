"""What all rule models share: closed and frozen, durations as people write them, model-name patterns."""

import re
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_duration(value: object) -> float:
    """Seconds from a number of seconds or from Prometheus' spelling (`30s`, `2m`, `1h30m`). Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"a duration is a number of seconds or text such as 30s, 2m, 1h30m; got {value!r}")
    if isinstance(value, (int, float)):
        return float(value)
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value.strip():
        raise ValueError(f"a duration is written like 30s, 2m, 1h30m; got {value!r}")
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]


class Strict(BaseModel):
    """Base of every model: unknown keys are errors, loaded rules never change, and a limit is a number.

    A limit of .nan or .inf would switch its rule off without a word; `enabled: false` is the way to do that.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def matches_any(model: str, patterns: tuple[str, ...], *, empty: bool = False) -> bool:
    """Whether a model name matches one of the glob patterns; `empty` is the answer when there are none."""
    if not patterns:
        return empty
    return any(fnmatchcase(model.lower(), pattern.lower()) for pattern in patterns)
