"""The function that a user gives to judge outputs, ``verify=``."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from foretune.errors import describe_error
from foretune.kernel import WrongResult


def require_accepted(verify: Callable[..., Any], right: Any, got: Any, **options: Any) -> None:
    """Raise WrongResult unless ``verify`` says True of an output; it gets the options it takes.

    It must return a truth value: None, or an error of 0.0, would read as False.
    """
    taken = {name: value for name, value in options.items() if _takes(verify, name)}
    try:
        accepted = verify(right, got, **taken)
    except Exception as e:
        raise WrongResult(f"verify fails: {describe_error(e)}") from e
    if not _is_truth_value(accepted):
        kind = "None" if accepted is None else f"a value of class {type(accepted).__name__}"
        raise WrongResult(f"verify returns {kind}: it must return True or False")
    if not accepted:
        raise WrongResult("verify rejects the output")


def _is_truth_value(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return True
    # One element of an array or tensor.
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return dtype == "bool" and getattr(value, "shape", None) is not None and not value.shape


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name; one without a signature does not."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
