"""HIP through hipRTC: compiled to AMD's code, launched by its runtime.

Both libraries belong to ROCm; torch for ROCm brings them. They are called through their C
interface, which is the same from ROCm 5 to 7 (HIP documentation, "HIP RTC" and "Module
Management"). AMD's Python bindings each support one release of ROCm only.
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from foretune.collect.wrapped.call_arguments import ResettingLaunch
from foretune.collect.wrapped.gpu import Launcher, check_constant, check_index, launch_on_gpu
from foretune.collect.wrapped.source import Build, Source, first_error, include_folders
from foretune.errors import UsageError
from foretune.support.lazy import require

PURPOSE = "a HIP kernel"
RUNTIME, COMPILER = "libamdhip64.so", "libhiprtc.so"
ROCM_MAJORS = (7, 6, 5)  # supported major releases of ROCm, newest first
BUILTIN_HEADERS = (
    b"hip/hip_runtime.h",
    b"hip/hip_runtime_api.h",
    b"hip/hip_fp16.h",
    b"stdint.h",
    b"cstdint",
)
"""Headers that hipRTC has built in and does not find as files."""


def toolchain(source: Source) -> str:
    """Return the versions of compiler and device."""
    return f"hipRTC {hiprtc_version()}, {architecture(source.device)}"


def launch(build: Build, arguments: Sequence[Any]) -> ResettingLaunch:
    """Compile and return the kernel's launch on tensors of the GPU."""
    torch = require("torch", "gpu", PURPOSE)
    code, symbol = compile_code_object(build, architecture(build.source.device))
    runtime = Library(RUNTIME, "hip")

    def prepare(launch_arguments: list[Any]) -> Launcher:
        return load_launcher(runtime, build, code, symbol, launch_arguments, lambda: _stream(torch))

    return launch_on_gpu(torch, build, arguments, prepare)


class Library:
    """A library of ROCm, at ``path`` or found; its functions have a prefix and return a status."""

    def __init__(self, name: str, prefix: str, path: str | None = None) -> None:
        self._library = ctypes.CDLL(path) if path else _load_library(name)
        self._prefix = prefix

    def __call__(self, function: str, *arguments: Any) -> None:
        """Call a function; raise RuntimeError with the library's message if it fails."""
        status = self.status(function, *arguments)
        if status:
            get_error_string = getattr(self._library, f"{self._prefix}GetErrorString")
            get_error_string.restype = c_char_p
            raise RuntimeError(get_error_string(c_int(status)).decode(errors="replace"))

    def status(self, function: str, *arguments: Any) -> int:
        """Call a function and return its status; 0 is success."""
        return int(getattr(self._library, self._prefix + function)(*arguments))


def compile_code_object(build: Build, arch: str) -> tuple[bytes, bytes]:
    """Return the code of one configuration, and the kernel's name in it.

    Raises UsageError without hipRTC, and RuntimeError with the compiler's first error.
    """
    rtc = _compiler()
    program, symbol = c_void_p(), c_char_p()
    name = build.source.name.encode()
    headers = len(BUILTIN_HEADERS)
    rtc(
        "CreateProgram",
        byref(program),
        build.text.encode(),
        b"kernel.hip",
        c_int(headers),
        (c_char_p * headers)(*[b"\n"] * headers),
        (c_char_p * headers)(*BUILTIN_HEADERS),
    )
    try:
        with include_folders(build) as folders:
            rtc("AddNameExpression", program, name)
            options = [
                f"--offload-arch={arch}",
                *(f"-I{i}" for i in folders),
                *(build.options or ()),
                f"-I{_rocm() / 'include'}",
            ]
            option_array = (c_char_p * len(options))(*(option.encode() for option in options))
            if rtc.status("CompileProgram", program, c_int(len(options)), option_array):
                log = _bytes(rtc, program, "ProgramLog")
                raise RuntimeError(first_error(log.decode(errors="replace").strip("\0")))
        rtc("GetLoweredName", program, name, byref(symbol))
        return _bytes(rtc, program, "Code"), symbol.value or b""
    finally:
        rtc("DestroyProgram", byref(program))


def architecture(index: int) -> str:
    """Return the architecture of a GPU of this machine, such as ``gfx942:sramecc+:xnack-``."""
    torch = require("torch", "gpu", PURPOSE)
    check_index(torch, index, "ROCm")
    return str(torch.cuda.get_device_properties(index).gcnArchName)


def hiprtc_version() -> str:
    """Return the compiler's version."""
    major, minor = c_int(), c_int()
    _compiler()("Version", byref(major), byref(minor))
    return f"{major.value}.{minor.value}"


def load_launcher(
    runtime: Library,
    build: Build,
    code: bytes,
    symbol: bytes,
    launch_arguments: Sequence[Any],
    stream: Any,
) -> Launcher:
    """Load code, and return the launch of its kernel ``symbol``; ``stream`` returns an address."""
    module, kernel = c_void_p(), c_void_p()
    runtime("ModuleLoadData", byref(module), code)
    runtime("ModuleGetFunction", byref(kernel), module, symbol)
    for name, array in build.source.constants.items():
        _fill_constant(runtime, module, name, array)
    # The driver reads the arguments through these pointers at every launch.
    values = [np.asarray(a, np.uint64 if isinstance(a, int) else None) for a in launch_arguments]
    pointers = (c_void_p * len(values))(*(a.ctypes.data for a in values))
    sizes = (*build.grid, *build.threads, build.shared_bytes)

    def launch(values: list[Any] = values) -> None:
        runtime("ModuleLaunchKernel", kernel, *sizes, c_void_p(stream()), pointers, None)

    weakref.finalize(launch, runtime.status, "ModuleUnload", module).atexit = False
    return launch


def _fill_constant(runtime: Library, module: c_void_p, name: str, array: np.ndarray) -> None:
    address, capacity = c_void_p(), c_size_t()
    if runtime.status("ModuleGetGlobal", byref(address), byref(capacity), module, name.encode()):
        raise RuntimeError(f"cmem_args: the source uses no constant {name}")
    check_constant(name, array, capacity.value)
    runtime("MemcpyHtoD", address, c_void_p(array.ctypes.data), c_size_t(array.nbytes))


def _stream(torch: Any) -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def _bytes(rtc: Library, program: c_void_p, what: str) -> bytes:
    size = c_size_t()
    rtc(f"Get{what}Size", program, byref(size))
    content = ctypes.create_string_buffer(size.value)
    rtc(f"Get{what}", program, content)
    return content.raw


@cache
def _compiler() -> Library:
    try:
        return Library(COMPILER, "hiprtc")
    except UsageError:  # in ROCm 5 the compiler is part of the runtime library
        return Library(RUNTIME, "hiprtc")


@cache
def _load_library(name: str) -> ctypes.CDLL:
    """Return a library of ROCm, preferring one that this process has loaded: two would conflict."""
    numbered = [f"{name}.{major}" for major in ROCM_MAJORS]
    installed = [str(_rocm() / "lib" / n) for n in (name, *numbered)]
    for path in (*_loaded_paths(name), *_torch_paths(name), name, *numbered, *installed):
        with suppress(OSError):
            return ctypes.CDLL(path)
    raise UsageError(f"there is no {name} here: install ROCm, or torch for ROCm, to tune HIP code")


def _loaded_paths(name: str) -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = [line.split(maxsplit=5)[-1] for line in lines if "/" in line]
    return [path for path in paths if Path(path).name.startswith(name)]


def _torch_paths(name: str) -> list[str]:
    try:
        torch = require("torch", "gpu", PURPOSE)
    except ImportError:
        return []
    return [str(Path(torch.__file__).parent / "lib" / name)]


def _rocm() -> Path:
    return Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
