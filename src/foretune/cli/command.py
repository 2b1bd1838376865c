"""Commands, their short and full help, and where a program stands on a line."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

HELP_ALL = "--help-all"
LIST_TYPE = re.compile(r"<list\[(\w+)\]>")
"""The type of a repeatable option in a help."""
EPILOG = "Also: --json, --seed, --store, --wait-quiet and --debug; see 'foretune --help'."
FIRST: Mapping[str, tuple[str, ...]] = {
    "tune": ("problem", "param", "arg", "budget", "predictor", "export"),
    "campaign": ("preset", "problem", "budget", "predictor", "out", "report"),
    "judge": ("problem", "inputs", "beside", "tolerance"),
    "gate": ("base", "head", "budget", "compare", "strict", "markdown"),
    "replay": ("searcher", "budget", "repeats", "prior", "plot"),
    "collect": ("problems", "configs", "device", "out"),
    "train": ("target", "map_", "sizes", "device", "validate", "out"),
    "predict": ("problem", "top", "explain", "config", "objective"),
    "calibrate": ("kernel", "choose", "out"),
    "inspect": ("arg", "config", "target", "all_gpus"),
    "store": ("problem", "export", "merge", "forget"),
    "export": ("kernel", "out", "optuna", "max_configs"),
    "plan serve": ("system", "gpus", "isl", "osl", "goal", "ttft", "tpot", "out"),
    "plan train": ("system", "gpus", "batch", "sequence", "tokens"),
    "plan fleet": ("requests", "systems", "prices", "power_kw"),
}
"""Command -> the options that its ``--help`` shows; commands that are not listed show all."""


class Command(TyperCommand):
    """A command with short and with full help."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for parameter in self.params:
            _name_type_of_one_value(parameter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treat ``--help-all`` as ``--help`` with all options."""
        if HELP_ALL in args:
            ctx.meta[HELP_ALL] = True
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: summary, examples and first options, or all of it."""
        if ctx.meta.get(HELP_ALL):
            super().format_help(ctx, formatter)
            return

        self.format_usage(ctx, formatter)
        summary, *paragraphs = (self.help or "").split("\n\n")
        examples = [text for text in paragraphs if ": foretune " in text]
        formatter.write_paragraph()
        with formatter.indentation():
            for text in (summary, *examples):
                formatter.write_text(text)

        # The parent class writes all options that are not hidden.
        further = self._further_options(ctx)
        for option in further:
            option.hidden = True
        try:
            self.format_options(ctx, formatter)
        finally:
            for option in further:
                option.hidden = False

        formatter.write_paragraph()
        with formatter.indentation():
            more = f"; {HELP_ALL} shows more" if further else ""
            formatter.write_text(f"Also: --json, --seed, --store, --wait-quiet, --debug{more}.")

    def _further_options(self, ctx: Any) -> list[Any]:
        """Return the options that only the full help shows."""
        _, _, name = ctx.command_path.partition(" ")
        first = FIRST.get(name)
        if first is None:
            return []
        parameters: list[Any] = list(self.params)
        shown_options = [p for p in parameters if p.param_type_name == "option" and not p.hidden]
        return [option for option in shown_options if option.name not in first]


def _name_type_of_one_value(parameter: Any) -> None:
    """Let the help name the type of one value: ``<path>``, not ``<list[Path]>``.

    Releases of Typer that name it in another way are left alone.
    """
    display_type = getattr(parameter, "display_type", None)
    if display_type is None:
        return

    def named(context: Any) -> str:
        return LIST_TYPE.sub(lambda found: f"<{found[1].lower()}>", display_type(context))

    parameter.display_type = named


def add_command(
    app: typer.Typer, function: Callable[..., None], cls: type[Command] = Command, **settings: Any
) -> None:
    """Add a command to ``app``; its help is the docstring, each paragraph on one line."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(cls=cls, help=text, epilog=EPILOG, **settings)(function)


def find_program(arguments: Sequence[str]) -> range:
    """Return the positions of a program's words: after ``--``, up to the first ``--param``."""
    if "--" not in arguments:
        return range(0)
    start = arguments.index("--") + 1
    words = arguments[start:]
    stop = start + words.index("--param") if "--param" in words else len(arguments)
    return range(start, stop)
