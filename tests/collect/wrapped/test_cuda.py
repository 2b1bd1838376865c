"""CUDA: compiled by NVRTC for real; launched on the CPU's tensors by a stand-in for the driver."""

import ctypes
import re

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.wrapped import cuda, gpu
from foretune.collect.wrapped.source import Build, LaunchShape, Source
from foretune.collect.wrapped.source_kernel import SourceKernel
from foretune.device import Device
from foretune.errors import MissingExtra, UsageError
from foretune.measurement import Status
from foretune.space import Configuration

pytest.importorskip("torch")
try:
    cuda.nvrtc_version()
except MissingExtra as e:
    pytest.skip(str(e), allow_module_level=True)

N = 1000
A, B = np.arange(N, dtype="f4"), np.ones(N, dtype="f4")
ADD = """
#include "scale.h"
__constant__ float weights[2];
template <typename T> __global__ void add(T *c, const T *a, const T *b, int n) {
#if block_size_x == 3
    does not compile
#endif
    extern __shared__ T shared[];
    int i = blockIdx.x * block_size_x + threadIdx.x;
    shared[threadIdx.x] = b[i];
    if (i < n) c[i] = a[i] + SCALE * weights[0] * shared[threadIdx.x];
}
"""
OTHERS = {"scale.h": "#define SCALE (block_size_x == 5 ? 2 : 1)\n"}


def source(**more):
    weights = np.array([1, 4], "f4")
    return Source("add<float>", ADD, "CUDA", ".cu", OTHERS, constants={"weights": weights}, **more)


def build(block=64, arch="sm_90", **more):
    text = f"#define block_size_x {block}\n"
    others = {name: text + other for name, other in OTHERS.items()}
    made = Build(source(), text + ADD, others, more.get("options"), (block, 1, 1), (4, 1, 1))
    return cuda.compile_cubin(made, arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_templates_are_compiled_for_any_gpu(arch):
    cubin, symbol = build(arch=arch, options=("-use_fast_math", "-std=c++17"))
    assert cubin.startswith(b"\x7fELF")
    assert symbol in cubin
    assert symbol.startswith(b"_Z3addIf")
    assert b"weights" in cubin


def test_what_does_not_compile_says_why():
    with pytest.raises(RuntimeError, match="does"):
        build(block=3)
    with pytest.raises(RuntimeError, match=r"NVRTC_ERROR_INVALID_OPTION|unrecognized option"):
        build(options=("--no-such-option",))


@pytest.fixture
def stand_in(monkeypatch):
    """Launches on tensors in the host's memory; the list of what was launched."""
    import torch

    launched = []

    def start(build, cubin, symbol, passed):
        where = [
            ctypes.POINTER(ctypes.c_float * N).from_buffer(ctypes.c_void_p(p)) for p in passed[:3]
        ]
        c, a, b = (np.ctypeslib.as_array(pointer.contents) for pointer in where)
        scale = int(re.search(r"#define block_size_x (\d+)", build.text)[1]) == 5

        def run():
            launched.append((build.grid, build.threads, build.shared_bytes, passed[3]))
            c[:] = a + (2 if scale else 1) * b

        return run

    monkeypatch.setattr(cuda, "architecture", lambda index: "sm_90")
    monkeypatch.setattr(cuda, "_load_launcher", start)
    monkeypatch.setattr(
        gpu, "to_gpu", lambda torch, a: torch.from_numpy(a) if isinstance(a, np.ndarray) else a
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    return launched


def test_right_wrong_and_broken_configurations(stand_in):
    kernel = SourceKernel(
        source(shared_bytes="4 * block_size_x"),
        LaunchShape(N, (None, None, None), ()),
        [np.zeros(N, "f4"), A, B, np.int32(N)],
        {"block_size_x": (64, 3, 5)},
        answer=[A + B, None, None, None],
        device_kind="gpu",
    )
    assert not kernel.reports_own_time  # torch's events do
    device = Device("A GPU", "gpu", specs={"cores": 2.0})
    with InProcessRunner(device, Timing(max_seconds=0.02, warmup_s=0.001)) as runner:
        configs = [Configuration(block_size_x=block) for block in (64, 3, 5)]
        right, broken, wrong = runner.run(kernel, kernel.problem(), configs)
    assert (right.status, right.error) == (Status.OK, "")
    assert right.time_ms > 0
    assert broken.status is Status.COMPILE_ERROR
    assert wrong.status is Status.WRONG_RESULT
    assert stand_in[0] == ((16, 1, 1), (64, 1, 1), 256, np.int32(N))


class Driver:
    """CUDA's driver with one constant of eight bytes, in the host's memory."""

    def __init__(self):
        self.place = np.zeros(2, "f4")

    def cuLibraryGetGlobal(self, library, name):  # noqa: N802
        if (library, name) != ("library", b"weights"):
            return 500, 0, 0
        return 0, self.place.ctypes.data, self.place.nbytes

    def cuMemcpyHtoD(self, to, source, count):  # noqa: N802
        ctypes.memmove(to, source, count)
        return (0,)


def test_constants_are_filled(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(cuda, "require", lambda module, *args: driver)
    made = Build(source(), ADD, OTHERS, None, (64, 1, 1), (4, 1, 1))
    cuda._fill_constants(made, "library")
    assert list(driver.place) == [1, 4]
    made.source.constants["weights"] = np.ones(3, "f4")
    with pytest.raises(RuntimeError, match="weights has 12 bytes, and the source has room for 8"):
        cuda._fill_constants(made, "library")
    made.source.constants["w"] = made.source.constants.pop("weights")
    with pytest.raises(RuntimeError, match="the source uses no constant w"):
        cuda._fill_constants(made, "library")


def test_no_such_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="there is no CUDA device 0: torch sees none"):
        cuda.architecture(0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 6))
    assert cuda.architecture(0) == "sm_86"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    assert cuda.architecture(0) == "sm_90a"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UsageError, match="this torch is not built for CUDA"):
        cuda.architecture(0)


@pytest.mark.gpu
def test_on_a_gpu():
    kernel = SourceKernel(
        source(shared_bytes="4 * block_size_x"),
        LaunchShape(N, (None, None, None), ()),
        [np.zeros(N, "f4"), A, B, np.int32(N)],
        {"block_size_x": (64, 128)},
        answer=[A + B, None, None, None],
        device_kind="gpu",
    )
    from foretune.collect import local_device

    with InProcessRunner(local_device("cuda"), Timing(max_seconds=0.02)) as runner:
        (row,) = runner.run(kernel, kernel.problem(), [Configuration(block_size_x=64)])
    assert (row.status, row.error) == (Status.OK, "")
