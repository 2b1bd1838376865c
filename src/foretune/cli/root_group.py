"""The root of the command line: its help, and its options, which may follow the command."""

from typing import Any

from typer.core import TyperGroup

from foretune.cli.command import HELP_ALL, find_program
from foretune.errors import UsageError

HELP = """Predict before you measure, verify before you trust.

\b
  foretune campaign quantized_matvec  try it all here, in 2 minutes
  foretune tune FILE.py:NAME …        tune your own function or kernel
  foretune plan MODEL --system …      plan the deployment of a language model
"""
PANELS = {
    "Tune": ("tune", "campaign", "judge", "gate", "replay", "mcp"),
    "Tune Triton kernels": ("inspect", "warm-up"),
    "Learn": ("collect", "import", "train", "evaluate", "predict", "calibrate"),
    "Plan": ("plan",),
    "Keep": ("store", "export"),
    "Machine": ("doctor",),
}
"""Heading of ``--help-all`` -> its commands."""
PANEL_OF_COMMAND = {command: panel for panel in PANELS for command in PANELS[panel]}
FIRST_COMMANDS = (
    "tune",
    "campaign",
    "judge",
    "gate",
    "collect",
    "train",
    "predict",
    "plan",
    "store",
    "export",
    "doctor",
)
"""The commands in ``foretune --help``; ``--help-all`` has all."""
MAX_SUMMARY_CHARACTERS = 65
ROOT_FLAGS = ("--json", "--debug")
ROOT_VALUES = ("--seed", "--store", "--wait-quiet")
ROOT_HELP = "Anywhere: --json, --seed N, --store PATH, --wait-quiet SECONDS, --debug"


class RootGroup(TyperGroup):
    """Commands in the order of `PANELS`; the root's options may follow the command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        order = list(PANEL_OF_COMMAND)
        return sorted(super().list_commands(ctx), key=order.index)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the first commands; with ``--help-all``, all of them in their panels."""
        if ctx.meta.get(HELP_ALL):
            super().format_help(ctx, formatter)
            return

        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        summaries = [
            (name, self.commands[name].get_short_help_str(MAX_SUMMARY_CHARACTERS))
            for name in FIRST_COMMANDS
        ]
        with formatter.section("Commands"):
            formatter.write_dl(summaries)
        formatter.write_text(ROOT_HELP)
        formatter.write_text("More: foretune COMMAND --help, foretune --help-all")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat ``--help-all`` as ``--help`` with all commands; move the root's options first."""
        if args and args[0] == HELP_ALL:
            ctx.meta[HELP_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, move_root_options(args))


def move_root_options(arguments: list[str]) -> list[str]:
    """Return ``arguments`` with the root's options first; a program's own words stay in place."""
    program = find_program(arguments)
    of_root: list[str] = []
    of_command: list[str] = []
    words = enumerate(arguments)
    for position, word in words:
        name, equals, _ = word.partition("=")
        if position in program:
            of_command.append(word)
        elif word in ROOT_FLAGS or (equals and name in ROOT_VALUES):
            of_root.append(word)
        elif word in ROOT_VALUES:
            # The next word is its value.
            following = next(words, None)
            if following is None:
                raise UsageError(f"{word} needs a value: see 'foretune --help'")
            _, value = following
            of_root += [word, value]
        else:
            of_command.append(word)
    return of_root + of_command
