"""Number formats of quantized kernels: bytes per element and compute precision."""

from dataclasses import dataclass
from typing import Any

from foretune.family import Quantity
from foretune.features.families.tiles import map_texts


@dataclass(frozen=True)
class Format:
    """Bytes per element of a format, including scales, and its compute precision.

    ``compute`` is the precision of the multiplications, as in ``device.<compute>_gflops``.
    """

    weight_bytes: float
    activation_bytes: float
    compute: str


BLOCK_SCALES = 4 / 128  # bytes per element of one fp32 scale per 128 values
GROUP_SCALES = 2 / 128  # bytes per element of one 16-bit scale per 128 weights
MX_SCALES, NV_SCALES = 1 / 32, 1 / 16
"""Bytes per value of one-byte scales: one per 32 values (OCP MX 1.0) or per 16 (NVFP4)."""

FORMATS: dict[str, Format] = {
    "fp64": Format(8, 8, "fp64"),
    "fp32": Format(4, 4, "fp32"),
    "tf32": Format(4, 4, "tf32"),
    "fp16": Format(2, 2, "fp16"),
    "bf16": Format(2, 2, "bf16"),
    "fp8": Format(1, 1, "fp8"),
    "fp8_static": Format(1, 1, "fp8"),
    "fp8_block": Format(1, 1 + BLOCK_SCALES, "fp8"),
    "int8": Format(1, 1, "int8"),
    "int8_wo": Format(1, 2, "fp16"),
    "int4_wo": Format(0.5 + GROUP_SCALES, 2, "fp16"),
    "int3_wo": Format(0.375 + GROUP_SCALES, 2, "fp16"),
    "nvfp4": Format(0.5 + NV_SCALES, 0.5 + NV_SCALES, "fp4"),
    "mxfp4": Format(0.5 + MX_SCALES, 0.5 + MX_SCALES, "fp4"),
    "w4afp8": Format(0.5 + GROUP_SCALES, 1, "fp8"),
    "w4a16_mxfp4": Format(0.5 + MX_SCALES, 2, "bf16"),
    "w4a8_mxfp4_mxfp8": Format(0.5 + MX_SCALES, 1 + MX_SCALES, "fp8"),
}
FORMATS |= {
    "fp4_e2m1": Format(0.5 + NV_SCALES, 2, "bf16"),
    "int4_head": Format(0.5 + 4 / 128, 2, "bf16"),
}
"""KV cache formats, with one scale per head of 128 numbers."""
FORMATS |= {
    "float16": FORMATS["fp16"],
    "bfloat16": FORMATS["bf16"],
    "float32": FORMATS["fp32"],
    "float64": FORMATS["fp64"],
    "uint8": FORMATS["int8"],
}
"""PyTorch's names."""
OTHER_NAMES = {
    **dict.fromkeys(("f64", "double"), "fp64"),
    **dict.fromkeys(("f32", "float", "single"), "fp32"),
    **dict.fromkeys(("f16", "half"), "fp16"),
    **dict.fromkeys(("f8", "e4m3", "e5m2", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("i8", "s8", "u8"), "int8"),
}
"""What else tables call formats."""
UNKNOWN = FORMATS["fp16"]
"""Unknown formats count as 16 bits; the model corrects the scale from runs."""


def weight_bytes(format: Any) -> Quantity:
    """Return bytes per weight of a format, or of an array of formats."""
    return 1.0 * _look_up(format, "weight_bytes")


def activation_bytes(format: Any) -> Quantity:
    """Return bytes per activation of a format, or of an array of formats."""
    return 1.0 * _look_up(format, "activation_bytes")


def compute_dtype(format: Any) -> Any:
    """Return the compute precision of a format, or of an array of formats."""
    return _look_up(format, "compute")


def _look_up(format: Any, attribute: str) -> Any:
    return map_texts(format, lambda name: getattr(_find(name), attribute))


def _find(name: str) -> Format:
    """Return the format that a table calls ``name``: upper case and ``torch.`` do not matter."""
    plain = name.lower().removeprefix("torch.")
    return FORMATS.get(OTHER_NAMES.get(plain, plain), UNKNOWN)
