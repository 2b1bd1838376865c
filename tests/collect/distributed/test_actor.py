"""Tests names of devices as Ray resources: `collect/distributed/actor.py`."""

import re

from foretune.collect.distributed.actor import matching_resources, resource_counts, resource_of
from foretune.device import Device, find_device

A100 = find_device("NVIDIA A100-SXM4-80GB")

H200 = Device("NVIDIA H200", "gpu", "sm_90", {"cores": 132.0, "clock_mhz": 1980.0})
NVL = Device("NVIDIA H200 NVL", "gpu", "sm_90", {"cores": 132.0})


def test_resource_of_equal_devices_is_equal():
    hotter = Device("NVIDIA H200", "gpu", "sm_90", {"cores": 132.0, "clock_mhz": 1200.0}, index=3)
    assert resource_of(H200) == resource_of(hotter) == "foretune:NVIDIA-H200:sm_90:132-cores"
    assert resource_counts([H200, hotter, NVL]) == {resource_of(H200): 2, resource_of(NVL): 1}


def test_resource_of_other_devices_differs():
    half = Device("NVIDIA H200", "gpu", "sm_90", {"cores": 66.0})
    assert len({resource_of(d) for d in (H200, NVL, half, A100)}) == 4


def test_resource_of_has_plain_characters():
    odd = Device("A, B; (C) / d", "cpu", "x86_64+avx2", {"cores": 2.0})
    assert re.fullmatch(r"[\w.+:-]+", resource_of(odd))
    assert resource_of(Device("", "cpu"))


def test_matching_resources_finds_device_by_name():
    offered = [*resource_counts([H200, NVL]), "CPU", "node:10.0.0.1"]
    assert matching_resources("H200", offered) == [resource_of(H200)]
    assert matching_resources("nvidia h200 nvl", offered) == [resource_of(NVL)]
    assert matching_resources(A100.name, offered) == []
