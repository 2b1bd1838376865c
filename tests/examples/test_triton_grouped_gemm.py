"""The grouped product: right interpreted, legal for many devices, and really compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_columns import check_columns

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton_grouped_gemm
from expert_counts import expert_counts
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from foretune.collect.kernels.triton_gemm import Limits
from foretune.errors import ProblemError

FILE = Path(__file__).parents[2] / "examples" / "kernels" / "triton_grouped_gemm.py"
CASES = Path(__file__).parents[1] / "collect" / "triton_gemm_cases.py"
KERNEL = triton_grouped_gemm.TritonGroupedGemm()
REAL = {"tokens": 512, "experts": 64, "top_k": 6, "N": 2816, "K": 2048}
LIMITS = {
    "sm_80": Limits(166_912, threads=32, cores=108, reads_shared=False),
    "sm_86": Limits(101_376, threads=32, cores=84, reads_shared=False),
    "sm_90": Limits(232_448, threads=32, cores=132, reads_shared=True),
    "gfx942": Limits(65_536, threads=64, cores=304, reads_shared=False),
}
VERSIONS = [tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np)]


@pytest.fixture
def on_device(monkeypatch):
    """Return a function that pretends to be on a device."""
    return lambda name: monkeypatch.setattr(
        triton_grouped_gemm, "device_limits", lambda: LIMITS[name]
    )


def problems():
    tiny = dict.fromkeys([p.name for p in KERNEL.problem_parameters if p.default is None], 1)
    return [KERNEL.problem(tiny), KERNEL.problem(REAL), *KERNEL.training_problems(12, seed=1)]


def check_numbers(*more, **environment):
    """Run the default and random configurations in a process, and check their results."""
    run = subprocess.run(
        [sys.executable, "-P", str(CASES), f"{FILE}:TritonGroupedGemm"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert not [r for r in results if not r["error"] <= r["limit"]]
    assert not [r for r in results if r.get("spoilt", 1e300) <= r["limit"]]
    assert {r["kind"] for r in results} >= {"default", "library", "any", *more}


@pytest.mark.skipif(
    VERSIONS[0] < (3, 7) and VERSIONS[1] >= (2, 4),
    reason="the interpreter of Triton 3.6 cannot count loops with NumPy 2.4",
)
def test_default_and_random_configurations_are_right_interpreted():
    # not on a GPU, which has more cores than these problems have tiles
    check_numbers("persistent", TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
def test_default_and_random_configurations_are_right_on_a_gpu():
    check_numbers(TRITON_INTERPRET="0")


@pytest.mark.parametrize("device", LIMITS)
def test_default_is_in_the_space_of_any_device(device, on_device):
    on_device(device)
    for problem in problems():
        assert KERNEL.default(problem) in KERNEL.space(problem), problem


@pytest.mark.parametrize("device", LIMITS)
def test_real_problems_have_real_spaces(device, on_device):
    on_device(device)
    assert 700 < len(KERNEL.space(KERNEL.problem(REAL))) < 100_000


def test_cost_and_derived_are_the_same_for_one_and_for_columns():
    features = check_columns(KERNEL, problems(), 8)
    for share in ("padding", "padding_k", "fill"):
        assert np.all((features[share] > 0) & (features[share] <= 1)), share


def test_cost_by_hand():
    problem = KERNEL.problem(tokens=2, experts=9, top_k=3, N=40, K=64)
    cost = KERNEL.cost(problem, {})  # six of the nine experts have a row each
    assert cost.flops == 2 * 6 * 40 * 64
    assert cost.bytes_moved == 2 * (2 * 64 + 6 * 40 * 64 + 6 * 40)


def test_training_problems_are_distinct_and_legal():
    problems = KERNEL.training_problems(40, seed=5)
    assert len(set(problems)) == 40
    assert problems == KERNEL.training_problems(40, seed=5)
    assert problems != KERNEL.training_problems(40, seed=6)
    for problem in problems:
        assert KERNEL.problem(problem) == problem
        assert KERNEL.memory_bytes(problem) < 24e9


def test_more_experts_per_token_than_there_are():
    with pytest.raises(ProblemError, match="top_k=9 is more than experts=8"):
        KERNEL.problem(tokens=4, experts=8, top_k=9, N=16, K=16)


@given(
    tokens=st.integers(1, 300),
    experts=st.integers(1, 80),
    skew=st.floats(0, 4),
    share=st.floats(0, 1),
)
def test_grouped_gemm_routes_every_token(tokens, experts, skew, share):
    top_k = 1 + int(share * (experts - 1))
    counts = expert_counts(tokens, experts, top_k, skew)
    assert counts.sum() == tokens * top_k
    assert counts.min() >= 0
    assert counts.max() <= tokens
    assert np.all(np.diff(counts) <= 0)


def test_grouped_gemm_routes_no_token_twice():
    problem = KERNEL.problem(tokens=23, experts=7, top_k=4, N=1, K=1, skew=1.5)
    rng = np.random.default_rng(3)
    counts = rng.permutation(expert_counts(23, 7, 4, 1.5))
    token_of, ends = triton_grouped_gemm.token_permutation(problem, seed=3)
    assert np.array_equal(np.diff(ends, prepend=0), counts)
    for rows in np.split(token_of, ends[:-1]):
        assert np.array_equal(rows, np.unique(rows))
    assert np.array_equal(np.bincount(token_of), np.full(23, 4))


def test_grouped_gemm_default_compiles(tmp_path, monkeypatch, on_device):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    on_device("sm_80")
    function = triton_grouped_gemm._grouped_gemm
    config = KERNEL.default(KERNEL.problem(REAL))
    pointers = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "token_of": "*i32", "ends": "*i32"}
    constants = {"EXPERTS": 64, "EVEN_K": True}
    constants |= {name: value for name, value in config.items() if name in function.arg_names}
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "i32")
        for name in function.arg_names
    }
    index = function.arg_names.index
    divisible = {
        (index(name),): [["tt.divisibility", 16]] for name in signature if name not in constants
    }
    constants = {(index(name),): value for name, value in constants.items()}
    code = triton.compile(
        ASTSource(function, signature, constants, divisible),
        target=GPUTarget("cuda", 80, 32),
        options={name: config[name] for name in ("num_warps", "num_stages")},
    )
    assert code.metadata.shared <= LIMITS["sm_80"].shared_bytes
