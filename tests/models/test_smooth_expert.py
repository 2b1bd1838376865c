"""The Gaussian process that is an expert with few runs: `models/smooth_expert.py`."""

import numpy as np
import pytest

from foretune.models.smooth_expert import MAX_ROWS, SmoothExpert

COLUMNS = ["problem.n", "config.x", "config.mode=a", "waves", "device.cores"]


def table(rows, seed=0):
    """Features, and a value that changes gradually with some of them."""
    rng = np.random.default_rng(seed)
    n = 2.0 ** rng.uniform(4, 12, rows)
    x = rng.choice([16.0, 32.0, 64.0, 128.0], rows)
    mode = rng.integers(0, 2, rows)
    waves = rng.uniform(0, 1, rows)
    X = np.column_stack([n, x, mode, waves, np.full(rows, 80.0)]).astype(np.float32)
    return X, 0.3 * np.log2(n) + 0.1 * np.log2(x) ** 2 + 0.5 * mode * np.log2(x) + 0.2 * waves


@pytest.fixture(scope="module")
def smooth():
    X, y = table(200)
    rng = np.random.default_rng(1)
    return SmoothExpert.fit_hyperparameters(COLUMNS, X, y, rng).refit(X, y, rng)


def test_predict_interpolates_few_points(smooth):
    X, y = table(300, seed=2)
    assert np.abs(smooth.predict(X) - y).mean() < 0.05 * y.std()


def test_fit_puts_positive_sizes_and_settings_first_in_octaves(smooth):
    assert smooth.order.tolist()[:3] == [0, 1, 2]
    assert smooth.gradual_count == 3
    assert smooth.octaves.tolist() == [True, True, False, False, False]


def test_predict_stays_within_training_values(smooth):
    X, y = table(200)
    far = X.copy()
    far[:, 0] *= 2.0**20
    predicted = smooth.predict(far)
    assert y.min() - 1e-9 <= predicted.min()
    assert predicted.max() <= y.max() + 1e-9


def test_predict_unknown_or_impossible_features_gives_numbers(smooth):
    X, _ = table(4)
    X[0, 0], X[1, 0], X[2, 3] = 0.0, -5.0, np.nan
    assert np.isfinite(smooth.predict(X)).all()
    assert len(smooth.predict(X[:0])) == 0


def test_load_predicts_as_the_saved_one(smooth, tmp_path):
    smooth.save(tmp_path / "smooth.npz")
    X, _ = table(20, seed=3)
    np.testing.assert_array_equal(
        SmoothExpert.load(tmp_path / "smooth.npz").predict(X), smooth.predict(X)
    )


def test_refit_samples_at_most_max_rows(smooth):
    X, y = table(MAX_ROWS + 200)
    assert len(smooth.refit(X, y, np.random.default_rng(0)).posterior.X) == MAX_ROWS


def test_fit_constant_features_predicts_the_mean():
    X = np.ones((50, len(COLUMNS)), dtype=np.float32)
    y = np.arange(50.0)
    rng = np.random.default_rng(0)
    predicted = SmoothExpert.fit_hyperparameters(COLUMNS, X, y, rng).refit(X, y, rng).predict(X)
    assert np.allclose(predicted, y.mean(), atol=1.0)
