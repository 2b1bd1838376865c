"""What code leaves changed in its process."""

import time

import numpy as np

from foretune.collect.side_effects import SideEffects


def test_unchanged_process_has_no_side_effects():
    assert SideEffects().names() == []


def test_replaced_function_is_named(monkeypatch):
    effects = SideEffects()
    monkeypatch.setattr(np, "sum", lambda x: 0.0)
    assert effects.names() == ["it replaces numpy.sum"]


def test_values_that_an_import_changes_do_not_count(monkeypatch):
    """Importing pandas makes another tuple of the names of time zones."""
    effects = SideEffects()
    monkeypatch.setattr(time, "tzname", ("UTC", "summer"))
    assert effects.names() == []


def test_changed_setting_is_named():
    effects = SideEffects()
    before = np.geterr()
    try:
        np.seterr(all="raise")
        assert [name for name in effects.names() if "setting" in name]
    finally:
        np.seterr(**before)
    assert effects.names() == []
