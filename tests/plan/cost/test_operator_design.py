"""Which operators are measured for a model, and in which order."""

import dataclasses

import pytest

pytest.importorskip("torch")

from foretune.device import Device
from foretune.errors import UnknownName, UsageError
from foretune.plan.cost.design import farthest_first, measurable, plan_operators

DEVICE = Device("A CPU", "cpu", "x86_64", {"fp32_gflops": 100.0, "memory_gbps": 10.0})


def shapes(operators, kernel):
    return {tuple(o.problem.values()) for o in operators if o.kernel == kernel}


def test_operators_of_every_degree_and_format(small):
    found = plan_operators(small, [1, 2], ["bf16", "fp8"], [8])
    assert {o.config["format"] for o in found if o.kernel == "gemm"} == {"bf16", "fp8"}
    # qkv, out, up, down for either degree, and the head
    assert shapes(found, "gemm") == {
        (8, 128, 64),
        (8, 64, 64),
        (8, 256, 64),
        (8, 64, 128),
        (8, 100, 64),
        (8, 64, 32),
        (8, 50, 64),
    }
    assert len(found) == len({(o.kernel, o.problem, o.config) for o in found})


def test_large_steps_are_prompts_and_small_ones_answers(small):
    few, many = (
        plan_operators(small, [1], ["bf16"], [4]),
        plan_operators(small, [1], ["bf16"], [4096]),
    )
    assert shapes(few, "attention_decode")
    assert not shapes(few, "attention_prefill")
    assert not shapes(many, "attention_decode")
    assert shapes(many, "attention_prefill")


def test_experts_are_sliced_and_spread(sparse):
    found = plan_operators(sparse, [2], ["bf16"], [8])
    degrees = {(o.config["tp"], o.config["ep"]) for o in found if o.kernel == "moe"}
    assert degrees == {(2, 1), (1, 2)}


def test_degrees_that_split_nothing(small):
    with pytest.raises(UsageError, match="4 heads cannot be split over tp=3"):
        plan_operators(small, [3], ["bf16"], [8])
    assert plan_operators(small, [3, 1], ["bf16"], [8]) == plan_operators(small, [1], ["bf16"], [8])
    with pytest.raises(UnknownName, match="fp9"):
        plan_operators(small, [1], ["fp9"], [8])


def test_farthest_first_takes_farthest_next(small):
    found = farthest_first(plan_operators(small, [1], ["bf16"], [2**i for i in range(11)]))
    norms = [o.problem["rows"] for o in found if o.kernel == "norm"]
    # From the smallest to the largest, then halves of what is left, in octaves.
    assert norms[:3] == [1, 1024, 32]
    assert sorted(norms) == [2**i for i in range(11)]


def test_farthest_first_begins_with_every_kernel_and_format(sparse):
    asked = plan_operators(sparse, [1], ["bf16", "fp8"], [1, 8, 64])
    found = farthest_first(asked)
    kinds = [(o.kernel, o.config.get("format"), o.problem.get("op")) for o in found]
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds))
    assert sorted(map(id, found)) == sorted(id(o) for o in asked)
    assert farthest_first([]) == []


def test_measurable_counts_others_by_reason(small):
    pytest.importorskip("torch")
    asked = plan_operators(small, [2], ["bf16", "nvfp4"], [8])
    chosen, reasons = measurable(asked, DEVICE, max_ms=1e9)
    assert {o.config["format"] for o in chosen} == {"bf16"}
    assert len(chosen) + sum(reasons.values()) == len(asked)
    assert any("nvfp4" in reason for reason in reasons)
    assert any("all_reduce" in reason for reason in reasons)


def test_measurable_leaves_out_long_operators(small):
    pytest.importorskip("torch")
    wide = dataclasses.replace(small, vocab=10**8)
    asked = plan_operators(wide, [1], ["bf16"], [8])
    chosen, reasons = measurable(asked, DEVICE, max_ms=100.0)
    assert reasons["one run would take too long"] == 1
    assert max(o.problem.get("N", 0) for o in chosen) < 10**8
    assert measurable([], DEVICE, 1.0) == ([], {})
