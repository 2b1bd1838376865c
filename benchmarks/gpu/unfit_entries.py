"""Kernels with entries of lists, some of which no GPU of a kind can run: `unfit.py` tries them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from recorded_kernels import softmax_rows, tiled_product
from smoke_rows import REAL
from triton_attention import _attention

from foretune.collect.compiled.foretelling import foretell
from foretune.collect.compiled.gpu_targets import Target

DEVICE = "cuda" if REAL else "meta"
SIDE = 1024
"""Rows, columns and depth of products: a multiple of every tile's."""
HEADS = 4
LENGTH = 1024
WIDTH = 4096
ELEMENTS = 1 << 20
SPOILED = 3.0
"""What is written to an output before a launch."""
COUNT = 10
"""Entries of each kind that are tried: foretold to fail, and to run."""
Config = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """Arguments of a launch.

    Attributes:
        arguments: those of the kernel by name, without what an entry gives.
        output: the tensor that the kernel writes.
        expected: returns what torch computes.
        grid: programs, by entry.
    """

    arguments: Mapping[str, Any]
    output: torch.Tensor
    expected: Callable[[], torch.Tensor]
    grid: Callable[[Config], tuple[int, ...]]


@dataclass(frozen=True)
class Trial:
    """A kernel with entries of a list; the first is an ordinary one.

    Attributes:
        title: what the kernel computes, and in which type.
        kernel: the ``@triton.jit`` function.
        make: makes the arguments.
        entries: constants and launch options.
        limit: allowed relative error, in the 2-norm.
        constants: compile-time parameters that all entries share.
    """

    title: str
    kernel: Any
    make: Callable[[], Call]
    entries: Sequence[Config]
    limit: float
    constants: Config = field(default_factory=dict)

    def configs(self) -> list[Config]:
        """Return the entries with all compile-time parameters."""
        return [{**self.constants, **entry} for entry in self.entries]

    def foretold(self, target: Target) -> list[str]:
        """Return why each entry cannot run on a target; "" if it may run."""
        arguments = self.make().arguments
        return foretell(self.kernel, arguments, self.configs(), [target])[target.name]


@dataclass(frozen=True)
class Entry:
    """An entry that is tried, and the reason why it is foretold to fail; "" for none."""

    trial: str
    number: int
    reason: str


@triton.jit
def widen(x, y, n, BLOCK: tl.constexpr):
    """Convert numbers to single precision."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n).to(tl.float32), mask=i < n)


def product_call(dtype: torch.dtype) -> Call:
    """Return a product of square matrices."""
    a, b = torch.randn(2, SIDE, SIDE, device=DEVICE).to(dtype)
    c = torch.empty_like(a)
    strides = {
        f"stride_{name}": step
        for name, step in zip(
            ("am", "ak", "bk", "bn", "cm", "cn"),
            (*a.stride(), *b.stride(), *c.stride()),
            strict=True,
        )
    }
    sizes = dict.fromkeys(("M", "N", "K"), SIDE)

    def grid(entry: Config) -> tuple[int, ...]:
        return (SIDE // entry["TALL"] * (SIDE // entry["WIDE"]),)

    return Call(
        arguments={"A": a, "B": b, "C": c, **sizes, **strides},
        output=c,
        expected=lambda: a.double() @ b.double(),
        grid=grid,
    )


def attention_call(dim: int) -> Call:
    """Return an attention, whose later keys are hidden."""
    q, k, v = torch.randn(3, 1, HEADS, LENGTH, dim, device=DEVICE).half()
    o = torch.empty_like(q)
    tensors = {"q": q, "k": k, "v": v, "o": o}
    strides = {
        f"stride_{name}{axis}": step
        for name, tensor in tensors.items()
        for axis, step in zip("bhs", tensor.stride(), strict=False)
    }
    scale = math.log2(math.e) / math.sqrt(dim)
    sizes = {"scale": scale, "heads": HEADS, "group": 1, "length": LENGTH}

    def expected() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=True
        )

    def grid(entry: Config) -> tuple[int, ...]:
        return triton.cdiv(LENGTH, entry["BLOCK_M"]), HEADS

    return Call({**tensors, **sizes, **strides}, o, expected, grid)


def softmax_call() -> Call:
    """Return the softmax of rows."""
    x = torch.randn(256, WIDTH, device=DEVICE).half()
    y = torch.empty_like(x)
    sizes = {"rows": len(x), "columns": WIDTH, "stride": WIDTH}
    return Call(
        arguments={"OUT": y, "IN": x, **sizes},
        output=y,
        expected=lambda: x.double().softmax(1),
        grid=lambda entry: (len(x),),
    )


def widening_call(dtype: torch.dtype) -> Call:
    """Return a conversion of numbers of eight bits."""
    x = torch.randn(ELEMENTS, device=DEVICE).to(dtype)
    y = torch.empty(ELEMENTS, device=DEVICE)
    return Call(
        arguments={"x": x, "y": y, "n": ELEMENTS},
        output=y,
        expected=lambda: x.double(),
        grid=lambda entry: (triton.cdiv(ELEMENTS, entry["BLOCK"]),),
    )


def tiles(*listed: tuple[int, int, int, int, int]) -> list[Config]:
    """Return entries of a product: rows, columns, depth, stages and warps."""
    names = ("TALL", "WIDE", "DEEP", "num_stages", "num_warps")
    return [dict(zip(names, entry, strict=True)) for entry in listed]


def queries(*listed: tuple[int, int, int, int]) -> list[Config]:
    """Return entries of an attention: queries, keys, stages and warps."""
    names = ("BLOCK_M", "BLOCK_N", "num_stages", "num_warps")
    return [dict(zip(names, entry, strict=True)) for entry in listed]


def widening(name: str) -> Trial:
    """Return the conversion of a type of torch."""
    dtype = getattr(torch, name)
    entries = [{"BLOCK": 1024, "num_warps": 4}, {"BLOCK": 2048, "num_warps": 8}]
    return Trial(f"widen {name}", widen, lambda: widening_call(dtype), entries, limit=1e-6)


TRIALS: dict[str, Trial] = {
    "half": Trial(
        title="product, fp16",
        kernel=tiled_product,
        make=lambda: product_call(torch.float16),
        entries=tiles(
            (64, 64, 64, 3, 4),
            (128, 128, 64, 7, 8),  # all of the shared memory that a block of sm_90 has
            (128, 128, 64, 8, 8),
            (128, 256, 64, 4, 8),
            (128, 256, 64, 5, 8),
            (64, 64, 8, 3, 4),
            (96, 64, 32, 3, 4),
            (64, 64, 64, 3, 64),
            (64, 64, 128, 3, 4),
        ),
        limit=5e-3,
    ),
    "single": Trial(
        title="product, fp32",
        kernel=tiled_product,
        make=lambda: product_call(torch.float32),
        entries=tiles(
            (64, 64, 32, 3, 4),
            (128, 64, 64, 4, 8),
            (128, 64, 64, 6, 8),
            (64, 64, 32, 3, 3),
            (128, 128, 32, 10, 8),
        ),
        limit=5e-3,  # tensor cores round to TF32
    ),
    "attention-64": Trial(
        title="attention, 64 per head",
        kernel=_attention,
        make=lambda: attention_call(64),
        entries=queries((64, 64, 2, 4), (128, 64, 4, 8), (128, 128, 8, 8), (128, 48, 2, 8)),
        limit=5e-3,
        constants={"D": 64, "CAUSAL": True},
    ),
    "attention-128": Trial(
        title="attention, 128 per head",
        kernel=_attention,
        make=lambda: attention_call(128),
        entries=queries((64, 64, 2, 4), (128, 128, 4, 8), (128, 64, 2, 8)),
        limit=5e-3,
        constants={"D": 128, "CAUSAL": True},
    ),
    "softmax": Trial(
        title="softmax, fp16",
        kernel=softmax_rows,
        make=softmax_call,
        entries=[
            {"WIDTH": WIDTH, "num_warps": 4},
            {"WIDTH": WIDTH, "num_warps": 32},
            {"WIDTH": WIDTH, "num_warps": 64},
            {"WIDTH": 1 << 21, "num_warps": 8},
            {"WIDTH": WIDTH, "num_warps": 12},
        ],
        limit=5e-3,
    ),
    "e4m3fn": widening("float8_e4m3fn"),
    "e5m2": widening("float8_e5m2"),
    "e4m3fnuz": widening("float8_e4m3fnuz"),
    "e5m2fnuz": widening("float8_e5m2fnuz"),
}
"""By name, which is that of a process."""


def chosen_entries(target: Target, count: int = COUNT) -> list[Entry]:
    """Return ``count`` entries that are foretold to run on a target, and as many that are not.

    Kernels take turns, so that both have many.
    """
    fit: list[list[Entry]] = []
    unfit: list[list[Entry]] = []
    for name, trial in TRIALS.items():
        foretold = [
            Entry(name, number, reason) for number, reason in enumerate(trial.foretold(target))
        ]
        fit.append([entry for entry in foretold if not entry.reason])
        unfit.append([entry for entry in foretold if entry.reason])
    return in_turns(fit)[:count] + in_turns(unfit)[:count]


def in_turns(lists: Sequence[Sequence[Entry]]) -> list[Entry]:
    """Return the first of each list, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [listed[i] for i in range(longest) for listed in lists if i < len(listed)]
