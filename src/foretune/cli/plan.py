"""``foretune plan``: its commands as one group, in which serving is the default."""

import difflib
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from foretune.cli.plan import fleet, power, serve, train
from foretune.errors import UnknownName


class ServeByDefault(TyperGroup):
    """A group in which ``plan MODEL …`` means ``plan serve MODEL …``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``serve`` before a line that names no command.

        Raises:
            UnknownName: the first word is a misspelt command.
        """
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            word = args[0]
            known_file = "/" in word or Path(word).exists()
            if not known_file and difflib.get_close_matches(word, self.commands):
                raise UnknownName("plan", word, self.commands)
            args = ["serve", *args]
        return super().parse_args(ctx, args)


commands = typer.Typer(
    cls=ServeByDefault,
    help="Plan deployments of language models, without a GPU.\n\n"
    "'foretune plan MODEL …' is short for 'foretune plan serve MODEL …'.",
    no_args_is_help=True,
)
for _command in (serve.serve, train.train, fleet.fleet, power.power):
    commands.command()(_command)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(commands, name="plan")
