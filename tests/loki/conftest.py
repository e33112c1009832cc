"""Rules, and one reading of Loki."""

import pytest

from rules.loader import load_rules
from rules.schema import RuleBook
from tests.loki.life import Life


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    return load_rules()


@pytest.fixture
def life(rules: RuleBook) -> Life:
    return Life(rules)
