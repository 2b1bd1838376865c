"""Tests the results of operators in torch, in every format: `collect/torch_operators/`."""

import math

import numpy as np
import pytest

from foretune.problem import Problem
from foretune.space import Configuration

torch = pytest.importorskip("torch")

from foretune.collect.torch_operators.attention import decode, prefill
from foretune.collect.torch_operators.experts import busiest_rank_counts, combine_experts, experts
from foretune.collect.torch_operators.measuring import build, cannot_run  # they import torch
from foretune.collect.torch_operators.operators import CLASSES
from foretune.collect.torch_operators.products import FORMATS
from foretune.collect.torch_operators.row_operations import rms_norm, rope, silu_and_mul
from foretune.collect.torch_operators.tensors import random_tensor
from foretune.plan.cost.operator import Operator

LIMITS = {
    "bf16": 8e-3,
    "fp16": 8e-3,
    "fp32": 1e-6,
    "fp8": 0.06,
    "fp8_static": 0.06,
    "int8": 0.03,
    "int8_wo": 0.02,
    "int4_wo": 0.25,
}
"""Rounding inputs to a format changes a product of normal numbers by this share at most."""


def random(*shape: int, seed: int = 0) -> "torch.Tensor":
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def error(found, expected) -> float:
    expected = expected.double()
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", sorted(FORMATS))
@pytest.mark.parametrize("rows", [1, 40])
def test_linear_result_is_within_rounding(kind, rows):
    a = random(rows, 256)
    w = random(48, 256, seed=1)
    linear = FORMATS[kind](w)
    found = linear.multiply(linear.prepare(a))
    assert found.shape == (rows, 48)
    assert found.dtype == {"fp16": torch.float16, "fp32": torch.float32}.get(kind, torch.bfloat16)
    assert error(found, a.double() @ w.double().t()) < LIMITS[kind]


def attention_by_hand(query, keys, values, prefix):
    """Softmax over what each token may see, one head after the other, in doubles."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    share = query.shape[1] // keys.shape[1]
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            for i in range(query.shape[2]):
                seen = prefix + i + 1
                k, v = (x[b, h // share, :seen].double() for x in (keys, values))
                scores = k @ query[b, h, i].double() / math.sqrt(query.shape[3])
                out[b, h, i] = scores.softmax(0) @ v
    return out


@pytest.mark.parametrize(("kv_heads", "prefix"), [(4, 0), (2, 0), (1, 5), (4, 5)])
def test_prefill_matches_attention_by_hand(kv_heads, prefix):
    query = random(2, 4, 7, 16)
    keys = random(2, kv_heads, 7 + prefix, 16, seed=1)
    values = random(2, kv_heads, 7 + prefix, 16, seed=2)
    expected = attention_by_hand(query, keys, values, prefix)
    assert error(prefill(query, keys, values), expected) < 8e-3


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_decode_matches_attention_by_hand(kv_heads):
    query, keys, values = (
        random(3, 4, 1, 16),
        random(3, kv_heads, 9, 16),
        random(3, kv_heads, 9, 16),
    )
    assert error(decode(query, keys, values), attention_by_hand(query, keys, values, 8)) < 8e-3


@pytest.mark.parametrize("kind", ["bf16", "int8_wo", "fp8"])
def test_combine_experts_sums_by_weight(kind):
    tokens = 6
    hidden = 32
    inner = 16
    counts = [3, 0, 4]
    up = random(3, 2 * inner, hidden)
    down = random(3, hidden, inner, seed=1)
    activations = random(tokens, hidden, seed=2)
    rows = torch.tensor([0, 2, 5, 1, 2, 3, 4])
    weights = torch.tensor([[0.5], [0.25], [1.0], [1.0], [0.75], [0.5], [0.5]]).to(torch.bfloat16)
    expected = torch.zeros(tokens, hidden, dtype=torch.float64)
    expert = [0, 0, 0, 2, 2, 2, 2]
    for pair, row in enumerate(rows.tolist()):
        both = up[expert[pair]].double() @ activations[row].double()
        gate = both[:inner]
        wide = both[inner:]
        inside = gate * torch.sigmoid(gate) * wide
        expected[row] += float(weights[pair]) * (down[expert[pair]].double() @ inside)
    found = combine_experts(activations, rows, weights, experts(up, down, counts, kind))
    assert error(found, expected) < 2 * LIMITS[kind] + 0.01


def test_row_operations_match_formulas():
    x = random(5, 256)
    w = random(256, seed=1)
    mean_square = x.double().square().mean(dim=1, keepdim=True)
    assert error(rms_norm(x, w), x.double() / mean_square.sqrt() * w.double()) < 8e-3
    gate, up = x.double().split(128, dim=1)
    assert error(silu_and_mul(x), gate * torch.sigmoid(gate) * up) < 1e-2
    heads = x.view(5, 2, 128)
    angle = torch.arange(5.0).view(5, 1, 1) * torch.ones(64)
    found = rope(heads, angle.cos(), angle.sin())
    as_complex = torch.complex(*heads.double().split(64, dim=2)) * torch.polar(
        torch.ones_like(angle).double(), angle.double()
    )
    assert error(found, torch.cat((as_complex.real, as_complex.imag), dim=2)) < 1e-5


def operator(kernel: str, config: dict | None = None, **problem) -> Operator:
    return Operator(kernel, Problem(problem), 1, "decode", Configuration(config or {}))


RUN = [
    (operator("gemm", {"format": "bf16"}, M=3, N=16, K=32), (3, 16)),
    (operator("gemm", {"format": "int4_wo"}, M=3.0, N=16, K=256), (3, 16)),
    (
        operator(
            "attention_decode",
            {"format": "bf16", "kv_format": "bf16"},
            batch=2,
            kv_len=40.4,
            heads=4,
            kv_heads=2,
            head_dim=16,
            window=8,
        ),
        (2, 4, 1, 16),
    ),
    (
        operator(
            "attention_prefill",
            {"format": "bf16"},
            batch=1.0,
            seq_len=6,
            prefix_len=3.0,
            heads=4,
            kv_heads=4,
            head_dim=16,
            window=0,
        ),
        (1, 4, 6, 16),
    ),
    (
        operator(
            "moe",
            {"format": "bf16", "tp": 2, "ep": 1},
            tokens=5,
            hidden=32,
            intermediate=32,
            top_k=2,
            experts=4,
            distribution="power_law_1.2",
        ),
        (5, 32),
    ),
    (operator("norm", op="rms_norm", rows=3, columns=8), (3, 8)),
    (operator("elementwise", op="embedding", rows=3, columns=8), (3, 8)),
    (operator("elementwise", op="silu_and_mul", rows=3, columns=8), (3, 8)),
    (operator("elementwise", op="rope", rows=3, columns=256), (3, 2, 128)),
]


@pytest.mark.parametrize(("asked", "shape"), RUN, ids=lambda v: getattr(v, "kernel", ""))
def test_build_output_has_shape_of_rank(asked, shape):
    assert cannot_run(asked) == ""
    output = build(asked, "cpu")()
    assert output.shape == shape
    assert bool(output.float().isfinite().all())
    needed = CLASSES[asked.kernel].memory_bytes(asked.problem, asked.config)
    assert needed > 2 * output.numel()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (operator("all_reduce", message_bytes=8, devices=2), "several devices"),
        (operator("gemm", {"format": "nvfp4"}, M=1, N=1, K=1), "not in nvfp4"),
        (operator("gemm", {"format": "int4_wo"}, M=1, N=8, K=200), "multiple of 128"),
        (operator("attention_decode", {"kv_format": "fp8"}, batch=1, kv_len=1, heads=1), "in bf16"),
        (operator("attention_prefill", batch=1, seq_len=9, heads=1, window=4), "window"),
        (operator("moe", {"format": "fp8_block"}), "not in fp8_block"),
        (operator("elementwise", op="gelu", rows=1, columns=1), "unknown row operation 'gelu'"),
        (operator("elementwise", op="rope", rows=1, columns=100), "multiple of 128"),
    ],
)
def test_cannot_run_gives_reason(asked, reason):
    assert reason in cannot_run(asked)


@pytest.mark.parametrize("ep", [1, 4])
def test_busiest_rank_counts_begin_with_most_popular_expert(ep):
    config = Configuration(format="bf16", ep=ep)
    problem = Problem(
        tokens=64, hidden=8, intermediate=8, top_k=2, experts=16, distribution="power_law_1.2"
    )
    counts = busiest_rank_counts(problem, config)
    assert len(counts) == 16 // ep
    assert max(counts) == counts[0] <= 64
    total = sum(counts)
    assert total == 128 if ep == 1 else 128 / ep < total < 128
    even = busiest_rank_counts(Problem({**problem, "distribution": "balanced"}), config)
    assert even == [8] * (16 // ep)


def test_busiest_rank_counts_one_token_reaches_expert():
    problem = Problem(tokens=1, hidden=8, intermediate=8, top_k=2, experts=64)
    counts = busiest_rank_counts(problem, Configuration(format="bf16", ep=8))
    assert counts[0] == 1
    assert max(counts) == 1


def test_random_tensor_is_repeatable_and_rows_differ():
    first = random_tensor((4, 2**21), "cpu")
    second = random_tensor((4, 2**21), "cpu")
    assert torch.equal(first, second)
    assert not np.allclose(first[0, :100].float(), first[2, :100].float())
