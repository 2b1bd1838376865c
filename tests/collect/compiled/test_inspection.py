"""Tests features of compiled kernels against the vendors' tools, for every target."""

import re
import subprocess
from pathlib import Path

import pytest

from foretune.collect.compiled.gpu_targets import get_target
from foretune.collect.compiled.static_features import FEATURES, read_cubin
from foretune.errors import ForetuneError, UnknownName, UsageError

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
F16 = torch.float16
SIZES = [4096, 4096, 4096]
TILE = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 3}
ROW = {"BLOCK": 128}
AMD_ONLY = {"accumulator_registers", "scalar_registers", "spilled_registers"}
NVIDIA_ONLY = {"spill_load_bytes", "spill_store_bytes", "tensor_memory"}


def nvidia_tool(name: str) -> str:
    from triton import backends

    tool = Path(backends.__file__).parent / "nvidia" / "bin" / name
    if not tool.exists():
        pytest.skip(f"this build of Triton has no {name}")
    return str(tool)


@pytest.fixture
def product(toys, compiled):
    return lambda target, sizes=SIZES, **config: compiled(
        toys.matmul, [F16] * 3 + list(sizes), TILE | config, target
    )


@pytest.mark.parametrize("target", TARGETS)
def test_static_features_are_numbers(product, target):
    _, static = product(target)
    missing = FEATURES.keys() - static.keys() - (AMD_ONLY | NVIDIA_ONLY)
    assert not missing
    assert not static.keys() - FEATURES.keys()
    assert (AMD_ONLY if target == "gfx942" else NVIDIA_ONLY) <= static.keys()
    assert all(type(value) is float for value in static.values())
    assert static["fits"] == 1
    assert static["ctas_per_sm"] >= 1
    assert sum(static[name] for name in static if name.startswith("limited_by_")) == 1
    assert static["warps"] == 4
    assert static["shared_bytes"] > 0
    assert static["code_bytes"] > 0


@pytest.mark.parametrize("target", ["sm_80", "sm_100"])  # each has its own ptxas
def test_read_cubin_matches_nvidia_tools(product, compiled, toys, target, tmp_path):
    spilling = product(target, BM=128, BN=128, BK=32, num_warps=4, maxnreg=128)
    rowwise = compiled(toys.softmax, [F16, F16, 4096, 4096], {"BLOCK": 1024}, target)
    for made, static in (product(target), spilling, rowwise):
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        said = subprocess.run(
            [nvidia_tool("cuobjdump"), "-res-usage", str(cubin)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert static["registers"] == int(re.search(r"REG:(\d+)", said).group(1))
        assert static["stack_bytes"] == int(re.search(r"STACK:(\d+)", said).group(1))
        assert (static["spill_load_bytes"], static["spill_store_bytes"]) == spilled(made, tmp_path)
    assert spilling[1]["registers"] <= 128
    if target == "sm_80":
        assert spilling[1]["spill_store_bytes"] > 0


def spilled(made, folder) -> tuple[int, int]:
    """Assemble again and return the bytes of spill loads and stores that ptxas reports."""
    arch = made.metadata.target.arch
    ptx = folder / "kernel.ptx"
    ptx.write_text(made.asm["ptx"])
    tool, suffix = ("ptxas-blackwell", "a") if arch >= 90 else ("ptxas", "")
    from triton import __version__

    newer = (
        ["--regAllocOptLevel=2"] if tuple(map(int, __version__.split(".")[:2])) >= (3, 6) else []
    )
    said = subprocess.run(
        [
            nvidia_tool(tool),
            "-v",
            "-lineinfo",
            *newer,
            f"--gpu-name=sm_{arch}{suffix}",
            str(ptx),
            "-o",
            str(folder / "again.cubin"),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said).groups()
    return int(loads), int(stores)


def test_occupancy_matches_amd_compiler(product):
    made, static = product("gfx942")
    said = int(re.search(r"; Occupancy: (\d+)", made.asm["amdgcn"]).group(1))  # by registers, LDS
    target = get_target("gfx942")
    by_registers = min(512 // (-(-int(static["registers"]) // 8) * 8), 8)
    assert by_registers == said
    assert static["warps_per_sm"] <= said * target.limits.partitions


def test_specialize_unwraps_autotuner_and_heuristics(compiled, toys):
    for n, even in ((4096, True), (1000, False)):
        made, _ = compiled(toys.tuned_copy, [F16, F16, n], {"BLOCK": 128})
        assert made.src.constants[(4,)] is even


def test_specialize_heuristic_without_argument_is_refused(toys, compiled):
    with pytest.raises(UsageError, match=r"of 'EVEN' fails .*KeyError: 'n'\): give --arg n=VALUE"):
        compiled(toys.tuned_copy, [F16, F16], {"BLOCK": 128})


@pytest.mark.parametrize(
    ("arguments", "config", "error", "message"),
    [
        ([F16, F16], TILE, UsageError, "matmul lacks c, M, N, K"),
        ([F16] * 3 + SIZES, {"BM": 64}, UsageError, "matmul lacks BN, BK"),
        ([F16] * 3 + SIZES, TILE | {"BLOK": 3}, UnknownName, "parameter of matmul 'BLOK'"),
        ([F16] * 3 + SIZES, TILE | {"M": 3}, UsageError, "given M twice"),
        ([F16] * 12, {}, UsageError, "takes 9 arguments, 12 were given"),
    ],
)
def test_specialize_wrong_arguments_are_refused(compiled, toys, arguments, config, error, message):
    with pytest.raises(error, match=message):
        compiled(toys.matmul, arguments, config)


def test_specialize_other_object_is_refused(compiled):
    with pytest.raises(UsageError, match="is not a Triton kernel"):
        compiled(len, [], {})


def test_read_cubin_other_file_is_refused():
    with pytest.raises(ForetuneError, match="not a cubin"):
        read_cubin(b"MZ something else entirely")
