"""The application: commands put together, and every error turned into one line."""

import os
import signal
import sys
import threading
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from foretune.cli import (
    calibrating,
    campaign,
    compiling,
    datasets,
    drifting,
    engine_files,
    explaining,
    exporting,
    importing,
    judging,
    machine,
    policy,
    predictors,
    replaying,
    runs,
    storing,
    tuning,
    warming,
)
from foretune.cli.plan import group as planning
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.version import __version__

INTERRUPTED_EXIT_CODE = 130

HELP = """Predict before you measure, verify before you trust.

Most people start here:

\b
  foretune campaign matmul          try it all on this machine (3 minutes)
  foretune tune FILE.py:NAME …      tune a function or kernel of yours
  foretune plan MODEL --system …    plan the deployment of a language model
"""
PANELS = {
    "Tune": ("tune", "campaign", "report", "judge", "replay"),
    "Tune Triton kernels": ("inspect", "precompile", "warm-up"),
    "Learn": (
        "collect", "import", "datasets", "train", "evaluate", "predict", "explain", "choose",
        "calibrate", "drift", "policy",
    ),
    "Plan": ("plan", "engine-config"),
    "Keep": ("store", "export"),
    "Machine": ("devices", "doctor"),
}  # fmt: skip
"""Heading of the help -> its commands."""


class PanelGroup(TyperGroup):
    """Commands in the order of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return sorted(super().list_commands(ctx), key=list(_PANEL_OF).index)


app = typer.Typer(
    name="foretune",
    cls=PanelGroup,
    help=HELP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_GROUPS = (campaign, runs, planning, tuning, judging, policy, storing)
_COMMANDS = (
    datasets.datasets, predictors.train, predictors.evaluate, predictors.predict,
    calibrating.choose, calibrating.calibrate, explaining.explain, drifting.drift,
    replaying.replay, exporting.export, compiling.inspect, compiling.precompile,
    warming.warm_up, engine_files.engine_config, machine.devices, machine.doctor,
)  # fmt: skip
for _group in _GROUPS:
    _group.register(app)
app.command("import")(importing.import_)
for _command in _COMMANDS:
    app.command()(_command)
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ENTRIES: list[Any] = [*app.registered_commands, *app.registered_groups]
for _entry in _ENTRIES:
    _entry.rich_help_panel = _PANEL_OF[_entry.name or _entry.callback.__name__.replace("_", "-")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foretune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks (anywhere on the line)."),
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run a command; never raises."""
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"] or ["--help"]
    warnings.formatwarning = _one_line
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        result = app(arguments, prog_name="foretune", standalone_mode=False)
        if result == INTERRUPTED_EXIT_CODE:  # what newer releases of Typer make of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except ForetuneError as e:
        return _fail(str(e), e.exit_code, debug)
    except (KeyboardInterrupt, typer.Abort):
        kept = "interrupted: what was measured is kept; the same command goes on or starts again"
        return _fail(kept, INTERRUPTED_EXIT_CODE, False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _fail("out of memory: take a smaller problem or fewer configurations", 1, debug)
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
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    *_: object,
    **__: object,
) -> str:
    """Return a warning as people are to read it; others' with where it is from."""
    if issubclass(category, ForetuneWarning):
        return f"foretune: warning: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"foretune: {' '.join(message.split())}", file=sys.stderr)
    return code
