"""Tests names of implementations, ours and other packages': `foretune.registry`."""

import sys
from importlib.metadata import EntryPoint

import pytest
from toy_kernel import Toy

from foretune import registry
from foretune.errors import ForetuneError, ForetuneWarning, MissingExtra, UnknownName
from foretune.kernel import Kernel
from foretune.models.trees.regressor import Regressor
from foretune.registry import get_kernel, load, registered
from foretune.search.searcher import Searcher

SEAMS = {"kernels": Kernel, "models": Regressor, "searchers": Searcher}
OURS = [(group, name) for group, names in registry._BUILTIN.items() for name in names]


@pytest.fixture
def plugins(monkeypatch):
    """Return a function that installs entry points of another package."""

    def install(**values):
        points = [EntryPoint(n, v, "foretune.kernels") for n, v in values.items()]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: [p for p in points if p.group == group]
        )
        registry.reset()

    yield install
    registry.reset()


def load_or_skip(group, name):
    try:
        return load(group, name)
    except MissingExtra as e:
        pytest.skip(str(e))


@pytest.mark.parametrize(("group", "name"), OURS)
def test_load_every_builtin_implements_its_seam(group, name):
    found = load_or_skip(group, name)
    assert issubclass(found, SEAMS[group]) if group in SEAMS else callable(found)


@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g, n in OURS if g in ("kernels", "families")]
)
def test_load_family_has_its_registered_name(group, name):
    family = load_or_skip(group, name)()
    assert family.name == name


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("kernels", "matmull", "unknown kernel 'matmull': did you mean 'matmul'"),
        ("models", "xgbost", "unknown model 'xgbost': did you mean 'xgboost'"),
        ("searchers", "bayes", "unknown searcher 'bayes'.*surrogate"),
        ("families", "gem", "unknown family 'gem': did you mean 'gemm'"),
        ("meters", "nvm", "unknown meter 'nvm': did you mean 'nvml'"),
    ],
)
def test_load_unknown_name_is_refused(group, name, message):
    with pytest.raises(UnknownName, match=message):
        load(group, name)


def test_plugin_adds_kernel(plugins):
    plugins(theirs="foretune.collect.kernels.softmax:Softmax")
    assert "theirs" in registered("kernels")
    assert get_kernel("theirs").name == "softmax"
    assert set(registry._BUILTIN["kernels"]) <= registered("kernels").keys()


def test_plugin_cannot_replace_builtin(plugins):
    plugins(matmul="theirs.kernels:Matmul")
    with pytest.warns(ForetuneWarning, match=r"kernel 'matmul' is .*: theirs.*ignored"):
        assert get_kernel("matmul").name == "matmul"


def test_register_kernel_finds_class_by_name(plugins):
    plugins()
    registry.register_kernel(Toy())
    assert load("kernels", "toy") is Toy
    assert list(registered("kernels"))[-1] == "toy"
    assert "toy" not in registered("families")


def test_register_kernel_does_not_replace_builtin(plugins, monkeypatch):
    plugins()
    builtin = registered("kernels")["matmul"]
    monkeypatch.setattr(Toy, "name", "matmul")
    registry.register_kernel(Toy())
    assert registered("kernels")["matmul"] == builtin


def test_registered_is_a_copy(plugins):
    plugins()
    registered("kernels").clear()
    assert registered("kernels").keys() == registry._BUILTIN["kernels"].keys()


def test_reset_forgets_registered_kernels(plugins):
    plugins()
    registry.register_kernel(Toy())
    registry.reset()
    assert "toy" not in registered("kernels")


@pytest.mark.parametrize(
    "value", ["no_such_package.kernels:Kernel", "foretune.kernel:NoSuchKernel"]
)
def test_plugin_broken_is_error(plugins, value):
    plugins(broken=value)
    with pytest.raises(ForetuneError, match="kernel 'broken' cannot be imported") as caught:
        load("kernels", "broken")
    assert caught.value.exit_code == 1


def test_object_at_module_with_missing_import_gives_reason(tmp_path, monkeypatch):
    (tmp_path / "lacked_bench.py").write_text("import lacked\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ForetuneError, match="cannot be imported: No module named"):
        registry.object_at("lacked_bench.py:f")
