"""``foretune tune -- PROGRAM``, ``FILE.c`` and ``FILE.py:NAME``: programs, sources, functions."""

import re
from collections.abc import Mapping
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from foretune.cli import options
from foretune.cli.knob_values import parse_values
from foretune.errors import UsageError
from foretune.registry import load, object_at
from foretune.space import Configuration
from foretune.support.console import progress_bar
from foretune.values import Value, parse_value

if TYPE_CHECKING:
    from foretune.tune.functions.result import Best
    from foretune.tune.job import SearchOptions

NAMED_KINDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
"""Parameters that ``--arg`` can give."""
ARGUMENT = re.compile(r"(?P<dtype>\w+)(?:\[(?P<shape>[\d, ]+)\])?(?:=(?P<value>\S+))?")
"""``float32[512,64]``, ``float32[512,64]=0`` or ``int32=5``."""
GRID_AXES = ("x", "y", "z")
SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cl", ".cu", ".hip")
KNOB_OPTIONS = ("param", "restrict", "default")
PROGRAM_OPTIONS = (
    "name",
    "time",
    "time_unit",
    "time_limit",
    "repeats",
    "check",
    "compare",
    "build",
    "env",
    "template",
)
SOURCE_OPTIONS = ("function", "arg", "size", "grid", "option")
FUNCTION_OPTIONS = (*KNOB_OPTIONS, "name", "arg")
"""Parameters of the command that apply to Python functions."""
WRAPPED_OPTIONS = (*KNOB_OPTIONS, *PROGRAM_OPTIONS, *SOURCE_OPTIONS)
"""Parameters of the command that only functions, programs and sources take."""
PROGRAM_PANEL = "Programs (after --)"
SOURCE_PANEL = "Sources and functions"

_program_option = partial(typer.Option, rich_help_panel=PROGRAM_PANEL)
_source_option = partial(typer.Option, rich_help_panel=SOURCE_PANEL)
NAME = _program_option("", help="Name in the store. Default: the program's file name.")
TIME = _program_option(
    None, help="Regular expression whose (group) is the time in the output. Default: wall time."
)
TIME_UNIT = _program_option("ms", help="Unit of that time: ns, us, ms or s.")
TIME_LIMIT = _program_option(60.0, help="Maximum seconds of one run.")
REPEATS = _program_option(None, help="Runs of each configuration.")
CHECK = _program_option(None, help="Regular expression that the output must match.")
COMPARE = _program_option("", help="Command that checks the result: exit code 0 means correct.")
BUILD = _program_option(
    "", help="Command to run first, untimed. If it builds into {dir}, once per configuration."
)
ENV = _program_option([], help="Environment variable, NAME=TEXT (repeatable).")
TEMPLATE = _program_option([], help="TEMPLATE:FILE: write FILE from TEMPLATE (repeatable).")
FUNCTION = _source_option("", "--kernel", help="Function in the source.")
ARG = _source_option([], help="In order: float32[8] (random), float32[8]=0, int32=7.")
SIZE = _source_option("", help="Problem size, 1024,512: work items or threads.")
GRID = _source_option("", help="Divisors: block_size_x*tile,block_size_y. Default: the work group.")
COMPILER_OPTION = _source_option([], help="Option of the compiler (repeatable).")


def _tune_options(context: typer.Context, search: "SearchOptions") -> dict[str, Any]:
    """Return the options that programs, sources and functions share."""
    from foretune.models.guides.request import AUTO, NONE
    from foretune.models.saved.lookup import read_model

    given = context.params
    if len(given["objective"]) > 1:
        raise UsageError("only one objective is possible: give --objective once")
    load("searchers", given["searcher"])
    shared: dict[str, Any] = {
        **search,
        **options.read_verification(context),
        "objective": given["objective"][0],
        "default": _parse_default(given["default"]),
    }
    predictor = given["predictor"]
    if predictor not in (AUTO, NONE):  # none is shipped for these
        shared["predictor"] = read_model(predictor)
    return shared


def tune_command(context: typer.Context, command: list[str], search: "SearchOptions") -> "Best":
    """Tune a program with the options of the command line."""
    from foretune.tune.functions.program import tune_program

    given = context.params
    knobs = _parse_knobs(given["param"])
    shared = _tune_options(context, search)
    with progress_bar(notes=True) as progress:
        return tune_program(
            command,
            knobs,
            build=given["build"],
            time=given["time"],
            time_unit=given["time_unit"],
            check=given["check"],
            compare=given["compare"],
            environment=options.parse_key_values(given["env"], "--env", "NAME=VALUE"),
            templates=dict(_parse_template(text) for text in given["template"]),
            runs=given["repeats"],
            time_limit_s=options.require_positive(given["time_limit"], "--time-limit"),
            restrictions=given["restrict"],
            name=given["name"] or None,
            progress=progress,
            **shared,
        )


def tune_source(context: typer.Context, path: str, search: "SearchOptions") -> "Best":
    """Tune a function of a source file with the options of the command line."""
    from foretune.tune.functions.kernel_tuner import tune_kernel

    given = context.params
    if not given["function"] or not given["arg"]:
        raise UsageError(
            f"name the function in {path}, and its arguments in order: --kernel NAME --arg "
            "float32[4096] --arg int32=4096"
        )
    arguments = [parse_argument(text, seed=i) for i, text in enumerate(given["arg"])]
    grid_divisors = _parse_grid(given["grid"])
    shared = _tune_options(context, search)
    with progress_bar(notes=True) as progress:
        return tune_kernel(
            kernel_name=given["function"],
            kernel_source=path,
            problem_size=_parse_size(given["size"], arguments),
            arguments=arguments,
            tune_params=_parse_knobs(given["param"]),
            grid_div_x=grid_divisors.get("x"),
            grid_div_y=grid_divisors.get("y"),
            grid_div_z=grid_divisors.get("z"),
            restrictions=given["restrict"] or None,
            compiler_options=given["option"] or None,
            progress=progress,
            **shared,
        )


def _parse_size(text: str, arguments: list[Any]) -> Any:
    """Parse ``--size``: numbers or expressions of knobs; by default, the largest argument's size.

    A single one is returned alone, as Kernel Tuner takes it.
    """
    if not text:
        return max(getattr(argument, "size", 1) for argument in arguments)
    parts = [part.strip() for part in text.split(",")]
    sizes = [int(part) if part.isdigit() else part for part in parts]
    return sizes[0] if len(sizes) == 1 else tuple(sizes)


def _parse_grid(text: str) -> dict[str, list[str]]:
    """Parse ``--grid``: axis -> what divides its size; axes that are left out are not in it."""
    if not text:
        return {}
    divisors = [[part.strip()] for part in text.split(",")]
    return dict(zip(GRID_AXES, divisors, strict=False))


def tune_function(context: typer.Context, location: str, search: "SearchOptions") -> "Best":
    """Tune a plain Python function with the options of the command line."""
    from foretune.collect.wrapped.function import parameters_of
    from foretune.tune.functions.function import tune_function

    given = context.params
    function = object_at(location)
    if not given["param"]:
        raise UsageError(f"{location} has no knobs: add --param ARGUMENT=VALUE,VALUE")
    knobs = _parse_knobs(given["param"])
    not_knobs = {
        name: parameter
        for name, parameter in parameters_of(function).items()
        if name not in knobs and parameter.kind in NAMED_KINDS
    }
    shared_arguments = _parse_arguments(location, not_knobs, given["arg"])
    shared = _tune_options(context, search)
    with progress_bar(notes=True) as progress:
        return tune_function(
            function,
            knobs,
            kwargs=shared_arguments,
            restrictions=given["restrict"],
            name=given["name"] or None,
            device=given["device"],
            progress=progress,
            **shared,
        )


def _parse_arguments(
    location: str, parameters: Mapping[str, Parameter], texts: list[str]
) -> dict[str, Any]:
    """Parse every ``--arg`` as the argument of the parameter in its place."""
    names = list(parameters)
    values = [parse_argument(text, seed=i) for i, text in enumerate(texts)]
    missing = [name for name in names[len(values) :] if parameters[name].default is Parameter.empty]
    if missing:
        raise UsageError(
            f"{location} needs {', '.join(missing)}: give every argument that is not a knob, "
            "like --arg float64[512,64] (random) or --arg int64=7"
        )
    if len(values) > len(names):
        raise UsageError(f"{location} takes {len(names)} arguments besides knobs: drop an --arg")
    return dict(zip(names, values, strict=False))


def parse_argument(text: str, seed: int = 0) -> Any:
    """Return the array or number for ``--arg``.

    ``float32[512,64]`` is random, ``float32[512,64]=0`` filled, ``int32=5`` a number. Random
    floats are in [0, 1), random integers in [0, 100).
    """
    try:
        return _read_argument(text.strip(), seed)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"--arg {text!r}: write float32[512,64], float32[512,64]=0 or int32=5"
        ) from None


def _read_argument(text: str, seed: int) -> Any:
    """Return an argument; TypeError, ValueError or OverflowError if it cannot be read."""
    parts = ARGUMENT.fullmatch(text)
    if parts is None:
        raise ValueError(text)
    dtype = np.dtype(parts["dtype"])
    is_number = dtype.kind in "biuf"
    if not is_number or (parts["shape"] is None and parts["value"] is None):
        raise ValueError(text)

    if parts["shape"] is None:
        return dtype.type(parse_value(parts["value"]))
    shape = tuple(int(size) for size in parts["shape"].split(",") if size.strip())
    if parts["value"] is not None:
        return np.full(shape, parse_value(parts["value"]), dtype)

    rng = np.random.default_rng(seed)
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    below = 2 if dtype.kind == "b" else 100
    return rng.integers(0, below, shape).astype(dtype)


def _parse_knobs(texts: list[str]) -> dict[str, list[Value]]:
    values_of_knob = options.parse_key_values(texts, "--param", "KNOB=VALUE")
    if not values_of_knob:
        raise UsageError(
            "there are no knobs: add --param KNOB=VALUE,VALUE and use them, {KNOB} in a program"
        )
    return {name: parse_values(text) for name, text in values_of_knob.items()}


def _parse_default(text: str) -> dict[str, Value] | None:
    return dict(Configuration.parse(text)) if text else None


def _parse_template(text: str) -> tuple[str, str]:
    source, colon, target = text.partition(":")
    if not colon or not source or not target or source == target:
        raise UsageError(f"--template {text!r} is not of the form FILE:OTHER_FILE")
    return source, target
