"""Chooses which operators to measure for planning a model, and their order.

There are too many sizes to measure all, and interpolation does not need them. Each operator is the
one farthest from all earlier ones.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from foretune.collect.torch_operators.measuring import cannot_run
from foretune.device import Device
from foretune.errors import UsageError
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.kinds import KINDS
from foretune.plan.cost.operator import Operator, Part
from foretune.plan.cost.steps import operator_table
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats
from foretune.plan.describe.layout import Layout, illegal_because

CONTEXTS = (0, 64, 256, 1024, 4096, 16384, 65536)
"""Cached tokens before a decode step's token or a prompt's chunk."""
MAX_REQUESTS = 1024
"""Maximum requests of a decode step; larger steps are prefill."""
MIN_PROMPT_TOKENS = 16
DEFAULT_MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",
    "Qwen/Qwen3-32B",
    "meta-llama/Meta-Llama-3.1-70B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
)
"""Models whose operators are measured by default."""


def plan_operators(
    model: ModelDescription, degrees: Sequence[int], kinds: Sequence[str], tokens: Sequence[int]
) -> list[Operator]:
    """Return the distinct operators that plans of a model need.

    Raises UsageError if the model cannot be split in any of the tensor-parallel ``degrees``.
    Experts are split in the same way. ``kinds`` are weight formats; ``tokens`` are the sizes of
    steps: requests to decode, or tokens of a prompt.
    """
    possible = [layout for tp in degrees for layout in _layouts(model, tp)]
    layouts = [layout for layout in possible if illegal_because(model, layout) is None]
    if not layouts:
        reason = illegal_because(model, possible[0])
        raise UsageError(f"{model.name} cannot be split like this: {reason}")

    operators: list[Operator] = []
    for layout, weight_format, size in product(layouts, kinds, tokens):
        cache = "fp32" if weight_format == "fp32" else "bf16"
        operators.extend(_steps(model, layout, Formats(weight_format, kv=cache), size))
    return distinct(operators)


def distinct(operators: Iterable[Operator]) -> list[Operator]:
    """Return each operator once, even if several layers or models use it."""
    return list({(o.kernel, o.problem, o.config): o for o in operators}.values())


def measurable(
    operators: Iterable[Operator], device: Device, max_ms: float
) -> tuple[list[Operator], dict[str, int]]:
    """Return operators with rooflines up to ``max_ms``, and counts of the others by reason."""
    reasons: dict[str, int] = {}
    possible = []
    for operator in operators:
        reason = cannot_run(operator)
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            possible.append(operator)
    if not possible:
        return [], reasons
    ms = OperatorTimer(device, None, "").times(operator_table(possible)).ms
    in_time = [operator for operator, time in zip(possible, ms, strict=True) if time <= max_ms]
    if len(in_time) < len(possible):
        reasons["one run would take too long"] = len(possible) - len(in_time)
    return in_time, reasons


def farthest_first(operators: Sequence[Operator]) -> list[Operator]:
    """Return ``operators`` in an order where each is the farthest from all earlier ones.

    Distances are octaves of sizes, as in interpolation. Other kernels and formats are infinitely
    far, so each gets its first operator before any gets a second.
    """
    if not operators:
        return []
    table = operator_table(operators)
    gaps = np.zeros(len(operators))
    for kernel, index in table.groupby("kernel", sort=False).indices.items():
        kind = KINDS[str(kernel)]
        rows = table.iloc[index]
        formats = kind.keys(rows).to_numpy()
        coordinates = kind.coordinates(rows)
        for name in dict.fromkeys(formats):
            of_format = np.flatnonzero(formats == name)
            gaps[index[of_format]] = _farthest_first_gaps(coordinates[of_format])
    return [operators[i] for i in np.argsort(-gaps, kind="stable")]


def _farthest_first_gaps(coordinates: np.ndarray) -> np.ndarray:
    """Return each point's distance to those chosen before it, in farthest-first order."""
    gaps = np.zeros(len(coordinates))
    nearest = np.full(len(coordinates), np.inf)
    remaining = np.ones(len(coordinates), dtype=bool)
    best = int(coordinates.sum(axis=1).argmin())  # start with the smallest, which is quick
    for _ in range(len(coordinates)):
        gaps[best] = nearest[best]
        remaining[best] = False
        from_best = np.linalg.norm(coordinates - coordinates[best], axis=1)
        nearest = np.minimum(nearest, from_best)
        best = int(np.where(remaining, nearest, -1.0).argmax())
    return gaps


def _layouts(model: ModelDescription, tp: int) -> list[Layout]:
    """Return the layouts on ``tp`` ranks, legal or not: with sliced and with whole experts."""
    ranks = tp if model.is_moe else 1
    return list(dict.fromkeys([Layout(tp, moe_tp=ranks), Layout(tp, moe_ep=ranks)]))


def _steps(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int
) -> Iterable[Operator]:
    for context in CONTEXTS:
        if tokens <= MAX_REQUESTS:
            yield from mixed_operators(model, layout, formats, [Part(tokens, 1, context, "decode")])
        if tokens >= MIN_PROMPT_TOKENS:
            part = Part(1, tokens, context, "prefill")
            yield from mixed_operators(model, layout, formats, [part])
