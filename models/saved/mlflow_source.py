"""MLflow, as far as predictors come from it: where it is, and what was logged there."""

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
"""What the model of a run is called."""
_MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # seven, with growing waits, is minutes of silence
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def connect(uri: str | None = None) -> Any:
    """Return MLflow's module, its tracking set to ``uri``.

    None keeps what the process has set, else takes ``MLFLOW_TRACKING_URI``, else `DEFAULT_URI`.

    Raises:
        TrackingError: MLflow is not installed.
    """
    for name, value in _MLFLOW_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow
    except ImportError as e:
        raise TrackingError(
            "MLflow is not installed: pip install 'foretune[track]', or name a folder"
        ) from e
    for name in ("mlflow", "alembic"):  # their start-up and hints say nothing a user can act on
        logging.getLogger(name).setLevel(logging.ERROR)
    if uri or not mlflow.tracking.is_tracking_uri_set():  # type: ignore[no-untyped-call]
        mlflow.set_tracking_uri(uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI)
    return mlflow


@contextmanager
def downloaded_model(name: str) -> Iterator[Path]:
    """Yield a folder with the model called ``models:/…`` or ``runs:/…``.

    Raises:
        TrackingError: MLflow does not have it, or cannot be reached.
    """
    mlflow = connect()
    if name.startswith("runs:/") and "/" not in name.removeprefix("runs:/").rstrip("/"):
        name = f"{name.rstrip('/')}/{ARTIFACT}"
    uri = mlflow.get_tracking_uri()
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of MLflow's own making
                path = mlflow.artifacts.download_artifacts(artifact_uri=name, dst_path=folder)
        except (mlflow.exceptions.MlflowException, OSError) as e:
            reason = str(root_cause(e)).partition("\n")[0][:200]
            raise TrackingError(
                f"MLflow at {uri} has no {name} ({reason}): set MLFLOW_TRACKING_URI, or name "
                "another version or a folder"
            ) from e
        yield Path(path)


def root_cause(error: BaseException) -> BaseException:
    """Return what started it: MLflow wraps a refused connection four times over."""
    inner = error.__cause__ or error.__context__
    return root_cause(inner) if inner is not None else error
