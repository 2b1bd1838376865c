"""Number formats: maps other tools' names to the run table's."""

CANONICAL_DTYPES = {
    "half": "fp16",
    "float16": "fp16",
    "fp16": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float": "fp32",
    "float32": "fp32",
    "fp32": "fp32",
    "f32": "fp32",
    "s": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "f64": "fp64",
    "tf32": "tf32",
    "fp8_e4m3": "fp8",
    "fe4m3": "fp8",
    "e4m3": "fp8",
    "s8": "int8",
    "sq": "int8",  # SmoothQuant: weights and activations
    "s4": "int4",
    "s32": "int32",
    "u8": "uint8",
}
"""Another tool's name -> canonical name; unlisted names are kept."""

BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "int32": 4.0, "fp16": 2.0, "bf16": 2.0,
         "fp8": 1.0, "int8": 1.0, "uint8": 1.0, "int4": 0.5}  # fmt: skip
"""Canonical name -> bytes per element."""


def canonical_dtype(name: str) -> str:
    """Return the canonical name of a number format."""
    return CANONICAL_DTYPES.get(name.lower(), name.lower())
