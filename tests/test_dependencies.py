"""What the extras bring, as pyproject.toml declares it."""

import itertools
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64"}
MAC = {"sys_platform": "darwin", "platform_machine": "arm64"}


def brought(extras, machine):
    """Return the names of the packages that the core and some extras ask for."""
    waiting, seen, found = list(extras), set(), set()
    lines = list(PROJECT["dependencies"])
    while waiting:
        if (extra := waiting.pop()) not in seen:
            seen.add(extra)
            lines += PROJECT["optional-dependencies"][extra]
            for line in PROJECT["optional-dependencies"][extra]:
                if (wanted := Requirement(line)).name == "foretune":
                    waiting += wanted.extras
    for wanted in map(Requirement, lines):
        if wanted.marker is None or wanted.marker.evaluate(machine):
            found.add(wanted.name)
    return found - {"foretune"}


@pytest.mark.parametrize("machine", [LINUX, MAC], ids=["linux", "mac"])
def test_xgboost_comes_once_whatever_is_combined(machine):
    """Two of its distributions would write the same folder."""
    for pair in itertools.combinations(EXTRAS, 2):
        names = {n for n in brought(pair, machine) if n.startswith("xgboost")}
        assert len(names) <= 1, pair
    names = {n for n in brought(EXTRAS, machine) if n.startswith("xgboost")}
    assert names == {"xgboost-cpu" if machine is LINUX else "xgboost"}


@pytest.mark.parametrize("extra", ["cpu", "gpu", "llm", "learn", "cuda", "test"])
def test_what_predicts_brings_xgboost(extra):
    assert "xgboost-cpu" in brought([extra], LINUX)


def test_mlflow_is_an_extra_that_tests_have():
    assert not {n for n in brought([], LINUX) if n.startswith("mlflow")}
    assert {"mlflow-skinny", "alembic"} <= brought(["track"], LINUX)
    assert "mlflow-skinny" in brought(["test"], LINUX)
