"""Layouts: which spreads are possible, and why others are not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan import Formats, Layout, describe_model
from foretune.plan.cost.memory import stage_layer_range
from foretune.plan.describe.layout import UNEVEN_EXPERTS_ABOVE, illegal_because, legal_layouts

MODELS = (
    "meta-llama/Meta-Llama-3.1-70B",
    "deepseek-ai/DeepSeek-V3",
    "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen3.5-397B-A17B",
    "openai/gpt-oss-120b",
)


def test_every_spread_of_a_dense_model(small):
    assert legal_layouts(small, 4) == [Layout(4), Layout(2, pp=2)]  # three stages, two layers
    assert legal_layouts(small, 1) == [Layout()]
    assert legal_layouts(small, 3) == []
    assert str(Layout(2, pp=2)) == "tp2 pp2"
    assert str(Layout()) == "one GPU"


def test_every_spread_of_experts(sparse):
    found = legal_layouts(sparse, 2)
    assert set(found) == {
        Layout(2, moe_tp=2),
        Layout(2, moe_ep=2),
        Layout(dp=2, moe_tp=2),
        Layout(dp=2, moe_ep=2),
        Layout(pp=2),
    }


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout(3, moe_tp=3), "4 heads cannot be split over tp=3"),
        (Layout(pp=3), "2 layers do not fill 3 stages"),
        (Layout(2), "moe_tp x moe_ep = 1 must be tp x dp = 2"),
        (Layout(dp=8, moe_ep=8), "4 experts cannot be divided over moe_ep=8"),
        (Layout(dp=3, moe_tp=3), "experts 32 wide cannot be split over moe_tp=3"),
        (Layout(0), "positive"),
    ],
)
def test_reasons(sparse, layout, reason):
    assert reason in (illegal_because(sparse, layout) or "")


def test_reasons_of_dense_models(small):
    assert "replicas" in (illegal_because(small, Layout(dp=2)) or "")
    assert "no experts to divide" in (illegal_because(small, Layout(2, moe_tp=2)) or "")
    odd = replace(small, heads=6, kv_heads=6, hidden=96)
    assert "key heads" in (illegal_because(replace(odd, heads=12), Layout(4)) or "")
    assert "MLP 127 wide" in (illegal_because(replace(small, intermediate=127), Layout(2)) or "")


def test_blocks_of_weights_stay_whole():
    model = describe_model("Qwen/Qwen3-235B-A22B")  # experts 1536 wide
    eight = Layout(8, moe_tp=8)
    assert illegal_because(model, eight) is None
    assert "blocks of 128" in (illegal_because(model, eight, Formats("fp8_block")) or "")
    assert illegal_because(model, Layout(8, moe_ep=8), Formats("fp8_block")) is None
    assert illegal_because(model, eight, Formats("fp8")) is None


@given(st.sampled_from(MODELS), st.integers(1, 64))
def test_legal_spreads_use_every_gpu_and_divide_the_model(name, gpus):
    model = describe_model(name)
    found = legal_layouts(model, gpus)
    assert len(set(found)) == len(found)
    for layout in found:
        assert layout.gpus == gpus
        assert model.heads % layout.tp == 0
        assert layout.expert_ranks in (1, layout.tp * layout.dp)
        assert model.is_moe or layout.dp == 1
        assert (
            layout.redundant_experts(model) == 0
            or UNEVEN_EXPERTS_ABOVE < layout.moe_ep <= model.experts
        )


@given(st.sampled_from(MODELS), st.integers(1, 16))
def test_stages_hold_every_layer_once(name, pp):
    model, layout = describe_model(name), Layout(pp=pp)
    stages = [stage_layer_range(model, layout, stage) for stage in range(pp)]
    assert [layer for start, end in stages for layer in range(start, end)] == list(
        range(model.layers)
    )
    assert max(e - s for s, e in stages) - min(e - s for s, e in stages) <= 1


def test_labels_of_measured_deployments(small, sparse):
    assert Layout.from_labels(small, 4, 1, 1, 4, 1) == Layout(4)
    # What labels leave out is split as dense projections are.
    assert Layout.from_labels(sparse, 4, 1, 0, 1, 1) == Layout(4, moe_tp=4)
    assert Layout.from_labels(sparse, 4, 1, 1, 0, 0) == Layout(4, moe_tp=4)
    assert Layout.from_labels(sparse, 2, 1, 1, 1, 4) == Layout(2, dp=2, moe_ep=4)
    assert Layout.from_labels(sparse, 4, 1, 1, 1, 2) == Layout(4, moe_tp=2, moe_ep=2)
    # Labels multiplied with themselves.
    assert Layout.from_labels(sparse, 4, 1, 1, 2, 2) == Layout(2, moe_ep=2)
    assert Layout.from_labels(sparse, 1, 1, 4, 2, 2) == Layout(dp=2, moe_ep=2)


def test_copies_of_experts_fill_many_ranks():
    model = describe_model("deepseek-ai/DeepSeek-V3")
    wide = Layout(1, 1, 72, 1, 72)
    assert illegal_because(model, wide) is None
    assert wide.redundant_experts(model) == 4 * 72 - 256
    assert "cannot be divided" in str(illegal_because(model, Layout(1, 1, 3, 1, 3)))
    assert max(layout.moe_ep for layout in legal_layouts(model, 72)) == 72
