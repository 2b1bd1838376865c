"""Names of number formats and systems: maps those of other tools to the run table's."""

from foretune.device import canonical_name

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


SYSTEMS = {
    "a30": "NVIDIA A30",
    "a40": "NVIDIA A40",
    "a100_sxm": "NVIDIA A100-SXM4-80GB",
    "a100_pcie": "NVIDIA A100 80GB PCIe",
    "b60": "Intel Arc Pro B60",
    "b200_sxm": "NVIDIA B200",
    "b300_sxm": "NVIDIA B300 SXM6 AC",
    "gb200": "NVIDIA GB200",
    "gb200_sxm": "NVIDIA GB200",
    "gb300": "NVIDIA GB300",
    "gb300_sxm": "NVIDIA GB300",
    "h100_pcie": "NVIDIA H100 PCIe",
    "h100_sxm": "NVIDIA H100 80GB HBM3",
    "h200_sxm": "NVIDIA H200",
    "l4": "NVIDIA L4",
    "l40s": "NVIDIA L40S",
    "rtx_pro_6000_server": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
}
"""System -> device name as reported by its driver."""


def device_of_system(system: str) -> str:
    """Return the system's device name; an unknown system keeps its name."""
    return SYSTEMS.get(system) or canonical_name(system)
