"""A scikit-learn regressor of any table: `models/runtime_regressor.py`."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.inspection import partial_dependence
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from foretune.datasets import write_runs
from foretune.errors import DataWarning, PredictorError, UnknownName, UsageError
from foretune.models import Predictor, RuntimeRegressor

QUICK = {"rounds": 10, "rate": 0.5}
pytestmark = pytest.mark.usefixtures("short_fits")


@pytest.fixture(scope="module")
def table():
    """Sixty products, six ways to compute each."""
    rng = np.random.default_rng(0)
    sizes = pd.DataFrame(rng.choice([256, 512, 1024, 2048, 4096], (60, 3)), columns=[*"MNK"])
    ways = pd.DataFrame([(b, w) for b in (32, 64, 128) for w in (4, 8)], columns=["BLOCK", "warps"])
    runs = sizes.drop_duplicates().merge(ways, how="cross")
    runs["layout"] = np.where(runs["M"] > 1000, "rows", "columns")
    slow = np.where(runs["BLOCK"] == 32, 1.5, 1.0) * rng.lognormal(0, 0.02, len(runs))
    return runs.assign(ms=(2e-10 * runs["M"] * runs["N"] * runs["K"] + 0.01) * slow)


@pytest.fixture(scope="module")
def fitted(table):
    return RuntimeRegressor(problem=["M", "N", "K"], parameters=QUICK).fit(*split(table))


def split(table):
    return table.drop(columns="ms"), table["ms"]


@pytest.mark.filterwarnings("ignore::foretune.errors.DataWarning")  # the checks' own tables
@parametrize_with_checks([RuntimeRegressor(parameters={"rounds": 3})])
def test_regressor_passes_estimator_checks(estimator, check, request):
    if "array_api" in request.node.name:
        pytest.skip("SCIPY_ARRAY_API is not set")
    check(estimator)


def test_predict_interval_covers_unseen_problems(table):
    new = table["M"] * table["N"] == 1024 * 1024
    assert 0 < new.sum() < 100
    X, y = split(table)
    model = RuntimeRegressor(problem=["M", "N", "K"], parameters=QUICK).fit(X[~new], y[~new])
    low, high = model.predict_interval(X[new]).T
    value = model.predict(X[new])
    assert ((low < value) & (value < high)).all()
    assert np.mean(np.abs(value / y[new] - 1)) < 0.15
    assert np.mean((low <= y[new]) & (y[new] <= high)) > 0.8


def test_regressor_wraps_a_predictor(fitted, table, tmp_path):
    """One machinery: the same rows as a run table are predicted alike."""
    X, y = split(table)
    names = {c: f"problem.{c}" if c in "MNK" else f"config.{c}" for c in X}
    runs = X.rename(columns=names).assign(
        kernel="unnamed", device="unnamed", status="ok", time_ms=y
    )
    predictor = Predictor(targets=("time_ms",), parameters=QUICK).fit(runs)
    np.testing.assert_allclose(predictor.predict(runs)["time_ms"], fitted.predict(X), rtol=1e-9)
    fitted.predictor_.save(tmp_path / "p")
    write_runs(tmp_path / "runs.parquet", runs)
    assert Predictor.load(tmp_path / "p").score(runs) == pytest.approx(predictor.score(runs))


def test_work_expressions_give_the_unit(table):
    X, y = split(table)
    X = X.assign(device="d", **{"device.fp32_gflops": 1e4, "device.memory_gbps": 500.0})
    model = RuntimeRegressor(
        problem=["M", "N", "K"], flops="2*M*N*K", bytes_moved="4*(M*K+K*N+M*N)", parameters=QUICK
    ).fit(X, y)
    assert model.predictor_.features_.roofline_known_
    assert model.score(X, y) > 0.95
    with pytest.raises(UsageError, match="operations and bytes: give both"):
        RuntimeRegressor(flops="2*M*N*K").fit(X, y)


def test_regressor_in_search_and_partial_dependence(fitted, table):
    X, y = split(table)
    scores = cross_val_score(
        clone(fitted), X, y, groups=X["M"], cv=GroupKFold(2), scoring="neg_median_absolute_error"
    )
    assert scores.shape == (2,)
    search = GridSearchCV(clone(fitted), {"parameters": [{"rounds": 1}, QUICK]}, cv=2)
    assert search.fit(X, y).best_params_["parameters"] in ({"rounds": 1}, QUICK)
    numbers = X.drop(columns="layout").astype(float)
    model = RuntimeRegressor(parameters=QUICK).fit(numbers, y)
    found = partial_dependence(model, numbers, ["K"], grid_resolution=5)
    assert (np.diff(found["average"][0]) > 0).all()
    assert list(model.feature_names_in_) == list(numbers.columns)


def test_fit_unusable_table_is_refused(fitted, table):
    X, y = split(table)
    with pytest.raises(UsageError, match="must be positive"):
        RuntimeRegressor().fit(X, y - y.max())
    with pytest.raises(UnknownName, match="unknown column 'Q'"):
        RuntimeRegressor(problem=["Q"]).fit(X, y)
    with pytest.raises(UsageError, match="'M' has gaps"):
        RuntimeRegressor().fit(X.assign(M=np.nan), y)
    with pytest.raises(UsageError, match="'time_ms' has another meaning in run tables"):
        RuntimeRegressor().fit(X.assign(time_ms=1.0), y)
    with pytest.raises(PredictorError, match="at least 5"):
        RuntimeRegressor().fit(X[:3], y[:3])
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(X.rename(columns={"M": "m"}))
    with pytest.raises(NotFittedError):
        RuntimeRegressor().predict(X)
    with pytest.warns(DataWarning, match="gflops predicts time_ms suspiciously well"):
        RuntimeRegressor(parameters=QUICK).fit(X.assign(gflops=1 / y), y)
