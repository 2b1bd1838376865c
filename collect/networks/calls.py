"""Calls of torch's operators without their data: sizes, and calls of neighboring sizes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from foretune.kernel import Launch

MIN_SCALED = 16
"""Smallest size that neighbors change: smaller ones are filters, groups, or flags."""
FACTORS = (0.5, 2.0)
"""Sizes of neighbors, relative to the operator's own."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its contents; if it ``is_weight``, its first size is not the batch."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_weight: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """Return the description of ``tensor``."""
        return cls(
            shape=tuple(map(int, tensor.shape)),
            stride=tuple(map(int, tensor.stride())),
            dtype=tensor.dtype,
            is_weight=isinstance(tensor, torch.nn.Parameter),
        )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.dtype.itemsize

    def resized(self, shape: Iterable[int]) -> "TensorSpec":
        """Return a tensor of another shape whose dimensions are in the same order in memory."""
        sizes = tuple(shape)
        innermost_first = sorted(range(len(sizes)), key=lambda i: (self.stride[i], -i))
        strides = [0] * len(sizes)
        step = 1
        for i in innermost_first:
            strides[i] = step
            step *= sizes[i]
        return replace(self, shape=sizes, stride=tuple(strides))

    def allocate(self, high: int = 1) -> torch.Tensor:
        """Return a tensor with random contents; integers are below ``high``."""
        # Strides may leave gaps, or let elements share memory: allocate up to the last element.
        last = sum(
            (size - 1) * stride
            for size, stride in zip(self.shape, self.stride, strict=True)
            if size
        )
        length = last + 1
        if self.dtype.is_floating_point:
            flat = torch.randn(length, dtype=self.dtype)
        elif self.dtype == torch.bool:
            flat = torch.ones(length, dtype=self.dtype)
        else:
            flat = torch.randint(max(high, 1), (length,), dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride)

    def without_data(self, device: str) -> torch.Tensor:
        """Return a tensor whose contents are not set, on torch's ``device``."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Call:
    """A call of ``target`` with positional and keyword arguments; tensors are `TensorSpec`."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Call":
        """Return the description of a call with real or fake tensors."""
        plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
        return cls(target, plain_args, plain_kwargs)

    @property
    def name(self) -> str:
        """The operator's name without namespace and overload: ``conv2d``."""
        return str(self.target).split(".")[1]

    @property
    def tensors(self) -> list[TensorSpec]:
        """All tensors among the arguments."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, TensorSpec)]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors among the arguments."""
        return sum(t.bytes for t in self.tensors)

    def outputs(self) -> list[TensorSpec]:
        """Return the tensors that it returns, without computing them."""
        with _fake_mode():
            results = self._with(lambda tensor: tensor.without_data("cpu"))()
        return [TensorSpec.of(x) for x in tree_leaves(results) if isinstance(x, torch.Tensor)]

    def build(self) -> Launch:
        """Return the call on tensors with random contents; indices are below all first sizes."""
        first_sizes = [t.shape[0] for t in self.tensors if t.shape and t.dtype.is_floating_point]
        high = min(first_sizes, default=2)
        return self._with(lambda tensor: tensor.allocate(high))

    def neighbors(self) -> Iterator["Call"]:
        """Yield the call with one size (or the batch) halved or doubled wherever it occurs."""
        batches = [t.shape[0] for t in self.tensors if t.shape and not t.is_weight]
        batch = batches[0] if batches else 0
        sizes = sorted({size for t in self.tensors for size in t.shape if size >= MIN_SCALED})
        tried: list[Call] = []
        for factor in FACTORS:
            tried += [self._replace_size(size, round(size * factor)) for size in sizes]
            # A large batch is among the sizes.
            other_batch = round(batch * factor)
            if other_batch >= 1 and batch < MIN_SCALED:
                tried.append(self._replace_batch(batch, other_batch))

        for call in tried:
            # Leave out sizes that do not fit together.
            try:
                call.outputs()
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue
            yield call

    def _with(self, make: Callable[[TensorSpec], torch.Tensor]) -> Launch:
        target = self.target
        args, kwargs = tree_map_only(TensorSpec, make, (self.args, self.kwargs))
        return lambda: target(*args, **kwargs)

    def _replace_size(self, old: int, new: int) -> "Call":
        def change(value: Any) -> Any:
            if isinstance(value, TensorSpec) and old in value.shape:
                return value.resized(new if size == old else size for size in value.shape)
            is_size = type(value) is int and value == old  # True and 1 are equal
            return new if is_size else value

        args, kwargs = tree_map(change, (self.args, self.kwargs))
        return Call(self.target, args, kwargs)

    def _replace_batch(self, old: int, new: int) -> "Call":
        def change(value: Any) -> Any:
            if isinstance(value, TensorSpec) and not value.is_weight and value.shape[:1] == (old,):
                return value.resized((new, *value.shape[1:]))
            return value

        args, kwargs = tree_map(change, (self.args, self.kwargs))
        return Call(self.target, args, kwargs)


@cache
def _fake_mode() -> FakeTensorMode:
    """Return torch's mode for tensors without data; making one takes longer than using it."""
    return FakeTensorMode()


def _plain(value: Any) -> Any:
    """Return a tensor's description; a symbolic size as a number; other values unchanged."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    return int(value) if isinstance(value, torch.SymInt) else value
