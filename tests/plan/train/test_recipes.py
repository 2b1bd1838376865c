"""Recipes: which are possible."""

import pytest

from foretune.errors import ProblemError, UnknownName
from foretune.plan import describe_model, find_system
from foretune.plan.train.recipe import (
    Recipe,
    TrainingLayout,
    TrainingTask,
    is_possible,
    is_possible_layout,
    possible_recipes,
    stage_layers,
)

H100 = find_system("h100_sxm")
TASK = TrainingTask(32, 64)


@pytest.mark.parametrize(
    "layout",
    [
        TrainingLayout(tp=8),  # 4 heads
        TrainingLayout(dp=3, ep=3),  # 4 experts
        TrainingLayout(cp=64),  # 64 tokens
    ],
)
def test_is_possible_layout_needs_divisible_sizes(sparse, layout):
    assert is_possible_layout(sparse, TrainingLayout(tp=2, dp=2, ep=2, cp=2), TASK)
    assert not is_possible_layout(sparse, layout, TASK)


def test_sequences_are_cut_only_for_flash_attention(small):
    ring = TrainingLayout(cp=2)
    assert is_possible_layout(small, ring, TASK)
    assert not is_possible_layout(small, ring, TrainingTask(32, 64, attention="unfused"))


def test_batches_are_divided():
    assert is_possible(Recipe(TrainingLayout(dp=2), micro_batch=16), TASK)
    assert not is_possible(Recipe(TrainingLayout(dp=3)), TASK)
    assert not is_possible(Recipe(TrainingLayout(dp=2), micro_batch=32), TASK)
    chunks = TrainingLayout(pp=4, chunks=2)
    assert is_possible(Recipe(chunks, micro_batch=8), TASK)
    assert not is_possible(Recipe(chunks, micro_batch=16), TASK)  # 2 micro-batches


def test_recipes_use_all_gpus(sparse):
    found = possible_recipes(sparse, TASK, H100, 4)
    layouts = {recipe.layout for recipe in found}
    assert {layout.gpus for layout in layouts} == {4}
    assert {(1, 1, 4), (2, 1, 2), (4, 1, 1), (1, 2, 2), (2, 2, 1)} == {
        (layout.tp, layout.pp, layout.dp) for layout in layouts
    }
    assert {recipe.layout.ep for recipe in found} == {1, 2, 4}
    assert len(set(found)) == len(found)
    # Replicas split the optimizer's states wherever there are any.
    assert {r.zero for r in found if r.layout.replicas > 1} == {1, 2, 3}


def test_long_sequences_are_cut():
    model = describe_model("Qwen/Qwen3-8B")
    short, long = (possible_recipes(model, TrainingTask(8, n), H100, 8) for n in (4096, 32768))
    assert {r.layout.cp for r in short} == {1}
    assert {r.layout.cp for r in long} == {1, 2, 4, 8}


def test_zero_bubble_fills_pipelines_without_chunks_or_full_recomputation():
    model = describe_model("Qwen/Qwen3-8B")
    found = possible_recipes(model, TrainingTask(32, 64), H100, 8, zero_bubble=True)
    filled = [recipe for recipe in found if recipe.layout.zero_bubble]
    assert {recipe.layout.zero_bubble for recipe in filled} == {1, 2}
    assert all(r.layout.pp > 1 and r.layout.chunks == 1 for r in filled)
    assert {recipe.recompute for recipe in filled} == {"none", "selective"}


def test_chunks_fill_stages_with_the_tables():
    """Llama 3.1 405B has 126 layers: with the tables they fill 8 stages of 8 chunks."""
    model = describe_model("meta-llama/Meta-Llama-3.1-405B")
    layout = TrainingLayout(tp=8, pp=8, cp=2, dp=8, chunks=8)
    assert stage_layers(model, layout) == [15, *[16] * 6, 15]
    found = possible_recipes(model, TrainingTask(512, 8192, "fp8"), H100, 1024)
    assert layout in {recipe.layout for recipe in found}


def test_names():
    assert str(TrainingLayout()) == "one GPU"
    assert str(TrainingLayout(tp=2, dp=4)) == "tp2 dp4"
    assert str(TrainingLayout(pp=4, zero_bubble=1)) == "pp4 zb1"


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_training_task_without_work_is_refused(numbers):
    with pytest.raises(ProblemError, match="must be positive"):
        TrainingTask(*numbers)


@pytest.mark.parametrize(
    "kind", [{"precision": "fp7"}, {"attention": "slow"}, {"gradients": "int8"}]
)
def test_unknown_kinds(kind):
    with pytest.raises(UnknownName, match="of training"):
        TrainingTask(1, 1, **kind)
