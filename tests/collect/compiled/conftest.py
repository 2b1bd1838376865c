"""What tests that compile share: one Triton cache for all of them, and the toys."""

import pytest

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


@pytest.fixture(scope="session")
def triton_cache(tmp_path_factory):
    """A folder that every test of a session compiles into: what one compiled is there already."""
    return str(tmp_path_factory.mktemp("triton"))


@pytest.fixture(autouse=True)
def _quiet_triton(monkeypatch, triton_cache):
    monkeypatch.setenv("TRITON_CACHE_DIR", triton_cache)
    # Triton 3.9 warns where this is unset, and warnings are errors here.
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def toys():
    """The module of toy kernels."""
    pytest.importorskip("triton")
    import triton_toys

    return triton_toys


@pytest.fixture
def compiled(toys):
    """Compile a kernel for a target; return what Triton made and its features."""
    from foretune.collect.compiled.compiling import compile_full, specialize
    from foretune.collect.compiled.gpu_targets import get_target
    from foretune.collect.compiled.static_features import static_features

    def compile_one(kernel, args, config, target="sm_90"):
        found = get_target(target)
        made = compile_full(specialize(kernel, args, {}, config, found))
        return made, static_features(made, found)

    return compile_one
