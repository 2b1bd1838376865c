"""What all tests share: hypothesis' profile, markers that skip with a reason, a toy run table."""

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before NumPy: threads of busy cores spin, 20 times as long
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # servers that are not there

import math
import re
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

from foretune import registry
from foretune.collect import IsolatedRunner, Timing, machine_load
from foretune.collect.devices import cache_directory
from foretune.datasets import from_measurements
from foretune.device import Device
from foretune.features import roofline
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.forest import ForestModel
from foretune.registry import get_kernel
from foretune.tune import judge, verifier

settings.register_profile(
    "foretune",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("foretune")

TOY_SIZES = [
    (64, 64, 64),
    (256, 64, 128),
    (96, 512, 32),
    (512, 512, 128),
    (128, 1024, 512),
    (1024, 768, 1024),
]
TOY_CONFIGS = 25
BOOSTING = BoostingModel.__init__.__defaults__
FOREST = ForestModel.__init__.__defaults__


def shared_folder() -> Path:
    default = Path(__file__).parents[1].parent / "shared" / "data"
    return Path(os.environ.get("FORETUNE_SHARED_DATA", default))


def _cuda_missing() -> str | None:
    try:
        import torch
    except ImportError:
        return "needs torch and a CUDA device: pip install '.[gpu]'"
    return None if torch.cuda.is_available() else "needs a CUDA device"


def _chromium_missing() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return None if any(map(shutil.which, names)) else f"needs a browser: one of {', '.join(names)}"


def _shared_data_missing() -> str | None:
    folder = shared_folder()
    return (
        None
        if folder.is_dir()
        else f"needs measured data in {folder}, or where FORETUNE_SHARED_DATA says"
    )


def _postgres_missing() -> str | None:
    url = os.environ.get("FORETUNE_TEST_POSTGRES")
    return None if url else "needs an empty PostgreSQL database: set FORETUNE_TEST_POSTGRES"


def _opencl_missing() -> str | None:
    try:
        import pyopencl
    except ImportError:
        return "needs pyopencl: pip install '.[opencl]'"
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error:  # what it raises without any
        platforms = []
    return None if platforms else "needs an OpenCL runtime: apt-get install pocl-opencl-icd"


def _ray_missing() -> str | None:
    return None if find_spec("ray") else "needs Ray: pip install '.[ray]'"


def _not_extended() -> str | None:
    asked = os.environ.get("FORETUNE_EXTENDED")
    return None if asked else "takes long: run .ci/extended, or set FORETUNE_EXTENDED=1"


NEEDS = {
    "gpu": _cuda_missing,
    "browser": _chromium_missing,
    "opencl": _opencl_missing,
    "postgres": _postgres_missing,
    "ray": _ray_missing,
    "extended": _not_extended,
    "shared_data": _shared_data_missing,
}


@cache
def _missing(marker: str) -> str | None:
    return NEEDS[marker]()


def pytest_runtest_setup(item):
    """Skip what cannot run here, before any fixture is made for it."""
    for marker in filter(item.get_closest_marker, NEEDS):
        if reason := _missing(marker):
            raise pytest.skip.Exception(reason, _use_item_location=True)


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    """Let no test see what another one tuned, or this machine's user."""
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch):
    """Let no result depend on what else this machine does: other tests, for one."""
    for name in ("MAX_OTHER_LOAD", "MAX_STEAL"):
        monkeypatch.setattr(machine_load, name, math.inf)
    monkeypatch.setattr(machine_load, "_throttle_counts", dict)


@pytest.fixture(autouse=True)
def _few_processes(monkeypatch):
    """Compare in three processes, unless a test is about how many there are."""
    for module in (verifier, judge):
        monkeypatch.setattr(module, "LOOKS", {3: 1.0})


@pytest.fixture(autouse=True)
def _warned_of_nothing():
    """Let a test be warned of unknown devices, whatever another one was warned of."""
    roofline._warn_once.cache_clear()


INSTALL = {
    "torch": "'.[gpu]'",
    "triton": "'.[gpu]'",
    "gymnasium": "'.[rl]'",
    "aiconfigurator_core": "'.[llm]'",
    "numba": "'.[cpu]'",
    "pyopencl": "'.[opencl]'",
    "kernel_tuner": "'.[bench]'",
    "cmaes": "'.[bench]'",
    "smac": "'.[smac]'",
    "constraint": "python-constraint2",
    "faiss": "faiss-cpu",
    "flashinfer": "flashinfer-python",
    "helion": "'helion[pallas-cpu]'",
    "jax": "'helion[pallas-cpu]'",
    "yaml": "pyyaml",
    "ray": "'.[ray]'",
    "onnxruntime": "'.[onnx]'",
}
"""What pip installs to bring a module."""


def _say_what_is_needed(report):
    """Put into the reason of a skip what would make the test run."""
    if report.skipped and isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        if found := re.search(r"could not import '(\w+)", reason):
            module = found[1]
            remedy = f"pip install {INSTALL.get(module, module)}"
            report.longrepr = (path, line, f"Skipped: needs {module}: {remedy}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _say_what_is_needed((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _say_what_is_needed((yield))


def pytest_terminal_summary(terminalreporter):
    """Write down what was skipped, where that is asked for: another environment may run it."""
    if path := os.environ.get("FORETUNE_SKIPPED"):
        skipped = {f"{report.nodeid}\n" for report in terminalreporter.stats.get("skipped", [])}
        Path(path).write_text("".join(sorted(skipped)), encoding="utf-8")


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Path:
    """An empty MLflow database: making its tables takes seconds."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "template.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True, scope="session")
def _cache_of_their_own(tmp_path_factory):
    """Tests read and write no user's cache; figures of this machine's cores are taken along."""
    folder = tmp_path_factory.mktemp("cache")
    for path in cache_directory().glob("cpu-*.json"):
        shutil.copy(path, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETUNE_CACHE", str(folder))
        yield


def _default_trees(patch, share: int) -> None:
    """Set the default number of trees to a share of what it is, to learn as much faster."""
    rounds, depth, rate, *rest = BOOSTING
    defaults = (rounds // share, depth, min(share, 4) * rate, *rest)
    patch.setattr(BoostingModel.__init__, "__defaults__", defaults)
    patch.setattr(ForestModel.__init__, "__defaults__", (FOREST[0] // share, *FOREST[1:]))


@pytest.fixture(autouse=True, scope="session")
def _few_trees():
    """Predictors learn quickly, unless a test is about how good they are: see `all_trees`."""
    with pytest.MonkeyPatch.context() as patch:
        _default_trees(patch, 6)
        yield


@pytest.fixture(scope="module")
def all_trees(tmp_path_factory, _cache_of_their_own):
    """A module's predictors have the trees that users get, and are kept for no other module."""
    with pytest.MonkeyPatch.context() as patch:
        _default_trees(patch, 1)
        patch.setenv("FORETUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def browser(tmp_path_factory):
    """A headless browser, for tests marked ``browser``."""
    from browser import Browser

    return Browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured data; for tests marked ``shared_data``."""
    return shared_folder()


@pytest.fixture(scope="session")
def toy_device() -> Device:
    return Device(
        "Toy CPU",
        "cpu",
        "toy",
        {"cores": 4.0, "fp32_gflops": 200.0, "memory_gbps": 20.0, "power_limit_w": 90.0},
        "made up",
    )


@pytest.fixture
def toy_registered(monkeypatch):
    """Register the toy kernel under its name."""
    monkeypatch.setitem(registry._BUILTIN["kernels"], "toy", "toy_kernel:Toy")
    registry.reset()
    yield
    registry.reset()


@pytest.fixture
def toy_place(tmp_path, monkeypatch, toy_registered) -> Path:
    """An empty directory, the toy kernel registered, its device needs no probe; quick runs."""
    from toy_kernel import DEVICE

    quick = Timing(max_seconds=0.01, warmup_s=0.001)

    class Quick(IsolatedRunner):
        def __init__(self, device, timing=None, limit_s=10.0, power=True):
            super().__init__(device, quick, limit_s, power)

    monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", Quick)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("foretune.collect.devices.local_device", lambda name: DEVICE)
    return tmp_path


def toy_time_ms(kernel: Kernel, problem, config, device: Device) -> float:
    """A smooth law: the roofline times what a bad tile, no packing and few threads cost."""
    roofline = float(device.roofline_ms(kernel.cost(problem, config)))
    tile = abs(np.log2(config["micro_m"] * config["micro_n"] / 12.0))
    slowdown = 1.3 * 1.25**tile * (1.0 if config["pack_b"] else 1.4)
    slowdown *= {128: 1.8, 256: 1.2, 512: 1.0}[config["vector_bits"]]
    slowdown *= 1.1 if config["order"].startswith("k") else 1.0
    return roofline * slowdown * (2.0 / config["threads"]) ** 0.5


def toy_power_w(config) -> float:
    return 30.0 + 10.0 * config["threads"] + 10.0 * config["vector_bits"] / 512


def fails(config) -> bool:
    """The toy device has too few registers for the widest tiles."""
    return config["micro_m"] * config["micro_n"] > 16


@pytest.fixture(scope="session")
def matmul() -> Kernel:
    return get_kernel("matmul")


@pytest.fixture(scope="session")
def toy_law() -> SimpleNamespace:
    """The truth behind the toy runs: ``time_ms``, ``power_w`` and ``fails``, without noise."""
    return SimpleNamespace(time_ms=toy_time_ms, power_w=toy_power_w, fails=fails)


@pytest.fixture(scope="session")
def toy_measurements(matmul, toy_device) -> list[Measurement]:
    """Six problems × 25 configurations; the law above with 0.5 % noise, failures by `fails`."""
    rng = np.random.default_rng(0)
    rows = []
    for m, n, k in TOY_SIZES:
        problem = matmul.problem(M=m, N=n, K=k)
        for config in matmul.space(problem).sample(TOY_CONFIGS, rng):
            common = (matmul.name, problem, config, toy_device.name)
            if fails(config):
                rows.append(Measurement(*common, Status.RUNTIME_ERROR, error="out of registers"))
                continue
            time_ms = toy_time_ms(matmul, problem, config, toy_device) * rng.normal(1, 0.005)
            power_w = toy_power_w(config) * rng.normal(1, 0.005)
            rows.append(
                Measurement(
                    *common,
                    Status.OK,
                    time_ms=time_ms,
                    time_ms_samples=(time_ms, time_ms * 1.01),
                    power_w=power_w,
                    energy_mj=power_w * time_ms,
                    compile_s=0.5,
                )
            )
    return rows


@pytest.fixture(scope="session")
def _toy_table(toy_measurements, toy_device) -> pd.DataFrame:
    return from_measurements(toy_measurements, toy_device)


@pytest.fixture
def toy_runs(_toy_table) -> pd.DataFrame:
    """The toy measurements as a run table; a test may change its copy."""
    return _toy_table.copy()


@pytest.fixture(scope="module")
def short_fits():
    """Few hold-outs and steps, for tests in which it does not matter how good a predictor is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foretune.models.feature_process.MAX_STEPS", 3)
        patch.setattr("foretune.models.regime.MORE_HOLDOUTS", 2)
        patch.setattr("foretune.models.holdouts.PROBLEM_FOLDS", 2)
        yield
