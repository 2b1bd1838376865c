"""The plug-in as Foretune meets it: its entry point, its command, and the advice without it."""

import tomllib
from pathlib import Path

import pytest

from foretune import registry
from foretune.cli import main
from foretune.errors import PredictorError
from foretune.models.saved.lookup import read_model

PROJECT = Path(__file__).parents[3] / "examples" / "predict_from_code" / "pyproject.toml"
ADDED = """
import numba, numpy as np, foretune
@foretune.tunable(step=(1, 4), inputs=lambda n=1000: (np.ones(n),))
@numba.njit
def add(x, step=1):
    for i in range(0, x.size, step):
        x[i] += 1 / x[i]
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Metadata as an installation of the plug-in leaves it."""
    points = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    info = tmp_path / "foretune_predict_from_code-0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Name: foretune-predict-from-code\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in points["foretune.predictors"].items()]
    info.joinpath("entry_points.txt").write_text("[foretune.predictors]\n" + "\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    registry.reset()
    yield
    registry.reset()


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    tmp_path.joinpath("code_added.py").write_text(ADDED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "code_added.py:add"


@pytest.mark.usefixtures("installed")
def test_plugin_entry_point_guides_a_search(kernel_file, capsys):
    arguments = ["--problem", "n=64000", "--predictor", "code", "--budget", "1", "--store", "none"]
    assert main(["tune", kernel_file, *arguments]) == 0
    assert "step=4" in capsys.readouterr().out


def test_missing_plugin_error_says_what_to_install():
    with pytest.raises(PredictorError, match=r"pip install \./examples/predict_from_code"):
        read_model("code")


def test_command_ranks_larger_step_first(kernel_file, capsys):
    from predict_from_code.code_time import SHIPPED
    from predict_from_code.command import rank

    rank(kernel=kernel_file, problem="n=64000", top=2, costs=SHIPPED, seed=0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("step=4")
    assert lines[2].endswith("step=1")
