"""Common base of kernels that wrap a function, a source or a program."""

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

from foretune.collect.wrapped.special_values import SpecialValues
from foretune.errors import MeasurementError, UsageError
from foretune.family import Cost
from foretune.kernel import Inputs, Kernel
from foretune.problem import Problem, ProblemParameter
from foretune.restriction import adapt_mapping_rule
from foretune.space import Configuration, SearchSpace
from foretune.support.identity import source_hash_of_function
from foretune.values import Value

MAX_INLINE_BYTES = 2**18
"""Largest pickled kernel that is sent with every request; larger ones go through a file."""

CostOf = Callable[[Mapping[str, Any], Mapping[str, Any]], Cost]
"""Returns the work of one launch from problem and configuration."""
Restrictions = Sequence[str | Callable[..., bool]] | Callable[..., bool] | None
"""Restrictions: expressions, or functions of knobs or of a mapping of knobs."""


class WrappedKernel(Kernel):
    """A kernel whose knobs have listed values.

    Its name in the run table is converted to an identifier. ``default`` is the baseline; None is
    the first legal configuration. ``code`` is text that identifies the code, so that measurements
    of other code do not count. ``cost`` is the work of one launch, if known. Raises UsageError if a
    knob has no values, or the default is not in the space.
    """

    is_importable_remotely = False
    runs_where_compared: bool = True
    """Whether a configuration runs in the measuring process, which compares its output."""
    unreadable: tuple[str, ...] = ()
    """Parts of the work that could not be read: its results are not reused."""

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
        self.knobs = {  # the space rejects anything but a list of values
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
        """Whether the work of a launch is known."""
        return self._cost is not None

    @cached_property
    def source_hash(self) -> str:
        """Hash of the code: sixteen hexadecimal digits."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]

    @cached_property
    def space_id(self) -> str:  # type: ignore[override]
        """Hash of knobs, values and restrictions: stored choices are valid for these."""
        rules = [
            rule if isinstance(rule, str) else source_hash_of_function(_as_written(rule))
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
        """Return the given configuration, or the first legal one."""
        return self._first if self._default is None else self._default

    @cached_property
    def _first(self) -> Configuration:
        """The first legal configuration; any legal one if the space is too large to enumerate."""
        first = self._space[0]
        if first in self._space:
            return first
        return self._space.sample(1, np.random.default_rng(0))[0]

    @property
    def has_explicit_default(self) -> bool:
        """Whether a default was given."""
        return self._default is not None

    def with_default(self, config: Configuration) -> Self:
        """Return the same kernel with another default."""
        other = object.__new__(type(self))
        vars(other).update({n: v for n, v in vars(self).items() if n not in _LOCAL_ATTRIBUTES})
        other._default = config
        return other

    def decode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of knobs as the user listed them."""
        return dict(config)

    def prepare_process(self) -> None:
        """Make another process like the one that made this kernel."""

    def ways_to_draw(self, problem: Problem) -> tuple[str, ...]:
        """Return how `make_inputs` draws new values, by name; the default may run."""
        return ()

    def draw_in(self, problem: Problem, ways: Sequence[str]) -> None:
        """Let `make_inputs` draw in ways that `ways_to_draw` returned in another process."""

    def accepts(self, problem: Problem, special: SpecialValues, seed: int) -> bool:
        """Whether the default accepts inputs with special values."""
        return False

    def inputs_with(self, problem: Problem, special: SpecialValues, seed: int) -> Inputs:
        """Return inputs with special values that the default accepts."""
        raise NotImplementedError

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return the given work, or NaN."""
        return Cost(math.nan, math.nan) if self._cost is None else self._cost(problem, config)

    def memory_bytes(self, problem: Problem) -> float:
        """Return 1, because the arguments already exist."""
        return 1.0

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return the only problem."""
        return [self.problem()]

    @cached_property
    def _pickled(self) -> bytes | str:
        """This kernel pickled for another process: its content, or the file that holds it."""
        _ = self.source_hash
        state = {n: v for n, v in vars(self).items() if n not in _LOCAL_ATTRIBUTES}
        try:
            content = cloudpickle.dumps((type(self), state))
        except Exception as e:  # a user's object may raise anything
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


_LOCAL_ATTRIBUTES = ("_pickled", "_space", "_first")  # attributes that are not pickled


@functools.lru_cache(maxsize=4)
def unpickle_kernel(pickled: bytes | str) -> WrappedKernel:
    """Return the unpickled kernel; the same object for the same content."""
    content = pickled if isinstance(pickled, bytes) else Path(pickled).read_bytes()
    kind, state = cloudpickle.loads(content)
    kernel = object.__new__(kind)
    vars(kernel).update(state)
    kernel.prepare_process()
    return kernel


def _as_written(rule: Any) -> Any:
    """Return the user's function of an adapted rule."""
    while hasattr(rule, "rule"):
        rule = rule.rule
    return rule


def as_identifier(name: str) -> str:
    """Return ``name`` as a Python identifier."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "kernel"
    return f"_{plain}" if plain[0].isdigit() else plain


def check_mapping(name: str, knobs: Any) -> None:
    """Raise `UsageError` unless knobs are names with values."""
    if not isinstance(knobs, Mapping) or not knobs:
        raise UsageError(f"{name} has no knobs: give each a name and a list of values")


def parse_restrictions(
    restrictions: Restrictions, knobs: Mapping[str, Sequence[Value]]
) -> tuple[str | Callable[..., bool], ...]:
    """Return restrictions in the form that `SearchSpace` takes."""
    given: Any = () if restrictions is None else restrictions
    listed = [given] if callable(given) or isinstance(given, str) else list(given)
    if invalid := [rule for rule in listed if not (callable(rule) or isinstance(rule, str))]:
        raise UsageError(f"restriction {invalid[0]!r}: give an expression, or a function of knobs")
    return tuple(
        adapt_mapping_rule(rule, tuple(knobs)) if callable(rule) else rule for rule in listed
    )
