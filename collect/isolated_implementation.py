"""A contestant: one implementation, alone in its process, called on inputs it has never seen.

What is right is not known in this process, so no output can be copied from it. Each call gets new
values at the addresses of the last ones, so nothing that remembers an address, a shape or a value
is right. The time ends when all work on all streams has ended, and the output is copied at once.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.wrapped.values import (
    as_numpy,
    assign,
    copy_arrays,
    is_array,
    leaves,
    same_bits,
)
from foretune.registry import object_at
from foretune.values import Value

Code = str | Callable[..., Any]
"""A function, or the place of one: ``FILE.py:NAME`` or ``MODULE:NAME``."""


@dataclass(frozen=True)
class Output:
    """One array that a call returned or wrote.

    Attributes:
        kind: its class and type of numbers, e.g. ``numpy.ndarray of float32``.
        values: a copy, on the host.
    """

    kind: str
    values: np.ndarray


@dataclass(frozen=True)
class CallOutputs:
    """What a call left behind.

    Attributes:
        returned: what it returned, in order.
        written: which of its arguments it changed, by number, and what they hold now.
    """

    returned: tuple[Output, ...]
    written: Mapping[int, Output]


class IsolatedImplementation:
    """Calls one implementation.

    Args:
        code: the implementation. It is loaded after the first inputs are made, so that it cannot
            replace the clock or what waits for a GPU.
        inputs: makes the positional arguments of a call from a problem's parameters and ``seed``.
    """

    def __init__(self, code: Code, inputs: Code) -> None:
        self._code = code
        self._inputs = inputs
        self._make: Callable[..., Any] | None = None
        self._function: Callable[..., Any] | None = None
        self._clock = time.perf_counter_ns
        self._wait: Callable[[], None] = _no_wait
        self._args: tuple[Any, ...] = ()
        self._outputs = CallOutputs((), {})

    def run(self, problem: Mapping[str, Value], seed: int) -> float:
        """Call it once on inputs of a seed, and return the time in milliseconds.

        Raises:
            Exception: whatever it raises.
        """
        function = self._prepare(problem, seed)
        before = [copy_arrays(leaf) for leaf in leaves(self._args)]
        args, clock, wait = self._args, self._clock, self._wait
        wait()
        start = clock()
        returned = function(*args)
        wait()
        elapsed_ms = (clock() - start) * 1e-6
        outputs = tuple(_output(leaf) for leaf in leaves(returned) if leaf is not None)
        changed = [
            i for i, (leaf, was) in enumerate(zip(leaves(args), before, strict=True))
            if is_array(leaf) and not same_bits(leaf, was)
        ]  # fmt: skip
        now = list(leaves(args))
        self._outputs = CallOutputs(outputs, {i: _output(now[i]) for i in changed})
        return elapsed_ms

    def outputs(self) -> CallOutputs:
        """Return what the last call left behind; nobody said at the call that it would be asked."""
        return self._outputs

    def run_repeatedly(self, problem: Mapping[str, Value], seed: int, calls: int) -> None:
        """Call it many times on the same inputs; who asked looks at a clock of its own."""
        function = self._prepare(problem, seed)
        for _ in range(calls):
            function(*self._args)
        self._wait()

    def _prepare(self, problem: Mapping[str, Value], seed: int) -> Callable[..., Any]:
        if self._make is None:
            self._make = _load(self._inputs)
        result = self._make(**problem, seed=seed)
        new = result if isinstance(result, tuple) else (result,)
        if not _overwrite(self._args, new):
            self._args = new
        if self._function is None:
            self._wait = _gpu_wait()
            self._function = _load(self._code)
        return self._function


def _overwrite(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    """Write new values where old ones are; return whether that was possible."""
    pairs = list(zip(leaves(old), leaves(new), strict=False))
    if (
        not old
        or len(pairs) != len(list(leaves(new)))
        or not all(_has_same_layout(*p) for p in pairs)
    ):
        return False
    for target, value in pairs:
        if is_array(target):
            assign(target, value)
    return True


def _has_same_layout(old: Any, new: Any) -> bool:
    if not is_array(old):
        return not is_array(new) and bool(old == new)
    shapes = [getattr(x, "shape", None) or len(x) for x in (old, new)]
    kinds = [getattr(x, "dtype", None) for x in (old, new)]
    return type(old) is type(new) and shapes[0] == shapes[1] and kinds[0] == kinds[1]


def _output(leaf: Any) -> Output:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    dtype = getattr(leaf, "dtype", None)
    description = kind if dtype is None else f"{kind} of {str(dtype).removeprefix('torch.')}"
    return Output(description, np.array(as_numpy(leaf), copy=True))


def _gpu_wait() -> Callable[[], None]:
    """Return what waits for all streams of torch's GPU; nothing, where inputs are no tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        wait: Callable[[], None] = torch.cuda.synchronize
        return wait
    return _no_wait


def _no_wait() -> None:
    """Wait for nothing: on the host a call ends when it returns."""


def _load(code: Code) -> Callable[..., Any]:
    return object_at(code) if isinstance(code, str) else code
