"""No cheat becomes a verified win: wrong outputs, impossible times, attacks and memories."""

import re

import cheating_functions as cheats
import numpy as np
import pytest
from cheating_functions import X
from toy_kernel import DEVICE

import foretune as ft
from foretune.collect import InProcessRunner, IsolatedRunner, Timing
from foretune.collect.wrapped.function import FunctionKernel
from foretune.errors import MeasurementError
from foretune.measurement import Status
from foretune.space import Configuration
from foretune.tune import verifier
from foretune.tune.functions import tuning

TIMING = Timing(max_seconds=0.02, warmup_s=0.002)
KNOBS = {"cheats": [False, True]}
SMALL = "relative error .* is above"
WRONG = {
    "writes_nothing": "the output is None instead of numpy.ndarray",
    "computes_a_part": SMALL,
    "forgets_the_last": SMALL,
    "hides_zeros_behind_a_large_value": SMALL,
    "gives_an_empty_output": "has shape",
    "gives_one_number": "the output is float instead of numpy.ndarray",
    "gives_nan": SMALL,
    "returns_its_input": "has shape",
    "fills_in_later": SMALL,
    "is_lazy": "Lazy instead of numpy.ndarray",
    "is_a_lazy_list": "LazyList instead of tuple",
    "is_a_lazy_array": "LazyArray instead of numpy.ndarray",
    "is_rough": "float16 instead of float64",
    "gives_a_text": "the output is str instead of numpy.ndarray",
    "writes_into_its_input_instead": "it changes array 0 of its arguments",
}
"""Functions whose output the check refuses, and the reason in their row."""

ATTACKS = {
    "replaces_the_checker": "it replaces .*values.relative_error",
    "replaces_the_clock": "it replaces time.perf_counter_ns",
    "replaces_the_timer": "it replaces Timer.sample_ms",
    "replaces_a_function_of_numpy": "it replaces numpy.abs",
    "rewrites_the_reference": "it changes its inputs or the reference",
    "raises_the_tolerance": "it replaces its own check",
    "accepts_everything": "it replaces its own check",
    "ends_the_process": "the process died: exit code 0",
    "raises_what_cannot_be_read": "Unreadable: its message cannot be read: SystemError",
    "leaves_the_interpreter": "the process died: exit code 0",
}
"""Functions that attack the process that measures them, and the reason in their row."""

NEEDS_FRESH_INPUTS = (
    "remembers_the_shape",
    "remembers_the_content",
    "remembers_the_object",
    "remembers_the_address",
    "remembers_in_its_defaults",
    "remembers_in_a_file",
    "replays_after_twenty_calls",
    "computed_when_imported",
    "stops_after_thirty_calls",
)
"""Functions that are right, or fast, until the arguments change."""


@pytest.fixture(scope="module")
def runner():
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        yield runner


def measured(runner, kernel, *values):
    (knob,) = kernel.default(kernel.problem())
    configs = [Configuration({knob: value}) for value in values]
    return list(runner.run(kernel, kernel.problem(), configs))


@pytest.mark.parametrize("name", WRONG)
def test_verifier_refuses_wrong_output(name):
    kernel = FunctionKernel(getattr(cheats, name), KNOBS, (X,))
    cheat, neighbor = measured(InProcessRunner(DEVICE, TIMING), kernel, True, False)
    assert cheat.status is Status.WRONG_RESULT
    assert re.search(WRONG[name], cheat.error), cheat.error
    assert neighbor.ok, neighbor.error


@pytest.mark.parametrize("name", ATTACKS)
def test_verifier_refuses_attack(runner, name):
    (cheat,) = measured(runner, FunctionKernel(getattr(cheats, name), KNOBS, (X,)), True)
    assert not cheat.ok
    assert re.search(ATTACKS[name], cheat.error), cheat.error


@pytest.mark.parametrize("name", ["replaces_the_checker", "rewrites_the_reference"])
def test_verifier_attack_does_not_help_others(name):
    kernel = FunctionKernel(getattr(cheats, name), KNOBS, (X,))
    runner = InProcessRunner(DEVICE, TIMING)
    assert [m.ok for m in measured(runner, kernel, True, False)] == [False, True]


def test_impossible_times_are_refused(runner):
    said = "0", "-1", "nan", "1e9", "inf"
    *refused, neighbor = measured(runner, cheats.SaysItsTime(), *said, "honest")
    for m in refused:
        assert m.status is Status.RUNTIME_ERROR
        assert "is impossible, it ran for" in m.error
    assert neighbor.ok


def test_sorting_in_place_helps_no_neighbor(runner):
    cheat, neighbor = measured(runner, cheats.Sorted(), True, False)
    assert cheat.status is Status.WRONG_RESULT
    assert cheat.error == "it changes its inputs or the reference"
    assert neighbor.ok


@pytest.mark.parametrize("output", [np.full(9, np.nan), np.zeros(0), None])
def test_verifier_refuses_default_that_computes_nothing(runner, output):
    kernel = FunctionKernel(lambda x, cheats=False: output, KNOBS, (X,), name="nothing")
    with pytest.raises(MeasurementError, match=r"is empty or all NaN|returns nothing"):
        measured(runner, kernel, True)


def arguments(name):
    return (X, np.zeros(len(X))) if name == "stops_after_thirty_calls" else (X,)


def tune(name, monkeypatch):
    monkeypatch.setattr(verifier, "LOOKS", {2: 1.0})
    monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)
    function = getattr(cheats, name)
    return ft.tune_function(
        function, KNOBS, arguments(name), budget=2, verify_s=0.1, progress=False, store=False
    )


@pytest.mark.parametrize("name", ["hides_zeros_behind_a_large_value", "replaces_the_clock"])
def test_tune_refused_configuration_wins_nothing(name, monkeypatch):
    best = tune(name, monkeypatch)
    assert not best.verified
    assert best.config == {"cheats": False}
    assert all(step.status != "ok" for step in best.result.trace if step.config["cheats"])


@pytest.mark.filterwarnings("ignore:.*pinned=:foretune.errors.ForetuneWarning")
@pytest.mark.parametrize("name", NEEDS_FRESH_INPUTS)
def test_tune_cached_result_wins_nothing(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    best = tune(name, monkeypatch)
    assert not best.verified
    assert best.config == {"cheats": False}
