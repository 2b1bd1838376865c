"""Problems: the sizes and types of one call of a kernel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretune.errors import ProblemError, require_known
from foretune.values import FrozenParameters, Value


class Problem(FrozenParameters):
    """The shapes, dtypes and layouts of one call, e.g. ``Problem(M=512, N=512, K=512)``."""

    __slots__ = ()


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


def shared_values(problems: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the values that several problems share, to print them once; none for one problem."""
    first, *others = problems
    if not others:
        return {}
    return {
        name: value
        for name, value in first.items()
        if all(problem.get(name) == value for problem in others)
    }
