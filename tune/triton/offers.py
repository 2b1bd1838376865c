"""All configurations for a call, the best first."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import triton

from foretune.tune.triton.configs import configuration_of
from foretune.tune.triton.tuning import Tuning


@dataclass(frozen=True)
class Offer:
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
        return f"Offer({self.config}, expected_loss={self.expected_loss:.3g}{known})"


def offers(tuning: Tuning, configs: Sequence[triton.Config]) -> list[Offer]:
    """Return ``configs`` with what is known of them, the one to take first."""
    forecast = tuning.searcher.forecast
    found = {configuration_of(c): c for c in configs}
    told = [np.isfinite(forecast.objective), np.isnan(forecast.objective)]
    kind = np.select(told, [0, 1], 2)
    unlikely = forecast.log_mean - np.log(forecast.p_valid)
    value = np.where(kind == 0, forecast.objective, unlikely)
    return [
        Offer(
            found[tuning.space[int(forecast.numbers[i])]],
            float(forecast.loss[i]),
            float(forecast.objective[i]),
        )
        for i in np.lexsort((value, kind))
    ]
