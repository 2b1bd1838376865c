"""Names of machines: numbers of GPUs, and instances of clouds."""

import pytest

from foretune.errors import UnknownName, UsageError
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.catalog import find_system, resolve_system
from foretune.plan.describe.machine_names import split_count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("8xH100", (8, "H100")),
        ("8*H100", (8, "H100")),
        ("8 H100s", (8, "H100")),
        ("4x RTX 3090s", (4, "RTX 3090")),
        ("8x L40S", (8, "L40S")),
        ("2x V100S", (2, "V100S")),
        ("dual 3090", (2, "3090")),
        ("quad RTX A6000", (4, "RTX A6000")),
        ("H100x8", (8, "H100")),
        ("A100-80GBx8", (8, "A100-80GB")),
        ("h100:8", (8, "h100")),
        ("gpu:a100:4", (4, "a100")),
        ("gres/gpu:h200:8", (8, "h200")),
        ("3090 Ti", (0, "3090 Ti")),
        ("7900 XTX", (0, "7900 XTX")),
        ("RX580", (0, "RX580")),
        ("GTX1080", (0, "GTX1080")),
        ("MI300X", (0, "MI300X")),
    ],
)
def test_split_count_of_what_people_write(name, expected):
    assert split_count(name) == expected


@pytest.mark.parametrize(
    ("name", "gpus", "device"),
    [
        ("p5.48xlarge", 8, "NVIDIA H100 80GB HBM3"),
        ("ml.p5.48xlarge", 8, "NVIDIA H100 80GB HBM3"),
        ("AWS p4d.24xlarge", 8, "NVIDIA A100-SXM4-40GB"),
        ("p5e.48xlarge", 8, "NVIDIA H200"),
        ("g5.xlarge", 1, "NVIDIA A10G"),
        ("g4dn.metal", 8, "Tesla T4"),
        ("g6e.12xlarge", 4, "NVIDIA L40S"),
        ("a3-highgpu-8g", 8, "NVIDIA H100 80GB HBM3"),
        ("a2-ultragpu-4g", 4, "NVIDIA A100-SXM4-80GB"),
        ("g2-standard-48", 4, "NVIDIA L4"),
        ("Standard_ND96isr_H100_v5", 8, "NVIDIA H100 80GB HBM3"),
        ("ND96isr_MI300X_v5", 8, "AMD Instinct MI300X"),
        ("BM.GPU.H200.8", 8, "NVIDIA H200"),
        ("gpu_8x_h100_sxm5", 8, "NVIDIA H100 80GB HBM3"),
    ],
)
def test_resolve_system_of_an_instance_has_its_gpus(name, gpus, device):
    system = resolve_system(name)
    assert (system.device.name, system.gpus_per_node) == (device, gpus)


def test_resolve_system_of_every_listed_instance_is_known():
    for row in shipped_rows("machines.csv"):
        system = resolve_system(f"{row['gpus']}x {row['system']}")
        assert system.gpus_per_node == int(row["gpus"]), row["name"]


def test_resolve_system_of_an_instance_keeps_measured_links():
    assert resolve_system("p5.48xlarge").intra_node_gbps == find_system("h100_sxm").intra_node_gbps
    assert resolve_system("p5.48xlarge").assumptions == ""


def test_resolve_system_of_several_instances_asks_for_the_number_of_gpus():
    with pytest.raises(UsageError, match=r"give --system p5\.48xlarge, .* \(16\) to --gpus"):
        resolve_system("2x p5.48xlarge")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TPU v5e", "is a TPU, and plans know GPUs"),
        ("tpu-v6e-8", "is a TPU"),
        ("trn2.48xlarge", "is Trainium of AWS"),
        ("Gaudi 3", "is Gaudi of Intel"),
        ("Ascend 910B", "is Ascend of Huawei"),
        ("M3 Ultra", "is a chip of Apple"),
        ("p9.48xlarge", "no known machine of a cloud: name its GPUs"),
        ("Standard_NV6ads_A10_v5", "no known machine of a cloud"),
        ("A100 MIG 3g.40gb", "a slice of a GPU: describe its memory and rates"),
        ("MI308X", "or a TOML file with architecture, memory_gib, memory_gbps"),
    ],
)
def test_resolve_system_says_what_settles_an_unknown_machine(name, words):
    with pytest.raises(UnknownName) as refusal:
        resolve_system(name)
    assert words in str(refusal.value)
