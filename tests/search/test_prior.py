"""Priors from predictors and from other devices' runs."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import ReplayPrior, prior_from_source

HERE = "NVIDIA A100-PCIE-40GB"


def runs_of(device, scale):
    """A space whose time depends on the number of blocks: 2¹⁴ is best."""
    rows = [
        {
            "kernel": "toy",
            "device": device,
            "status": "ok",
            "problem.size_0": 4096,
            "problem.size_1": 4096,
            "config.block_size_x": x,
            "config.block_size_y": y,
            "time_ms": scale * (1 + abs(np.log2(np.ceil(4096 / x) * np.ceil(4096 / y)) - 14)),
        }
        for x in range(16, 257, 16)
        for y in range(1, 17)
    ]
    return pd.DataFrame(rows)


ELSEWHERE = pd.concat(
    [runs_of("NVIDIA RTX A4000", 2.0), runs_of("AMD Instinct MI250X", 1.0)], ignore_index=True
)


def space_of(device):
    (space,) = recorded_spaces(runs_of(device, 0.5), "toy")
    return space


def test_prior_from_source_orders_the_space_of_another_device():
    space = space_of(HERE)
    start = prior_from_source(ELSEWHERE, space)
    assert start.sources == ["AMD Instinct MI250X", "NVIDIA RTX A4000"]
    assert np.corrcoef(start.prior.log_mean, np.log(space.values))[0, 1] > 0.95


def test_prior_from_source_ignores_specs_that_training_lacked():
    """The spec table knows one device, but the runs of the others have no specs to compare."""
    known = space_of(HERE)
    unknown = space_of("My GPU")
    assert known.device.specs["cores"] == 108
    assert not unknown.device.specs

    prior_known = prior_from_source(ELSEWHERE, known).prior
    prior_unknown = prior_from_source(ELSEWHERE, unknown).prior

    assert np.array_equal(prior_known.log_mean, prior_unknown.log_mean)


def test_prior_from_source_leaves_out_the_own_device():
    with pytest.raises(PredictorError, match="on a device other than"):
        prior_from_source(runs_of(HERE, 0.5), space_of(HERE))


def test_prior_from_source_without_a_source_is_none():
    assert prior_from_source(None, space_of(HERE)) == ReplayPrior(prior=None, sources=[])


@pytest.mark.parametrize(
    ("runs", "foreign"), [(runs_of(HERE, 1.0), False), (ELSEWHERE, True)], ids=["own", "other"]
)
def test_prior_from_predictor_is_foreign_on_an_unmeasured_device(runs, foreign):
    space = space_of(HERE)
    predictor = Predictor().fit(runs)
    prior = prior_from_predictor(predictor, space.problem, space.space, space.device)
    assert prior.foreign is foreign
