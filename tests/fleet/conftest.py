"""Fleets that several tests look at, made once."""

import pytest

from fixtures.fleet import scenarios
from fixtures.fleet.responder import Responder
from fixtures.fleet.telemetry import Block, Fleet


@pytest.fixture(scope="session")
def day() -> Fleet:
    return scenarios.day(7)


@pytest.fixture(scope="session")
def day_block(day: Fleet) -> Block:
    return day.whole()


@pytest.fixture(scope="session")
def healthy() -> Fleet:
    return scenarios.healthy(11, nodes=6, hours=8)


@pytest.fixture(scope="session")
def healthy_block(healthy: Fleet) -> Block:
    return healthy.whole()


@pytest.fixture(scope="session")
def demo_responder() -> Responder:
    return Responder(scenarios.demo(7))
