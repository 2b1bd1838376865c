"""The MLflow flavor (a saved predictor as a model), and the alias of a new predictor.

MLflow loads, serves and compares the model. Its data is the folder of `Predictor.save`. Nothing is
pickled, and loading runs only Foretune's code. The model maps rows of a run table to the prediction
table.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from foretune.datasets.runs import newest_runs, problems_of
from foretune.datasets.schema import PLAIN_GROUPS
from foretune.errors import ForetuneError
from foretune.models.predictor import Predictor
from foretune.models.saved.lookup import ARTIFACT
from foretune.models.targets import measured_rows
from foretune.models.training import Training

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
    gaps = {c for c in rows if rows[c].isna().any() or c.startswith("static.")}
    open_ = {c for c in gaps if not pd.api.types.is_string_dtype(rows[c].dropna())}
    complete = rows.drop(columns=sorted(open_)).dropna()
    if complete.empty:  # columns of text with a gap in every row
        complete = rows.drop(columns=sorted(gaps))
    inferred = {c.name: c.type for c in infer_signature(complete).inputs}
    undecided = AnyType()  # type: ignore[no-untyped-call]
    columns = [ColSpec(inferred.get(c, undecided), c, required=c not in gaps) for c in rows]
    predicted = predictor.predict(predictor.runs_.head(EXAMPLE_ROWS))
    return ModelSignature(Schema([*columns]), infer_signature(predicted).inputs)


def input_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the input columns of a run table: kernel, device, problem and configuration."""
    known = [c for c in runs if c.startswith(INPUT_GROUPS)]
    return runs[["kernel", "device", *known]]


def _load_pyfunc(path: str) -> PredictorModel:
    """Return the model in ``path``; MLflow calls this by name."""
    return PredictorModel(Predictor.load(path))


CHAMPION, CHALLENGER = "champion", "challenger"
METRIC = "median_ape"
MIN_NEW_PROBLEMS = 2  # minimum number of problems new to both predictors for a direct comparison


@dataclass(frozen=True)
class PromotionDecision:
    """The alias of a new predictor, with the reason and its error on held-out problems."""

    alias: str
    reason: str
    error: float


def decide_promotion(
    training: Training, present: Predictor | None, present_error: float
) -> PromotionDecision:
    """Return a new predictor's alias; ``present_error`` is the champion's `METRIC` or NaN."""
    target = next(iter(training.predictor.targets_))
    splits = training.scores[target]
    if "grouped" not in splits:
        reason = "no problem was held out: train it on runs of several problems"
        return PromotionDecision(CHALLENGER, reason, np.nan)
    scores = splits["grouped"]
    error = scores[training.predictor.model][METRIC]
    others = {n: s[METRIC] for n, s in scores.items() if n != training.predictor.model}
    name = min(others, key=lambda n: others[n], default="")
    if name and not error < others[name]:
        reason = _comparison_text(error, others[name], f"of the baseline {name!r}", False)
        return PromotionDecision(CHALLENGER, reason, error)
    if present is None:
        reason = "there is no champion yet"
        if name:
            words = _comparison_text(error, others[name], f"of the best baseline, {name!r}", True)
            reason = f"{reason}; {words}"
        return PromotionDecision(CHAMPION, reason, error)
    held_out = training.validation.held_out[target]
    known = set(map(str, problems_of(present.measured_runs())))
    new = held_out[~held_out["problem"].isin(known)]
    if new["problem"].nunique() >= MIN_NEW_PROBLEMS:
        runs = measured_rows(target, newest_runs(training.predictor.runs_))
        rows = runs[[str(p) in set(new["problem"]) for p in problems_of(runs)]]
        try:
            predicted = present.predict(rows)[target].to_numpy()
        except (ForetuneError, KeyError) as e:
            reason = f"the champion cannot predict these runs: {e}"
            return PromotionDecision(CHAMPION, reason, error)
        new_error = _error(new["truth"].to_numpy(), new["prediction"].to_numpy())
        reference_error = _error(rows[target].to_numpy(float), predicted)
        reference = f"of the champion on {new['problem'].nunique()} problems new to both"
    else:
        new_error, reference_error = error, present_error
        reference = "of the champion, each on problems held out in training"
    better = bool(new_error < reference_error) or np.isnan(reference_error)
    reason = _comparison_text(new_error, reference_error, reference, better)
    return PromotionDecision(CHAMPION if better else CHALLENGER, reason, error)


def _error(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.median(np.abs(predicted - truth) / truth))


def _comparison_text(new_error: float, reference_error: float, reference: str, better: bool) -> str:
    relation = "better than" if better else "no better than"
    return (
        f"typical error {100 * new_error:.1f} % is {relation} the "
        f"{100 * reference_error:.1f} % {reference}"
    )
