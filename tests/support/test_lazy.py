"""Imports that wait for their first use: `src/foretune/support/lazy.py`."""

import os

import pytest

from foretune.support.lazy import lazy_exports, require


def test_lazy_exports_imports_name_from_its_module():
    get, list_names = lazy_exports("json", {"sep": "os", "getpid": "os"})
    assert get("getpid") is os.getpid
    assert list_names() == ["getpid", "sep"]


def test_lazy_exports_module_of_package_is_the_module():
    get, _ = lazy_exports("os", {"path": "os.path"})
    assert get("path") is os.path


def test_lazy_exports_unknown_name_is_attribute_error():
    get, _ = lazy_exports("os", {})
    with pytest.raises(AttributeError, match="module 'os' has no attribute 'nonsense'"):
        get("nonsense")


def test_require_numba_numbers_symbols_by_process():
    pytest.importorskip("numba")
    require("numba", "cpu", "a test")
    from numba.core.bytecode import FunctionIdentity

    symbols = [FunctionIdentity.from_function(function) for function in (len_of, first_of)]

    first, second = (symbol.unique_id for symbol in symbols)
    assert first >> 20 == os.getpid()
    assert second == first + 1


def len_of(values):
    return len(values)


def first_of(values):
    return values[0]
