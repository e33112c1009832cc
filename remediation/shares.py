"""Limits that are shares of something."""

import math

#: Shares are products of decimal fractions: 0.29 of 100 is 29 and not 28.999999999999996.
_ROUNDING = 1e-9


def at_most(share: float, count: int | None, total: int, *, floor: int = 1) -> int:
    """How many of `total` it may be: the share rounded down but `floor` at least, and never more than `count`."""
    by_share = max(floor, math.floor(share * total + _ROUNDING))
    return by_share if count is None else min(by_share, count)
