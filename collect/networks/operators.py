"""Operators of a network: calls in torch as rows of a run table, by kernel and problem."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from foretune.collect.networks.calls import Call
from foretune.kernel import Launch
from foretune.problem import Problem
from foretune.space import Configuration

PRODUCTS = ("linear", "addmm", "mm", "bmm", "baddbmm", "matmul")
CONVOLUTIONS = ("conv1d", "conv2d")
NORMS = ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm")
ATTENTION = "scaled_dot_product_attention"
VIEW = "view"
HOST = "host"
"""Kernels of operators that move no data, and of Python's work around all operators."""
FORMATS = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}


@dataclass(frozen=True)
class NetworkOperator:
    """An operator of a network.

    ``kernel`` is the family that predicts it; operators without one are
    ``elementwise`` with ``problem.op``. ``problem`` has its sizes, ``config`` number format and
    threads. ``build`` makes a launch with random tensors, which must run with ``config.threads``.
    ``call`` is the call in torch, None for the host's work.
    """

    kernel: str
    problem: Problem
    config: Configuration
    build: Callable[[], Launch] = field(compare=False, repr=False)
    call: Call | None = field(default=None, compare=False, repr=False)

    @property
    def bytes(self) -> int:
        """Bytes of its arguments."""
        return self.call.bytes if self.call else 0

    def neighbors(self) -> Iterator["NetworkOperator"]:
        """Yield operators of the same kind, with one size halved or doubled."""
        if self.call and self.kernel != VIEW:
            for call in self.call.neighbors():
                yield operator_of(call, int(self.config["threads"]))


def operator_of(call: Call, threads: int, is_view: bool = False) -> NetworkOperator:
    """Return the operator of ``call``; a view if its result shares memory with an argument."""
    if is_view:
        kernel = VIEW
        sizes = {"op": call.name}
    else:
        kernel, sizes = _describe(call)
    formats = [FORMATS[tensor.dtype] for tensor in call.tensors if tensor.dtype in FORMATS]
    config = Configuration(format=formats[0] if formats else "fp32", threads=threads)
    return NetworkOperator(
        kernel=kernel, problem=Problem(**sizes), config=config, build=call.build, call=call
    )


def _describe(call: Call) -> tuple[str, dict[str, Any]]:
    """Return kernel and problem of a call."""
    for describe in (_product, _convolution, _attention, _norm):
        description = describe(call)
        if description is not None:
            return description
    return _elementwise(call)


_Description = tuple[str, dict[str, Any]] | None
"""Kernel and problem of a call; None if the call is of another kind."""


def _product(call: Call) -> _Description:
    if call.name not in PRODUCTS:
        return None
    # The values that these add come first.
    start = 1 if call.name in ("addmm", "baddbmm") else 0
    first, second = call.tensors[start : start + 2]
    if min(len(first.shape), len(second.shape)) < 2:
        return None
    inner = first.shape[-1]
    outputs = second.shape[0] if call.name == "linear" else second.shape[-1]
    batch = prod(second.shape[:-2])
    rows = call.outputs()[0].elements // outputs // batch
    sizes = {"op": call.name, "batch": batch, "M": rows, "N": outputs, "K": inner}
    return "gemm", {**sizes, "contiguous": _contiguous(call)}


def _convolution(call: Call) -> _Description:
    if call.name not in CONVOLUTIONS:
        return None
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    image = given["input"]
    weight = given["weight"]
    output = call.outputs()[0]
    sizes = {
        "batch": image.shape[0],
        "in_channels": image.shape[1],
        "out_channels": weight.shape[0],
        "groups": given.get("groups", 1),
    }
    for name, values in (
        ("in", image.shape[2:]),
        ("out", output.shape[2:]),
        ("kernel", weight.shape[2:]),
        ("stride", given.get("stride", 1)),
        ("dil", given.get("dilation", 1)),
    ):
        height, width = _pair(values)
        sizes[f"{name}_h"] = height
        sizes[f"{name}_w"] = width
    return "convolution", {**sizes, "contiguous": _contiguous(call)}


def _attention(call: Call) -> _Description:
    if call.name != ATTENTION:
        return None
    query, keys = call.args[:2]
    is_causal = call.kwargs.get("is_causal", len(call.args) > 5 and call.args[5])
    batch, heads, tokens, dim = (1, *query.shape)[-4:]
    kernel = "attention_prefill" if is_causal else "attention_encoder"
    return kernel, {
        "batch": batch,
        "heads": heads,
        "kv_heads": (1, *keys.shape)[-3],
        "seq_len": tokens,
        "prefix_len": keys.shape[-2] - tokens,
        "head_dim": dim,
        "contiguous": _contiguous(call),
    }


def _norm(call: Call) -> _Description:
    image = call.tensors[0] if call.tensors else None
    if image is None or call.name not in (*NORMS, "softmax", "log_softmax"):
        return None
    columns = image.shape[-1]
    if call.name in ("batch_norm", "instance_norm", "group_norm"):
        columns = prod(image.shape[2:])
    kernel = "softmax" if "softmax" in call.name else "norm"
    sizes = {"op": call.name, "rows": image.elements // max(columns, 1), "columns": columns}
    return kernel, {**sizes, "contiguous": _contiguous(call)}


def _elementwise(call: Call) -> tuple[str, dict[str, Any]]:
    """Describe an operator that streams its operands, by its largest tensor without weights."""
    outputs = call.outputs()
    inputs = [tensor for tensor in call.tensors if not tensor.is_weight]
    large = max((*outputs, *inputs), key=lambda tensor: tensor.elements)
    columns = large.shape[-1] if large.shape else 1
    return "elementwise", {
        "op": call.name,
        "rows": large.elements // max(columns, 1),
        "columns": columns,
        "read": sum(t.elements for t in inputs),
        "written": sum(t.elements for t in outputs),
        "contiguous": _contiguous(call),
    }


def _contiguous(call: Call) -> int:
    """Return 1 if the elements of all inputs are in order and without gaps, else 0."""
    inputs = [tensor for tensor in call.tensors if not tensor.is_weight]
    return int(all(tensor.without_data("meta").is_contiguous() for tensor in inputs))


def _pair(values: Any) -> tuple[int, int]:
    """Return height and width; one dimension counts as the width, with height 1."""
    if isinstance(values, int):
        return values, values
    if len(values) < 2:
        return 1, values[0]
    height, width = values[:2]
    return height, width
