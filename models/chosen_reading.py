"""Chooses what an unknown kernel is, by how well its runs fit.

Names of sizes are hints: each reading (`foretune.features.readings`) has a roofline. It is
calibrated on some problems and judged on others, the largest among them. The best reading is taken,
unless a law that knows no names explains the same problems far better, or nothing is explained.
"""

import numpy as np
import pandas as pd

from foretune.errors import PredictorError
from foretune.features.arrays import Rows, groups_of
from foretune.features.reading_templates import ANY_READING, NO_READING, TEMPLATES
from foretune.features.readings import Reading, RenamedFamily, possible_readings
from foretune.features.roofline import row_parts_ms, text_columns, with_rates
from foretune.models.calibrated_roofline import TIME, CalibratedRoofline
from foretune.models.learned_law import LearnedLaw, held_out_error
from foretune.registry import registered

MAX_ROWS = 1500
"""Maximum rows to choose by (random sample)."""
MAX_ERROR_RATIO = 2.0
"""A reading is taken if its error is below this multiple of the law's. It may be above it: a
roofline has few parameters, and its family adds features; law and roofline are both experts."""
MAX_UNEXPLAINED = 0.8
"""A reading explains something: its error is at most this share of the median's."""


def choose_reading(
    name: str,
    runs: pd.DataFrame,
    log_ms: np.ndarray,
    problems: np.ndarray,
    law: LearnedLaw | None,
    read_as: str = ANY_READING,
) -> RenamedFamily | None:
    """Return the family of kernel ``name`` whose roofline explains its ``runs`` best, or None.

    ``log_ms`` and ``problems`` are the time and the problem of each row, ``law`` what was learned
    from them. ``read_as`` is one of `READINGS`: a family that the user names is taken, whatever the
    runs say. A kernel that is called like a family can only be that one. Raises PredictorError if
    ``runs`` have no names of the sizes of a family that the user names.
    """
    if read_as == NO_READING:
        return None
    if read_as != ANY_READING:
        return RenamedFamily(name, _named_reading(read_as, runs))

    sampled = np.random.default_rng(0).permutation(len(runs))[:MAX_ROWS]
    rows = runs.iloc[sampled].reset_index(drop=True)
    readings = possible_readings(rows)
    if name in registered("families"):
        readings = [reading for reading in readings if reading.template.family == name]
    families = [RenamedFamily(name, reading) for reading in readings]
    if law is None or not families:
        return None
    log_ms = log_ms[sampled]
    problems = problems[sampled]
    errors = [_held_out_error(family, rows, log_ms, problems) for family in families]

    # It must explain something, and not far less than the law that knows no names.
    def median(is_known: np.ndarray, is_out: np.ndarray) -> np.ndarray:
        return np.full(int(is_out.sum()), np.median(log_ms[is_known]))

    median_error = held_out_error(log_ms, problems, median)
    limit = min(MAX_ERROR_RATIO * law.held_out_error, MAX_UNEXPLAINED * median_error)
    if not min(errors) < limit:
        return None
    return families[int(np.argmin(errors))]


def _named_reading(family: str, runs: pd.DataFrame) -> Reading:
    for reading in possible_readings(runs):
        if reading.template.family == family:
            return reading
    template = next(template for template in TEMPLATES if template.family == family)
    sizes = ", ".join(f"{size} ({names[0]})" for size, names in template.sizes.items())
    raise PredictorError(
        f"the runs cannot be read as {template.called}: no columns of numbers are named like its "
        f"sizes {sizes}; rename them, or use --read-as {NO_READING}"
    )


def _held_out_error(
    family: RenamedFamily, rows: pd.DataFrame, log_ms: np.ndarray, problems: np.ndarray
) -> float:
    """Return the mean error of the calibrated roofline on held-out problems; infinite without."""
    log_parts = np.log(row_parts_ms(family, with_rates(family, Rows(rows))))
    if not np.isfinite(log_parts).all():
        return np.inf
    groups = groups_of(rows, text_columns(rows))

    # Without the pull of few problems towards usual efficiencies: rates may be a generic device's.
    def predict(is_known: np.ndarray, is_out: np.ndarray) -> np.ndarray:
        roofline = CalibratedRoofline(TIME).fit(
            log_parts[is_known], log_ms[is_known], groups[is_known]
        )
        return roofline.log_value(log_parts[is_out], groups[is_out])

    return held_out_error(log_ms, problems, predict)
