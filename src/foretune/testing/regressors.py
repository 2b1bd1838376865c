"""Checks the contract of a regressor: scikit-learn's, files, missing values, seeds."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from foretune.models.trees.regressor import Regressor
from foretune.testing.contract import ContractViolation, ensure

MIN_R2 = 0.6
"""R² required on a step and a slope in four columns, with `MISSING_SHARE` of the cells missing."""
N_ROWS = 300
MISSING_SHARE = 0.05


def check_regressor(model: Regressor) -> None:
    """Fit, save and load a model, and run scikit-learn's own checks.

    ``model`` is unfitted, and stays so; a small one (few trees) is faster to check. Raises
    ContractViolation if it violates the contract of `Regressor`.
    """
    try:
        check_estimator(clone(model), on_skip=None)
    except Exception as e:
        raise ContractViolation(f"scikit-learn: {type(e).__name__}: {e}") from e

    X, y = _data(seed=0)
    new_X, new_y = _data(seed=1)
    fitted = clone(model).fit(X, y)
    _check_predictions(fitted, new_X, len(new_y))
    _check_learning(fitted.score(new_X, new_y), "it")

    # A quick model is another one of the same class, unfitted.
    quick = fitted.quick()
    ensure(type(quick) is type(model), f"quick returns a {type(quick).__name__}")
    ensure(not hasattr(quick, "n_features_in_"), "quick returns a fitted model")
    _check_learning(quick.fit(X, y).score(new_X, new_y), "quick")

    _check_seed(model, X, y)
    _check_files(fitted, new_X)


def _data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (rows, 4) with gaps, and a slope of the first plus a step of the second."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N_ROWS, 4)).astype(np.float32)
    X[rng.random(X.shape) < MISSING_SHARE] = np.nan
    slope = np.nan_to_num(X[:, 0]) * 2
    step = np.where(X[:, 1] > 0, 1.0, 0.0)
    return X, slope + step


def _check_predictions(fitted: Regressor, X: np.ndarray, n_rows: int) -> None:
    predicted = fitted.predict(X)
    ensure(predicted.shape == (n_rows,), f"{n_rows} rows have predictions {predicted.shape}")
    ensure(predicted.dtype == np.float64, f"predictions are {predicted.dtype}, not float64")
    ensure(fitted.predict(X[:0]).shape == (0,), "no rows have predictions")

    # The prediction of a row must not depend on the others.
    one = slice(7, 8)
    ensure(np.array_equal(fitted.predict(X[one]), predicted[one]), "one row alone differs")


def _check_learning(r2: float, subject: str) -> None:
    ensure(r2 > MIN_R2, f"{subject} learns too little: R² {r2:.2f} of a step and a slope")


def _check_seed(model: Regressor, X: np.ndarray, y: np.ndarray) -> None:
    ensure("seed" in model.get_params(), "seed is not an argument of its constructor")
    once = clone(model).set_params(seed=3).fit(X, y).predict(X)
    again = clone(model).set_params(seed=3).fit(X, y).predict(X)
    ensure(np.array_equal(once, again), "the same seed gives other predictions")


def _check_files(fitted: Regressor, X: np.ndarray) -> None:
    ensure(fitted.suffix.startswith("."), f"suffix is {fitted.suffix!r}, and must begin with a dot")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{fitted.suffix}"
        fitted.save(path)
        ensure(path.exists(), f"save wrote no file {path.name}")
        loaded = type(fitted).load(path)
    ensure(loaded.n_features_in_ == X.shape[1], "n_features_in_ is lost when saved")
    ensure(np.array_equal(loaded.predict(X), fitted.predict(X)), "predictions differ after loading")
