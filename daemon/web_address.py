"""Addresses of the servers that gpuwarden asks, as its configuration gives them."""

from urllib.parse import SplitResult, urlsplit


def http_address(value: str, expected: str) -> SplitResult:
    """The parts of an http(s) address. Raises ValueError, which says what was expected.

    The value is not told: it may hold a password, or be a secret itself.
    """
    wrong = f"expected {expected}"
    try:
        parsed = urlsplit(value)
        port = parsed.port
    except ValueError as error:
        raise ValueError(wrong) from error
    if parsed.scheme not in ("http", "https") or not parsed.hostname or port == 0:
        raise ValueError(wrong)
    return parsed
