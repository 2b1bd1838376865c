"""What compiled code tells the decorator about a kernel nobody has measured."""

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl
from replay_driver import ReplayDriver

import foretune
from foretune import Configuration, Device, Problem
from foretune.search.encoding import KernelRuns
from foretune.tune.triton.code import CodeReader
from foretune.tune.triton.prior import estimate

H200 = Device("NVIDIA H200", "gpu", "sm_90", {"cores": 132.0})


@triton.jit
def product(a, b, c, n, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    """A product whose knobs have names that tell nothing."""
    i = tl.program_id(0) * P + tl.arange(0, P)
    j = tl.program_id(1) * Q + tl.arange(0, Q)
    k = tl.arange(0, R)
    total = tl.zeros((P, Q), tl.float32)
    for _ in range(0, n, R):
        x = tl.load(a + i[:, None] * n + k[None, :])
        y = tl.load(b + k[:, None] * n + j[None, :])
        total = tl.dot(x, y, total)
        k += R
    tl.store(c + i[:, None] * n + j[None, :], total)


def config(p, q, warps=4, stages=2):
    return triton.Config({"P": p, "Q": q, "R": 32}, num_warps=warps, num_stages=stages)


def arguments():
    half = torch.empty((1024, 1024), dtype=torch.float16, device="meta")
    return half, half, torch.empty((1024, 1024), device="meta"), 1024


def estimated(statics):
    configs = [Configuration(P=1, num_warps=4)] * len(statics)
    return estimate(KernelRuns([Problem()] * len(statics), configs, statics), H200.specs)


def test_a_glance_tells_small_tiles_from_large_ones():
    code = CodeReader(product, arguments(), {}, H200)
    small, large = code.early_stage_features([config(16, 16), config(128, 128, 8)], threads=1)
    assert small["loop_intensity"] < large["loop_intensity"]
    assert large["fits"] == 1
    slow, fast = estimated([small, large])
    assert slow > fast


def test_what_spills_is_believed_to_be_slower():
    clean = {"instructions": 100.0, "spill_load_bytes": 0.0}
    assert estimated([clean | {"spill_load_bytes": 512.0}, clean])[0] > estimated([clean] * 2)[1]


def test_what_does_not_compile_shows_nothing():
    assert CodeReader(product, arguments(), {}, H200).early_stage_features(
        [config(3, 16)], threads=1
    ) == [{}]


def test_an_unknown_device_shows_nothing():
    code = CodeReader(product, arguments(), {}, Device("new", "gpu", "sm_999"))
    assert code.early_stage_features([config(16, 16)], threads=1) == [{}]
    assert code.machine_code_features(None) == {}


def test_measured_runs_say_what_their_code_shows(tmp_path):
    kernel = foretune.autotune(
        [config(32, 32), config(64, 64)], ["n"], store=tmp_path / "t.db", budget=2
    )(product)
    with ReplayDriver(lambda launch: 1.0, compile=True).active():
        kernel[lambda meta: (1024 // meta["P"], 1024 // meta["Q"])](*arguments())
    runs = foretune.Store(tmp_path / "t.db").runs()
    assert sorted(runs["static.programs"]) == [256.0, 1024.0]
    assert (runs["static.registers"] > 16).all()
    assert set(runs["static.dots"]) == {1.0}
