"""Ways to look at the fault packs that several tests of them share."""

import re

from rules.schema import RuleBook


def ras_of(book: RuleBook, text: str) -> str | None:
    """The name of the rule that finds a fault in an amdgpu line; a count of zero is none."""
    for name, rule in book.ras.items():
        found = re.search(rule.pattern, text)
        if found is not None:
            count = found.groupdict().get("count")
            return None if count is not None and int(count) == 0 else name
    return None
