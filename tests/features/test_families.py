"""Families: work counted by hand, and equal for one run and for columns: `features/families/`."""

import numpy as np
import pytest

from foretune.device import peak_rate
from foretune.family import Family
from foretune.features.families import formats
from foretune.features.families.moe import max_rank_load
from foretune.features.families.tiles import padding, wave_features
from foretune.features.geometry import cache_features
from foretune.registry import load, registered

FAMILIES = sorted(registered("families"))


def family(name) -> Family:
    return load("families", name)()


GEMM = {"M": 128, "N": 512, "K": 64}
PREFILL = {"batch": 2, "seq_len": 8, "heads": 4, "kv_heads": 2, "head_dim": 16}
DECODE = {"batch": 3, "kv_len": 100, "heads": 8, "kv_heads": 2, "head_dim": 64}
MOE = {"tokens": 16, "hidden": 32, "intermediate": 64, "top_k": 2, "experts": 8}
ROWS = {"rows": 10, "columns": 96}
IMAGE = {"size_0": 100, "size_1": 50, "filter_height": 3, "filter_width": 5}
LAYER = {
    "batch": 2,
    "in_channels": 8,
    "in_h": 28,
    "in_w": 28,
    "out_channels": 32,
    "out_h": 14,
    "out_w": 14,
    "kernel_h": 3,
    "kernel_w": 3,
    "stride_h": 2,
    "stride_w": 2,
}
MM = {**GEMM, "mat1_dtype": "float16", "mat2_dtype": "float16"}
FLEX = {"batch": 2, "heads": 3, "seq_q": 64, "seq_kv": 96, "head_dim": 16, "dtype": "bfloat16"}
TILE = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}
MESSAGE = {"message_bytes": 1024, "devices": 4}


@pytest.mark.parametrize(
    ("name", "problem", "config", "flops", "moved", "dtype"),
    [
        ("gemm", GEMM, {}, 2 * 128 * 512 * 64, 2 * (128 * 64 + 64 * 512 + 128 * 512), "fp16"),
        (
            "gemm",
            {**GEMM, "dtype": "fp32"},
            {},
            2 * 128 * 512 * 64,
            4 * (128 * 64 + 64 * 512 + 128 * 512),
            "fp32",
        ),
        # eight-bit factors, a product of 16 bits
        (
            "gemm",
            GEMM,
            {"format": "fp8"},
            2 * 128 * 512 * 64,
            128 * 64 + 64 * 512 + 2 * 128 * 512,
            "fp8",
        ),
        # weights of four bits and a scale of two bytes for 128 of them
        (
            "gemm",
            {**GEMM, "batch": 3},
            {"format": "int4_wo"},
            3 * 2 * 128 * 512 * 64,
            3 * (2 * 128 * 64 + (0.5 + 2 / 128) * 64 * 512 + 2 * 128 * 512),
            "fp16",
        ),
        # every query sees itself and those before it: (8 + 1) / 2 keys
        (
            "attention_prefill",
            PREFILL,
            {},
            4 * 2 * 4 * 16 * 8 * 4.5,
            2 * 16 * (2 * 2 * 8 * 4 + 2 * 2 * 8 * 2),
            "bf16",
        ),
        (
            "attention_prefill",
            {**PREFILL, "prefix_len": 10},
            {},
            4 * 2 * 4 * 16 * 8 * 14.5,
            2 * 16 * (2 * 2 * 8 * 4 + 2 * 2 * 18 * 2),
            "bf16",
        ),
        # 1, 2, 3 keys, then 4 each
        (
            "attention_prefill",
            {**PREFILL, "window": 4},
            {},
            4 * 2 * 4 * 16 * (1 + 2 + 3 + 5 * 4),
            2 * 16 * (2 * 2 * 8 * 4 + 2 * 2 * 8 * 2),
            "bf16",
        ),
        (
            "attention_encoder",
            {**PREFILL, "kv_heads": 0},
            {},
            4 * 2 * 4 * 16 * 8 * 8,
            2 * 16 * (2 * 2 * 8 * 4 + 2 * 2 * 8 * 4),
            "bf16",
        ),
        (
            "attention_decode",
            DECODE,
            {},
            4 * 3 * 8 * 64 * 100,
            3 * 64 * (2 * 2 * 8 + 2 * 2 * 100 * 2),
            "bf16",
        ),
        # a cache of eight bits beside queries of sixteen; only the window is read
        (
            "attention_decode",
            {**DECODE, "window": 10},
            {"format": "fp16", "kv_format": "fp8"},
            4 * 3 * 8 * 64 * 10,
            3 * 64 * (2 * 2 * 8 + 2 * 1 * 10 * 2),
            "fp16",
        ),
        ("norm", ROWS, {}, 8 * 960, 2 * 2 * 960, "fp32"),
        ("softmax", ROWS, {"format": "fp32"}, 8 * 960, 2 * 4 * 960, "fp32"),
        ("elementwise", ROWS, {}, 2 * 960, 2 * 2 * 960, "fp32"),
        ("quantize", {"M": 10, "K": 96}, {}, 4 * 960, 2 * 2 * 960, "fp32"),
        (
            "batched_gemm",
            {**GEMM, "batch": 3},
            {},
            3 * 2 * 128 * 512 * 64,
            3 * 2 * (128 * 64 + 64 * 512 + 128 * 512),
            "fp16",
        ),
        # 128 rows among four groups, each of which has a B of its own
        (
            "grouped_gemm",
            {**GEMM, "groups": 4},
            {},
            2 * 128 * 512 * 64,
            2 * (128 * 64 + 4 * 64 * 512 + 128 * 512),
            "fp16",
        ),
        (
            "inductor_mm",
            MM,
            TILE,
            2 * 128 * 512 * 64,
            2 * (128 * 64 + 64 * 512 + 128 * 512),
            "fp16",
        ),
        (
            "inductor_mm",
            {**MM, "mat1_dtype": "float32", "mat2_dtype": "float32", "using_tf32": "1"},
            TILE,
            2 * 128 * 512 * 64,
            4 * (128 * 64 + 64 * 512 + 128 * 512),
            "tf32",
        ),
        (
            "inductor_mixed_mm",
            {**MM, "mat2_dtype": "int8"},
            TILE,
            2 * 128 * 512 * 64,
            2 * (128 * 64 + 128 * 512) + 64 * 512,
            "fp16",
        ),
        (
            "inductor_flex_attention",
            FLEX,
            TILE,
            4 * 2 * 3 * 64 * 32 * 16,
            2 * 2 * 2 * 3 * 16 * 64,
            "bf16",
        ),
        ("convolution", IMAGE, {}, 2 * 5000 * 15, 4 * (2 * 5000 + 15), "fp32"),
        (
            "convolution",
            {**LAYER, "groups": 4, "dtype": "fp16"},
            {},
            2 * 2 * 196 * 32 * (8 / 4 * 9),
            2 * (2 * 8 * 28 * 28 + 2 * 32 * 196 + 32 * 8 / 4 * 9),
            "fp16",
        ),
        ("all_reduce", MESSAGE, {}, 0, 2 * 1024 * 3 / 4, "fp32"),
        ("all_gather", MESSAGE, {}, 0, 1024 * 3 / 4, "fp32"),
        ("reduce_scatter", MESSAGE, {}, 0, 1024 * 3 / 4, "fp32"),
        ("all_to_all", MESSAGE, {}, 0, 1024 * 3 / 4, "fp32"),
        ("send_recv", MESSAGE, {}, 0, 1024, "fp32"),
        ("all_reduce", {**MESSAGE, "devices": 1}, {}, 0, 1, "fp32"),  # nobody to send to
    ],
)
def test_cost_equals_count_by_hand(name, problem, config, flops, moved, dtype):
    cost = family(name).cost(problem, config)
    assert float(cost.flops) == pytest.approx(flops)
    assert float(cost.bytes_moved) == pytest.approx(moved)
    assert str(cost.dtype) == dtype


def test_moe_rank_that_gets_every_token():
    """With as many choices as experts all are active, and each gets every token."""
    problem = {**MOE, "top_k": 8}
    cost = family("moe").cost(problem, {"format": "bf16"})
    pairs = 16 * 8
    assert float(cost.flops) == pytest.approx(2 * 3 * pairs * 32 * 64)
    weights = 8 * 3 * 32 * 64
    traffic = pairs * (5 * 32 + 6 * 64) + 2 * 16 * 32
    assert float(cost.bytes_moved) == pytest.approx(2 * weights + 2 * traffic, rel=1e-6)
    assert str(cost.dtype) == "bf16"


def test_moe_one_token_reads_its_experts_only():
    moe = family("moe")
    one = {**MOE, "tokens": 1}
    derived = moe.derived(one, {}, {})
    assert 2 ** float(derived["log2_active"]) == pytest.approx(2)
    assert float(derived["sparsity"]) == 0.25
    weights = 2 * 3 * 32 * 64
    traffic = 2 * (5 * 32 + 6 * 64) + 2 * 32
    moved = float(moe.cost(one, {}).bytes_moved)
    assert moved == pytest.approx(2 * weights + 2 * traffic)


def test_moe_ranks_share_experts_and_matrices():
    moe = family("moe")
    whole, half = (moe.cost(MOE, {"tp": tp, "ep": 1}) for tp in (1, 2))
    assert float(whole.flops) == pytest.approx(2 * float(half.flops))
    shared = moe.cost(MOE, {"tp": 1, "ep": 2})
    assert float(whole.flops) == pytest.approx(2 * float(shared.flops))
    assert float(shared.bytes_moved) < float(whole.bytes_moved)


@pytest.mark.parametrize("exponent", ["power_law_1.01", "power_law_1.2", "power_law"])
def test_moe_busiest_rank_has_more_than_its_share(exponent):
    even = max_rank_load(4096, 2, 64, 8, "balanced")
    assert (float(even.pairs), float(even.active), float(even.largest)) == (1024, 8, 128)
    uneven = max_rank_load(4096, 2, 64, 8, exponent)
    assert 1024 < uneven.pairs <= 8192
    assert 128 < uneven.largest <= 4096  # an expert gets a token once
    assert uneven.active <= 8
    alone = max_rank_load(4096, 2, 64, 1, exponent)  # one rank has everything
    assert float(alone.pairs) == pytest.approx(8192)


def test_moe_loads_of_rows_equal_single_rows():
    tokens = np.array([1.0, 512.0, np.nan, 512.0])
    ranks = np.array([1, 8, 1, 0])
    kinds = np.array(["balanced", "power_law_1.2", "balanced", "balanced"])
    load = max_rank_load(tokens, 2, 64, ranks, kinds)
    for i in range(2):
        one = max_rank_load(tokens[i], 2, 64, ranks[i], kinds[i])
        assert (load.pairs[i], load.active[i]) == (one.pairs, one.active)
    assert np.isnan(load.pairs[2:]).all()  # a gap, and no ranks at all


PROBLEMS = {
    "gemm": {"M": [1, 128, 300], "N": [512, 64, 40], "K": [64, 64, 4096], "batch": [1, 2, 1]},
    "attention_prefill": {
        "batch": [1, 2, 8],
        "seq_len": [8, 1000, 77],
        "heads": [4, 32, 8],
        "kv_heads": [4, 8, 0],
        "head_dim": [64, 128, 128],
        "prefix_len": [0, 10, 5],
        "window": [0, 64, 0],
    },
    "attention_decode": {
        "batch": [1, 2, 8],
        "kv_len": [8, 1000, 77],
        "heads": [4, 32, 8],
        "kv_heads": [4, 8, 0],
        "head_dim": [64, 128, 128],
        "window": [0, 64, 0],
    },
    "moe": {
        "tokens": [1, 64, 4096],
        "hidden": [256, 512, 64],
        "intermediate": [64, 128, 96],
        "top_k": [1, 2, 8],
        "experts": [8, 64, 8],
    },
    "quantize": {"M": [1, 7, 4096], "K": [64, 1000, 512]},
    "convolution": {
        "batch": [1, 16, 3],
        "in_channels": [3, 64, 96],
        "in_h": [224, 14, 30],
        "in_w": [224, 14, 31],
        "out_channels": [64, 64, 96],
        "out_h": [112, 14, 28],
        "out_w": [112, 14, 29],
        "kernel_h": [7, 1, 3],
        "kernel_w": [7, 1, 3],
        "stride_h": [2, 1, 1],
        "groups": [1, 1, 96],
        "dtype": ["fp16", "fp32", "bf16"],
        "direction": ["forward", "backward data", "backward weights"],
    },
    "grouped_gemm": {
        "M": [1, 128, 300],
        "N": [512, 64, 40],
        "K": [64, 64, 4096],
        "groups": [1, 8, 4],
    },
    "inductor_mm": {
        "M": [1, 128, 300],
        "N": [512, 64, 40],
        "K": [64, 64, 4096],
        "mat1_dtype": ["float16", "float32", "float32"],
        "mat2_dtype": ["float16", "float32", "float32"],
        "mat1_stride_0": [1, 64, 4096],
        "using_tf32": ["not_float_32", "1", "0"],
    },
    "inductor_flex_attention": {
        "batch": [1, 2, 8],
        "heads": [4, 32, 8],
        "seq_q": [128, 1024, 77],
        "seq_kv": [128, 2048, 77],
        "head_dim": [64, 128, 16],
        "dtype": ["float16", "bfloat16", "float32"],
    },
}
PROBLEMS["batched_gemm"] = PROBLEMS["gemm"]
PROBLEMS["inductor_mixed_mm"] = PROBLEMS["inductor_mm"]
PROBLEMS["attention_encoder"] = PROBLEMS["attention_prefill"]
for _name in ("norm", "softmax", "elementwise"):
    PROBLEMS[_name] = {"rows": [1, 7, 4096], "columns": [64, 1000, 512]}
for _name in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "send_recv"):
    PROBLEMS[_name] = {"message_bytes": [8, 4096, 2**30], "devices": [1, 2, 8]}
TILES = {
    "BLOCK_M": [16, 64, 128],
    "BLOCK_N": [64, 64, 32],
    "BLOCK_K": [16, 32, 64],
    "num_warps": [2, 4, 8],
    "num_stages": [1, 3, 5],
}
SOLVERS = ["GemmFwd1x1_0_1", "ConvBinWinogradRxSf2x3g1", "ConvMlirIgemmFwdXdlops"]
CONFIGS = {"format": ["bf16", "fp8_block", "nvfp4"], "tp": [1, 2, 4], "ep": [1, 4, 2]}
CONFIGS |= {**TILES, "solver": SOLVERS}
DEVICES = {
    "cores": [132.0, np.nan, 4.0],
    "l2_kib": [51200.0, 98304.0, 512.0],
    "l3_kib": [np.nan, np.nan, 32768.0],
}


def arrays(columns):
    return {name: np.array(values, dtype=_kind(values)) for name, values in columns.items()}


def scalars(columns, i):
    return {name: values[i] for name, values in columns.items()}


def _kind(values):
    return None if isinstance(values[0], str) else float


@pytest.mark.parametrize("name", FAMILIES)
def test_cost_of_columns_equals_single_rows(name):
    """What a family says of a table is what it says of every row alone."""
    known = family(name)
    together = known.cost(arrays(PROBLEMS[name]), arrays(CONFIGS))
    derived = known.derived(arrays(PROBLEMS[name]), arrays(CONFIGS), arrays(DEVICES))
    for i in range(3):
        alone = (scalars(PROBLEMS[name], i), scalars(CONFIGS, i), scalars(DEVICES, i))
        cost = known.cost(*alone[:2])
        for quantity in ("flops", "bytes_moved"):
            value = np.broadcast_to(getattr(together, quantity), 3)[i]
            assert value == pytest.approx(float(getattr(cost, quantity))), quantity
        assert np.broadcast_to(together.dtype, 3)[i] == str(cost.dtype)
        one = known.derived(*alone)
        assert set(one) == set(derived)
        for quantity, value in derived.items():
            assert np.broadcast_to(value, 3)[i] == pytest.approx(float(one[quantity])), quantity


@pytest.mark.parametrize("name", FAMILIES)
def test_cost_and_derived_are_finite(name):
    known = family(name)
    cost = known.cost(arrays(PROBLEMS[name]), arrays(CONFIGS))
    assert (np.broadcast_to(cost.bytes_moved, 3) > 0).all()
    assert (np.broadcast_to(cost.flops, 3) >= 0).all()
    device = {"l2_kib": 51200.0}
    for quantity, value in known.derived(arrays(PROBLEMS[name]), arrays(CONFIGS), device).items():
        assert np.isfinite(value).all(), quantity


def test_working_set_uses_last_known_cache():
    device = {name: np.array(values) for name, values in DEVICES.items()}
    (share,) = cache_features("weights", np.full(3, 2.0**25), device).values()
    np.testing.assert_allclose(2**share, [0.64, 1 / 3, 1.0])
    for nothing in ({}, {"l2_kib": np.nan}):
        assert np.isnan(cache_features("weights", 2.0**25, nothing)["weights_of_cache"])


@pytest.mark.parametrize("name", FAMILIES)
def test_cost_grows_with_sizes(name):
    """Doubling any size of a problem takes at least as many operations and bytes."""
    known = family(name)
    sizes = arrays(PROBLEMS[name])
    before = known.cost(sizes, arrays(CONFIGS))
    fixed = {"devices", "kv_heads", "window", "experts", "top_k", "groups"}
    fixed |= {size for size, values in sizes.items() if values.dtype.kind == "U"}
    for size in set(sizes) - fixed:
        after = known.cost({**sizes, size: sizes[size] * 2}, arrays(CONFIGS))
        assert np.all(after.flops >= before.flops), size
        assert np.all(np.asarray(after.bytes_moved) >= before.bytes_moved * (1 - 1e-12)), size


@pytest.mark.parametrize("name", FAMILIES)
def test_family_name_is_registered_name(name):
    assert family(name).name == name
    assert family(name).source_hash


def test_waves_of_tiles():
    features = wave_features("t", np.array([4.0, 5.0, 8.0]), {"cores": np.array([4.0, 4.0, 4.0])})
    np.testing.assert_allclose(features["waves_t"], [0, 1, 1])  # 1, 2 and 2 whole waves
    np.testing.assert_allclose(features["fill_t"], [1, 5 / 8, 1])
    unknown = wave_features("t", np.array([128.0]), {"cores": np.array([np.nan])})
    assert unknown["fill_t"][0] == wave_features("t", 128.0, {})["fill_t"] == 1.0  # 128 cores


def test_padding_of_tiles():
    assert padding(np.array([64, 65, 1]), 64).tolist() == [1.0, 65 / 128, 1 / 64]


def test_formats_size_and_precision():
    kinds = np.array(["fp16", "int8_wo", "nvfp4"])
    assert formats.weight_bytes(kinds).tolist() == [2, 1, 0.5 + 1 / 16]
    assert formats.activation_bytes(kinds).tolist() == [2, 2, 0.5 + 1 / 16]
    assert formats.compute_dtype(kinds).tolist() == ["fp16", "fp16", "fp4"]


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        ("torch.float32", "fp32"),
        ("F32", "fp32"),
        ("double", "fp64"),
        ("half", "fp16"),
        ("BF16", "bf16"),
        ("float8_e4m3fn", "fp8"),
        ("s8", "int8"),
    ],
)
def test_formats_have_many_names(spelled, plain):
    assert formats.weight_bytes(spelled) == formats.weight_bytes(plain)
    assert formats.compute_dtype(spelled) == formats.compute_dtype(plain)


@pytest.mark.parametrize("strange", ["fp3", "", np.nan])
def test_formats_unknown_counts_as_16_bits(strange):
    assert float(formats.weight_bytes(strange)) == 2.0
    assert str(formats.compute_dtype(np.array([strange]))[0]) == "fp16"


def test_formats_have_a_rate_on_some_device():
    specs = {"fp64_gflops": 1.0, "fp32_gflops": 2.0}
    for kind in formats.FORMATS:
        assert peak_rate(str(formats.compute_dtype(kind)), specs) in (1.0, 2.0)
