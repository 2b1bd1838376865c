"""The smooth expert: joins few points, says nothing beyond what it has seen, is saved."""

import numpy as np
import pytest

from foretune.models.experts import MAX_ROWS, SmoothExpert

COLUMNS = ["problem.n", "config.x", "config.mode=a", "waves", "device.cores"]


def table(rows, seed=0):
    """Features, and a value that changes gradually with some of them."""
    rng = np.random.default_rng(seed)
    n, x = 2.0 ** rng.uniform(4, 12, rows), rng.choice([16.0, 32.0, 64.0, 128.0], rows)
    mode, waves = rng.integers(0, 2, rows), rng.uniform(0, 1, rows)
    X = np.column_stack([n, x, mode, waves, np.full(rows, 80.0)]).astype(np.float32)
    return X, 0.3 * np.log2(n) + 0.1 * np.log2(x) ** 2 + 0.5 * mode * np.log2(x) + 0.2 * waves


@pytest.fixture(scope="module")
def smooth():
    X, y = table(200)
    rng = np.random.default_rng(1)
    return SmoothExpert.fit_hyperparameters(COLUMNS, X, y, rng).refit(X, y, rng)


def test_it_joins_few_points(smooth):
    X, y = table(300, seed=2)
    assert np.abs(smooth.predict(X) - y).mean() < 0.05 * y.std()


def test_sizes_and_settings_count_in_octaves_and_come_first(smooth):
    assert smooth.order.tolist()[:3] == [0, 1, 2]
    assert smooth.gradual_count == 3
    assert smooth.octaves.tolist() == [True, True, False, False, False]


def test_it_says_nothing_that_it_has_not_seen(smooth):
    X, y = table(200)
    far = X.copy()
    far[:, 0] *= 2.0**20
    said = smooth.predict(far)
    assert y.min() - 1e-9 <= said.min()
    assert said.max() <= y.max() + 1e-9


def test_what_is_unknown_or_impossible_is_as_most_are(smooth):
    X, _ = table(4)
    X[0, 0], X[1, 0], X[2, 3] = 0.0, -5.0, np.nan
    assert np.isfinite(smooth.predict(X)).all()
    assert len(smooth.predict(X[:0])) == 0


def test_it_comes_back_from_disk_the_same(smooth, tmp_path):
    smooth.save(tmp_path / "smooth.npz")
    X, _ = table(20, seed=3)
    np.testing.assert_array_equal(
        SmoothExpert.load(tmp_path / "smooth.npz").predict(X), smooth.predict(X)
    )


def test_it_knows_so_many_rows_at_most(smooth):
    X, y = table(MAX_ROWS + 200)
    assert len(smooth.refit(X, y, np.random.default_rng(0)).posterior.X) == MAX_ROWS


def test_features_that_are_the_same_in_all_rows():
    X, y = np.ones((50, len(COLUMNS)), dtype=np.float32), np.arange(50.0)
    rng = np.random.default_rng(0)
    said = SmoothExpert.fit_hyperparameters(COLUMNS, X, y, rng).refit(X, y, rng).predict(X)
    assert np.allclose(said, y.mean(), atol=1.0)
