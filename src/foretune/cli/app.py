"""The application: the table of commands, the root's options, and errors as one line."""

import os
import signal
import sys
import threading
import warnings
from typing import Any

import typer

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
from foretune.cli.command import add_command, find_program
from foretune.cli.options import NO_STORE, RootOptions
from foretune.cli.output import only_results_to_stdout
from foretune.cli.root_group import HELP, PANEL_OF_COMMAND, RootGroup
from foretune.errors import ForetuneError, ForetuneWarning, UsageError
from foretune.redaction import redact
from foretune.version import __version__

INTERRUPTED_EXIT_CODE = 130
USAGE_EXIT_CODE = UsageError.exit_code
COMMANDS = (
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
"""The commands that need nothing special; their functions give names and help."""

app = typer.Typer(
    name="foretune",
    cls=RootGroup,
    help=HELP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add_commands() -> None:
    """Add every command to `app`, under the heading of its panel."""
    add_command(app, tune.tune, cls=tune.TuneCommand)
    add_command(app, importing.import_, name="import")
    for command in COMMANDS:
        add_command(app, command)
    plan.register(app)

    entries: list[Any] = [*app.registered_commands, *app.registered_groups]
    for entry in entries:
        name = entry.name or entry.callback.__name__.replace("_", "-")
        entry.rich_help_panel = PANEL_OF_COMMAND[name]


_add_commands()


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
    context.obj = RootOptions(
        as_json=as_json, given_seed=seed, store_name=store, patience_s=wait_quiet
    )
    if as_json:
        context.with_resource(only_results_to_stdout())


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; never raises."""
    program = find_program(arguments)
    own_words = [word for i, word in enumerate(arguments) if i not in program]
    debug = "--debug" in own_words
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
        message = (
            "interrupted: what went to a store or a run table is kept; "
            "run the same command to continue"
        )
        return _fail(message, INTERRUPTED_EXIT_CODE, debug=False)
    except BrokenPipeError:
        # The output is not read any more: at exit, Python would fail to flush it.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return 1
    except MemoryError:
        return _fail("out of memory: use a smaller problem or fewer configurations", 1, debug)
    except Exception as e:
        message = _usage_error(e)
        if message:
            return _fail(message, USAGE_EXIT_CODE, debug=False)
        hint = "" if debug else "; --debug shows where"
        return _fail(f"unexpected {type(e).__name__}: {e}{hint}", 1, debug)


def _usage_error(error: Exception) -> str:
    """Return what is wrong with the command line; empty for any other error.

    Newer releases of Typer carry a copy of click, so click's own classes cannot be caught.
    """
    is_usage_error = getattr(error, "exit_code", None) == USAGE_EXIT_CODE
    format_message = getattr(error, "format_message", None)
    if not is_usage_error or format_message is None:
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "foretune"
    return f"{format_message() or 'a command is missing.'} See '{command} --help'."


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
