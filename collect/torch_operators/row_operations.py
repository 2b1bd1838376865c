"""Operations on rows: norms, embeddings, gates and rotary position embeddings."""

from collections.abc import Callable

import torch
from torch.nn import functional

from foretune.collect.torch_operators.tensors import random_tensor
from foretune.kernel import Launch
from foretune.values import FrozenParameters

VOCABULARY = 32_768
"""Rows of the embedding table."""
HEAD_SIZE = 128
"""Head size of rotary embeddings; pairs are half of it apart."""
EPSILON = 1e-6
"""Added to the mean square of a norm."""
MAX_ARRAYS = 8.0
"""Arrays of the size of the rows that an operation holds at once, at most."""
BYTES_PER_NUMBER = 2.0


def rms_norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return rows divided by the root of their mean square, times ``weight``."""
    return functional.rms_norm(values, (values.shape[1],), weight, EPSILON)


def silu_and_mul(both: torch.Tensor) -> torch.Tensor:
    """Return the first half of every row, gated (x · sigmoid x), times the second half."""
    gate, up = both.chunk(2, dim=1)
    return functional.silu(gate).mul_(up)


def rope(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings to heads, (rows, heads, head size)."""
    first, second = heads.chunk(2, dim=2)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=2)


def _norm(rows: int, columns: int, device: str) -> Launch:
    values = random_tensor((rows, columns), device)
    weight = random_tensor((columns,), device)
    return lambda: rms_norm(values, weight)


def _embedding(rows: int, columns: int, device: str) -> Launch:
    table = random_tensor((VOCABULARY, columns), device)
    generator = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(VOCABULARY, (rows,), generator=generator, device=device)
    return lambda: functional.embedding(tokens, table)


def _silu_and_mul(rows: int, columns: int, device: str) -> Launch:
    both = random_tensor((rows, 2 * columns), device)
    return lambda: silu_and_mul(both)


def _rope(rows: int, columns: int, device: str) -> Launch:
    heads = random_tensor((rows, columns // HEAD_SIZE, HEAD_SIZE), device)
    angles = random_tensor((rows, 1, HEAD_SIZE // 2), device)
    cosine = angles.cos()
    sine = angles.sin()
    return lambda: rope(heads, cosine, sine)


OPERATIONS: dict[str, Callable[[int, int, str], Launch]] = {
    "rms_norm": _norm,
    "embedding": _embedding,
    "silu_and_mul": _silu_and_mul,
    "rope": _rope,
}
"""Operation -> a function of rows, columns and device that builds a launch."""


def cannot_run(problem: FrozenParameters, config: FrozenParameters) -> str:
    """Return why torch cannot run an operator; "" if it can."""
    operation = str(problem.get("op"))
    if operation not in OPERATIONS:
        return f"unknown row operation {operation!r}: known are {', '.join(OPERATIONS)}"
    if operation == "rope" and int(problem["columns"]) % HEAD_SIZE:
        return f"{problem['columns']} columns are not a multiple of {HEAD_SIZE}"
    return ""


def memory_bytes(problem: FrozenParameters, config: FrozenParameters) -> float:
    """Return the bytes of at most eight arrays, and of the table of an embedding."""
    columns = float(problem["columns"])
    array_rows = MAX_ARRAYS * float(problem["rows"])
    table_rows = VOCABULARY if problem.get("op") == "embedding" else 0
    return BYTES_PER_NUMBER * columns * (array_rows + table_rows)


def build(problem: FrozenParameters, config: FrozenParameters, device: str) -> Launch:
    """Return a call that runs an operator on random rows."""
    build_operation = OPERATIONS[str(problem["op"])]
    rows = round(float(problem["rows"]))
    return build_operation(rows, int(problem["columns"]), device)
