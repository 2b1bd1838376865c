"""Features of a candidate that are known without a launch."""

import math
from collections.abc import Sequence

import numpy as np

from foretune.space import Configuration
from foretune.tune.triton.prior import EXPECTED_LOG_RATIO
from foretune.tune.triton.problem_key import Call

PROGRAMS = "programs"
"""Key in `Measurement.static`: number of programs in the grid."""


class CandidateFeatures:
    """The known features of one call's candidates, as stored in `Measurement.static`.

    They include the log time relative to the fastest candidate, if `expect` was told it.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._expected_log_ratios: dict[Configuration, float] = {}

    def expect(self, candidates: Sequence[Configuration], log_ratios: np.ndarray) -> None:
        """Remember the log times relative to the fastest candidate, as an order expects them.

        A search tells them when it has made its prior; never if a predictor made it.
        """
        self._expected_log_ratios = dict(zip(candidates, log_ratios.tolist(), strict=True))

    def of(self, config: Configuration) -> dict[str, float]:
        """Return what is known of a candidate."""
        features: dict[str, float] = {}
        programs = self._call.programs(config)
        if not math.isnan(programs):
            features[PROGRAMS] = programs
        if config in self._expected_log_ratios:
            features[EXPECTED_LOG_RATIO] = self._expected_log_ratios[config]
        return features
