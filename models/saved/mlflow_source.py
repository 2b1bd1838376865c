"""Downloads predictors from MLflow."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foretune.errors import TrackingError

DEFAULT_URI = "sqlite:///mlflow.db"
ARTIFACT = "predictor"
"""Name of the model of a run."""
_MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the default, seven, takes minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def connect(uri: str | None = None) -> Any:
    """Return MLflow's module with its tracking URI set.

    None keeps the process' URI, else uses ``MLFLOW_TRACKING_URI``, else `DEFAULT_URI`.
    """
    for name, value in _MLFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow
    except ImportError as e:
        raise TrackingError(
            "MLflow is not installed: pip install '.[track]', or name a folder"
        ) from e
    for name in ("mlflow", "alembic"):  # their start-up messages and hints are not actionable
        logging.getLogger(name).setLevel(logging.ERROR)
    if uri or not mlflow.tracking.is_tracking_uri_set():  # type: ignore[no-untyped-call]
        mlflow.set_tracking_uri(uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI)
    return mlflow


@contextmanager
def downloaded_model(name: str) -> Iterator[Path]:
    """Yield a folder with the model named ``models:/…`` or ``runs:/…``.

    Raises TrackingError if MLflow does not have it, or cannot be reached.
    """
    mlflow = connect()
    if name.startswith("runs:/") and "/" not in name.removeprefix("runs:/").rstrip("/"):
        name = f"{name.rstrip('/')}/{ARTIFACT}"
    uri = mlflow.get_tracking_uri()
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings inside MLflow
                path = mlflow.artifacts.download_artifacts(artifact_uri=name, dst_path=folder)
        except (mlflow.exceptions.MlflowException, OSError) as e:
            reason = str(root_cause(e)).partition("\n")[0][:200]
            raise TrackingError(
                f"MLflow at {uri} has no {name} ({reason}): set MLFLOW_TRACKING_URI, or name "
                "another version or a folder"
            ) from e
        yield Path(path)


def root_cause(error: BaseException) -> BaseException:
    """Return the innermost error; MLflow wraps a refused connection four times."""
    inner = error.__cause__ or error.__context__
    return root_cause(inner) if inner is not None else error
