"""Tests the spec table, finding a device by its name, and the roofline: `foretune.device`."""

import csv
import math
from importlib.resources import files

import numpy as np
import pytest

from foretune.device import SPECS, Device, find_device, known_devices
from foretune.errors import UnknownName
from foretune.family import Cost

DEVICES = sorted(known_devices().values(), key=lambda d: d.name)
NVIDIA = [d for d in DEVICES if d.architecture.startswith("sm_")]
TENSOR_CORES = [d for d in NVIDIA if int(d.architecture.removeprefix("sm_")) >= 70]
CLOCKED = [d for d in DEVICES if {"clock_mhz", "fp32_gflops"} <= d.specs.keys()]
# Cells that a datasheet states and that are easy to get wrong: dense, not sparse; per SM or whole.
SPOT_CHECKS = [
    ("Tesla P100-SXM2-16GB", "fp64_gflops", 5300),
    ("Tesla V100-SXM2-32GB", "fp16_gflops", 125000),
    ("Tesla T4", "int8_gflops", 130000),
    ("NVIDIA GeForce RTX 2080 Ti", "memory_gbps", 616),
    ("NVIDIA A100-PCIE-40GB", "memory_gbps", 1555),
    ("NVIDIA A100-SXM4-80GB", "fp16_gflops", 312000),
    ("NVIDIA A100-SXM4-80GB", "memory_gbps", 2039),
    ("NVIDIA GeForce RTX 3090", "fp32_gflops", 35600),
    ("NVIDIA GeForce RTX 4090", "l2_kib", 72 * 1024),
    ("NVIDIA L40S", "fp8_gflops", 733000),
    ("NVIDIA H100 80GB HBM3", "memory_gbps", 3350),
    ("NVIDIA H100 80GB HBM3", "bf16_gflops", 989400),
    ("NVIDIA H100 80GB HBM3", "power_limit_w", 700),
    ("NVIDIA H200", "memory_gbps", 4800),
    ("NVIDIA H200", "cores", 132),
    ("NVIDIA B200", "fp4_gflops", 9000000),
    ("AMD Instinct MI300X", "fp8_gflops", 2614900),
    ("AMD Instinct MI250X", "memory_gbps", 1638.4),  # one of its two dies
    ("AMD Radeon PRO W6600", "memory_gbps", 224),
    ("Intel Arc Pro B60", "memory_gbps", 456),
    ("AMD EPYC 9654", "memory_gbps", 460.8),
    ("Apple M2", "memory_gbps", 100),
]


def test_spec_table_columns_are_specs_in_order():
    text = files("foretune").joinpath("device_specs.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))
    only_measured = {"l1_gbps", "l2_gbps", "l3_gbps", "memory_ns"}
    listed = [spec for spec in SPECS if spec not in only_measured]
    assert rows[0] == ["name", "kind", "architecture", *listed, "source"]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) - 1 == len(known_devices()) >= 36  # and so no name occurs twice


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_spec_table_rows_are_complete_and_positive(device):
    assert device.kind in ("cpu", "gpu")
    assert device.architecture
    assert len(device.source) > 10
    assert {"cores", "memory_gbps"} <= device.specs.keys()
    assert all(0 < value < math.inf for value in device.specs.values())
    assert find_device(device.name) is device


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_spec_table_rates_grow_with_narrower_formats(device):
    s = device.specs
    assert s.get("fp64_gflops", 0) <= s.get("fp32_gflops", math.inf)
    assert s.get("fp16_gflops", math.inf) >= s.get("fp32_gflops", 0)
    if device.architecture != "sm_103":  # whose 8-bit integers are vestigial
        assert s.get("int8_gflops", math.inf) >= s.get("fp16_gflops", 0)
    # Each halving of the format doubles the dense rate (a little more or less where the clock
    # differs); a sparse rate among dense ones would make it four times.
    for wide, narrow in (("bf16", "fp8"), ("fp8", "fp4")):
        if f"{narrow}_gflops" in s:
            ratio = s[f"{narrow}_gflops"] / s[f"{wide}_gflops"]
            assert 1.9 < ratio < (3.2 if device.architecture == "sm_103" else 2.1) or (
                narrow == "fp4" and ratio == 4  # fp8 at half rate: it accumulates in fp32
            )


@pytest.mark.parametrize("device", TENSOR_CORES, ids=lambda d: d.name)
def test_spec_table_matrix_units_are_2_to_33_times_as_fast(device):
    ratio = device.specs["fp16_gflops"] / device.specs["fp32_gflops"]
    assert 1.9 < ratio < 33


@pytest.mark.parametrize("device", CLOCKED, ids=lambda d: d.name)
def test_spec_table_fp32_rate_fits_cores_and_clock(device):
    per_clock = (
        1e3 * device.specs["fp32_gflops"] / device.specs["cores"] / device.specs["clock_mhz"]
    )
    assert min(abs(per_clock / lanes - 1) for lanes in (128, 256)) < 0.06


@pytest.mark.parametrize(("name", "spec", "value"), SPOT_CHECKS)
def test_spec_table_has_figures_of_datasheets(name, spec, value):
    assert find_device(name).specs[spec] == value


@pytest.mark.parametrize(
    "name", ["NVIDIA H200", "nvidia h200", "H200", "h200", "NVIDIA_H200", "nvidia-h200"]
)
def test_find_device_ignores_case_and_vendor(name):
    assert find_device(name).name == "NVIDIA H200"


def test_find_device_ignores_brand():
    assert find_device("RTX 3090").name == "NVIDIA GeForce RTX 3090"


def test_find_device_unknown_name_suggests_nearest():
    with pytest.raises(UnknownName, match="did you mean 'NVIDIA H20'"):
        find_device("NVIDIA H20O")


def test_spec_table_empty_cells_are_absent_specs():
    assert "fp8_gflops" not in find_device("NVIDIA A100-SXM4-80GB").specs
    assert "vector_bits" not in find_device("NVIDIA H200").specs


class TestRoofline:
    device = Device(
        "d", "gpu", specs={"fp32_gflops": 1000.0, "fp16_gflops": 4000.0, "memory_gbps": 100.0}
    )

    def test_compute_bound_takes_flops_over_rate(self):
        assert self.device.roofline_ms(Cost(flops=2e9, bytes_moved=1e6)) == pytest.approx(2.0)

    def test_memory_bound_takes_bytes_over_bandwidth(self):
        assert self.device.roofline_ms(Cost(flops=1e6, bytes_moved=3e8)) == pytest.approx(3.0)

    def test_uses_rate_of_dtype(self):
        cost = Cost(flops=4e9, bytes_moved=0, dtype="fp16")
        assert self.device.roofline_ms(cost) == pytest.approx(1.0)

    def test_takes_columns(self):
        cost = Cost(flops=np.array([2e9, 1e6]), bytes_moved=np.array([1e6, 3e8]))
        assert self.device.roofline_ms(cost) == pytest.approx([2.0, 3.0])

    def test_without_rate_ignores_that_bound(self):
        only_memory = Device("d", "cpu", specs={"memory_gbps": 100.0})
        assert only_memory.roofline_ms(Cost(flops=1e30, bytes_moved=1e8)) == pytest.approx(1.0)
        assert np.isnan(Device("d", "cpu").roofline_ms(Cost(flops=1.0, bytes_moved=1.0)))
