"""Inputs of a law, found in columns of unknown names."""

import numpy as np
import pandas as pd

from foretune.features.arrays import Rows
from foretune.features.families.learned_work import LearnedWork


def runs(n=300):
    """Products in tiles: ``a`` is tiled by the first number of ``shape``, ``b`` by the second."""
    rng = np.random.default_rng(0)
    texts = np.array(["t_32x64_v", "t_64x128_v", "t_128x32_v"])
    table = pd.DataFrame(
        {
            "problem.a": rng.integers(32, 2048, n).astype(float),
            "problem.b": rng.integers(32, 2048, n).astype(float),
            "config.shape": rng.choice(texts, n),
            "config.beta": rng.choice([0.0, 1.0], n),
            "config.constant": 3.0,
            "device.cores": 20.0,
        }
    )
    edges = table["config.shape"].str.extract(r"_(\d+)x(\d+)_").astype(float)
    tiles = np.ceil(table["problem.a"] / edges[0]) * np.ceil(table["problem.b"] / edges[1])
    log_ms = np.log(np.ceil(tiles / 20) * edges[0] * edges[1])
    return table, log_ms.to_numpy()


def test_learned_work_takes_columns_that_vary():
    table, _ = runs()

    work = LearnedWork.from_rows(Rows(table))

    assert list(work.sizes) == ["problem.a", "problem.b"]
    assert list(work.numbers) == ["config.beta"]  # 0 has no octave
    assert list(work.texts) == ["config.shape"]


def test_learned_work_finds_tile_inside_texts():
    table, log_ms = runs()

    work = LearnedWork.from_rows(Rows(table)).find_tile(Rows(table), log_ms, np.arange(300))

    assert work.tile == {"problem.a": "config.shape#0", "problem.b": "config.shape#1"}
    assert work.inputs(Rows(table)).shape == (300, 2 + 1 + 3 + work.n_waves)


def test_learned_work_without_sizes_is_none():
    table, _ = runs()

    assert LearnedWork.from_rows(Rows(table[["config.shape", "config.beta"]])) is None


def test_learned_work_gaps_and_new_texts_count_as_typical():
    table, _ = runs()
    work = LearnedWork.from_rows(Rows(table))
    row = table.head(1).assign(**{"problem.a": np.nan, "config.shape": "unseen"})

    inputs = work.inputs(Rows(row))

    assert inputs[0, 0] == 0.0
    np.testing.assert_array_equal(inputs[0, -3:], 0.0)


def test_learned_work_round_trip_gives_the_same_inputs():
    table, log_ms = runs()
    work = LearnedWork.from_rows(Rows(table)).find_tile(Rows(table), log_ms, np.arange(300))

    loaded = LearnedWork.from_json(work.to_json())

    np.testing.assert_array_equal(loaded.inputs(Rows(table)), work.inputs(Rows(table)))
