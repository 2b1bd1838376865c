"""Every built-in CPU kernel: right answers at odd sizes, and costs that work on columns."""

import numpy as np
import pytest

pytest.importorskip("numba")

from foretune.collect.kernels.matmul import Matmul
from foretune.collect.kernels.numba_codegen import thread_counts
from foretune.collect.kernels.quantized_matvec import QuantizedMatvec
from foretune.collect.kernels.softmax import Softmax
from foretune.testing import check_kernel

# odd sizes first: none is a multiple of a vector, a tile or a group
CASES = {
    "matmul": (Matmul(), [{"M": 37, "N": 83, "K": 41}, {"M": 5, "N": 3, "K": 1}]),
    "quantized_matvec": (
        QuantizedMatvec(),
        [
            {"N": 33, "K": 203, "max_error": 0.2},  # which the coarsest format keeps
            {"N": 1, "K": 1, "max_error": 0.2},
        ],
    ),
    "softmax": (Softmax(), [{"R": 5, "C": 1037}, {"R": 1, "C": 1}]),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def kernel(case):
    return case[0]


@pytest.fixture
def problems(case):
    return [case[0].problem(values) for values in case[1]]


def error(kernel, problem, config, inputs):
    launch = kernel.build(problem, config, inputs)
    launch()  # a second launch must not depend on what the first left behind
    return kernel.relative_error(launch(), kernel.reference(inputs))


def test_kernel_fulfils_contract(case):
    check_kernel(*case, configs=1, seed=3)  # each is compiled


def test_name_and_error_limit(kernel, problems):
    assert kernel.name in CASES
    assert all(0 < kernel.error_limit(p, kernel.default(p)) <= 1e-4 for p in problems)


def test_default_is_in_a_large_space(kernel, problems):
    for problem in problems:
        space = kernel.space(problem)
        assert len(space) > 3000
        assert kernel.default(problem) in space


@pytest.mark.parametrize("threads", [(1,), (1, 2, 3), (1, 2, 4, 6)])
def test_default_is_in_the_space_of_any_machine(kernel, problems, threads, monkeypatch):
    module = type(kernel).__module__
    monkeypatch.setattr(f"{module}.thread_counts", lambda: threads)
    for problem in problems:
        assert kernel.default(problem) in kernel.space(problem)


def test_training_problems_are_distinct_legal_and_moderate(kernel):
    problems = kernel.training_problems(24, seed=5)
    assert len(set(problems)) == 24
    assert problems == kernel.training_problems(24, seed=5)
    assert problems != kernel.training_problems(24, seed=6)
    for problem in problems:
        assert kernel.problem(problem) == problem
        assert kernel.memory_bytes(problem) < 250e6


def test_single_thread_and_all_threads_agree(kernel, problems):
    problem = problems[0]
    inputs = kernel.make_inputs(problem)
    config = kernel.default(problem)
    outputs = [
        np.array(kernel.build(problem, {**config, "threads": threads}, inputs)())
        for threads in {thread_counts()[0], thread_counts()[-1], 3}
    ]
    assert all(np.array_equal(outputs[0], other) for other in outputs)


@pytest.mark.parametrize(
    ("n", "micro_n", "dtype", "packed"),
    [(7, 1, "fp32", True), (7, 1, "fp64", False), (61, 3, "fp32", False), (61, 1, "fp64", True)],
)
def test_matmul_columns_that_fill_no_panel(n, micro_n, dtype, packed):
    kernel = Matmul()
    problem = kernel.problem(M=13, N=n, K=19, dtype=dtype)
    config = {
        **kernel.default(problem),
        "micro_m": 2,
        "micro_n": micro_n,
        "vector_bits": 512,
        "split": "n",
        "block_m": 16,
        "block_n": 64,
        "pack_b": packed,
    }
    assert error(kernel, problem, config, kernel.make_inputs(problem)) < 1e-6


@pytest.mark.parametrize(
    ("format_", "group", "layout", "least", "most"),
    [
        ("fp32", 32, "rows", 0, 1e-6),
        ("fp32", 32, "panels", 0, 1e-6),
        ("int8", 32, "rows", 1e-3, 0.01),
        ("int8", 256, "panels", 1e-3, 0.01),
        ("int4", 32, "panels", 0.06, 0.1),
        ("int4", 256, "rows", 0.08, 0.14),
    ],
)
def test_accuracy_of_formats(format_, group, layout, least, most):
    kernel = QuantizedMatvec()
    problem = kernel.problem(N=203, K=1100)
    config = {
        **kernel.default(problem),
        "format": format_,
        "group": group,
        "layout": layout,
        "unroll": 1,
        "rows": 3,
    }
    assert least <= error(kernel, problem, config, kernel.make_inputs(problem)) <= most


def test_quantized_kernel_strict_limit_rejects_int4_and_accepts_int8():
    kernel = QuantizedMatvec()
    problem = kernel.problem(N=100, K=500, max_error=0.02)
    inputs = kernel.make_inputs(problem)
    config = {**kernel.default(problem), "unroll": 1}
    limits = {f: kernel.error_limit(problem, {"format": f}) for f in ("fp32", "int8", "int4")}
    assert limits == {"fp32": 1e-5, "int8": 0.02, "int4": 0.02}
    assert error(kernel, problem, {**config, "format": "int4"}, inputs) > 0.02
    assert error(kernel, problem, {**config, "format": "int8"}, inputs) <= 0.02


def test_fewer_bits_move_fewer_bytes():
    kernel = QuantizedMatvec()
    problem = kernel.problem(N=4096, K=11008)
    config = kernel.default(problem)
    moved = [
        float(kernel.cost(problem, {**config, "format": f, "group": 64}).bytes_moved)
        for f in ("fp32", "int8", "int4")
    ]
    assert moved[0] > 3.7 * moved[1] > 3.7 * 1.8 * moved[2]


@pytest.mark.parametrize(
    ("algorithm", "vector_bits", "shapes"),
    [
        ("three_pass_recompute", 128, [(0, "columns"), (512, "rows")]),
        ("three_pass_reload", 512, [(0, "rows"), (512, "columns")]),
        ("two_pass", 512, [(0, "columns"), (512, "rows")]),
    ],
)
def test_softmax_of_large_numbers(algorithm, vector_bits, shapes):
    kernel = Softmax()
    problem = kernel.problem(R=6, C=1100)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1000, 1000, (6, 1100)).astype(np.float32)
    x[1] = 1000
    x[2] = -1000
    x[3, 1:] = -1000
    x[4] = rng.standard_normal(1100) - 900
    x[5, -1] = 1000
    for block, split in shapes:
        config = {
            **kernel.default(problem),
            "algorithm": algorithm,
            "vector_bits": vector_bits,
            "unroll": 3,
            "unroll_scale": 2,
            "block": block,
            "split": split,
            "threads": 2,
        }
        y = np.array(kernel.build(problem, config, {"x": x})())
        expected = kernel.reference({"x": x})
        assert np.allclose(y, expected, rtol=2e-6, atol=1e-12), config
        assert np.allclose(y.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_softmax_that_streams_its_stores(split):
    kernel = Softmax()
    problem = kernel.problem(R=7, C=1040)
    inputs = kernel.make_inputs(problem)
    config = {**kernel.default(problem), "stream": True, "vector_bits": 512, "split": split}
    assert error(kernel, problem, config, inputs) < 1e-6


def test_softmax_streams_only_to_aligned_rows():
    kernel = Softmax()
    assert kernel.space(kernel.problem(R=2, C=96)).parameters["stream"] == (False, True)
    assert kernel.space(kernel.problem(R=2, C=97)).parameters["stream"] == (False,)
