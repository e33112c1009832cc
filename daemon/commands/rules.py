"""`gpuwarden rules check`: whether packs can be used, and what they add up to."""

from pathlib import Path

from daemon.commands.output import ExitCode, complain, show
from rules.loader import RuleError, load_rules

_SECTIONS = ("metrics", "models", "xid", "sxid", "nvlink5", "ras", "recovery", "thresholds", "peers")


def check(files: tuple[Path, ...], form: str) -> int:
    """Check the shipped packs with a site's own on top. Exit code 1 where something is wrong."""
    try:
        book = load_rules(files)
    except RuleError as error:
        if form != "table":
            show([{"file": p.file, "line": p.line, "key": p.key, "reason": p.reason} for p in error.problems], form)
        for problem in error.problems:
            complain(str(problem))
        return ExitCode.PROBLEMS
    counts = {section: len(getattr(book, section)) for section in _SECTIONS}
    off = sorted(name for name, rule in book.thresholds.items() if not rule.enabled)
    rows = [(section, str(count)) for section, count in counts.items()]
    rows += [("switched off", ", ".join(off) or "-"), ("digest", book.digest)]
    data = {"files": list(book.files), "digest": book.digest, "rules": counts, "switched_off": off}
    show(data, form, rows, ("SECTION", "RULES"))
    return ExitCode.OK
