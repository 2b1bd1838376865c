"""Probability that one deployment beats another: `log_metric` and `pairwise_better`."""

import numpy as np
import pandas as pd
import pytest

from foretune.plan.serve.deployments.correction import log_metric
from foretune.plan.serve.deployments.probability import pairwise_better


class Fixed:
    """A correction whose answers are given."""

    def __init__(self, tpot, ttft, covariance):
        self.mean = pd.DataFrame({"tpot_ms": tpot, "ttft_ms": ttft})
        self.covariance = np.asarray(covariance, dtype=float)

    def predict_mean(self, rows):
        return self.mean, self.mean * 0

    def covariances(self, rows):
        return {"tpot_ms": self.covariance, "ttft_ms": self.covariance}


def better(correction, rows, metric="tokens_per_s"):
    return pairwise_better(*log_metric(correction, rows, metric))[0, 1]


def rows(count, osl=1.0, gpus=1.0):
    return pd.DataFrame(
        {"osl": [osl] * count, "concurrency": [8.0] * count, "gpus": [gpus] * count}
    )


def test_pairwise_better_shared_errors_cancel():
    apart = Fixed([10.0, 11.0], [1.0, 1.0], [[0.04, 0.0], [0.0, 0.04]])
    alike = Fixed([10.0, 11.0], [1.0, 1.0], [[0.04, 0.0396], [0.0396, 0.04]])
    # log(11/10) = 0.0953 is 0.337 and 3.37 scales of the difference; t with 3 degrees of freedom
    said = [better(c, rows(2), "tpot_ms") for c in (apart, alike)]
    assert said == pytest.approx([0.6208, 0.97829], abs=1e-3)


def test_pairwise_better_reverse_is_complement():
    together = pairwise_better(np.array([1.0, 1.1, 0.7]), np.diag([0.01, 0.04, 0.02]))
    assert together + together.T == pytest.approx(np.ones((3, 3)))
    assert np.diag(together) == pytest.approx(0.5)


def test_log_metric_throughput_weighs_errors_by_share_of_request():
    # 10 tokens: 100 ms to the first, 9 x 100/3 = 300 ms to the others: a quarter and the rest.
    correction = Fixed([100.0 / 3], [100.0], [[0.16]])
    value, covariance = log_metric(correction, rows(1, osl=10.0, gpus=2.0), "tokens_per_s")
    assert covariance[0, 0] == pytest.approx(0.16 * (0.25**2 + 0.75**2))
    assert np.exp(value[0]) == pytest.approx(8 * 10 / 2 / 400)


def test_log_metric_fewer_gpus_are_better():
    two = pd.concat([rows(1, 10.0, 1.0), rows(1, 10.0, 2.0)], ignore_index=True)
    same = Fixed([10.0, 10.0], [50.0, 50.0], np.eye(2) * 0.01)
    assert better(same, two) > 0.99
    assert better(same, two, "ttft_ms") == pytest.approx(0.5)
