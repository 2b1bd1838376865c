"""Operators of a step, against the model's own numbers and those computed by hand."""

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets.importers.aiconfigurator import read
from foretune.datasets.importers.files import Request
from foretune.device import find_device
from foretune.features.families.gemm import Gemm
from foretune.features.families.moe import Moe
from foretune.plan import Formats, Layout, describe_model
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.memory import request_bytes
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import operator_table
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.description import CompressedAttention, Heads, Indexer, LinearAttention
from foretune.plan.describe.layout import legal_layouts
from foretune.plan.describe.model_catalog import _shipped


def named(operators, name):
    found = [o for o in operators if o.name == name]
    assert len(found) == 1, [o.name for o in operators]
    return found[0]


def test_decoding_by_hand(small):
    found = mixed_operators(small, Layout(2), Formats("fp8", kv="fp8"), [Part(5, 1, 30, "decode")])
    qkv = named(found, "qkv")
    # Two of four heads and one of two key heads, 16 wide each.
    assert qkv.problem == {"M": 5, "N": 2 * 16 + 2 * 16, "K": 64}
    assert (qkv.kernel, qkv.count, qkv.phase) == ("gemm", 2, "decode")
    assert qkv.config == {"format": "fp8"}
    attention = named(found, "attention")
    assert attention.kernel == "attention_decode"
    assert attention.problem == {
        "batch": 5,
        "kv_len": 31,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 16,
        "window": 0,
    }
    assert attention.config == {"format": "bf16", "kv_format": "fp8"}
    assert named(found, "attention_out").problem == {"M": 5, "N": 64, "K": 32}
    assert named(found, "mlp_up").problem == {"M": 5, "N": 128, "K": 64}
    assert named(found, "mlp_down").problem == {"M": 5, "N": 64, "K": 64}
    assert named(found, "head").problem == {"M": 5, "N": 50, "K": 64}
    assert named(found, "head").config == {"format": "bf16"}
    sums = named(found, "sum")
    assert (sums.kernel, sums.count) == ("all_reduce", 4)
    assert sums.problem == {"message_bytes": 5 * 64 * 2, "devices": 2}
    assert named(found, "rms_norm").count == 5


def test_reading_prompts_by_hand(small):
    windowed = replace(small, sliding_window=8, windowed_layers=1)
    found = mixed_operators(windowed, Layout(), Formats(), [Part(3, 20, 12, "prefill")])
    seen = [o for o in found if o.kernel == "attention_prefill"]
    assert [(o.count, o.problem["window"]) for o in seen] == [(1, 0), (1, 8)]
    shape = {"batch": 3, "seq_len": 20, "prefix_len": 12, "heads": 4, "kv_heads": 2, "head_dim": 16}
    assert shape.items() <= dict(seen[0].problem).items()
    assert named(found, "qkv").problem["M"] == 60
    assert named(found, "head").problem["M"] == 3  # only last tokens
    assert not [o for o in found if o.kernel == "all_reduce"]


def test_experts_by_hand(sparse):
    formats = Formats("fp8", moe="nvfp4")
    found = mixed_operators(
        sparse, Layout(4, moe_tp=2, moe_ep=2), formats, [Part(6, 1, 9, "decode")]
    )
    experts = named(found, "experts")
    assert experts.problem == {
        "tokens": 6,
        "hidden": 64,
        "intermediate": 32,
        "top_k": 2,
        "experts": 4,
        "distribution": "power_law_1.2",
    }
    assert experts.config == {"format": "nvfp4", "tp": 2, "ep": 2, "experts": "gated"}
    assert experts.count == 1
    assert named(found, "shared_up").problem == {"M": 6, "N": 16, "K": 64}
    assert named(found, "sum").count == 2 + 1 + 1  # attention, the dense MLP, the experts
    gathered = Layout(2, dp=2, moe_tp=2, moe_ep=2)
    found = mixed_operators(sparse, gathered, formats, [Part(6, 1, 9, "decode")])
    assert named(found, "experts").problem["tokens"] == 12
    assert named(found, "dispatch").kernel == "all_gather"
    # On the way to the experts in their four bits and scales, back in sixteen.
    narrow = 0.5 + 1 / 16
    assert named(found, "dispatch").problem == {"message_bytes": 12 * 64 * narrow, "devices": 4}
    assert named(found, "combine").kernel == "reduce_scatter"
    assert named(found, "sum").count == 3


def test_operators_few_experts_per_token_use_all_to_all(sparse):
    found = mixed_operators(sparse, Layout(dp=4, moe_ep=4), Formats(), [Part(6, 1, 9, "decode")])
    assert named(found, "dispatch").kernel == named(found, "combine").kernel == "all_to_all"
    assert named(found, "dispatch").problem == {"message_bytes": 2 * 6 * 64 * 2, "devices": 4}


def test_plain_experts_in_a_narrower_space(sparse):
    narrow = replace(sparse, expert_hidden=16, expert_matrices=2)
    gone = 3 * 64 * 32 * 4 - 2 * 16 * 32 * 4 + 64 * 32  # routed ones, and a matrix of the shared
    assert narrow.parameters() == sparse.parameters() - gone + 2 * 64 * 16
    found = mixed_operators(narrow, Layout(dp=4, moe_ep=4), Formats(), [Part(6, 1, 9, "decode")])
    assert named(found, "experts").problem["hidden"] == 16
    assert named(found, "experts").config["experts"] == "plain"
    assert named(found, "experts_in").problem == {"M": 6, "N": 16, "K": 64}
    assert named(found, "experts_out").problem == {"M": 6, "N": 64, "K": 16}
    assert named(found, "dispatch").problem["message_bytes"] == 2 * 6 * 16 * 2
    gated = replace(narrow, expert_matrices=3)
    both = [
        named(mixed_operators(m, Layout(), Formats(), [Part(6, 1, 9, "decode")]), "experts")
        for m in (gated, narrow)
    ]
    clock = OperatorTimer(find_device("NVIDIA H100 80GB HBM3"), None, "")
    full, less = clock.times(operator_table(both)).bound_ms
    assert less == pytest.approx(full * 2 / 3)


def test_operators_long_prompt_sees_selected_keys():
    llama = replace(
        describe_model("meta-llama/Llama-3.1-8B"), index=Indexer(4, 128, 2048, block=64)
    )
    for model in (describe_model("deepseek-ai/DeepSeek-V3.2"), llama):
        for new in (16, 256, 8192):
            found = mixed_operators(model, Layout(), Formats(), [Part(1, new, 16_000, "prefill")])
            seen = named(found, "attention").problem
            keys = seen["prefix_len"] + seen["seq_len"] / 2
            assert seen["batch"] * seen["seq_len"] * keys == new * 2048


def test_heads_that_differ_between_layers(small):
    mixed = replace(
        small, value_dim=8, sliding_window=4, windowed_layers=1, windowed=Heads(8, 4, 8, 8, True)
    )
    found = mixed_operators(mixed, Layout(), Formats(), [Part(3, 1, 9, "decode")])
    qkv = [o.problem["N"] for o in found if o.name == "qkv"]
    assert qkv == [4 * 16 + 2 * (16 + 8), 8 * 8 + 4 * 8]
    seen = [o.problem for o in found if o.name == "attention"]
    assert [(p["heads"], p["kv_heads"], p["head_dim"], p["window"]) for p in seen] == [
        (4, 2, 12, 0),
        (8, 4, 8, 4),
    ]
    assert [o.problem["K"] for o in found if o.name == "attention_out"] == [4 * 8, 8 * 8]


def test_layers_of_one_part_each(small):
    state = LinearAttention(1, 2, 8, 4, 8, 4, "mamba2")
    mixed = replace(small, layers=3, linear=state, without_attention=1, without_mlp=2)
    assert (mixed.softmax_layers, mixed.mlp_layers, mixed.norms) == (1, 1, 4)
    found = mixed_operators(mixed, Layout(2), Formats(), [Part(3, 1, 9, "decode")])
    assert named(found, "sum").count == 3
    # Of four heads: values twice, keys and queries of two groups, and a decay of each head.
    assert named(found, "linear_in").problem["N"] == (2 * 32 + 2 * 16 + 4) / 2
    update = named(found, "recurrence")
    assert (update.kernel, update.count, update.problem["num_v_heads"]) == ("mamba2", 1, 2)
    by_hand = 2 * (4 * 16 * 8) * 3 + 2 * 2 * 3 * (2 * 8 + 16)  # states of 32 bits, rows of 16
    assert family_of("mamba2").cost(update.problem, {}).bytes_moved == by_hand


def test_gates_per_channel_are_compressed(small):
    delta = LinearAttention(2, 4, 16, 4, 16, 4, "kda", gate_rank=16)
    found = mixed_operators(
        replace(small, linear=delta), Layout(2), Formats(), [Part(3, 1, 9, "decode")]
    )
    assert named(found, "linear_in").problem["N"] == (4 * 64 + 4) / 2 + 16
    assert named(found, "linear_gate").problem == {"M": 3, "N": 32, "K": 16}


def test_blocks_are_chosen_in_some_layers(small):
    sparse = replace(small, index=Indexer(2, 8, top_k=4, layers=1, block=2))
    found = mixed_operators(sparse, Layout(), Formats(), [Part(3, 1, 9, "decode")])
    seen = [(o.count, o.problem["kv_len"]) for o in found if o.name == "attention"]
    assert seen == [(1, 10), (1, 4)]
    assert named(found, "index_query").count == 1
    assert named(found, "index_key").problem["N"] == 8
    read = mixed_operators(sparse, Layout(), Formats(), [Part(4, 64, 0, "prefill")])
    some = [o.problem for o in read if o.name == "attention"]
    assert [(p["batch"], p["seq_len"]) for p in some] == [(4, 64), (4 * 64 // 8, 8)]


def test_compressed_keys(small):
    """A window of 4 keys; beyond, one layer of 8 tokens per key, one of 4 whose keys are chosen."""
    shape = CompressedAttention(32, 2, 16, 4, ((4, 1), (8, 1)), residual_streams=4, rotary_dim=6)
    model = replace(small, kv_heads=1, compressed=shape, index=Indexer(2, 8, 3, 1))
    found = mixed_operators(model, Layout(2), Formats(), [Part(5, 1, 63, "decode")])
    seen = [(o.kernel, o.problem["kv_len"]) for o in found if o.name == "attention"]
    assert seen == [("mla_decode", 4 + 3), ("mla_decode", 4 + 8)]
    assert named(found, "index_scores").problem["kv_len"] == 16
    assert named(found, "out_groups").problem == {"M": 5, "N": 16, "K": 2 * 16}
    widths = [o.problem["N"] for o in found if o.name == "compress"]
    assert widths == [2 * 2 * 16 + 2 * 2 * 8 + 2, 2 * 16]
    assert named(found, "mix").problem["columns"] == 4 * 64
    gemms = [o for o in found if o.kernel == "gemm" and "mlp" not in o.name and o.name != "head"]
    whole = {"latent", "compress", "index_query"}
    weights = sum(
        o.count * o.problem["N"] * o.problem["K"] * (1 if o.name in whole else 2) for o in gemms
    )
    told = model.weights()
    assert weights == told.attention + told.replicated
    key = 10 + 2 * 6 + 1 + 1  # in 8 bits, in 16 bits, a scale, padding
    each = (4 + 64 / 4) * key + 64 / 4 * (8 + 8 * 4 / 128) + 2 * 4 * 2 * 4 * (16 + 8)
    each += (4 + 64 / 8) * key + 2 * 8 * 4 * 16
    assert request_bytes(model, Layout(2), Formats(), 64) == each
    read = mixed_operators(model, Layout(), Formats(), [Part(4, 256, 0, "prefill")])
    sizes = [(o.problem["batch"], o.problem["seq_len"]) for o in read if o.name == "attention"]
    assert sizes == [(round(4 * 256 / 14), 14), (round(4 * 256 / 40), 40)]


def test_operators_stages_exchange_full_width_beside_narrow_experts(sparse):
    narrow = replace(sparse, expert_hidden=16)
    layout = Layout(pp=2, dp=4, moe_ep=4)
    operators = mixed_operators(narrow, layout, Formats(), [Part(6, 1, 9, "decode")])
    assert named(operators, "stage").problem == {"message_bytes": 6 * 64 * 2, "devices": 2}


def test_stages_send_on_what_they_computed(small):
    found = mixed_operators(small, Layout(pp=2), Formats(), [Part(6, 1, 9, "decode")])
    stage = named(found, "stage")
    assert (stage.kernel, stage.count) == ("send_recv", 1)
    assert stage.problem == {"message_bytes": 6 * 64 * 2, "devices": 2}


def test_operators_of_mixed_step(small):
    parts = [Part(1, 32, 0, "prefill"), Part(7, 1, 100, "decode")]
    found = mixed_operators(small, Layout(), Formats(), parts)
    assert named(found, "qkv").problem["M"] == 39
    assert named(found, "qkv").phase == "mixed"
    assert named(found, "head").problem["M"] == 8
    assert [o.kernel for o in found if o.name == "attention"] == [
        "attention_prefill",
        "attention_decode",
    ]
    assert mixed_operators(small, Layout(), Formats(), [Part(0, 1, 9, "decode")]) == []


def test_several_tokens_per_decode_step_read_the_cache_once(small):
    one = named(
        mixed_operators(small, Layout(), Formats(), [Part(4, 1, 30, "decode")]), "attention"
    )
    two = named(
        mixed_operators(small, Layout(), Formats(), [Part(4, 2, 29, "decode")]), "attention"
    )
    assert two.problem == {**one.problem, "heads": 8}


def test_sparse_attention_sees_the_chosen_keys():
    model = describe_model("zai-org/GLM-5")
    assert model.index == Indexer(32, 128, 2048)
    found = mixed_operators(
        model, Layout(8, moe_ep=8), Formats("fp8_block"), [Part(4, 1, 9999, "decode")]
    )
    assert named(found, "attention").problem["kv_len"] == 2048
    scores = named(found, "index_scores")
    assert scores.problem == {
        "batch": 4,
        "kv_len": 10_000,
        "heads": 32,
        "kv_heads": 1,
        "head_dim": 128,
        "window": 0,
    }
    assert scores.count == 78 / 2
    short = mixed_operators(model, Layout(8, moe_ep=8), Formats(), [Part(2, 1024, 0, "prefill")])
    assert named(short, "attention").problem["seq_len"] == 1024
    part = Part(2, 16384, 0, "prefill")
    found = mixed_operators(model, Layout(8, moe_ep=8), Formats(), [part])
    long = named(found, "attention").problem
    assert long["batch"] * long["seq_len"] == 2 * 16384
    assert long["seq_len"] / 2 == 2048  # keys that a query sees on average


@pytest.mark.parametrize("name", sorted(_shipped()))
def test_operators_token_passes_every_active_weight_once(name):
    model = describe_model(name)
    tokens = 1024  # enough for every expert to get some
    work = 0.0
    for o in mixed_operators(model, Layout(), Formats(), [Part(tokens, 1, 100, "decode")]):
        if o.kernel == "gemm":
            work += o.count * float(Gemm().cost(o.problem, o.config).flops) / 2
        elif o.kernel == "moe":
            balanced = {**o.problem, "distribution": "balanced"}
            work += o.count * float(Moe().cost(balanced, o.config).flops) / 2
        elif o.kernel == "mla_bmm":
            assert model.mla
            width = {"mla_gen_pre": model.mla.qk_nope, "mla_gen_post": model.mla.v_head}
            inner = width[o.problem["op"]] * model.mla.kv_lora_rank
            work += o.count * o.problem["tokens"] * o.problem["heads"] * inner
    unmultiplied = model.weights().norms
    assert work / tokens == model.active_parameters() - unmultiplied


@given(
    st.sampled_from(
        [
            "meta-llama/Meta-Llama-3.1-8B",
            "deepseek-ai/DeepSeek-V3",
            "Qwen/Qwen3.5-397B-A17B",
            "openai/gpt-oss-120b",
        ]
    ),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(1, 300),
    st.integers(0, 4096),
)
def test_operators_are_possible_runs(name, gpus, batch, context):
    model = describe_model(name)
    for layout in legal_layouts(model, gpus):
        for phase, new in (("prefill", 16), ("decode", 1)):
            for o in mixed_operators(
                model, layout, Formats("fp8"), [Part(batch, new, context, phase)]
            ):
                assert o.count > 0
                sizes = [v for k, v in o.problem.items() if k not in ("prefix_len", "window")]
                assert all(isinstance(v, str) or v > 0 for v in sizes), o


CHOSEN_BY_ENGINES = {
    "config.backend",
    "config.implementation",
    "config.experts",
    "problem.model",
    "problem.d_model",
}


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("table", "kernel"),
    [
        ("gemm", "gemm"),
        ("context_attention", "attention_prefill"),
        ("generation_attention", "attention_decode"),
        ("moe", "moe"),
        ("context_mla", "mla_prefill"),
        ("generation_mla", "mla_decode"),
        ("custom_allreduce", "all_reduce"),
        ("nccl", "all_gather"),
        ("nccl", "reduce_scatter"),
        ("nccl", "all_to_all"),
        ("mla_bmm", "mla_bmm"),
        ("gdn", "gdn"),
    ],
)
def test_columns_are_those_of_measured_tables(shared_data, tmp_path, table, kernel):
    few = pd.read_parquet(shared_data / "llm" / f"{table}.parquet").groupby("kernel_source").head(9)
    if table == "nccl":
        few = few.groupby("op_name").head(9)
    few.to_parquet(tmp_path / f"{table}.parquet")
    rows = read(tmp_path / f"{table}.parquet", Request(kernel=kernel))
    measured = {c for c in rows if c.startswith(("problem.", "config."))} - CHOSEN_BY_ENGINES
    if kernel in ("mla_bmm", "gdn"):  # this copy of the first's table has lost which product it was
        measured.add("problem.op")  # of the second, it is read from the implementation
    asked = set()
    for name in ("Qwen/Qwen3.5-397B-A17B", "deepseek-ai/DeepSeek-V3"):
        for layout in (Layout(8, moe_ep=8), Layout(4, dp=2, moe_tp=8), Layout(dp=16, moe_ep=16)):
            for phase, new in (("prefill", 64), ("decode", 1)):
                found = mixed_operators(
                    describe_model(name), layout, Formats("fp8"), [Part(4, new, 0, phase)]
                )
                for o in (o for o in found if o.kernel == kernel):
                    asked |= {f"problem.{c}" for c in o.problem}
                    asked |= {f"config.{c}" for c in o.config}
    assert asked - CHOSEN_BY_ENGINES == measured
