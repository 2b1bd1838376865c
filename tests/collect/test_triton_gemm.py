"""Matrix products in Triton: right interpreted, legal for many devices, and really compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_columns import check_columns

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from foretune.collect.kernels import triton_gemm, triton_quantized_gemm
from foretune.collect.kernels.triton_gemm import Limits
from foretune.errors import ProblemError
from foretune.registry import get_kernel

MODULES = {
    "triton_gemm": triton_gemm,
    "triton_quantized_gemm": triton_quantized_gemm,
}
LIMITS = {
    "sm_80": Limits(166_912, threads=32, cores=108, reads_shared=False),
    "sm_86": Limits(101_376, threads=32, cores=84, reads_shared=False),
    "sm_90": Limits(232_448, threads=32, cores=132, reads_shared=True),
    "gfx942": Limits(65_536, threads=64, cores=304, reads_shared=False),
}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
REAL = {
    "triton_gemm": {"M": 4096, "N": 4096, "K": 4096},
    "triton_quantized_gemm": {"M": 64, "N": 11008, "K": 4096},
}


@pytest.fixture(params=MODULES)
def kernel(request):
    return get_kernel(request.param)


@pytest.fixture
def on_device(monkeypatch):
    """Return a function that pretends to be on a device."""

    def choose(name):
        for module in MODULES.values():
            monkeypatch.setattr(module, "device_limits", lambda: LIMITS[name])

    return choose


VERSIONS = [tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np)]
interpreter_works = pytest.mark.skipif(
    VERSIONS[0] < (3, 7) and VERSIONS[1] >= (2, 4),
    reason="the interpreter of Triton 3.6 cannot count loops with NumPy 2.4",
)


def problems_of(kernel):
    tiny = dict.fromkeys([p.name for p in kernel.problem_parameters if p.default is None], 1)
    return [
        kernel.problem(tiny),
        kernel.problem(REAL[kernel.name]),
        *kernel.training_problems(12, seed=1),
    ]


def run_cases(**environment):
    script = Path(__file__).with_name("triton_gemm_cases.py")
    run = subprocess.run(
        [sys.executable, "-P", str(script), *MODULES],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **environment},
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def check_cases(results, *more):
    wrong = [r for r in results if not r["error"] <= r["limit"]]
    assert not wrong
    accepted_though_spoilt = [r for r in results if r.get("spoilt", 1e300) <= r["limit"]]
    assert not accepted_though_spoilt
    kinds = {(r["kernel"], r["kind"]) for r in results}
    for name in MODULES:
        assert {(name, k) for k in ("default", "library", "any", "split")} <= kinds
    assert kinds.issuperset(more)
    assert {("triton_quantized_gemm", kind) for kind in ("along K", "long steps")} <= kinds


@interpreter_works
def test_default_and_random_configurations_are_right_interpreted():
    # persistent: not on a GPU, which has more cores than these problems have tiles
    results = run_cases(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    check_cases(results, ("triton_gemm", "persistent"))


@pytest.mark.gpu
def test_default_and_random_configurations_are_right_on_a_gpu():
    check_cases(run_cases(TRITON_INTERPRET="0"))


@pytest.mark.parametrize("device", LIMITS)
def test_default_is_in_the_space_of_any_device(kernel, device, on_device):
    on_device(device)
    for problem in problems_of(kernel):
        space = kernel.space(problem)
        assert kernel.default(problem) in space, (problem, kernel.default(problem))


@pytest.mark.parametrize("device", LIMITS)
def test_real_problems_have_real_spaces(kernel, device, on_device):
    on_device(device)
    assert 700 < len(kernel.space(kernel.problem(REAL[kernel.name]))) < 100_000


@pytest.mark.parametrize("device", LIMITS)
@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_triton_gemm_space_leaves_out_what_does_not_fit(device, dtype, on_device):
    on_device(device)
    limits = LIMITS[device]
    itemsize = 2 if dtype == "fp16" else 1
    kernel = get_kernel("triton_gemm")
    space = kernel.space(kernel.problem(REAL[kernel.name], dtype=dtype))
    c = space.columns()
    step = itemsize * c["BLOCK_K"] * (c["BLOCK_M"] + c["BLOCK_N"])
    read_there = limits.reads_shared & (c["BLOCK_M"] >= 64) & (c["num_warps"] >= 4)
    buffers = np.maximum(c["num_stages"] - 1 + read_there, 1)
    assert (buffers * step).max() <= limits.shared_bytes
    assert (buffers * step).max() > 0.7 * limits.shared_bytes  # and what fits is there
    sums = c["BLOCK_M"] * c["BLOCK_N"] / (limits.threads * c["num_warps"])
    assert sums.min() == 4
    assert sums.max() == 128
    assert not np.any(c["PERSISTENT"] & (c["SPLIT_K"] > 1))
    assert np.any(c["PERSISTENT"])
    assert np.any(c["SPLIT_K"] > 1)


def test_configurations_that_are_the_same_program_are_there_once(on_device):
    on_device("sm_90")
    kernel = get_kernel("triton_gemm")
    c = kernel.space(kernel.problem(M=16, N=4096, K=4096)).columns()
    assert set(c["BLOCK_M"]) == {16}  # larger ones would be padding
    assert set(c["GROUP_M"]) == {1}  # there is one row of tiles
    tiles = 4096 / c["BLOCK_N"][c["PERSISTENT"]]
    assert not len(tiles) or tiles.min() > 132  # fewer do not go round twice
    short = kernel.space(kernel.problem(M=4096, N=4096, K=64)).columns()
    assert set(short["SPLIT_K"]) == {1}
    assert ((short["num_stages"] - 1) * short["BLOCK_K"]).max() < 64


def test_partial_sums_stay_small(on_device):
    on_device("sm_90")
    kernel = get_kernel("triton_gemm")
    splits = set(kernel.space(kernel.problem(M=4096, N=4096, K=8192)).columns()["SPLIT_K"])
    assert splits == {1, 2, 4}  # 4 · 4096² numbers of 4 bytes: 256 MiB


def test_cost_and_derived_are_the_same_for_one_and_for_columns(kernel):
    features = check_columns(kernel, problems_of(kernel), 8)
    for share in ("padding", "padding_k", "fill"):
        assert np.all((features[share] > 0) & (features[share] <= 1)), share


def test_waves_and_padding_of_a_product():
    kernel = get_kernel("triton_gemm")
    problem = kernel.problem(M=1000, N=4096, K=4096)
    config = {**kernel.default(problem), "BLOCK_M": 128, "BLOCK_N": 128, "SPLIT_K": 1}
    features = kernel.derived(problem, config, {"cores": 100.0})
    assert features["log2_tiles"] == 8  # 8 × 32 tiles
    assert features["waves"] == np.log2(3)
    assert features["fill"] == pytest.approx(256 / 300)
    assert features["padding"] == pytest.approx(1000 / 1024)
    split = kernel.derived(problem, {**config, "SPLIT_K": 2}, {"cores": 100.0})
    assert split["steps"] == features["steps"] / 2
    assert split["split_bytes"] == 2 * 8 * 1000 * 4096


def test_costs_by_hand():
    gemm, quantized = map(get_kernel, MODULES)
    cost = gemm.cost(gemm.problem(M=10, N=20, K=30, dtype="int8"), {})
    assert (cost.flops, cost.bytes_moved, cost.dtype) == (12000, 300 + 600 + 800, "int8")
    cost = quantized.cost(quantized.problem(M=10, N=20, K=256, zeros="group"), {})
    assert cost.bytes_moved == 2 * (10 * 256 + 10 * 20) + 20 * (128 + 2 * 4)


def test_training_problems_are_distinct_and_legal(kernel):
    problems = kernel.training_problems(40, seed=5)
    assert len(set(problems)) == 40
    assert problems == kernel.training_problems(40, seed=5)
    assert problems != kernel.training_problems(40, seed=6)
    for problem in problems:
        assert kernel.problem(problem) == problem
        assert kernel.memory_bytes(problem) < 24e9


def test_problems_that_cannot_be():
    with pytest.raises(ProblemError, match="more than 2,147,483,647 elements"):
        get_kernel("triton_gemm").problem(M=65536, N=65536, K=16)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [1, 63, 64, 200])
def test_packing_keeps_every_code(bits, k):
    codes = torch.randint(0, 2**bits, (k, 5), dtype=torch.uint8)
    packed = triton_quantized_gemm.packed(codes, bits, 32)
    padded = -(-k // 32) * 32
    assert packed.shape == (padded * bits // 8, 5)
    if bits == 4:  # a group's first half in the low bits, its second in the high ones
        halves = packed.view(-1, 1, 16, 5)
        packed = torch.cat([halves & 0xF, halves >> 4], 1).view(padded, 5)
    assert torch.equal(packed[:k], codes)
    assert not packed[k:].any()


def compiled(fn, target, config, pointers, constants):
    """Compile a kernel as a launch with sizes that 16 divides would."""
    options = {name: config[name] for name in ("num_warps", "num_stages")}
    knobs = {name: value for name, value in config.items() if name in fn.arg_names}
    constants = {**constants, **knobs}
    signature = {}
    divisible = {}
    for i, name in enumerate(fn.arg_names):
        signature[name] = "constexpr" if name in constants else pointers.get(name, "i32")
        if name not in constants:
            divisible[(i,)] = [["tt.divisibility", 16]]
    indexed = {(fn.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn, signature, indexed, divisible)
    return triton.compile(source, target=TARGETS[target], options=options)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set


def compiled_gemm(target, config, **sizes):
    constants = {"stride_ak": 1, "stride_bk": 1, "EVEN_K": True, "SUM": tl.float32, **sizes}
    pointers = dict.fromkeys("abc", "*fp16")
    return compiled(triton_gemm._gemm, target, config, pointers, constants)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_default_gemm_compiles(target, compiler, on_device):
    on_device(target)
    kernel = get_kernel("triton_gemm")
    config = kernel.default(kernel.problem(REAL[kernel.name]))
    shared = compiled_gemm(target, config).metadata.shared
    assert shared == (3 if target == "sm_90" else 2) * 2 * 64 * (128 + 128)  # as the rule has it
    assert shared <= LIMITS[target].shared_bytes


def test_triton_gemm_one_token_compiles(compiler, on_device):
    on_device("sm_90")
    kernel = get_kernel("triton_gemm")
    config = {**kernel.default(kernel.problem(M=1, N=4096, K=4096)), "SPLIT_K": 4}
    code = compiled_gemm("sm_90", config, M=1)  # Triton takes a 1 for a constant
    assert code.metadata.shared <= LIMITS["sm_90"].shared_bytes


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_default_quantized_gemm_compiles(target, compiler, on_device):
    on_device(target)
    kernel = get_kernel("triton_quantized_gemm")
    config = kernel.default(kernel.problem(REAL[kernel.name]))
    pointers = {"a": "*fp16", "w": "*u8", "scales": "*fp16", "c": "*fp16"}
    constants = {
        "zeros": None,
        "stride_wn": 1,
        "GROUP": 128,
        "BITS": 4,
        "ZEROS": False,
        "EVEN_K": True,
    }
    code = compiled(triton_quantized_gemm._quantized_gemm, target, config, pointers, constants)
    assert code.metadata.shared <= LIMITS[target].shared_bytes


def test_triton_gemm_left_out_tile_would_not_fit(compiler, on_device):
    on_device("sm_80")
    kernel = get_kernel("triton_gemm")
    space = kernel.space(kernel.problem(REAL[kernel.name]))
    config = {**kernel.default(kernel.problem(REAL[kernel.name])), "BLOCK_N": 256, "num_warps": 8}
    assert {**config, "num_stages": 4} in space  # 144 KiB
    assert {**config, "num_stages": 5} not in space  # 192 KiB
    code = compiled_gemm("sm_80", {**config, "num_stages": 5})
    assert code.metadata.shared > LIMITS["sm_80"].shared_bytes
