"""The package for OptunaHub's registry loads, and its example runs."""

import runpy
from pathlib import Path

import pytest

optunahub = pytest.importorskip("optunahub", reason="needs optunahub: pip install optunahub")

REGISTRY = Path(__file__).parents[3] / "examples" / "optunahub" / "package"
PACKAGE = REGISTRY / "samplers" / "foretune"


def load(package):
    return optunahub.load_local_module(package, registry_root=str(REGISTRY))


def test_optunahub_example_runs(monkeypatch, capsys):
    monkeypatch.setattr(optunahub, "load_module", load)
    study = runpy.run_path(str(PACKAGE / "example.py"), run_name="__main__")["study"]
    assert len(study.trials) == 25
    assert all(c <= 0 for c in study.best_trial.constraints.values())
    assert str(study.best_value) in capsys.readouterr().out


def test_optunahub_folder_is_complete():
    assert {"LICENSE", "README.md", "example.py", "requirements.txt"} <= {
        path.name for path in PACKAGE.iterdir()
    }
    front = (PACKAGE / "README.md").read_text().split("---")[1]
    keys = [line.partition(":")[0] for line in front.strip().splitlines()]
    assert keys == ["author", "title", "description", "tags", "optuna_versions", "license"]
