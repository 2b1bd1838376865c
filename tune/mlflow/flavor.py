"""The MLflow flavor: a saved predictor as a model.

MLflow loads, serves and compares the model. Its data is the folder of `Predictor.save`. Nothing is
pickled, and loading runs only Foretune's code. The model maps rows of a run table to the prediction
table.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from foretune.datasets.schema import PLAIN_GROUPS
from foretune.models.predictor import Predictor
from foretune.models.saved.lookup import ARTIFACT

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

MODULE = "foretune.tune.mlflow.flavor"
EXAMPLE_ROWS = 5
INPUT_GROUPS = (*PLAIN_GROUPS, "device.", "static.")


class PredictorModel:
    """The model behind `mlflow.pyfunc.load_model`; MLflow needs ``python_model`` to unwrap it."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = self.python_model = predictor

    def get_raw_model(self) -> Predictor:
        """Return the predictor, as ``mlflow.pyfunc.PyFuncModel.get_raw_model`` does."""
        return self.predictor

    def predict(self, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """Return the prediction table of run-table rows, as `Predictor.predict` does."""
        return self.predictor.predict(model_input)


def log_model(predictor: Predictor, folder: Path, name: str = ARTIFACT) -> "ModelInfo":
    """Log the predictor saved in ``folder`` to MLflow's active run and return its model info."""
    import mlflow

    from foretune.version import __version__

    example = input_columns(predictor.runs_).head(EXAMPLE_ROWS)
    return mlflow.pyfunc.log_model(
        name=name,
        loader_module=MODULE,
        data_path=str(folder),
        signature=infer_model_signature(predictor),
        input_example=example,
        pip_requirements=[f"foretune=={__version__}"],
        metadata={"kernel": predictor.kernel_name_, "model": predictor.model},
    )


def infer_model_signature(predictor: Predictor) -> "ModelSignature":
    """Return the signature: run-table columns to the prediction table.

    A column with gaps in training is optional. Its numbers are integers or floats, depending on
    the gaps, so its type is left open. MLflow refuses the categorical columns of
    `foretune.features.candidate_rows`; pass text instead.
    """
    from mlflow.models import ModelSignature, infer_signature
    from mlflow.types.schema import AnyType, ColSpec, Schema

    rows = input_columns(predictor.runs_)
    optional = {c for c in rows if rows[c].isna().any() or c.startswith("static.")}
    any_type = {c for c in optional if not pd.api.types.is_string_dtype(rows[c].dropna())}

    # MLflow infers types from rows without gaps.
    complete = rows.drop(columns=sorted(any_type)).dropna()
    if complete.empty:  # columns of text with a gap in every row
        complete = rows.drop(columns=sorted(optional))
    inferred = {column.name: column.type for column in infer_signature(complete).inputs}

    undecided = AnyType()  # type: ignore[no-untyped-call]
    inputs = [
        ColSpec(inferred.get(column, undecided), column, required=column not in optional)
        for column in rows
    ]
    predicted = predictor.predict(predictor.runs_.head(EXAMPLE_ROWS))
    return ModelSignature(Schema([*inputs]), infer_signature(predicted).inputs)


def input_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the input columns of a run table: kernel, device, problem and configuration."""
    known = [c for c in runs if c.startswith(INPUT_GROUPS)]
    return runs[["kernel", "device", *known]]


def _load_pyfunc(path: str) -> PredictorModel:
    """Return the model in ``path``; MLflow calls this by name."""
    return PredictorModel(Predictor.load(path))
