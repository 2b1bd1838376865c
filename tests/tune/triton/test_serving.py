"""A server whose kernels take stored choices: `FORETUNE_TRITON`, and ``mode="serve"``."""

import importlib
import json
import sys
import warnings

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

from replay_driver import ReplayDriver

from foretune.cli import main
from foretune.errors import ForetuneWarning
from foretune.tune import doors
from foretune.tune.triton.call_recorder import RECORD_VARIABLE

ENGINE = '''
"""The kernels of an engine, decorated as its authors do, and its requests."""

import triton
import triton.language as tl

BLOCKS = [32 * 2**i for i in range(6)]
WARPS = (1, 2, 4, 8)
LIST = [triton.Config({"BLOCK": b}, num_warps=w) for b in BLOCKS for w in WARPS]


@triton.autotune(LIST, key=["n"])
@triton.jit
def scan(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def answer(x, y, n):
    scan[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
'''


def time_of(block):
    """Return milliseconds: the default, a block of 32, takes 5; the best, one of 512, takes 1."""
    return 1.0 + abs(block.bit_length() - 10)


@pytest.fixture
def device(monkeypatch, tmp_path):
    (tmp_path / "engine_kernels.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))
    monkeypatch.setenv(doors.TRITON_VARIABLE, "4")
    unpatched = triton.autotune
    with ReplayDriver(lambda launch: time_of(launch.config["BLOCK"])).active() as active:
        yield active
    sys.modules.pop("engine_kernels", None)
    assert triton.autotune is unpatched, "a test left Triton patched"


@pytest.fixture
def start(device, monkeypatch):
    """Return a function that starts the engine as a new process would: plugins, then kernels."""
    from foretune.tune.triton import patching

    undo = []
    real = patching.patch_triton

    def noted(**options):
        undo.append(real(**options))

    monkeypatch.setattr(patching, "patch_triton", noted)

    def start():
        sys.modules.pop("engine_kernels", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ForetuneWarning)  # classes of other tests
            doors.patch_server()
        return importlib.import_module("engine_kernels")

    yield start
    for each in reversed(undo):
        each()


def blocks(device):
    return [launch.config["BLOCK"] for launch in device.launches]


def test_server_requests_launch_once_before_and_after_warm_up(
    start, device, tensors, monkeypatch, capsys
):
    # The first start: each request runs the default, once, and is recorded.
    monkeypatch.setenv(RECORD_VARIABLE, "calls.jsonl")
    engine = start()
    for n in (1000, 64, 1000):
        engine.answer(*tensors, n)
    assert blocks(device) == [32, 32, 32]

    # Offline, four configurations of each problem are measured; the default is among them.
    monkeypatch.delenv(RECORD_VARIABLE)
    sys.modules.pop("engine_kernels")
    device.launches.clear()
    assert main(["warm-up", "calls.jsonl", "--json"]) == 0
    warmed = json.loads(capsys.readouterr().out)["calls"]
    assert [call["measured"] for call in warmed] == [4, 4]
    assert blocks(device)[0] == 32
    chosen = [call["config"]["BLOCK"] for call in warmed]
    assert all(call["time_ms"] <= time_of(32) for call in warmed)

    # The next start: each request runs the choice, once.
    engine = start()
    device.launches.clear()
    for n in (1000, 64, 1000):
        engine.answer(*tensors, n)
    assert blocks(device) == [chosen[0], chosen[1], chosen[0]]


def test_server_unknown_problem_runs_the_default(start, device, tensors):
    engine = start()

    engine.answer(*tensors, 5000)

    assert blocks(device) == [32]
    assert engine.scan.best_config is engine.LIST[0]


def test_server_broken_foretune_runs_the_default(start, device, tensors, monkeypatch):
    from foretune.tune.triton import choice

    def broken(self):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(choice.ChoiceRule, "stored_choice", broken)
    engine = start()

    with pytest.warns(ForetuneWarning, match="ZeroDivisionError"):
        engine.answer(*tensors, 5000)

    assert blocks(device) == [32]


def test_server_choice_that_no_longer_runs_is_replaced_by_the_default(
    start, device, tensors, monkeypatch, capsys
):
    monkeypatch.setenv(RECORD_VARIABLE, "calls.jsonl")
    start().answer(*tensors, 1000)
    monkeypatch.delenv(RECORD_VARIABLE)
    sys.modules.pop("engine_kernels")
    assert main(["warm-up", "calls.jsonl", "--json"]) == 0
    capsys.readouterr()
    engine = start()

    def times(launch):
        if launch.config["BLOCK"] != 32:
            raise triton.runtime.errors.OutOfResources(300, 100, "shared memory")
        return 1.0

    device.times = times
    engine.answer(*tensors, 1000)

    assert engine.scan.best_config is engine.LIST[0]


@pytest.mark.parametrize("budget", ["many", "0", "-4"])
def test_server_wrong_budget_leaves_triton_alone(device, monkeypatch, budget):
    monkeypatch.setenv(doors.TRITON_VARIABLE, budget)
    before = triton.autotune

    with pytest.warns(ForetuneWarning, match="FORETUNE_TRITON"):
        doors.patch_server()

    assert triton.autotune is before
