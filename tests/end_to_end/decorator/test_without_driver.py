"""Calls with a user's benchmarker and launcher, where Triton has no driver."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from tuned_kernels import configs

import foretune
from foretune.errors import UsageError


class NoDriver:
    @property
    def active(self):
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class Launcher:
    """Runs a kernel by other means than Triton's."""

    def __init__(self):
        self.fn = triton.jit(tuned_kernels.copy)
        self.arg_names = self.fn.arg_names
        self.launched = []

    def run(self, *args, **kwargs):
        self.launched.append(kwargs["BLOCK"])


@pytest.fixture
def launcher(monkeypatch):
    monkeypatch.setattr(triton.runtime, "driver", NoDriver())
    return Launcher()


def tuned(launcher, **options):
    def do_bench(kernel_call, quantiles):
        kernel_call()
        return [1.0 + abs(launcher.launched[-1] - 256)] * len(quantiles)

    return foretune.autotune(
        configs(128, 256, 512), ["n"], do_bench=do_bench, store=False, **options
    )(launcher)


def test_without_driver_benchmarker_of_the_user_decides(launcher, tensors):
    kernel = tuned(launcher, budget="all", check=1e-3)
    kernel.run(*tensors, 64, grid=(1,), warmup=False)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert launcher.launched[-1] == 256
    assert kernel.choose(*tensors, 64, grid=(1,)) is kernel.best_config
    assert kernel.rank(*tensors, 64, grid=(1,))[0].config is kernel.best_config


def test_without_driver_online_calls_are_timed_by_the_clock(launcher, tensors):
    kernel = tuned(launcher, budget="all", mode="online")
    for _ in range(3):
        kernel.run(*tensors, 64, grid=(1,), warmup=False)
    assert len(launcher.launched) == 3


def test_without_driver_or_benchmarker_is_an_error(launcher, tensors):
    kernel = foretune.autotune(configs(128, 256), ["n"], store=False)(launcher)
    with pytest.raises(UsageError, match="Triton finds no GPU"):
        kernel.choose(*tensors, 64)
    with pytest.raises(UsageError, match="Triton finds no GPU"):
        kernel.run(*tensors, 64, grid=(1,), warmup=False)
