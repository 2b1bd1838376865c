"""``foretune tune -- PROGRAM``, ``FILE.c`` and ``FILE.py:NAME``: programs, sources, functions."""

import re
from collections.abc import Mapping
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

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
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
PROGRAM_PANEL, SOURCE_PANEL = ("Programs (after --)", "Sources and functions")


def _program_option(default: Any, text: str) -> Any:
    return typer.Option(default, help=text, rich_help_panel=PROGRAM_PANEL)


def _source_option(default: Any, text: str, *names: str) -> Any:
    return typer.Option(default, *names, help=text, rich_help_panel=SOURCE_PANEL)


NAME = _program_option("", "Name in the store. Default: the program's file name.")
TIME = _program_option(
    None, "Regular expression whose (group) is the time in the output. Default: wall time."
)
TIME_UNIT = _program_option("ms", "Unit of that time: ns, us, ms or s.")
TIME_LIMIT = _program_option(60.0, "Maximum seconds of one run.")
REPEATS = _program_option(None, "Runs of each configuration.")
CHECK = _program_option(None, "Regular expression that the output must match.")
COMPARE = _program_option("", "Command that checks the result: exit code 0 means correct.")
BUILD = _program_option(
    "", "Command to run first, untimed. If it builds into {dir}, once per configuration."
)
ENV = _program_option([], "Environment variable, NAME=TEXT (repeatable).")
TEMPLATE = _program_option([], "TEMPLATE:FILE: write FILE from TEMPLATE (repeatable).")
FUNCTION = _source_option("", "Function in the source.", "--kernel")
ARG = _source_option([], "In order: float32[8] (random), float32[8]=0, int32=7.")
SIZE = _source_option("", "Problem size, 1024,512: work items or threads.")
GRID = _source_option("", "Divisors: block_size_x*tile,block_size_y. Default: the work group.")
COMPILER_OPTION = _source_option([], "Option of the compiler (repeatable).")


def _tune_options(search: "SearchOptions", given: Mapping[str, Any]) -> dict[str, Any]:
    from foretune.models.guides.request import AUTO, NONE
    from foretune.models.saved.lookup import read_model

    if len(given["objective"]) > 1:
        raise UsageError("only one objective is possible: give --objective once")
    load("searchers", given["searcher"])
    found: dict[str, Any] = {**search, "objective": given["objective"][0]}
    if (predictor := given["predictor"]) not in (AUTO, NONE):  # none is shipped for these
        found["predictor"] = read_model(predictor)
    return found


def tune_command(command: list[str], search: "SearchOptions", given: Mapping[str, Any]) -> "Best":
    """Tune a program; ``given`` are the parameters of the command line."""
    from foretune.tune.functions.program import tune_program

    knobs, how = _parse_knobs(given["param"]), _tune_options(search, given)
    how |= {name: given[name] for name in ("build", "time", "time_unit", "check", "compare")}
    with progress_bar(notes=True) as how["progress"]:
        return tune_program(
            command,
            knobs,
            environment=options.parse_key_values(given["env"], "--env", "NAME=VALUE"),
            templates=dict(_parse_template(text) for text in given["template"]),
            runs=given["repeats"],
            time_limit_s=options.require_positive(given["time_limit"], "--time-limit"),
            restrictions=given["restrict"],
            default=_parse_default(given["default"]),
            name=given["name"] or None,
            **how,
        )


def tune_source(path: str, search: "SearchOptions", given: Mapping[str, Any]) -> "Best":
    """Tune a function of a source file; ``given`` are the parameters of the command line."""
    from foretune.tune.functions.kernel_tuner import tune_kernel

    if not given["function"] or not given["arg"]:
        raise UsageError(
            f"name the function in {path}, and its arguments in order: --kernel NAME --arg "
            "float32[4096] --arg int32=4096"
        )
    arguments = [parse_argument(text, i) for i, text in enumerate(given["arg"])]
    size = given["size"] or str(max(getattr(a, "size", 1) for a in arguments))
    parts = (part.strip() for part in size.split(","))
    sizes = [int(part) if part.isdigit() else part for part in parts]  # or expressions of knobs
    divisors = [[part.strip()] for part in given["grid"].split(",")] if given["grid"] else []
    x, y, z = [*divisors, None, None, None][:3]
    how = _tune_options(search, given)
    with progress_bar(notes=True) as how["progress"]:
        return tune_kernel(
            given["function"],
            path,
            sizes[0] if len(sizes) == 1 else tuple(sizes),
            arguments,
            _parse_knobs(given["param"]),
            x,
            y,
            z,
            restrictions=given["restrict"] or None,
            compiler_options=given["option"] or None,
            default=_parse_default(given["default"]),
            **how,
        )


def tune_function(location: str, search: "SearchOptions", given: Mapping[str, Any]) -> "Best":
    """Tune a plain Python function; ``given`` are the parameters of the command line."""
    from foretune.collect.wrapped.function import parameters_of
    from foretune.tune.functions.function import tune_function

    function = object_at(location)
    if not given["param"]:
        raise UsageError(f"{location} has no knobs: add --param ARGUMENT=VALUE,VALUE")
    knobs = _parse_knobs(given["param"])
    free = {n: p for n, p in parameters_of(function).items() if n not in knobs and p.kind in _NAMED}
    arguments = [parse_argument(text, i) for i, text in enumerate(given["arg"])]
    required = [name for name, p in free.items() if p.default is p.empty]
    if missing := [name for name in required if name not in list(free)[: len(arguments)]]:
        how_to = "like --arg float64[512,64] (random) or --arg int64=7"
        lacking = f"{location} needs {', '.join(missing)}"
        raise UsageError(f"{lacking}: give every argument that is not a knob, {how_to}")
    if len(arguments) > len(free):
        raise UsageError(f"{location} takes {len(free)} arguments besides knobs: drop an --arg")
    how = _tune_options(search, given)
    with progress_bar(notes=True) as how["progress"]:
        return tune_function(
            function,
            knobs,
            kwargs=dict(zip(free, arguments, strict=False)),
            restrictions=given["restrict"],
            default=_parse_default(given["default"]),
            name=given["name"] or None,
            device=given["device"],
            **how,
        )


def parse_argument(text: str, seed: int = 0) -> Any:
    """Return the array or number for ``--arg``.

    ``float32[512,64]`` is random, ``float32[512,64]=0`` filled, ``int32=5`` a number. Random
    floats are in [0, 1), random integers in [0, 100).
    """
    found = re.fullmatch(r"(\w+)(?:\[([\d, ]+)\])?(?:=(\S+))?", text.strip())
    try:
        kind = np.dtype(found[1] if found else "")
        if not found or kind.kind not in "biuf" or (found[2] or found[3]) is None:
            raise TypeError
        if found[2] is None:
            return kind.type(parse_value(found[3]))
        shape = tuple(int(part) for part in found[2].split(",") if part.strip())
        if found[3] is not None:
            return np.full(shape, parse_value(found[3]), kind)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"--arg {text!r}: write float32[512,64], float32[512,64]=0 or int32=5"
        ) from None
    rng = np.random.default_rng(seed)
    if kind.kind == "f":
        return rng.random(shape).astype(kind)
    return rng.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)


def _parse_knobs(texts: list[str]) -> dict[str, list[Value]]:
    given = options.parse_key_values(texts, "--param", "KNOB=VALUE")
    if not given:
        example = "add --param KNOB=VALUE,VALUE and use them, {KNOB} in a program"
        raise UsageError(f"there are no knobs: {example}")
    return {name: parse_values(text) for name, text in given.items()}


def _parse_default(text: str) -> dict[str, Value] | None:
    return dict(Configuration.parse(text)) if text else None


def _parse_template(text: str) -> tuple[str, str]:
    source, colon, target = text.partition(":")
    if not colon or not source or not target or source == target:
        raise UsageError(f"--template {text!r} is not of the form FILE:OTHER_FILE")
    return source, target
