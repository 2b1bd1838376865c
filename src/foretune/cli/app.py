"""The application: the command table, the root's options, and errors as one line."""

import os
import signal
import sys
import threading
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from foretune.cli import (
    calibrate,
    campaign,
    collect,
    doctor,
    export,
    gate,
    importing,
    judge,
    mcp,
    plan,
    predict,
    predictors,
    replay,
    store,
    triton,
    tune,
)
from foretune.cli.command import HELP_ALL, add_command, find_program
from foretune.cli.options import NO_STORE, RootOptions
from foretune.cli.output import only_results_to_stdout
from foretune.errors import ForetuneError, ForetuneWarning, UsageError
from foretune.redaction import redact
from foretune.version import __version__

INTERRUPTED_EXIT_CODE = 130

HELP = """Predict before you measure, verify before you trust.

\b
  foretune campaign softmax         try it all here, in 2 minutes
  foretune tune FILE.py:NAME …      tune your own function or kernel
  foretune plan MODEL --system …    plan the deployment of a language model
"""
PANELS = {
    "Tune": ("tune", "campaign", "judge", "gate", "replay", "mcp"),
    "Tune Triton kernels": ("inspect", "warm-up"),
    "Learn": ("collect", "import", "train", "evaluate", "predict", "calibrate"),
    "Plan": ("plan",),
    "Keep": ("store", "export"),
    "Machine": ("doctor",),
}
"""Heading of the help -> its commands."""
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
ROOT_FLAGS = ("--json", "--debug")
ROOT_VALUES = ("--seed", "--store", "--wait-quiet")
ROOT_HELP = "Anywhere: --json, --seed N, --store PATH, --wait-quiet SECONDS, --debug"


class _RootGroup(TyperGroup):
    """Commands in the order of `PANELS`; the root's options may follow the command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=list(_PANEL_OF).index)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(HELP_ALL):
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(65)) for name in FIRST_COMMANDS]
            )
        formatter.write_text(ROOT_HELP)
        formatter.write_text("More: foretune COMMAND --help, foretune --help-all")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] == HELP_ALL:
            ctx.meta[HELP_ALL], args = True, ["--help"]
        return super().parse_args(ctx, move_root_options(args))


def move_root_options(arguments: list[str]) -> list[str]:
    """Return ``arguments`` with the root's options first; a program's own words stay in place."""
    program, front, rest = find_program(arguments), [], []
    words = enumerate(arguments)
    for i, word in words:
        name, equals, _ = word.partition("=")
        if i in program:
            rest.append(word)
        elif word in ROOT_FLAGS or (equals and name in ROOT_VALUES):
            front.append(word)
        elif word in ROOT_VALUES:
            value = next(words, None)
            if value is None:
                raise UsageError(f"{word} needs a value: see 'foretune --help'")
            front += [word, value[1]]
        else:
            rest.append(word)
    return front + rest


app = typer.Typer(
    name="foretune",
    cls=_RootGroup,
    help=HELP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    campaign.campaign,
    judge.judge,
    gate.gate,
    replay.replay,
    mcp.mcp,
    triton.inspect,
    triton.warm_up,
    collect.collect,
    predictors.train,
    predictors.evaluate,
    predict.predict,
    calibrate.calibrate,
    store.store,
    export.export,
    doctor.doctor,
)
add_command(app, tune.tune, cls=tune.TuneCommand)
add_command(app, importing.import_, name="import")
for _command in _COMMANDS:
    add_command(app, _command)
plan.register(app)
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ENTRIES: list[Any] = [*app.registered_commands, *app.registered_groups]
for _entry in _ENTRIES:
    _entry.rich_help_panel = _PANEL_OF[_entry.name or _entry.callback.__name__.replace("_", "-")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foretune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    as_json: bool = typer.Option(
        False, "--json", help="Print one JSON object on stdout, all text on stderr."
    ),
    seed: int | None = typer.Option(None, min=0, help="Seed of all random choices. Default: 0."),
    store: str | None = typer.Option(
        None,
        help="Store of measurements: path or database URL; "
        f"{NO_STORE}: measure everything. Default: $FORETUNE_STORE, else your cache folder.",
    ),
    wait_quiet: float = typer.Option(
        0.0,
        min=0,
        help="Wait up to this many seconds for a quiet machine before comparing times.",
        show_default=False,
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks."),
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    context.obj = RootOptions(as_json, seed, store, wait_quiet)
    if as_json:
        context.with_resource(only_results_to_stdout())


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; never raises."""
    program = find_program(arguments)
    debug = any(a == "--debug" for i, a in enumerate(arguments) if i not in program)
    warnings.formatwarning = _one_line
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        result = app(arguments or ["--help"], prog_name="foretune", standalone_mode=False)
        if result == INTERRUPTED_EXIT_CODE:  # what newer releases of Typer make of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except ForetuneError as e:
        return _fail(str(e), e.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        kept = "interrupted: what went to a store or a run table is kept; run the same command to "
        return _fail(f"{kept}continue", INTERRUPTED_EXIT_CODE, False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _fail("out of memory: use a smaller problem or fewer configurations", 1, debug)
    except Exception as e:
        if message := _usage_error(e):
            return _fail(message, 2, False)
        hint = "" if debug else "; --debug shows where"
        return _fail(f"unexpected {type(e).__name__}: {e}{hint}", 1, debug)


def _usage_error(error: Exception) -> str | None:
    """Return what is wrong with the command line; None for any other error.

    Newer releases of Typer carry a copy of click, so click's own classes cannot be caught.
    """
    if getattr(error, "exit_code", None) != 2 or not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "foretune"
    return f"{error.format_message() or 'a command is missing.'} See '{command} --help'."


def _one_line(
    message: object, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning: Foretune's as one line, others with their origin."""
    if issubclass(category, ForetuneWarning):
        return f"foretune: warning: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        print(redact(traceback.format_exc()), file=sys.stderr, end="")
    print(f"foretune: {redact(' '.join(message.split()))}", file=sys.stderr)
    return code
