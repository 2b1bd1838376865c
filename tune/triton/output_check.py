"""Compares the outputs of configurations; outputs that cannot be compared never pass."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import triton

from foretune.errors import UsageError, describe_error
from foretune.relative_error import combine, tensor_errors, tensor_size

PIECE = 1 << 20
"""Elements compared at a time; a comparison needs a few times as many doubles on the device."""
RERUN_TOLERANCE = 1e-3
"""Relative difference allowed between two launches, because sums may be reordered."""


Reference = Callable[..., Mapping[str, Any]]
"""A function of a call's arguments, by name, that returns the tensors expected after the call.

The result maps names of arguments to tensors of the same shape and of any number type. It may
overwrite its arguments; they are restored.
"""


class ComparisonError(Exception):
    """Outputs cannot be compared; the message says why."""


class OutputChecker:
    """Compares the outputs of configurations with the expected outputs.

    These come from a reference. Without one, the first configuration that runs computes them,
    unless two others agree with each other but not with it. All tensors among the arguments,
    including those of tensor descriptors, are compared and restored after every launch; with a
    reference, only those that it returns. Copies are in host memory.

    Outputs agree up to a relative error of ``limit``. ``configs`` are launched until enough ran.
    Arguments named in ``restored`` have their old values before every measured launch.

    Attributes:
        changed: names of arguments that a launch reads and changes; found by launching twice.
        source: where the expected outputs come from.
        outvoted: the first configuration, if two others agree with each other but not with it.

    Raises:
        ComparisonError: an argument cannot be read, or there is no memory for copies.
        UsageError: the reference does not return such tensors.
        Exception: the error of the last configuration, if none runs, or of the reference.
    """

    def __init__(
        self,
        launch: Callable[[triton.Config], None],
        arguments: Mapping[str, Any],
        configs: Sequence[triton.Config],
        limit: float,
        reference: Reference | None = None,
        restored: Sequence[str] = (),
    ) -> None:
        self._launch = launch
        self._restored = restored
        self._names: list[str] = []
        self._tensors: list[Any] = []
        for name, argument in arguments.items():
            tensors = list(_tensors(name, argument))
            self._names += [name] * len(tensors)
            self._tensors += tensors
        self._before = [_copy(tensor) for tensor in self._tensors]
        self.changed: list[str] = []
        self.source = "the first configuration"
        self.outvoted: triton.Config | None = None
        self._expected: Sequence[Any | None] = self._before
        first, self._expected = self._first_outputs(configs)
        if reference is not None:
            self.source = "the reference"
            self._expected = self._referred(reference, arguments)
            return

        others = [config for config in configs if config is not first]
        majority = self._majority(others, limit)
        if majority is not None:
            self.outvoted = first
            self.source = "two others that agree"
            self._expected = majority

    def error(self, config: triton.Config) -> float:
        """Return the largest relative error of a tensor after a launch.

        Raises ComparisonError if there is no memory for it.
        """
        try:
            self._launch(config)
            pairs = zip(self._tensors, self._expected, strict=True)
            return max((_relative_error(t, e) for t, e in pairs if e is not None), default=0.0)
        finally:
            self.restore_arguments()

    def restore_arguments(self, names: Sequence[str] | None = None) -> None:
        """Restore the values that the caller passed, of all arguments or of these."""
        for name, tensor, before in zip(self._names, self._tensors, self._before, strict=True):
            if (names is None or name in names) and not _equal(tensor, before):
                tensor.copy_(before)

    def _first_outputs(self, configs: Sequence[triton.Config]) -> tuple[triton.Config, list[Any]]:
        """Return the first configuration that runs and its outputs; find `changed`."""
        *others, last = configs
        for config in others:
            try:
                return config, self._outputs(config, rerun=True)
            except ComparisonError:
                raise
            except Exception:  # its measurement fails too
                continue
        return last, self._outputs(last, rerun=True)

    def _outputs(self, config: triton.Config, rerun: bool = False) -> list[Any]:
        """Return all tensors after a launch, copied if changed; launch twice to find `changed`."""
        try:
            self._launch(config)
            pairs = zip(self._tensors, self._before, strict=True)
            outputs = [before if _equal(t, before) else _copy(t) for t, before in pairs]
            if rerun:
                self.restore_arguments(self._restored)
                self._launch(config)
                reruns = zip(self._names, self._tensors, outputs, strict=True)
                self.changed = [
                    name for name, t, first in reruns if _relative_error(t, first) > RERUN_TOLERANCE
                ]
            return outputs
        finally:
            self.restore_arguments()

    def _majority(self, others: Sequence[triton.Config], limit: float) -> list[Any] | None:
        """Return the outputs of two of ``others`` that agree, but differ from the expected."""
        # Neighbors in a list may share a fault: begin in the middle, then from the end.
        middle = len(others) // 2
        order = dict.fromkeys([*others[middle : middle + 1], *reversed(others)])
        outputs: list[list[Any]] = []
        for config in order:
            try:
                if self.error(config) <= limit:
                    return None
                outputs.append(self._outputs(config))
            except ComparisonError:
                raise
            except Exception:
                continue
            if len(outputs) == 2:
                pairs = zip(*outputs, strict=True)
                agree = all(_relative_error(one, other) <= limit for one, other in pairs)
                return outputs[0] if agree else None
        return None

    def _referred(self, reference: Reference, arguments: Mapping[str, Any]) -> list[Any | None]:
        """Return the expected content of each tensor by the reference; None for those it omits."""
        try:
            outputs = reference(**arguments)
            if not isinstance(outputs, Mapping) or not outputs or outputs.keys() - {*self._names}:
                raise UsageError(
                    "the reference must return a dictionary from names of tensor arguments to "
                    f"tensors: {', '.join(self._names)}"
                )
            expected = {n: [_copy(t) for t in _tensors(n, value)] for n, value in outputs.items()}
        finally:
            self.restore_arguments()
        return [expected[n].pop(0) if expected.get(n) else None for n in self._names]


def _tensors(name: str, argument: Any) -> Iterator[Any]:
    """Yield the tensors of one argument; raise ComparisonError if its memory is unreadable."""
    if isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _tensors(name, part)
    elif hasattr(argument, "base"):  # a tensor descriptor, or a reinterpreted tensor
        yield from _tensors(name, argument.base)
    elif hasattr(argument, "clone"):
        yield argument
    elif hasattr(argument, "data_ptr"):
        raise ComparisonError(f"{name} is a {type(argument).__name__}, which cannot be read")


def _copy(tensor: Any) -> Any:
    """Return a copy in host memory."""
    with _translate_memory_errors():
        return tensor.new_empty(tensor.shape, device="cpu").copy_(tensor)


def _equal(tensor: Any, other: Any) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    with _translate_memory_errors():
        return all(((a == b) | (a != a) & (b != b)).all() for a, b in _pieces(tensor, other))


def _relative_error(output: Any, expected: Any) -> float:
    """Return the error (`foretune.relative_error`); infinite for other shapes."""
    if output.shape != expected.shape:
        return math.inf
    with _translate_memory_errors():
        size = tensor_size(output, expected)
        parts = (tensor_errors(a, b, size) for a, b in _pieces(output, expected))
        return combine(parts, output.numel())


def _pieces(tensor: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Yield both tensors in pieces, as doubles on the device of the first."""
    if tensor.numel() <= PIECE:
        yield tensor.double(), other.to(tensor.device).double()
        return

    # Split the longest axis; a piece that is still too large is split again.
    longest = max(range(tensor.dim()), key=lambda axis: tensor.shape[axis])
    step = max(1, PIECE * tensor.shape[longest] // tensor.numel())
    parts = tensor.split(step, longest)
    other_parts = other.split(step, longest)
    for part, other_part in zip(parts, other_parts, strict=True):
        yield from _pieces(part, other_part)


@contextmanager
def _translate_memory_errors() -> Iterator[None]:
    """Turn out-of-memory errors into `ComparisonError`."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:  # the allocators of torch raise the latter
        raise ComparisonError(describe_error(e)) from e
