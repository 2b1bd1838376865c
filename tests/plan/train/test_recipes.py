"""Recipes: which are possible, and why others are not."""

from dataclasses import replace

import pytest

from foretune.errors import ProblemError, UnknownName
from foretune.plan import describe_model, find_system
from foretune.plan.train.recipe import (
    Recipe,
    TrainingLayout,
    TrainingTask,
    layout_impossible_because,
    possible_recipes,
    stage_layers,
    trade_impossible_because,
)

H100 = find_system("h100_sxm")
TASK = TrainingTask(32, 64)


def impossible_because(model, recipe, task, system):
    layout = layout_impossible_because(model, recipe.layout, task, system)
    return layout or trade_impossible_because(recipe, task)


@pytest.mark.parametrize(
    ("layout", "more", "reason"),
    [
        (TrainingLayout(tp=16), {}, "exceeds the 8 GPUs joined by fast links"),
        (TrainingLayout(tp=8), {}, "4 heads with 2 key heads cannot be split over tp=8"),
        (TrainingLayout(pp=4), {}, "2 layers do not fill 4 stages of 1 chunks"),
        (TrainingLayout(chunks=2), {}, "interleaving needs several stages"),
        (TrainingLayout(pp=2, zero_bubble=3), {}, "1 or 2 times the activations, not 3"),
        (TrainingLayout(zero_bubble=1), {}, "several stages of one chunk"),
        (TrainingLayout(pp=2, zero_bubble=1), {"recompute": "full"}, "full recomputation drops"),
        (TrainingLayout(dp=3), {}, "a batch of 32 is not a multiple of dp x micro-batch = 3"),
        (TrainingLayout(dp=2), {"micro_batch": 32}, "not a multiple of dp x micro-batch = 64"),
        (TrainingLayout(ep=2), {}, "a stage are not a multiple of ep=2"),
        (TrainingLayout(dp=3, ep=3), {}, "4 experts cannot be divided over ep=3"),
        (TrainingLayout(cp=64), {}, "sequences of 64 cannot be cut into"),
        (TrainingLayout(), {"zero": 1}, "ZeRO needs replicas"),
        (TrainingLayout(dp=2), {"zero": 4}, "ZeRO has no stage 4"),
        (TrainingLayout(pp=2, dp=2), {"zero": 2}, "without pipelines"),
        (TrainingLayout(dp=0), {}, "positive"),
        (TrainingLayout(), {"micro_batch": 0}, "at least one sequence"),
    ],
)
def test_reasons(sparse, layout, more, reason):
    assert reason in (impossible_because(sparse, Recipe(layout, **more), TASK, H100) or "")


def test_reasons_of_other_models(small):
    long = replace(small, layers=8)
    odd = Recipe(TrainingLayout(pp=4, chunks=2), micro_batch=16)
    reason = impossible_because(long, odd, TASK, H100)
    assert "interleaving needs micro-batches (2) in multiples of pp=4" in (reason or "")
    experts = Recipe(TrainingLayout(dp=2, ep=2))
    assert "no experts" in (impossible_because(small, experts, TASK, H100) or "")
    ring = Recipe(TrainingLayout(cp=2))
    unfused = TrainingTask(32, 64, attention="unfused")
    assert "flash attention" in (impossible_because(small, ring, unfused, H100) or "")


def test_every_possible_recipe_uses_all_gpus(sparse):
    found = possible_recipes(sparse, TASK, H100, 4)
    layouts = {recipe.layout for recipe in found}
    assert {layout.gpus for layout in layouts} == {4}
    assert {(1, 1, 4), (2, 1, 2), (4, 1, 1), (1, 2, 2), (2, 2, 1)} == {
        (layout.tp, layout.pp, layout.dp) for layout in layouts
    }
    assert {recipe.layout.ep for recipe in found} == {1, 2, 4}
    assert all(impossible_because(sparse, recipe, TASK, H100) is None for recipe in found)
    assert len(set(found)) == len(found)
    # Replicas split the optimizer's states wherever there are any.
    assert {r.zero for r in found if r.layout.replicas > 1} == {1, 2, 3}


def test_long_sequences_are_cut():
    model = describe_model("Qwen/Qwen3-8B")
    short, long = (possible_recipes(model, TrainingTask(8, n), H100, 8) for n in (4096, 32768))
    assert {r.layout.cp for r in short} == {1}
    assert {r.layout.cp for r in long} == {1, 2, 4, 8}


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
def test_nothing_to_train_on(numbers):
    with pytest.raises(ProblemError, match="must be positive"):
        TrainingTask(*numbers)


@pytest.mark.parametrize(
    "kind", [{"precision": "fp7"}, {"attention": "slow"}, {"gradients": "int8"}]
)
def test_unknown_kinds(kind):
    with pytest.raises(UnknownName, match="of training"):
        TrainingTask(1, 1, **kind)
