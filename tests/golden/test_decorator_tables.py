"""The decorator keeps most of the optimum at every budget, with and without experience.

The table is a formula (`tiled_products`), so the optimum of every problem is known. The limits are
a few percent below what is kept today.
"""

import statistics

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from replay_driver import ReplayDriver
from tiled_products import DEVICE, TILES, grid, launch_ms, mm, time_ms

import foretune

SIZES = [
    (64, 4096, 4096),
    (4096, 4096, 512),
    (512, 3000, 2048),
    (4096, 1024, 4096),
    (16, 8192, 2048),
    (2048, 2048, 2048),
    (128, 1024, 8192),
    (1000, 5000, 768),
]
OTHERS = [
    (32, 4096, 4096),
    (4096, 4096, 1024),
    (768, 3072, 2048),
    (2048, 1024, 4096),
    (16, 4096, 2048),
    (1024, 2048, 2048),
    (256, 1024, 8192),
    (1500, 4000, 1024),
    (8192, 1024, 512),
    (3000, 3000, 640),
]


@pytest.fixture(autouse=True)
def _device(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with ReplayDriver(launch_ms, device=DEVICE).active():
        yield


def decorated(**options):
    configs = [
        triton.Config(
            {n: v for n, v in tile.items() if n.startswith("BLOCK")},
            num_warps=tile["num_warps"],
            num_stages=tile["num_stages"],
        )
        for tile in TILES
    ]
    return foretune.autotune(configs, ["M", "N", "K"], **options)(mm)


def share(kernel, size):
    """Call ``kernel`` and return the optimum as a share of the time of its choice."""
    M, N, K = size
    A, B, C = (
        torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((M, K), (K, N), (M, N))
    )
    kernel[grid](A, B, C, M, N, K, K, N, N)
    best = kernel.best_config
    tile = {**best.kwargs, "num_warps": best.num_warps, "num_stages": best.num_stages}
    return min(time_ms(size, t) for t in TILES) / time_ms(size, tile)


def kept(budget, store=False):
    """Return the mean and the smallest share of the optimum that the decorator keeps."""
    shares = [share(decorated(budget=budget, store=store), size) for size in SIZES]
    return statistics.mean(shares), min(shares)


@pytest.mark.parametrize(
    ("budget", "mean", "worst"),
    [(0, 0.9, 0.7), (1, 0.9, 0.7), (4, 0.95, 0.88), (8, 0.97, 0.92), ("auto", 0.95, 0.88)],
)
def test_the_first_call_of_a_kernel_keeps_most_of_the_optimum(budget, mean, worst):
    found = kept(budget)
    assert found[0] >= mean
    assert found[1] >= worst


def test_what_was_measured_of_other_problems_keeps_more(tmp_path):
    store = foretune.Store(tmp_path / "tuned.db")
    kernel = decorated(budget=8, store=store)
    for size in OTHERS:
        share(kernel, size)
    for budget, mean, worst in ((0, 0.92, 0.75), (1, 0.94, 0.8), (4, 0.96, 0.88)):
        found = kept(budget, store)
        assert found[0] >= mean, f"budget {budget}"
        assert found[1] >= worst, f"budget {budget}"
