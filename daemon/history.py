"""Range queries for people's eyes: the evidence around an incident, as pandas series on a fixed grid.

Uses prometheus-api-client for the connection and the query; its traps are closed here: times are always given (its
defaults are frozen at import), the time-out is set, and labels that go into a selector are escaped.
"""

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pandas as pd
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException

from daemon.config import PrometheusConfig
from daemon.ingest.decode import PrometheusError
from daemon.ingest.queries import with_matchers


class History:
    """One Prometheus, asked for stretches of the past.

    Raises PrometheusError where a bearer token that the configuration names cannot be read.
    """

    def __init__(self, config: PrometheusConfig) -> None:
        session = requests.Session()
        session.verify = str(config.ca_file) if config.ca_file is not None else not config.insecure_skip_verify
        self._matchers = config.matchers
        self._connection = PrometheusConnect(
            url=config.url, headers=_headers(config), timeout=config.timeout, session=session
        )

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()

    def series(
        self, selector: str, start: datetime, end: datetime, step_s: float
    ) -> list[tuple[Mapping[str, str], "pd.Series[float]"]]:
        """The series of a selector with their labels, each on the grid start, start+step, …; a gap is NaN.

        The site's label matchers are added to the selector. Raises PrometheusError.
        """
        query = with_matchers(selector, self._matchers)
        try:
            answer = self._connection.custom_query_range(query, start_time=start, end_time=end, step=f"{step_s:.0f}s")
            found = [(dict(one["metric"]), _samples(one["values"])) for one in answer]
        except (PrometheusApiClientException, requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise PrometheusError("unreachable", f"range query for {selector[:80]} failed: {error}") from error
        grid = pd.date_range(start, end, freq=pd.Timedelta(seconds=step_s))
        near = pd.Timedelta(seconds=step_s / 2)
        return [(labels, values.reindex(grid, method="nearest", tolerance=near)) for labels, values in found]


def _headers(config: PrometheusConfig) -> dict[str, str]:
    if config.bearer_token_file is None:
        return dict(config.headers)
    try:
        token = config.bearer_token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        told = f"prometheus.bearer_token_file {config.bearer_token_file} cannot be read: {error}"
        raise PrometheusError("unreachable", told) from error
    return {**config.headers, "Authorization": f"Bearer {token}"}


def _samples(pairs: list[tuple[float, str]]) -> "pd.Series[float]":
    """Samples of one series by time, in Prometheus' order; what is no finite number is NaN."""
    times = pd.to_datetime([float(at) for at, _ in pairs], unit="s", utc=True)
    texts = pd.Series([text for _, text in pairs], index=times, dtype="str")
    values = pd.to_numeric(texts, errors="coerce").astype("float64")
    return values.where(np.isfinite(values))[~values.index.duplicated()]


def escape(label: str) -> str:
    """A label's value as it goes between the quotes of a selector."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
