"""A winner is checked in a process that runs none of its code."""

import numpy as np
import pytest
from honest_caches import CACHES
from tampering_functions import (
    TAMPERING,
    differs_between_processes,
    is_faster,
    returns_a_list_of_a_set,
    returns_an_iterator,
)
from toy_kernel import DEVICE
from wrong_functions import HONEST

import foretune as ft
from foretune.collect import InProcessRunner, IsolatedRunner, Timing
from foretune.collect.wrapped.function import FunctionKernel
from foretune.space import Configuration
from foretune.tune import separate_check, verifier
from foretune.tune.functions import tuning
from foretune.tune.separate_check import Contest, SeparateVerdict, check_separately

X = np.random.default_rng(0).random(200)
TIMING = Timing(max_seconds=0.02, warmup_s=0.002)
TAMPERING_IS_SEEN_BY = dict.fromkeys(TAMPERING, "output") | dict.fromkeys(
    [
        "replaces_the_encoder_of_answers",
        "replaces_the_code_of_the_timer",
        "computes_when_the_output_is_sent",
        "computes_when_inputs_are_drawn",
        "is_honest_where_nobody_compares",
    ],
    "time",
)


@pytest.fixture(autouse=True)
def _one_pair_of_processes(monkeypatch):
    monkeypatch.setattr(separate_check, "TRIES", 1)


def contest(function, arguments, knob="wrong", gain=None, **options):
    kernel = FunctionKernel(function, {knob: [0, 1]}, arguments, **options)
    default, candidate = (Configuration({knob: value}) for value in (0, 1))
    return Contest(kernel, kernel.problem(), default, candidate, gain)


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_function_is_refused(name):
    # So large that it is not seen on a busy machine, either.
    gain = None if TAMPERING_IS_SEEN_BY[name] == "output" else 20.0
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        verdict = check_separately(runner, contest(*TAMPERING[name], gain=gain))
    if gain is None:
        assert "in a process of its own" in verdict.refused
    else:
        assert "clock sees" in verdict.unseen or verdict.refused
    assert not verdict.limitation


@pytest.mark.parametrize("name", ["patches_builtins", "replaces_the_encoder_of_answers"])
def test_tune_function_tampering_function_wins_nothing(name, monkeypatch):
    monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)
    monkeypatch.setattr(verifier, "LOOKS", {3: 1.0})
    function, arguments = TAMPERING[name]
    best = ft.tune_function(
        function, {"wrong": [0, 1]}, arguments, budget=2, verify_s=1, progress=False, store=False
    )
    assert not best.verified
    assert best.config == {"wrong": 0}
    (candidate,) = best.result.candidates
    reason = candidate.failure or candidate.while_busy
    assert ("own" if name == "patches_builtins" else "clock sees") in reason


@pytest.mark.parametrize(
    "name", ["returns_a_table", "returns_a_sparse_matrix", "draws_from_its_argument"]
)
def test_honest_function_passes(name):
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        assert check_separately(runner, contest(*HONEST[name])) == SeparateVerdict()


def test_honest_cache_passes():
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        checked = contest(*CACHES["keeps_a_window"], knob="cached")
        assert check_separately(runner, checked) == SeparateVerdict()


def test_real_gain_is_not_refused():
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        verdict = check_separately(runner, contest(is_faster, (X,), gain=1.9))
    # On a busy machine, it may not be seen.
    assert not verdict.refused
    assert not verdict.limitation


def test_invented_gain_is_refused():
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        verdict = check_separately(runner, contest(is_faster, (np.tile(X, 20),), gain=20.0))
    assert "another process's clock sees" in verdict.unseen


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (differs_between_processes, {}, "differs between two processes"),
        (returns_an_iterator, {"verify": lambda right, got: True}, "cannot be sent"),
    ],
)
def test_what_cannot_be_compared_is_said(function, options, reason):
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        verdict = check_separately(runner, contest(function, (X,), **options))
    assert reason in verdict.limitation
    assert not verdict.refused


def test_order_of_a_set_of_texts_is_the_same():
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        assert check_separately(runner, contest(returns_a_list_of_a_set, (X,))) == SeparateVerdict()


def test_function_in_this_process_is_not_checked():
    verdict = check_separately(InProcessRunner(DEVICE, TIMING), contest(is_faster, (X,)))
    assert verdict.limitation == "configurations run in this process"
