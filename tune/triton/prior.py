"""Prior of a call: a predictor, published tunings, or an order for the kind of kernel."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import ForetuneError, warn
from foretune.features.launches import launch_features
from foretune.measurement import Measurement
from foretune.models.guides.guide import PredictorRequest, SearchPredictor
from foretune.search.encoding import KernelRuns
from foretune.search.searcher import Prior
from foretune.space import Configuration
from foretune.tune.triton.launch_order import SPREAD, LaunchOrder, shipped_order
from foretune.tune.triton.options import Options
from foretune.tune.triton.problem_key import (
    Call,
    is_constant,
    triton_parameters,
    undecorated_kernel,
)
from foretune.tune.triton.published import shipped_tunings
from foretune.tune.triton.tiles import ShapeLaw, shape_law, tile_launches


@dataclass(frozen=True)
class _Kernel:
    """How a kernel of a family names its sizes: an integer, or ``tensor:axis``."""

    family: str
    m: str
    n: str
    weights: str
    experts: str = ""


_BLOCK_GEMM = _Kernel("block_gemm", "M", "N", "B")
KERNELS: Mapping[str, _Kernel] = {
    "_w8a8_block_fp8_matmul": _BLOCK_GEMM,
    "_w8a8_block_fp8_matmul_unrolledx4": _BLOCK_GEMM,
    "_w8a8_block_int8_matmul": _BLOCK_GEMM,
    "_w8a8_triton_block_scaled_mm": _BLOCK_GEMM,
    "fused_moe_kernel": _Kernel("fused_moe", "topk_weights_ptr:0", "N", "b_ptr", "b_ptr:0"),
    "grouped_matmul_kernel": _Kernel(
        "grouped_matmul", "token_ptr:0", "n", "weights_ptr", "weights_ptr:0"
    ),
    "_scaled_mm_per_token": _Kernel("scaled_mm", "M", "N", "B"),
    "_silu_and_mul_kernel_fast": _Kernel("silu_and_mul", "size_m", "size_n", "input_ptr"),
    "_rotary_kernel": _Kernel("rotary", "max_total_len", "HEAD_Q", "Q"),
}
"""Function name -> its kernel."""


def popular_log_shares(call: Call, configs: Sequence[Configuration]) -> np.ndarray | None:
    """Return the log of each candidate's share of published tunings; None for other kernels."""
    kernel = KERNELS.get(call.kernel)
    if kernel is None:
        return None
    weights: Any = call.arguments.get(kernel.weights)
    m, n = (_size(call.arguments, name) for name in (kernel.m, kernel.n))
    experts = _size(call.arguments, kernel.experts) if kernel.experts else 1
    if not (m and n and experts) or not hasattr(weights, "dtype"):
        return None
    if kernel.family == "fused_moe":  # tunings count the width of an expert: gate, up and down
        n = min(n // 2, weights.shape[2])
    tunings = shipped_tunings()[kernel.family]
    return tunings.log_shares(call.device, _dtype(weights), (m, n, experts), configs)


def _size(arguments: Mapping[str, Any], where: str) -> int:
    """Return a size; 0 if the call does not have it."""
    name, _, axis = where.partition(":")
    value: Any = arguments.get(name)
    if axis:
        value = value.shape[int(axis)] if len(getattr(value, "shape", ())) > int(axis) else 0
    return value if type(value) is int else 0


def _dtype(tensor: Any) -> str:
    """Return the type of weights by its name in tunings; 16 for all 16-bit types."""
    name = str(tensor.dtype).removeprefix("torch.")
    return "fp8" if name.startswith("float8") else name if name in ("int8", "uint8") else "16"


EXPECTED_LOG_RATIO = "expected_log_ratio"
"""Key in `Measurement.static`: log time over the fastest candidate's, by the order. It is stored
because it cannot be computed later without the call."""
UNFIT_PROBABILITY = 0.02
"""Probability that a configuration runs although a rule says it exceeds shared memory."""
SLOWDOWN_PER_LOG_VOTE = 0.05
"""Log slow-down of a candidate with 1/e of another's published tunings. It is a guess, since
published tunings have no times."""
ROW_ELEMENTS_PER_THREAD = 16.0
"""Fastest number of elements per thread in kernels without a product of tiles."""
ROW_COST_PER_OCTAVE, ROW_SPREAD = 0.1, 0.12
"""Log slow-down per octave from that number, and the error of this rule: both from softmaxes, on an
RTX 3090 and an H100."""


class PriorFactory:
    """Makes priors: from a predictor, published tunings, the order of launches, or a rule."""

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

            use = PredictorRequest(kernel, source, device, self._objective.needs_power)
            log = logging.getLogger(__name__).info
            self._guide = find_search_predictor(options.predictor, use, log)

    @property
    def predicts(self) -> bool:
        """Whether priors come from a predictor."""
        return self._guide is not None

    def make_prior(self, call: Call, rows: KernelRuns) -> Prior | None:
        """Return the prior of a call's candidates; None for a kernel without any information."""
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
        fits, log_ratios, spread, ranks = np.ones(len(rows)), None, SPREAD, True
        if launches is not None:
            columns = launch_features(launches, self._device)
            fits = np.where(columns.fits, 1.0, UNFIT_PROBABILITY)
            log_ratios = (self._order or shipped_order()).log_ratios(columns)
        elif law is not None:
            log_ratios, spread, ranks = row_log_ratios(law, rows), ROW_SPREAD, False
        if shares is not None:  # the order adds nothing to them
            log_ratios = SLOWDOWN_PER_LOG_VOTE * (shares.max() - shares)
            spread, ranks = SPREAD, True
        if log_ratios is None:
            return None
        return Prior(log_ratios, spread, fits, log_mean_of=self._log_mean_of, ranks=ranks)

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
            warn(f"the shipped predictor is not used: {e}")
            return None


def row_log_ratios(law: ShapeLaw, rows: KernelRuns) -> np.ndarray:
    """Return the log slow-down of each candidate of a kernel without products.

    With few elements, a thread idles while it waits for memory; with many, registers spill.
    """
    elements = np.array([law.elements(config) for config in rows.configs])
    octaves = np.log2(elements / (32.0 * rows.warps) / ROW_ELEMENTS_PER_THREAD)
    cost = ROW_COST_PER_OCTAVE * np.abs(octaves)
    return cost - cost.min(initial=math.inf)
