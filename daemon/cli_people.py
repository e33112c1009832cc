"""What people say to gpuwarden: `approve`, `reject`, `hold`, `fenced`, `release`, `breaker`. Only wires options."""

from enum import StrEnum
from typing import Annotated

import typer

from daemon.cli_options import ConfigOption, Output, OutputOption

people_app = typer.Typer()


class BreakerAsked(StrEnum):
    """What `gpuwarden breaker` is asked for."""

    STATUS = "status"
    RESET = "reset"


IncidentArgument = Annotated[
    str, typer.Argument(metavar="INCIDENT|NODE", help="An incident, or a node with no more than one.")
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name.")]
WhyOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept in the ledger with your word.")]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who says so; the user of this system if not given.")
]


@people_app.command()
def approve(
    thing: IncidentArgument,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Approve what is planned about an incident, also against those of its gates that a person may overrule.

    Tells what that covers and what stops it still. Exit code 1 where there is nothing to approve, or it is refused.

    Example: gpuwarden approve inc-3f9c1b22a704 --why "the owner of the job agrees"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import approve as command

    raise typer.Exit(command(thing, Speaker(config, output.value, by, why)))


@people_app.command()
def reject(
    thing: IncidentArgument,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have nothing done about an incident. An approval takes it back.

    Example: gpuwarden reject gpu001 --why "we know about it"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import reject as command

    raise typer.Exit(command(thing, Speaker(config, output.value, by, why)))


@people_app.command()
def hold(
    node: NodeArgument,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="E.g. 30m or 8h; until somebody ends it if not given.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the hold.")] = False,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a node left alone for a time: nothing is done to it, and it is not given back.

    Example: gpuwarden hold gpu001 --for 8h --why "memory test"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import hold as command

    raise typer.Exit(command(node, Speaker(config, output.value, by, why), lasts=lasts, end=end))


@people_app.command()
def fenced(
    node: NodeArgument,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say that a node is off for certain: nothing on it can write any more.

    With drain.out_of_service in the policy, pods that hang on it are given up while it is drained. A node that only
    seems to be off may still write to the volumes that another pod then mounts: look first.

    Example: gpuwarden fenced gpu001 --why "power cut at the rack"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import fenced as command

    raise typer.Exit(command(node, Speaker(config, output.value, by, why)))


@people_app.command()
def release(
    node: NodeArgument,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have a node given back now, and left alone as far as its present incidents go.

    Example: gpuwarden release gpu001 --why "repaired and tested"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import release as command

    raise typer.Exit(command(node, Speaker(config, output.value, by, why)))


@people_app.command()
def breaker(
    asked: Annotated[
        BreakerAsked, typer.Argument(metavar="status|reset", help="Tell its state, or close it.")
    ] = BreakerAsked.STATUS,
    why: WhyOption = "",
    by: ByOption = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """The circuit breaker, which opens where too many nodes were taken out in a short time: its state, or close it.

    Example: gpuwarden breaker reset --why "it was the driver roll-out, and that is over"
    """
    from daemon.commands.people import Speaker
    from daemon.commands.people import breaker as command

    raise typer.Exit(command(asked.value, Speaker(config, output.value, by, why)))
