"""The model of one target: neighbours where there are any, trees elsewhere, honest in between."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from foretune.errors import DataWarning
from foretune.features.families.gemm import Gemm
from foretune.features.families.inductor import InductorMm
from foretune.features.featureset import FeatureSet
from foretune.features.roofline import row_parts_ms
from foretune.models import Predictor
from foretune.models.experts import Experts
from foretune.models.target_model import MIN_NEIGHBOR_ROWS, TargetModel
from foretune.models.trees.boosting import BoostingModel

SIZES = 2.0 ** np.arange(2, 13)
pytestmark = pytest.mark.usefixtures("short_fits")
QUICK = {"rounds": 10, "rate": 0.5}


def make():
    return BoostingModel(**QUICK)


def law(runs):
    """Smooth in octaves, with a step that depends on the mode."""
    m, n = np.log2(runs["problem.M"]), np.log2(runs["problem.N"])
    slow = np.where(runs["config.mode"] == "slow", 0.7, 0.0)
    return np.exp(0.6 * m + 0.4 * n + 0.02 * m * n + slow - 8)


def dense(sizes=SIZES):
    """Every combination of sizes and modes."""
    rows = [("d", m, n, x) for m in sizes for n in sizes for x in ("fast", "slow")]
    runs = pd.DataFrame(rows, columns=["device", "problem.M", "problem.N", "config.mode"])
    runs = runs.assign(kernel="theirs", status="ok", **{"config.version": 3})
    return runs.assign(time_ms=law(runs))


def scattered(n=300):
    """Sizes that no two runs share."""
    rng = np.random.default_rng(0)
    sizes = {f"problem.{s}": rng.uniform(16, 2048, n) for s in "MN"}
    modes = rng.choice(["fast", "slow"], n)
    runs = pd.DataFrame({"device": "d", **sizes, "config.mode": modes})
    runs = runs.assign(kernel="theirs", status="ok")
    return runs.assign(time_ms=law(runs))


def fit(runs, seed=0):
    features = FeatureSet().fit(runs)
    X = features.transform(runs).to_numpy()
    return TargetModel("time_ms", make, seed).fit(features, runs, X), features


def predict(fitted, rows):
    model, features = fitted
    X = features.transform(rows).to_numpy()
    return model.predict(features, rows, X, *np.zeros((2, len(rows))))


@pytest.fixture(scope="module")
def on_grid():
    return fit(dense())


@pytest.fixture(scope="module")
def off_grid():
    return fit(scattered())


def products(runs):
    """The same times, as those of matrix products on a device whose rates are known."""
    rates = {"device.bf16_gflops": 1e5, "device.memory_gbps": 1e3}
    return runs.assign(**rates, **{"problem.K": 256.0})


@pytest.fixture(scope="module")
def with_unit():
    runs = products(dense())
    features = FeatureSet(Gemm()).fit(runs)
    return TargetModel("time_ms", make).fit(features, runs, features.matrix(runs)), features


@pytest.fixture
def between():
    """Sizes halfway between those of the grid."""
    return dense(SIZES[1:-2] * 2**0.5)


def test_neighbours_are_used_where_there_are_any(on_grid, off_grid):
    assert on_grid[0].neighbor_index is not None
    assert on_grid[0].experts.corrected is not None
    assert off_grid[0].neighbor_index is None
    assert off_grid[0].experts.corrected is None
    few = dense(SIZES[:4])
    assert len(few) < MIN_NEIGHBOR_ROWS
    assert fit(few)[0].neighbor_index is None


def test_without_neighbours_a_smooth_expert_helps(off_grid, monkeypatch):
    runs = scattered()
    assert off_grid[0].experts.smooth is not None
    truth = np.log(scattered(400).tail(100)["time_ms"])
    stacked = np.abs(predict(off_grid, scattered(400).tail(100))[0] - truth).mean()
    monkeypatch.setattr("foretune.models.target_model.MIN_SMOOTH_ROWS", len(runs) + 1)
    alone = fit(runs)
    assert alone[0].experts.smooth is None
    assert stacked < np.abs(predict(alone, scattered(400).tail(100))[0] - truth).mean()


def test_rows_without_neighbours_repeat_the_trees(on_grid, with_unit, tmp_path):
    for (model, features), opinions in ((on_grid, 3), (with_unit, 4)):
        experts = model.experts
        X = np.zeros((3, len(features.columns_)), dtype=np.float32)
        look = np.full((3, len(model.neighbor_index.columns)), np.nan, dtype=np.float32)
        said = experts.predict(X, look)
        assert said.shape == (3, opinions)
        assert (said[:, :3] == said[:, :1]).all()
        if opinions == 4:  # of the unit itself
            assert (said[:, 3] == 0).all()
    # without a corrected expert, the interpolation stands for it: all trials have the same opinions
    alone = dataclasses.replace(on_grid[0].experts, corrected=None)
    alone.save(tmp_path)
    again = Experts.load(tmp_path, type(alone.tree), alone.parts, has_unit=False)
    X, look[:, -2] = X[:, : alone.tree.n_features_in_], 7.0
    assert (alone.predict(X, look)[:, 1:] == 7.0).all()
    np.testing.assert_array_equal(again.predict(X, look), alone.predict(X, look))


def test_with_neighbours_a_smooth_law_is_met_far_better_than_by_trees(on_grid):
    """On a row of the grid that was left out: one axis is known, the other is not."""
    runs = dense()
    out = runs["problem.M"] == 128
    fitted = fit(runs[~out].reset_index(drop=True))
    held_out = runs[out]
    truth = np.log(held_out["time_ms"].to_numpy())
    with_neighbours = np.abs(predict(fitted, held_out)[0] - truth)
    tree = np.abs(fitted[0].experts.tree.predict(fitted[1].transform(held_out).to_numpy()) - truth)
    assert np.median(with_neighbours) < 0.3 * np.median(tree)
    assert np.median(with_neighbours) < 0.06


def test_rows_without_neighbours_are_predicted_by_the_tree(on_grid, between):
    model, features = on_grid
    log_value, width, differences = predict(on_grid, between)
    assert differences.shape == (len(between), 3)
    X = features.transform(between).to_numpy()
    assert np.isfinite(log_value).all()
    assert (width > 0).all()
    assert np.abs(log_value - np.log(between["time_ms"])).median() < 0.7
    elsewhere = between.assign(device="elsewhere")  # none of the runs is beside these
    alone = predict(on_grid, elsewhere)[0]
    assert np.isfinite(alone).all()
    assert np.median(np.abs(alone - model.experts.tree.predict(X))) < 0.7


@pytest.mark.parametrize("fixture", ["on_grid", "off_grid"])
def test_it_comes_back_from_disk_the_same(fixture, request, tmp_path, between):
    model, features = request.getfixturevalue(fixture)
    model.save(tmp_path / "time_ms")
    loaded = TargetModel.load(tmp_path / "time_ms", "time_ms", make)
    for rows in (between, dense(), between.iloc[:0]):
        for one, other in zip(
            predict((loaded, features), rows), predict((model, features), rows), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "part",
    [
        "tree.boosted.npz",
        "corrected.boosted.npz",
        "error0.boosted.npz",
        "error2.boosted.npz",
        "stack.json",
        "spread.json",
        "neighbors.npz",
        "target.json",
    ],
)
def test_a_part_that_is_missing_is_noticed(on_grid, tmp_path, part):
    on_grid[0].save(tmp_path / "time_ms")
    (tmp_path / "time_ms" / part).unlink()
    with pytest.raises((OSError, ValueError)):
        TargetModel.load(tmp_path / "time_ms", "time_ms", make)


def test_the_seed_decides(on_grid, between):
    beside = between.assign(**{"problem.N": 64.0})
    again = predict(fit(dense()), beside)[0]
    np.testing.assert_array_equal(again, predict(on_grid, beside)[0])
    assert (predict(fit(dense(), seed=1), beside)[0] != again).any()


def test_what_never_varied_need_not_be_there_later(on_grid, between):
    bare = between.drop(columns="config.version")
    for one, other in zip(predict(on_grid, bare), predict(on_grid, between), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("runs", [dense(), scattered()], ids=["on a grid", "scattered"])
def test_one_row_is_predicted_as_in_company(runs):
    predictor = Predictor(parameters=QUICK).fit(runs)
    together = predictor.predict(runs)
    for i in (0, 17, len(runs) - 1):
        pd.testing.assert_frame_equal(predictor.predict(runs.iloc[[i]]), together.iloc[[i]])


def noisy(seed, n=900):
    """Measured with an error that is four times larger where the mode is slow."""
    rng = np.random.default_rng(seed)
    runs = pd.concat([scattered(n), scattered(n).assign(**{"problem.M": rng.uniform(16, 2048, n)})])
    runs = runs.reset_index(drop=True)
    noise = rng.normal(0, np.where(runs["config.mode"] == "slow", 0.2, 0.05))
    return runs.assign(time_ms=law(runs) * np.exp(noise))


def test_intervals_hold_on_rows_like_those_of_training():
    runs, new = noisy(0), noisy(1)
    log_value, width, _ = predict(fit(runs), new)
    covered = np.abs(np.log(new["time_ms"]) - log_value) <= width
    assert covered.mean() == pytest.approx(0.91, abs=0.06)
    slow = (new["config.mode"] == "slow").to_numpy()
    assert np.median(width[slow]) > 1.5 * np.median(width[~slow])
    assert covered[slow].mean() > 0.8
    assert covered[~slow].mean() > 0.8


def tiled(problems, seed=0):
    """Products in tiles on a known device: the law, and what a tile's shape adds."""
    rng = np.random.default_rng(seed)
    tiles = [(m, n, w) for m in (32, 64, 128) for n in (32, 64, 128) for w in (4, 8)]
    rows = [
        (*(2 ** rng.uniform(7, 13, 3)).round(), *tile) for _ in range(problems) for tile in tiles
    ]
    rows = np.repeat(rows[:: len(tiles)], len(tiles), axis=0)
    runs = pd.DataFrame(rows, columns=[*(f"problem.{s}" for s in "MNK"), *"mnw"])
    runs[["config.BLOCK_M", "config.BLOCK_N", "config.num_warps"]] = np.tile(tiles, (problems, 1))
    runs = runs.drop(columns=[*"mnw"]).assign(
        **{
            "kernel": "inductor_mm",
            "device": "d",
            "status": "ok",
            "config.BLOCK_K": 32.0,
            "config.num_stages": 3.0,
            "problem.mat1_dtype": "float16",
            "problem.mat2_dtype": "float16",
            "device.cores": 100.0,
            "device.memory_gbps": 1500.0,
            "device.fp16_gflops": 3e5,
            "device.l1_kib": 192.0,
        }
    )
    parts = row_parts_ms(InductorMm(), runs)
    shape = 1.0 + 0.3 * (runs["config.BLOCK_M"] < runs["config.BLOCK_N"])
    return runs.assign(time_ms=(0.01 + 1.3 * parts.sum(axis=1)) * shape)


@pytest.mark.parametrize("problems", [4, 16])
def test_with_few_problems_a_law_holds_on_others(problems, tmp_path):
    runs, others = tiled(problems), tiled(40, seed=1)
    predictor = Predictor(parameters=QUICK).fit(runs)
    model = predictor.targets_["time_ms"]
    assert model.experts.smooth is not None
    assert model.neighbor_index is None
    assert model.stack.models == []
    said = predictor.predict(others)
    error = np.abs(said["time_ms"] / others["time_ms"] - 1)
    assert error.mean() < 0.15
    inside = (said["time_ms_low"] <= others["time_ms"]) & (
        others["time_ms"] <= said["time_ms_high"]
    )
    assert inside.mean() > 0.8
    assert np.median(said["time_ms_high"] / said["time_ms"]) < 2
    predictor.save(tmp_path / "p")
    again = Predictor.load(tmp_path / "p").predict(others)
    pd.testing.assert_frame_equal(again, said)


def test_near_duplicates_are_no_further_problems():
    """A thousand rows of four problems that differ in little say as much as four problems do."""
    runs = pd.concat([tiled(4)] * 8, ignore_index=True)
    sizes = [f"problem.{s}" for s in "MNK"]
    shift = np.repeat(np.arange(8), len(runs) // 8)
    runs[sizes] = (runs[sizes] * (1 + 0.001 * shift[:, None])).round()
    with pytest.warns(DataWarning, match="only 4 of 32 problems differ"):
        model = Predictor(parameters=QUICK).fit(runs).targets_["time_ms"]
    assert model.interval.median_error is not None
