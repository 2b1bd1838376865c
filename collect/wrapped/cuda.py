"""CUDA through NVRTC: compiled to a cubin, launched on torch's stream, its arrays torch's tensors.

So it is timed, metered and checked as Triton kernels are (`foretune.collect.device_timer`).
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.wrapped.arguments import Arguments, Restoring
from foretune.collect.wrapped.source import Build, Source, first_error
from foretune.errors import UsageError
from foretune.extras import require

PURPOSE = "a CUDA kernel"
Start = Callable[[], None]


class Cuda:
    """Compiles and launches CUDA."""

    def toolchain(self, source: Source) -> str:
        """Return the versions of compiler and device.

        Raises:
            MissingExtra: NVRTC or torch is not installed.
            UsageError: there is no such GPU.
        """
        return f"NVRTC {nvrtc_version()}, {architecture(source.device)}"

    def launch(self, build: Build, arguments: Sequence[Any]) -> Restoring:
        """Compile and return the kernel's launch on tensors of the GPU.

        Raises:
            RuntimeError: the compiler refuses, or the GPU does.
        """
        torch = require("torch", "cuda", PURPOSE)
        cubin, symbol = compiled(build, architecture(build.source.device))
        torch.cuda.set_device(build.source.device)
        tensors = tuple(_on_gpu(torch, a) for a in arguments)
        return CudaLaunch(Arguments(tensors, {}), lambda a: _start(build, cubin, symbol, a))


class CudaLaunch(Restoring):
    """Launches of a kernel.

    Args:
        arguments: of the kernel: tensors and NumPy's numbers.
        prepare: from arguments as a launch takes them, pointers and numbers, to what launches.
    """

    def __init__(self, arguments: Arguments, prepare: Callable[[list[Any]], Start]) -> None:
        super().__init__(arguments)
        self._start = prepare([_passed(a) for a in arguments.args])

    def run(self) -> None:
        """Launch; whoever needs the result waits."""
        self._start()


def compiled(build: Build, arch: str) -> tuple[bytes, bytes]:
    """Return a cubin of one configuration, and the kernel's name in it.

    Args:
        build: what is compiled; templates are named with their arguments, ``add<float>``.
        arch: such as ``sm_90``.

    Raises:
        MissingExtra: NVRTC is not installed.
        RuntimeError: the compiler refuses; the message is its first error.
    """
    nvrtc = _nvrtc()
    source = build.source
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        for other, content in build.others.items():
            Path(folder, other).write_text(content, encoding="utf-8")
        includes = [folder, source.folder, *_headers()]
        options = [f"--gpu-architecture={arch}", *(f"--include-path={i}" for i in includes),
                   *(build.options or ())]  # fmt: skip
        program = _checked(nvrtc.nvrtcCreateProgram(build.text.encode(), b"kernel.cu", 0, [], []))
        try:
            _checked(nvrtc.nvrtcAddNameExpression(program, source.name.encode()))
            (result,) = nvrtc.nvrtcCompileProgram(
                program, len(options), [option.encode() for option in options]
            )
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
                _checked(nvrtc.nvrtcGetProgramLog(program, log))
                raise RuntimeError(first_error(log.decode(errors="replace").strip("\0")))
            symbol = bytes(_checked(nvrtc.nvrtcGetLoweredName(program, source.name.encode())))
            cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
            _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
            return bytes(cubin), symbol
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def architecture(index: int) -> str:
    """Return the architecture of one of this machine's GPUs, such as ``sm_90``.

    Raises:
        MissingExtra: torch is not installed.
        UsageError: there is no such GPU.
    """
    torch = require("torch", "cuda", PURPOSE)
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise UsageError(
            f"there is no CUDA device {index}: this machine has {count or 'none'}, as torch sees it"
        )
    major, minor = torch.cuda.get_device_capability(index)
    # The a-variants have what only this generation can do, such as WGMMA.
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def nvrtc_version() -> str:
    """Return the compiler's version.

    Raises:
        MissingExtra: NVRTC is not installed.
    """
    major, minor = _checked(_nvrtc().nvrtcVersion())
    return f"{major}.{minor}"


def _start(build: Build, cubin: bytes, symbol: bytes, passed: list[Any]) -> Start:
    """Load a cubin and return what launches its kernel on torch's stream."""
    torch = require("torch", "cuda", PURPOSE)
    core = require("cuda.core", "cuda", PURPOSE)
    device = core.Device(build.source.device)
    device.set_current()
    name = build.source.name
    kernel = core.ObjectCode.from_cubin(cubin, symbol_mapping={name: symbol}).get_kernel(name)
    shape = core.LaunchConfig(grid=build.grid, block=build.threads, shmem_size=build.shared_bytes)

    def start() -> None:
        stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
        core.launch(stream, shape, kernel, *passed)

    return start


def _on_gpu(torch: Any, argument: Any) -> Any:
    return torch.from_numpy(argument).cuda() if isinstance(argument, np.ndarray) else argument


def _passed(argument: Any) -> Any:
    """Return an argument as a launch takes it: an array by its address."""
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument


def _headers() -> list[str]:
    """Return the folders of CUDA's own headers, such as ``cuda_fp16.h``, that are there."""
    pathfinder = require("cuda.pathfinder", "cuda", PURPOSE)
    found = (pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    return [folder for folder in found if folder]


def _nvrtc() -> Any:
    nvrtc = require("cuda.bindings.nvrtc", "cuda", PURPOSE)
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:  # the bindings are there, the library is not
        require("nvidia.cuda_nvrtc", "cuda", PURPOSE)
        raise
    return nvrtc


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return what a call gives beside its status.

    Raises:
        RuntimeError: the status is an error.
    """
    status, *rest = answer
    if int(status):
        raise RuntimeError(f"NVRTC: {status.name}")
    return rest[0] if len(rest) == 1 else rest
