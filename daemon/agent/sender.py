"""Batches of reports to the controller's intake: one request, and what its answer means.

Nothing is kept here: what was not taken stays in the spool, and `daemon.agent.run` asks again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import requests
from urllib3.exceptions import HTTPError

from daemon.agent.config import AgentConfig
from daemon.agent.wire import (
    MAX_REPORTS,
    PATH,
    RESULT_HEADER,
    Batch,
    Receipt,
    Refused,
    Report,
    WireError,
    batches,
    decode_receipt,
    encode,
)

#: An answer that is longer is no receipt.
_LONGEST_ANSWER = 1 << 20
_TOLD = 200
#: What the controller refuses for good when it refuses a single report, by its own word; a proxy's answer is none.
_NEVER = frozenset({"malformed", "too_large"})


class Unsent(Exception):
    """Nobody knows that the controller has it. The text says why; `after_s` is how long it asks to be left alone.

    `result` is the intake's word for it, "" where something else answered, or nothing.
    """

    def __init__(self, why: str, after_s: float = 0.0, result: str = "") -> None:
        super().__init__(why)
        self.after_s = after_s
        self.result = result


@dataclass(frozen=True, slots=True)
class Who:
    """For which node and boot, by which version of the agent."""

    node: str
    boot_id: str
    version: str


class Sender:
    """One connection to the controller, kept open. Not for several threads."""

    def __init__(self, config: AgentConfig, who: Who) -> None:
        self._config = config
        self._who = who
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy, and no ~/.netrc, between a node and its controller
        self._session.verify = str(config.ca_file) if config.ca_file is not None else True
        self._session.headers["User-Agent"] = f"gpuwarden-agent/{who.version}"
        #: halved when a batch as a whole is refused, so that one bad report does not hold up the others
        self._most = MAX_REPORTS

    def close(self) -> None:
        """Give the connection back."""
        self._session.close()

    def send(self, reports: Sequence[Report]) -> Receipt:
        """Send the first of these, as many as one batch holds; a receipt for those. Raises Unsent.

        An empty batch asks whether the controller would take one.
        """
        who = self._who
        made = batches(reports[: self._most], who.node, who.boot_id, who.version)
        if made is None and reports:
            return Receipt(refused=(Refused(reports[0].id, "it is longer than any batch may be"),))
        batch, body = made or _empty(who)
        try:
            receipt = self._post(body)
        except Unsent as unsent:
            if unsent.result not in _NEVER or not batch.reports:
                raise
            if len(batch.reports) > 1:
                self._most = len(batch.reports) // 2
                return self.send(reports)
            return Receipt(refused=(Refused(batch.reports[0].id, str(unsent)),))
        self._most = min(MAX_REPORTS, 2 * self._most)
        return receipt

    def _post(self, body: bytes) -> Receipt:
        headers = {"Content-Type": "application/json"}
        config = self._config
        if config.token_file is not None:
            headers["Authorization"] = f"Bearer {_token(config.token_file)}"
        try:
            with self._session.post(
                config.controller.rstrip("/") + PATH, data=body, headers=headers, timeout=(5.0, config.timeout),
                allow_redirects=False, stream=True,
            ) as answer:  # fmt: skip
                told = answer.raw.read(_LONGEST_ANSWER + 1, decode_content=True)
                return _receipt(answer, told)
        except (requests.RequestException, HTTPError) as error:
            raise Unsent(f"the controller cannot be reached: {error}") from error
        except OSError as error:
            raise Unsent(f"{error}; is agent.ca_file {config.ca_file} there?") from error


def _empty(who: Who) -> tuple[Batch, bytes]:
    batch = Batch(who.node, who.boot_id, who.version)
    return batch, encode(batch)


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unsent(f"no token could be read from {path}: {error}; mount the projected token there") from error


def _receipt(answer: requests.Response, told: bytes) -> Receipt:
    status = answer.status_code
    if status != requests.codes.ok:
        said = " ".join(told[:_TOLD].decode("utf-8", "replace").split())
        result = answer.headers.get(RESULT_HEADER, "")
        raise Unsent(f"the controller answered {status}: {said or answer.reason}", _asked_s(answer), result)
    if len(told) > _LONGEST_ANSWER:
        raise Unsent(f"the controller's answer is longer than {_LONGEST_ANSWER} bytes: no receipt")
    try:
        return decode_receipt(told)
    except WireError as error:
        raise Unsent(f"the controller's answer is no receipt: {error}; is {PATH} served by gpuwarden?") from error


def _asked_s(answer: requests.Response) -> float:
    told = answer.headers.get("Retry-After", "").strip()
    return float(told) if told.isascii() and told.isdecimal() else 0.0
