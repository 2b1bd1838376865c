"""The kernel that `tool_engine.py` serves: FLA's gated norm if FLA is installed, else an RMS norm.

Import it after a server's plugins: the kernels are decorated when this is imported.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from library_calls import Inputs, Sizes
from library_cases import CASES
from library_modules import find_tuner
from triton_norm import _whole_rows

EPSILON = 1e-5
FLA_KERNEL = "layer_norm_gated_fwd_kernel"
PROBLEMS: list[Sizes] = [{"T": 8192, "D": 4096}, {"T": 512, "D": 4096}]
"""Of the RMS norm: rows and columns."""
LIST = [
    triton.Config({"ROWS": rows, "STAGES": 1}, num_warps=warps)
    for rows in (1, 2, 4, 8)
    for warps in (4, 8, 16, 2)
]


@triton.autotune(LIST, key=["rows", "columns"])
@triton.jit
def served_norm(
    x,
    w,
    b,
    y,
    rows,
    columns,
    epsilon,
    CENTER: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run the kernel of examples/kernels."""
    _whole_rows(x, w, b, y, rows, columns, epsilon, CENTER, ROWS, BLOCK, STAGES)


@dataclass(frozen=True)
class Request:
    """A call of the served kernel.

    Attributes:
        sizes: of its tensors.
        call: runs it, and returns a new output.
        expected: returns what torch computes.
    """

    sizes: Sizes
    call: Callable[[], torch.Tensor]
    expected: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Service:
    """A decorated kernel, and its requests."""

    name: str
    tuner: Any
    requests: list[Request]


def load_service(inputs: Inputs) -> Service:
    """Return the kernel that can be served here."""
    if importlib.util.find_spec("fla") is None:
        name = "RMS norm of examples/kernels"
        return Service(name, served_norm, [norm_request(sizes, inputs) for sizes in PROBLEMS])
    case = next(case for case in CASES if case.kernel == FLA_KERNEL)
    module = importlib.import_module(case.module)
    requests = [fla_request(module, sizes, inputs) for sizes in case.problems]
    return Service(f"fla's {FLA_KERNEL}", find_tuner(getattr(module, FLA_KERNEL)), requests)


def norm_request(sizes: Sizes, inputs: Inputs) -> Request:
    """Return a call of `served_norm`."""
    rows = sizes["T"]
    columns = sizes["D"]
    x = inputs.normal(rows, columns)
    weight = inputs.normal(columns)

    def call() -> torch.Tensor:
        y = torch.empty_like(x)
        served_norm[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
            x,
            weight,
            weight,
            y,
            rows,
            columns,
            EPSILON,
            CENTER=False,
            BLOCK=triton.next_power_of_2(columns),
        )
        return y

    return Request(sizes, call, lambda: rms_norm(x, weight))


def fla_request(module: Any, sizes: Sizes, inputs: Inputs) -> Request:
    """Return a call of FLA's RMS norm with a gate."""
    x = inputs.normal(sizes["T"], sizes["D"])
    gate = inputs.normal(sizes["T"], sizes["D"])
    weight = inputs.normal(sizes["D"])

    def call() -> torch.Tensor:
        y, *_ = module.layer_norm_gated_fwd(x, gate, weight, None, is_rms_norm=True)
        return y

    def expected() -> torch.Tensor:
        return rms_norm(x, weight) * torch.nn.functional.silu(gate.float())

    return Request(sizes, call, expected)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the RMS norm of rows, in single precision."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON)
    return wide * scale * weight.float()
