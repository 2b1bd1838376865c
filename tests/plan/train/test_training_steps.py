"""Steps of training by rooflines alone: operators, exchanges, bubbles, and what never happens."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.plan import describe_model, find_system
from foretune.plan.cost.memory import GIB
from foretune.plan.cost.network import HOP_MS
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import OperatorTables, default_folders
from foretune.plan.train.exchanges import (
    Exchange,
    layer_exchanges,
    replica_exchanges,
    stage_exchange,
)
from foretune.plan.train.recipe import (
    Recipe,
    TrainingLayout,
    TrainingTask,
    possible_recipes,
    stage_layers,
)
from foretune.plan.train.step import (
    Calibration,
    _optimizer_ms,
    hardware_flops,
    model_flops,
    pipeline_idle_ms,
    predict_steps,
)
from foretune.plan.train.training_memory import StageParameters
from foretune.plan.train.training_operators import micro_batch_operators
from foretune.plan.train.training_planner import BACKEND

H100 = find_system("h100_sxm")
CLOCKS = StepTimerFactory(None)


def steps(model, recipes, task, system=H100, calibration=None):
    clock = (CLOCKS if system is H100 else StepTimerFactory(None))(system, "")
    return predict_steps(model, system, recipes, task, clock, calibration)


def test_step_bubble_of_equal_stages():
    assert pipeline_idle_ms([2.0] * 4, 8) == 2.0 * 3
    assert pipeline_idle_ms([2.0] * 4, 8, chunks=3) / 16.0 == pytest.approx(3 / 24)
    assert pipeline_idle_ms([5.0], 7) == 0


def test_weights_gradients_fill_the_bubble():
    """Qi et al., table 2: passes of 1, 1.5 and 0.5 wait (p - 1)(f + b - w), less w with 2x."""
    whole = pipeline_idle_ms([3.0] * 4, 8)
    once, twice = (pipeline_idle_ms([3.0] * 4, 8, filling=n * 0.5) for n in (2, 3))
    assert (whole, once, twice) == (9.0, 3 * (1 + 1.5 - 0.5), 3 * (1 + 1.5 - 2 * 0.5))
    assert pipeline_idle_ms([3.0] * 4, 8, filling=5.0) == 0


def test_zero_bubble_is_faster_and_nothing_else():
    model = describe_model("meta-llama/Meta-Llama-3.1-70B")
    task = TrainingTask(32, 4096)
    layouts = [TrainingLayout(tp=8, pp=8, zero_bubble=n) for n in (0, 1, 2)]
    table = steps(model, [Recipe(layout) for layout in layouts], task)
    assert list(table["bubble_ms"].rank()) == [3, 2, 1]
    assert table["compute_ms"].nunique() == table["communication_ms"].nunique() == 1


def test_stages_with_tables_have_fewer_layers():
    """22 layers on 8 stages: the ends, which have the tables, have two layers, the others three."""
    model = replace(describe_model("Qwen/Qwen3-8B"), layers=22)
    layout = TrainingLayout(pp=8)
    assert stage_layers(model, layout) == [2, *[3] * 6, 2]
    assert stage_layers(replace(model, layers=20), TrainingLayout(pp=4, chunks=3)) == [5] * 4
    uneven = steps(model, [Recipe(layout)], TrainingTask(64, 1024))
    even = steps(replace(model, layers=24), [Recipe(layout)], TrainingTask(64, 1024))
    assert uneven["bubble"][0] < even["bubble"][0]


def test_experts_are_looked_up_within_the_tables():
    model = describe_model("Qwen/Qwen3-235B-A22B")
    recipe = Recipe(TrainingLayout(dp=64, ep=32), micro_batch=4)
    forward = micro_batch_operators(model, recipe, TrainingTask(256, 4096)).forward
    (op,) = [op for op in forward if op.kernel == "moe"]
    assert op.problem["tokens"] == 16384
    assert op.problem["experts"] >= 2 * op.problem["top_k"]
    # A rank has the same tokens and experts as if all exchanged theirs.
    assert op.count / model.moe_layers * 16384 / op.config["ep"] == 4 * 4096
    assert op.problem["experts"] / op.config["ep"] == model.experts / 32


def test_step_slow_stage_sets_pace():
    assert pipeline_idle_ms([2.0, 3.0], 10) == 10 * 3.0 + 2.0 - 10 * 2.5


def test_operations_as_published(gpt_175b):
    """Narayanan et al., equation 2, divided by 4/3: nothing is computed again."""
    task = TrainingTask(8, 2048)
    h = 12288
    layers = 96
    s = 2048
    vocab = 51200
    again = 96 * 8 * s * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
    head = 6 * 8 * s * h * vocab
    norms = 6 * 8 * s * (2 * layers + 1) * h  # counted as weights, and next to nothing
    assert model_flops(gpt_175b, task) == pytest.approx((again - head) * 3 / 4 + head + norms)
    full = hardware_flops(gpt_175b, task, "full")
    assert full == pytest.approx(again, rel=1e-4)
    unfused = replace(task, attention="unfused")
    assert hardware_flops(gpt_175b, unfused, "selective") - model_flops(
        gpt_175b, unfused
    ) == pytest.approx(4 * 8 * s * s * layers * h)
    assert hardware_flops(gpt_175b, task, "selective") == model_flops(gpt_175b, task)


def test_products_of_both_passes(small):
    found = micro_batch_operators(small, Recipe(TrainingLayout(tp=2), 3), TrainingTask(3, 10))
    shapes = {op.name: op.problem for op in found.forward}
    assert shapes["mlp_up"] == {"M": 30, "N": 128, "K": 64}
    assert shapes["norm"]["rows"] == 15  # sequence-parallel
    back = {op.name: op for op in found.backward}
    assert back["mlp_up_input"].problem == {"M": 30, "N": 64, "K": 128}
    assert back["mlp_up_weight"].problem == {"M": 128, "N": 64, "K": 30}
    assert back["mlp_up_input"].count == 2
    assert back["attention"].count == 2.5 * 2
    work = [
        sum(
            2 * o.problem["M"] * o.problem["N"] * o.problem["K"] * o.count
            for o in items
            if o.kernel == "gemm"
        )
        for items in (found.forward, found.backward)
    ]
    assert work[1] == 2 * work[0]
    assert {op.name for op in found.recomputed} == {"norm", "activation"}


def test_unfused_attention_computes_all_scores(gpt_22b):
    task = TrainingTask(4, 2048, attention="unfused")
    found = micro_batch_operators(gpt_22b, Recipe(TrainingLayout(tp=8), 4), task)
    names = {op.name: op for op in found.forward}
    assert names["scores"].problem == {"M": 4 * 8 * 2048, "N": 2048, "K": 96}
    assert names["weighted"].problem == {"M": 4 * 8 * 2048, "N": 96, "K": 2048}
    assert {op.name for op in found.recomputed} == {"scores", "softmax", "weighted"}
    assert "attention" not in names


def test_pieces_of_sequences_share_the_scores():
    model = describe_model("Qwen/Qwen3-8B")
    task = TrainingTask(1, 16384)
    whole, piece = (
        {op.name: op for op in micro_batch_operators(model, recipe, task).forward}
        for recipe in (Recipe(), Recipe(TrainingLayout(cp=4)))
    )
    assert piece["attention"].problem == whole["attention"].problem
    assert piece["attention"].count == whole["attention"].count / 4
    assert piece["qkv"].problem["M"] == whole["qkv"].problem["M"] / 4


def test_casts_come_with_eight_bits(small):
    narrow = micro_batch_operators(small, Recipe(), TrainingTask(1, 16, "fp8"))
    casts = [op for op in narrow.forward if op.name == "cast"]
    products = [o for o in narrow.forward if o.config.get("format") == "fp8"]
    assert len(casts) == len(products) == 4
    wide = micro_batch_operators(small, Recipe(), TrainingTask(1, 16))
    assert not [op for op in wide.forward if op.name == "cast"]


def test_exchanges_by_hand(small, sparse):
    task = TrainingTask(8, 16)
    size = 2 * 16 * 64
    tensor = layer_exchanges(small, Recipe(TrainingLayout(tp=2, dp=2)), task)
    assert tensor.tensor_forward == (
        Exchange("all_gather", 4, size, 2, 1),
        Exchange("reduce_scatter", 4, size, 2, 1),
    )
    assert len(tensor.tensor_backward) == 3
    plain = layer_exchanges(small, Recipe(TrainingLayout(tp=2), sequence_parallel=False), task)
    assert plain.tensor_backward == (Exchange("all_reduce", 4, size, 2, 1),)
    experts = layer_exchanges(sparse, Recipe(TrainingLayout(dp=4, ep=4)), task)
    assert experts.experts == (Exchange("all_to_all", 4, 2 * size, 4, 1),)
    assert experts.tensor_forward == ()
    stage = stage_exchange(small, Recipe(TrainingLayout(tp=2, pp=2, dp=2)), task)
    assert stage == Exchange("send_recv", 2, size / 2, 2, 4)
    assert stage_exchange(small, Recipe(), task) is None


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        (0, [("all_reduce", 5, 4 * 20.0)]),
        (1, [("reduce_scatter", 5, 4 * 20.0), ("all_gather", 5, 2 * 20.0)]),
        (2, [("reduce_scatter", 10, 4 * 20.0), ("all_gather", 5, 2 * 20.0)]),
        (3, [("reduce_scatter", 10, 4 * 20.0), ("all_gather", 20, 2 * 20.0)]),
    ],
)
def test_exchanges_of_replicas(zero, expected):
    recipe = Recipe(TrainingLayout(tp=2, dp=4), zero=zero)
    own = StageParameters(dense=100.0, experts=0.0, tables=0.0)
    found = list(replica_exchanges(recipe, TrainingTask(8, 16), own, 5))
    assert [(e.kernel, e.count, e.bytes) for e in found] == expected
    assert all((e.ranks, e.stride) == (4, 2) for e in found)


def test_links_between_nodes():
    ring = Exchange("all_gather", 3, 1e9, 16, 1)
    assert not ring.fits_fast_domain(H100)
    # Eight ranks per node, 50 GB/s each: 400 GB/s into every node.
    assert ring.network_ms(H100) == pytest.approx(3 * (HOP_MS + 15 / 16 * 1e9 / 400e6))
    alone = Exchange("reduce_scatter", 1, 1e9, 4, 8)
    assert alone.network_ms(H100) == pytest.approx(3 * HOP_MS + 3 / 4 * 1e9 / 50e6)
    spread = Exchange("all_to_all", 1, 1e9, 32, 1)
    assert spread.network_ms(H100) == pytest.approx(HOP_MS + 24 / 32 * 1e9 / 50e6)
    tree = Exchange("all_reduce", 1, 0.0, 64, 8)
    assert tree.network_ms(H100) == pytest.approx(2 * 6 * HOP_MS)


def test_step_is_sum_of_its_parts(small):
    model = replace(small, layers=8)
    recipes = [
        Recipe(TrainingLayout(pp=2, dp=2), recompute="full"),
        Recipe(TrainingLayout(pp=2, dp=2)),
    ]
    table = steps(model, recipes, TrainingTask(16, 512))
    parts = [c for c in table.columns if c.endswith("_ms") and c != "step_ms"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx(table["step_ms"].tolist())
    assert (table[parts] >= -1e-9).all(axis=None)
    assert table["recompute_ms"][0] > 0 == table["recompute_ms"][1]
    assert table["mfu"][1] > table["mfu"][0]
    assert table["hfu"][0] > table["mfu"][0]
    assert table["hfu"][1] == table["mfu"][1]
    assert table["tokens_per_s_per_gpu"].tolist() == pytest.approx(
        (16 * 512 / (table["step_ms"] / 1e3) / 4).tolist()
    )


def test_stages_do_not_depend_on_what_is_asked_with_them():
    model = describe_model("Qwen/Qwen3-30B-A3B")
    task = TrainingTask(64, 4096)
    recipes = possible_recipes(model, task, H100, 16)[::97]
    together = steps(model, recipes, task)["step_ms"].tolist()
    alone = [float(steps(model, [recipe], task)["step_ms"][0]) for recipe in recipes[:3]]
    assert together[:3] == pytest.approx(alone)


def test_offload_waits_for_the_host(small):
    layout = TrainingLayout(dp=2)
    here, there = steps(
        small, [Recipe(layout, zero=1), Recipe(layout, zero=1, offload=True)], TrainingTask(8, 64)
    )["optimizer_ms"]
    assert there > here > 0


def test_step_host_updates_its_optimizer_state():
    """Adam's 34 bytes at 51.2 GB/s, weights back meanwhile; gradients hide behind a long pass."""
    own = 3e9
    system = H100
    recipe = Recipe(offload=True)
    update = 3e9 * 34 / (0.8 * 51.2e6)
    assert _optimizer_ms(system, recipe, own, 1e6) == pytest.approx(update)
    sent = 0.01 + 4 * 3e9 / (0.87 * 64e6)
    assert _optimizer_ms(system, recipe, own, 100.0) == pytest.approx(update + sent - 100.0)
    slow = replace(system, host_gbps=1.0)
    back = 0.01 + 2 * 3e9 / 0.87e6
    assert _optimizer_ms(slow, recipe, own, 1e6) == pytest.approx(back)
    # A third of the states, 12 of 36 GB, there; the GPU's own bandwidth updates the rest.
    some = replace(recipe, host_gib=12e9 / GIB)
    here = 2e9 * 34 / (0.8 * system.device.specs["memory_gbps"] * 1e6)
    assert _optimizer_ms(system, some, own, 1e6) == pytest.approx(update / 3 + here)


def test_more_in_the_host_is_never_faster():
    own = 4e9
    recipes = [Recipe(), *(Recipe(offload=True, host_gib=gib) for gib in (0, 1, 10, 44, 45, inf))]
    times = [_optimizer_ms(H100, recipe, own, 50.0) for recipe in recipes]
    assert times == sorted(times)
    assert times[0] == times[1]


def test_overlap_hides_tensor_parallel_exchanges():
    model = describe_model("Qwen/Qwen3-32B")
    recipe = [Recipe(TrainingLayout(tp=8, dp=2), zero=1)]
    apart, beside = (
        float(steps(model, recipe, TrainingTask(16, 4096, overlap=o))["communication_ms"][0])
        for o in (False, True)
    )
    assert 0 < beside < apart


CASES = [
    (describe_model(name), recipe)
    for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B")
    for recipe in possible_recipes(describe_model(name), TrainingTask(64, 8192), H100, 32)[::211]
]


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(CASES), st.floats(1, 8), st.floats(1, 8), st.floats(1, 8))
def test_more_bandwidth_is_never_slower(case, inside, between, memory):
    model, recipe = case
    specs = {**H100.device.specs, "memory_gbps": memory * H100.device.specs["memory_gbps"]}
    faster = replace(
        H100,
        device=replace(H100.device, specs=specs),
        intra_node_gbps=inside * H100.intra_node_gbps,
        inter_node_gbps=between * H100.inter_node_gbps,
    )
    slow, fast = (
        float(steps(model, [recipe], TrainingTask(64, 8192), system)["step_ms"][0])
        for system in (H100, faster)
    )
    assert fast <= slow * (1 + 1e-9)


@settings(max_examples=6, deadline=None)
@given(st.sampled_from(CASES), st.floats(1, 2), st.floats(0, 1))
def test_step_calibration_slows_it_down(case, slower, exposed):
    model, recipe = case
    task = TrainingTask(64, 8192)
    best, other = (
        float(steps(model, [recipe], task, calibration=c)["step_ms"][0])
        for c in (Calibration(1.0, 0.0), Calibration(slower, exposed))
    )
    assert best <= other * (1 + 1e-9)


@pytest.mark.shared_data
@pytest.mark.skipif(not default_folders(), reason="no measured operators")
def test_published_steps(gpt_22b, gpt_175b):
    """Korthikanti et al. (arXiv:2205.05198), table 5: seconds per step on A100s."""
    system = find_system("a100_sxm")
    clock = StepTimerFactory(OperatorTables(default_folders()[0]))(system, BACKEND)
    for model, layout, micro_batch, batch, full, selective in (
        (gpt_22b, TrainingLayout(tp=8), 4, 4, 1.42, 1.10),
        (gpt_175b, TrainingLayout(tp=8, pp=8, chunks=3), 1, 64, 18.13, 13.75),
    ):
        recipes = [
            Recipe(layout, micro_batch, recompute="full", sequence_parallel=False),
            Recipe(layout, micro_batch, recompute="selective"),
        ]
        task = TrainingTask(batch, 2048, attention="unfused")
        found = predict_steps(model, system, recipes, task, clock)["step_ms"] / 1e3
        assert found.tolist() == pytest.approx([full, selective], rel=0.15)
