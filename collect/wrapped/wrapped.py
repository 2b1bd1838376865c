"""What all wrapped things share: they are kernels made of what a user has, not classes."""

import functools
import hashlib
import math
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import cloudpickle
import numpy as np

from foretune.code_hash import source_hash_of_function
from foretune.errors import MeasurementError, UsageError
from foretune.family import Cost
from foretune.kernel import Kernel
from foretune.problem import Problem, ProblemParameter
from foretune.restriction import adapt_mapping_rule
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

MAX_INLINE_BYTES = 2**18
"""Bytes of a kernel up to which they go with every question; more are written to a file once."""

CostOf = Callable[[Mapping[str, Any], Mapping[str, Any]], Cost]
"""From problem and configuration to the work of one launch."""
Restrictions = Sequence[str | Callable[..., bool]] | Callable[..., bool] | None
"""Restrictions: expressions, or functions of knobs or of a mapping of them."""


class WrappedKernel(Kernel):
    """A kernel made of a thing and its knobs.

    Args:
        name: as in the run table; what is no identifier is made one.
        knobs: name -> values.
        restrictions: rules between knobs.
        default: what winners are compared with; else the first legal configuration.
        problem: what is computed.
        code: text that identifies the code: measurements of another text are not of it.
        cost: work of one launch, if it is known.

    Raises:
        UsageError: a knob has no values, or the default is not in the space.
    """

    is_importable_remotely = False

    def __init__(
        self,
        name: str,
        knobs: Mapping[str, Sequence[Value]],
        restrictions: Restrictions,
        default: Mapping[str, Any] | None,
        problem: Mapping[str, Any],
        code: str,
        cost: CostOf | None = None,
    ) -> None:
        check_mapping(name, knobs)
        self.name = as_identifier(name)
        self.knobs = {  # what is no list of values, the space refuses
            knob: values if isinstance(values, str | bool | int | float) else tuple(values)
            for knob, values in knobs.items()
        }
        self._rules = parse_restrictions(restrictions, self.knobs)
        self._default = None if default is None else Configuration(default)
        self._cost = cost
        self.code = code
        known = Problem(problem) or Problem(problem="this one")
        self.problem_parameters = tuple(
            ProblemParameter(n, v, choices=(v,)) for n, v in known.items()
        )
        if self._default is not None:
            self._space.index(self._default)

    @property
    def has_cost_model(self) -> bool:  # type: ignore[override]
        """Whether somebody said what work there is."""
        return self._cost is not None

    @cached_property
    def source_hash(self) -> str:
        """Identifies the code: sixteen hexadecimal digits."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]

    @cached_property
    def space_id(self) -> str:  # type: ignore[override]
        """Identifies knobs, values and restrictions: what was chosen is of these."""
        rules = [
            rule if isinstance(rule, str) else source_hash_of_function(getattr(rule, "rule", rule))
            for rule in self._rules
        ]
        text = repr((sorted(self.knobs.items()), rules))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _space(self) -> SearchSpace:
        return SearchSpace(self.knobs, self._rules)

    def space(self, problem: Problem) -> SearchSpace:
        """Return the legal configurations; the same for every problem."""
        return self._space

    def default(self, problem: Problem) -> Configuration:
        """Return the configuration that was given, else the first legal one."""
        return self._first if self._default is None else self._default

    @cached_property
    def _first(self) -> Configuration:
        """The first legal configuration; of a space too large to be listed, any legal one."""
        first = self._space[0]
        if first in self._space:
            return first
        return self._space.sample(1, np.random.default_rng(0))[0]

    @property
    def has_explicit_default(self) -> bool:
        """Whether somebody said what the default is."""
        return self._default is not None

    def with_default(self, config: Configuration) -> Self:
        """Return the same kernel with another default."""
        other = object.__new__(type(self))
        vars(other).update({n: v for n, v in vars(self).items() if n not in _LOCAL_ATTRIBUTES})
        other._default = config
        return other

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return what was given; not a number where nothing was."""
        return Cost(math.nan, math.nan) if self._cost is None else self._cost(problem, config)

    def memory_bytes(self, problem: Problem) -> float:
        """Return nothing: what it works on is there already."""
        return 1.0

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return the one problem there is."""
        return [self.problem()]

    @cached_property
    def _pickled(self) -> bytes | str:
        """This kernel for another process: its content, or the file that has it."""
        _ = self.source_hash
        state = {n: v for n, v in vars(self).items() if n not in _LOCAL_ATTRIBUTES}
        try:
            content = cloudpickle.dumps((type(self), state))
        except Exception as e:  # whatever a user's object raises
            raise MeasurementError(
                f"{self.name} cannot be sent to a measuring process ({e}): give isolated=False"
            ) from e
        if len(content) <= MAX_INLINE_BYTES:
            return content
        handle, path = tempfile.mkstemp(prefix="foretune-", suffix=".kernel")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        weakref.finalize(self, Path(path).unlink, missing_ok=True)
        return path

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_kernel, (self._pickled,)


_LOCAL_ATTRIBUTES = ("_pickled", "_space", "_first")
"""What is of this process alone."""


@functools.lru_cache(maxsize=4)
def unpickle_kernel(pickled: bytes | str) -> WrappedKernel:
    """Return the kernel that was packed, the same one for the same content."""
    content = pickled if isinstance(pickled, bytes) else Path(pickled).read_bytes()
    kind, state = cloudpickle.loads(content)
    kernel = object.__new__(kind)
    vars(kernel).update(state)
    return kernel


def as_identifier(name: str) -> str:
    """Return ``name`` as a Python identifier."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "kernel"
    return f"_{plain}" if plain[0].isdigit() else plain


def check_mapping(name: str, knobs: Any) -> None:
    """Return if knobs are names with values.

    Raises:
        UsageError: they are something else, or there are none.
    """
    if not isinstance(knobs, Mapping) or not knobs:
        raise UsageError(f"{name} has no knobs: give each a name and a list of values")


def parse_restrictions(
    restrictions: Restrictions, knobs: Mapping[str, Sequence[Value]]
) -> tuple[str | Callable[..., bool], ...]:
    """Return restrictions as a search space takes them."""
    if restrictions is None:
        return ()
    listed = [restrictions] if callable(restrictions) or isinstance(restrictions, str) else list(
        restrictions
    )  # fmt: skip
    if invalid := [rule for rule in listed if not (callable(rule) or isinstance(rule, str))]:
        raise UsageError(f"restriction {invalid[0]!r}: give an expression, or a function of knobs")
    return tuple(
        adapt_mapping_rule(rule, tuple(knobs)) if callable(rule) else rule for rule in listed
    )


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from ``low`` to ``high``, both included.

    Raises:
        UsageError: there are none.
    """
    powers = tuple(2**i for i in range(64) if low <= 2**i <= high)
    if not powers:
        raise UsageError(f"no power of two lies between {low} and {high}")
    return powers
