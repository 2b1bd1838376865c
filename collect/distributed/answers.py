"""Answers of workers as JSON: what comes from another process is data, and nothing of it runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from foretune import errors
from foretune.collect.comparison import Rounds
from foretune.collect.machine_load import MachineLoad
from foretune.datasets.runs import to_measurement, to_row
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError
from foretune.files import parse_json
from foretune.measurement import Measurement

Answer = Device | MachineLoad | list[Measurement] | Rounds | ForetuneError | None


def encode(answer: Answer) -> bytes:
    """Return an answer as JSON: its kind and its content."""
    if answer is None:
        return _json("nothing", None)
    if isinstance(answer, ForetuneError):
        return _json("error", {"kind": type(answer).__name__, "message": str(answer)})
    if isinstance(answer, Device):
        return _json("device", {**asdict(answer), "specs": dict(answer.specs)})
    if isinstance(answer, MachineLoad):
        return _json("load", asdict(answer))
    if isinstance(answer, Rounds):
        times = {key: values.tolist() for key, values in answer.time_ms.items()}
        return _json("rounds", [times, dict(answer.failures)])
    return _json("measurements", [{**to_row(m), _COST: m.cost_s} for m in answer])


def decode(content: bytes) -> Answer:
    """Return the answer that `encode` made JSON of.

    Raises:
        ValueError: it is none.
    """
    try:
        answer = parse_json(content)
        return _DECODERS[answer["kind"]](answer["content"])
    except Exception as e:
        raise ValueError(f"its answer is damaged ({type(e).__name__}: {e})") from e


_COST = "cost_s"
"""Not a column of run tables, but searchers use it."""


def _json(kind: str, content: Any) -> bytes:
    return json.dumps({"kind": kind, "content": content}, default=float).encode()


def _error(content: Mapping[str, str]) -> ForetuneError:
    kind = getattr(errors, content["kind"], MeasurementError)
    is_ours = isinstance(kind, type) and issubclass(kind, ForetuneError)
    return errors.restore_error(kind if is_ours else MeasurementError, str(content["message"]))


def _measurements(rows: list[dict[str, Any]]) -> list[Measurement]:
    found = []
    for row in rows:
        cost_s = float(row.pop(_COST))
        found.append(replace(to_measurement(row), cost_s=cost_s))
    return found


def _rounds(content: list[dict[str, Any]]) -> Rounds:
    times, failures = content
    return Rounds(
        {key: np.array(values, dtype=float) for key, values in times.items()},
        {key: str(reason) for key, reason in failures.items()},
    )


_DECODERS: dict[str, Callable[[Any], Answer]] = {
    "nothing": lambda content: None,
    "error": _error,
    "device": lambda content: Device(**content),
    "load": lambda content: MachineLoad(**content),
    "rounds": _rounds,
    "measurements": _measurements,
}
