"""Problems: the sizes and types of one call of a kernel."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Self

from foretune.errors import ProblemError, require_known
from foretune.values import FrozenParameters, Value

ARRAY = re.compile(r"(?P<name>\w+)=(?P<dtype>\w+)\[(?P<sizes>[\d, ]+)\]")
"""An array's type and sizes in a problem's text, like ``x=float64[4096,64]``."""


class Problem(FrozenParameters):
    """The shapes, dtypes and layouts of one call, e.g. ``Problem(M=512, N=512, K=512)``."""

    __slots__ = ()

    @property
    def shown(self) -> str:
        """The problem as text for people, see `shown_values`; `parse` reads it, too."""
        return ",".join(f"{name}={text}" for name, text in shown_values(self).items())

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAME=VALUE,…``; ``x=float64[4096,64]`` stands for ``x``, ``x_0`` and ``x_1``."""
        return super().parse(ARRAY.sub(_name_sizes, text))


def _name_sizes(array: re.Match[str]) -> str:
    """Return ``x=float64,x_0=4096,x_1=64`` for a match of `ARRAY`."""
    name = array["name"]
    sizes = [size.strip() for size in array["sizes"].split(",") if size.strip()]
    return ",".join(
        [f"{name}={array['dtype']}", *(f"{name}_{i}={size}" for i, size in enumerate(sizes))]
    )


@dataclass(frozen=True)
class ProblemParameter:
    """One named size or choice of a problem.

    Attributes:
        default: None makes the parameter required.
        choices: legal values of a choice (a dtype, a layout); None for a size.
        minimum: smallest legal size; a float makes it real-valued.
        meaning: one phrase for help texts.
    """

    name: str
    default: Value | None = None
    choices: tuple[Value, ...] | None = None
    minimum: float = 1
    maximum: float = 2**31
    meaning: str = ""

    @property
    def is_size(self) -> bool:
        """Whether this is an integer size rather than a choice or a real-valued limit."""
        return self.choices is None and isinstance(self.minimum, int)

    def check(self, value: Any) -> Value:
        """Return ``value``, or raise ProblemError if it is illegal."""
        if self.choices is not None:
            if value not in self.choices:
                listed = ", ".join(map(str, self.choices))
                raise ProblemError(f"{self.name}={value} is not possible: choose one of {listed}")
            return self.choices[self.choices.index(value)]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ProblemError(f"{self.name}={value!r} is not a number")
        if not self.minimum <= value <= self.maximum:
            raise ProblemError(
                f"{self.name}={value} is out of range: "
                f"it must be between {self.minimum} and {self.maximum}"
            )
        if self.is_size and value != int(value):
            raise ProblemError(f"{self.name}={value} must be a whole number")
        return int(value) if self.is_size else float(value)


def make_problem(
    owner: str, parameters: Iterable[ProblemParameter], values: Mapping[str, Any]
) -> Problem:
    """Fill in defaults and check every value; the result holds all parameters, in order.

    Raises UnknownName if a name is not one of the parameters; ProblemError if a required one is
    missing, or a value is illegal.
    """
    declared = {parameter.name: parameter for parameter in parameters}
    given = FrozenParameters(values)
    require_known(f"problem parameter of {owner}", given, declared)

    required = [name for name, parameter in declared.items() if parameter.default is None]
    missing = [name for name in required if name not in given]
    if missing:
        example = ",".join(f"{name}=…" for name in required)
        raise ProblemError(f"{owner} needs {', '.join(missing)}: write {example}")

    return Problem(
        {
            name: parameter.check(given.get(name, parameter.default))
            for name, parameter in declared.items()
        }
    )


def shown_values(problem: Mapping[str, Value]) -> dict[str, str]:
    """Return the values as people read them: an array is one, ``{"x": "float64[4096,64]"}``.

    Its parameters are the type ``x`` and the sizes ``x_0`` and ``x_1``.
    """
    shown: dict[str, str] = {}
    sizes_of_arrays: set[str] = set()
    for name, value in problem.items():
        if name in sizes_of_arrays:
            continue
        sizes = _sizes_of(name, problem)
        sizes_of_arrays.update(sizes)
        listed = ",".join(str(problem[size]) for size in sizes)
        shown[name] = f"{value}[{listed}]" if sizes else str(value)
    return shown


def _sizes_of(name: str, problem: Mapping[str, Value]) -> list[str]:
    """Return the parameters that hold the sizes of the array ``name``; none if it is no array."""
    if not isinstance(problem.get(name), str):
        return []
    return list(takewhile(problem.__contains__, (f"{name}_{i}" for i in count())))


def shared_values(problems: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the values that several problems share, to print them once; none for one problem.

    An array's type and sizes are shared together or not at all.
    """
    first, *others = problems
    if not others:
        return {}
    shared = {
        name: value
        for name, value in first.items()
        if all(problem.get(name) == value for problem in others)
    }
    for name in first:
        array = {name, *_sizes_of(name, first)}
        if len(array) > 1 and not array <= shared.keys():
            shared = {n: value for n, value in shared.items() if n not in array}
    return shared
