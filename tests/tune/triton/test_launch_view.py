"""What ``foretune tune`` chose for a Triton kernel its function's decorator takes; and back."""

import math

import numpy as np
import pytest
from commands import run_json

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton_softmax import TritonSoftmax

import foretune as ft
from foretune.cli import main
from foretune.collect import Runner
from foretune.collect.benchmark import environment
from foretune.collect.comparison import Rounds
from foretune.collect.kernels import triton_gemm
from foretune.device import find_device
from foretune.errors import ForetuneWarning
from foretune.measurement import Measurement, Status
from foretune.tune.store import Store
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.triton.launch_view import LaunchView

GEMM = triton_gemm.TritonGemm()
PROBLEM = GEMM.problem(M=256, N=512, K=1024)
H200 = find_device("NVIDIA H200")
BEST = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "SPLIT_K": 1, "num_warps": 2}


def law(config):
    """Return milliseconds: small tiles are best, and nothing split; the default is not."""
    return 1.0 + sum(abs(math.log2(config[name] / value)) for name, value in BEST.items())


class LawRunner(Runner):
    """Answers from `law`."""

    device = H200

    def run(self, kernel, problem, configs, incumbent_ms=math.inf):
        for config in configs:
            yield Measurement(
                kernel.name, problem, config, H200.name, Status.OK, law(config),
                environment=environment(kernel),
            )  # fmt: skip

    def compare_interleaved(self, kernel, problem, configs, max_seconds=0.5, seed=0):
        return Rounds({c.id: np.full(20, law(c)) for c in configs})


@pytest.fixture
def driver(driver):
    driver.times = lambda launch: law(launch.config)
    return driver


@pytest.fixture
def tuned():
    return ft.tune_problem(GEMM, PROBLEM, LawRunner(), searcher="random", budget=60)


def as_triton(config):
    launch = {name: config[name] for name in ("num_warps", "num_stages")}
    return triton.Config({n: v for n, v in config.items() if n not in launch}, **launch)


def decorated(configs, key=("M", "N", "K"), **options):
    return ft.autotune([as_triton(c) for c in configs], key=list(key), **options)(triton_gemm._gemm)


def multiply(kernel, m=256, n=512, k=1024):
    """Call a decorated `_gemm` as `TritonGemm` does with matrices laid out ``nt``."""
    a, b = torch.empty(m, k, dtype=torch.float16), torch.empty(n, k, dtype=torch.float16).t()
    c = torch.empty(m, n, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return kernel[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), EVEN_K=True, SUM=triton.language.float32
    )  # fmt: skip


def whole(result):
    """Return the default, and what a search tried, as far as one launch runs it."""
    tried = [GEMM.default(PROBLEM), *(step.config for step in result.trace)]
    return list(dict.fromkeys(c for c in tried if c["SPLIT_K"] == 1))


@pytest.mark.parametrize("key", [("M", "N", "K"), ("K", "M"), ()])
def test_a_tuned_kernel_is_chosen_without_measuring(driver, tuned, key):
    assert tuned.winner.config["SPLIT_K"] == 1, "a single launch"
    kernel = decorated(whole(tuned), key)
    multiply(kernel)
    (launch,) = driver.launches
    assert {n: launch.config[n] for n in tuned.winner.config} == tuned.winner.config
    assert kernel.best_config == as_triton(tuned.winner.config)


def test_the_same_from_the_command_to_the_replay(driver, monkeypatch, tmp_path, capsys):
    """One kernel through tune, store, decorator and replay."""
    monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda *_: LawRunner())
    monkeypatch.setattr("foretune.cli.options.read_local_device", lambda name: H200)
    monkeypatch.chdir(tmp_path)
    tune = ("tune", "triton_gemm", "--problem", "M=256,N=512,K=1024", "--device", "cuda:0",
            "--searcher", "random", "--budget", "60")  # fmt: skip
    first = run_json(capsys, *tune)
    assert (first["best"]["measurements"], first["best"]["known"]) == (60, 0)
    again = run_json(capsys, *tune)
    assert (again["best"]["measurements"], again["best"]["known"]) == (0, 60)
    assert again["best"]["config"] == first["best"]["config"]

    configs = [step["config"] for step in first["trace"] if step["config"]["SPLIT_K"] == 1]
    multiply(decorated([first["best"]["config"], *configs]))
    (launch,) = driver.launches
    assert {n: launch.config[n] for n in first["best"]["config"]} == first["best"]["config"]

    assert main(["store", "triton_gemm", "--export", "runs.parquet"]) == 0
    capsys.readouterr()
    out = run_json(
        capsys, "replay", "runs.parquet", "--searcher", "random", "--repeats", "2", "--budget", "60"
    )
    (replayed,) = out["results"]
    assert replayed["evals_to_99"] <= 60


def test_another_problem_is_measured(driver, tuned):
    kernel = decorated(whole(tuned)[:8], budget=2)
    multiply(kernel, m=512)
    assert len(driver.launches) > 1


def test_a_decorator_knows_what_tune_measured_elsewhere(driver, tuned):
    """Runs of the kernel are experience of its function, in the decorator's words."""
    kernel = decorated(whole(tuned), budget=0)
    multiply(kernel, m=512)
    (launch,) = driver.launches
    ranks = sorted(law(c) for c in whole(tuned))
    assert law(launch.config) <= ranks[len(ranks) // 4]


def test_what_the_decorator_measured_is_known_to_tune(driver, tuned):
    Store().forget()
    configs = whole(tuned)[:3]
    multiply(decorated(configs, budget="all"))
    known = MeasurementCache.for_kernel(GEMM, H200).known(PROBLEM)
    assert {m.config: m.time_ms for m in known} == {c: law(c) for c in configs}
    assert MeasurementCache.for_kernel(GEMM, H200).known(GEMM.problem(M=512, N=512, K=1024)) == []


def test_what_is_forgotten_is_forgotten_under_both_names(driver, tuned):
    assert main(["store", "triton_gemm", "--forget", "--problem", "K=1024"]) == 0
    assert MeasurementCache.for_kernel(GEMM, H200).known(PROBLEM) == []
    multiply(decorated(whole(tuned)[:4], budget=2))
    assert len(driver.launches) > 1


def test_energy_is_no_answer_to_who_wants_time(driver, tuned):
    """A choice of least time is not taken by who minimises something else."""
    kernel = decorated(whole(tuned)[:3], objective="energy", budget=1)
    with pytest.warns(ForetuneWarning, match="needs a power meter"):
        multiply(kernel)  # without a meter time is minimised after all


class TestView:
    def test_a_single_launch(self):
        view, config = LaunchView(GEMM, H200), GEMM.default(PROBLEM)
        run = view.function_launch(PROBLEM, config)
        assert run.subject.kernel == "_gemm"
        assert run.problem["stride_am"] == 1024
        assert run.problem["c.dtype"] == "float16"
        assert dict(run.config).items() >= dict(config).items()
        tiles = -(-256 // config["BLOCK_M"]) * -(-512 // config["BLOCK_N"])
        assert run.programs == tiles

    def test_two_launches_are_no_launch_of_a_function(self):
        split = next(c for c in GEMM.space(PROBLEM) if c["SPLIT_K"] > 1)
        assert LaunchView(GEMM, H200).function_launch(PROBLEM, split) is None

    def test_a_warm_cache_is_not_what_a_decorator_measures(self):
        warm = GEMM.problem(M=256, N=512, K=1024, cache="warm")
        assert LaunchView(GEMM, H200).function_launch(warm, GEMM.default(warm)) is None

    def test_one_kernel_may_be_several_functions(self):
        softmax = TritonSoftmax()
        problem = softmax.problem(R=64, C=2048)
        view = LaunchView(softmax, H200)
        names = {view.function_launch(problem, c).subject.kernel for c in softmax.space(problem)}
        assert names == {"_whole_rows", "_blocks_of_rows"}
