"""An operator on a device as numbers: its roofline, and features that a model learns from.

Nothing here needs a table library: one question is answered in milliseconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from foretune.device import peak_rate, roofline_terms_ms
from foretune.family import Family
from foretune.features.families.formats import activation_bytes, compute_dtype, weight_bytes
from foretune.plan.cost.latent_attention import latent_decode_cost, latent_prefill_cost

LATENT_COSTS = {"mla_prefill": latent_prefill_cost, "mla_decode": latent_decode_cost}
"""Kernels without a family -> cost of a launch."""
LAUNCH_MS = 0.002
"""Time of an empty operator replayed from a graph."""
OVERLAP = 3.0
"""Exponent of the norm that joins the limits: they overlap, but not fully. Chosen by hand."""
MIN_LIMIT_MS = 1e-6
"""Smallest limit, so that logarithms are finite."""
FORMAT_FLAGS = ("fp8_block", "fp8_static", "int8", "int8_wo", "int4_wo", "nvfp4", "w4a16_mxfp4")
"""Formats with special kernels: each gets a column."""
ENGINES = ("vllm", "sglang", "trtllm")
"""Engines with a column each."""
DEVICE_SPECS = ("cores", "memory_gbps", "bf16_gflops", "l2_kib")
"""Specs that are features, as logarithms."""
_NVIDIA = re.compile(r"sm_(\d+)(\d)")


@dataclass(frozen=True)
class OperatorFeatures:
    """Operators on devices, one row each.

    Attributes:
        names: of the columns.
        matrix: (rows, columns); NaN where unknown.
        limits_ms: (rows, 2): operations over peak rate, and bytes over bandwidth.
    """

    names: tuple[str, ...]
    matrix: np.ndarray
    limits_ms: np.ndarray

    @property
    def log_unit(self) -> np.ndarray:
        """Log milliseconds of a launch and its limits: what the model's ratio is of."""
        clipped = np.maximum(self.limits_ms, MIN_LIMIT_MS)
        busy_ms = (clipped**OVERLAP).sum(axis=1) ** (1.0 / OVERLAP)
        return np.asarray(np.log(LAUNCH_MS + busy_ms))


def operator_features(
    kernel: str,
    problem: Mapping[str, Any],
    config: Mapping[str, Any],
    device: Mapping[str, Any],
    generation: Any,
    engine: Any,
) -> OperatorFeatures:
    """Return the features of ``kernel``.

    Args:
        kernel: like ``gemm``; a family, or of `LATENT_COSTS`.
        problem: sizes; numbers, or arrays with one entry per row, as are the others.
        config: formats and degrees of parallelism.
        device: specs by the names of `foretune.device.SPECS`.
        generation: see `generation_number`.
        engine: one of `ENGINES`.
    """
    family = _family(kernel)
    cost = family.cost(problem, config) if family else LATENT_COSTS[kernel](problem, config)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute_ms, memory_ms = roofline_terms_ms(cost, device)
        derived = family.derived(problem, config, device) if family else {}

    kind = config.get("format", "bf16")
    cache_kind = config.get("kv_format", kind)
    columns: dict[str, Any] = {
        **{f"size_{name}": _log2(size) for name, size in problem.items() if _is_number(size)},
        **{f"config_{name}": _log2(size) for name, size in config.items() if _is_number(size)},
        **{f"derived_{name}": value for name, value in derived.items()},
        "log_compute": _log2(compute_ms),
        "log_memory": _log2(memory_ms),
        "log_intensity": _log2(compute_ms) - _log2(memory_ms),
        "weight_bytes": weight_bytes(kind),
        "activation_bytes": activation_bytes(kind),
        "cache_bytes": weight_bytes(cache_kind),
        **{f"is_{name}": np.equal(kind, name) for name in FORMAT_FLAGS},
        **{f"engine_{name}": np.equal(engine, name) for name in ENGINES},
        **{f"device_{name}": _log2(device.get(name, np.nan)) for name in DEVICE_SPECS},
        "device_rate": _log2(peak_rate(compute_dtype(kind), device)),
        "device_rate_per_core": _log2(device.get("bf16_gflops", np.nan))
        - _log2(device.get("cores", np.nan)),
        "device_generation": generation,
    }
    rows = np.broadcast(*(np.asarray(value) for value in columns.values())).size
    matrix = [np.broadcast_to(np.asarray(value, dtype=float), rows) for value in columns.values()]
    limits = [
        np.broadcast_to(np.asarray(value, dtype=float), rows) for value in (compute_ms, memory_ms)
    ]
    return OperatorFeatures(
        names=tuple(columns),
        matrix=np.column_stack(matrix),
        limits_ms=np.nan_to_num(np.column_stack(limits)),
    )


def generation_number(architecture: str) -> float:
    """Return 9.0 for ``sm_90`` and 10.3 for ``sm_103``; NaN for other makers' GPUs."""
    match = _NVIDIA.fullmatch(architecture)
    return float(f"{match[1]}.{match[2]}") if match else float("nan")


@cache
def _family(kernel: str) -> Family | None:
    from foretune.registry import load, registered

    return load("families", kernel)() if kernel in registered("families") else None


def _is_number(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fiub"


def _log2(value: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log2(np.maximum(np.asarray(value, dtype=float), 2.0**-20))
