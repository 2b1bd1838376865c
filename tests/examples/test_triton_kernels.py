"""Kernels in Triton: right when interpreted, costs for columns, and code for real GPUs."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_columns import check_columns

from foretune.collect import InProcessRunner, Timing, local_devices, runner
from foretune.device import Device, find_device
from foretune.errors import MeasurementError, ProblemError, UsageError

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton_attention
import triton_rows
from replay_driver import ReplayDriver
from triton_attention import TritonAttention
from triton_norm import TritonNorm
from triton_softmax import TritonSoftmax

from foretune.collect.kernels import triton_kernel
from foretune.collect.kernels.triton_gemm import Limits

SCRIPT = Path(__file__).with_name("triton_cases.py")
CASES = runpy.run_path(str(SCRIPT))["CASES"]

KERNELS = {k.name: k for k in (TritonAttention(), TritonNorm(), TritonSoftmax())}
REAL = {
    "triton_attention": {"seq_len": 4096, "heads": 32, "kv_heads": 8},
    "triton_norm": {"R": 4096, "C": 8192, "norm": "layer"},
    "triton_softmax": {"R": 4096, "C": 50257},
}
DEVICES = {
    "NVIDIA H200": Limits(232_448, threads=32, cores=132, reads_shared=True),
    "NVIDIA GeForce RTX 4090": Limits(101_376, threads=32, cores=128, reads_shared=False),
    "AMD Instinct MI300X": Limits(65_536, threads=64, cores=304, reads_shared=False),
}


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that makes kernels plan for a device; tensors stay on the CPU."""

    def choose(name):
        for module in (triton_attention, triton_rows):
            monkeypatch.setattr(module, "device_limits", lambda: DEVICES[name])
        monkeypatch.setattr(triton_kernel, "torch_device", lambda kernel: torch.device("cpu"))

    return choose


def some_problems(kernel):
    return [kernel.problem(REAL[kernel.name]), *kernel.training_problems(10, seed=2)]


# ---- numbers ----


def run_cases(names, **environment):
    """Run cases in one process of their own; return the results of each."""
    run = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), *names],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    done = {line["case"]: line["results"] for line in map(json.loads, run.stdout.splitlines())}
    return done, run.stderr


@pytest.fixture(scope="session")
def interpreted(request):
    """What came of the cases that are asked for in this session; and what the process said."""
    mine = [i for i in request.session.items if i.originalname == "test_interpreted_numbers"]
    names = [item.callspec.params["case"] for item in mine]
    return run_cases(names, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


def check_case(name, outcome):
    done, said = outcome
    if "only 0-dimensional arrays" in said and triton.__version__ < "3.9":
        pytest.skip("the interpreter of this Triton cannot count loops with this NumPy")
    assert name in done, said
    for result in done[name]:
        assert result["error"] <= result["limit"], result
        assert result.get("spoilt", np.inf) > result["limit"], result
    configured = [r for r in done[name] if "config" in r]
    assert len(configured) > len(CASES[name].problems)  # more than defaults
    assert sum("library" in r for r in done[name]) == len(CASES[name].problems)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_interpreted_numbers(case, interpreted):
    check_case(case, interpreted)


@pytest.mark.gpu
def test_numbers_of_a_gpu():
    outcome = run_cases(CASES, TRITON_INTERPRET="0")
    for case in CASES:
        check_case(case, outcome)


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_example_is_measured_on_gpu(kernel, cache):
    device = next(d for d in local_devices() if d.kind == "gpu")
    problem = kernel.problem(REAL[kernel.name], cache=cache)
    timing = Timing(max_seconds=0.1)
    default = kernel.default(problem)
    measured = next(InProcessRunner(device, timing).run(kernel, problem, [default]))
    assert measured.ok, measured.error
    assert measured.time_ms > 0.2 * device.roofline_ms(kernel.cost(problem, default))


# ---- spaces ----


@pytest.mark.parametrize("device", DEVICES)
def test_default_is_in_the_space_of_any_device(kernel, device, pretend):
    pretend(device)
    for problem in some_problems(kernel):
        assert kernel.default(problem) in kernel.space(problem), problem


@pytest.mark.parametrize("device", DEVICES)
def test_real_problems_have_real_spaces(kernel, device, pretend):
    pretend(device)
    assert 60 < len(kernel.space(kernel.problem(REAL[kernel.name]))) < 10_000


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("columns", [1, 37, 1024, 16384, 50257])
@pytest.mark.parametrize("name", ["triton_norm", "triton_softmax"])
def test_tiles_of_rows_fit(name, columns, device, pretend):
    pretend(device)
    kernel = KERNELS[name]
    for dtype in ("fp16", "fp32"):
        problem = kernel.problem(R=2000, C=columns, dtype=dtype)
        c = kernel.space(problem).columns()
        features = kernel.derived(problem, c, {})
        assert features["tile"].max() <= 32768
        assert np.all((features["per_thread"] <= 128) & (c["num_warps"] <= 16))
        assert features["shared_bytes"].max() < DEVICES[device].shared_bytes
        whole = c["BLOCK"] == 0
        assert not np.any(whole & (c["REDUCE"] == "last"))
        assert not np.any(whole & (c["PROGRAMS"] == 0) & (c["num_stages"] > 1))
        assert np.any(whole) == (columns < 50257)
        assert np.any(~whole) == (columns > 512)


def test_vectors_beside_whole_rows_take_registers(pretend):
    pretend("NVIDIA H200")
    norm, softmax = KERNELS["triton_norm"], KERNELS["triton_softmax"]
    most = []
    for kernel, more in ((softmax, {}), (norm, {}), (norm, {"norm": "layer"})):
        c = kernel.space(kernel.problem(R=4096, C=4096, **more)).columns()
        most.append(c["ROWS"][(c["BLOCK"] == 0) & (c["num_warps"] == 4)].max())
    assert most == [4, 2, 2]
    assert norm.default(norm.problem(R=1, C=16384, norm="layer", dtype="fp32"))["BLOCK"] > 0
    assert norm.default(norm.problem(R=1, C=16384, norm="rms"))["BLOCK"] == 0


def test_short_sequences_have_small_tiles(pretend):
    pretend("NVIDIA H200")
    kernel = KERNELS["triton_attention"]
    assert set(kernel.space(kernel.problem(seq_len=1, heads=1)).columns()["BLOCK_M"]) == {16}
    columns = kernel.space(kernel.problem(seq_len=33, heads=1)).columns()
    assert columns["BLOCK_M"].max() == columns["BLOCK_N"].max() == 64


def test_training_problems_are_distinct_and_legal(kernel):
    problems = kernel.training_problems(24, seed=5)
    assert len(set(problems)) == 24
    assert problems == kernel.training_problems(24, seed=5)
    assert problems != kernel.training_problems(24, seed=6)
    for problem in problems:
        assert kernel.problem(problem) == problem
        assert kernel.memory_bytes(problem) < 16e9


def test_heads_that_cannot_be_grouped():
    kernel = KERNELS["triton_attention"]
    with pytest.raises(ProblemError, match="heads=6 cannot share kv_heads=4"):
        kernel.problem(seq_len=10, heads=6, kv_heads=4)
    with pytest.raises(ProblemError, match="above 65535"):
        kernel.problem(seq_len=10, heads=64, batch=4096)


# ---- costs ----


def test_cost_and_derived_are_the_same_for_one_and_for_columns(kernel):
    check_columns(kernel, some_problems(kernel), 10)


def test_costs_by_hand():
    attention, norm, softmax = KERNELS.values()
    cost = softmax.cost(softmax.problem(R=10, C=20, dtype="fp32"), {})
    assert (cost.bytes_moved, cost.dtype) == (2 * 4 * 200, "fp32")
    cost = norm.cost(norm.problem(R=10, C=20, norm="layer"), {})
    assert cost.bytes_moved == 2 * (200 + 200 + 2 * 20)
    problem = attention.problem(batch=2, seq_len=3, heads=4, kv_heads=2, head_dim=64)
    cost = attention.cost(problem, {})
    assert cost.flops == 2 * 4 * (1 + 2 + 3) * 4 * 64
    assert cost.bytes_moved == 2 * 2 * 3 * 64 * (4 + 4 + 2 + 2)
    assert cost.dtype == "bf16"
    whole = attention.cost(attention.problem({**problem, "mask": "none"}), {})
    assert whole.flops == 2 * 4 * 3 * 3 * 4 * 64


def test_inputs_follow_the_seed(kernel, pretend):
    pretend("NVIDIA H200")
    sizes = {"seq_len": 5, "heads": 1} if kernel.name == "triton_attention" else {"R": 3, "C": 5}
    problem = kernel.problem(sizes)
    first, again, other = (kernel.make_inputs(problem, seed) for seed in (3, 3, 4))
    tensors = [name for name, value in first.items() if isinstance(value, torch.Tensor)]
    assert all(
        torch.equal(first[n], again[n]) and not torch.equal(first[n], other[n]) for n in tensors
    )
    if kernel.name == "triton_attention":
        assert not torch.equal(first["q"], first["k"])


# ---- without a GPU ----


def test_example_without_gpu_is_one_line(kernel, monkeypatch):
    problem = kernel.problem(REAL[kernel.name])
    cpu = InProcessRunner(Device("Some CPU", "cpu"))
    monkeypatch.setattr(runner, "local_gpus", list)
    with pytest.raises(UsageError, match="runs on a gpu, not on Some CPU: this machine has no GPU"):
        next(cpu.run(kernel, problem, []), cpu.check(kernel))
    monkeypatch.setattr(runner, "local_gpus", lambda: [find_device("H200")])
    with pytest.raises(UsageError, match="not on Some CPU: choose --device cuda:0"):
        cpu.check(kernel)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(triton_kernel, "interpreted", lambda: False)
    with pytest.raises(MeasurementError, match=f"{kernel.name} needs a GPU"):
        kernel.make_inputs(problem)


# ---- code for GPUs ----


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set


def launched(kernel, problem, config, device):
    """Compile and load for a device as a launch would; return what was launched."""
    with ReplayDriver(lambda launch: 1.0, device=device, compile=True).active() as driver:
        kernel.build(problem, config, kernel.make_inputs(problem))
        assert len(driver.compilations) == 1
    return driver.launches


SMALL = {
    "triton_attention": {"seq_len": 256, "heads": 2, "head_dim": 64},
    "triton_norm": {"R": 64, "C": 4096, "norm": "layer"},
    "triton_softmax": {"R": 64, "C": 4096},
}


@pytest.mark.parametrize("device", ["NVIDIA H200", "AMD Instinct MI300X"])
def test_defaults_compile(kernel, device, compiler, pretend):
    pretend(device)
    problem = kernel.problem(SMALL[kernel.name])
    (launch,) = launched(kernel, problem, kernel.default(problem), device)
    assert launch.error is None
    assert launch.config["num_warps"] == kernel.default(problem)["num_warps"]


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GeForce RTX 4090"])
def test_example_largest_use_of_shared_memory_fits(kernel, device, compiler, pretend):
    pretend(device)
    problem = kernel.problem(SMALL[kernel.name])
    space = kernel.space(problem)
    features = kernel.derived(problem, space.columns(), {})
    need = features["shared_bytes" if "shared_bytes" in features else "tile_bytes"]
    need = need + space.columns()["num_warps"]  # of equal ones that with most: quickest to compile
    (launch,) = launched(kernel, problem, space[int(np.argmax(need))], device)
    assert launch.error is None
