"""Measurements by Triton's own autotuners reach the store: `tune/triton/listener.py`."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from tuned_kernels import blocks_of, configs, failing

import foretune
from foretune.errors import UsageError

LISTENS = hasattr(triton.knobs.autotuning, "listener")


@pytest.fixture
def listening(tmp_path):
    if not LISTENS:
        pytest.skip("this Triton has no listener")
    undo = foretune.listen(tmp_path / "heard.db")
    yield tmp_path / "heard.db"
    undo()


def test_listen_stores_measurements_of_stock_triton(listening, driver, tensors):
    driver.times = failing(64, best=256)
    kernel = triton.autotune(configs(64, 128, 256), ["n"])(triton.jit(tuned_kernels.copy))
    kernel[(4,)](*tensors, 1024)
    runs = foretune.Store(listening).runs()
    assert dict(zip(runs["config.BLOCK"], runs["status"], strict=True)) == {
        64: "invalid",
        128: "ok",
        256: "ok",
    }
    assert set(runs["problem.n"]) == {1024}
    assert set(runs["source"]) <= {"triton.autotune", "foretune"}


def test_listen_lets_our_decorator_measure_less(listening, driver, tensors):
    stock = triton.autotune(configs(64, 128, 256), ["n"])(triton.jit(tuned_kernels.copy))
    stock[(4,)](*tensors, 1024)
    driver.launches.clear()
    ours = foretune.autotune(configs(64, 128, 256), ["n"], store=listening, budget="all")(
        triton.jit(tuned_kernels.copy)
    )
    ours[(4,)](*tensors, 1024)
    assert blocks_of(driver.launches) == [256]


def test_listen_calls_the_earlier_listener(listening, driver, tensors, tmp_path):
    heard = []
    triton.knobs.autotuning.listener, ours = (
        lambda **told: heard.append(told["key"]),
        triton.knobs.autotuning.listener,
    )
    undo = foretune.listen(tmp_path / "second.db")
    try:
        kernel = triton.autotune(configs(64, 128), ["n"])(triton.jit(tuned_kernels.copy))
        kernel[(4,)](*tensors, 1024)
    finally:
        undo()
        triton.knobs.autotuning.listener = ours
    assert len(heard) == 1
    assert len(foretune.Store(tmp_path / "second.db").runs()) == 2


@pytest.mark.skipif(LISTENS, reason="this Triton has a listener")
def test_listen_old_triton_is_an_error():
    with pytest.raises(UsageError, match="has no listener"):
        foretune.listen()
