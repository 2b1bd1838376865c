"""Verdicts of a gate: `tune/gate/verdicts.py` and `tune/gate/case.py`."""

import math

import numpy as np
import pytest

from foretune.collect.comparison import Rounds
from foretune.tune.gate.case import Case
from foretune.tune.gate.environment import AGAIN, BASE, HEAD
from foretune.tune.gate.verdicts import (
    LOOKS,
    RED_ERROR,
    BenchmarkVerdict,
    needed_sessions,
    word_of,
)
from foretune.tune.results import Comparison

RELEVANT = 0.02


def comparison(low, high):
    return Comparison("x", None, 1.0, math.sqrt(low * high), low, high)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.01, 1.05, "faster"),
        (0.95, 0.99, "slower"),
        (0.985, 1.015, "same"),
        (0.985, 0.995, "same"),  # slower, but by less than counts
        (0.975, 0.995, "cannot tell"),  # slower, perhaps by more than counts
        (0.9, 1.1, "cannot tell"),
    ],
)
def test_word_follows_interval(low, high, word):
    assert word_of(comparison(low, high), RELEVANT) == word


def test_looks_share_the_whole_error():
    assert sum(LOOKS.values()) == pytest.approx(1.0)


def test_needed_sessions_of_equal_code_shrink_the_interval_to_the_relevant_change():
    # Half of the width is 4 %: it halves after four times as many sessions.
    assert needed_sessions(comparison(math.exp(-0.04), math.exp(0.04)), 6, RELEVANT) == (
        pytest.approx(24.0)
    )


def test_needed_sessions_of_a_change_shrink_the_interval_to_the_change():
    # 10 % slower with 20 % on each side.
    slower = comparison(math.exp(-0.3), math.exp(0.1))
    assert needed_sessions(slower, 6, RELEVANT) == pytest.approx(24.0)


def test_needed_sessions_unknown_interval_is_infinite():
    unknown = Comparison("x", None, 1.0, math.nan, math.nan, math.nan)
    assert needed_sessions(unknown, 6, RELEVANT) == math.inf


def test_benchmark_verdict_change_is_above_0_if_slower():
    verdict = BenchmarkVerdict("b", "time", "slower", comparison(0.5, 0.5), 1.0, sessions=6)
    assert verdict.change == pytest.approx(1.0)
    assert verdict.change_text == "+100.0% (+100.0% … +100.0%)"


def rounds(base, head, again):
    times = {BASE: base, HEAD: head, AGAIN: again}
    return Rounds({role: np.array([value]) for role, value in times.items()})


def filled(change, deviation, rng, sessions=6):
    """Return a case after some sessions with a true relative change of the time."""
    case = Case("b", "time")
    for _ in range(sessions):
        noise = np.exp(rng.normal(0, deviation, 3))
        case.add(rounds(noise[0], (1 + change) * noise[1], noise[2]), took_s=0.0)
    return case


@pytest.mark.parametrize(("change", "word"), [(0.0, "same"), (0.05, "slower"), (-0.05, "faster")])
def test_case_clear_verdict_ends_it(change, word):
    case = filled(change, 0.001, np.random.default_rng(0))
    case.look(0.001, RELEVANT)
    assert (case.word, case.is_open) == (word, False)


def gate_of_equal_code(rng, suite, deviation):
    """Return whether any benchmark of a suite of equal ones is red at any look."""
    cases = [filled(0.0, deviation, rng, sessions=0) for _ in range(suite)]
    for sessions, share in LOOKS.items():
        for case in cases:
            while case.is_open and len(case.evidence) < sessions:
                noise = np.exp(rng.standard_t(4, 3) * deviation)
                case.add(rounds(*noise), took_s=0.0)
            if case.is_open:
                case.look(RED_ERROR * share / suite, RELEVANT)
    return any(case.word == "slower" for case in cases)


@pytest.mark.extended
def test_equal_code_is_red_in_at_most_one_of_hundred_gates():
    """With the tails of a busy machine, and looks after every stage."""
    rng = np.random.default_rng(1)
    red = sum(gate_of_equal_code(rng, suite=10, deviation=0.02) for _ in range(200))
    assert red <= 4, "2 are expected at most; more than 4 have a probability of 5 %"


def test_case_failing_twice_in_head_fails():
    case = Case("b", "time")
    case.add(Rounds({}, {HEAD: "it hangs"}), took_s=1.0)
    assert case.is_open, "once may be the machine's fault"
    case.add(Rounds({}, {HEAD: "it hangs"}), took_s=1.0)
    assert (case.word, case.is_open) == ("fails", False)


def test_case_failing_in_base_is_not_compared():
    case = Case("b", "time")
    for _ in range(2):
        case.add(Rounds({}, {HEAD: "gone", BASE: "gone"}), took_s=1.0)
    assert case.word == "not compared"


def test_case_estimate_is_no_result():
    case = filled(0.05, 0.001, np.random.default_rng(0))
    case.estimate(0.001)
    assert case.needed_sessions(RELEVANT) > 0
    for _ in range(2):
        case.add(Rounds({}, {HEAD: "it hangs"}), took_s=1.0)
    assert (case.word, case.comparison) == ("fails", None)
