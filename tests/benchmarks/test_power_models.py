"""The fit behind the shipped forms of power: `benchmarks/power_models.py`."""

import numpy as np
import pytest
from power_models import csv_lines, fit_form

from foretune.plan.cost.power import METERED_SYSTEMS, PowerModel, shipped_models

FORM = PowerModel(compute=0.6, compute_exponent=2.0, memory=0.4, memory_exponent=1.0)


def test_fit_form_ignores_powers_of_other_operators():
    rng = np.random.default_rng(0)
    used = rng.uniform(0.0, 1.0, (600, 2))
    measured = FORM.share(used, 0.2) * np.exp(rng.normal(0.0, 0.02, 600))
    measured[::6] = rng.uniform(0.15, 1.0, 100)
    found = fit_form(used, 0.2, measured)
    checked = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]])
    assert found.share(checked, 0.2) == pytest.approx(FORM.share(checked, 0.2), rel=0.03)


def test_csv_lines_of_the_shipped_table():
    names, *rows = (line.split(",") for line in csv_lines(shipped_models()))
    assert names[:2] == ["kernel", "system"]
    assert {system for _, system, *_ in rows} == set(METERED_SYSTEMS)
