"""The convolution: right answers at odd sizes, and a large space with the default in it."""

import numpy as np
import pytest

pytest.importorskip("numba")

from conv2d import Conv2d

from foretune.collect.kernels.numba_codegen import thread_counts
from foretune.errors import ProblemError
from foretune.testing import check_kernel

KERNEL = Conv2d()
PROBLEMS = [
    {"H": 9, "W": 14, "C": 5, "F": 21, "R": 3},
    {"H": 5, "W": 5, "C": 70, "F": 1, "R": 5},
    {"H": 3, "W": 7, "C": 1, "F": 130, "R": 1},
]


def test_conv2d_fulfils_contract():
    check_kernel(KERNEL, PROBLEMS, configs=1, seed=7)  # each is compiled


@pytest.mark.parametrize("threads", [(1,), (1, 2, 3), (1, 2, 4, 6)])
def test_default_is_in_the_large_space_of_any_machine(threads, monkeypatch):
    monkeypatch.setattr("conv2d.thread_counts", lambda: threads)
    for values in PROBLEMS:
        problem = KERNEL.problem(values)
        assert len(KERNEL.space(problem)) > 3000
        assert KERNEL.default(problem) in KERNEL.space(problem)
        assert 0 < KERNEL.error_limit(problem, KERNEL.default(problem)) <= 1e-4


def test_training_problems_are_distinct_legal_and_moderate():
    problems = KERNEL.training_problems(24, seed=5)
    assert len(set(problems)) == 24
    assert problems == KERNEL.training_problems(24, seed=5)
    assert problems != KERNEL.training_problems(24, seed=6)
    for problem in problems:
        assert KERNEL.problem(problem) == problem
        assert KERNEL.memory_bytes(problem) < 250e6


def test_single_thread_and_all_threads_agree():
    problem = KERNEL.problem(PROBLEMS[0])
    inputs, config = KERNEL.make_inputs(problem), KERNEL.default(problem)
    outputs = [
        np.array(KERNEL.build(problem, {**config, "threads": threads}, inputs)())
        for threads in {thread_counts()[0], thread_counts()[-1], 3}
    ]
    assert all(np.array_equal(outputs[0], other) for other in outputs)


def test_conv2d_filter_larger_than_image():
    with pytest.raises(ProblemError, match="does not fit"):
        KERNEL.problem(H=4, W=9, C=1, F=1, R=5)


@pytest.mark.parametrize("order", ["hfc", "cfh", "fch"])
def test_conv2d_visits_tile_once_per_block_of_channels(order):
    problem = KERNEL.problem(H=7, W=9, C=50, F=37, R=3)
    for split in ("rows", "filters"):
        config = {**KERNEL.default(problem), "order": order, "block_c": 32, "split": split}
        inputs = KERNEL.make_inputs(problem)
        launch = KERNEL.build(problem, config, inputs)
        launch()  # a second launch must not depend on what the first left behind
        assert KERNEL.relative_error(launch(), KERNEL.reference(inputs)) < 1e-6
