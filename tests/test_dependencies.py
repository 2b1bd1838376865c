"""Tests which packages the extras of pyproject.toml require."""

import itertools
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"])
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64"}
MAC = {"sys_platform": "darwin", "platform_machine": "arm64"}


def required_packages(extras, machine):
    """Return the names of the packages that the core and some extras require on a machine."""
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]

    # An extra may require others: foretune[learn].
    waiting = list(extras)
    seen = set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        of_extra = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
        requirements += of_extra
        for requirement in of_extra:
            if requirement.name == "foretune":
                waiting += requirement.extras

    # Some packages are for other machines.
    here = [r for r in requirements if r.marker is None or r.marker.evaluate(machine)]
    return {requirement.name for requirement in here} - {"foretune"}


def xgboost_packages(extras, machine):
    return {name for name in required_packages(extras, machine) if name.startswith("xgboost")}


@pytest.mark.parametrize("machine", [LINUX, MAC], ids=["linux", "mac"])
def test_extras_together_require_one_xgboost(machine):
    """Two of its distributions would write the same folder."""
    for pair in itertools.combinations(EXTRAS, 2):
        assert len(xgboost_packages(pair, machine)) <= 1, pair


@pytest.mark.parametrize(
    ("machine", "package"), [(LINUX, "xgboost-cpu"), (MAC, "xgboost")], ids=["linux", "mac"]
)
def test_extras_require_xgboost_of_machine(machine, package):
    assert xgboost_packages(EXTRAS, machine) == {package}


@pytest.mark.parametrize("extra", ["cpu", "gpu", "llm", "learn", "cuda", "test"])
def test_extras_that_predict_require_xgboost(extra):
    assert "xgboost-cpu" in required_packages([extra], LINUX)


def test_core_requires_no_mlflow():
    assert not {name for name in required_packages([], LINUX) if name.startswith("mlflow")}


def test_track_requires_mlflow_and_its_tables():
    assert {"mlflow-skinny", "alembic"} <= required_packages(["track"], LINUX)


def test_test_requires_mlflow():
    assert "mlflow-skinny" in required_packages(["test"], LINUX)
