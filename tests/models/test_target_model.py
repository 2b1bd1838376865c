"""The model of one target, fitted and predicted as a whole: `models/target_model.py`."""

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
from foretune.models.interval import RuleInterval
from foretune.models.neighbors import INTERPOLATION
from foretune.models.regime import MIN_NEIGHBOR_ROWS
from foretune.models.stack import ConvexStack
from foretune.models.target_model import TargetModel
from foretune.models.trees.boosting import BoostingModel

SIZES = 2.0 ** np.arange(2, 13)
pytestmark = pytest.mark.usefixtures("short_fits")
QUICK = {"rounds": 10, "rate": 0.5}


def make():
    return BoostingModel(**QUICK)


def law(runs):
    """Smooth in octaves, with a step that depends on the mode."""
    m = np.log2(runs["problem.M"])
    n = np.log2(runs["problem.N"])
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
    inside = np.zeros(len(rows))
    return model.predict(features, rows, X, octaves_outside=inside, octaves_beyond_reach=inside)


def assert_equal(predicted, expected):
    for attribute in dataclasses.fields(expected):
        np.testing.assert_array_equal(
            getattr(predicted, attribute.name), getattr(expected, attribute.name)
        )


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


def test_fit_uses_neighbors_where_most_rows_have_some(on_grid, off_grid):
    assert on_grid[0].neighbor_index is not None
    assert on_grid[0].experts.corrected is not None
    assert off_grid[0].neighbor_index is None
    assert off_grid[0].experts.corrected is None
    few = dense(SIZES[:4])
    assert len(few) < MIN_NEIGHBOR_ROWS
    assert fit(few)[0].neighbor_index is None


def test_fit_again_forgets_neighbors(off_grid):
    runs = scattered()
    features = FeatureSet().fit(dense())
    again = TargetModel("time_ms", make).fit(features, dense(), features.matrix(dense()))
    features = FeatureSet().fit(runs)

    again.fit(features, runs, features.matrix(runs))

    assert again.neighbor_index is None
    assert_equal(predict((again, features), runs), predict(off_grid, runs))


def test_fit_without_neighbors_gains_from_smooth_expert(off_grid, monkeypatch):
    runs = scattered()
    assert off_grid[0].experts.on_law.smooth is not None
    new = scattered(400).tail(100)
    truth = np.log(new["time_ms"])
    with_smooth = np.abs(predict(off_grid, new).log_value - truth).mean()
    monkeypatch.setattr("foretune.models.target_model.MIN_SMOOTH_ROWS", len(runs) + 1)
    alone = fit(runs)
    assert alone[0].experts.on_law.smooth is None
    assert with_smooth < np.abs(predict(alone, new).log_value - truth).mean()


@pytest.mark.parametrize(("fixture", "n_experts"), [("on_grid", 3), ("with_unit", 4)])
def test_experts_rows_without_neighbors_repeat_the_trees(fixture, n_experts, request):
    model, features = request.getfixturevalue(fixture)
    X = np.zeros((3, len(features.columns_)), dtype=np.float32)

    experts = dataclasses.replace(model.experts, on_law=None)
    values = experts.predict(X, no_neighbors(model, rows=3))

    assert values.shape == (3, n_experts)
    assert (values[:, :3] == values[:, :1]).all()
    assert (values[:, 3:] == 0).all()  # the unit


def test_experts_without_correction_repeat_the_interpolation(on_grid, tmp_path):
    """A hold-out whose rows have no neighbors has no corrected expert, but as many predictions."""
    model, _ = on_grid
    experts = dataclasses.replace(model.experts, corrected=None, on_law=None)
    experts.save(tmp_path)
    loaded = Experts.load(tmp_path, type(experts.tree), experts.parts, has_roofline=False)
    X = np.zeros((3, experts.tree.n_features_in_), dtype=np.float32)
    neighbors = no_neighbors(model, rows=3)
    neighbors[:, INTERPOLATION] = 7.0

    values = experts.predict(X, neighbors)

    assert (values[:, 1:] == 7.0).all()
    np.testing.assert_array_equal(loaded.predict(X, neighbors), values)


def test_experts_of_law_without_its_inputs_are_refused(on_grid):
    model, features = on_grid
    X = np.zeros((3, len(features.columns_)), dtype=np.float32)
    with pytest.raises(ValueError, match="a learned law need its inputs"):
        model.experts.predict(X, no_neighbors(model, rows=3))


def no_neighbors(model, rows):
    return np.full((rows, len(model.neighbor_index.columns)), np.nan, dtype=np.float32)


def test_predict_with_neighbors_beats_trees_on_smooth_law(on_grid):
    """On a row of the grid that was left out: one axis is known, the other is not."""
    runs = dense()
    out = runs["problem.M"] == 128
    fitted = fit(runs[~out].reset_index(drop=True))
    held_out = runs[out]
    truth = np.log(held_out["time_ms"].to_numpy())
    with_neighbors = np.abs(predict(fitted, held_out).log_value - truth)
    tree = np.abs(fitted[0].experts.tree.predict(fitted[1].transform(held_out).to_numpy()) - truth)
    assert np.median(with_neighbors) < 0.3 * np.median(tree)
    assert np.median(with_neighbors) < 0.06


def test_predict_rows_without_neighbors_follows_trees(on_grid, between):
    model, features = on_grid
    predicted = predict(on_grid, between)
    assert predicted.expert_differences.shape == (len(between), 6)
    X = features.transform(between).to_numpy()
    assert np.isfinite(predicted.log_value).all()
    assert (predicted.half_width > 0).all()
    assert np.abs(predicted.log_value - np.log(between["time_ms"])).median() < 0.7
    elsewhere = between.assign(device="elsewhere")  # none of the runs is beside these
    alone = predict(on_grid, elsewhere).log_value
    assert np.isfinite(alone).all()
    assert np.median(np.abs(alone - model.experts.tree.predict(X))) < 0.7


@pytest.mark.parametrize("fixture", ["on_grid", "off_grid"])
def test_load_predicts_as_the_saved_one(fixture, request, tmp_path, between):
    model, features = request.getfixturevalue(fixture)
    model.save(tmp_path / "time_ms")
    loaded = TargetModel.load(tmp_path / "time_ms", "time_ms", make)
    for rows in (between, dense(), between.iloc[:0]):
        assert_equal(predict((loaded, features), rows), predict((model, features), rows))


@pytest.mark.parametrize(
    "part",
    [
        "tree.boosted.npz",
        "corrected.boosted.npz",
        "law_tree.boosted.npz",
        "error0.boosted.npz",
        "error2.boosted.npz",
        "stack.json",
        "spread.json",
        "neighbors.npz",
        "target.json",
    ],
)
def test_load_missing_file_raises(on_grid, tmp_path, part):
    on_grid[0].save(tmp_path / "time_ms")
    if part.startswith("error") and not (tmp_path / "time_ms" / part).exists():
        pytest.skip("the weights of its stack are fixed")
    (tmp_path / "time_ms" / part).unlink()
    with pytest.raises((OSError, ValueError)):
        TargetModel.load(tmp_path / "time_ms", "time_ms", make)


def test_fit_depends_on_seed_alone(on_grid, between):
    beside = between.assign(**{"problem.N": 64.0})
    again = predict(fit(dense()), beside)
    assert_equal(again, predict(on_grid, beside))
    other_seed = predict(fit(dense(), seed=1), beside)
    assert (other_seed.log_value != again.log_value).any()


def test_predict_without_constant_column_is_the_same(on_grid, between):
    bare = between.drop(columns="config.version")
    assert_equal(predict(on_grid, bare), predict(on_grid, between))


@pytest.mark.parametrize("runs", [dense(), scattered()], ids=["on a grid", "scattered"])
def test_predict_one_row_is_as_among_others(runs):
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


def test_predict_interval_covers_rows_like_training():
    runs = noisy(0)
    new = noisy(1)
    predicted = predict(fit(runs), new)
    width = predicted.half_width
    covered = np.abs(np.log(new["time_ms"]) - predicted.log_value) <= width
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
def test_few_problems_predict_others_by_the_law(problems, tmp_path):
    runs = tiled(problems)
    others = tiled(40, seed=1)
    predictor = Predictor(parameters=QUICK).fit(runs)
    model = predictor.targets_["time_ms"]
    assert model.experts.smooth is not None
    assert model.neighbor_index is None
    assert type(model.stack) is ConvexStack
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


def test_few_problems_near_duplicates_count_once():
    """A thousand rows of four problems that differ in little say as much as four problems do."""
    runs = pd.concat([tiled(4)] * 8, ignore_index=True)
    sizes = [f"problem.{s}" for s in "MNK"]
    shift = np.repeat(np.arange(8), len(runs) // 8)
    runs[sizes] = (runs[sizes] * (1 + 0.001 * shift[:, None])).round()
    with pytest.warns(DataWarning, match="only 4 of 32 problems differ"):
        model = Predictor(parameters=QUICK).fit(runs).targets_["time_ms"]
    assert isinstance(model.interval, RuleInterval)
