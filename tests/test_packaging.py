"""Tests wheels and source distributions, built from a checkout with and without its links."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ("*.egg-info", "__pycache__", "build", ".*", "mlruns", "campaigns")
NOT_INSTALLED = {"foretune/datasets/README.md"}
OLDEST_SETUPTOOLS = 77
"""The first that reads the license as pyproject.toml writes it."""
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCE = SETTINGS["project"]["urls"]["Source"]


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
    assert "would be ignored" not in run.stderr + run.stdout, "data in a folder that is no package"
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


def test_metadata_links_are_absolute(checkout):
    """A package index shows the README without the files beside it."""
    with zipfile.ZipFile(build(checkout, "build_wheel")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = wheel.read(name).decode()

    targets = re.findall(r"\]\(([^)#]+)", metadata)
    ours = [target for target in targets if target.startswith(f"{SOURCE}/")]
    assert len(ours) > 20
    assert [target for target in targets if not target.startswith("https://")] == []

    # Ours lead to files: as a page, or as the file itself (raw).
    paths = [re.sub(f"{re.escape(SOURCE)}/(blob|raw)/main/", "", target) for target in ours]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert f"({SOURCE}/raw/main/docs/evaluations.svg)" in metadata


def test_metadata_says_who_where_and_for_what(checkout):
    with zipfile.ZipFile(build(checkout, "build_wheel")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = message_from_string(wheel.read(name).decode())

    assert metadata["Author"] or metadata["Author-email"]
    assert metadata["License-Expression"] == "MIT"
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL")} >= {
        "Homepage",
        "Documentation",
        "Source",
        "Changelog",
    }
    versions = {
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier")
        if re.search(r"Python :: 3\.\d+$", classifier)
    }
    assert versions == {"3.11", "3.12", "3.13", "3.14"}


@pytest.mark.parametrize("label", ["Homepage", "Documentation", "Source", "Changelog", "Issues"])
def test_urls_start_with_address_of_source(label):
    """Whoever publishes the repository replaces one address."""
    assert SETTINGS["project"]["urls"][label].startswith(SOURCE)


def test_source_distribution_has_all_that_its_tests_need(checkout):
    with tarfile.open(build(checkout, "build_sdist")) as archive:
        # Every name starts with the folder foretune-VERSION.
        archived = {name.partition("/")[2] for name in archive.getnames()}

    for folder in ("tests", "benchmarks", "examples", "docs", "src"):
        files = {path.relative_to(checkout) for path in files_below(checkout / folder)}
        needed = {f.as_posix() for f in files if folder != "src" or f.suffix != ".md"}
        assert needed
        assert sorted(needed - archived) == []
