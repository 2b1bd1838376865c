"""``foretune plan``: a group of commands whose default is ``plan serve``."""

import difflib
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from foretune.cli import plan_fleet, plan_serve, plan_steps, plan_train
from foretune.cli.command import add_command
from foretune.errors import UnknownName


class ServeByDefault(TyperGroup):
    """A group in which ``plan MODEL …`` means ``plan serve MODEL …``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``serve`` if the line names no command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            word = args[0]
            known_file = "/" in word or Path(word).exists()
            if not known_file and difflib.get_close_matches(word, self.commands):
                raise UnknownName("plan", word, self.commands)
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the group to ``app``."""
    commands = typer.Typer(
        cls=ServeByDefault,
        help="Plan deployments of language models, without a GPU.\n\n"
        "'foretune plan MODEL …' is short for 'foretune plan serve MODEL …'.",
        no_args_is_help=True,
    )
    for command in (plan_serve.serve, plan_train.train, plan_fleet.fleet, plan_steps.steps):
        add_command(commands, command)
    app.add_typer(commands, name="plan")
