"""Tests runners, which turn hangs, crashes and errors into rows: `collect/runner.py`."""

import dataclasses
import os
import threading

import numpy as np
import pytest
from fake_clock import FakeClock
from toy_kernel import DEVICE, Toy, config

from foretune.collect import InProcessRunner, IsolatedRunner, Timing, benchmark, power, timing
from foretune.collect.power import PowerMeter
from foretune.errors import MeasurementError, MissingExtra, UsageError
from foretune.measurement import Status
from foretune.testing import check_runner

TIMING = Timing(max_seconds=0.03, warmup_s=0.002)
PROBLEM = Toy().problem(n=100)


@pytest.fixture(params=["in process", "isolated"])
def runner(request):
    if request.param == "isolated":
        return request.getfixturevalue("isolated")
    return InProcessRunner(DEVICE, TIMING)


def test_check_runner_in_process():
    check_runner(InProcessRunner(DEVICE, TIMING), isolates=False)


def test_check_runner_isolated():
    check_runner(IsolatedRunner(DEVICE, TIMING, limit_s=5))


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("wrong", "relative error 1"),
        ("no build", "the compiler says no"),
        ("no run", "ValueError: cannot run"),
    ],
)
def test_run_failures_have_reasons(behaviour, reason):
    measured = next(InProcessRunner(DEVICE, TIMING).run(Toy(), PROBLEM, [config(behaviour)]))
    assert reason in measured.error


def test_run_missing_package_is_error(runner):
    with pytest.raises(MissingExtra, match=r"pip install '\.\[toy\]'"):
        list(runner.run(Toy(), PROBLEM, [config("no extra")]))


def test_isolated_runner_hang_and_crash_become_rows(isolated):
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


def test_check_kernel_of_other_device_kind_is_refused(runner):
    class OnGpu(Toy):
        device_kind = "gpu"

    with pytest.raises(UsageError, match="runs on a gpu, not on Toy CPU"):
        next(runner.run(OnGpu(), PROBLEM, [config()]))


def test_isolated_runner_sends_kernel_of_script_or_function(isolated):
    """Nothing can import it, and its rows are of the same code on both sides."""

    class Local(Toy):
        def reference(self, inputs):
            return 2 * super().reference(inputs)

    measured = next(isolated.run(Local(), PROBLEM, [config()]))
    assert measured.status is Status.WRONG_RESULT
    assert measured.environment.endswith(Local().source_hash[:8])


def test_isolated_runner_unpicklable_kernel_is_refused(isolated):
    kernel = Toy()
    kernel.lock = threading.Lock()
    with pytest.raises(MeasurementError, match="cannot be sent to another process"):
        next(isolated.run(kernel, PROBLEM, [config()]))


def test_run_failing_meter_keeps_time(monkeypatch):
    class Broken(PowerMeter):
        name = "broken"
        device_kind = "cpu"

        def unavailable_because(self):
            return None

        def start(self):
            raise OSError("gone")

        def stop(self):
            return 1.0

    monkeypatch.setattr(benchmark, "find_meter", lambda kind, index: Broken())
    measured = next(InProcessRunner(DEVICE, TIMING).run(Toy(), PROBLEM, [config()]))
    assert measured.ok
    assert np.isnan(measured.power_w)


def test_run_meters_power_and_energy(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(power, "time", clock)

    class TenWatts(PowerMeter):
        name = "ten"
        device_kind = "cpu"

        def unavailable_because(self):
            return None

        def start(self):
            self.begin_s = clock.now_s

        def stop(self):
            return 10.0 * (clock.now_s - self.begin_s)

    class TenthOfAMillisecond(Toy):
        def build(self, problem, config, inputs):
            work = clock.launch(0.1)

            def launch():
                work()
                return inputs["x"].sum()

            return launch

    monkeypatch.setattr(benchmark, "find_meter", lambda kind, index: TenWatts())
    kernel = TenthOfAMillisecond()
    measured = next(InProcessRunner(DEVICE, TIMING).run(kernel, PROBLEM, [config()]))
    assert measured.time_ms == pytest.approx(0.1)
    assert measured.power_w == pytest.approx(10.0)
    assert measured.energy_mj == pytest.approx(10.0 * 0.1)
    limited = dataclasses.replace(DEVICE, specs={"power_limit_w": 5.0})
    measured = next(InProcessRunner(limited, TIMING).run(kernel, PROBLEM, [config()]))
    assert np.isnan(measured.power_w)  # twice the board's limit is no valid measurement


def test_isolated_runner_repeats_wrong_result_in_fresh_process(isolated):
    class Spoiling(Toy):
        def build(self, problem, config, inputs):
            if config["work"] == 2:
                os.environ["SPOILED"] = "1"
            return lambda: inputs["x"].sum() * (2 if config["work"] == 1 and spoiled() else 1)

    def spoiled():
        return "SPOILED" in os.environ

    first, second = isolated.run(Spoiling(), PROBLEM, [config(work=2), config()])
    assert first.ok
    assert second.ok


def test_isolated_runner_answer_of_other_configuration_is_failure(isolated, monkeypatch):
    other = next(InProcessRunner(DEVICE, TIMING).run(Toy(), PROBLEM, [config(work=2)]))
    monkeypatch.setattr(isolated._worker, "call", lambda *_, **__: other)
    measured = next(isolated.run(Toy(), PROBLEM, [config()]))
    assert (measured.config, measured.status) == (config(), Status.RUNTIME_ERROR)
    assert "the measurement of another configuration" in measured.error


def test_isolated_runner_close_ends_process(isolated):
    next(isolated.run(Toy(), PROBLEM, [config()]))
    process = isolated._worker._process
    isolated.close()
    assert process.poll() is not None
    isolated.close()  # twice is fine


def test_isolated_runner_process_that_cannot_start_is_error(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        IsolatedRunner(DEVICE, TIMING) as runner,
        pytest.raises(MeasurementError, match="a worker process ended with exit code 1"),
    ):
        next(runner.run(Toy(), PROBLEM, [config()]))
