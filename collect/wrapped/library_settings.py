"""Settings of a process that change what a function computes, or how fast.

NumPy's and torch's settings, the precision of decimals, the locale, and variables that set the
number of threads. Only what differs from a library's own default counts, so that most work needs no
word on them. A measuring process takes them over.
"""

import decimal
import locale
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

THREAD_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMBA|VECLIB)_\w*THREADS?\w*|OMP_(PROC_BIND|PLACES|SCHEDULE)"
)
"""Variables of the environment, which a measuring process inherits."""
Settings = dict[str, Any]
"""Setting -> value; plain values only."""


def present_settings() -> Settings:
    """Return the settings of this process that differ from the defaults."""
    settings: Settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if THREAD_VARIABLES.fullmatch(name)
    }
    for name, (default, read, _) in _SETTINGS.items():
        library = name.partition(".")[0]
        if library in sys.modules:
            value = read()
            if value != default:
                settings[name] = value
    return settings


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Set what `present_settings` returned in another process, for the libraries loaded here."""
    for name, (_, _, write) in _SETTINGS.items():
        if name in settings and name.partition(".")[0] in sys.modules:
            write(settings[name])


def _torch() -> Any:
    return sys.modules["torch"]


def _set_decimals(settings: tuple[int, str]) -> None:
    context = decimal.getcontext()
    context.prec, context.rounding = settings


def _decimals() -> tuple[int, str]:
    context = decimal.getcontext()
    return context.prec, context.rounding


def _set_locale(name: str | None) -> None:
    locale.setlocale(locale.LC_NUMERIC, name)


def _device() -> str:
    return str(_torch().get_default_device())


def _set_tf32(allowed: bool) -> None:
    _torch().backends.cuda.matmul.allow_tf32 = allowed


def _set_cudnn_tf32(allowed: bool) -> None:
    _torch().backends.cudnn.allow_tf32 = allowed


_SETTINGS: dict[str, tuple[Any, Callable[[], Any], Callable[[Any], object]]] = {
    "numpy.errors": (
        {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"},
        np.geterr,
        lambda value: np.seterr(**value),
    ),
    "decimal.context": ((28, decimal.ROUND_HALF_EVEN), _decimals, _set_decimals),
    "locale.numbers": ("C", lambda: locale.setlocale(locale.LC_NUMERIC), _set_locale),
    "torch.default_dtype": (
        "float32",
        lambda: str(_torch().get_default_dtype()).removeprefix("torch."),
        lambda value: _torch().set_default_dtype(getattr(_torch(), value)),
    ),
    "torch.default_device": ("cpu", _device, lambda value: _torch().set_default_device(value)),
    "torch.threads": (
        None,
        lambda: _torch().get_num_threads(),
        lambda value: _torch().set_num_threads(value),
    ),
    "torch.deterministic": (
        False,
        lambda: _torch().are_deterministic_algorithms_enabled(),
        lambda value: _torch().use_deterministic_algorithms(value),
    ),
    "torch.grad": (
        True,
        lambda: _torch().is_grad_enabled(),
        lambda value: _torch().set_grad_enabled(value),
    ),
    "torch.tf32": (False, lambda: _torch().backends.cuda.matmul.allow_tf32, _set_tf32),
    "torch.cudnn_tf32": (True, lambda: _torch().backends.cudnn.allow_tf32, _set_cudnn_tf32),
}
"""Setting of a library -> its default, how it is read, and how it is set."""
