"""Fixtures for tests of `@foretune.autotune`: a device that replays, and both decorators."""

import functools

import pytest


@pytest.fixture(autouse=True)
def triton_settings(monkeypatch, tmp_path):
    """Let no test see the caches or settings of another, or of this machine's user."""
    for name in ("TRITON_PRINT_AUTOTUNING", "TRITON_CACHE_AUTOTUNING", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture(params=["stock", "foretune"])
def autotune(request):
    """Return Triton's decorator, and ours when told to measure everything."""
    if request.param == "stock":
        return pytest.importorskip("triton").autotune
    import foretune

    return functools.partial(foretune.autotune, budget="all", store=False)


@pytest.fixture(params=["stock", "foretune"])
def autotuner_class(request):
    """Return the class that other libraries derive theirs from, and ours."""
    if request.param == "stock":
        return pytest.importorskip("triton").runtime.autotuner.Autotuner
    from foretune.tune.triton.autotuner import Autotuner

    return Autotuner


@pytest.fixture
def driver():
    """Let kernels be launched on a device that only replays; block 256 is its fastest."""
    pytest.importorskip("triton")
    from replay_driver import ReplayDriver
    from tuned_kernels import best_is

    with ReplayDriver(best_is(256)).active() as active:
        yield active


@pytest.fixture
def device():
    """Let kernels be launched on a device whose times follow `replayed_tuning.by_problem`."""
    pytest.importorskip("triton")
    from replay_driver import ReplayDriver
    from replayed_tuning import by_problem

    with ReplayDriver(by_problem).active() as active:
        yield active


@pytest.fixture
def tensors():
    """Return an input of fp16 and an output of fp32, of 64 elements each."""
    torch = pytest.importorskip("torch")
    return torch.ones(64, dtype=torch.float16), torch.zeros(64)
