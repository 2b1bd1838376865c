"""Writes campaigns, trainings and plans to MLflow."""

import math
import os
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np
import pandas as pd

from foretune.errors import ForetuneError, TrackingError
from foretune.models.card import RUNS_FILE
from foretune.models.guides.guide import describe_training
from foretune.models.saved.lookup import DEFAULT_URI, connect, read_predictor, root_cause
from foretune.models.training import Training
from foretune.redaction import redact
from foretune.tune.mlflow.flavor import log_model
from foretune.tune.mlflow.promotion import (
    CHAMPION,
    Champion,
    PromotionDecision,
    decide_promotion,
)
from foretune.tune.report.page import ratio
from foretune.tune.results import TuneResult
from foretune.version import __version__

EXPERIMENT = "foretune"
HELD_OUT_ERROR_TAG = "foretune.held_out_error"
"""Tag with the typical error on problems held out in training."""
DESCRIPTION_TAG = "mlflow.note.content"
_MAX_BATCH_METRICS = 1000  # maximum number of metrics in one MLflow batch
_MAX_PARAM_LENGTH = 6000  # MLflow refuses longer values of parameters


def provenance() -> dict[str, str]:
    """Return tags: MLflow's own, Foretune's version and the git state of the working directory."""
    from mlflow.tracking.context.registry import resolve_tags

    tags = {k: redact(str(v)) for k, v in resolve_tags().items()}
    return {**tags, "foretune.version": __version__, **git_state()}


def git_state() -> dict[str, str]:
    """Return the checked-out commit and whether files changed; empty outside git."""
    try:
        commit = _output("git rev-parse HEAD")
        changes = _output("git status --porcelain -uno")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"mlflow.source.git.commit": commit, "foretune.git.changed": str(bool(changes)).lower()}


def _output(command: str) -> str:
    output = subprocess.check_output(command.split(), stderr=DEVNULL, timeout=10)
    return output.decode().strip()


class Tracker:
    """Writes campaigns, trainings and plans to MLflow; TrackingError if it refuses something.

    The default ``uri`` is ``MLFLOW_TRACKING_URI``, else ``sqlite:///mlflow.db``.
    """

    def __init__(self, uri: str | None = None) -> None:
        mlflow = connect(uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI)
        self.uri = mlflow.get_tracking_uri()
        with _translate_errors(self.uri):
            self._client = mlflow.MlflowClient()
            found = self._client.get_experiment_by_name(EXPERIMENT)
            self._experiment = (
                found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            )

    @property
    def name(self) -> str:
        """The tracking URI without passwords."""
        return redact(self.uri)

    def open_run(
        self, name: str, run_id: str | None, tags: Mapping[str, str], parent: str | None = None
    ) -> str:
        """Return ``run_id`` if the run still exists, otherwise the id of a new run."""
        from mlflow.exceptions import MlflowException

        with _translate_errors(self.uri):
            if run_id is not None:
                try:
                    self._client.get_run(run_id)
                    self._client.update_run(run_id, status="RUNNING")
                    return run_id
                except MlflowException:  # another server, or deleted there
                    pass
            all_tags = {**provenance(), **tags}
            if parent:
                all_tags["mlflow.parentRunId"] = parent
            run = self._client.create_run(self._experiment, run_name=name, tags=all_tags)
            return str(run.info.run_id)

    def log(
        self, run_id: str, params: Mapping[str, Any] = {}, metrics: Mapping[str, float] = {}
    ) -> None:
        """Write parameters and finite metrics."""
        from mlflow.entities import Param

        points = _finite_metrics((name, value, 0) for name, value in metrics.items())
        with _translate_errors(self.uri):
            known = self._client.get_run(run_id).data.params
            new = [
                Param(k, str(v)[:_MAX_PARAM_LENGTH]) for k, v in params.items() if k not in known
            ]
            self._client.log_batch(run_id, metrics=points, params=new)

    def describe(self, run_id: str, text: str) -> None:
        """Write a run's description (Markdown), which MLflow shows first."""
        with _translate_errors(self.uri):
            self._client.set_tag(run_id, DESCRIPTION_TAG, text)

    def log_trace(self, run_id: str, result: TuneResult) -> None:
        """Write a search's measurements as metric steps, and its verdict."""
        trace = result.to_frame().rename(columns={"best": "best_so_far"})
        steps = ["time_ms", "power_w", "predicted_ms", "best_so_far"]
        self.log_steps(run_id, trace[steps])
        winner = result.winner
        params = {f"problem.{k}": v for k, v in result.problem.items()}
        params |= {f"best.{k}": v for k, v in (winner.config or {}).items()}
        metrics = {
            "winner": winner.value,
            "baseline": result.baseline.value,
            "speedup": winner.ratio,
            "speedup_low": winner.ratio_low,
            "speedup_high": winner.ratio_high,
            "verified": float(result.verified),
            "seconds": result.seconds,
            "library": result.library.value if result.library else math.nan,
        }
        self.log(run_id, params, metrics)
        self.describe(run_id, f"**{result.explanation}**, {ratio(winner.ratio)}: {winner.config}")

    def log_steps(self, run_id: str, table: pd.DataFrame) -> None:
        """Write the finite numbers of a table as metrics, one step per row."""
        points = _finite_metrics(
            (name, value, number) for name in table for number, value in enumerate(table[name], 1)
        )
        with _translate_errors(self.uri):
            for start in range(0, len(points), _MAX_BATCH_METRICS):
                self._client.log_batch(run_id, metrics=points[start : start + _MAX_BATCH_METRICS])

    def log_training(self, run_id: str, training: Training, folder: Path) -> None:
        """Write a training (parameters, scores, rows, model, plots) saved to ``folder``."""
        from foretune.tune.report.validation_page import validation_page

        predictor = training.predictor
        kernel = predictor.kernel_name_
        n_rows = predictor.training_["rows"]
        model_params = {f"parameter.{k}": v for k, v in (predictor.parameters or {}).items()}
        params = {
            "kernel": kernel,
            "model": predictor.model,
            "targets": ", ".join(predictor.targets_),
            "seed": predictor.seed,
            "extra_columns": ", ".join(predictor.extra_columns),
            "validate": training.validation.level,
            **predictor.training_,
            **model_params,
        }
        self.log(run_id, params)
        self.log_predictor(run_id, training, folder, (folder / RUNS_FILE).resolve())
        title = f"{kernel}: {predictor.model} trained on {n_rows:,} runs"
        self.log_text(run_id, validation_page(title, training.validation), "predictions.html")

    def log_predictor(
        self, run_id: str, training: Training, folder: Path, source: Path
    ) -> PromotionDecision:
        """Log the predictor saved in ``folder``, trained on ``source``; register it with an alias.

        Commands load it by name (`foretune.models.saved.lookup`), and so does
        ``mlflow.pyfunc.load_model("models:/foretune-KERNEL@champion")``. Tags of the run and of the
        model version hold the decision.
        """
        import mlflow
        from mlflow.data.pandas_dataset import from_pandas

        predictor = training.predictor
        name = f"foretune-{predictor.kernel_name_}"
        with _translate_errors(self.uri), self._active_run(run_id):
            # The run: its training data, the model, and its scores.
            flat_runs = predictor.runs_.drop(columns=["time_ms_samples"], errors="ignore")
            dataset_name = f"{predictor.kernel_name_} runs"
            dataset = from_pandas(flat_runs, source=str(source), name=dataset_name)
            mlflow.log_input(dataset, context="training")
            info = log_model(predictor, folder)
            scores = ((score, value, 0) for score, value in score_metrics(training).items())
            points = _finite_metrics(scores, model_id=info.model_id, run_id=run_id)
            if points:
                self._client.log_batch(run_id, metrics=points)

            # The decision, in the tags of the run.
            decision = decide_promotion(training, self._champion(name))
            description = (
                f"{name}: {predictor.model}, {describe_training(predictor)}; "
                f"{decision.alias}: {decision.reason}"
            )
            tags = {
                "foretune.alias": decision.alias,
                "foretune.reason": decision.reason,
                HELD_OUT_ERROR_TAG: repr(decision.error),
                "foretune.device": ", ".join(map(str, predictor.runs_["device"].unique())),
                "foretune.kernel": predictor.kernel_name_,
                "foretune.code_hash": str(getattr(predictor.features_.family, "source_hash", "")),
                "foretune.rows": str(source),
                "foretune.dataset": str(dataset.digest),
            }
            for key, value in {**tags, DESCRIPTION_TAG: description}.items():
                self._client.set_tag(run_id, key, value)

            # A new version of the registered model, with the alias.
            if not self._client.search_registered_models(f"name = '{name}'"):
                self._client.create_registered_model(name)
            version = self._client.create_model_version(
                name,
                info.model_uri,
                run_id,
                tags=tags | provenance(),
                description=description,
                model_id=info.model_id,
            )
            self._client.set_registered_model_alias(name, decision.alias, str(version.version))
        return decision

    def _champion(self, name: str) -> Champion | None:
        """Return the champion with its tagged held-out error; None if there is none to read."""
        from mlflow.exceptions import MlflowException

        try:
            version = self._client.get_model_version_by_alias(name, CHAMPION)
            predictor = read_predictor(f"models:/{name}@{CHAMPION}")
        except (MlflowException, ForetuneError):
            return None
        return Champion(predictor, float(version.tags.get(HELD_OUT_ERROR_TAG, "nan")))

    def log_file(self, run_id: str, path: Path) -> None:
        """Attach a file."""
        with _translate_errors(self.uri):
            self._client.log_artifact(run_id, str(path))

    def log_charts(self, run_id: str, charts: Mapping[Callable[..., Any], Any]) -> None:
        """Write charts (function of `plot` -> argument) as images, if Matplotlib is installed."""
        if find_spec("matplotlib") is None:
            return
        from matplotlib.figure import Figure

        for draw, result in charts.items():
            figure = Figure(figsize=(7, 4), layout="constrained")
            with suppress(ForetuneError), _translate_errors(self.uri):
                draw(result, ax=figure.add_subplot())
                self._client.log_figure(run_id, figure, f"charts/{draw.__name__}.png")

    def log_text(self, run_id: str, text: str, name: str) -> None:
        """Attach a file with this text."""
        with _translate_errors(self.uri):
            self._client.log_text(run_id, text, name)

    @contextmanager
    def running(self, run_id: str) -> Iterator[None]:
        """Mark the run as finished at the end, or as killed or failed after an exception."""
        try:
            yield
        except BaseException as e:
            status = "FAILED" if isinstance(e, Exception) else "KILLED"
            with suppress(TrackingError):
                self.end_run(run_id, status)
            raise
        self.end_run(run_id)

    def end_run(self, run_id: str, status: str = "FINISHED") -> None:
        """Mark the run as ended: ``FINISHED``, ``FAILED`` or ``KILLED``."""
        with _translate_errors(self.uri):
            self._client.set_terminated(run_id, status)

    @contextmanager
    def _active_run(self, run_id: str) -> Iterator[None]:
        import mlflow

        with mlflow.start_run(run_id=run_id, nested=True):
            yield
        self._client.update_run(run_id, status="RUNNING")  # leaving the context ended it


def _finite_metrics(values: Iterable[tuple[str, float, int]], **of: str) -> list[Any]:
    """Return MLflow's metrics of finite (name, value, step); ``of`` names run and model."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(name, float(v), now, step, **of) for name, v, step in values if np.isfinite(v)]


def score_metrics(training: Training) -> dict[str, float]:
    """Return the trained model's scores as ``TARGET.SPLIT.METRIC`` -> value."""
    return {
        f"{target}.{split}.{metric}": value
        for target, splits in training.metrics().items()
        for split, scores in splits.items()
        for metric, value in scores.items()
    }


@contextmanager
def _translate_errors(uri: str) -> Iterator[None]:
    """Report exceptions of MLflow and its database in one line."""
    from mlflow.exceptions import MlflowException

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of MLflow's own making
            yield
    except Exception as e:
        known = isinstance(e, MlflowException | OSError | ImportError)
        if not known and not type(e).__module__.startswith("sqlalchemy."):
            raise
        reason = str(root_cause(e)).partition("\n")[0][:200]
        raise TrackingError(
            redact(
                f"MLflow at {uri} does not work ({reason}): start it, or set MLFLOW_TRACKING_URI; "
                "what was measured is kept"
            )
        ) from e
