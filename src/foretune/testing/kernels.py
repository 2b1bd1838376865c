"""Whether a kernel keeps its contract: right results, a sound space, costs of one and of many."""

import pickle
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from foretune.kernel import Inputs, Kernel
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.testing.contract import BrokenContract, must

Row = tuple[Problem, Configuration]


def check_kernel(
    kernel: Kernel,
    problems: Iterable[Mapping[str, Any]] = (),
    configs: int = 3,
    seed: int = 0,
    may_fail: bool = False,
) -> None:
    """Build and launch configurations of a kernel, and compare all it says of itself.

    Args:
        kernel: what is checked.
        problems: small ones with odd sizes, which no tile divides, find most; by default two that
            predictors train on. If they limit the error, every configuration must keep it.
        configs: how many of each problem's configurations are run, drawn at random, beside the
            default.
        seed: of what is drawn.
        may_fail: whether configurations other than the default may raise errors, as where a
            compiler runs out of registers. None may be wrong.

    Raises:
        BrokenContract: the kernel does not do what `Kernel` promises; the message says what.
    """
    _check_identity(kernel)
    chosen = [kernel.problem(values) for values in problems] or kernel.training_problems(2, seed)
    _check_training_problems(kernel)
    rng = np.random.default_rng(seed)
    for problem in chosen:
        space, default = kernel.space(problem), kernel.default(problem)
        must(default in space, f"the default of {problem} is not in the space: {default}")
        inputs = _check_inputs(kernel, problem)
        expected = kernel.reference(inputs)
        _check_library(kernel, problem, inputs, expected)
        drawn = space.sample(min(configs, len(space)), rng)
        for config in dict.fromkeys([default, *drawn]):
            fatal = config == default or not may_fail
            _check_launch(kernel, (problem, config), inputs, expected, fatal)
    rows = [(p, c) for p in chosen for c in [kernel.default(p), *_some(kernel, p, rng)]]
    _check_cost(kernel, rows)


def _check_identity(kernel: Kernel) -> None:
    must(kernel.name.isidentifier(), f"the name {kernel.name!r} is not a Python identifier")
    must(kernel.device_kind in ("cpu", "gpu"), f"device_kind is {kernel.device_kind!r}")
    must(kernel.problem_parameters, "problem_parameters is empty: nothing tells problems apart")
    try:
        there = pickle.loads(pickle.dumps(kernel))
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise BrokenContract(f"it cannot be sent to a measuring process: {e}") from e
    must(there.name == kernel.name, "another process would measure a kernel of another name")
    digits = kernel.source_hash
    must(len(digits) == 16 and set(digits) <= set(string.hexdigits), f"source_hash is {digits!r}")
    must(there.source_hash == digits, "source_hash is not the same for another instance")


def _check_training_problems(kernel: Kernel) -> None:
    problems, again = (kernel.training_problems(4, seed=5) for _ in range(2))
    must(problems, "training_problems returns none")
    must(problems == again, "training_problems differ though the seed is the same")
    must(len(set(problems)) == len(problems) <= 4, "training_problems repeat, or are too many")
    for problem in problems:
        must(kernel.problem(problem) == problem, f"{problem} is not a complete problem")
        must(kernel.memory_bytes(problem) > 0, f"memory_bytes of {problem} is not positive")


def _check_inputs(kernel: Kernel, problem: Problem) -> Inputs:
    first, again, other = (kernel.make_inputs(problem, s) for s in (3, 3, 4))
    must(first.keys() == again.keys(), "make_inputs has other names each time")
    for name, value in first.items():
        must(_equal(value, again[name]), f"input {name} differs though the seed is the same")
    same = all(_equal(value, other[name]) for name, value in first.items())
    must(not same, "make_inputs is the same for every seed")
    return first


def _check_library(kernel: Kernel, problem: Problem, inputs: Inputs, expected: Any) -> None:
    found = kernel.library(problem, inputs)
    if found is not None:
        name, launch = found
        error = kernel.relative_error(launch(), expected)
        limit = kernel.error_limit(problem, kernel.default(problem))
        must(error <= limit, f"library {name} is off by {error:.3g} on {problem}")


def _check_launch(kernel: Kernel, row: Row, inputs: Inputs, expected: Any, fatal: bool) -> None:
    """Launch twice: what the first left behind must not matter, and what it left is spoilt."""
    problem, config = row
    where = f"{config} on {problem}"
    limit = kernel.error_limit(problem, config)
    must(0 < limit < 1, f"error_limit of {where} is {limit}")
    try:
        launch = kernel.build(problem, config, inputs)
        output = launch()
        kernel.poison(output)
        spoilt = kernel.relative_error(output, expected)
        error = kernel.relative_error(launch(), expected)
    except Exception as e:
        if fatal:
            raise BrokenContract(f"{where} raises {type(e).__name__}: {e}") from e
        return
    writes = not isinstance(output, float | int | np.generic)
    must(not writes or spoilt > limit, f"poison leaves the output of {where} looking right")
    must(error <= limit, f"{where} is off by {error:.3g}, more than {limit:.3g}")


def _some(kernel: Kernel, problem: Problem, rng: np.random.Generator) -> list[Configuration]:
    space = kernel.space(problem)
    return list(space.sample(min(20, len(space)), rng))


def _check_cost(kernel: Kernel, rows: list[Row]) -> None:
    """Columns of many rows, columns of one, and numbers must say the same."""
    many = _quantities(kernel, *_columns(rows))
    for name, values in many.items():
        must(np.shape(values) in ((len(rows),), ()), f"{name} of {len(rows)} rows is {values!r}")
        values = np.broadcast_to(values, len(rows))
        known = np.isfinite(values) & (values >= 0)
        must(known.all(), f"{name} of {rows[int(np.argmin(known))]} is not finite and positive")
        many[name] = values
    for i, row in enumerate(rows):
        for given in _single(kernel, row):
            one = _quantities(kernel, *given)
            must(one.keys() == many.keys(), f"{sorted(one)} of a row, {sorted(many)} of columns")
            for name, value in one.items():
                there = many[name][i]
                close = np.allclose(value, there, rtol=1e-6, atol=0.0)
                must(close, f"{name} of {row} is {value} by itself and {there} among others")


def _quantities(kernel: Kernel, problem: Any, config: Any) -> dict[str, Any]:
    cost = kernel.cost(problem, config)
    derived = kernel.derived(problem, config, {})
    return {"cost.flops": cost.flops, "cost.bytes_moved": cost.bytes_moved, **derived}


def _single(kernel: Kernel, row: Row) -> Iterator[tuple[Any, Any]]:
    yield _columns([row])
    if kernel.takes_numbers:
        yield row


def _columns(rows: list[Row]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    problems, configs = ([row[i] for row in rows] for i in (0, 1))
    return (
        {name: np.array([p[name] for p in problems]) for name in problems[0]},
        {name: np.array([c[name] for c in configs]) for name in configs[0]},
    )


def _equal(a: Any, b: Any) -> bool:
    if hasattr(a, "float"):  # a tensor; eight-bit ones cannot be compared
        return bool(a.float().equal(b.float()))
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))
