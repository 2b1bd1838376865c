"""Wheels and source distributions, built from a checkout with and without its links."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ("*.egg-info", "__pycache__", "build", ".*", "mlruns", "campaigns")
NOT_INSTALLED = {"foretune/datasets/README.md"}
OLDEST_SETUPTOOLS = 77
"""The first that reads the license as pyproject.toml writes it."""
RELATIVE_LINK = re.compile(r"\]\((?!\w+:|#)[^)]*\)")


def setuptools_version() -> int:
    try:
        return int(version("setuptools").partition(".")[0])
    except PackageNotFoundError:
        return 0


pytestmark = pytest.mark.skipif(
    setuptools_version() < OLDEST_SETUPTOOLS,
    reason="needs setuptools: pip install 'setuptools>=77'",
)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the checkout, with its links."""
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*BUILT))
    return copy


def build(checkout: Path, step: str) -> Path:
    """Run ``build_wheel`` or ``build_sdist``, and return the file that it made."""
    code = f"from setuptools.build_meta import {step}; {step}('dist')"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (archive,) = (checkout / "dist").iterdir()
    return archive


def files_below(folder: Path) -> set[Path]:
    """Return the files in a folder; links are followed."""
    return {
        Path(parent, name)
        for parent, _, names in os.walk(folder, followlinks=True)
        for name in names
    }


def package_files(checkout: Path) -> set[str]:
    """Return the files of ``foretune`` that an installation has, as it names them."""
    source = checkout / "src"
    files = {path.relative_to(source).as_posix() for path in files_below(source / "foretune")}
    return files - NOT_INSTALLED


def wheel_files(checkout: Path) -> set[str]:
    """Build a wheel, and return the files of ``foretune`` in it."""
    with zipfile.ZipFile(build(checkout, "build_wheel")) as wheel:
        return {name for name in wheel.namelist() if name.startswith("foretune/")}


def test_build_with_links_has_every_file(checkout):
    assert wheel_files(checkout) == package_files(checkout)


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="needs a checkout: it has the links")
@pytest.mark.parametrize(
    "without",
    [
        "text",  # what Git writes where the system, or its settings, has no links
        "nothing",
        "one link",
    ],
)
def test_build_without_links_has_every_module(checkout, without):
    expected = package_files(checkout)
    links = sorted(p for p in (checkout / "src" / "foretune").iterdir() if p.is_symlink())
    assert links

    removed = links[:1] if without == "one link" else links
    for link in removed:
        target = os.readlink(link)
        link.unlink()
        if without == "text":
            link.write_text(target, encoding="utf-8")

    assert wheel_files(checkout) == expected


def test_metadata_has_no_relative_links(checkout):
    """A package index shows the README, and has no files beside it."""
    with zipfile.ZipFile(build(checkout, "build_wheel")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = wheel.read(name).decode()

    assert "# Foretune" in metadata
    assert RELATIVE_LINK.findall(metadata) == []


def test_source_distribution_has_all_that_its_tests_need(checkout):
    with tarfile.open(build(checkout, "build_sdist")) as archive:
        # Every name starts with the folder foretune-VERSION.
        archived = {name.partition("/")[2] for name in archive.getnames()}

    for folder in ("tests", "benchmarks", "examples", "docs", "src"):
        files = {path.relative_to(checkout) for path in files_below(checkout / folder)}
        needed = {f.as_posix() for f in files if folder != "src" or f.suffix != ".md"}
        assert needed
        assert sorted(needed - archived) == []
