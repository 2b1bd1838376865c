"""What ``foretune tune`` makes of a program, or of a source file, as they were typed."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from foretune.cli import options
from foretune.console import progress_bar
from foretune.errors import UsageError
from foretune.space import Configuration
from foretune.values import Value, parse_value

if TYPE_CHECKING:
    from foretune.tune.functions.result import Best
    from foretune.tune.store.optional import StoreLocation

SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".cl", ".cu", ".hip")
KNOB_OPTIONS = ("param", "restrict", "default")
PROGRAM_OPTIONS = (
    "name", "time", "time_unit", "check", "compare", "build", "env", "template", "source",
    "repeats", "time_limit", "shell",
)  # fmt: skip
SOURCE_OPTIONS = ("function", "arg", "size", "grid", "option")
"""Names of options that programs, or sources, alone take."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search, as it was typed; see `foretune.tune_problem`."""

    budget: int | Literal["auto"] | None
    regret: float | None
    seconds: float | None
    objective: list[str]
    limit: list[str]
    searcher: str
    store: "StoreLocation"
    seed: int
    patience_s: float

    def to_kwargs(self) -> dict[str, Any]:
        """Return it as functions of Python take it.

        Raises:
            UsageError: there are several objectives.
            UnknownName: there is no such searcher.
        """
        from foretune.registry import load

        if len(self.objective) > 1:
            raise UsageError("programs and sources have one objective: give --objective once")
        load("searchers", self.searcher)
        given = {
            "budget": self.budget, "regret": self.regret, "seconds": self.seconds,
            "objective": self.objective[0], "limits": self.limit, "searcher": self.searcher,
            "store": self.store, "seed": self.seed, "patience_s": self.patience_s,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value is not None}


def tune_program_command(command: list[str], search: SearchOptions, **given: Any) -> "Best":
    """Tune a program with the options of the command line as they were typed."""
    from foretune.tune.functions.program import tune_program

    knobs = _parse_knobs(given["param"])
    with progress_bar(notes=True) as progress:
        return tune_program(
            command,
            knobs,
            build=given["build"],
            environment=options.parse_key_values(given["env"], "--env"),
            templates=dict(_parse_template(text) for text in given["template"]),
            time=given["time"],
            time_unit=given["time_unit"],
            check=given["check"],
            compare=given["compare"],
            shell=given["shell"],
            sources=given["source"],
            runs=given["repeats"],
            time_limit_s=options.require_positive(given["time_limit"], "--time-limit"),
            restrictions=given["restrict"],
            default=_parse_default(given["default"]),
            name=given["name"] or None,
            progress=progress,
            **search.to_kwargs(),
        )


def tune_source(path: str, search: SearchOptions, **given: Any) -> "Best":
    """Tune a function of a source file with the options of the command line as they were typed."""
    from foretune.tune.functions.kernel_tuner import tune_kernel

    if not given["function"] or not given["arg"]:
        raise UsageError(
            f"say which function of {path}, and its arguments in order: --kernel NAME --arg "
            "float32[4096] --arg int32=4096"
        )
    arguments = [read_argument(text, i) for i, text in enumerate(given["arg"])]
    size = given["size"] or str(max(getattr(a, "size", 1) for a in arguments))
    sizes = [read_size(part) for part in size.split(",")]
    parts = [[part.strip()] for part in given["grid"].split(",")] if given["grid"] else []
    x, y, z = [*parts, None, None, None][:3]
    search_kwargs = search.to_kwargs()
    with progress_bar(notes=True) as progress:
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
            objective=search_kwargs.pop("objective"),
            seed=search_kwargs.pop("seed"),
            progress=progress,
            **search_kwargs,
        )


def read_argument(text: str, seed: int = 0) -> Any:
    """Return the array or number that ``--arg`` means.

    ``float32[512,64]`` is random, ``float32[512,64]=0`` filled, ``int32=5`` a number. Random
    numbers lie between 0 and 1, whole ones between 0 and 99.

    Raises:
        UsageError: it cannot be read.
    """
    import numpy as np

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
    except (TypeError, ValueError):
        raise UsageError(
            f"--arg {text!r}: write float32[512,64], float32[512,64]=0 or int32=5"
        ) from None
    rng = np.random.default_rng(seed)
    return rng.random(shape).astype(kind) if kind.kind == "f" else rng.integers(
        0, 2 if kind.kind == "b" else 100, shape
    ).astype(kind)  # fmt: skip


def read_size(text: str) -> int | str:
    """Return a number, or an expression of knobs."""
    return int(text) if text.strip().isdigit() else text.strip()


def _parse_knobs(texts: list[str]) -> dict[str, list[Value]]:
    values_by_knob = {
        name: read_values(text) for name, text in options.parse_key_values(texts, "--param").items()
    }
    if not values_by_knob:
        raise UsageError("there are no knobs: add --param KNOB=VALUE,VALUE and use them, {KNOB} in "
                         "a program")  # fmt: skip
    return values_by_knob


def _parse_default(text: str) -> dict[str, Value] | None:
    return dict(Configuration.parse(text)) if text else None


def read_values(text: str) -> list[Value]:
    """Return the values that ``8,16,32`` or ``8..32`` (by doubling) mean.

    A text stays as it was typed where the number would be written in another way.

    Raises:
        UsageError: a range goes down, or begins with no positive number.
    """
    low, dots, high = text.partition("..")
    if dots and low.isdigit() and high.isdigit():
        values: list[Value] = []
        value, last = int(low), int(high)
        while 0 < value <= last:
            values.append(value)
            value *= 2
        if not values:
            raise UsageError(f"{text} holds no value: write a range like 8..256")
        return values
    parsed = ((part.strip(), parse_value(part.strip())) for part in text.split(","))
    return [value if str(value) == part else part for part, value in parsed]


def _parse_template(text: str) -> tuple[str, str]:
    source, colon, target = text.partition(":")
    if not colon or not source or not target or source == target:
        raise UsageError(f"--template {text!r} is not of the form FILE:OTHER_FILE")
    return source, target
