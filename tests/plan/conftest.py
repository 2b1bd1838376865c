"""Small models whose numbers can be computed by hand."""

import pytest

from foretune.plan import ModelDescription


@pytest.fixture
def small() -> ModelDescription:
    """A dense model: two layers, four heads that share two key heads."""
    return ModelDescription(
        "small", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, vocab=100, intermediate=128
    )


@pytest.fixture
def sparse() -> ModelDescription:
    """The same with experts in the second layer: two of four, and a shared one."""
    return ModelDescription(
        "sparse",
        layers=2,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=100,
        intermediate=128,
        experts=4,
        experts_per_token=2,
        shared_experts=1,
        moe_intermediate=32,
        dense_layers=1,
    )
