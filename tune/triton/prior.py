"""Prior of a call: a predictor, published tunings, or an order for the kind of kernel."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, warn
from foretune.features.launches import LaunchFeatures, launch_features
from foretune.measurement import Measurement
from foretune.models.guides.guide import Guide
from foretune.models.guides.request import PredictorRequest
from foretune.search.encoding import KernelRuns
from foretune.search.searcher import Prior
from foretune.space import Configuration
from foretune.tune.triton.launch_order import (
    ANALYTIC,
    ERROR_FREEDOM,
    RANKING,
    SIZES,
    SPREAD,
    LaunchOrders,
    shipped_orders,
)
from foretune.tune.triton.options import Options
from foretune.tune.triton.parameters import is_constant, triton_parameters, undecorated_kernel
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.published_kernels import popular_log_shares
from foretune.tune.triton.row_order import RowLaunches, row_prior
from foretune.tune.triton.tiles import ShapeLaw, shape_law, tile_launches

if TYPE_CHECKING:
    from foretune.search.prior import PriorValues

EXPECTED_LOG_RATIO = "expected_log_ratio"
"""Key in `Measurement.static`: log time over the fastest candidate's, by the prior. It is stored
because it cannot be computed later without the call. With a dot and the name of an order, it is
that order's."""
UNFIT_PROBABILITY = 0.02
"""Probability that a configuration runs although a rule says it exceeds shared memory."""
SLOWDOWN_PER_LOG_VOTE = 0.05
"""Log slow-down of a candidate with 1/e of another's published tunings. It is a guess, since
published tunings have no times."""


class PriorFactory:
    """Makes the priors of a kernel's calls on one device.

    A predictor comes first. Without one, the order of candidates is that of published tunings, of
    launches of tiles, or of rows, whichever is the first to know the kernel.
    """

    def __init__(
        self,
        kernel: str,
        source: str,
        device: Device,
        options: Options,
        orders: LaunchOrders | None = None,
    ) -> None:
        self._device = device
        self._orders = orders
        self._objective = options.parsed_objective
        self._guide: Guide | None = None
        self._laws: dict[Any, ShapeLaw | None] = {}
        if options.predictor is not None:
            from foretune.models.saved.lookup import find_guide

            use = PredictorRequest(kernel, source, device, self._objective.needs_power)
            log = logging.getLogger(__name__).info
            self._guide = find_guide(options.predictor, use, log)

    @property
    def predicts(self) -> bool:
        """Whether priors come from a predictor."""
        return self._guide is not None

    def make_prior(self, call: Call, rows: KernelRuns) -> Prior | None:
        """Return the prior of a call's candidates; None for a kernel without any information."""
        if (predicted := self._predict(rows)) is not None:
            assert self._guide is not None
            # the spread is smaller on devices that the predictor was trained on
            spread = self._guide.log_spread()
            return Prior(
                predicted.log_mean,
                log_spread=spread,
                p_valid=predicted.p_valid,
                foreign=bool(self._guide.mismatch),
                log_mean_of=self._log_mean_of,
            )
        return self._prior_by_order(call, rows)

    def _prior_by_order(self, call: Call, rows: KernelRuns) -> Prior | None:
        """Return the prior of a call without a predictor."""
        law = self._law(call, rows.configs)
        tiles = tile_launches(call, rows.configs, law)
        prior = None
        if tiles is not None:
            features = launch_features(tiles, self._device)
            prior = launch_prior(features, self._orders or shipped_orders())
            prior = replace(prior, log_mean_of=self._log_mean_of)

        # Published tunings replace the orders of launches, which add nothing to them.
        log_shares = popular_log_shares(call, rows.configs)
        if log_shares is not None:
            p_valid = np.ones(len(rows)) if prior is None else prior.p_valid
            return Prior(
                SLOWDOWN_PER_LOG_VOTE * (log_shares.max() - log_shares),
                SPREAD,
                p_valid,
                log_mean_of=self._log_mean_of,
                error_freedom=ERROR_FREEDOM,
            )
        if prior is not None:
            return prior

        # A kernel without a product of tiles.
        if law is not None:
            prior = row_prior(row_launches(rows, law))
            return replace(prior, log_mean_of=self._log_mean_of)
        return None

    def _law(self, call: Call, configs: Sequence[Configuration]) -> ShapeLaw | None:
        """Return the shapes of a call's blocks, from a cache by the constants of the code."""
        parameters = triton_parameters(undecorated_kernel(call.function))
        constants = [
            (name, repr(call.arguments.get(name)))
            for name, parameter in parameters.items()
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
            return predicted.log_mean
        return np.array([known.get(EXPECTED_LOG_RATIO, 0.0) for known in rows.statics])

    def _predict(self, rows: KernelRuns) -> "PriorValues | None":
        """Return what the predictor says of the rows; None without one."""
        if self._guide is None:
            return None
        from foretune.search.prior import predict_runs

        try:
            return predict_runs(self._guide, rows, self._objective)
        except ForetuneError as e:
            if not self._guide.shipped:
                raise
            self._guide = None
            warn(f"the shipped predictor is not used: {e}")
            return None


def row_launches(rows: KernelRuns, law: ShapeLaw) -> RowLaunches:
    """Return the launches of the candidates of a kernel without a product."""
    elements = np.array([law.elements(config) for config in rows.configs])
    return RowLaunches(elements=elements, warps=rows.warps)


def launch_prior(features: LaunchFeatures, orders: LaunchOrders) -> Prior:
    """Return the prior of the launches of tiles: three orders, and their mean."""
    log_ratios = orders.log_ratios(features)
    return Prior(
        np.mean(list(log_ratios.values()), axis=0),
        SPREAD,
        p_valid=np.where(features.fits, 1.0, UNFIT_PROBABILITY),
        orders=log_ratios,
        orders_of=stored_orders,
        error_freedom=ERROR_FREEDOM,
    )


def stored_orders(measurements: Sequence[Measurement]) -> dict[str, np.ndarray]:
    """Return what each order of launches said of measurements; NaN if it is not stored."""
    return {
        name: np.array([m.static.get(order_key(name), np.nan) for m in measurements])
        for name in (RANKING, SIZES, ANALYTIC)
    }


def expected_log_ratios(prior: Prior) -> Mapping[str, np.ndarray]:
    """Return what to store with measurements: key of `Measurement.static` -> log ratios."""
    of_orders = {order_key(name): log_ratios for name, log_ratios in prior.orders.items()}
    return {EXPECTED_LOG_RATIO: prior.log_mean, **of_orders}


def order_key(name: str) -> str:
    """Return the key in `Measurement.static` of what an order expects."""
    return f"{EXPECTED_LOG_RATIO}.{name}"
