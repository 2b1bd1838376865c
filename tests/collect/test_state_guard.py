"""State that configurations leave behind: what is noticed, and what is restored."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from toy_kernel import DEVICE, Toy, config

from foretune.collect import InProcessRunner, Timing, timing
from foretune.collect.state_guard import (
    FunctionGuard,
    _checksum_on_device,
    fingerprint,
    fingerprints,
    has_changed,
    own_state,
)
from foretune.collect.wrapped.function import FunctionKernel
from foretune.device import available_cores
from foretune.errors import MeasurementError
from foretune.kernel import Kernel
from foretune.measurement import Status
from foretune.space import Configuration

TIMING = Timing(max_seconds=0.01, warmup_s=0.001)
PROBLEM = Toy().problem(n=10)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (time, "perf_counter_ns"),
        (timing.Timer, "sample_ms"),
        (Kernel, "relative_error"),
        (np, "isfinite"),
        (timing, "time"),
    ],
)
def test_replaced_functions_are_restored(owner, name):
    guard = FunctionGuard()
    known = vars(owner)[name]
    assert guard.restore() == []
    setattr(owner, name, lambda *args: 0)
    assert guard.restore() == [f"{owner.__name__}.{name}"]
    assert vars(owner)[name] is known


def test_state_guard_timer_gets_no_new_methods():
    timing.CPU_TIMER.sample_ms = lambda launch, batch: 1e-6
    assert FunctionGuard().restore() == ["CPU_TIMER.sample_ms"]
    assert timing.CPU_TIMER.sample_ms(lambda: time.sleep(1e-3), 1) >= 1


def test_state_guard_replaced_checker_is_wrong_result():
    class Patches(Toy):
        def build(self, problem, config, inputs):
            if config["work"] == 2:
                Kernel.relative_error = lambda self, output, expected: 0.0
                return lambda: -1.0
            return super().build(problem, config, inputs)

    runner = InProcessRunner(DEVICE, TIMING)
    cheat, wrong, right = runner.run(
        Patches(), PROBLEM, [config(work=2), config("wrong"), config("ok")]
    )
    assert cheat.status is Status.WRONG_RESULT
    assert "it replaces Kernel.relative_error" in cheat.error
    assert wrong.status is Status.WRONG_RESULT
    assert right.ok


def test_changed_inputs_are_no_result_but_written_outputs_are():
    class Sums(Toy):
        def make_inputs(self, problem, seed=0):
            return {"x": np.array([3.0, 1.0, 2.0]), "out": np.zeros(1)}

        def build(self, problem, config, inputs):
            def launch():
                if config["work"] == 2:
                    inputs["x"].sort()
                inputs["out"][:] = inputs["x"].sum()
                return inputs["out"]

            return launch

        def reference(self, inputs):
            return np.array([6.0])

    sorts, sums = InProcessRunner(DEVICE, TIMING).run(Sums(), PROBLEM, [config(work=2), config()])
    assert (sorts.status, sorts.error) == (
        Status.WRONG_RESULT,
        "it changes its inputs or the reference",
    )
    assert sums.ok


def test_fingerprints_of_arrays(monkeypatch):
    x = np.arange(1000.0)
    assert fingerprint(x) == fingerprint(x.copy()) != fingerprint(x[::-1].copy())
    assert fingerprint([1, 2]) != fingerprint([2, 1])
    monkeypatch.setattr("foretune.collect.state_guard.SAMPLED_BYTES", 800)
    before = fingerprint(x)
    x.sort()
    x[:] = x[::-1].copy()
    assert fingerprint(x) != before
    torch = pytest.importorskip("torch")
    t = torch.arange(6).reshape(2, 3)
    arrays = fingerprints({"t": t, "n": 3})
    assert not has_changed(arrays, None)
    t[0, 0] = 9
    assert has_changed(arrays, None)
    assert not has_changed(arrays, t[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_tensors_on_a_device_are_summed_there(dtype, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("foretune.collect.state_guard.DEVICE_BYTES", 64)
    x = torch.arange(100).remainder(2).to(getattr(torch, dtype))
    before = _checksum_on_device(x)
    assert _checksum_on_device(x.clone()) == before != _checksum_on_device(x[1:])
    assert _checksum_on_device(x[::2]) == _checksum_on_device(x[::2].clone())
    assert _checksum_on_device(x[:0]) == 0
    x[99] = 0
    assert _checksum_on_device(x) != before


def test_folder_environment_and_cores_are_put_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "offset.txt").write_text("1")

    def spoil(x, spoils=False):
        if spoils:
            os.chdir("/")
            os.environ["OFFSET"] = "5"
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
            return x + 1
        return x + float(os.environ.get("OFFSET") or (Path("offset.txt").read_text()))

    kernel = FunctionKernel(spoil, {"spoils": [False, True]}, (np.ones(4),))
    configs = [Configuration(spoils=spoils) for spoils in (False, True, False)]
    runner = InProcessRunner(DEVICE, TIMING)
    cores = available_cores()
    assert all(m.ok for m in runner.run(kernel, kernel.problem(), configs))
    assert runner.compare_interleaved(kernel, kernel.problem(), configs[:2], 0.01).failures == {}
    assert (Path.cwd(), available_cores()) == (tmp_path, cores)


def test_state_guard_notices_kept_results():
    kept = {}
    table = np.arange(3)
    count = 0

    def keeps(x, b=1, seen=[]):  # noqa: B006
        nonlocal count
        if x == "dict":
            kept[len(kept)] = x
        if x == "table":
            table[0] += 1
        if x == "count":
            count += 1
        if x == "default":
            seen.append(x)
        if x == "attribute":
            keeps.called = True

    kernel = FunctionKernel(keeps, {"b": [1, 2]}, ("",))
    state = own_state(kernel)
    for x in ("nothing", "dict", "table", "count", "default", "attribute"):
        keeps(x)
        assert (own_state(kernel) == state) == (x == "nothing"), x
        state = own_state(kernel)


@pytest.mark.parametrize("output", [np.ones(0), np.full(3, np.nan), [], (None, [])])
def test_state_guard_refuses_default_that_computes_nothing(output):
    kernel = FunctionKernel(lambda x, b=1: output, {"b": [1, 2]}, (1.0,))
    runner = InProcessRunner(DEVICE, TIMING)
    with pytest.raises(MeasurementError, match="is empty or all NaN"):
        list(runner.run(kernel, kernel.problem(), kernel.space(kernel.problem())))


def test_whole_numbers_and_booleans_are_invalidated():
    for output in (np.arange(4), np.ones(3, bool), np.ones(2, complex), np.ones(2)):
        before = output.copy()
        Toy().invalidate_output(output)
        assert not (output == before).any()
    read_only = np.broadcast_to(1.0, 3)
    Toy().invalidate_output(read_only)
    assert (read_only == 1).all()


def test_runner_unreadable_error_is_a_row():
    class Unreadable(Exception):
        def __str__(self):
            raise ValueError("not even this")

    class Raises(Toy):
        def build(self, problem, config, inputs):
            def launch():
                raise Unreadable

            return launch

    (m,) = InProcessRunner(DEVICE, TIMING).run(Raises(), PROBLEM, [config()])
    assert (m.status, m.error) == (
        Status.RUNTIME_ERROR,
        "Unreadable: its message cannot be read: ValueError",
    )
