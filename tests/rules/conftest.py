"""The shipped rules, loaded once for each module of tests."""

import pytest

from rules.loader import load_rules
from rules.schema import RuleBook


@pytest.fixture(scope="module")
def book() -> RuleBook:
    return load_rules()
