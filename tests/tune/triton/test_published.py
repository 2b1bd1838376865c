"""Published tunings of serving engines: `published.py`, `published_kernels.py`."""

import itertools
import json

import numpy as np
import pytest

pytest.importorskip("triton")

from foretune import Device
from foretune.collect.compiled.arguments import Tensor
from foretune.device import find_device
from foretune.errors import PredictorError
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.space import Configuration
from foretune.tune.triton import published
from foretune.tune.triton import published_kernels as published_kernels_module
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import UNFIT_PROBABILITY, PriorFactory
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.published import Tunings, knob_meaning, shipped_tunings
from foretune.tune.triton.published_kernels import popular_log_shares, published_kernels

H100 = find_device("NVIDIA H100 80GB HBM3")
GEMM = "_w8a8_block_fp8_matmul"
MOE = "fused_moe_kernel"
M = 16
N = 4096
K = 7168


def listed(rows="BLOCK_SIZE_M", columns="BLOCK_SIZE_N", depth="BLOCK_SIZE_K"):
    edges = itertools.product((16, 64, 128), (32, 128, 256), (64, 128), (2, 3, 4))
    return [
        Configuration({rows: m, columns: n, depth: k, "num_warps": 4, "num_stages": stages})
        for m, n, k, stages in edges
    ]


def gemm(kernel=GEMM, m=M, **changed):
    arguments = {
        "A": Tensor("float8_e4m3fn", (m, K)),
        "B": Tensor("float8_e4m3fn", (N, K)),
        "C": Tensor("bfloat16", (m, N)),
        "M": m,
        "N": N,
        "K": K,
    }
    arguments = {n: v for n, v in (arguments | changed).items() if v is not None}

    def grid(meta):
        return (-(-m // meta["BLOCK_SIZE_M"]) * -(-N // meta["BLOCK_SIZE_N"]),)

    return Call(kernel, "", Problem(), arguments, H100, grid)


def moe(first, tokens=64, top_k=8, experts=128, width=768, hidden=2048):
    n, k = (2 * width, hidden) if first else (hidden, width)
    arguments = {
        "b_ptr": Tensor("bfloat16", (experts, n, k)),
        "topk_weights_ptr": Tensor("float32", (tokens, top_k)),
        "N": n,
        "K": k,
    }
    return Call(MOE, "", Problem(), arguments, H100, (1,))


def test_popular_first_tile_of_few_rows_has_64_rows():
    first = int(np.argmax(popular_log_shares(gemm(), listed())))
    assert listed()[first]["BLOCK_SIZE_M"] == 64


def test_popular_matches_parameters_by_meaning():
    plain = popular_log_shares(gemm(), listed())
    assert (popular_log_shares(gemm(), listed("BLOCK_M", "BN", "TILE_K")) == plain).all()
    assert knob_meaning("GROUP_SIZE_M") == knob_meaning("GROUP_M") != knob_meaning("BLOCK_M")


def test_popular_both_products_of_experts_are_one_layer():
    one, other = (popular_log_shares(moe(first), listed()) for first in (True, False))
    assert (one == other).all()


def test_popular_depends_on_the_number_of_tokens():
    small, large = (popular_log_shares(gemm(m=m), listed()) for m in (16, 4096))
    assert np.argmax(small) != np.argmax(large)


@pytest.mark.parametrize(
    "call",
    [gemm("matmul"), gemm(M=None), gemm(B=None), Call(MOE, "", Problem(), {}, H100, (1,))],
    ids=["another name", "without M", "without weights", "without arguments"],
)
def test_popular_other_kernels_have_none(call):
    assert popular_log_shares(call, listed()) is None


def test_popular_list_without_tiles_has_none():
    assert popular_log_shares(gemm(), [Configuration(num_warps=w) for w in (4, 8)]) is None


def test_prior_starts_with_popular_and_checks_shared_memory():
    configs = [*listed(), Configuration({**listed()[-1], "BLOCK_SIZE_M": 1024, "num_stages": 9})]
    rows = KernelRuns([Problem()] * len(configs), configs, [{}] * len(configs))
    prior = PriorFactory(GEMM, "", H100, Options(predictor=None)).make_prior(gemm(), rows)
    assert np.argmin(prior.log_mean) == np.argmax(popular_log_shares(gemm(), configs))
    assert prior.log_mean.min() == 0
    assert prior.p_valid[-1] == UNFIT_PROBABILITY < prior.p_valid.max()


def test_published_kernels_all_have_tunings_under_the_apache_license():
    assert {kernel.family for kernel in published_kernels().values()} == shipped_tunings().keys()
    card = json.loads(published.POPULAR.with_suffix(".json").read_text())
    assert card["licence"] == "Apache-2.0"
    assert published.POPULAR.stat().st_size < 200_000


def tunings(devices, winners, configs):
    rows = len(devices)
    knobs = np.array(["M", "NUM_STAGES"])
    architectures = np.where(np.array(devices) == H100.name, H100.architecture, "gfx942")
    return Tunings(
        np.array(devices),
        architectures,
        np.array(["fp8"] * rows),
        np.array([[16, 40, 0]] * rows),
        np.array(winners),
        np.array(configs),
        knobs,
        np.arange(1),
    )


def shares(own, device, configs):
    candidates = [Configuration(BLOCK_M=int(m), num_stages=int(s)) for m, s in configs]
    return own.log_shares(device, "fp8", (16, 1024, 1), candidates)


def test_tunings_near_problems_and_devices_weigh_more():
    own = tunings([H100.name, "another"], [0, 1], [[16, 3], [64, 3]])
    there, far = (shares(own, d, own.configs) for d in (H100, Device("another", "gpu", "gfx942")))
    assert there[0] > there[1]
    assert far[0] < far[1]
    weights = own.weights(H100, "fp8", (16, 1024, 1)), own.weights(H100, "fp8", (32, 1024, 1))
    assert weights[0][0] == 1 > weights[1][0]


def test_tunings_votes_on_one_tile_count_together():
    own = tunings([H100.name] * 5, [0, 1, 2, 3, 3], [[64, 1], [64, 2], [64, 4], [16, 3]])
    found = shares(own, H100, own.configs)
    assert found[1] == found.max()
    assert found[3] == np.sort(found)[-2]


def test_shipped_tunings_damaged_file_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "POPULAR", tmp_path / "popular.npz")
    shipped_tunings.cache_clear()
    try:
        published.POPULAR.write_bytes(b"nothing")
        with pytest.raises(PredictorError, match="damaged"):
            shipped_tunings()
        np.savez_compressed(published.POPULAR)
        assert shipped_tunings() == {}
    finally:
        shipped_tunings.cache_clear()


def test_published_kernels_damaged_file_is_an_error(tmp_path, monkeypatch):
    damaged = tmp_path / "kernels.csv"
    damaged.write_text("function,unknown\nkernel,1\n")
    monkeypatch.setattr(published_kernels_module, "KERNELS_FILE", damaged)
    published_kernels.cache_clear()
    try:
        with pytest.raises(PredictorError, match=r"kernels\.csv is damaged"):
            published_kernels()
    finally:
        published_kernels.cache_clear()
