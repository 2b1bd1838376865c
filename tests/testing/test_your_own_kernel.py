"""The page about kernels of one's own: its code runs, as a reader would run it."""

import re
import runpy
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from foretune import registry
from foretune.collect import devices
from foretune.device import Device
from foretune.registry import get_kernel

PAGE = Path(__file__).parents[2] / "docs" / "your-own-kernel.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
FILES = {text.split()[1]: text for kind, text in BLOCKS if kind == "python"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's files, from which Python imports."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("transpose_kernel", None)


def test_page_kernel_passes_check_kernel(folder):
    runpy.run_path(str(folder / "check.py"))


def test_page_script_tunes_kernel(folder, monkeypatch, capsys):
    device = Device("This CPU", "cpu", specs={"fp32_gflops": 50.0, "memory_gbps": 10.0})
    monkeypatch.setattr(devices, "local_cpu", lambda measure: device)  # not measured again
    result = runpy.run_path(str(folder / "tune.py"))["result"]
    assert len(result.trace) == 6
    assert all(step.status == "ok" for step in result.trace)
    assert capsys.readouterr().out.endswith(f"the default's speed {result.verified}\n")


def test_page_entry_point_registers_kernel(folder, monkeypatch):
    (text,) = [text for kind, text in BLOCKS if kind == "toml"]
    points = tomllib.loads(text)["project"]["entry-points"]["foretune.kernels"]
    found = [EntryPoint(name, value, "foretune.kernels") for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    registry.reset()
    try:
        assert get_kernel("transpose").problem(R=2, C=3) == {"R": 2, "C": 3}
    finally:
        registry.reset()
