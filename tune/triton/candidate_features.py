"""Features of a candidate that are known without a launch."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call

PROGRAMS = "programs"
"""Key in `Measurement.static`: number of programs in the grid."""


class CandidateFeatures:
    """The known features of one call's candidates, as stored in `Measurement.static`.

    They include log times relative to the fastest candidate, if `expect` was told them.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._expected: dict[Configuration, dict[str, float]] = {}

    def expect(
        self, candidates: Sequence[Configuration], log_ratios: Mapping[str, np.ndarray]
    ) -> None:
        """Remember the log times relative to the fastest candidate, as orders expect them, by key.

        A search tells them when it has made its prior; never if a predictor made it.
        """
        columns = {key: values.tolist() for key, values in log_ratios.items()}
        self._expected = {
            config: {key: values[i] for key, values in columns.items()}
            for i, config in enumerate(candidates)
        }

    def of(self, config: Configuration) -> dict[str, float]:
        """Return what is known of a candidate."""
        features: dict[str, float] = {}
        programs = self._call.programs(config)
        if not math.isnan(programs):
            features[PROGRAMS] = programs
        return features | self._expected.get(config, {})
