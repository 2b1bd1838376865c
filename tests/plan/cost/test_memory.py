"""Memory per rank, against values computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import ProblemError
from foretune.plan import Formats, Layout, Workload, describe_model, find_system
from foretune.plan.cost.decoder import mixed_operators
from foretune.plan.cost.memory import (
    GIB,
    STEP_BYTES,
    USABLE_SHARE,
    activation_bytes,
    engine_bytes,
    expert_multiples,
    max_requests,
    rank_memory,
    request_bytes,
    weight_bytes,
)
from foretune.plan.cost.operator import Part
from foretune.plan.describe.description import (
    CompressedAttention,
    Heads,
    Indexer,
    LinearAttention,
    Mla,
)
from foretune.plan.describe.formats import describe_formats
from foretune.plan.describe.layout import legal_layouts
from foretune.plan.serve.deployments.deployment import Deployment

ATTENTION = 2 * 64 * 64
KEY_VALUE = 2 * 64 * 32
MLP = 3 * 64 * 128
EXPERT = 3 * 64 * 32
NORMS = 5 * 64
TABLE = 100 * 64


def test_weights(small):
    layers = 2 * (ATTENTION + KEY_VALUE + MLP)
    assert weight_bytes(small, Layout(), Formats()) == 2 * small.parameters()
    # Tables and norms stay in 16 bits; norms are on every rank.
    assert weight_bytes(small, Layout(), Formats("fp8")) == layers + 2 * (NORMS + 2 * TABLE)
    # Four ranks, two key heads: each is on two ranks.
    each = 2 * (ATTENTION / 4 + KEY_VALUE / 2 + MLP / 4) + NORMS + 2 * TABLE / 4
    assert weight_bytes(small, Layout(4), Formats()) == 2 * each
    # Each stage has a layer, half of the norms, and one of the tables.
    stage = ATTENTION + KEY_VALUE + MLP + NORMS / 2 + TABLE
    assert weight_bytes(small, Layout(pp=2), Formats()) == 2 * stage
    tied = replace(small, tied_embeddings=True)
    assert weight_bytes(tied, Layout(pp=2), Formats()) == 2 * stage
    assert weight_bytes(tied, Layout(), Formats()) == 2 * (layers + NORMS + TABLE)


def test_mlps_may_have_a_format_of_their_own_without_experts(small):
    formats = Formats("bf16", moe="nvfp4")
    expected = 2 * small.parameters() - 2 * MLP * (2 - 0.5625)
    assert weight_bytes(small, Layout(), formats) == expected
    operators = mixed_operators(small, Layout(), formats, [Part(1, 1, 9, "decode")])
    found = {operator.name: operator.config.get("format") for operator in operators}
    assert (found["mlp_up"], found["qkv"]) == ("nvfp4", "bf16")
    wider_mlps = weight_bytes(small, Layout(), Formats("nvfp4", moe="bf16"))
    assert wider_mlps - weight_bytes(small, Layout(), Formats("nvfp4")) == 2 * MLP * (2 - 0.5625)
    assert describe_formats(formats, small) == "bf16+nvfp4 MLPs, bf16 cache"


def test_weights_of_experts(sparse):
    common = 2 * (ATTENTION / 4 + KEY_VALUE / 2) + (MLP + EXPERT) / 4
    wide = NORMS + 2 * TABLE / 4 + 64 * 4
    layout = Layout(4, moe_tp=2, moe_ep=2)
    found = weight_bytes(sparse, layout, Formats("fp8", moe="nvfp4"))
    assert found == common + 0.5625 * 2 * EXPERT / 2 + 2 * wide
    # The stage with the experts is the fuller one.
    stage = ATTENTION + KEY_VALUE + 5 * EXPERT + 64 * 4 + NORMS / 2 + TABLE
    assert weight_bytes(sparse, Layout(pp=2), Formats()) == 2 * stage


def test_stages_of_alternating_experts_have_as_many():
    maverick = describe_model("meta-llama/Llama-4-Maverick-17B-128E-Instruct")
    whole, half = (weight_bytes(maverick, Layout(pp=pp), Formats("fp8")) for pp in (1, 2))
    assert half == pytest.approx(whole / 2, rel=0.01)


def test_weights_of_latent_attention(small):
    mla = Mla(q_lora_rank=24, kv_lora_rank=16, qk_nope=8, qk_rope=4, v_head=8)
    model = replace(small, mla=mla, kv_heads=4)
    copied = 64 * (24 + 16 + 4)
    split = 24 * 4 * 12 + 16 * 4 * 16 + 4 * 8 * 64
    for tp in (1, 2, 4):
        each = 2 * (copied + split / tp + MLP / tp) + NORMS + 2 * TABLE / tp
        assert weight_bytes(model, Layout(tp), Formats()) == 2 * each
    # The compressed cache is the same on every rank.
    assert request_bytes(model, Layout(4), Formats(), 1) == 2 * 2 * (16 + 4)
    indexed = replace(model, index=Indexer(2, 128, 32))
    assert request_bytes(indexed, Layout(4), Formats(), 1) == 2 * (2 * (16 + 4) + 128 + 4)


def test_trtllm_gives_layers_with_a_window_room_for_all_tokens(small):
    """Each kind of layer keeps its own heads."""
    mixed = replace(small, sliding_window=4, windowed_layers=1, windowed=Heads(8, 4, 8, 8))
    h100 = find_system("h100_sxm")
    load = Workload(60, 40)
    seen = {
        engine: Deployment(mixed, h100, engine, Layout(), Formats(), load, 1).loaded_model
        for engine in ("vllm", "trtllm")
    }
    each = {name: request_bytes(m, Layout(), Formats(), 100) for name, m in seen.items()}
    full = 100 * 2 * 2 * (16 + 16)
    assert each == {"vllm": full + 4 * 2 * 4 * (8 + 8), "trtllm": full + 100 * 2 * 4 * (8 + 8)}


def test_cache(small):
    assert request_bytes(small, Layout(), Formats(), 10) == 10 * 2 * (2 * 2 * 16) * 2
    assert request_bytes(small, Layout(), Formats(kv="fp8"), 10) == 10 * 2 * (2 * 2 * 16)
    assert request_bytes(small, Layout(4), Formats(), 10) == 10 * 2 * (2 * 16) * 2
    assert request_bytes(small, Layout(pp=2), Formats(), 10) == 10 * (2 * 2 * 16) * 2
    windowed = replace(small, sliding_window=4, windowed_layers=1)
    assert request_bytes(windowed, Layout(), Formats(), 10) == (10 + 4) * (2 * 2 * 16) * 2


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        ("nvfp4", 16 / 2 + 1),  # an e4m3 scale for each of 16
        ("fp4_e2m1", 16 / 2 + 1),
        ("int4_head", 16 / 2 + 4),  # an fp32 word for each head's key or value
    ],
)
def test_narrow_caches_with_their_scales(small, kind, token):
    """Two layers of two heads, each with a key and a value of 16 numbers."""
    formats = Formats(kv=kind)
    assert request_bytes(small, Layout(), formats, 10) == pytest.approx(10 * 2 * 2 * 2 * token)
    assert request_bytes(small, Layout(2), formats, 10) == pytest.approx(10 * 2 * 2 * token)


def test_request_bytes_latent_cache_of_four_bits():
    latent = describe_model("deepseek-ai/DeepSeek-V3")
    token = request_bytes(latent, Layout(8), Formats(kv="fp4_e2m1"), 1)
    assert token == 61 * 576 * (0.5 + 1 / 16)


def test_state_of_linear_layers(small):
    linear = LinearAttention(1, key_heads=2, key_dim=8, value_heads=4, value_dim=8, convolution=4)
    model = replace(small, linear=linear)
    state = 4 * 4 * 8 * 8 + 2 * 3 * (2 * 2 * 8 + 4 * 8)
    assert request_bytes(model, Layout(), Formats(), 10) == 10 * 2 * 2 * 16 * 2 + state
    assert request_bytes(model, Layout(2), Formats(), 10) == 10 * 2 * 16 * 2 + state / 2


def test_request_bytes_of_known_models():
    """Llama 3.1 70B: 320 KiB per token in 16 bits, as its 80 layers of 8 key heads make."""
    model = describe_model("meta-llama/Meta-Llama-3.1-70B")
    assert request_bytes(model, Layout(), Formats(), 1) == 2 * 80 * 8 * 128 * 2
    # DeepSeek-V3: 70 KB per token (arXiv:2412.19437).
    latent = describe_model("deepseek-ai/DeepSeek-V3")
    assert request_bytes(latent, Layout(8), Formats(), 1) == 61 * 576 * 2


def test_activations(small, sparse):
    # Gate, up and product of the MLP are wider than queries, keys, values and their outcome.
    layer = 2 * 10 * (128 + 3 * 128)
    assert activation_bytes(small, Layout(), 10, 3) == layer + STEP_BYTES
    # All ranks sample from the whole vocabulary.
    sampling = 2 * 10 * 64 + 14 * 30 * 100
    assert activation_bytes(small, Layout(2), 10, 30) == sampling + STEP_BYTES
    # Two pairs with experts per token: gate and up, and outputs or products.
    wide = replace(sparse, moe_intermediate=256)
    shared = 2 * 10 * (128 + 3 * 256)
    buffers = 2 * 10 * 2 * (2 * 256 + 256)
    assert activation_bytes(wide, Layout(), 10, 0) == shared + buffers + STEP_BYTES


def test_everything_together(small):
    memory = rank_memory(small, Layout(), Formats(), Workload(6, 4), 3)
    assert memory.weights == 2 * small.parameters()
    assert memory.kv_cache == 3 * 10 * 256
    assert memory.activations == activation_bytes(small, Layout(), 18, 3)
    assert memory.engine == engine_bytes(Layout(pp=2)) == 0.25 * GIB
    assert memory.total == sum(vars(memory).values())
    assert memory.gib == memory.total / GIB
    assert engine_bytes(Layout(2)) == engine_bytes(Layout(dp=2)) > 2 * GIB


def test_attention_groups_share_requests(sparse):
    groups = Layout(dp=2, moe_ep=2)
    memory = rank_memory(sparse, groups, Formats(), Workload(6, 4), 5)
    assert memory.kv_cache == 3 * 10 * 256


def test_max_requests_too_large_model_is_zero():
    model = describe_model("meta-llama/Meta-Llama-3.1-70B")
    h100 = find_system("h100_sxm")
    long = Workload(1024, 1024)
    assert max_requests(model, Layout(), Formats(), long, h100.memory_gib) == 0
    assert max_requests(model, Layout(4), Formats(), long, h100.memory_gib) > 0


CASES = [
    (describe_model(name), layout)
    for name in ("Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.5-397B-A17B")
    for gpus in (1, 8, 16)
    for layout in legal_layouts(describe_model(name), gpus)
]


@given(
    st.sampled_from(CASES),
    st.sampled_from(["bf16", "fp8", "int4_wo", "nvfp4"]),
    st.integers(1, 32768),
    st.floats(8, 512),
    st.floats(0, 512),
)
def test_more_memory_is_never_infeasible(case, kind, isl, memory, more):
    model, layout = case
    question = (model, layout, Formats(kind), Workload(isl, 128))
    assert max_requests(*question, memory + more) >= max_requests(*question, memory)


@given(st.sampled_from(CASES), st.integers(1, 256), st.integers(1, 256))
def test_more_requests_never_need_less(case, few, more):
    model, layout = case
    memories = [
        rank_memory(model, layout, Formats(), Workload(2048, 256), requests)
        for requests in (few, few + more)
    ]
    for part in vars(memories[0]):
        assert getattr(memories[1], part) >= getattr(memories[0], part)


@given(st.sampled_from(CASES))
def test_narrower_formats_never_need_more(case):
    model, layout = case
    found = [weight_bytes(model, layout, Formats(f)) for f in ("bf16", "fp8", "nvfp4", "int4_wo")]
    assert found == sorted(found, reverse=True)


@given(st.sampled_from(CASES))
def test_ranks_hold_the_model_between_them(case):
    model, layout = case
    # Copies may add, nothing may be missing; the tied table occurs twice with stages.
    assert weight_bytes(model, layout, Formats()) * layout.gpus >= 2 * model.parameters() * 0.999


def test_max_requests_counts_every_request_that_fits(sparse):
    system = replace(find_system("l4"), memory_gib=0.42)
    room = USABLE_SHARE * system.memory_gib * GIB
    found = max_requests(sparse, Layout(), Formats(), Workload(8, 8), system.memory_gib)
    assert found > 0
    needed = [
        rank_memory(sparse, Layout(), Formats(), Workload(8, 8), requests).total
        for requests in (found, found + 1)
    ]
    assert needed[0] <= room < needed[1]


@pytest.mark.parametrize("lengths", [(0, 1), (1, 0), (4, 1, 4), (4, 1, -1)])
def test_impossible_workloads(lengths):
    with pytest.raises(ProblemError):
        Workload(*lengths)


def test_workload():
    workload = Workload(100, 20, prefix=30)
    assert (workload.new_tokens, workload.last_context, workload.mean_context) == (70, 120, 110)


@pytest.mark.parametrize(
    ("architecture", "hidden", "inner"),
    [
        ("sm_90", 256, 64),  # Triton kernels
        ("sm_80", 256, 128),  # Marlin
        ("sm_100", 256, 256),  # FlashInfer
        ("gfx942", 256, 256),
    ],
)
def test_weight_bytes_experts_in_mxfp4_are_padded(sparse, architecture, hidden, inner):
    padded = replace(sparse, expert_multiples=expert_multiples(architecture))
    experts = 4 * sparse.moe_layers
    added = experts * 3 * (hidden * inner - 64 * 32)

    in_mxfp4 = Formats(moe="mxfp4")
    difference = weight_bytes(padded, Layout(), in_mxfp4) - weight_bytes(sparse, Layout(), in_mxfp4)

    assert difference == added * (0.5 + 1 / 32)
    assert weight_bytes(padded, Layout(), Formats()) == weight_bytes(sparse, Layout(), Formats())


@pytest.mark.parametrize(("architecture", "gib"), [("sm_90", 64.38), ("sm_80", 65.97)])
def test_weight_bytes_of_gpt_oss_are_those_logged(architecture, gib):
    model = describe_model("openai/gpt-oss-120b")
    padded = replace(model, expert_multiples=expert_multiples(architecture))
    weights = weight_bytes(padded, Layout(), Formats(moe="mxfp4"))
    assert weights / 2**30 == pytest.approx(gib, rel=0.005)


def test_deployment_pads_experts_for_its_gpu(sparse):
    on = [
        Deployment(sparse, find_system(name), "vllm", Layout(), Formats(), Workload(8, 8), 1)
        for name in ("a100_sxm", "b200_sxm")
    ]
    assert [d.loaded_model.expert_multiples for d in on] == [(256, 128), (256, 256)]


def test_key_of_compressed_attention_is_one_record_in_every_format():
    shape = CompressedAttention(1, 1, 1, window=128, ratios=((0, 1),))
    assert shape.key_bytes(512) == 448 + 2 * 64 + 7 + 1 == 584


def test_weight_bytes_single_precision_is_twice_as_large(small):
    wide = weight_bytes(small, Layout(), Formats("fp32", kv="fp32"))
    assert wide == 2 * weight_bytes(small, Layout(), Formats("bf16"))
