"""Ranks all candidates of a call: measured ones first, then predicted ones, then failures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import triton

from foretune.tune.triton.call_tuner import CallTuner
from foretune.tune.triton.kernel import to_configuration

MEASURED, PREDICTED, FAILED = range(3)
"""Order of the groups."""


@dataclass(frozen=True)
class RankedConfiguration:
    """A configuration with its expected slow-down against the best of all.

    The expected loss is relative, and infinite if certainly far off. ``measured`` is in the unit of
    the objective, and NaN without a measurement.
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
    """Return ``configs``, best first: measured ones, predicted ones, failures."""
    posterior = tuner.search.updated_searcher().search_posterior
    is_measured = np.isfinite(posterior.objective)
    is_unknown = np.isnan(posterior.objective)
    group = np.select([is_measured, is_unknown], [MEASURED, PREDICTED], default=FAILED)

    # A prediction counts less if the candidate may not run.
    predicted = posterior.log_mean - np.log(posterior.p_valid)
    value = np.where(group == MEASURED, posterior.objective, predicted)

    triton_configs = {to_configuration(config): config for config in configs}
    return [
        RankedConfiguration(
            config=triton_configs[tuner.history.space[int(posterior.indices[i])]],
            expected_loss=float(posterior.expected_regrets[i]),
            measured=float(posterior.objective[i]),
        )
        for i in np.lexsort((value, group))
    ]
