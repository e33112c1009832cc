"""Waiting for a control plane to get somewhere, with an end. Called by the testbed and by tests that use it."""

import time
from collections.abc import Callable
from typing import TypeVar

import requests

T = TypeVar("T")


class TestbedError(Exception):
    """The testbed itself failed: a server that does not start, a state that never comes."""

    __test__ = False  # the name begins like a test class, and pytest would collect it


def until(what: str, ready: Callable[[], T | None], within_s: float = 30, every_s: float = 0.05) -> T:
    """The first answer of `ready` that counts as true. A refused or lost connection means not yet.

    Raises:
        TestbedError: there was none in time; the message has `what` and the last answer.
    """
    deadline = time.monotonic() + within_s
    last: object = "never asked"
    while time.monotonic() < deadline:
        try:
            last = answer = ready()
            if answer:
                return answer
        except (requests.ConnectionError, requests.Timeout) as refused:
            last = refused
        time.sleep(every_s)
    raise TestbedError(f"{what}: not within {within_s:g} s; last answer: {last!r}")
