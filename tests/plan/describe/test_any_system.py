"""Any GPU by name, and machines that a TOML file describes."""

from dataclasses import replace
from pathlib import Path

import pytest

from foretune.device import find_device
from foretune.errors import UnknownName, UsageError
from foretune.plan import find_system
from foretune.plan.describe.catalog import resolve_system
from foretune.plan.describe.machine_names import split_count
from foretune.plan.describe.system import NETWORK_GBPS, PCIE_GBPS

EXAMPLE = Path(__file__).parents[3] / "examples" / "my-box.toml"
NUMBERS = """
architecture = "sm_99"
memory_gib = 10
memory_gbps = 100
bf16_gflops = 1000
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RTX 4090", (0, "RTX 4090")),
        ("4x RTX 3090", (4, "RTX 3090")),
        ("2 X h100", (2, "h100")),
        ("8× H200", (8, "H200")),
        ("RTX 3090 x2", (2, "RTX 3090")),
        ("RX 580", (0, "RX 580")),
        ("0x RTX 3090", (0, "0x RTX 3090")),
    ],
)
def test_split_count(name, expected):
    assert split_count(name) == expected


def test_resolve_system_of_any_gpu():
    system = resolve_system("RTX 4090", {"NVIDIA GeForce RTX 4090": 0.4})
    assert system.device == find_device("RTX 4090")
    assert (system.gpus_per_node, system.fast_domain_gpus) == (8, 8)
    assert (system.intra_node_gbps, system.inter_node_gbps) == (PCIE_GBPS, NETWORK_GBPS)
    assert 23 < system.memory_gib < 24
    assert system.price_per_hour == 0.4
    assert "RTX 4090 was never measured" in system.assumptions
    assert "8 GPUs per node with links of 32 GB/s" in system.assumptions


def test_resolve_system_with_a_number_of_gpus():
    boards = resolve_system("4x RTX 3090")
    assert (boards.gpus_per_node, boards.device.name) == (4, "NVIDIA GeForce RTX 3090")
    known = resolve_system("2x h100")
    assert known == replace(find_system("h100"), gpus_per_node=2, domain_gpus=2)
    assert known.assumptions == ""


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia 3080 Ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("2x A6000", "NVIDIA RTX A6000"),
        ("W7900", "AMD Radeon PRO W7900"),
        ("6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("7900 XTX", "AMD Radeon RX 7900 XTX"),
        ("2x 9070XT", "AMD Radeon RX 9070 XT"),
        ("Max 1550", "Intel Data Center GPU Max 1550"),
        ("HGX B300", "NVIDIA B300 SXM6 AC"),
        ("GB200 NVL72", "NVIDIA GB200"),
        ("DGX Spark", "NVIDIA GB10"),
        ("H20", "NVIDIA H20"),
        ("H20 96GB", "NVIDIA H20"),
        ("RTX 3080 10GB", "NVIDIA GeForce RTX 3080"),
    ],
)
def test_resolve_system_understands_names_that_people_use(name, device):
    assert resolve_system(name).device.name == device


def test_resolve_system_without_matrix_rates_says_so():
    assert "matrix units is unknown" in resolve_system("GB10").assumptions
    assert "matrix units" not in resolve_system("RTX 4090").assumptions


@pytest.mark.parametrize(
    ("name", "suggested"), [("h100_smx", "h100_sxm"), ("A1000", None), ("MI308X", None)]
)
def test_resolve_system_suggests_only_the_same_number(name, suggested):
    with pytest.raises(UnknownName) as refusal:
        resolve_system(name)
    assert ("did you mean" in str(refusal.value)) == (suggested is not None)
    assert suggested is None or f"did you mean {suggested!r}" in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["RTX 2080 Ti 22GB", "RTX 99990", "4x RTX 99990", "Intel Xeon Gold 6148"]
)
def test_resolve_system_unknown_gpu_is_refused(name):
    with pytest.raises(UnknownName, match=r"or a GPU's name, like '4x RTX 3090', or a TOML file"):
        resolve_system(name)


def test_read_system_the_shipped_example():
    system = resolve_system(str(EXAMPLE))
    assert (system.name, system.gpus_per_node) == ("my-box", 4)
    assert (system.intra_node_gbps, system.inter_node_gbps, system.host_gbps) == (25, 12.5, 25)
    assert (system.memory_gib, system.power_limit_w, system.price_per_hour) == (23.5, 350, 0.35)
    assert system.device.specs["memory_gbps"] == find_device("RTX 4090").specs["memory_gbps"]
    assert "my-box was never measured" in system.assumptions
    assert "assumed" not in system.assumptions


def test_read_system_of_a_gpu_by_its_numbers(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(NUMBERS)
    system = resolve_system(str(path))
    assert (system.name, system.gpus_per_node) == ("own", 1)
    assert system.device.architecture == "sm_99"
    assert system.device.specs == {"memory_gib": 10, "memory_gbps": 100, "bf16_gflops": 1000}
    assert "links of 32 GB/s (PCIe 4.0) are assumed" in system.assumptions


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus = 4", "unknown field gpus: known are name"),
        ("gpu = 'RTX 99990'", "unknown GPU 'RTX 99990'"),
        (NUMBERS.replace("memory_gbps = 100", ""), "lacks memory_gbps"),
        (NUMBERS.replace("bf16_gflops = 1000", ""), "lacks bf16_gflops"),
        (NUMBERS.replace('architecture = "sm_99"', ""), "give architecture"),
        (NUMBERS + "gpus_per_node = -1", "gpus_per_node is -1: give a number above 0"),
        (NUMBERS + "host_gbps = 'fast'", "host_gbps is 'fast'"),
        (NUMBERS + "gpus_per_node = 2.5", "give a whole number"),
        (NUMBERS + "usable_memory_gib = 12", "more than the GPU's memory of 10 GiB"),
        (NUMBERS.replace("gflops = 1000", "gflops = 165"), "1000 for a TFLOP/s"),
        (NUMBERS.replace("gbps = 100", "gbps = 1.8"), "1000 for a TB/s"),
        (NUMBERS.replace("gib = 10", "gib = 24000"), "memory_gib is 24000: give it in GiB"),
        (NUMBERS.replace("sm_99", "Ada"), "architecture 'Ada' is unknown"),
        ("gpu =", "is not TOML"),
    ],
)
def test_read_system_bad_file_is_refused(tmp_path, text, reason):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason):
        resolve_system(str(path))


def test_read_system_absent_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.toml"):
        resolve_system(str(tmp_path / "absent.toml"))
