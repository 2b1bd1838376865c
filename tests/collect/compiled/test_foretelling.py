"""What cannot run on an architecture, foretold from unoptimized code."""

import numpy as np
import pytest

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from foretune.collect.compiled.foretelling import BlockCode, LoopCode, foretell
from foretune.collect.compiled.gpu_targets import get_target
from foretune.errors import UsageError

ARGUMENTS = {"a": torch.float16, "b": torch.float16, "c": torch.float16}
ARGUMENTS |= {"M": 4096, "N": 4096, "K": 4096}
LARGE = {"BM": 128, "BN": 256, "BK": 64, "num_warps": 8, "num_stages": 4}
SMALL = {"BM": 32, "BN": 32, "BK": 32, "num_warps": 4, "num_stages": 2}
LARGE_STEP = (128 + 256) * 64 * 2
"""Bytes of the two operands of a step."""


@pytest.fixture
def large(toys):
    """The code of the large tile."""
    from foretune.collect.compiled.compiling import first_code, specialize

    specialized = specialize(toys.matmul, [], ARGUMENTS, LARGE, get_target("sm_80"))
    return BlockCode.parse(first_code(specialized, inline=True))


def test_block_code_shows_what_a_step_loads_and_what_is_stored(large):
    assert large == BlockCode(
        loops=(LoopCode(LARGE_STEP, held_bytes=0, operand_bytes=64 * 256 * 2, computed_bytes=0),),
        rows=128,
        operand_bits=16,
    )


ATTENTION = """
  %q = tt.load %q_at : tensor<64x32x!tt.ptr<f16>>
  %sums:2 = scf.for %first = %0 to %1 step %2 iter_args(%sum = %zero, %top = %low) -> (f32) : i32 {
    %k = tt.load %k_at : tensor<32x16x!tt.ptr<f16>>
    %scores = tt.dot %q, %k, %none : tensor<64x32xf16> * tensor<32x16xf16> -> tensor<64x16xf32>
  }
  %rest = scf.for %first_1 = %1 to %3 step %2 iter_args(%sum_1 = %sums#0) -> (f32) : i32 {
    %k_1 = tt.load %k_at : tensor<32x16x!tt.ptr<f16>>
    %v_1 = tt.load %v_at : tensor<16x32x!tt.ptr<f16>>
    %scores_1 = tt.dot %q, %k_1, %none : tensor<64x32xf16> * tensor<32x16xf16> -> tensor<64x16xf32>
    %weights = arith.truncf %scores_1 : tensor<64x16xf32> to tensor<64x16xf16>
    %s = tt.dot %weights, %v_1, %sum_1 : tensor<64x16xf16> * tensor<16x32xf16> -> tensor<64x32xf32>
  }
"""


def test_block_code_loops_are_apart_and_hold_what_was_loaded_before():
    held = 64 * 32 * 2
    tile = 32 * 16 * 2

    code = BlockCode.parse(ATTENTION)

    weights = 64 * 16 * 2
    assert code.loops == (
        LoopCode(tile, held, operand_bytes=tile, computed_bytes=0),
        LoopCode(2 * tile, held, operand_bytes=weights, computed_bytes=weights),
    )
    config = {"num_stages": 3, "num_warps": 4}
    assert code.shared_bytes(config, get_target("sm_86")) == 2 * 2 * tile + held
    assert code.shared_bytes(config, get_target("gfx942")) == 2 * 2 * tile + weights


# What Triton 3.9 compiles for the same tiles.
@pytest.mark.parametrize(
    ("target", "shared_bytes"),
    [
        ("sm_75", 65536),  # one operand in fp32
        ("sm_80", 3 * LARGE_STEP),  # 147456
        ("sm_90", 4 * LARGE_STEP),  # 196608
        ("sm_120", 3 * LARGE_STEP),
        ("gfx942", 3 * LARGE_STEP),
    ],
)
def test_block_code_shared_memory_is_what_compiling_finds(large, target, shared_bytes):
    assert large.shared_bytes(LARGE, get_target(target)) == shared_bytes


def test_foretell_names_what_does_not_fit(toys):
    targets = [get_target(name) for name in ("sm_80", "sm_89", "gfx942")]

    reasons = foretell(toys.matmul, ARGUMENTS, [LARGE, SMALL], targets)

    assert reasons["sm_80"] == ["", ""]  # 147456 of 166912 bytes
    assert "147456 bytes of shared memory, sm_89 has 101376" in reasons["sm_89"][0]
    assert reasons["sm_89"][1] == ""
    assert reasons["gfx942"][0]


def test_foretell_counts_threads_of_wide_waves(toys):
    config = {**SMALL, "num_warps": 32}
    targets = [get_target(name) for name in ("sm_80", "gfx942", "gfx1100")]

    reasons = foretell(toys.matmul, ARGUMENTS, [config], targets)

    assert reasons == {
        "sm_80": [""],
        "gfx942": ["it needs 2048 threads, gfx942 has 1024"],
        "gfx1100": [""],
    }


def test_foretell_names_a_type_that_an_architecture_lacks(toys):
    arguments = {**ARGUMENTS, "a": torch.float8_e4m3fn, "b": torch.float8_e4m3fn}
    targets = [get_target(name) for name in ("sm_80", "sm_90")]

    reasons = foretell(toys.matmul, arguments, [SMALL], targets)

    assert "fp8" in reasons["sm_80"][0]
    assert reasons["sm_90"] == [""]


WRONG_WARPS = {**SMALL, "num_warps": 3}
WRONG_TILE = {**SMALL, "BM": 48}


@pytest.mark.parametrize("wrong", [WRONG_WARPS, WRONG_TILE])
def test_foretell_wrong_first_entry_says_nothing_about_the_others(toys, wrong):
    targets = [get_target(name) for name in ("sm_86", "sm_90")]
    found = foretell(toys.matmul, ARGUMENTS, [wrong, SMALL, LARGE], targets)
    for name, reasons in found.items():
        assert "power of 2" in reasons[0], name
        assert reasons[1] == "", name
    assert "shared memory" in found["sm_86"][2]


@pytest.mark.parametrize("names", [("sm_80", "sm_90"), ("sm_90", "sm_80")])
def test_foretell_option_that_one_architecture_lacks_is_no_failure_on_another(toys, names):
    clustered = {**SMALL, "num_ctas": 2}
    for configs in ([SMALL, clustered], [clustered, SMALL]):
        found = foretell(toys.matmul, ARGUMENTS, configs, [get_target(name) for name in names])
        i = configs.index(clustered)
        assert "num_ctas" in found["sm_80"][i]
        assert found["sm_80"][1 - i] == ""
        assert found["sm_90"] == ["", ""]


def test_foretell_lacking_type_concerns_every_entry_and_its_own_error_comes_second(toys):
    narrow = dict.fromkeys("abc", torch.float8_e4m3fn) | {"M": 512, "N": 512, "K": 512}
    targets = [get_target(name) for name in ("sm_90", "sm_80")]
    found = foretell(toys.matmul, narrow, [WRONG_TILE, SMALL], targets)
    assert found["sm_90"][1] == ""
    assert "power of 2" in found["sm_90"][0]
    assert "not supported" in found["sm_80"][1]
    assert found["sm_80"][0]


@pytest.mark.parametrize("blocks", [0, 3, 32])
def test_foretell_names_clusters_that_no_gpu_has(toys, blocks):
    found = foretell(
        toys.matmul, ARGUMENTS, [{**SMALL, "num_ctas": blocks}, SMALL], [get_target("sm_90")]
    )
    assert found["sm_90"] == [f"a cluster has 1, 2, 4, 8, 16 blocks, not {blocks}", ""]


@pytest.mark.parametrize(
    ("option", "maker", "other"),
    [({"maxnreg": 64}, "sm_90", "gfx942"), ({"waves_per_eu": 2}, "gfx942", "sm_90")],
)
def test_foretell_option_of_one_maker_is_a_reason_on_the_other(toys, option, maker, other):
    targets = [get_target(maker), get_target(other)]
    found = foretell(toys.matmul, ARGUMENTS, [SMALL, {**SMALL, **option}], targets)
    assert found[maker] == ["", ""]
    assert found[other] == ["", f"{other} has no option {next(iter(option))}"]


WITHOUT_DEPTH = {"BM": 32, "BN": 32}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (WITHOUT_DEPTH, "lacks BK"),
        ({**SMALL, "num_wraps": 4}, "num_warps"),
        ({**SMALL, "M": 64}, "is given M as an argument and by the configuration"),
        ({**SMALL, "num_stages": 2.5}, "num_stages is 2.5"),
        ({**SMALL, "num_warps": "4"}, "num_warps is '4'"),
        ({**SMALL, "maxnreg": 0}, "maxnreg is 0"),
        ({**SMALL, "BM": 2048, "BN": 2048}, "exceeds triton maximum tensor numel"),
    ],
)
def test_foretell_mistake_of_one_entry_is_its_reason(toys, wrong, reason):
    found = foretell(toys.matmul, ARGUMENTS, [wrong, SMALL], [get_target("sm_90")])["sm_90"]
    assert reason in found[0]
    assert found[1] == ""


def test_foretell_mistake_of_all_entries_is_an_error(toys):
    with pytest.raises(UsageError, match="lacks BK"):
        foretell(toys.matmul, ARGUMENTS, [WITHOUT_DEPTH] * 2, [get_target("sm_90")])


def test_foretell_numpy_numbers_are_numbers(toys):
    config = {name: np.int64(value) for name, value in SMALL.items() if name.startswith("num")}
    found = foretell(toys.matmul, ARGUMENTS, [{**SMALL, **config}], [get_target("sm_90")])
    assert found["sm_90"] == [""]


@pytest.mark.parametrize("target", ["sm_86", "gfx942"])
@pytest.mark.parametrize("kernel", ["one_step", "while_loop"])
def test_shared_bytes_of_products_outside_of_for_loops_are_those_compiled(
    kernel, target, tmp_path, monkeypatch
):
    import staged_products

    from foretune.collect.compiled.compiling import compile_full, first_code, specialize

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    config = {"BM": 64, "BN": 32, "BK": 128, "num_warps": 4}
    function = getattr(staged_products, kernel)
    specialized = specialize(function, [], ARGUMENTS, config, get_target(target))
    block = BlockCode.parse(first_code(specialized, inline=True))
    shared_bytes = compile_full(specialized).metadata.shared
    assert block.shared_bytes(config, get_target(target)) == shared_bytes > 0


@pytest.mark.parametrize("target", ["sm_86", "sm_90", "gfx942"])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_shared_bytes_follow_the_stages_that_a_loop_sets(stages, target):
    import staged_products

    from foretune.collect.compiled.compiling import compile_full, first_code, specialize

    config = {"BM": 64, "BN": 64, "BK": 32, "STAGES": stages, "num_warps": 4, "num_stages": 3}
    staged = staged_products.staged_loop
    specialized = specialize(staged, [], ARGUMENTS, config, get_target(target))
    block = BlockCode.parse(first_code(specialized, inline=True))
    shared_bytes = compile_full(specialized).metadata.shared
    result_bytes = 64 * 64 * 2  # a result may need more than one stage
    assert block.shared_bytes(config, get_target(target)) <= shared_bytes
    assert shared_bytes <= max(block.shared_bytes(config, get_target(target)), result_bytes)


def test_shared_bytes_of_a_cluster_are_divided(large):
    sm_90 = get_target("sm_90")
    assert large.shared_bytes({**LARGE, "num_ctas": 2}, sm_90) == 2 * LARGE_STEP


def test_shared_bytes_of_a_batch_are_not_read_by_asynchronous_units():
    code = ATTENTION.replace("64x32xf16", "4x64x32xf16").replace("32x16xf16", "4x32x16xf16")
    code = code.replace("64x16xf32", "4x64x16xf32")
    assert BlockCode.parse(code).rows == 1


def test_shared_bytes_of_a_result_are_no_limit(toys):
    wide = {"BM": 256, "BN": 256, "BK": 16, "num_warps": 8, "num_stages": 2}
    assert foretell(toys.matmul, ARGUMENTS, [wide], [get_target("sm_86")])["sm_86"] == [""]


def test_foretell_missing_argument_is_an_error(toys):
    with pytest.raises(UsageError, match="lacks"):
        foretell(toys.matmul, {"a": torch.float16}, [SMALL], [get_target("sm_80")])
