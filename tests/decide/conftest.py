"""What the tests of plans, gates and decisions share: the shipped rules, and rules with something changed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rules.loader import load_rules
from rules.schema import RuleBook
from tests.detect.scene import site_rules

#: Takes the text of a pack's sections and gives the shipped rules with them on top.
Site = Callable[[str], RuleBook]


@pytest.fixture(scope="session")
def rules() -> RuleBook:
    """The rule book as it is shipped."""
    return load_rules()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """The rule book of a site that changes something."""
    return lambda sections: site_rules(tmp_path, sections)
