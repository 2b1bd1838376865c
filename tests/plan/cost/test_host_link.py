"""Transfers from the host's memory, against values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan import Formats, Layout, describe_model, find_system
from foretune.plan.cost.host_link import (
    LATENCY_MS,
    LINK_EFFICIENCY,
    exposed_fetch_ms,
    offloaded_bytes,
    prefix_ms,
    read_bytes,
    step_ms,
    transfer_ms,
)
from foretune.plan.cost.memory import GIB, layer_bytes, weight_bytes

H100, GB200 = find_system("h100_sxm"), find_system("gb200")
ATTENTION, KEY_VALUE, MLP, EXPERT = 2 * 64 * 64, 2 * 64 * 32, 3 * 64 * 128, 3 * 64 * 32
NORMS, TABLE = 5 * 64, 100 * 64
ALL = 1.0
"""GiB: more than a small model has."""


def test_a_transfer_takes_its_latency_and_its_bytes():
    assert LINK_EFFICIENCY == 0.87
    assert transfer_ms(H100, 10e9) == pytest.approx(0.01 + 10e3 / (0.87 * 64))
    assert transfer_ms(GB200, 10e9) == pytest.approx(0.01 + 10e3 / (0.87 * 225))
    assert transfer_ms(H100, 0.0) == 0.0
    assert transfer_ms(H100, 1.0) > LATENCY_MS


def test_layers_are_offloaded_and_tables_stay(small, sparse):
    layers = 2 * (2 * (ATTENTION + KEY_VALUE + MLP) + NORMS)
    assert layer_bytes(small, Layout(), Formats()) == (layers, 0)
    assert weight_bytes(small, Layout(), Formats()) == layers + 2 * 2 * TABLE
    assert offloaded_bytes(small, Layout(), Formats(), 0.0) == 0
    assert offloaded_bytes(small, Layout(), Formats(), 1000 / GIB) == pytest.approx(1000)
    assert offloaded_bytes(small, Layout(), Formats(), ALL) == layers
    dense = 2 * (ATTENTION + KEY_VALUE) + MLP + EXPERT
    assert layer_bytes(sparse, Layout(), Formats("fp8")) == (
        dense + 2 * (64 * 4 + NORMS), 4 * EXPERT
    )  # fmt: skip


def test_vllm_reads_the_experts_that_tokens_go_to(sparse):
    """Two of four experts are idle for one token, and half of them again for each further one."""
    dense, experts = layer_bytes(sparse, Layout(), Formats())
    for tokens, busy in ((1, 1 / 2), (2, 3 / 4), (3, 7 / 8)):
        found = read_bytes(sparse, Layout(), Formats(), ALL, tokens, "vllm")
        assert found == pytest.approx(dense + experts * busy)
    assert read_bytes(sparse, Layout(), Formats(), ALL, 1, "sglang") == dense + experts
    half = (dense + experts) / 2
    found = read_bytes(sparse, Layout(), Formats(), half / GIB, 1, "vllm")
    assert found == pytest.approx((dense + experts / 2) / 2)


def test_a_step_waits_at_every_stage(small):
    layers = sum(layer_bytes(small, Layout(pp=2), Formats()))
    found = step_ms(H100, small, Layout(pp=2), Formats(), ALL, 8, "vllm")
    assert found == pytest.approx(2 * (0.01 + layers / (0.87 * 64e6)))
    assert step_ms(H100, small, Layout(), Formats(), 0.0, 8, "vllm") == 0.0


def test_a_prefix_comes_back(small):
    """Two layers, two heads, keys and values of 16 numbers; each of two ranks fetches a head."""
    assert prefix_ms(H100, small, Layout(), Formats(), 0) == 0.0
    for tp in (1, 2):
        size = 1000 * 2 * 2 * 2 * 16 * 2 / tp
        found = prefix_ms(H100, small, Layout(tp), Formats(), 1000)
        assert found == pytest.approx(0.01 + size / (0.87 * 64e6))


def test_sglang_fetches_beside_the_layers_that_compute():
    assert (
        exposed_fetch_ms(8.0, 100.0, 4, "vllm") == exposed_fetch_ms(8.0, 100.0, 4, "trtllm") == 8.0
    )
    assert exposed_fetch_ms(8.0, 100.0, 4, "sglang") == 2.0  # the first layer's
    assert exposed_fetch_ms(108.0, 100.0, 80, "sglang") == 8.0


MODELS = [describe_model(name) for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")]


@given(
    st.sampled_from(MODELS), st.floats(0, 80), st.floats(0, 80), st.integers(1, 8192),
    st.sampled_from(["vllm", "sglang"]),
)  # fmt: skip
def test_more_offload_is_never_faster(model, one, other, tokens, engine):
    less, more = (
        step_ms(H100, model, Layout(), Formats(), gib, tokens, engine)
        for gib in sorted((one, other))
    )
    assert less <= more
    again = step_ms(H100, model, Layout(), Formats(), one, tokens + 1, engine)
    assert step_ms(H100, model, Layout(), Formats(), one, tokens, engine) <= again * (1 + 1e-12)
