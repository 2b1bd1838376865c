"""Runs grouped by problem, because models predict one problem at a time."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from foretune.problem import Problem


def group_by_problem(problems: "Sequence[Problem]") -> "dict[Problem, list[int]]":
    """Return the numbers of the runs of each problem."""
    numbers: dict[Problem, list[int]] = {}
    for number, problem in enumerate(problems):
        numbers.setdefault(problem, []).append(number)
    return numbers


def in_order_of_runs(
    predicted: "pd.DataFrame", numbers_of_problem: "dict[Problem, list[int]]"
) -> "pd.DataFrame":
    """Return rows that are ordered by problem in the order of the runs."""
    order = np.array(list(chain.from_iterable(numbers_of_problem.values())))
    return predicted.iloc[np.argsort(order)].reset_index(drop=True)
