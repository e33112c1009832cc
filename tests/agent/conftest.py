"""What tests of the agent share: a node with its ring buffer and its agent, and the machine's own /dev/kmsg."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.machine import Buffer
from tests.agent.whole_path import Life, Node, kmsg_of, living


@pytest.fixture
def buffer(tmp_path: Path) -> Buffer:
    """The ring buffer of a machine that has been up for an hour."""
    made = Buffer(Node(tmp_path))
    made.say("Linux version 6.8", up_s=0.0)
    return made


@pytest.fixture
def life(buffer: Buffer) -> Iterator[Life]:
    """A node whose agent reads it."""
    with living(buffer.machine, kmsg_of(buffer)) as made:
        yield made


@pytest.fixture
def kmsg() -> Iterator[int]:
    """/dev/kmsg, open for writing."""
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
        descriptor = os.open("/dev/kmsg", os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"the machine's own /dev/kmsg cannot be read and written ({error.strerror})")
    yield descriptor
    os.close(descriptor)
