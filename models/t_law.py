"""Widths from few problems: the errors of a new problem follow a t distribution.

With n problems, the root mean square of their errors is uncertain itself. If the errors of problems
are normal around zero, a new one over that root follows Student's t. It has n - 2 degrees of
freedom: unit and weights of the experts were fitted to the same problems. Rows of one problem are
alike, so all problems count equally, however many rows they have.
"""

import numpy as np
from scipy.special import stdtrit

from foretune.models.conformal import CONFIDENCE

SPENT_DEGREES = 2
"""Degrees of freedom that the fit of units and weights takes."""


def t_width_by_problem(errors: np.ndarray, problems: np.ndarray) -> float:
    """Return the half-width that covers `CONFIDENCE` of the errors of a new problem.

    ``errors`` are logs, ``problems`` the problem of each row.
    """
    mean_squares = _mean_by_problem(np.square(errors), problems)
    root = float(np.sqrt(mean_squares.mean()))
    degrees = max(len(mean_squares) - SPENT_DEGREES, 1)
    return _two_sided_t(degrees) * root


def width_of_median(log_values: np.ndarray, problems: np.ndarray) -> float:
    """Return the half-width of the simplest prediction: the median of all other problems.

    No prediction is worth an interval that is wider. Infinite with one problem.
    """
    distinct = np.unique(problems)
    if len(distinct) < 2:
        return np.inf
    centers = _mean_by_problem(log_values, problems)
    errors = np.empty(len(log_values))
    for number, problem in enumerate(distinct):
        is_its = problems == problem
        errors[is_its] = log_values[is_its] - np.median(np.delete(centers, number))
    return t_width_by_problem(errors, problems)


def _two_sided_t(degrees: int) -> float:
    """Return the quantile of Student's t that `CONFIDENCE` of its absolute values are below."""
    return float(stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0))


def _mean_by_problem(values: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """Return the mean of each problem's rows, in the order of the problems' numbers."""
    _, problem_of_row, n_rows = np.unique(problems, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(problem_of_row, values) / n_rows)
