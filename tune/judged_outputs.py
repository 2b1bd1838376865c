"""How an implementation's outputs differ from the reference's, as both processes describe them."""

import math

import numpy as np

from foretune.collect.isolated_implementation import CallOutputs, Output
from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.output_comparison import SHIFTED, ComparisonRules, output_error
from foretune.collect.wrapped.special_values import TINY, SpecialValues
from foretune.kernel import WrongResult

MAX_TIMES_SMALLER = 1.0 / TINY
"""Largest ratio of usual and special outputs that counts: inputs are no smaller than that."""
MIN_SIZE = 1e-300
MAX_INFINITE_SHARE = 0.5
"""Largest share of infinities and NaN in the output of a reference that accepts such inputs."""


class OtherOutput(Exception):
    """An implementation's output is not the reference's; the message says how it differs."""


def equal_outputs(one: CallOutputs, other: CallOutputs) -> bool:
    """Whether two calls have the same outputs, without any difference."""
    any_error = ComparisonRules(tolerance=math.inf, exact_types=False)
    try:
        return output_difference(one, other, any_error) == 0.0
    except OtherOutput:  # their shapes differ
        return False


def accepts_special_values(special: SpecialValues, output: CallOutputs, usual: CallOutputs) -> bool:
    """Whether the reference's output on special values says that it accepts them.

    Finite values must give no more infinities and NaN than usual inputs do; others may give some,
    or any number if they spread on purpose.
    """
    if special.spreads:
        return True
    infinite = _count_infinite(output)
    if special.finite:
        return infinite <= _count_infinite(usual)
    elements = sum(part.values.size for part in parts_of(output))
    return infinite <= MAX_INFINITE_SHARE * elements


def rounding_shift(special: SpecialValues, output: CallOutputs, usual: CallOutputs) -> float:
    """Return the shift of the rules (`ComparisonRules`) for an output on special values.

    If the reference's output is far smaller than for usual inputs, as that of a norm after a layer
    with a bias, terms of the usual size cancelled: one rounding error of these is accepted.
    """
    times_smaller = _size(usual) / max(_size(output), MIN_SIZE)
    return max(special.shift, min(times_smaller, MAX_TIMES_SMALLER) / SHIFTED)


def _size(outputs: CallOutputs) -> float:
    """Return the root mean square of all finite fractions of an output; 0 without any."""
    squares = []
    for part in parts_of(outputs):
        if part.values.dtype.kind in "fc":
            magnitudes = np.abs(part.values).astype(float)
            squares.append(np.square(magnitudes[np.isfinite(magnitudes)]))
    together = np.concatenate([np.ravel(square) for square in squares]) if squares else np.zeros(0)
    return float(np.sqrt(together.mean())) if together.size else 0.0


def _count_infinite(outputs: CallOutputs) -> int:
    return sum(arrays.count_infinite(part.values) for part in parts_of(outputs))


def parts_of(outputs: CallOutputs) -> list[Output]:
    """Return the arrays that a call returned, then those that it wrote into arguments."""
    return [*outputs.returned, *outputs.written.values()]


def output_difference(output: CallOutputs, expected: CallOutputs, rules: ComparisonRules) -> float:
    """Return the largest relative error; OtherOutput if structure, type or a value differs."""
    _check_structure(output, expected)
    returned = zip(output.returned, expected.returned, strict=True)
    written = ((output.written[i], expected.written[i]) for i in sorted(expected.written))
    errors = [0.0]
    for ours, theirs in (*returned, *written):
        _check_kind(ours, theirs)
        if ours.values.shape != theirs.values.shape:
            raise OtherOutput(
                f"it gives shape {ours.values.shape} instead of {theirs.values.shape}"
            )
        try:
            errors.append(output_error(ours.values, theirs.values, rules, ours.place))
        except WrongResult as e:
            raise OtherOutput(f"wrong: {e}") from e
    return max(errors)


def _check_structure(output: CallOutputs, expected: CallOutputs) -> None:
    """Raise OtherOutput for outputs that are returned or written elsewhere, or share memory."""
    changed_too = sorted(output.written.keys() - expected.written.keys())
    if changed_too:
        raise OtherOutput(
            f"it changes its argument {changed_too[0]}, which the reference does not change"
        )
    not_written = sorted(expected.written.keys() - output.written.keys())
    if not_written:
        raise OtherOutput(f"it does not write into its argument {not_written[0]}")

    # Kinds and places come before the number of parts: they say more.
    for ours, theirs in zip(output.returned, expected.returned, strict=False):
        _check_kind(ours, theirs)
        if ours.place != theirs.place:
            raise OtherOutput(f"it gives {ours.place} instead of {theirs.place}")
    if len(output.returned) != len(expected.returned):
        raise OtherOutput(
            f"it returns {len(output.returned)} parts instead of {len(expected.returned)}"
        )

    side_effects = sorted({*output.effects} - {*expected.effects})
    if side_effects:
        raise OtherOutput(f"{side_effects[0]}, unlike the reference")


def _check_kind(ours: Output, theirs: Output) -> None:
    if ours.kind != theirs.kind:
        raise OtherOutput(f"it gives {ours.kind} instead of {theirs.kind}")
