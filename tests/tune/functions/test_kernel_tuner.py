"""The interface of Kernel Tuner: `tune/functions/kernel_tuner.py`."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from compiled_once import compile_once

import foretune as ft
from foretune.collect import InProcessRunner, Timing
from foretune.collect.devices import local_device
from foretune.device import Device
from foretune.errors import MeasurementError, MeterUnavailable, UsageError
from foretune.tune import verifier
from foretune.tune.functions import kernel_tuner, tuning

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
QUICK = {"isolated": False, "verify_s": 3.0, "quiet": True}
N = 4_000
A, B = np.arange(N, dtype="f4"), np.ones(N, dtype="f4")
C = np.zeros(N, "f4")
ANSWER = [A + B, None, None, None]
ARGUMENTS = [C, A, B, np.int32(N)]
SLOW = """
#include <math.h>
void add(float *c, float *a, float *b, int n) {
#if block == 3
    does not compile
#endif
    for (int j = 0; j < n; j++) {
        volatile float x = 0;
        for (int i = 0; i < block; i++) x = sqrtf(x + i);
        c[j] = a[j] + b[j];
    }
}
"""
"""The larger the block, the slower, in proportion."""


class Observer:
    """As Kernel Tuner's observers say what they observe."""

    def __init__(self, *observables):
        self.observables = observables


class Powered(InProcessRunner):
    """Measures, and reads 50 W from a meter that is not there."""

    def run(self, *args, **kwargs):
        for row in super().run(*args, **kwargs):
            yield replace(row, power_w=50.0) if row.ok else row


COMPILED = {}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """No probe; short measurements; the same source is compiled once."""

    def found(name, measure=True):
        return DEVICE if name == "cpu" else local_device(name, measure)

    for module in (tuning, kernel_tuner):
        monkeypatch.setattr(module, "local_device", found)
    compile_once(monkeypatch, COMPILED)
    quick = Timing(max_seconds=0.02, warmup_s=0.001)
    usual = Timing.__init__
    monkeypatch.setattr(
        Timing,
        "__init__",
        lambda self, *a, **k: usual(self, *a, **k) if a else vars(self).update(vars(quick)),
    )


def tune(**more):
    knobs = more.pop("knobs", {"block": [20, 3, 1, 60]})
    options = {"lang": "C", "answer": ANSWER, "compiler_options": ["-O1"], **QUICK, **more}
    return ft.tune_kernel("add", SLOW, N, ARGUMENTS, knobs, **options)


def test_tune_kernel_result_unpacks_as_results_and_env():
    best = tune(
        metrics={"rate": "1 / time", "double": "rate * 2", "block2": lambda p: 2 * p["block"]}
    )
    results, env = best
    assert best.config == {"block": 1}
    assert env["best_config"]["block"] == 1
    ran = {r["block"]: r for r in results if isinstance(r["time"], float)}
    assert ran.keys() == {1, 20, 60}
    assert ran[20]["double"] == pytest.approx(2 / ran[20]["time"])
    assert ran[20]["block2"] == 40
    (failed,) = (r for r in results if r["block"] == 3)
    assert failed["time"] == "compile_error"
    assert ft.best("add", n=N) == {"block": 1}


@pytest.mark.opencl
def test_tune_kernel_order_agrees_with_kernel_tuner(tmp_path, monkeypatch):
    """The same order of configurations, and the same best, on the same runtime."""
    theirs = pytest.importorskip("kernel_tuner")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verifier, "LOOKS", {2: 1.0})  # each process builds all anew
    source = """
    __kernel void add(__global float *c, __global float *a, __global float *b, int n) {
        int i = get_global_id(0);
        float x = 0;
        for (int k = 0; k < work; k++) x = native_sqrt(x + a[i]);
        if (i < n) c[i] = a[i] + b[i] + 0 * x;
    }"""
    knobs = {"block_size_x": [64], "work": [1, 2000, 200]}
    call = ("add", source, N // 10, ARGUMENTS, knobs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = theirs.tune_kernel(*call, quiet=True)
    ours, env = ft.tune_kernel(*call, strategy="brute_force", **QUICK)
    order = [[r["work"] for r in sorted(rows, key=lambda r: r["time"])] for rows in (results, ours)]
    assert order[0] == order[1] == [1, 200, 2000]
    assert env["best_config"]["work"] == 1


def test_tune_kernel_reads_and_writes_cache_file(tmp_path):
    first = tune(cache=str(tmp_path / "cache"), strategy="brute_force")
    assert first.measured + 1 == 4
    content = json.loads((tmp_path / "cache.json").read_text())
    assert content["kernel_name"] == "add"
    assert content["cache"]["3"]["time"] == "CompilationFailedConfig"
    content["cache"] = {"20": {"block": 20, "time": 5.0}, "60": {"block": 60, "time": 0.001}}
    (tmp_path / "cache.json").write_text(json.dumps(content)[:-2])  # of a tuner that was stopped
    again = tune(cache=str(tmp_path / "cache.json"), store=False, strategy="brute_force")
    told = {r["block"]: r["time"] for r in again.results}
    assert (told[20], told[60]) == (5.0, 0.001)
    assert again.measured == 2
    assert again.config == {"block": 1}, "what a file promises is verified"
    with pytest.raises(UsageError, match="is of tune_params_keys"):
        tune(
            cache=str(tmp_path / "cache"),
            knobs={"block": [1, 20], "opt": [1]},
            compiler_options=["-O{opt}"],
        )


class Interrupts:
    """Progress during which somebody presses Ctrl-C."""

    def start(self, stage, total):
        pass

    def say(self, text):
        pass

    def advance(self, note=""):
        raise KeyboardInterrupt


def test_tune_kernel_interrupted_search_writes_cache_file(tmp_path):
    how = {"cache": str(tmp_path / "cache.json"), "store": False, "strategy": "brute_force"}
    how["knobs"] = {"block": [20, 1, 60]}
    with pytest.raises(KeyboardInterrupt, match="kept"):
        tune(progress=Interrupts(), quiet=False, **how)
    kept = json.loads((tmp_path / "cache.json").read_text())["cache"]
    assert len(kept) == 2
    assert tune(**how).measured == 1


def test_cache_file_is_readable_by_kernel_tuner(tmp_path):
    util = pytest.importorskip("kernel_tuner.util")
    tune(cache=str(tmp_path / "cache.json"), budget=4)
    found = util.read_cache(str(tmp_path / "cache.json"), open_cache=False)
    assert isinstance(found["cache"]["1"]["time"], float)
    assert isinstance(found["cache"]["3"]["__error__"], util.CompilationFailedConfig)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"smem_args": {"size": 4}}, "smem_args must be {'size': bytes}"),
        ({"cmem_args": {"c": C}}, "cmem_args are for CUDA and HIP kernels: pass an array"),
        ({"texmem_args": {"c": C}}, "unknown option 'texmem_args'"),
        ({"observers": [Observer("core_freq")]}, "does not take an observer of core_freq"),
        ({"lang": "CUDA", "cmem_args": {"c": [1, 2]}}, "cmem_args: c must be a NumPy array"),
        ({"observers": [object()]}, "does not take an observer of object"),
        ({"simulation_mode": True}, "unknown option 'simulation_mode'"),
        ({"objectives": {"time": False}}, "unknown option 'objectives'"),
        ({"objective": "GFLOP/s"}, "objective 'GFLOP/s' is not supported: use time or energy"),
        ({"objective": "time", "objective_higher_is_better": True}, "is not supported"),
        ({"iterations": -2}, "-2 iterations leave nothing to time: give at least 1"),
        ({"lang": "CUD"}, "unknown lang 'CUD': did you mean 'CUDA'"),
        ({"lang": "SYCL"}, "unknown lang 'SYCL'"),
        ({"strategy": "firefly"}, "unknown searcher 'firefly'"),
        ({"strategy_options": {"popsize": 3}}, "unknown strategy option 'popsize'"),
        ({"metrics": {"x": "1 / tim"}}, "unknown value in metric x 'tim': did you mean 'time'"),
        ({"knobs": {"blok": [1, 2]}}, "does not use the knob 'blok'"),
    ],
)
def test_tune_kernel_unsupported_argument_is_named(more, message):
    with pytest.raises(UsageError, match=message):
        tune(**more)


def test_tune_kernel_cuda_without_gpu_raises(monkeypatch):
    monkeypatch.setattr("foretune.collect.devices.local_gpus", list)
    with pytest.raises(UsageError, match="is CUDA, and this machine has no GPU 0"):
        ft.tune_kernel("add", "__global__ void add(float *c) {}", N, [C], {"block_size_x": [32]})


def test_tune_kernel_hip_without_gpu_raises(monkeypatch, tmp_path):
    monkeypatch.setattr("foretune.collect.devices.local_gpus", list)
    text = "#include <hip/hip_runtime.h>\n__global__ void add(float *c) {}"
    (tmp_path / "add.hip").write_text(text)
    for given in (text, str(tmp_path / "add.hip")):
        with pytest.raises(UsageError, match="is HIP, and this machine has no GPU 0"):
            ft.tune_kernel("add", given, N, [C], {"block_size_x": [32]})


def test_tune_kernel_power_observers_use_own_meter(monkeypatch):
    metered = []

    def runner(device, timing, power):
        metered.append(power)
        return Powered(device, timing)

    monkeypatch.setattr(tuning, "InProcessRunner", runner)
    monkeypatch.setattr(kernel_tuner, "find_meter", lambda kind, index: "a meter")
    nvml = Observer()
    nvml.continuous_observer = Observer("nvml_power", "nvml_energy")
    best = tune(observers=[nvml, Observer("ps_energy")], knobs={"block": [1, 20]}, store=False)
    assert metered == [True]
    for row in best.results:
        assert row["nvml_power"] == row["power"] == 50.0
        assert row["ps_energy"] == row["nvml_energy"] == pytest.approx(row["time"] * 0.05)


def test_tune_kernel_observers_without_meter_raise(monkeypatch):
    monkeypatch.setattr(kernel_tuner, "find_meter", lambda kind, index: None)
    with pytest.raises(MeterUnavailable, match=r"observers need a power meter: .*leave observers"):
        tune(observers=[Observer("nvml_power")])


def test_tune_kernel_meters_power_only_if_needed(monkeypatch):
    monkeypatch.setattr("foretune.collect.benchmark.find_meter", lambda kind, index: "a meter")

    def asks(**options):
        runner = tuning._runner(DEVICE, None, {"isolated": False, **options})
        return runner._benchmarker.meter is not None

    assert not asks()
    assert asks(power=True)
    assert asks(objective="energy")
    assert asks(limits=["power_w=300"])
    assert not asks(limits=["compile_s=3"])


def test_tune_kernel_no_working_configuration_raises_one_line():
    with pytest.raises(
        MeasurementError,
        match=r"none of 2 configurations of add works; block=1: "
        r"compile_error: .*error: .*; fix the source or its options",
    ):
        ft.tune_kernel(
            "add",
            "void add(float *c) { c[0] = block }",
            1,
            [C],
            {"block": [1, 2]},
            lang="C",
            answer=[C],
            **QUICK,
        )


def test_tune_kernel_time_limit_is_seconds():
    with pytest.raises(UsageError, match="0 seconds for a search"):
        tune(strategy_options={"time_limit": 0}, store=False)


def test_tune_kernel_max_fevals_is_budget():
    best = tune(strategy="random_sample", strategy_options={"max_fevals": 2}, store=False)
    assert best.result.searcher == "random"
    assert best.measured <= 2
