"""`patch_triton`, for libraries that use Triton's autotuner: `patching.py`."""

import warnings

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

from tuned_kernels import configs, copy

import foretune
from foretune.errors import ForetuneWarning

Stock = triton.runtime.autotuner.Autotuner


@pytest.fixture
def patch(monkeypatch, tmp_path):
    monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "tuned.db"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForetuneWarning)  # other tests' classes
        undo = foretune.patch_triton()
    yield undo
    undo()


def decorated(kind, **more):
    """Decorate as libraries do: with the class itself."""
    kernel = triton.jit(copy)
    return kind(kernel, kernel.arg_names, configs(64, 128, 256), ["n"], None, None, **more)


def test_patch_replaces_the_decorator_until_undone():
    before = triton.autotune
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForetuneWarning)
        undo = foretune.patch_triton()
    try:
        kernel = triton.autotune(configs(64, 128), ["n"])(triton.jit(copy))
        assert type(kernel).__module__.startswith("foretune.")
        assert triton.runtime.autotuner.autotune is triton.autotune is foretune.autotune
    finally:
        undo()
    assert triton.autotune is before
    assert "__init_subclass__" not in vars(Stock)


def test_patch_reaches_classes_derived_later(patch, driver, tensors):
    found = []

    class Cached(Stock):
        """A class such as libraries have, which looks into its files first."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.looked = 0

        def run(self, *args, **kwargs):
            self.looked += 1
            found.append(self.cache)
            return super().run(*args, **kwargs)

    class Further(Cached):
        pass

    kernel = decorated(Further)
    assert isinstance(kernel, Stock)
    kernel[(1,)](*tensors, 1024)
    kernel[(1,)](*tensors, 1024)
    assert kernel.looked == 2
    assert kernel.rank(*tensors, 1024, grid=(1,))[0].config.kwargs["BLOCK"] == 256
    assert patch.unreached.keys() & {f"{k.__module__}.{k.__qualname__}" for k in (Cached,)} == set()


def test_patch_warns_of_a_class_with_its_own_run(patch, driver, tensors):
    with pytest.warns(ForetuneWarning, match="OwnRun are tuned by Triton: it runs kernels by"):

        class OwnRun(Stock):
            def run(self, *args, **kwargs):
                return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    assert OwnRun.__bases__ == (Stock,)
    decorated(OwnRun)[(1,)](*tensors, 1024)
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64]


def test_patch_warns_of_a_class_derived_before():
    class Early(Stock):
        pass

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        undo = foretune.patch_triton()
    undo()
    assert [w for w in said if "Early are tuned by Triton: it was derived" in str(w.message)]
    assert [name for name in undo.unreached if name.endswith("Early")]


def test_patch_class_without_our_constructor_runs_as_triton(patch, driver, tensors):
    class Skips(Stock):
        def __init__(self, *args, **kwargs):
            Stock.__init__(self, *args, **kwargs)

    kernel = decorated(Skips)
    kernel[(1,)](*tensors, 1024)
    assert kernel.best_config.kwargs["BLOCK"] == 256
    assert len(driver.launches) == 4


def test_patch_disabled_reaches_no_class(patch, monkeypatch):
    monkeypatch.setenv("FORETUNE_DISABLE", "1")

    class Theirs(Stock):
        pass

    assert Theirs.__bases__ == (Stock,)
