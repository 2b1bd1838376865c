"""One call of an operator of torch, with its tensors described by size."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from foretune.kernel import Launch

MIN_SCALED = 16
"""Smallest size that neighbors change: smaller ones are filters, groups, or flags."""
FACTORS = (0.5, 2.0)
"""Sizes of neighbors, relative to the operator's own."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its contents.

    Attributes:
        shape, stride: as in torch.
        dtype: torch's type.
        is_weight: whether it is a parameter, so its first size is no batch.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_weight: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        """Return the description of ``tensor``."""
        weight = isinstance(tensor, torch.nn.Parameter)
        return cls(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())),
                   tensor.dtype, weight)  # fmt: skip

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether it lies in memory in the order of its dimensions, without gaps."""
        return self._on("meta").is_contiguous()

    def resized(self, shape: Iterable[int]) -> "TensorSpec":
        """Return a tensor of another shape whose dimensions are in the same order in memory."""
        sizes, strides, step = tuple(shape), [0] * len(self.shape), 1
        for i in sorted(range(len(sizes)), key=lambda i: (self.stride[i], -i)):
            strides[i], step = step, step * sizes[i]
        return replace(self, shape=sizes, stride=tuple(strides))

    def allocate(self, high: int = 1) -> torch.Tensor:
        """Return it with random contents; integers are below ``high``."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True) if n)
        if self.dtype.is_floating_point:
            flat = torch.randn(last + 1, dtype=self.dtype)
        elif self.dtype == torch.bool:
            flat = torch.ones(last + 1, dtype=self.dtype)
        else:
            flat = torch.randint(max(high, 1), (last + 1,), dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride)

    def _on(self, device: str) -> torch.Tensor:
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
            made = self._with(lambda t: t._on("cpu"))()
        return [TensorSpec.of(x) for x in tree_leaves(made) if isinstance(x, torch.Tensor)]

    def build(self) -> Launch:
        """Return the call on tensors with random contents; indices are below all first sizes."""
        rows = [t.shape[0] for t in self.tensors if t.shape and t.dtype.is_floating_point]
        return self._with(lambda t: t.allocate(min(rows, default=2)))

    def neighbors(self) -> Iterator["Call"]:
        """Yield the call with one size halved or doubled, wherever the size occurs, and batches."""
        batch = next((t.shape[0] for t in self.tensors if t.shape and not t.is_weight), 0)
        tried: list[Call] = []
        for factor in FACTORS:
            sizes = sorted({n for t in self.tensors for n in t.shape if n >= MIN_SCALED})
            tried += [self._replace_size(size, round(size * factor)) for size in sizes]
            if (other := round(batch * factor)) >= 1 and batch < MIN_SCALED:
                tried.append(self._replace_batch(batch, other))
        for call in tried:
            try:
                call.outputs()
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue  # sizes that do not fit together
            yield call

    def _with(self, make: Callable[[TensorSpec], torch.Tensor]) -> Launch:
        target = self.target
        args, kwargs = tree_map(
            lambda x: make(x) if isinstance(x, TensorSpec) else x, (self.args, self.kwargs)
        )
        return lambda: target(*args, **kwargs)

    def _replace_size(self, old: int, new: int) -> "Call":
        def change(x: Any) -> Any:
            if isinstance(x, TensorSpec):
                return x.resized(new if n == old else n for n in x.shape) if old in x.shape else x
            return new if type(x) is int and x == old else x

        return Call(self.target, *tree_map(change, (self.args, self.kwargs)))

    def _replace_batch(self, old: int, new: int) -> "Call":
        def change(x: Any) -> Any:
            if isinstance(x, TensorSpec) and not x.is_weight and x.shape[:1] == (old,):
                return x.resized((new, *x.shape[1:]))
            return x

        return Call(self.target, *tree_map(change, (self.args, self.kwargs)))


@cache  # making one takes longer than using it
def _fake_mode() -> FakeTensorMode:
    return FakeTensorMode()


def _plain(value: Any) -> Any:
    """Return a tensor's description, and a size of a traced graph as a number."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    return int(value) if isinstance(value, torch.SymInt) else value
