"""Finds a predictor by the name that a user gives.

- a `Predictor`, or a user's own model (`foretune.models.guides.guide.make_guide`);
- a folder that contains one, directly or in a subfolder (such as a campaign's);
- ``models:/NAME@ALIAS``, ``models:/NAME/VERSION`` or ``runs:/ID``: a predictor or any other model
  in MLflow;
- ``FILE.py:NAME`` or ``MODULE:NAME``: a fitted model or a function in a file;
- ``FILE.onnx``;
- ``"auto"``: the predictor shipped with Foretune;
- ``"none"`` or None: none.
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from foretune.errors import (
    ForetuneError,
    ForetuneWarning,
    PredictorError,
    TrackingError,
    UsageError,
)
from foretune.models.card import CARD
from foretune.models.guides.guide import Guide, as_space_predictor, make_guide
from foretune.models.guides.request import AUTO, NONE, PredictorRequest
from foretune.models.guides.user_guide import UserModel, mlflow_model, onnx_model
from foretune.models.saved.pretrained import NotShipped, find_pretrained
from foretune.registry import is_code_location, object_at

if TYPE_CHECKING:
    from foretune.models.guides.guide import SpacePredictor
    from foretune.models.predictor import Predictor

PredictorSource: TypeAlias = "SpacePredictor | Callable[..., Any] | Any | None"
"""A model (`foretune.models.guides.guide.make_guide`), or a name as text or path."""
DEFAULT_URI = "sqlite:///mlflow.db"
ARTIFACT = "predictor"  # name of the model of a run
_MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the default, seven, takes minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
MLFLOW_PREFIXES = ("models:/", "runs:/")
PICKLES = (".joblib", ".pkl", ".pickle")
PLUGINS = {"code": "pip install ./examples/predict_from_code"}
"""Predictors that are not part of Foretune: name -> how a checkout installs one."""
MAX_FOLDER_DEPTH = 3
"""Levels below a folder that are searched; an MLflow model has its predictor two levels below."""
SOURCE_KINDS = "folder of one or of a campaign, models:/NAME@ALIAS or runs:/ID"


def read_predictor(source: PredictorSource) -> "Predictor":
    """Return the predictor named ``source``.

    Raises UsageError for ``auto`` and none, which need a kernel; PredictorError if there is not
    exactly one of this version; TrackingError if MLflow does not have it.
    """
    from foretune.models.predictor import Predictor

    if isinstance(source, Predictor):
        return source
    if source is None or str(source) in (AUTO, NONE):
        raise UsageError(f"predictor {str(source)!r} cannot be used here: name a {SOURCE_KINDS}")
    if not isinstance(source, (str, os.PathLike)):
        raise UsageError(f"predictor is {source!r}: give a Predictor, or name a {SOURCE_KINDS}")
    name = str(source)
    found = None
    if name.startswith(MLFLOW_PREFIXES):
        found = read_model(name)
    elif Path(name).is_dir() or not (is_code_location(name) or name.endswith((".onnx", *PICKLES))):
        found = Predictor.load(_predictor_folder(Path(name)))
    if not isinstance(found, Predictor):
        own = "is your own model, which can only guide a search"
        raise UsageError(f"{name} {own}: name a {SOURCE_KINDS}")
    return found


def read_model(source: PredictorSource) -> "Predictor | UserModel":
    """Return the predictor or user's model ``source``, which may be a name.

    Raises UsageError if it is not a model; else see `read_predictor`.
    """
    if source is None or not isinstance(source, (str, os.PathLike)):
        return as_space_predictor(source)
    name = str(source)
    if name.endswith(PICKLES):
        raise UsageError(
            f"{name} would run code when it is loaded: load it in your own file, model = "
            f"joblib.load({name!r}), and give FILE.py:model"
        )
    if name.endswith(".onnx"):
        return onnx_model(name)
    if name.startswith(MLFLOW_PREFIXES):
        from foretune.models.predictor import Predictor

        with downloaded_model(name) as folder:
            saved = _predictor_folder(folder)
            if (saved / CARD).exists():
                return Predictor.load(saved)
            return mlflow_model(connect(), str(folder), name)
    if is_code_location(name) and not Path(name).is_dir():
        return as_space_predictor(object_at(name), name)
    if name in PLUGINS and not Path(name).exists():
        raise PredictorError(f"predictor {name!r} is a plug-in, not installed: {PLUGINS[name]}")
    return read_predictor(source)


def find_guide(
    source: PredictorSource, request: PredictorRequest, say: Callable[[str], None]
) -> Guide | None:
    """Return the guide that ``source`` names, for ``request``; None for ``none``.

    Raises PredictorError, TrackingError, UsageError if the named predictor cannot be used. ``say``
    receives the choice among shipped predictors, and any mismatch.
    """
    if source is None or (isinstance(source, str) and source == NONE):
        return None
    guide: Guide | None
    if isinstance(source, str) and source == AUTO:
        guide = _shipped(request, say)
    else:
        guide = make_guide(read_model(source), request.device)
        guide.require(request)
    if guide is not None and guide.mismatch:
        say(f"measurements check and correct the predictor: {guide.mismatch}")
    return guide


def _shipped(request: PredictorRequest, say: Callable[[str], None]) -> Guide | None:
    try:
        found = find_pretrained(request)
    except NotShipped as e:
        say(str(e))
        return None
    except ForetuneError as e:
        warnings.warn(f"the shipped predictor is not used: {e}", ForetuneWarning, stacklevel=4)
        return None
    say(f"prior: shipped predictor, {found}")
    return found


def _predictor_folder(root: Path) -> Path:
    """Return the predictor's folder at or below ``root``; ``root`` if there is none."""
    levels = ("*/" * depth + CARD for depth in range(MAX_FOLDER_DEPTH + 1))
    found = [path.parent for level in levels for path in sorted(root.glob(level))]
    if len(found) > 1 and found[0] != root:
        listed = ", ".join(map(str, found[:4]))
        raise PredictorError(f"{root} holds {len(found)} predictors: name one of {listed}")
    return found[0] if found else root


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
    of_registry = name.startswith("models:/")
    uri = mlflow.get_registry_uri() if of_registry else mlflow.get_tracking_uri()
    advice = "set MLFLOW_TRACKING_URI, or name another version or a folder"
    _, is_file, database = uri.partition("?")[0].partition("sqlite:///")
    if is_file and not Path(database).exists():  # MLflow would make it
        raise TrackingError(f"MLflow at {uri} has no {name} (there is no such file): {advice}")
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        try:
            with warnings.catch_warnings(action="ignore"):  # inside MLflow
                path = mlflow.artifacts.download_artifacts(artifact_uri=name, dst_path=folder)
        except (mlflow.exceptions.MlflowException, OSError) as e:
            reason = str(root_cause(e)).partition("\n")[0][:200]
            raise TrackingError(f"MLflow at {uri} has no {name} ({reason}): {advice}") from e
        yield Path(path)


def root_cause(error: BaseException) -> BaseException:
    """Return the innermost error; MLflow wraps a refused connection four times."""
    inner = error.__cause__ or error.__context__
    return root_cause(inner) if inner is not None else error
