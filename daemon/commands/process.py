"""What the processes that stay share: how they log, and how a signal ends them. `run` and `agent` use it."""

import logging
import signal
import sys
import threading
from types import FrameType

import structlog


def stopped_by_signals() -> threading.Event:
    """Set by the first SIGTERM or SIGINT, so that a tick ends whole; a second one ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


def log_to_stderr(level: str) -> None:
    """key=value lines on stderr, coloured only on a terminal."""
    render: list[structlog.typing.Processor] = [structlog.dev.ConsoleRenderer()]
    if not sys.stderr.isatty():
        render = [structlog.processors.format_exc_info, structlog.processors.LogfmtRenderer()]
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), *render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
