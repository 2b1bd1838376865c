"""The validation page: how good a predictor is, in one HTML file, where no campaign was run."""

from collections.abc import Mapping

import pandas as pd

from foretune.models.validation.evaluation import Scores, Validation
from foretune.tune.report.page import element, join, page
from foretune.tune.report.sections import predictions_section


def validation_page(title: str, validation: Validation) -> str:
    """Return the document: predicted against measured of held-out rows, and all scores.

    Args:
        title: what the predictor knows, for the heading.
        validation: of its training.
    """
    scores: Mapping[str, Scores] = validation.scores
    section = predictions_section(held_out_rows(validation), scores)
    header = join([element("h1", "Foretune"), element("p", title, class_="headline")])
    return page(f"{title} – Foretune", header, [section])


def held_out_rows(validation: Validation) -> pd.DataFrame:
    """Return the held-out rows of all targets, with a column ``target``."""
    tables = [rows.assign(target=name) for name, rows in validation.held_out.items()]
    columns = ["target", "problem", "truth", "prediction", "low", "high"]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)
