"""Tests AMD GPUs as torch for ROCm describes them: `collect/devices.py`."""

from types import SimpleNamespace

import pytest

from foretune.collect import devices
from foretune.device import find_device
from foretune.errors import MissingExtra

PROPERTIES = SimpleNamespace(
    name="AMD Instinct MI300X",
    gcnArchName="gfx942:sramecc+:xnack-",
    multi_processor_count=152,
    total_memory=96 * 2**30,
)


def torch_with(*properties, hip="6.4"):
    cuda = SimpleNamespace(
        device_count=lambda: len(properties), get_device_properties=lambda i: properties[i]
    )
    return SimpleNamespace(version=SimpleNamespace(hip=hip), cuda=cuda)


def test_amd_gpus_combine_table_and_driver():
    unknown = SimpleNamespace(**{**vars(PROPERTIES), "name": "AMD Instinct MI999"})
    first, second = devices.amd_gpus(torch_with(PROPERTIES, unknown))
    known = find_device("AMD Instinct MI300X")
    assert (first.name, first.architecture, first.index) == (known.name, "gfx942", 0)
    assert first.specs["memory_gbps"] == known.specs["memory_gbps"]
    assert (first.specs["cores"], first.specs["memory_gib"]) == (152.0, 96.0)
    assert (second.name, second.index) == ("AMD Instinct MI999", 1)
    assert second.specs.keys() == {"cores", "memory_gib"}


def test_amd_gpus_torch_for_cuda_has_none():
    assert devices.amd_gpus(torch_with(PROPERTIES, hip=None)) == []


def test_amd_gpus_without_driver_does_not_import_torch(monkeypatch, tmp_path):
    def asked(*args):
        raise MissingExtra("torch", "gpu", "finding GPUs")

    monkeypatch.setattr(devices, "require", asked)
    monkeypatch.setattr(devices, "DRIVER", str(tmp_path))
    assert devices.amd_gpus() == []
    monkeypatch.setattr(devices, "DRIVER", str(tmp_path / "none"))
    monkeypatch.setattr(devices, "require", lambda *args: pytest.fail("imported"))
    assert devices.amd_gpus() == []


def test_local_gpus_nvidia_before_amd(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_gpus", list)
    monkeypatch.setattr(devices, "amd_gpus", lambda: ["MI300X"])
    assert devices.local_gpus() == ["MI300X"]
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: ["H100"])
    assert devices.local_gpus() == ["H100"]
