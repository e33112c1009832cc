"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="gpuwarden.yaml; safe defaults where not given.")
]
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", help="A table for people, or JSON or YAML on stdout for programs.")
]
