"""What the choice of a configuration by predicted energy, or by predicted time, costs."""

import pandas as pd
import pytest

from foretune.models.validation.energy_choice import EnergyChoice

# By energy, the second configuration of a and the first of b are chosen; by time, the first ones.
PREDICTED = pd.DataFrame(
    {
        "task": ["a", "a", "b", "b", "c"],
        "energy_mj": [15.0, 10.0, 22.0, 20.0, 7.0],
        "predicted_mj": [14.0, 11.0, 19.0, 21.0, 7.0],
        "predicted_ms": [1.0, 2.0, 1.0, 2.0, 1.0],
    }
)


def test_choices_are_compared_with_the_least_energy_of_each_problem():
    choice = EnergyChoice.from_table(PREDICTED)
    assert choice.by_energy == pytest.approx((0.0 + 0.1) / 2)
    assert choice.by_time == pytest.approx((0.5 + 0.1) / 2)
    assert choice.problems == 2
    assert str(choice) == (
        "least energy: chosen by predicted energy, 5.0% above the best "
        "(by predicted time alone, 30.0%; 2 problems)"
    )


def test_one_configuration_per_problem_is_no_choice():
    assert EnergyChoice.from_table(PREDICTED.drop_duplicates("task")) is None
