"""One implementation under judgment, alone in its process.

The expected output is not in this process, so it cannot be copied. Each call gets new values at the
addresses of the previous ones, so caching by address, shape or value gives wrong outputs. The timer
stops when the work on all streams has ended, and the output is copied at once.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.wrapped import values as arrays
from foretune.errors import UnknownName
from foretune.registry import object_at
from foretune.values import Value

Code = str | Callable[..., Any]  # a function, or its place: ``FILE.py:NAME`` or ``MODULE:NAME``


@dataclass(frozen=True)
class Output:
    """An array that a call returned or wrote, on the host; ``kind`` is its class and type."""

    kind: str
    values: np.ndarray


@dataclass(frozen=True)
class CallOutputs:
    """The arrays that a call returned, in order, and the arguments that it changed, by position."""

    returned: tuple[Output, ...]
    written: Mapping[int, Output]


class IsolatedImplementation:
    """Calls one implementation.

    ``code`` is loaded after the first inputs are made, so that it cannot replace the clock or the
    synchronization with a GPU. ``inputs`` returns the positional arguments of a call for a
    problem's parameters and ``seed``.
    """

    def __init__(self, code: Code, inputs: Code) -> None:
        self._code = code
        self._inputs = inputs
        self._make: Callable[..., Any] | None = None
        self._function: Callable[..., Any] | None = None
        self._clock = time.perf_counter_ns
        self._wait: Callable[[], None] = lambda: None  # a call on the host ends when it returns
        self._args: tuple[Any, ...] = ()
        self._outputs = CallOutputs((), {})

    def load(self, problem: Mapping[str, Value], seed: int) -> str:
        """Make the inputs and load the code; return why its name is invalid, or ""."""
        try:
            self._make = _load(self._inputs)
        except UnknownName:
            file, _, name = str(self._inputs).rpartition(":")
            return (
                f"{file} has no {name}({', '.join([*problem, 'seed'])}): write one, or give "
                "--inputs FILE.py:NAME"
            )
        try:
            self._prepare(problem, seed)
        except UnknownName as e:
            return str(e)
        return ""

    def run(self, problem: Mapping[str, Value], seed: int) -> float:
        """Call the function once on the inputs of a seed, and return the time in milliseconds."""
        function = self._prepare(problem, seed)
        before = [arrays.copy_arrays(leaf) for leaf in arrays.leaves(self._args)]
        args, clock, wait = self._args, self._clock, self._wait
        wait()
        start = clock()
        returned = function(*args)
        wait()
        elapsed_ms = (clock() - start) * 1e-6
        outputs = tuple(_output(leaf) for leaf in arrays.leaves(returned) if leaf is not None)
        changed = [
            i
            for i, (leaf, was) in enumerate(zip(arrays.leaves(args), before, strict=True))
            if arrays.is_array(leaf) and not arrays.same_bits(leaf, was)
        ]
        now = list(arrays.leaves(args))
        self._outputs = CallOutputs(outputs, {i: _output(now[i]) for i in changed})
        return elapsed_ms

    def outputs(self) -> CallOutputs:
        """Return the last call's outputs; the call cannot know that they will be checked."""
        return self._outputs

    def run_repeatedly(self, problem: Mapping[str, Value], seed: int, calls: int) -> None:
        """Call it many times on the same inputs; the judge times this in its process."""
        function = self._prepare(problem, seed)
        for _ in range(calls):
            function(*self._args)
        self._wait()

    def _prepare(self, problem: Mapping[str, Value], seed: int) -> Callable[..., Any]:
        if self._make is None:
            self._make = _load(self._inputs)
        result = self._make(**problem, seed=seed)
        new = result if isinstance(result, tuple) else (result,)
        if not arrays.assign_all(self._args, new):
            self._args = new
        if self._function is None:
            self._wait = _gpu_wait()
            self._function = _load(self._code)
        return self._function


def _output(leaf: Any) -> Output:
    module, name = type(leaf).__module__, type(leaf).__qualname__
    kind = f"{module}.{name}".removeprefix("builtins.")
    if getattr(sys.modules.get(module), name, None) is not type(leaf):
        kind = f"what calls itself {kind}"
    dtype = getattr(leaf, "dtype", None)
    description = kind if dtype is None else f"{kind} of {str(dtype).removeprefix('torch.')}"
    return Output(description, np.array(arrays.as_numpy(leaf), copy=True))


def _gpu_wait() -> Callable[[], None]:
    """Return torch's GPU synchronization if the inputs loaded torch, else a no-op."""
    torch = sys.modules.get("torch")
    return torch.cuda.synchronize if torch and torch.cuda.is_available() else lambda: None


def _load(code: Code) -> Callable[..., Any]:
    return object_at(code) if isinstance(code, str) else code
