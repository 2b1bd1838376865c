"""All configurations for a call, the best first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import triton

from foretune.tune.triton.configs import to_configuration
from foretune.tune.triton.tuning import CallTuner


@dataclass(frozen=True)
class RankedConfiguration:
    """A configuration for a call, and what is known of it.

    Attributes:
        config: the configuration.
        expected_loss: how much slower than the best of all it is expected to be, relative;
            infinite where it is certain to be far off, or failed.
        measured: its objective, in the objective's unit; NaN if it was not measured.
    """

    config: triton.Config
    expected_loss: float
    measured: float

    def __repr__(self) -> str:
        known = "" if np.isnan(self.measured) else f", measured={self.measured:.4g}"
        return f"RankedConfiguration({self.config}, expected_loss={self.expected_loss:.3g}{known})"


def rank_configurations(
    tuner: CallTuner, configs: Sequence[triton.Config]
) -> list[RankedConfiguration]:
    """Return ``configs`` with what is known of them, the one to take first."""
    forecast = tuner.searcher.search_posterior
    found = {to_configuration(c): c for c in configs}
    conditions = [np.isfinite(forecast.objective), np.isnan(forecast.objective)]
    kind = np.select(conditions, [0, 1], 2)
    unlikely = forecast.log_mean - np.log(forecast.p_valid)
    value = np.where(kind == 0, forecast.objective, unlikely)
    return [
        RankedConfiguration(
            found[tuner.space[int(forecast.indices[i])]],
            float(forecast.expected_regrets[i]),
            float(forecast.objective[i]),
        )
        for i in np.lexsort((value, kind))
    ]
