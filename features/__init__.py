"""Features: what a model sees of a run, as named float columns."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.features.candidates import candidate_rows, rows_of, settings_of
    from foretune.features.families_of_runs import family_for
    from foretune.features.featureset import FEATURES_VERSION, FeatureSet
    from foretune.features.roofline import (
        row_cost,
        row_limits_ms,
        row_parts_ms,
        row_roofline_ms,
        text_columns,
    )

__all__ = [
    "FEATURES_VERSION",
    "FeatureSet",
    "candidate_rows",
    "family_for",
    "row_cost",
    "row_limits_ms",
    "row_parts_ms",
    "row_roofline_ms",
    "rows_of",
    "settings_of",
    "text_columns",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "candidates": ["candidate_rows", "rows_of", "settings_of"],
            "featureset": ["FEATURES_VERSION", "FeatureSet"],
            "families_of_runs": ["family_for"],
            "roofline": [
                "row_cost",
                "row_limits_ms",
                "row_parts_ms",
                "row_roofline_ms",
                "text_columns",
            ],
        },
    )
