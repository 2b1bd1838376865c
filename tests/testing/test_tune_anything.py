"""The page about tuning anything: its code runs, as a reader would run it."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from toy_kernel import DEVICE

from foretune.collect import InProcessRunner, Timing
from foretune.tune.wrapped import cache_file, function, tuning

PAGE = Path(__file__).parents[2] / "docs" / "tune-anything.md"
BLOCKS = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize(("name", "text"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_a_block_runs(name, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "VERIFY_S", 0.05)
    quick = Timing(box_s=0.02, warmup_s=0.001)  # and in this process: isolation has its own tests
    monkeypatch.setattr(tuning, "_runner", lambda device, *_: InProcessRunner(device, quick))
    for module in (tuning, function, cache_file):
        monkeypatch.setattr(module, "local_device", lambda name, measure: DEVICE)
    function._device.cache_clear()
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "argv", [name])
    found = runpy.run_path(str(tmp_path / name), run_name="__main__")
    if "best" in found:
        assert found["best"].config


def test_there_are_blocks():
    assert [name for name, _ in BLOCKS] == ["function.py", "decorated.py", "kernel.py"]
