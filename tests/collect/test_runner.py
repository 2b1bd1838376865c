"""Runners: what hangs, dies, lies or fails becomes a row, and the next configuration still runs."""

import os
from pathlib import Path

import numpy as np
import pytest
from toy_kernel import DEVICE, Toy, config

from foretune.collect import InProcessRunner, IsolatedRunner, Timing
from foretune.errors import MeasurementError, MissingExtra
from foretune.measurement import Status

TIMING = Timing(box_s=0.03, warmup_s=0.002)
PROBLEM = Toy().problem(n=100)
FAILURES = {
    "wrong": (Status.WRONG_RESULT, "relative error 1"),
    "no build": (Status.COMPILE_ERROR, "the compiler says no"),
    "no run": (Status.RUNTIME_ERROR, "ValueError: cannot run"),
}


@pytest.fixture
def isolated(monkeypatch):
    toy = str(Path(__file__).parents[1] / "toy")
    path = [toy, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    with IsolatedRunner(DEVICE, TIMING, limit_s=20) as runner:
        yield runner


@pytest.fixture(params=["in process", "isolated"])
def runner(request):
    if request.param == "isolated":
        return request.getfixturevalue("isolated")
    return InProcessRunner(DEVICE, TIMING)


def test_times_and_failures_become_rows(runner):
    configs = [config(), *map(config, FAILURES), config(work=4)]
    rows = list(runner.run(Toy(), PROBLEM, configs))
    assert [m.config for m in rows] == configs
    assert rows[0].ok
    assert rows[0].time_ms >= 0.1
    assert rows[0].time_ms == pytest.approx(np.median(rows[0].time_ms_samples))
    assert rows[-1].time_ms >= 0.4
    for m, (status, reason) in zip(rows[1:-1], FAILURES.values(), strict=True):
        assert m.status is status
        assert reason in m.error
        assert "\n" not in m.error
        assert np.isnan(m.time_ms)
    assert all(m.device == DEVICE.name and "python" in m.environment for m in rows)


def test_what_nobody_can_measure_is_an_error(runner):
    with pytest.raises(MissingExtra, match=r"pip install 'foretune\[toy\]'"):
        list(runner.run(Toy(), PROBLEM, [config("no extra")]))


def test_race_is_interleaved_with_the_library(runner):
    first, second = config(), config(work=2)
    times = runner.race(Toy(), PROBLEM, [first, second], box_s=0.05)
    assert list(times) == [first.id, second.id, "library:NumPy"]
    assert len({len(t) for t in times.values()}) == 1
    assert times[first.id].min() >= 0.1
    assert times[second.id].min() >= 0.2


def test_a_hang_is_a_timeout_and_a_crash_an_error(isolated):
    isolated.limit_s = 20
    assert next(isolated.run(Toy(), PROBLEM, [config()])).ok  # the process is up
    isolated.limit_s = 1
    hung = next(isolated.run(Toy(), PROBLEM, [config("hang")]))
    assert hung.status is Status.TIMEOUT
    assert "1 s" in hung.error
    isolated.limit_s = 20
    died, after = isolated.run(Toy(), PROBLEM, [config("die"), config()])
    assert died.status is Status.RUNTIME_ERROR
    assert "exit code 7" in died.error
    assert after.ok


def test_a_race_of_what_dies_is_an_error(isolated):
    with pytest.raises(MeasurementError, match="could not be compared"):
        isolated.race(Toy(), PROBLEM, [config("die")], box_s=0.01)


def test_closing_ends_the_process(isolated):
    next(isolated.run(Toy(), PROBLEM, [config()]))
    process = isolated._process
    isolated.close()
    assert process.poll() is not None
    isolated.close()  # twice is fine


def test_a_process_that_cannot_start_is_noticed_at_once(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        IsolatedRunner(DEVICE, TIMING) as runner,
        pytest.raises(MeasurementError, match="ended with exit code"),
    ):
        next(runner.run(Toy(), PROBLEM, [config()]))
