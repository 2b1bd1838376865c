"""Priors from other devices' runs."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import PredictorError
from foretune.models import Predictor
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import prior_from_source

HERE = "NVIDIA A100-PCIE-40GB"


def runs_of(device, scale):
    """A space in which what counts is how many blocks there are: 2¹⁴ is best."""
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


def test_specs_that_training_lacked_change_nothing():
    """The spec table knows this device, but the others' runs have no specs to compare with."""
    (known,) = recorded_spaces(runs_of(HERE, 0.5), "known")
    (nameless,) = recorded_spaces(runs_of("My GPU", 0.5), "nameless")
    assert known.device.specs["cores"] == 108
    assert not nameless.device.specs
    prior, devices = prior_from_source(ELSEWHERE, known)
    assert devices == ["AMD Instinct MI250X", "NVIDIA RTX A4000"]
    assert np.array_equal(prior.log_mean, prior_from_source(ELSEWHERE, nameless)[0].log_mean)
    assert np.corrcoef(prior.log_mean, np.log(known.values))[0, 1] > 0.95


def test_the_own_device_is_left_out():
    (recorded,) = recorded_spaces(runs_of(HERE, 0.5), "here")
    with pytest.raises(PredictorError, match="on a device other than"):
        prior_from_source(runs_of(HERE, 0.5), recorded)


def test_a_prior_is_foreign_where_nothing_was_measured():
    (here,) = recorded_spaces(runs_of(HERE, 1.0), "here")
    for runs, foreign in ((runs_of(HERE, 1.0), False), (ELSEWHERE, True)):
        prior = prior_from_predictor(Predictor().fit(runs), here.problem, here.space, here.device)
        assert prior.foreign is foreign
