"""Builds: complete, or refused with the reason."""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ("*.egg-info", "__pycache__", "build", ".*", "mlruns", "campaigns")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout, with its links."""
    place = tmp_path / "checkout"
    shutil.copytree(ROOT, place, symlinks=True, ignore=shutil.ignore_patterns(*BUILT))
    return place


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_checkout_without_links_is_not_built(tmp_path):
    """Git writes the target into a text file where the system, or its settings, has no links."""
    (tmp_path / "src" / "foretune").mkdir(parents=True)
    (tmp_path / "collect").mkdir()
    (tmp_path / "src" / "foretune" / "collect").write_text("../../collect")
    shutil.copy(ROOT / "setup.py", tmp_path)
    done = run(tmp_path, "setup.py", "--version")
    assert done.returncode == 1
    (reason,) = done.stderr.splitlines()
    assert "src/foretune/collect must be a link" in reason
    assert "core.symlinks=true" in reason


def test_a_source_distribution_has_all_that_its_tests_need(checkout):
    try:
        newest = int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        newest = False
    if not newest:
        pytest.skip("needs setuptools: pip install 'setuptools>=77'")
    build = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    done = run(checkout, "-c", build)
    assert done.returncode == 0, done.stderr
    (archive,) = (checkout / "dist").iterdir()
    with tarfile.open(archive) as tar:
        there = {name.partition("/")[2] for name in tar.getnames()}
    for folder in ("tests", "benchmarks", "examples", "docs", "src"):
        found = os.walk(checkout / folder, followlinks=True)
        files = (Path(d, f).relative_to(checkout) for d, _, fs in found for f in fs)
        needed = {f.as_posix() for f in files if folder != "src" or f.suffix != ".md"}
        assert needed
        assert sorted(needed - there) == []
