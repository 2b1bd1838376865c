"""Memory of training, against the formulas of Korthikanti et al. (arXiv:2205.05198)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.plan import ModelDescription, describe_model, find_system
from foretune.plan.cost.memory import GIB
from foretune.plan.train.recipe import (
    Recipe,
    TrainingLayout,
    TrainingTask,
    possible_recipes,
    stage_layers,
)
from foretune.plan.train.training_memory import (
    MANY_RANKS_BYTES,
    _stage_memory,
    fullest_stage,
    layer_activations,
    micro_batches_in_flight,
    offloaded_gib,
    stage_parameters,
    stored_activations,
    training_memory,
)

UNFUSED = {"sequence": 2048, "attention": "unfused"}


def test_models_like_gpt_3_have_twelve_squares_per_layer(gpt_22b):
    h = 6144
    layers = 48
    vocab = 51200
    norms = (2 * layers + 1) * h
    assert gpt_22b.parameters() == 12 * layers * h * h + vocab * h + norms


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "per_sbh"),
    [
        ("none", False, 10 + 24 / 8 + 5 * 64 * 2048 / (6144 * 8)),
        ("none", True, 34 / 8 + 5 * 64 * 2048 / (6144 * 8)),
        ("selective", False, 10 + 24 / 8),
        ("selective", True, 34 / 8),
        ("full", False, 2),
        ("full", True, 2 / 8),
    ],
)
def test_activations_of_a_layer(gpt_22b, recompute, sequence_parallel, per_sbh):
    recipe = Recipe(
        TrainingLayout(tp=8), 4, recompute=recompute, sequence_parallel=sequence_parallel
    )
    kept = stored_activations(gpt_22b, recipe, TrainingTask(4, **UNFUSED))
    assert kept == pytest.approx(2048 * 4 * 6144 * per_sbh)


def test_activations_of_the_first_stage_as_published(gpt_22b, gpt_175b):
    """Figure 1 of the paper, GiB without the last stage's logits."""
    whole = Recipe(TrainingLayout(tp=8), 4, sequence_parallel=False)
    task = TrainingTask(4, **UNFUSED)
    assert 48 * stored_activations(gpt_22b, whole, task) / GIB == pytest.approx(59.25)
    cheap = replace(whole, recompute="selective", sequence_parallel=True)
    assert 48 * stored_activations(gpt_22b, cheap, task) / GIB == pytest.approx(9.5625)
    # Eight stages of three chunks: 1 + 7/24 times the layers' activations.
    staged = Recipe(TrainingLayout(tp=8, pp=8, chunks=3), 1, sequence_parallel=False)
    task = TrainingTask(64, **UNFUSED)
    memory = training_memory(gpt_175b, staged, task)
    assert memory.activations / GIB == pytest.approx(66.84375)
    assert memory.activations == pytest.approx(
        96 * (1 + 7 / 24) * layer_activations(gpt_175b, staged, task)
    )


def test_activations_of_a_modern_layer(small, sparse):
    task = TrainingTask(1, 10)
    recipe = Recipe()
    # Two norms' inputs and outputs; queries, keys, values and outcome; gate, up and their product;
    # and per head and token a maximum and a sum.
    attention = 2 * (64 + 32 + 32 + 64)
    mlp = 2 * 3 * 128
    assert layer_activations(small, recipe, task) == 10 * (8 * 64 + attention + mlp + 4 * 4)
    cheap = replace(recipe, recompute="selective")
    assert stored_activations(small, cheap, task) == 10 * (4 * 64 + attention + 2 * 2 * 128 + 16)
    full = replace(recipe, recompute="full")
    assert stored_activations(small, full, task) == 10 * 2 * 64
    # With fp8, inputs of products take one byte.
    eight = TrainingTask(1, 10, "fp8")
    assert layer_activations(small, recipe, eight) == 10 * (
        4 * 64 + 2 * 64 + attention + 2 * 2 * 128 + 128 + 16
    )
    # One of two layers has experts: two of 32 per token, with their inputs and outputs.
    experts = 2 * (2 * 2 * 64 + 2 * 3 * 32) + 2 * 3 * 32
    assert layer_activations(sparse, recipe, task) == 10 * (
        8 * 64 + attention + 16 + (mlp + experts) / 2
    )


def test_states_are_eighteen_bytes_per_parameter(small):
    memory = training_memory(small, Recipe(), TrainingTask(4, 16))
    count = small.parameters()
    assert (memory.weights, memory.gradients, memory.optimizer) == (
        2 * count,
        4 * count,
        12 * count,
    )
    assert memory.buffers == 0
    assert memory.total == sum(vars(memory).values())
    assert memory.gib == memory.total / GIB
    narrow = training_memory(small, Recipe(), TrainingTask(4, 16, gradients="bf16"))
    assert narrow.gradients == 2 * count


def test_replicas_split_what_the_stage_of_zero_says(small):
    task = TrainingTask(4, 16)
    count = small.parameters()
    layout = TrainingLayout(dp=4)
    for stage, expected in enumerate(
        [(2, 4, 12), (2, 4, 12 / 4), (2, 4 / 4, 12 / 4), (2 / 4, 4 / 4, 12 / 4)]
    ):
        memory = training_memory(small, Recipe(layout, zero=stage), task)
        found = memory.weights, memory.gradients, memory.optimizer
        assert found == pytest.approx(tuple(count * each for each in expected))
    layer = (count - 2 * 100 * 64) / 2
    gathered = 2 * min(2 * layer, 3 * count / 4) + 4 * layer
    assert memory.buffers == MANY_RANKS_BYTES + gathered
    offloaded = training_memory(small, Recipe(layout, zero=1, offload=True), task)
    assert offloaded.optimizer == 0
    kept = 12 * count / 4
    some = Recipe(layout, zero=1, offload=True, host_gib=1000 / GIB)
    assert training_memory(small, some, task).optimizer == pytest.approx(kept - 1000)
    assert offloaded_gib(small, some) == pytest.approx(1000 / GIB)
    assert offloaded_gib(small, replace(some, host_gib=1.0)) == pytest.approx(kept / GIB)
    assert offloaded_gib(small, Recipe(layout, zero=1)) == 0


def test_experts_are_split_over_their_own_ranks(sparse):
    layout = TrainingLayout(tp=2, dp=4, ep=4)
    own = stage_parameters(sparse, layout, 0)
    assert own.experts == sparse.expert_parameters  # one of four
    memory = training_memory(sparse, Recipe(layout, zero=1), TrainingTask(8, 16))
    assert memory.optimizer == 12 * (own.dense / 4 + own.experts / 2)


def test_parameters_of_stages(small):
    layers = small.parameters() - 2 * 64 * 100
    layout = TrainingLayout(pp=2)
    first, last = (stage_parameters(small, layout, stage) for stage in (0, 1))
    assert first.dense == last.dense == layers / 2 + 64 * 100
    tied = replace(small, tied_embeddings=True)
    assert stage_parameters(tied, layout, 1).tables == 6400
    assert stage_parameters(tied, TrainingLayout(), 0).tables == 6400


def test_micro_batches_in_flight():
    plain = TrainingLayout(pp=4)
    chunked = TrainingLayout(pp=4, chunks=2)
    assert [micro_batches_in_flight(plain, stage, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert micro_batches_in_flight(plain, 0, 2) == 2
    assert micro_batches_in_flight(chunked, 0, 8) == 4 + 3 / 2
    assert micro_batches_in_flight(chunked, 3, 8) == 5 / 2
    filled = replace(plain, zero_bubble=2)
    assert [micro_batches_in_flight(filled, stage, n) for stage, n in ((0, 8), (3, 6))] == [8, 6]


MODELS = ("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B")
RECIPES: list[tuple[ModelDescription, Recipe]] = [
    (describe_model(name), recipe)
    for name in MODELS
    for recipe in possible_recipes(
        describe_model(name), TrainingTask(64, 4096), find_system("h100_sxm"), 16
    )[::7]
]


@given(st.sampled_from(RECIPES), st.sampled_from(["bf16", "fp8"]))
def test_more_is_split_or_recomputed_in_less_memory(case, precision):
    model, recipe = case
    task = TrainingTask(64, 4096, precision)
    stages = [replace(recipe, zero=stage) for stage in range(4)]
    totals = [training_memory(model, r, task).total for r in stages]
    assert totals == pytest.approx(sorted(totals, reverse=True))
    kinds = [replace(recipe, recompute=kind) for kind in ("none", "selective", "full")]
    kept = [stored_activations(model, r, task) for r in kinds]
    assert kept == sorted(kept, reverse=True)
    offloaded = training_memory(model, replace(recipe, offload=True), task)
    assert offloaded.total <= training_memory(model, recipe, task).total


@given(st.sampled_from(RECIPES), st.integers(1, 8))
def test_larger_micro_batches_need_more(case, more):
    model, recipe = case
    task = TrainingTask(64 * 1024, 4096)
    larger = replace(recipe, micro_batch=recipe.micro_batch + more)
    assert (
        training_memory(model, larger, task).activations
        >= training_memory(model, recipe, task).activations
    )


@given(st.sampled_from(RECIPES))
def test_ranks_hold_the_model_between_them(case):
    model, recipe = case
    layout = recipe.layout
    held = sum(
        layout.tp * stage_parameters(model, layout, stage).dense for stage in range(layout.pp)
    )
    experts = sum(
        layout.ep * stage_parameters(model, layout, stage).experts for stage in range(layout.pp)
    )
    assert held + experts >= model.parameters() * 0.999


def test_memory_fullest_stage_may_be_in_the_middle():
    """61 layers on 32 stages: the last and the first two have one, the others two."""
    model = describe_model("deepseek-ai/DeepSeek-V3")
    task = TrainingTask(2048, 4096)
    layout = TrainingLayout(tp=2, pp=32, dp=8, ep=2)
    layers = stage_layers(model, layout)
    assert layers == [1, 1, *[2] * 29, 1]
    assert fullest_stage(model, layout) == 2
    stages = [_stage_memory(model, Recipe(layout), task, i).total for i in range(32)]
    assert training_memory(model, Recipe(layout), task).total == max(stages)
