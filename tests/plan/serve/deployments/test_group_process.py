"""The Gaussian process with grouped errors: `plan/serve/deployments/group_process.py`."""

import json

import numpy as np
import pandas as pd
import pytest

from foretune.plan.serve.deployments.group_process import (
    LABELS,
    LENGTH_SCALES,
    GroupedGaussianProcess,
    Outliers,
    VarianceComponent,
)

COMPONENTS = {
    "": VarianceComponent(0.01, 0.01),
    "model": VarianceComponent(0.04),
    "model use": VarianceComponent(0.02, 0.0, 0.01),
}


def sites(models, uses, places=0.0):
    labels = pd.DataFrame({name: ["same"] * len(models) for name in LABELS})
    spread = np.zeros(len(models)) + places
    return labels.assign(model=models, use=uses, **dict.fromkeys(LENGTH_SCALES, spread))


def test_group_process_one_measurement_by_hand():
    # Prior variances 0.01 + 0.01 + 0.04 + 0.02 + 0.01, noise 0.01: all are shared but the noise.
    process = GroupedGaussianProcess(COMPONENTS, 0.01).fit(sites(["a"], ["x"]), np.array([0.1]))
    mean, spread = process.predict(sites(["a", "a", "b"], ["x", "y", "x"]))
    assert mean == pytest.approx(np.array([0.09, 0.06, 0.02]), rel=1e-5)
    left = 0.09 - np.array([0.09, 0.06, 0.02]) ** 2 / 0.1
    assert spread**2 == pytest.approx(left + 0.01, rel=1e-4)


@pytest.fixture
def learned():
    rng = np.random.default_rng(0)
    models = rng.choice(list("abc"), 60)
    uses = rng.choice(list("xy"), 60)
    offset = pd.Series(models).map({"a": 0.5, "b": -0.3, "c": 0.0}).to_numpy()
    points = sites(models, uses, rng.uniform(0, 6, 60))
    return GroupedGaussianProcess(COMPONENTS, 0.01).fit(points, offset + rng.normal(0, 0.05, 60))


def test_group_process_covariance_is_valid_and_matches_spread(learned):
    asked = sites(["a", "a", "b", "new"], ["x", "x", "y", "x"], [1.0, 1.5, 1.0, 1.0])
    covariance = learned.covariance(asked)
    _, spread = learned.predict(asked)
    assert np.sqrt(np.diag(covariance)) == pytest.approx(spread, rel=1e-3)
    assert covariance == pytest.approx(covariance.T, abs=1e-6)
    assert np.linalg.eigvalsh(covariance).min() > 0
    together = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    strangers = covariance[0, 3] / np.sqrt(covariance[0, 0] * covariance[3, 3])
    assert together > strangers


def test_group_process_new_labels_have_zero_mean(learned):
    mean, spread = learned.predict(sites(["a", "new"], ["x", "z"], 3.0))
    assert mean[0] == pytest.approx(0.5, abs=0.1)
    assert abs(mean[1]) < 0.25
    assert spread[1] > 1.5 * spread[0]


def test_group_process_json_round_trip(learned):
    again = GroupedGaussianProcess.from_json(json.loads(json.dumps(learned.to_json())))
    asked = sites(["a", "b", "new"], ["x", "y", "x"], [0.0, 2.0, 5.0])
    for was, now in zip(learned.predict(asked), again.predict(asked), strict=True):
        assert now == pytest.approx(was, rel=1e-9)


def test_group_process_outlier_counts_little():
    models = ["a"] * 21
    uses = ["x"] * 21
    errors = np.full(21, 0.1)
    errors[0] = 4.0
    process = GroupedGaussianProcess(COMPONENTS, 0.01).fit(sites(models, uses), errors)
    mean, _ = process.predict(sites(["a"], ["x"]))
    assert mean[0] == pytest.approx(0.1, abs=0.06)


def test_group_process_outliers_that_agree_do_not_hide_each_other():
    """Nine rows of a version are ten times too slow, and predict each other."""
    models = ["a"] * 30
    uses = ["x"] * 21 + ["y"] * 9
    errors = np.where(np.arange(30) < 21, 0.0, 2.3)
    near = sites(["b"], ["x"])
    means = []
    for outliers in (Outliers(1.0), Outliers(1.0, of_the_mean=True)):
        process = GroupedGaussianProcess(COMPONENTS, 0.01, outliers)
        means.append(process.fit(sites(models, uses), errors).predict(near)[0][0])
    assert abs(means[1]) < 0.5 * abs(means[0])
