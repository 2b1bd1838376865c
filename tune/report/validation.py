"""The validation page: how good a predictor is, in one HTML file, where no campaign was run."""

import math
from pathlib import Path

import pandas as pd

from foretune.models.validation.evaluation import Validation
from foretune.tune.report.page import render
from foretune.tune.report.sections import METRICS, TARGETS, prediction_clouds


def validation_page(title: str, validation: Validation) -> str:
    """Return the document: predicted against measured of held-out rows, and all scores.

    Args:
        title: what the predictor knows, for the heading.
        validation: of its training.
    """
    return render(
        Path(__file__).with_name("validation.html"), title=title, heading="Foretune",
        headline=title, clouds=list(prediction_clouds(held_out_rows(validation))),
        validation=validation, targets=TARGETS, metrics=METRICS, nan=math.nan,
    )  # fmt: skip


def held_out_rows(validation: Validation) -> pd.DataFrame:
    """Return the held-out rows of all targets, with a column ``target``."""
    tables = [rows.assign(target=name) for name, rows in validation.held_out.items()]
    columns = ["target", "problem", "truth", "prediction", "low", "high"]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
