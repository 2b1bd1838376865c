"""Offloaded weights and prefixes of a deployment: `plan/serve/deployments/deployment.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan import Formats, Layout, Workload, describe_model, find_system
from foretune.plan.cost.memory import GIB, layer_bytes, weight_bytes
from foretune.plan.describe.layout import Offload
from foretune.plan.describe.system import LATENCY_MS, LINK_EFFICIENCY
from foretune.plan.serve.deployments.deployment import Deployment

H100 = find_system("h100_sxm")
GB200 = find_system("gb200")
ATTENTION = 2 * 64 * 64
KEY_VALUE = 2 * 64 * 32
MLP = 3 * 64 * 128
EXPERT = 3 * 64 * 32
NORMS = 5 * 64
TABLE = 100 * 64
ALL = 1.0
"""GiB: more than a small model has."""


def deploy(model, gib=0.0, engine="vllm", layout=Layout(), prefix=0):  # noqa: B008  # immutable
    load = Workload(2000, 100, prefix)
    offload = Offload(gib, 1.0 if prefix else 0.0)
    return Deployment(model, H100, engine, layout, Formats(), load, 1, offload=offload)


def test_transfer_takes_latency_and_bytes():
    assert LINK_EFFICIENCY == 0.87
    assert H100.transfer_ms(10e9) == pytest.approx(0.01 + 10e3 / (0.87 * 64))
    assert GB200.transfer_ms(10e9) == pytest.approx(0.01 + 10e3 / (0.87 * 225))
    assert H100.transfer_ms(0.0) == 0.0
    assert H100.transfer_ms(1.0) > LATENCY_MS


def test_offloaded_weight_bytes_leave_embeddings_on_gpu(small, sparse):
    layers = 2 * (2 * (ATTENTION + KEY_VALUE + MLP) + NORMS)
    assert layer_bytes(small, Layout(), Formats()) == (layers, 0)
    assert weight_bytes(small, Layout(), Formats()) == layers + 2 * 2 * TABLE
    assert deploy(small).offloaded_weight_bytes == 0
    assert deploy(small, 1000 / GIB).offloaded_weight_bytes == pytest.approx(1000)
    assert deploy(small, ALL).offloaded_weight_bytes == layers
    dense = 2 * (ATTENTION + KEY_VALUE) + MLP + EXPERT
    assert layer_bytes(sparse, Layout(), Formats("fp8")) == (
        dense + 2 * (64 * 4 + NORMS),
        4 * EXPERT,
    )


def test_weight_wait_vllm_reads_only_routed_experts(sparse):
    """Two of four experts are idle for one token, and half of them again for each further one."""
    dense, experts = layer_bytes(sparse, Layout(), Formats())
    for tokens, busy in ((1, 1 / 2), (2, 3 / 4), (3, 7 / 8)):
        found = deploy(sparse, ALL).weight_wait_ms(tokens)
        assert found == pytest.approx(H100.transfer_ms(dense + experts * busy))
    everything = H100.transfer_ms(dense + experts)
    assert deploy(sparse, ALL, "sglang").weight_wait_ms(1) == everything
    half = (dense + experts) / 2
    found = deploy(sparse, half / GIB).weight_wait_ms(1)
    assert found == pytest.approx(H100.transfer_ms((dense + experts / 2) / 2))


def test_weight_wait_is_at_every_stage(small):
    layers = sum(layer_bytes(small, Layout(pp=2), Formats()))
    found = deploy(small, ALL, layout=Layout(pp=2)).weight_wait_ms(8)
    assert found == pytest.approx(2 * (0.01 + layers / (0.87 * 64e6)))
    assert deploy(small).weight_wait_ms(8) == 0.0


def test_prefix_fetch_takes_its_bytes(small):
    """Two layers, two heads, keys and values of 16 numbers; each of two ranks fetches a head."""
    assert deploy(small).prefix_fetch_ms == 0.0
    for tp in (1, 2):
        size = 1000 * 2 * 2 * 2 * 16 * 2 / tp
        found = deploy(small, layout=Layout(tp), prefix=1000).prefix_fetch_ms
        assert found == pytest.approx(0.01 + size / (0.87 * 64e6))


def test_exposed_fetch_sglang_overlaps_layers(small):
    there = deploy(small, prefix=1000)
    fetch = there.prefix_fetch_ms
    for engine in ("vllm", "trtllm"):
        assert deploy(small, engine=engine, prefix=1000).exposed_fetch_ms(100.0) == fetch
    layerwise = deploy(small, engine="sglang", prefix=1000)
    assert layerwise.exposed_fetch_ms(100.0) == fetch / 2  # the first layer's
    assert layerwise.exposed_fetch_ms(fetch / 4) == pytest.approx(3 * fetch / 4)
    assert deploy(small, engine="sglang").exposed_fetch_ms(100.0) == 0.0


MODELS = [describe_model(name) for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")]


@given(
    st.sampled_from(MODELS),
    st.floats(0, 80),
    st.floats(0, 80),
    st.integers(1, 8192),
    st.sampled_from(["vllm", "sglang"]),
)
def test_weight_wait_more_offload_is_never_faster(model, one, other, tokens, engine):
    less, more = (deploy(model, gib, engine).weight_wait_ms(tokens) for gib in sorted((one, other)))
    assert less <= more
    there = deploy(model, one, engine)
    assert there.weight_wait_ms(tokens) <= there.weight_wait_ms(tokens + 1) * (1 + 1e-12)
