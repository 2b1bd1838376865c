"""Checks the contract of a kernel: results, search space, inputs and cost."""

import pickle
import string
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from foretune.collect.state_guard import fingerprints, has_changed
from foretune.kernel import Inputs, Kernel
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.testing.contract import ContractViolation, ensure

Row = tuple[Problem, Configuration]


def check_kernel(
    kernel: Kernel,
    problems: Iterable[Mapping[str, Any]] = (),
    configs: int = 3,
    seed: int = 0,
    may_fail: bool = False,
) -> None:
    """Build and launch configurations of a kernel, and check all its methods.

    The default and ``configs`` random configurations run on each of ``problems``, by default two
    training problems; small ones with odd sizes, which no tile divides, find the most errors. With
    ``may_fail``, other configurations than the default may raise errors, for example if a compiler
    runs out of registers; none may be wrong. Raises ContractViolation if the kernel violates the
    contract of `Kernel`.
    """
    _check_identity(kernel)
    chosen = [kernel.problem(values) for values in problems] or kernel.training_problems(2, seed)
    _check_training_problems(kernel)
    rng = np.random.default_rng(seed)
    for problem in chosen:
        space = kernel.space(problem)
        default = kernel.default(problem)
        ensure(default in space, f"the default of {problem} is not in the space: {default}")
        inputs = _check_inputs(kernel, problem)
        arrays = fingerprints(inputs)
        expected = kernel.reference(inputs)
        ensure(not has_changed(arrays, None), f"reference changes the inputs of {problem}")
        _check_library(kernel, problem, inputs, expected)
        for config in dict.fromkeys([default, *space.sample(configs, rng)]):
            fatal = config == default or not may_fail
            _check_launch(kernel, (problem, config), inputs, expected, fatal)
    rows = []
    for problem in chosen:
        drawn = kernel.space(problem).sample(20, rng)
        rows += [(problem, config) for config in (kernel.default(problem), *drawn)]
    _check_cost(kernel, rows)


def _check_identity(kernel: Kernel) -> None:
    ensure(kernel.name.isidentifier(), f"the name {kernel.name!r} is not a Python identifier")
    ensure(kernel.device_kind in ("cpu", "gpu"), f"device_kind is {kernel.device_kind!r}")
    ensure(kernel.problem_parameters, "problem_parameters is empty: all problems would be the same")
    try:
        restored = pickle.loads(pickle.dumps(kernel))
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise ContractViolation(f"it cannot be sent to a measuring process: {e}") from e
    ensure(restored.name == kernel.name, "another process would measure a kernel of another name")
    digits = kernel.source_hash
    ensure(len(digits) == 16 and set(digits) <= set(string.hexdigits), f"source_hash is {digits!r}")
    ensure(restored.source_hash == digits, "source_hash is not the same for another instance")


def _check_training_problems(kernel: Kernel) -> None:
    problems = kernel.training_problems(4, seed=5)
    again = kernel.training_problems(4, seed=5)
    ensure(problems, "training_problems returns none")
    ensure(problems == again, "training_problems differ though the seed is the same")
    ensure(len(set(problems)) == len(problems) <= 4, "training_problems repeat, or are too many")
    for problem in problems:
        ensure(kernel.problem(problem) == problem, f"{problem} is not a complete problem")
        ensure(kernel.memory_bytes(problem) > 0, f"memory_bytes of {problem} is not positive")


def _check_inputs(kernel: Kernel, problem: Problem) -> Inputs:
    """Check that the seed alone decides the inputs, and return some."""
    first = kernel.make_inputs(problem, seed=3)
    again = kernel.make_inputs(problem, seed=3)
    other = kernel.make_inputs(problem, seed=4)
    ensure(isinstance(first, dict), f"make_inputs returns no dict of names, but {type(first)}")
    ensure(first.keys() == again.keys(), "make_inputs has other names each time")
    for name, value in first.items():
        ensure(_equal(value, again[name]), f"input {name} differs though the seed is the same")
    ignores_seed = all(_equal(value, other[name]) for name, value in first.items())
    ensure(not ignores_seed, "make_inputs is the same for every seed")
    return first


def _check_library(kernel: Kernel, problem: Problem, inputs: Inputs, expected: Any) -> None:
    """Check the result of the library routine, if there is one."""
    library = kernel.library(problem, inputs)
    if library is None:
        return
    name, launch = library
    arrays = fingerprints(inputs)
    output = launch()
    ensure(not has_changed(arrays, output), f"library {name} changes its inputs on {problem}")
    error = kernel.relative_error(output, expected)
    limit = kernel.error_limit(problem, kernel.default(problem))
    ensure(error <= limit, f"library {name} is off by {error:.3g} on {problem}")


def _check_launch(kernel: Kernel, row: Row, inputs: Inputs, expected: Any, fatal: bool) -> None:
    """Launch twice; the output of the first launch is invalidated in between."""
    problem, config = row
    where = f"{config} on {problem}"
    limit = kernel.error_limit(problem, config)
    ensure(0 < limit < 1, f"error_limit of {where} is {limit}")
    arrays = fingerprints(inputs)
    try:
        launch = kernel.build(problem, config, inputs)
        output = launch()
        kernel.invalidate_output(output)
        invalidated_error = kernel.relative_error(output, expected)
        output = launch()
        error = kernel.relative_error(output, expected)
    except Exception as e:
        if fatal:
            raise ContractViolation(f"{where} raises {type(e).__name__}: {e}") from e
        return
    # A returned number cannot be invalidated. The error of an invalid output may be NaN.
    is_number = isinstance(output, float | int | np.generic)
    is_still_correct = not is_number and invalidated_error <= limit
    ensure(not is_still_correct, f"invalidate_output leaves the output of {where} correct")
    ensure(error <= limit, f"{where} is off by {error:.3g}, more than {limit:.3g}")
    ensure(not has_changed(arrays, output), f"{where} changes its inputs")


def _check_cost(kernel: Kernel, rows: list[Row]) -> None:
    """Check that columns of many rows and columns of one give the same cost."""
    many = _quantities(kernel, *_columns(rows))
    for name, values in many.items():
        ensure(np.shape(values) in ((len(rows),), ()), f"{name} of {len(rows)} rows is {values!r}")
        value_of_row = np.broadcast_to(values, len(rows))
        is_valid = np.isfinite(value_of_row) & (value_of_row >= 0)
        first_invalid = rows[int(np.argmin(is_valid))]
        ensure(is_valid.all(), f"{name} of {first_invalid} is not finite and positive")
        many[name] = value_of_row
    for i, row in enumerate(rows):
        one = _quantities(kernel, *_columns([row]))
        ensure(one.keys() == many.keys(), f"{sorted(one)} by row, {sorted(many)} by columns")
        for name, value in one.items():
            expected = many[name][i]
            close = np.allclose(value, expected, rtol=1e-6, atol=0.0)
            ensure(close, f"{name} of {row} is {value} by itself and {expected} among others")


def _quantities(kernel: Kernel, problem: Any, config: Any) -> dict[str, Any]:
    cost = kernel.cost(problem, config)
    derived = kernel.derived(problem, config, {})
    return {"cost.flops": cost.flops, "cost.bytes_moved": cost.bytes_moved, **derived}


def _columns(rows: list[Row]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return problems and configurations of rows as columns."""
    problems = [problem for problem, _ in rows]
    configs = [config for _, config in rows]
    problem_columns = {name: np.array([p[name] for p in problems]) for name in problems[0]}
    config_columns = {name: np.array([c[name] for c in configs]) for name in configs[0]}
    return problem_columns, config_columns


def _equal(a: Any, b: Any) -> bool:
    # Tensors of 8 bits cannot be compared.
    is_tensor = hasattr(a, "float")
    if is_tensor:
        return bool(a.float().equal(b.float()))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
