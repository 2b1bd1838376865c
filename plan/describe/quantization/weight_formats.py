"""The format of weights by their arithmetic: kind of numbers, bits, groups, activations."""

from typing import Any

from foretune.plan.describe.formats import grouped_name
from foretune.plan.describe.quantization.fields import NotPlannedError

DEFAULT_GROUP = 128
"""Weights of a group in GPTQ, AWQ and AutoRound, if the file does not say."""

MX_GROUP = 32
"""Numbers of a group in OCP Microscaling formats."""

NV_GROUP = 16
"""Numbers of a group in NVFP4."""

FP8_BLOCK = [128, 128]
"""Weights that share a scale in fp8_block, by output and input."""


def integer_weights(bits: Any, group: int, offset: str = "") -> str:
    """Return the format of weight-only integers; ``group`` is 0 or less for a scale per row."""
    if isinstance(bits, str) and bits.isdigit():
        bits = int(bits)
    if bits not in (2, 3, 4, 5, 6, 8):
        raise NotPlannedError(f"{bits} bits")
    return grouped_name(f"int{bits}_wo", max(group, 0), offset)


def weight_format(
    kind: str,
    bits: int,
    group: int,
    activations: tuple[str, int] | None,
    offset: str = "",
) -> str:
    """Return the format of weights by their arithmetic.

    ``kind`` is ``int`` or ``float``, ``group`` 0 for a scale per tensor or row. ``activations`` are
    their kind and bits; None means 16 bits.
    """
    group = max(group, 0)
    if kind == "int" and activations is None:
        return integer_weights(bits, group, offset)
    if kind == "int":
        pairs = {
            (8, ("int", 8)): "int8",
            (4, ("int", 8)): "w4a8_int8",
            (4, ("float", 8)): "w4afp8",
        }
        base = pairs.get((bits, activations or ("", 0)))
        if base and (bits == 4 or not group):
            return grouped_name(base, group)
        if base:
            raise NotPlannedError(f"int8 weights in groups of {group}")
    elif bits == 4 and group in (MX_GROUP, NV_GROUP):
        return _four_bit_floats(group, activations)
    elif bits == 8 and group == MX_GROUP:
        if activations is None or activations[1] == 8:
            return "mxfp8" if activations else "fp8_wo_g32"
    elif bits == 8 and activations is None:
        return grouped_name("fp8_wo", group)
    elif bits == 8 and activations in (("float", 8), ("mxfloat", 8)):
        return grouped_name("fp8", group)
    by = f", {activations[1]}-bit {activations[0]} activations" if activations else ""
    raise NotPlannedError(f"{bits}-bit {kind} weights in groups of {group}{by}")


def _four_bit_floats(group: int, activations: tuple[str, int] | None) -> str:
    if group == NV_GROUP:
        formats = {None: "nvfp4_wo", ("float", 4): "nvfp4"}
    else:
        formats = {
            None: "mxfp4",
            ("float", 4): "w4a4_mxfp4",
            ("float", 8): "w4a8_mxfp4_fp8",
            ("mxfloat", 8): "w4a8_mxfp4_mxfp8",
        }
    if activations not in formats:
        raise NotPlannedError(f"4-bit floats in groups of {group}, activations {activations}")
    return formats[activations]
