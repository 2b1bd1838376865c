"""Features of a candidate that are known without a launch."""

import math
from collections.abc import Mapping

from foretune.space import Configuration
from foretune.tune.triton.prior import EXPECTED_LOG_RATIO
from foretune.tune.triton.problem_key import Call

PROGRAMS = "programs"
"""Key in `Measurement.static`: number of programs in the grid."""


class CandidateFeatures:
    """The known features of one call's candidates, as stored in `Measurement.static`.

    ``expected_log_ratios`` is the log time of each candidate relative to the fastest, as the order
    of launches expects it. It is empty until a search has made its prior, and stays empty if a
    predictor made it.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.expected_log_ratios: Mapping[Configuration, float] = {}

    def of(self, config: Configuration) -> dict[str, float]:
        """Return what is known of a candidate."""
        features: dict[str, float] = {}
        programs = self._call.programs(config)
        if not math.isnan(programs):
            features[PROGRAMS] = programs
        if config in self.expected_log_ratios:
            features[EXPECTED_LOG_RATIO] = self.expected_log_ratios[config]
        return features
