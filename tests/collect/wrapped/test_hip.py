"""HIP: compiled by hipRTC where a machine has it; launched through a library in C that computes.

That library has the runtime's functions and runs one kernel on the host's memory, so that arguments
are passed as the real one takes them. Nothing here ran on an AMD GPU.
"""

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from foretune.collect import InProcessRunner, Timing
from foretune.collect.worker_process import WorkerProcess
from foretune.collect.wrapped import gpu, hip
from foretune.collect.wrapped.source import Build, LaunchShape, Source
from foretune.collect.wrapped.source_kernel import SourceKernel
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.measurement import Status
from foretune.space import Configuration

N = 1000
A, B = np.arange(N, dtype="f4"), np.ones(N, dtype="f4")
WEIGHTS = np.array([3, 4], "f4")
ADD = """
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <cstdint>
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
OTHERS = {"scale.h": "#define SCALE 1\n"}
RUNTIME = """
#include <string.h>
static float weights[2];
unsigned sizes[7];
void *stream;
const char *hipGetErrorString(int status) { return status == 209 ? "no code for it" : "error"; }
int hipModuleLoadData(void **module, const void *code) {
    *module = (void *)7;
    return memcmp(code, "code", 4) ? 209 : 0;
}
int hipModuleGetFunction(void **kernel, void *module, const char *name) {
    *kernel = (void *)8;
    return module == (void *)7 && !strcmp(name, "_Z3add") ? 0 : 500;
}
int hipModuleGetGlobal(void **place, size_t *bytes, void *module, const char *name) {
    *place = weights, *bytes = sizeof weights;
    return module == (void *)7 && !strcmp(name, "weights") ? 0 : 500;
}
int unloaded;
int hipModuleUnload(void *module) { return unloaded++, 0; }
int hipMemcpyHtoD(void *to, void *from, size_t bytes) { return !memcpy(to, from, bytes); }
int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void *on, void **given,
                          void **extra) {
    unsigned now[7] = {gx, gy, gz, bx, by, bz, shared};
    float *c = *(float **)given[0], *a = *(float **)given[1], *b = *(float **)given[2];
    int n = *(int *)given[3];
    memcpy(sizes, now, sizeof now), stream = on;
    if (kernel != (void *)8 || extra) return 1;
    for (int i = 0; i < n; i++) c[i] = a[i] + (bx == 5 ? 1 : weights[0]) * b[i];
    return 0;
}
"""


def source(**more):
    return Source("add<float>", ADD, "HIP", ".hip", OTHERS, constants={"weights": WEIGHTS}, **more)


def built(block=64, options=None, **more):
    return Build(
        source(**more),
        f"#define block_size_x {block}\n{ADD}",
        OTHERS,
        options,
        (block, 1, 1),
        (4, 1, 1),
        256,
    )


@pytest.fixture(scope="module")
def hiprtc():
    """The compiler in a process of its own: its LLVM and that of OpenCL's pocl abort together."""
    try:
        hip.hiprtc_version()
    except UsageError as e:
        pytest.skip(str(e))
    process = WorkerProcess(lambda: hip, ("the build", "see the error"))
    yield lambda build, arch: process.call("compile_code_object", build, arch, limit_s=120)
    process.close()


@pytest.mark.parametrize("arch", ["gfx906", "gfx90a:sramecc+:xnack-"])
def test_templates_are_compiled_for_any_gpu(hiprtc, arch):
    code, symbol = hiprtc(built(options=("-O3", "-ffast-math")), arch)
    assert b"\x7fELF" in code
    assert symbol.startswith(b"_Z3addIf")
    assert symbol in code
    assert b"weights" in code


def test_what_does_not_compile_says_why(hiprtc):
    with pytest.raises(MeasurementError, match=r"error: .*does"):
        hiprtc(built(block=3), "gfx90a")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the runtime's functions, and the library that has them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("hip")
    (folder / "hip.c").write_text(RUNTIME, encoding="utf-8")
    path = folder / "libhip.so"
    subprocess.run([compiler, "-shared", "-fPIC", folder / "hip.c", "-o", path], check=True)
    return hip.Library("", "hip", str(path)), ctypes.CDLL(str(path))


def start(runtime, arguments, **more):
    code = more.pop("code", b"code of the kernel")
    symbol = more.pop("symbol", b"_Z3add")
    return hip.load_launcher(runtime, built(**more), code, symbol, arguments, lambda: 2**40)


def test_a_launch_passes_sizes_stream_and_arguments(library):
    runtime, seen = library
    c = np.zeros(N, "f4")
    launch = start(runtime, [c.ctypes.data, A.ctypes.data, B.ctypes.data, np.int32(N - 1)])
    launch()
    assert (c[:-1] == A[:-1] + 3 * B[:-1]).all()
    assert c[-1] == 0
    assert list((ctypes.c_uint * 7).in_dll(seen, "sizes")) == [4, 1, 1, 64, 1, 1, 256]
    assert ctypes.c_void_p.in_dll(seen, "stream").value == 2**40
    before = ctypes.c_int.in_dll(seen, "unloaded").value
    del launch
    assert ctypes.c_int.in_dll(seen, "unloaded").value == before + 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"code": b"none"}, "no code for it"),
        ({"symbol": b"_Z3sub"}, "error"),
    ],
)
def test_the_runtime_says_what_is_wrong(library, more, message):
    with pytest.raises(RuntimeError, match=message):
        start(library[0], [], **more)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"w": WEIGHTS}, "the source uses no constant w"),
        ({"weights": np.ones(3, "f4")}, "weights has 12 bytes, and the source has room for 8"),
    ],
)
def test_constants_that_do_not_fit(library, constants, message):
    made = built()
    made.source.constants.clear()
    made.source.constants.update(constants)
    with pytest.raises(RuntimeError, match=message):
        hip.load_launcher(library[0], made, b"code", b"_Z3add", [], lambda: 0)


def torch_of(maker, count=1):
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    cuda = SimpleNamespace(
        device_count=lambda: count, get_device_properties=lambda index: properties
    )
    return SimpleNamespace(version=SimpleNamespace(hip=maker), cuda=cuda)


def test_architecture(monkeypatch):
    monkeypatch.setattr(hip, "require", lambda *args: torch_of("6.4"))
    assert hip.architecture(0) == "gfx942:sramecc+:xnack-"
    with pytest.raises(UsageError, match="there is no ROCm device 1: torch sees 1"):
        hip.architecture(1)
    monkeypatch.setattr(hip, "require", lambda *args: torch_of(None))
    with pytest.raises(UsageError, match="this torch is not built for ROCm"):
        hip.architecture(0)


def test_a_missing_library_is_one_line():
    with pytest.raises(UsageError, match=r"there is no libnothing\.so here: install ROCm"):
        hip.Library("libnothing.so", "hip")


def test_right_wrong_and_broken_configurations(library, monkeypatch):
    """A whole kernel, whose code is what the library takes."""
    torch = pytest.importorskip("torch")

    def compiled(build, arch):
        if build.threads[0] == 3:
            raise RuntimeError("does not compile")
        return b"code", b"_Z3add"

    monkeypatch.setattr(hip, "compile_code_object", compiled)
    monkeypatch.setattr(hip, "hiprtc_version", lambda: "6.4")
    monkeypatch.setattr(hip, "architecture", lambda index: "gfx942")
    monkeypatch.setattr(hip, "Library", lambda name, prefix: library[0])
    monkeypatch.setattr(hip, "_stream", lambda torch: 0)
    monkeypatch.setattr(
        gpu, "to_gpu", lambda torch, a: torch.from_numpy(a) if isinstance(a, np.ndarray) else a
    )
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    kernel = SourceKernel(
        source(shared_bytes="4 * block_size_x"),
        LaunchShape(N, (None, None, None), ()),
        [np.zeros(N, "f4"), A, B, np.int32(N)],
        {"block_size_x": (64, 3, 5)},
        answer=[A + 3 * B, None, None, None],
        device_kind="gpu",
    )
    assert not kernel.reports_own_time  # torch's events do
    device = Device("A GPU", "gpu", specs={"cores": 2.0})
    with InProcessRunner(device, Timing(max_seconds=0.02, warmup_s=0.001)) as runner:
        configs = [Configuration(block_size_x=block) for block in (64, 3, 5)]
        right, broken, wrong = runner.run(kernel, kernel.problem(), configs)
    assert (right.status, right.error) == (Status.OK, "")
    assert broken.status is Status.COMPILE_ERROR
    assert wrong.status is Status.WRONG_RESULT


def test_constants_belong_to_a_kernels_identity(monkeypatch):
    monkeypatch.setattr(hip, "toolchain", lambda source: "hipRTC 6.4, gfx942")

    def identity(constants):
        made = Source("add<float>", ADD, "HIP", ".hip", OTHERS, constants=constants)
        return SourceKernel(
            made,
            LaunchShape(N, (None, None, None), ()),
            [np.zeros(N, "f4"), A, B, np.int32(N)],
            {"block_size_x": (64, 5)},
        ).source_hash

    assert identity({"weights": WEIGHTS}) == identity({"weights": WEIGHTS.copy()})
    others = [{}, {"weights": WEIGHTS + 1}, {"w": WEIGHTS}]
    assert len({identity(c) for c in [{"weights": WEIGHTS}, *others]}) == 4
