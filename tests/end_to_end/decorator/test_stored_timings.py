"""Which changes invalidate stored timings of a decorated kernel."""

import linecache

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import tuned_kernels

import foretune
from foretune.collect import versions

SOURCE = """
import triton
import triton.language as tl
{above}
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n){plus}, mask=i < n)
"""


def measured(driver, tensors, store, kernel=None, blocks=(64, 128, 256)):
    """Tune for one problem as a new process would; return the blocks that were measured."""
    driver.launches.clear()
    tuned = foretune.autotune(tuned_kernels.configs(*blocks), ["n"], budget="all", store=store)(
        kernel or triton.jit(tuned_kernels.copy)
    )
    tuned[(1,)](*tensors, 1024)
    return set(tuned_kernels.blocks_of(driver.launches[:-1]))


@pytest.fixture
def store(tmp_path):
    return str(tmp_path / "tuned.db")


def test_stored_timings_survive_a_changed_list(driver, tensors, store):
    assert measured(driver, tensors, store) == {64, 128, 256}
    assert measured(driver, tensors, store, blocks=(256, 64)) == set()
    assert measured(driver, tensors, store, blocks=(64, 128, 256, 512)) == {512}


def test_stored_timings_end_with_another_triton_or_driver(driver, tensors, store, monkeypatch):
    measured(driver, tensors, store)
    for said in ("triton 3.8.0", "triton 3.9.0, driver 1.2.3"):
        monkeypatch.setattr(versions, "toolchain", lambda kind, said=said: said)
        assert measured(driver, tensors, store) == {64, 128, 256}
        assert measured(driver, tensors, store) == set()


def written(tmp_path, number, above="", plus=""):
    path = tmp_path / f"module{number}.py"
    path.write_text(SOURCE.format(above=above, plus=plus))
    linecache.checkcache()
    scope = {"__name__": "theirs", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["kernel"]


def test_stored_timings_end_with_the_kernels_code_only(driver, tensors, store, tmp_path):
    assert measured(driver, tensors, store, written(tmp_path, 1)) == {64, 128, 256}
    moved = written(tmp_path, 2, above="OTHER = 3\n\n")
    assert measured(driver, tensors, store, moved) == set()
    changed = written(tmp_path, 3, plus=" + 1")
    assert measured(driver, tensors, store, changed) == {64, 128, 256}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 1\nGCC 12.2.0", True),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release", True),
        ("nothing", False),
    ],
)
def test_toolchain_has_the_version_of_the_driver(tmp_path, monkeypatch, text, said):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(
        versions, "DRIVER_VERSION_FILES", (str(tmp_path / "none"), str(tmp_path / "version"))
    )
    versions.toolchain.cache_clear()
    try:
        found = versions.toolchain("gpu")
        assert found.endswith(", driver 570.86.15") == said
        assert found.startswith("triton ")
    finally:
        versions.toolchain.cache_clear()
