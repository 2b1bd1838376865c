"""Prior of a call: a predictor, published tunings, or an order for the kind of kernel."""

import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, ForetuneWarning
from foretune.features.launches import launch_features
from foretune.measurement import Measurement
from foretune.models.launch_order import SPREAD, LaunchOrder, shipped_order
from foretune.models.saved.guides import PredictorRequest, SearchPredictor
from foretune.search.encoding import KernelRuns
from foretune.search.searcher import Prior
from foretune.space import Configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.popular import popular_log_shares
from foretune.tune.triton.problem_key import (
    Call,
    is_constant,
    triton_parameters,
    undecorated_kernel,
)
from foretune.tune.triton.shapes import ShapeLaw, shape_law
from foretune.tune.triton.tiles import tile_launches

EXPECTED_LOG_RATIO = "expected_log_ratio"
"""Key in `Measurement.static`: log time over the fastest candidate's, by the order. It is stored
because it cannot be computed later without the call."""
UNFIT_PROBABILITY = 0.02
"""Probability that a configuration runs although a rule says it exceeds shared memory."""
SLOWDOWN_PER_LOG_VOTE = 0.05
"""Log slow-down of a candidate with 1/e of the published tunings of another; a guess, since
published tunings tell no times."""
ROW_ELEMENTS_PER_THREAD = 16.0
"""Elements per thread that run best in kernels without a product of tiles."""
ROW_COST_PER_OCTAVE, ROW_SPREAD = 0.1, 0.2
"""Log slow-down per octave off that number, and the error of this rule: those of a softmax on an
RTX 3090."""


class PriorFactory:
    """Makes priors: from a predictor, published tunings, the launch order of products, or a rule.

    Args:
        kernel: name of the function.
        source: hash of its code.
        device: the device.
        options: name the predictor.
        order: the launch order; None for the one shipped with Foretune.

    Raises:
        PredictorError, TrackingError, UsageError: the named predictor cannot be used.
    """

    def __init__(
        self,
        kernel: str,
        source: str,
        device: Device,
        options: Options,
        order: LaunchOrder | None = None,
    ) -> None:
        self._device, self._order = device, order
        self._objective = options.parsed_objective
        self._guide: SearchPredictor | None = None
        self._laws: dict[Any, ShapeLaw | None] = {}
        if options.predictor is not None:
            from foretune.models.saved.lookup import find_search_predictor

            power = options.parsed_objective.needs_power
            use = PredictorRequest(
                kernel, source, device, ("time_ms", "power_w") if power else ("time_ms",)
            )
            self._guide = find_search_predictor(
                options.predictor, use, logging.getLogger(__name__).info
            )

    @property
    def predicts(self) -> bool:
        """Whether priors come from a predictor."""
        return self._guide is not None

    def make_prior(self, call: Call, rows: KernelRuns) -> Prior | None:
        """Return the prior of a call's candidates; None for a kernel of which nothing is known."""
        if (predicted := self._predict(rows)) is not None:
            assert self._guide is not None
            # the spread is smaller on devices that the predictor was trained on
            spread = self._guide.log_spread(self._device)
            return Prior(
                predicted[0], spread, predicted[1], bool(self._guide.mismatch), self._log_mean_of
            )
        law = self._law(call, rows.configs)
        launches = tile_launches(call, rows.configs, law)
        shares = popular_log_shares(call, rows.configs)
        fits, log_ratios, spread = np.ones(len(rows)), None, SPREAD
        if launches is not None:
            columns = launch_features(launches, self._device)
            fits = np.where(columns.fits, 1.0, UNFIT_PROBABILITY)
            log_ratios = (self._order or shipped_order()).log_ratios(columns)
        elif law is not None:
            log_ratios, spread = row_log_ratios(law, rows), ROW_SPREAD
        if shares is not None:  # the order adds nothing to them
            log_ratios = SLOWDOWN_PER_LOG_VOTE * (shares.max() - shares)
        if log_ratios is None:
            return None
        return Prior(log_ratios, spread, fits, log_mean_of=self._log_mean_of)

    def _law(self, call: Call, configs: Sequence[Configuration]) -> ShapeLaw | None:
        constants = [
            (name, repr(call.arguments.get(name)))
            for name, parameter in triton_parameters(undecorated_kernel(call.function)).items()
            if is_constant(parameter)
        ]
        key = (call.source, *constants, *configs)
        if key not in self._laws:
            self._laws[key] = shape_law(call, configs)
        return self._laws[key]

    def _log_mean_of(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Return the prior log mean of measurements of any problem."""
        rows = KernelRuns.from_measurements(measurements)
        if (predicted := self._predict(rows)) is not None:
            return predicted[0]
        return np.array([known.get(EXPECTED_LOG_RATIO, 0.0) for known in rows.statics])

    def _predict(self, rows: KernelRuns) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the predictor's log objective and probability to run; None without one."""
        if self._guide is None:
            return None
        from foretune.search.prior import predict_runs

        try:
            return predict_runs(self._guide.predictor, rows, self._device, self._objective)
        except ForetuneError as e:
            if not self._guide.shipped:
                raise
            self._guide = None
            message = f"the shipped predictor is not used: {e}"
            warnings.warn(message, ForetuneWarning, stacklevel=2)
            return None


def row_log_ratios(law: ShapeLaw, rows: KernelRuns) -> np.ndarray:
    """Return the log slow-down of each candidate of a kernel without products.

    With few elements, a thread idles while it waits for memory; with many, registers spill.
    """
    elements = np.array([law.sizes(config)[0] for config in rows.configs])
    octaves = np.log2(elements / (32.0 * rows.warps) / ROW_ELEMENTS_PER_THREAD)
    cost = ROW_COST_PER_OCTAVE * np.abs(octaves)
    return cost - cost.min(initial=math.inf)
