"""The tile of a configuration, its waves and padding: `features/families/tiles.py`."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.features.families.gemm import Gemm, GroupedGemm
from foretune.features.families.tiles import tile_of

DEVICE = {"cores": 46.0, "fp32_gflops": 29_000.0, "memory_gbps": 504.0}
PROBLEM = {"M": 1000.0, "N": 520.0, "K": 256.0, "dtype": "fp32"}


@pytest.mark.parametrize(
    "names",
    [
        "BLOCK_M BLOCK_N BLOCK_K",
        "block_m block_n block_k",
        "tile_m tile_n tile_k",
        "BM BN BK",
        "BLOCK_SIZE_M BLOCK_SIZE_N BLOCK_SIZE_K",
        "MWG NWG KWG",
        "TileM TileN TileK",
    ],
)
def test_tile_of_finds_known_names(names):
    m, n, k = names.split()
    assert tile_of({m: 128.0, n: 64.0, k: 32.0, "num_warps": 4.0}) == {"m": 128, "n": 64, "k": 32}


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("cutlass_simt_sgemm_128x64_8x2_nn_align1", (128, 64)),
        ("ampere_sgemm_32x128_tn", (32, 128)),
        ("sm80_xmma_gemm_f32f32_tilesize64x256x16_stage4", (64, 256)),
    ],
)
def test_tile_of_kernel_name_comes_before_labels(name, edges):
    tile = tile_of({"kernel": np.array([name]), "block_m": np.array([8.0]), "block_n": [8.0]})
    assert (tile["m"][0], tile["n"][0]) == edges


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"block_m": 64.0},
        {"kernel": "gemv"},
        {"block_m": "big", "block_n": "big"},
        {"M": 64.0, "N": 64.0},
    ],
)
def test_tile_of_unclear_names_is_none(config):
    assert tile_of(config) == {}
    assert "waves_tile" not in Gemm().derived(PROBLEM, config, DEVICE)
    assert Gemm().launch_parts_ms(PROBLEM, config, DEVICE) == {}


def test_rows_without_tile_have_plain_roofline():
    config = {"kernel": np.array(["gemm_64x64", "gemv"])}
    problem = {name: np.array([v, v]) for name, v in PROBLEM.items()}
    features = Gemm().derived(problem, config, DEVICE)
    assert np.isnan(features["padding_tile"]).tolist() == [False, True]
    parts = Gemm().launch_parts_ms(problem, config, DEVICE)
    assert parts["operations"][1] == pytest.approx(2 * 1000 * 520 * 256 / 29_000e6)
    assert parts["operations"][0] > parts["operations"][1]


@given(st.integers(1, 4096), st.integers(1, 4096), st.sampled_from([16, 64, 128, 256]))
def test_waves_take_at_least_as_long_as_operations(m, n, tile):
    problem = {**PROBLEM, "M": float(m), "N": float(n)}
    config = {"block_m": float(tile), "block_n": float(tile)}
    plain = 2.0 * m * n * 256 / 29_000e6
    time_ms = Gemm().launch_parts_ms(problem, config, DEVICE)["operations"]
    waves = np.ceil(np.ceil(m / tile) * np.ceil(n / tile) / 46)
    assert time_ms >= plain * (1 - 1e-9)
    assert time_ms == pytest.approx(waves * 46 * 2.0 * tile * tile * 256 / 29_000e6)


def test_grouped_products_share_the_rows():
    problem = {**PROBLEM, "M": 400.0, "groups": 4.0}
    config = {"BM": 64.0, "BN": 64.0}
    features = GroupedGemm().derived(problem, config, DEVICE)
    assert features["padding_tile"] == pytest.approx(100 / 128 * 520 / 576)
    one = Gemm().derived({**PROBLEM, "M": 100.0, "batch": 4.0}, config, DEVICE)
    assert features == pytest.approx(one, nan_ok=True)


def test_featureset_has_tile_features():
    from foretune.features.featureset import FeatureSet

    runs = pd.DataFrame(
        {
            "kernel": "gemm",
            "device": "x",
            "problem.M": [100.0, 9000.0],
            "problem.N": 640.0,
            "problem.K": 64.0,
            "config.BM": [16.0, 64.0],
            "config.BN": 32.0,
            **{f"device.{name}": rate for name, rate in DEVICE.items()},
        }
    )
    assert {"waves_tile", "padding_tile"} <= set(FeatureSet(Gemm()).fit(runs).columns_)
