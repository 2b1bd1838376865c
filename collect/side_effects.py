"""What code leaves changed in its process: settings, functions of libraries, random numbers.

A faster function that sets torch's default type, leaves a mode or a hook on, or replaces
`torch.matmul` changes what the rest of a program computes. Contestants of the judge run in separate
processes, so no rival feels it; the user of the function would. So each process says what its code
changed, and a candidate may change only what its reference changes.

The code runs in the process that looks, and could forge this. It is no protection against attacks:
outputs are compared, and calls are timed, in a process without that code.
"""

import builtins
import gc
import inspect
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.library_settings import present_settings

DRAWS_RANDOM_NUMBERS = "it draws from, or seeds, the global random numbers"
SMALLEST_DOUBLE = 5e-324
"""A denormal number, which becomes zero if denormals are flushed."""
_JUDGING = (
    "foretune.collect.answers",
    "foretune.collect.isolated_implementation",
    "foretune.collect.message_channel",
    "foretune.collect.side_effects",
    "foretune.collect.wrapped.shared_memory",
    "foretune.collect.wrapped.values",
)
"""Foretune's modules that make inputs, and read outputs, in this process."""
_HOOKS = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_buffer_registration_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
"""Torch's tables of hooks that all modules run."""


class SideEffects:
    """Remembers the state of this process; make it before the code under judgment is loaded."""

    def __init__(self) -> None:
        self._settings = _settings()
        self._functions = [
            (name, owner, folder, _functions_of(owner)) for name, owner, folder in _libraries()
        ]
        self._random_state: int | None = None
        self._has_drawn = False

    def before_call(self) -> None:
        """Remember the global random numbers."""
        self._random_state = _random_state()

    def after_call(self) -> None:
        """Note whether the calls since `before_call` drew global random numbers."""
        self._has_drawn = self._has_drawn or self._random_state != _random_state()

    def names(self) -> list[str]:
        """Return what has changed, in words that complete "…, unlike the reference"."""
        changed = {f"it changes a setting of its process ({name})" for name in self._changed()}
        changed |= {f"it replaces {name}" for name in self._replaced()}
        if self._has_drawn:
            changed.add(DRAWS_RANDOM_NUMBERS)
        return sorted(changed)

    def _changed(self) -> Iterator[str]:
        now = _settings()
        for name in {*self._settings, *now}:
            # A library that was loaded since then has its own defaults.
            is_new = name not in self._settings and name in _BY_LIBRARY
            if not is_new and self._settings.get(name) != now.get(name):
                yield name

    def _replaced(self) -> Iterator[str]:
        for owner_name, owner, folder, known in self._functions:
            now = vars(owner)
            for name, (value, code) in known.items():
                present = now.get(name)
                if present is value and _code(present) is code:
                    continue
                # Libraries replace some of their own functions when another part is imported.
                if not _is_in(present, folder):
                    yield f"{owner_name}.{name}"


def _libraries() -> Iterator[tuple[str, Any, str]]:
    """Yield the modules and classes whose functions must stay: name, object and its folder."""
    numpy_folder = str(Path(np.__file__).parent)
    for module in (builtins, time, math, random, gc):
        yield module.__name__, module, ""
    for name in _JUDGING:
        judging = sys.modules.get(name)
        if judging is not None:
            yield name, judging, ""
            for judging_class in _classes_of(judging):
                yield judging_class.__name__, judging_class, ""
    for module in (np, np.linalg, np.random, np.fft):
        yield module.__name__, module, numpy_folder
    torch = sys.modules.get("torch")
    if torch is not None:
        yield from _parts_of_torch(torch)


def _parts_of_torch(torch: Any) -> Iterator[tuple[str, Any, str]]:
    torch_folder = str(Path(str(torch.__file__)).parent)
    for owner in (torch, torch.nn, torch.nn.functional, torch.linalg, torch.autograd, torch.cuda):
        yield owner.__name__, owner, torch_folder
    for owner in (torch.Tensor, torch.autograd.Function):
        yield f"torch.{owner.__name__}", owner, torch_folder
    for name, value in list(vars(torch.nn).items()):
        if inspect.isclass(value):
            yield f"torch.nn.{name}", value, torch_folder


def _classes_of(module: Any) -> list[type]:
    own = [value for value in vars(module).values() if inspect.isclass(value)]
    return [value for value in own if value.__module__ == module.__name__]


def _functions_of(owner: Any) -> dict[str, tuple[Any, Any]]:
    """Return the functions and classes of a module or class with their code, by name.

    Values, such as `time.tzname`, change when another library is imported.
    """
    members = vars(owner).items()
    return {name: (value, _code(value)) for name, value in members if _can_be_called(value)}


def _can_be_called(value: Any) -> bool:
    return callable(value) or isinstance(value, classmethod | staticmethod | property)


def _code(value: Any) -> Any:
    """Return the code of a function in Python, which can be replaced in it; None for others."""
    return getattr(value, "__code__", None)


def _is_in(value: Any, folder: str) -> bool:
    """Whether the code of a function lies in a folder."""
    file = getattr(_code(value), "co_filename", "")
    return bool(folder) and str(file).startswith(folder + os.sep)


def _random_state() -> int:
    """Return a hash of the states of all global generators."""
    state = arrays.global_random_state()
    torch = sys.modules.get("torch")
    if torch is None:
        return state
    return hash((state, torch.random.get_rng_state().numpy().tobytes()))


def _settings() -> dict[str, Any]:
    """Return the settings of this process by name."""
    settings = present_settings()
    for name, read in _READERS.items():
        settings[name] = read()
    torch = sys.modules.get("torch")
    if torch is not None:
        settings |= {name: read(torch) for name, read in _TORCH_READERS.items()}
    return settings


def _flushes_denormals() -> bool:
    smallest = SMALLEST_DOUBLE  # a name, or the product would be a constant of the code
    return smallest * 1.0 == 0.0


def _hooks(torch: Any) -> list[int]:
    module = torch.nn.modules.module
    return [len(getattr(module, name, ())) for name in _HOOKS]


def _modes(torch: Any) -> list[int]:
    """Return how many modes intercept torch's functions."""
    counters = ("_len_torch_function_stack", "_len_torch_dispatch_stack")
    return [getattr(torch._C, name, int)() for name in counters]


def _autocast(torch: Any) -> list[bool]:
    return [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]


def _stance(torch: Any) -> str:
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(compiler, "_stance", None), "stance", "default")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


_READERS: dict[str, Callable[[], Any]] = {
    "flushed denormals": _flushes_denormals,
    "garbage collection": gc.isenabled,
    "thresholds of garbage collection": gc.get_threshold,
    "switch interval": sys.getswitchinterval,
    "trace function": sys.gettrace,
    "profiler": sys.getprofile,
    "cores": _cores,
    "priority": lambda: os.nice(0) if hasattr(os, "nice") else 0,
    "working directory": _working_directory,
}
_TORCH_READERS: dict[str, Callable[[Any], Any]] = {
    "torch.autocast": _autocast,
    "torch.inference_mode": lambda torch: torch.is_inference_mode_enabled(),
    "torch.float32_matmul_precision": lambda torch: torch.get_float32_matmul_precision(),
    "torch.anomaly_detection": lambda torch: torch.is_anomaly_enabled(),
    "torch.hooks": _hooks,
    "torch.modes": _modes,
    "torch.compiler.stance": _stance,
}
_BY_LIBRARY = {*_TORCH_READERS, "torch.threads"}
"""Settings that appear when their library is loaded, with a default that is not known here."""
