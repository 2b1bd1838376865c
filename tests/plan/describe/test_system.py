"""Systems, and what an hour of them costs."""

import math

import pytest

from foretune.device import Device, find_device
from foretune.errors import RunTableError, UnknownName
from foretune.plan import System, find_system, known_systems, published_prices, read_prices
from foretune.support.operator_package import installed_tables

NAMED = (
    "a100_sxm",
    "h100_sxm",
    "h200_sxm",
    "b200_sxm",
    "b300_sxm",
    "gb200",
    "gb300",
    "l40s",
    "rtx_pro_6000_server",
    "b60",
    "mi300x",
)


def test_a_system():
    h200 = find_system("h200_sxm")
    assert h200.device == find_device("NVIDIA H200")
    assert (h200.gpus_per_node, h200.memory_gib, h200.power_limit_w) == (8, 139.81, 700)
    assert (h200.fast_domain_gpus, h200.intra_node_gbps, h200.inter_node_gbps) == (8, 450, 50)
    assert h200.host_gbps == 64
    rack = find_system("gb200")
    assert rack.host_gbps == 225  # a Grace's 450 in one direction, for two GPUs
    assert (rack.gpus_per_node, rack.fast_domain_gpus) == (4, 72)
    assert (rack.intra_node_gbps, rack.inter_node_gbps) == (900, 100)


@pytest.mark.parametrize("name", NAMED)
def test_known_systems_are_complete(name):
    found = find_system(name)
    assert name in known_systems()
    assert found.device.architecture
    assert found.inter_node_gbps <= found.intra_node_gbps or found.intra_node_gbps < 70
    assert 16 <= found.host_gbps <= 450
    # Error correction takes a sixteenth of GDDR.
    assert 0.915 < found.memory_gib / found.device.specs["memory_gib"] < 1
    assert found.power_limit_w > 0


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("h100", "h100_sxm"),
        ("H100-SXM", "h100_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("rtx_pro_6000", "rtx_pro_6000_server"),
        ("gb200_sxm", "gb200"),
    ],
)
def test_other_names(name, short):
    assert find_system(name).name == short


def test_an_unknown_system():
    with pytest.raises(UnknownName, match="did you mean 'h100_sxm'"):
        find_system("h100_sxn")


def test_links_are_those_of_the_package():
    """Every system whose operators the package has is known, with its links."""
    yaml = pytest.importorskip("yaml")
    if (data := installed_tables()) is None:
        pytest.skip("aiconfigurator-core is not installed")
    for folder in (path for path in data.iterdir() if path.is_dir()):
        described = yaml.safe_load((data.parent / f"{folder.name}.yaml").read_text())["node"]
        rack, ours = described.get("num_gpus_per_rack"), find_system(folder.name)
        outside = described["inter_rack_bw" if rack else "inter_node_bw"]
        assert ours.gpus_per_node == described["num_gpus_per_node"], folder.name
        assert ours.fast_domain_gpus == (rack or described["num_gpus_per_node"]), folder.name
        assert ours.intra_node_gbps == pytest.approx(described["intra_node_bw"] / 1e9, rel=0.01)
        assert ours.inter_node_gbps == pytest.approx(outside / 1e9, rel=0.01)


def test_this_machine():
    here = System.from_device(Device("some CPU", "cpu", specs={"memory_gib": 32}), 2)
    assert (here.name, here.gpus_per_node, here.memory_gib) == ("some CPU", 2, 32)
    assert here.host_gbps == 32  # PCIe 4.0 x16
    probed = Device("some CPU", "cpu", specs={"memory_gib": 32, "memory_gbps": 50.0})
    assert System.from_device(probed).host_gbps == 25  # each byte is read and written
    assert here.price_per_hour is None
    assert math.isnan(here.power_limit_w)


def test_prices(tmp_path):
    for name, price in published_prices().items():
        assert find_system(name).price_per_hour == price > 0
    mine = tmp_path / "prices.csv"
    mine.write_text("system,usd_per_gpu_hour\nh200_sxm,2.5\n")
    assert find_system("h200_sxm", read_prices(mine)).price_per_hour == 2.5
    assert find_system("h100_sxm", read_prices(mine)).price_per_hour is None
    mine.write_text("system,usd_per_gpu_hour\nh200,2.5\nH100-SXM,2\n")
    assert read_prices(mine) == {"h200_sxm": 2.5, "h100_sxm": 2.0}
    mine.write_text("System;USD_per_GPU_hour\nh200;2,125\nH100-SXM;2\n")
    with pytest.raises(RunTableError, match=r"2,125 may be 2\.125 or 2125: write commas"):
        read_prices(mine)
    mine.write_text("System;USD_per_GPU_hour\nh200;2,5\nH100-SXM;2\n")
    assert read_prices(mine) == {"h200_sxm": 2.5, "h100_sxm": 2.0}
    mine.write_text("system,usd_per_gpu_hour\nh200,2.125\n")
    assert read_prices(mine) == {"h200_sxm": 2.125}
    mine.write_text("system,usd_per_gpu_hour\nh201,2.5\n")
    with pytest.raises(UnknownName, match="unknown system 'h201'"):
        read_prices(mine)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("system\nh200_sxm\n", "no column 'usd_per_gpu_hour'"),
        ("", "it is empty"),
        ('{"h200_sxm": 2}', "no column 'system'"),
        ("system,usd_per_gpu_hour\nh200_sxm,cheap\n", "row 1: the price is not a number"),
        ("system,usd_per_gpu_hour\nh200_sxm,-1\n", "row 1: the price must be positive, not -1"),
        ("system,usd_per_gpu_hour\nh200_sxm,2\nh200_sxm,3\n", "row 2: .* is there twice"),
        ("system,usd_per_gpu_hour\nh200_sxm,nan\n", "row 1: the price must be positive, not nan"),
    ],
)
def test_bad_prices(tmp_path, text, reason):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(RunTableError, match=reason):
        read_prices(tmp_path / "bad.csv")
    with pytest.raises(RunTableError, match="is not a readable table"):
        read_prices(tmp_path / "absent.csv")
