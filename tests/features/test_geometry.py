"""Launch geometry from names of tunable parameters: `features/geometry.py`."""

import numpy as np
import pytest

from foretune.features.geometry import launch_geometry


def columns(**values):
    return {name: np.array([float(v)]) for name, v in values.items()}


def geometry(problem, config, device=None):
    found = launch_geometry(columns(**problem), columns(**config), columns(**(device or {})))
    return {name: float(np.ravel(value)[0]) for name, value in found.items()}


def test_geometry_block_times_work_per_thread():
    found = geometry(
        {"size_0": 1000, "size_1": 256},
        {"block_size_x": 16, "block_size_y": 3, "tile_size_x": 2, "tile_size_y": 8},
        {"cores": 100},
    )
    assert found["log2_threads"] == pytest.approx(np.log2(48))
    assert found["warp_fill"] == pytest.approx(48 / 64)  # two warps, one half empty
    assert found["log2_work"] == 4
    assert found["log2_tile"] == pytest.approx(np.log2(48 * 16))
    assert (found["log2_tile_x"], found["log2_tile_y"]) == pytest.approx((5, np.log2(24)))
    assert found["log2_tile_aspect"] == pytest.approx(np.log2(32 / 24))
    tiles = 32 * 11  # ⌈1000 / 32⌉ × ⌈256 / 24⌉
    assert found["waves_blocks"] == 2  # 4 waves on 100 cores
    assert found["fill_blocks"] == pytest.approx(tiles / 400)
    assert found["fill_threads"] == pytest.approx(17 / 100)  # 1024 threads at a time
    assert found["padding"] == pytest.approx(1000 * 256 / (tiles * 32 * 24))


def test_geometry_dividing_tiles_have_no_padding():
    config = {"block_size_x": 16, "block_size_y": 4, "tile_size_x": 2}
    assert geometry({"size_0": 4096, "size_1": 64}, config)["padding"] == 1
    assert geometry({"size_0": 4096, "size_1": 66}, config)["padding"] < 1
    assert "padding" not in geometry({}, config)


def test_geometry_block_without_axis_is_x():
    found = geometry({"size_0": 4096}, {"block_size": 128, "work_per_thread": 4})
    assert found["log2_threads"] == 7
    assert found["log2_tile_x"] == 9
    assert found["fill_blocks"] == 8 / 128
    assert "log2_tile_aspect" not in found


def test_geometry_other_names_of_blocks():
    assert geometry({}, {"block_dim_x": 8, "block_dim_y": 8}) == geometry(
        {}, {"block_size_x": 8, "block_size_y": 8}
    )


def test_geometry_filter_loads_border():
    found = geometry(
        {"filter_width": 5, "filter_height": 3},
        {"block_size_x": 16, "block_size_y": 4, "tile_size_x": 2},
    )
    loaded = (32 + 4) * (4 + 2)
    assert found["log2_loaded"] == pytest.approx(np.log2(loaded))
    assert found["halo"] == pytest.approx(loaded / 128)
    assert found["loads_per_thread"] == pytest.approx(loaded / 64)
    assert (found["load_rounds_x"], found["load_rounds_y"]) == (3, 2)  # ⌈36 / 16⌉, ⌈6 / 4⌉
    assert "waves_blocks" not in found  # the size of the image is not known


CLBLAST = {"MWG": 64, "NWG": 32, "KWG": 16, "MDIMC": 8, "NDIMC": 16, "SA": 1, "SB": 0}


def test_geometry_clblast_gemm():
    found = geometry({"size_0": 100, "size_1": 64}, CLBLAST, {"cores": 4})
    assert found["log2_threads"] == 7
    assert (found["log2_work_m"], found["log2_work_n"], found["log2_work"]) == (3, 1, 4)
    assert (found["log2_tile"], found["log2_tile_aspect"]) == (11, 1)
    assert found["shared_words"] == 64 * 16  # A alone is kept in shared memory
    assert found["loads_per_flop"] == pytest.approx(1 / 64 + 1 / 32)
    assert found["loads_per_thread"] == 16 * 96 / 128
    assert (found["waves_blocks"], found["fill_blocks"]) == (0, 1)  # 2 × 2 tiles, 4 cores


@pytest.mark.parametrize(
    "config",
    [{}, {"x": 3}, {name: CLBLAST[name] for name in ("MWG", "MDIMC")}],
    ids=["nothing", "unknown names", "half of CLBlast's"],
)
def test_geometry_unknown_names_give_nothing(config):
    assert geometry({"size_0": 4}, config) == {}


@pytest.mark.parametrize("name", ["block_size_x", "MWG"])
def test_geometry_text_is_no_size(name):
    config = {k: np.array([v]) for k, v in CLBLAST.items()} if name == "MWG" else {}
    assert launch_geometry({}, {**config, name: np.array(["auto"])}, {}) == {}


def test_geometry_of_many_rows_equals_single_rows():
    rng = np.random.default_rng(0)
    config = {f"block_size_{a}": 2.0 ** rng.integers(0, 6, 20) for a in "xyz"}
    problem = {"size_0": rng.integers(1, 5000, 20) * 1.0}
    together = launch_geometry(problem, config, {})
    for i in range(20):
        one = {k: v[i : i + 1] for k, v in config.items()}
        alone = launch_geometry({"size_0": problem["size_0"][i : i + 1]}, one, {})
        assert set(alone) == set(together)
        for name, value in alone.items():
            assert np.ravel(value)[0] == np.broadcast_to(together[name], 20)[i], name
