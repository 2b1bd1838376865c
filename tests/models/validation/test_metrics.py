"""Metrics, against numbers worked out by hand: `models/validation/metrics.py`."""

from itertools import combinations

import numpy as np
import pytest

from foretune.models.validation.metrics import METRICS, score

TRUTH = np.array([1.0, 2.0, 4.0, 10.0, 20.0])
PREDICTION = np.array([1.1, 2.0, 3.0, 30.0, 20.0])
GROUPS = np.array([0, 0, 0, 1, 1])


def around(factors):
    """Return intervals that are so many times as large, and as small, as the prediction."""
    return PREDICTION / factors, PREDICTION * factors


@pytest.fixture
def scores():
    return score(TRUTH, PREDICTION, GROUPS, around(np.full(5, 1.2)))


def test_score_has_every_metric(scores):
    assert set(METRICS) <= set(scores)
    assert (scores["rows"], scores["groups"]) == (5.0, 2.0)
    assert all(type(v) is float for v in scores.values())


def test_score_errors_are_relative_to_truth(scores):
    # 0.1, 0, 0.25, 2 and 0
    assert scores["mape"] == pytest.approx(2.35 / 5)
    assert scores["median_ape"] == pytest.approx(0.1)
    assert scores["p95_ape"] == pytest.approx(0.25 + 0.8 * 1.75)  # 4/5 between the largest two


def test_score_r2(scores):
    # mean 7.4; squares 40.96 + 29.16 + 11.56 + 6.76 + 158.76; errors 0.01 + 0 + 1 + 400 + 0
    assert scores["r2"] == pytest.approx(1 - 401.01 / 247.2)
    log_error = np.log(1.1) ** 2 + np.log(4 / 3) ** 2 + np.log(3) ** 2
    log_total = ((np.log(TRUTH) - np.log(1600) / 5) ** 2).sum()  # the product is 1600
    assert scores["r2_log"] == pytest.approx(1 - log_error / log_total)


def test_score_ranks_are_within_groups(scores):
    # first group in perfect order, second exactly reversed
    assert scores["spearman"] == pytest.approx((1.0 - 1.0) / 2)


def test_score_regret_is_cost_of_predicted_best(scores):
    # first group: the best is picked; second: 20 is picked where 10 is possible
    assert scores["top1_regret"] == pytest.approx((0.0 + 1.0) / 2)


def test_score_regret_of_best_five():
    truth = np.array([9.0, 8.0, 7.0, 6.0, 3.0, 2.0])
    best_last = score(truth, np.arange(1.0, 7.0), np.zeros(6))
    assert best_last["top1_regret"] == pytest.approx(3.5)  # 9 where 2 is possible
    assert best_last["top5_regret"] == pytest.approx(0.5)  # 3 is among the five
    assert score(truth[:3], truth[2::-1], np.zeros(3))["top5_regret"] == 0


def test_score_width_is_fraction_of_prediction(scores):
    assert scores["width90"] == pytest.approx(0.2)
    wide = score(TRUTH, PREDICTION, GROUPS, around(np.array([1.1, 1.2, 1.5, 2.0, 3.0])))
    assert wide["width90"] == pytest.approx(0.5)
    assert np.isnan(score(TRUTH, PREDICTION, GROUPS)["width90"])


def test_score_coverage(scores):
    # factors 1.1 and 1 (twice) lie within 1.2; 4/3 and 3 do not
    assert scores["coverage90"] == pytest.approx(3 / 5)
    wide = score(TRUTH, PREDICTION, GROUPS, around(np.array([1.2, 1.2, 1.4, 2.9, 1.2])))
    assert wide["coverage90"] == pytest.approx(4 / 5)
    assert np.isnan(score(TRUTH, PREDICTION, GROUPS)["coverage90"])


def test_perfection():
    perfect = score(TRUTH, TRUTH, GROUPS, (TRUTH, TRUTH))
    assert [perfect[m] for m in METRICS] == [1, 1, 0, 0, 0, 1, 0, 0, 1, 0]


def test_score_undefined_metric_is_nan():
    lone = score(TRUTH, PREDICTION, np.arange(5))
    assert np.isnan(lone["spearman"])
    assert np.isnan(lone["top1_regret"])
    assert np.isnan(lone["top5_regret"])
    for value in (0.1, 1.0, 1e-7):  # 0.1 is not its own mean
        constant = score(np.full(7, value), np.linspace(1, 2, 7), np.zeros(7))
        assert np.isnan(constant["r2"])
        assert np.isnan(constant["r2_log"])


def test_score_constant_prediction_has_regret_but_no_rank():
    flat = score(np.array([2.0, 1.0]), np.array([3.0, 3.0]), np.zeros(2))
    assert np.isnan(flat["spearman"])
    assert flat["top1_regret"] == 0.5  # twice as slow if the first is taken, else not


def test_score_regret_of_ties_is_expected_over_draws():
    truth = np.array([7.0, 9.0, 1.0, 2.0, 3.0, 8.0, 5.0, 6.0])
    tied = np.array([1.0, 1.0, 9.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    taken = [truth[[0, 1, *three]].min() - 1.0 for three in combinations(range(3, 8), 3)]
    for order in (np.arange(8), np.arange(8)[::-1]):
        found = score(truth[order], tied[order], np.zeros(8))
        assert found["top5_regret"] == pytest.approx(np.mean(taken))
        assert found["top1_regret"] == 7.0


def test_score_regret_without_prediction_is_nan():
    assert np.isnan(
        score(np.array([1.0, 2, 3]), np.array([1, np.nan, 1]), np.zeros(3))["top5_regret"]
    )


def test_groups_without_a_rank_do_not_count():
    mixed = score(np.array([1.0, 2, 5]), np.array([1.0, 2, 5]), np.array([0, 0, 1]))
    assert mixed["spearman"] == pytest.approx(1.0)
