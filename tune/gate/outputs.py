"""Compares the outputs of two revisions, which agents send as JSON."""

import base64
import math
from typing import Any

import numpy as np

from foretune.collect.wrapped.output_comparison import ComparisonRules, output_error
from foretune.errors import MeasurementError
from foretune.kernel import WrongResult
from foretune.tune.gate.agent.output_data import ARRAY_KINDS

MAX_DEPTH = 40
UNREADABLE = "the output cannot be read"


def describe_difference(head: Any, base: Any) -> str:
    """Return how the head's output differs from the base's; empty if it does not.

    Numbers may differ by the rounding errors of their type.
    """
    try:
        output_error(_value(head), _value(base), ComparisonRules())
    except WrongResult as e:
        return str(e)
    except MeasurementError as e:
        return f"it cannot be compared: {e}"
    return ""


def _value(node: Any, depth: int = 0) -> Any:
    """Return the value of a node; raise MeasurementError if it is none."""
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        raise MeasurementError(UNREADABLE)
    if "plain" in node:
        return node["plain"]
    if "special" in node:
        return float(node["special"]) if node["special"] in ("nan", "inf", "-inf") else math.nan
    if "bytes" in node:
        return base64.b64decode(node["bytes"])
    if "array" in node:
        return _array(node)
    if "mapping" in node:
        inner = {str(key): _value(item, depth + 1) for key, item in node["mapping"]}
        return {"class": str(node["class"]), **inner}
    if "sequence" in node:
        return [str(node["class"]), *(_value(item, depth + 1) for item in node["sequence"])]
    if "unknown" in node:
        raise MeasurementError(f"{node['unknown']} is neither numbers nor text")
    raise MeasurementError(UNREADABLE)


def _array(node: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(str(node["dtype"]))
    if dtype.kind not in ARRAY_KINDS:
        raise MeasurementError(UNREADABLE)
    flat = np.frombuffer(base64.b64decode(node["array"]), dtype=dtype)
    return flat.reshape([int(n) for n in node["shape"]])
