"""Which gpuwarden this is: for `--version`, the report and /metrics."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The installed version, or "unknown" where the package runs without being installed."""
    try:
        return version("gpuwarden")
    except PackageNotFoundError:
        return "unknown"
