"""CUDA through NVRTC: compiled to a cubin, launched by ``cuda.core``."""

from collections.abc import Sequence
from typing import Any

from foretune.collect.wrapped.call_arguments import ResettingLaunch
from foretune.collect.wrapped.gpu import Launcher, check_constant, check_index, launch_on_gpu
from foretune.collect.wrapped.source import Build, Source, first_error, include_folders
from foretune.support.lazy import require

PURPOSE = "a CUDA kernel"


def toolchain(source: Source) -> str:
    """Return the versions of compiler and device."""
    return f"NVRTC {nvrtc_version()}, {architecture(source.device)}"


def launch(build: Build, arguments: Sequence[Any]) -> ResettingLaunch:
    """Compile and return the kernel's launch on tensors of the GPU."""
    torch = require("torch", "cuda", PURPOSE)
    cubin, symbol = compile_cubin(build, architecture(build.source.device))
    return launch_on_gpu(torch, build, arguments, lambda a: _load_launcher(build, cubin, symbol, a))


def compile_cubin(build: Build, arch: str) -> tuple[bytes, bytes]:
    """Return a cubin of one configuration, and the kernel's name in it.

    Raises MissingExtra without NVRTC, and RuntimeError with the compiler's first error.
    """
    nvrtc = _nvrtc()
    source = build.source
    with include_folders(build) as folders:
        includes = [*folders, *_headers()]
        options = [
            f"--gpu-architecture={arch}",
            *(f"--include-path={i}" for i in includes),
            *(build.options or ()),
        ]
        program = _check_status(
            nvrtc.nvrtcCreateProgram(build.text.encode(), b"kernel.cu", 0, [], [])
        )
        try:
            _check_status(nvrtc.nvrtcAddNameExpression(program, source.name.encode()))
            (result,) = nvrtc.nvrtcCompileProgram(
                program, len(options), [option.encode() for option in options]
            )
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                log = bytearray(_check_status(nvrtc.nvrtcGetProgramLogSize(program)))
                _check_status(nvrtc.nvrtcGetProgramLog(program, log))
                raise RuntimeError(first_error(log.decode(errors="replace").strip("\0")))
            symbol = bytes(_check_status(nvrtc.nvrtcGetLoweredName(program, source.name.encode())))
            cubin = bytearray(_check_status(nvrtc.nvrtcGetCUBINSize(program)))
            _check_status(nvrtc.nvrtcGetCUBIN(program, cubin))
            return bytes(cubin), symbol
        finally:
            nvrtc.nvrtcDestroyProgram(program)


def architecture(index: int) -> str:
    """Return the architecture of a GPU of this machine, such as ``sm_90``."""
    torch = require("torch", "cuda", PURPOSE)
    check_index(torch, index, "CUDA")
    major, minor = torch.cuda.get_device_capability(index)
    # The a-variants have features of this generation only, such as WGMMA.
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def nvrtc_version() -> str:
    """Return the compiler's version."""
    major, minor = _check_status(_nvrtc().nvrtcVersion())
    return f"{major}.{minor}"


def _load_launcher(
    build: Build, cubin: bytes, symbol: bytes, launch_arguments: list[Any]
) -> Launcher:
    """Load a cubin and return the function that launches its kernel on torch's stream."""
    torch = require("torch", "cuda", PURPOSE)
    core = require("cuda.core", "cuda", PURPOSE)
    device = core.Device(build.source.device)
    device.set_current()
    name = build.source.name
    code = core.ObjectCode.from_cubin(cubin, symbol_mapping={name: symbol})
    kernel = code.get_kernel(name)
    _fill_constants(build, code.handle)
    shape = core.LaunchConfig(grid=build.grid, block=build.threads, shmem_size=build.shared_bytes)

    def launch() -> None:
        stream = core.Stream.from_handle(torch.cuda.current_stream().cuda_stream)
        core.launch(stream, shape, kernel, *launch_arguments)

    return launch


def _fill_constants(build: Build, library: Any) -> None:
    """Copy a build's constants into its loaded code; raise RuntimeError if one does not fit."""
    driver = require("cuda.bindings.driver", "cuda", PURPOSE)
    for name, array in build.source.constants.items():
        status, address, capacity = driver.cuLibraryGetGlobal(library, name.encode())
        if int(status):
            raise RuntimeError(f"cmem_args: the source uses no constant {name}")
        check_constant(name, array, capacity)
        _check_status(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))


def _headers() -> list[str]:
    """Return the installed folders of CUDA's headers, such as ``cuda_fp16.h``."""
    pathfinder = require("cuda.pathfinder", "cuda", PURPOSE)
    found = (pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    return [folder for folder in found if folder]


def _nvrtc() -> Any:
    nvrtc = require("cuda.bindings.nvrtc", "cuda", PURPOSE)
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:  # the bindings are installed, the library is not
        require("nvidia.cuda_nvrtc", "cuda", PURPOSE)
        raise
    return nvrtc


def _check_status(answer: tuple[Any, ...]) -> Any:
    """Return the results of a call after its status; raise RuntimeError if that is an error."""
    status, *rest = answer
    if int(status):
        raise RuntimeError(status.name)
    return rest[0] if len(rest) == 1 else rest
