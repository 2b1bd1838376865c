"""Imports that wait for their first use: `src/foretune/support/lazy.py`."""

import os

import pytest

pytest.importorskip("numba")


def test_require_numba_numbers_symbols_by_process():
    from foretune.support.lazy import require

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
