"""What the tests of ingest share: the shipped rules, and a rig to feed."""

import pytest

from rules.loader import load_rules
from rules.schema import RuleBook
from tests.ingest.builders import Rig


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    """The rule book as it is shipped."""
    return load_rules()


@pytest.fixture
def rig(rules: RuleBook) -> Rig:
    """An assembler and an engine that have seen nothing yet."""
    return Rig(rules)
