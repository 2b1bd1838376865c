"""Tests messages, exit codes and pickling of errors: `foretune.errors`."""

import pickle

import pytest

from foretune import errors
from foretune.errors import ForetuneError, MissingExtra, UnknownName
from foretune.support.lazy import require


def subclasses(kind):
    return [kind, *(s for child in kind.__subclasses__() for s in subclasses(child))]


def example(kind):
    if kind is UnknownName:
        return kind("kernel", "matmull", ["matmul", "softmax"])
    if kind.__name__ == "UnknownModel":  # of the plans
        return kind("llama-4-70b", ["llama-3-70b"])
    if kind is MissingExtra:
        return kind("torch", "gpu", "a GPU kernel")
    if kind.__name__ == "ServerFailed":  # of the proofs of plans
        from foretune.plan.prove.failures import Failure

        return kind(Failure("it went wrong: do that"))
    return kind("it went wrong: do that")


@pytest.mark.parametrize("kind", subclasses(ForetuneError))
def test_error_pickled_keeps_message_and_exit_code(kind):
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) != ""
    assert copy.exit_code == error.exit_code


def test_errors_all_derive_from_foretune_error():
    defined = {
        v
        for v in vars(errors).values()
        if isinstance(v, type) and v.__module__ == "foretune.errors" and not issubclass(v, Warning)
    }
    assert defined == {k for k in subclasses(ForetuneError) if k.__module__ == "foretune.errors"}


@pytest.mark.parametrize("kind", subclasses(ForetuneError))
def test_error_exit_code_is_2_for_usage_else_1(kind):
    assert kind.exit_code == (2 if issubclass(kind, errors.UsageError) else 1)


def test_errors_derive_from_builtin_errors():
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.OutputError, OSError)
    assert issubclass(errors.MissingExtra, ImportError)


def test_unknown_name_suggests_nearest():
    message = str(UnknownName("kernel", "matmull", ["softmax", "matmul"]))
    assert message == "unknown kernel 'matmull': did you mean 'matmul'? known: matmul, softmax"


def test_unknown_name_without_near_name_suggests_nothing():
    assert "did you mean" not in str(UnknownName("kernel", "zzz", ["matmul"]))
    assert str(UnknownName("meter", "x", [])).endswith("known: none")


def test_require_missing_module_names_extra():
    with pytest.raises(MissingExtra, match=r"drawing needs no_such_module.*\.\[gpu\]"):
        require("no_such_module.part", "gpu", "drawing")
    assert require("json", "gpu", "reading").loads("1") == 1


def test_unknown_name_among_many_lists_nearest():
    message = str(UnknownName("model", "lama-7", [f"other-{i}" for i in range(60)] + ["llama-7b"]))
    assert "did you mean 'llama-7b'" in message
    assert "others" in message
    assert len(message) < 300
    strange = str(UnknownName("model", "zzz", [f"other-{i}" for i in range(60)], "or a folder"))
    assert strange == "unknown model 'zzz': known: 60, none like it; or a folder"


def test_require_broken_module_gives_its_reason(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    (tmp_path / "lame_package.py").write_text("import a_package_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"which cannot be imported \(libcudart.so.12: cannot"):
        require("broken_package", "gpu", "a GPU kernel")
    with pytest.raises(MissingExtra, match=r"\(No module named 'a_package_that_is_not_there'\)"):
        require("lame_package", "gpu", "a GPU kernel")
