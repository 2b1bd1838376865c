"""Contenders in processes of their own share no memory."""

import os
import sys

import numpy as np
import pytest
from toy_kernel import DEVICE

from foretune.collect import IsolatedRunner
from foretune.collect.comparison import DEFAULT_REPEATED
from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import MeasurementError
from foretune.space import Configuration
from foretune.tune.verifier import LOOKS, Evidence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

X = np.random.default_rng(0).random(50)
DEFAULT, OTHER = Configuration(other=0), Configuration(other=1)


@pytest.fixture(scope="module")
def runner():
    with IsolatedRunner(DEVICE, limit_s=20, power=False) as runner:
        yield runner


def compare(runner, function):
    kernel = FunctionKernel(function, {"other": [0, 1]}, (X,))
    return runner.compare_interleaved(kernel, kernel.problem(), [DEFAULT, OTHER], 0.02, seed=0)


def test_forked_comparison_times_all(runner):
    rounds = compare(runner, lambda x, other=0: x + 1)
    assert rounds.failures == {}
    assert rounds.time_ms.keys() == {DEFAULT.id, OTHER.id, DEFAULT_REPEATED}
    assert len({len(times) for times in rounds.time_ms.values()}) == 1
    assert rounds.checked_on[0] == "new values in every round"
    assert len(rounds.checked_on) > 1, "at least one kind of special values"


def test_forked_comparison_keeps_flags_apart(runner):
    """The other configuration sets a flag that slows the default down.

    On a busy machine, a time of few rounds may be ten times too long. So the flag costs hundreds of
    times as much as a call, and the evidence is that of a verification's first look.
    """
    flag = []

    def function(x, other=0):
        if other:
            flag.append(1)
        elif flag:
            sum(range(200_000))
        return np.sort(x) + x.mean()

    rounds = compare(runner, function)
    assert rounds.separate_ms.keys() == {DEFAULT.id, OTHER.id, DEFAULT_REPEATED}
    # Without the flag, the default's calls take microseconds.
    evidence = Evidence(DEFAULT.id, DEFAULT_REPEATED)
    for _ in range(min(LOOKS)):
        evidence.add(rounds)
    compared = evidence.compare(DEFAULT.id, OTHER.id, "other", OTHER, 0.01)
    assert compared.failure == "it is faster only if the default runs in the same process"


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (lambda: os._exit(3), "the process died: exit code 3"),
        (lambda: os.abort(), "the process died: SIGABRT"),
        (lambda: sys.exit(4), "the process died: exit code"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: setattr(np, "abs", np.zeros_like), "it replaces numpy.abs"),
    ],
    ids=["exit", "abort", "system exit", "error", "replaces"],
)
def test_forked_comparison_who_fails_is_out(runner, fail, reason):
    def function(x, other=0):
        if other:
            fail()
        return x + 1

    rounds = compare(runner, function)
    assert rounds.failures.keys() == {OTHER.id}
    assert reason in rounds.failures[OTHER.id]
    assert rounds.time_ms.keys() == {DEFAULT.id, DEFAULT_REPEATED}


def test_forked_comparison_default_that_computes_nothing_is_an_error(runner):
    with pytest.raises(MeasurementError, match="returns nothing and changes none"):
        compare(runner, lambda x, other=0: None)
