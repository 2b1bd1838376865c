"""Compares the outputs of configurations; outputs that cannot be compared never pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import triton

from foretune.relative_error import combine, tensor_errors, tensor_size

PIECE = 1 << 20
"""Elements compared at a time; a comparison needs a few times as many doubles on the device."""
RERUN_TOLERANCE = 1e-3
"""Relative difference allowed between two launches, because sums may be reordered."""


class ComparisonError(Exception):
    """Outputs cannot be compared; the message says why."""


class OutputChecker:
    """Compares the outputs of configurations with those of the first one that runs.

    It compares all tensors among the arguments, also below tensor descriptors, and restores them
    after every launch. Copies are in host memory.

    Attributes:
        changed: names of arguments that a launch reads and changes; found by launching twice.

    Raises:
        ComparisonError: an argument cannot be read, or there is no memory for copies.
        Exception: the error of the last configuration, if none runs.
    """

    def __init__(
        self,
        launch: Callable[[triton.Config], None],
        arguments: Mapping[str, Any],
        configs: Sequence[triton.Config],
    ) -> None:
        self._launch = launch
        named = [(name, t) for name, a in arguments.items() for t in _tensors(name, a)]
        self._names, self._tensors = [n for n, _ in named], [t for _, t in named]
        self._before = [_copy(t) for t in self._tensors]
        self.changed: list[str] = []
        self._expected = self._before
        self._expected = self._first_outputs(configs)

    def error(self, config: triton.Config) -> float:
        """Return the largest relative error of a tensor after a launch.

        Raises:
            ComparisonError: there is no memory for it.
        """
        try:
            self._launch(config)
            return max(map(_relative_error, self._tensors, self._expected), default=0.0)
        finally:
            self.restore_arguments()

    def restore_arguments(self) -> None:
        """Restore the values that the caller passed."""
        for tensor, before in zip(self._tensors, self._before, strict=True):
            if not _equal(tensor, before):
                tensor.copy_(before)

    def _first_outputs(self, configs: Sequence[triton.Config]) -> list[Any]:
        *others, last = configs
        for config in others:
            try:
                return self._outputs(config)
            except ComparisonError:
                raise
            except Exception:  # its measurement fails too
                continue
        return self._outputs(last)

    def _outputs(self, config: triton.Config) -> list[Any]:
        """Return all tensors after a launch, copied if changed; launch twice to find `changed`."""
        try:
            self._launch(config)
            pairs = zip(self._tensors, self._before, strict=True)
            outputs = [before if _equal(t, before) else _copy(t) for t, before in pairs]
            self._launch(config)
            reruns = zip(self._names, self._tensors, outputs, strict=True)
            self.changed = [
                name for name, t, first in reruns if _relative_error(t, first) > RERUN_TOLERANCE
            ]
            return outputs
        finally:
            self.restore_arguments()


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
    """Return the error of the elements, see `foretune.relative_error`."""
    with _translate_memory_errors():
        size = tensor_size(output, expected)
        parts = (tensor_errors(a, b, size) for a, b in _pieces(output, expected))
        return combine(parts, output.numel())


def _pieces(tensor: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pieces of both tensors as doubles on the device of the first."""
    if tensor.numel() <= PIECE:
        yield tensor.double(), other.to(tensor.device).double()
        return
    longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
    step = max(1, PIECE * tensor.shape[longest] // tensor.numel())
    parts = tensor.split(step, longest), other.split(step, longest)
    for part, same in zip(*parts, strict=True):
        yield from _pieces(part, same)


@contextmanager
def _translate_memory_errors() -> Iterator[None]:
    """Turn out-of-memory errors into `ComparisonError`."""
    try:
        yield
    except (MemoryError, RuntimeError) as e:  # the allocators of torch raise the latter
        first = next(iter(str(e).splitlines()), "")
        raise ComparisonError(f"{type(e).__name__}: {first}") from e
