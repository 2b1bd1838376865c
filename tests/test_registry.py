"""Names lead to implementations: ours, and other packages'."""

from importlib.metadata import EntryPoint

import pytest

from foretune import registry
from foretune.errors import ForetuneError, UnknownName
from foretune.kernel import Kernel
from foretune.models.trees.regressor import Regressor
from foretune.registry import get_kernel, load, registered
from foretune.search.searcher import Searcher

SEAMS = {"kernels": Kernel, "models": Regressor, "searchers": Searcher}
OURS = [(group, name) for group, names in registry._OURS.items() for name in names]


@pytest.fixture
def plugins(monkeypatch):
    """Return a function that installs entry points of another package."""

    def install(**values):
        points = [EntryPoint(n, v, "foretune.kernels") for n, v in values.items()]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: [p for p in points if p.group == group]
        )
        registered.cache_clear()

    yield install
    registered.cache_clear()


@pytest.mark.parametrize(("group", "name"), OURS)
def test_every_implementation_of_ours_loads(group, name):
    implementation = load(group, name)
    assert issubclass(implementation, SEAMS.get(group, object))


@pytest.mark.parametrize("name", registry._OURS["kernels"])
def test_a_kernel_is_registered_under_its_name(name):
    assert get_kernel(name).name == name


@pytest.mark.parametrize(
    ("group", "name", "message"),
    [
        ("kernels", "matmull", "unknown kernel 'matmull': did you mean 'matmul'"),
        ("models", "xgbost", "unknown model 'xgbost': did you mean 'xgboost'"),
        ("searchers", "bayes", "unknown searcher 'bayes'.*surrogate"),
    ],
)
def test_unknown_names(group, name, message):
    with pytest.raises(UnknownName, match=message):
        load(group, name)


def test_another_package_can_add_a_kernel(plugins):
    plugins(theirs="foretune.collect.kernels.softmax:Softmax")
    assert "theirs" in registered("kernels")
    assert get_kernel("theirs").name == "softmax"
    assert set(registry._OURS["kernels"]) <= registered("kernels").keys()


def test_another_package_cannot_replace_ours(plugins):
    plugins(matmul="foretune.collect.kernels.softmax:Softmax")
    assert get_kernel("matmul").name == "matmul"


@pytest.mark.parametrize(
    "value", ["no_such_package.kernels:Kernel", "foretune.kernel:NoSuchKernel"]
)
def test_another_package_that_cannot_be_imported(plugins, value):
    plugins(broken=value)
    with pytest.raises(ForetuneError, match="kernel 'broken' cannot be imported") as caught:
        load("kernels", "broken")
    assert caught.value.exit_code == 1
