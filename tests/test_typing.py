"""Tests what type checkers tell users of Foretune."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USER = """
import foretune as ft

predictor = ft.Predictor.load("folder")
predictor.lod("folder")
ft.RuntimeRegressor(problems=["M"])
ft.tune_problme
reveal_type(ft.RuntimeRegressor().fit([[1.0]], [1.0]).predict_interval([[1.0]]))
"""


def test_mypy_finds_misspelled_names(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api", reason="needs mypy: pip install '.[dev]'")
    user = tmp_path / "user.py"
    user.write_text(USER)
    monkeypatch.chdir(ROOT)  # its settings and its cache
    said, _, code = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(user)])
    assert code == 1
    assert '"Predictor" has no attribute "lod"; maybe "load"?' in said
    assert 'Unexpected keyword argument "problems"' in said
    assert 'Module has no attribute "tune_problme"' in said
    assert 'Revealed type is "numpy.ndarray' in said
