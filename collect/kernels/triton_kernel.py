"""Base classes of Triton kernels, number formats, and comparing tensors.

Triton decides when it decorates a function whether to compile or interpret it
(``TRITON_INTERPRET=1``). So only the files of kernels import Triton, and the registry imports these
on request. Torch is imported on first use.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from foretune.errors import MeasurementError, ProblemError
from foretune.family import Quantity
from foretune.kernel import Inputs, Kernel, Launch
from foretune.problem import Problem, ProblemParameter
from foretune.relative_error import combine, tensor_errors, tensor_size
from foretune.space import Configuration
from foretune.support.lazy import require

if TYPE_CHECKING:
    import torch

CACHE = ProblemParameter(
    "cache", "cold", ("cold", "warm"), meaning="whether inputs may still be in the last-level cache"
)
"""Problem parameter of every Triton kernel: a cold cache is flushed before each timed launch."""

BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
"""Bits of each number format."""
ROUNDING = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2, "fp8": 6e-2, "int8": 1e-5}
"""Relative error that rounding products or the output to a format can cause."""
SHARED_MEMORY_BYTES = 101_376
"""Shared memory per block without a device: 99 KiB, the minimum of NVIDIA's GPUs since Ampere."""

_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
_CHUNK = 2**24  # elements compared at a time: a large output in double precision may not fit


_WITHOUT_DATA: ContextVar[bool] = ContextVar("without_data", default=False)


@dataclass(frozen=True)
class JitLaunch:
    """One launch of a ``@triton.jit`` function.

    Attributes:
        function: the function.
        grid: programs in each direction.
        arguments: the arguments that are not constants, in order.
        options: its constants, and compile options (``num_warps``, …).
    """

    function: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


class TensorKernel(Kernel):
    """A GPU kernel on torch tensors.

    If its problem has a parameter ``dtype``, that sets the accepted error.
    """

    device_kind = "gpu"

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the rounding error of the problem's format, or `tolerance` if it has none."""
        return ROUNDING.get(str(problem.get("dtype")), self.tolerance)

    def invalidate_output(self, output: Any) -> None:
        """Fill ``output`` with NaN, or with large numbers if its format has no NaN."""
        torch = _torch()
        if output.is_floating_point() and output.element_size() > 1:
            output.fill_(math.nan)
        else:
            output.view(torch.uint8).fill_(0x7F)  # NaN of eight-bit floats

    def relative_error(self, output: Any, expected: Any) -> float:
        """Return the error of the worst element, see `foretune.relative_error`."""
        if output.shape != expected.shape:
            return math.inf
        size = tensor_size(output, expected)
        flat = output.reshape(-1), expected.to(output.device).reshape(-1)
        pairs = zip(*(part.split(_CHUNK) for part in flat), strict=True)
        parts = (tensor_errors(out.double(), ref.double(), size) for out, ref in pairs)
        return combine(parts, output.numel())


class TritonKernel(TensorKernel):
    """A kernel in Triton; inputs and outputs are tensors of `torch_device`.

    Subclasses define `launches` and draw inputs with `normal`. Their problem should have `CACHE`.
    """

    @abstractmethod
    def launches(
        self, problem: Problem, config: Configuration, inputs: Inputs
    ) -> tuple[list[JitLaunch], Any]:
        """Return the launches of a run, in order, and its output tensor."""

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return a call that launches and returns the output.

        Unless Triton interprets, the kernel was launched once: it compiles and fits the device.
        """
        launches, output = self.launches(problem, config, inputs)
        calls = [(one.function[one.grid], one.arguments, one.options) for one in launches]

        def launch() -> Any:
            for program, arguments, options in calls:
                program(*arguments, **options)
            return output

        if not interpreted():
            launch()
        return launch

    def inputs_without_data(self, problem: Problem) -> Inputs:
        """Return inputs without data, on torch's ``meta`` device; needs no GPU."""
        token = _WITHOUT_DATA.set(True)
        try:
            return self.make_inputs(problem)
        finally:
            _WITHOUT_DATA.reset(token)


def torch_device(kernel: Kernel) -> "torch.device":
    """Return the current GPU, or the CPU if Triton interprets kernels.

    Raises:
        MissingExtra: torch is not installed.
        MeasurementError: there is no GPU, and kernels are not interpreted.
    """
    torch = _torch()
    if _WITHOUT_DATA.get():
        return torch.device("meta")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if interpreted():
        return torch.device("cpu")
    raise MeasurementError(
        f"{kernel.name} needs a GPU, and torch sees none here: run it on a machine that has one "
        "(TRITON_INTERPRET=1 checks its numbers on a CPU)"
    )


def interpreted() -> bool:
    """Return whether Triton interprets kernels on the CPU instead of compiling them."""
    return bool(require("triton", "gpu", "a Triton kernel").knobs.runtime.interpret)


def torch_dtype(name: str) -> "torch.dtype":
    """Return torch's type of a format of `BITS`.

    ``fp8`` has four exponent and three mantissa bits, in the encoding of the GPU.
    """
    torch = _torch()
    if name == "fp8":
        amd = torch.version.hip and torch.cuda.is_available()
        old = amd and torch.cuda.get_device_properties().gcnArchName.startswith("gfx94")
        return torch.float8_e4m3fnuz if old else torch.float8_e4m3fn
    return getattr(torch, _NAMES[name])


def element_bytes(names: Any) -> Quantity:
    """Return the size of one element of a format, or of a column of formats."""
    found = np.select([np.equal(names, name) for name in BITS], [b / 8 for b in BITS.values()])
    return found * 1.0


def check_support(name: str) -> None:
    """Raise `ProblemError` if the current device does not compute in format ``name``."""
    torch = _torch()
    if not torch.cuda.is_available() or torch.version.hip:
        return
    capability = torch.cuda.get_device_capability()
    if capability < {"bf16": (8, 0), "fp8": (8, 9)}.get(name, (0, 0)):
        raise ProblemError(
            f"dtype={name} is not supported by {torch.cuda.get_device_name()}: choose another"
        )


def normal(shape: tuple[int, ...], dtype: str, kernel: Kernel, seed: int) -> "torch.Tensor":
    """Return standard normal numbers in ``dtype``; int8 numbers are scaled by 16 and rounded."""
    torch = _torch()
    device = torch_device(kernel)
    numbers = torch.randn(shape, generator=seeded(device, seed), device=device)
    if dtype == "int8":
        numbers = numbers.mul_(16).round_().clamp_(-127, 127)
    return numbers.to(torch_dtype(dtype))


def seeded(device: "torch.device", seed: int) -> "torch.Generator | None":
    """Return a random generator; None on the ``meta`` device."""
    return None if device.type == "meta" else _torch().Generator(device).manual_seed(seed)


def shared_memory_limit() -> int:
    """Return the shared memory per block of the current device, in bytes.

    Without a device it is `SHARED_MEMORY_BYTES`, which fits most GPUs.
    """
    torch = _torch()
    if not torch.cuda.is_available():
        return SHARED_MEMORY_BYTES
    active = require("triton", "gpu", "a Triton kernel").runtime.driver.active
    properties = active.utils.get_device_properties(torch.cuda.current_device())
    return int(properties["max_shared_mem"])


def _torch() -> Any:
    return require("torch", "gpu", "a Triton kernel")
