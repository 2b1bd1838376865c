"""The importance of tunable parameters, on a predictor whose answer is known."""

import numpy as np
import pandas as pd
import pytest

from foretune.device import Device
from foretune.models.explanation import parameter_importance
from foretune.problem import Problem
from foretune.space import SearchSpace

DEVICE = Device("test", "cpu")
PROBLEMS = [Problem(N=64), Problem(N=4096)]
VALUES = {"doubles": (False, True), "irrelevant": (1, 2, 4), "order": ("ij", "ji"), "tile": (8, 64)}


class Fake:
    """Predicts ``N ×`` a factor per parameter value; remembers how many calls it took."""

    def __init__(self):
        self.calls = 0

    def predict_space(self, problem, space, device, indices=None):
        self.calls += 1
        columns = space.columns(indices)
        time_ms = problem["N"] * np.where(columns["doubles"], 2.0, 1.0)
        time_ms = time_ms * np.where(columns["order"] == "ij", 1.3, 1.0)
        return pd.DataFrame({"time_ms": time_ms * np.where(columns["tile"] == 64, 5.0, 1.0)})


def worth(rules=(), problems=PROBLEMS, space_of=None):
    space = SearchSpace(VALUES, rules)
    predictor = Fake()
    table = parameter_importance(predictor, problems, space_of or (lambda _: space), DEVICE)
    return table.set_index("parameter"), predictor


def test_parameter_importance_gives_factor_and_best_value():
    table, predictor = worth()
    assert table["factor"].to_dict() == pytest.approx(
        {"tile": 5.0, "doubles": 2.0, "order": 1.3, "irrelevant": 1.0}
    )
    assert list(table.index)[:2] == ["tile", "doubles"]
    assert (table["best"]["doubles"], table["best"]["order"]) == (False, "ji")
    assert predictor.calls == len(PROBLEMS)


def test_parameter_importance_is_not_biased_by_restrictions():
    table, _ = worth(["irrelevant < 4 or tile == 64", "not doubles or irrelevant > 1"])
    assert table["factor"].to_dict() == pytest.approx(
        {"tile": 5.0, "doubles": 2.0, "order": 1.3, "irrelevant": 1.0}
    )


def test_parameter_importance_of_few_samples_is_deterministic(monkeypatch):
    monkeypatch.setattr("foretune.models.explanation.CONFIGURATIONS", 6)
    table, _ = worth()
    again, _ = worth()
    assert table["factor"]["doubles"] == pytest.approx(2.0)
    pd.testing.assert_frame_equal(table, again)


def test_parameter_importance_of_constant_parameter_is_one():
    table, _ = worth(["tile == 8"])
    assert table["factor"]["tile"] == 1.0


def test_parameter_importance_spaces_may_differ():
    spaces = {
        PROBLEMS[0]: SearchSpace(VALUES),
        PROBLEMS[1]: SearchSpace({**VALUES, "irrelevant": (2, 8)}),
    }
    table, _ = worth(space_of=spaces.__getitem__)
    assert table["factor"]["irrelevant"] == pytest.approx(1.0)


def test_parameter_importance_without_problems_is_empty():
    table, _ = worth(problems=[])
    assert list(table.columns) == ["factor", "best"]
    assert table.empty
