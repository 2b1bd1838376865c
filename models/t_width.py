"""Widths from few problems: the errors of a new problem follow a t distribution.

With n problems, the root mean square of their errors is uncertain itself. If the errors of problems
are normal around zero, a new one over that root follows Student's t. Rows of one problem are alike,
so all problems count equally, however many rows they have.

The errors are those of held-out problems, so their mean square is divided by n: no degree was spent
on making them small. But they are not n independent errors. The unit and the hyperparameters were
fitted to all problems, also to the held-out ones, and two folds share most of their training. The
distribution therefore gets n - 2 degrees of freedom. The 2 is a choice, not a derivation; what it
covers is in docs/decisions/few-problems.md.
"""

import numpy as np
from scipy.special import stdtrit

from foretune.models.conformal import CONFIDENCE

SHARED_DEGREES = 2
"""Degrees of freedom taken off because the errors of held-out problems depend on each other."""
MIN_DEGREES = 1
"""Student's t needs at least one; its widths are the largest. Up to three problems have it."""


def t_width_by_problem(errors: np.ndarray, problems: np.ndarray) -> float:
    """Return the half-width that covers `CONFIDENCE` of the errors of a new problem.

    ``errors`` are logs (rows), ``problems`` the number of each row's problem.
    """
    mean_squares = _mean_by_problem(np.square(errors), problems)
    n_problems = len(mean_squares)
    root_mean_square = float(np.sqrt(mean_squares.mean()))
    degrees = max(n_problems - SHARED_DEGREES, MIN_DEGREES)
    return _two_sided_t(degrees) * root_mean_square


def width_of_median(log_values: np.ndarray, problems: np.ndarray) -> float:
    """Return the half-width of the simplest prediction: the median of all other problems.

    ``log_values`` are the logs of the target (rows). No prediction is worth an interval that is
    wider. Infinite with one problem.
    """
    distinct = np.unique(problems)
    if len(distinct) < 2:
        return np.inf
    centers = _mean_by_problem(log_values, problems)
    errors = np.empty(len(log_values))
    for number, problem in enumerate(distinct):
        of_problem = problems == problem
        other_centers = np.delete(centers, number)
        errors[of_problem] = log_values[of_problem] - np.median(other_centers)
    return t_width_by_problem(errors, problems)


def _two_sided_t(degrees: int) -> float:
    """Return the quantile of Student's t that `CONFIDENCE` of its absolute values are below."""
    return float(stdtrit(degrees, (1.0 + CONFIDENCE) / 2.0))


def _mean_by_problem(values: np.ndarray, problems: np.ndarray) -> np.ndarray:
    """Return the mean of each problem's rows, in the order of the problems' numbers."""
    _, problem_of_row, n_rows = np.unique(problems, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(problem_of_row, values) / n_rows)
