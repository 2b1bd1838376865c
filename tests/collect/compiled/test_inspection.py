"""What compiled kernels show, for every target, against what the vendors' tools say."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from foretune.collect.compiled import FEATURES, get_target
from foretune.collect.compiled.feature_names import (
    BINARY,
    CLASSES,
    OCCUPANCY,
    SPECIALIZATION,
    TTGIR,
)
from foretune.collect.compiled.machine_code import (
    CLASS_MNEMONICS,
    IGNORED,
    classes,
    mnemonics,
    read_cubin,
)
from foretune.errors import ForetuneError, UnknownName, UsageError

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
F16 = torch.float16
SIZES = [4096, 4096, 4096]
TILE = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 3}
ROW = {"BLOCK": 128}
AMD_ONLY = {"accumulator_registers", "scalar_registers", "spilled_registers"}
NVIDIA_ONLY = {"spill_load_bytes", "spill_store_bytes", "tensor_memory", "scratch_bytes"}


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
def test_every_feature_is_there_and_a_number(product, target):
    _, static = product(target)
    missing = FEATURES.keys() - static.keys() - (AMD_ONLY | NVIDIA_ONLY)
    assert not missing
    assert not static.keys() - FEATURES.keys()
    assert (AMD_ONLY if target == "gfx942" else NVIDIA_ONLY) <= static.keys()
    assert all(type(value) is float for value in static.values())
    assert static["fits"] == 1
    assert static["ctas_per_sm"] >= 1
    assert sum(static[name] for name in static if name.startswith("limited_by_")) == 1
    assert static["ops_mma"] > 0
    assert static["loop_dot_flops"] == 2 * 64 * 64 * 32
    assert static["loop_load_bytes"] == 2 * (64 * 32 + 32 * 64)
    assert static["global_width_bytes"] > 4


@pytest.mark.parametrize(
    ("target", "version", "copies"),
    [("sm_80", 2, True), ("sm_90", 3, True), ("sm_100", 5, True), ("sm_120", 2, True),
     ("gfx942", 3, False)],
)  # fmt: skip
def test_matrix_unit_and_pipeline(product, target, version, copies):
    _, static = product(target)
    assert static["mma_version"] == version
    assert static["dot_bits"] == 16
    assert static["pipeline_depth"] >= 2
    assert bool(static["async_copies"]) == bool(static["ops_async_copy"]) == copies


def test_pipeline_depth_follows_stages(product):
    depths = [product("sm_90", num_stages=n)[1]["pipeline_depth"] for n in (1, 2, 4)]
    assert depths == [1, 2, 4]


@pytest.mark.parametrize("target", TARGETS[:4])
def test_registers_stack_and_spills_are_those_of_nvidias_tools(product, compiled, toys, target,
                                                               tmp_path):  # fmt: skip
    spilling = product(target, BM=128, BN=128, BK=32, num_warps=4, maxnreg=128)
    rowwise = compiled(toys.softmax, [F16, F16, 4096, 4096], {"BLOCK": 1024}, target)
    for made, static in (product(target), spilling, rowwise):
        cubin = tmp_path / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        said = subprocess.run(
            [nvidia_tool("cuobjdump"), "-res-usage", str(cubin)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert static["registers"] == int(re.search(r"REG:(\d+)", said).group(1))
        assert static["stack_bytes"] == int(re.search(r"STACK:(\d+)", said).group(1))
        assert (static["spill_load_bytes"], static["spill_store_bytes"]) == spilled(made, tmp_path)
    assert spilling[1]["registers"] <= 128
    if target in ("sm_80", "sm_90"):
        assert spilling[1]["spill_store_bytes"] > 0
        assert spilling[1]["ops_local_store"] > 0


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
        [nvidia_tool(tool), "-v", "-lineinfo", *newer, f"--gpu-name=sm_{arch}{suffix}",
         str(ptx), "-o", str(folder / "again.cubin")],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    stores, loads = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said).groups()
    return int(loads), int(stores)


@pytest.mark.parametrize("target", TARGETS[:4])
def test_instruction_mix_is_that_of_the_disassembler(product, compiled, toys, target, tmp_path):
    for made, static in (product(target), compiled(toys.softmax, [F16, F16, 4, 99], ROW, target)):
        assert {name: static[f"ops_{name}"] for name in CLASSES} == disassembled(made, tmp_path)
        assert static["ops_other"] == 0


def disassembled(made, folder) -> dict[str, int]:
    """Return the instructions of each class, by the mnemonics that nvdisasm prints."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    said = subprocess.run(
        [nvidia_tool("nvdisasm"), "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", said)
    groups = {
        mnemonic: name for name, group in CLASS_MNEMONICS.items() for mnemonic in group.split()
    }
    counts = Counter(groups.get(mnemonic, "other") for mnemonic in lines if mnemonic != IGNORED)
    return {name: counts[name] for name in CLASSES}


def test_one_number_means_another_instruction_on_blackwell():
    assert (mnemonics(90)[0x35], mnemonics(120)[0x35]) == ("HFMA2", "IADD")
    order = list(CLASSES)
    assert order[classes(90)[0x35]] == "float"
    assert order[classes(120)[0x35]] == "integer"


@pytest.mark.parametrize("target", TARGETS)
def test_divisibility_changes_the_code(product, target):
    _, aligned = product(target)
    _, odd = product(target, sizes=[4096, 4096, 4099])
    assert (aligned["integers"], aligned["integers_divisible"]) == (3, 3)
    assert odd["integers_divisible"] == 2
    assert (aligned["pointers"], aligned["pointers_aligned"]) == (3, 3)
    assert odd["load_access_bytes"] < aligned["load_access_bytes"]
    assert odd["load_width_bytes"] < aligned["load_width_bytes"]
    if target != "gfx942":  # its one-byte-at-a-time loads take fewer instructions around them
        assert odd["instructions"] > aligned["instructions"]


def test_ones_are_compiled_in(compiled, toys):
    _, static = compiled(toys.softmax, [F16, F16, 1, 4099], {"BLOCK": 1024})
    assert (static["integers"], static["integers_one"], static["integers_divisible"]) == (2, 1, 0)
    assert static["reductions"] == 2
    assert static["loops"] == 0
    assert static["float_ops"] > 3 * 1024
    assert static["ops_special"] > 0


def test_waves_are_those_of_amds_compiler(product):
    made, static = product("gfx942")
    said = int(re.search(r"; Occupancy: (\d+)", made.asm["amdgcn"]).group(1))  # by registers, LDS
    target = get_target("gfx942")
    by_registers = min(512 // (-(-int(static["registers"]) // 8) * 8), 8)
    assert by_registers == said
    assert static["warps_per_sm"] <= said * target.limits.partitions


@pytest.mark.parametrize("target", TARGETS)
def test_first_stages_show_the_same(product, toys, target):
    from foretune.collect.compiled.compiling import compile_ttgir, specialize
    from foretune.collect.compiled.static_features import ttgir_features

    specialised = specialize(toys.matmul, [F16] * 3 + SIZES, {}, TILE, get_target(target))
    early = ttgir_features(compile_ttgir(specialised), specialised)
    _, late = product(target)
    assert {name: late[name] for name in early} == early
    assert SPECIALIZATION.keys() <= early.keys()
    assert TTGIR.keys() <= early.keys()
    assert not early.keys() & BINARY.keys()


def test_autotuner_and_heuristics_are_unwrapped(compiled, toys):
    for n, even in ((4096, True), (1000, False)):
        made, static = compiled(toys.tuned_copy, [F16, F16, n], {"BLOCK": 128})
        assert made.src.constants[(4,)] is even
        assert static["pointers"] == 2


def test_a_heuristic_that_needs_more_says_so(toys, compiled):
    with pytest.raises(UsageError, match=r"heuristic of 'EVEN' fails .*KeyError"):
        compiled(toys.tuned_copy, [F16, F16], {"BLOCK": 128})


@pytest.mark.parametrize(
    ("arguments", "config", "error", "message"),
    [
        ([F16, F16], TILE, UsageError, "matmul misses c, M, N, K"),
        ([F16] * 3 + SIZES, {"BM": 64}, UsageError, "matmul misses BN, BK"),
        ([F16] * 3 + SIZES, TILE | {"BLOK": 3}, UnknownName, "parameter of matmul 'BLOK'"),
        ([F16] * 3 + SIZES, TILE | {"M": 3}, UsageError, "given M twice"),
        ([F16] * 12, {}, UsageError, "takes 9 arguments, 12 were given"),
    ],
)
def test_wrong_requests(compiled, toys, arguments, config, error, message):
    with pytest.raises(error, match=message):
        compiled(toys.matmul, arguments, config)


def test_what_is_no_kernel(compiled):
    with pytest.raises(UsageError, match="is no Triton kernel"):
        compiled(len, [], {})


def test_what_is_no_cubin():
    with pytest.raises(ForetuneError, match="no cubin"):
        read_cubin(b"MZ something else entirely", 90)


def test_occupancy_names_are_documented():
    assert all(name in FEATURES for name in OCCUPANCY)
