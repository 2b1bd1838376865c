"""The folder of a saved predictor: replaced atomically, other files in it are kept."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from foretune.errors import OutputError, PredictorError
from foretune.features.features_version import FEATURES_VERSION
from foretune.models.target_names import TARGETS
from foretune.support.files import read_json, require_regular_file, translate_read_errors

FORMAT_VERSION = 12
CARD = "predictor.json"
RUNS_FILE = "runs.parquet"
IS_OURS = re.compile(
    "|".join([CARD, RUNS_FILE, r"(valid|correction\d+)\.[a-z.]+", r"calibration\.[a-z]+", *TARGETS])
).fullmatch
"""Whether a name is that of a saved predictor's file or folder."""


def require_writable_folder(folder: Path) -> None:
    """Raise `OutputError` if ``folder`` holds anything but a predictor."""
    if folder.is_dir():
        if (folder / CARD).exists() or not any(folder.iterdir()):
            return
        raise OutputError(f"cannot write the predictor to {folder}: it contains other files")
    if folder.exists():
        raise OutputError(f"cannot write the predictor to {folder}: it is a file")


@contextmanager
def atomic_folder(folder: Path, card: dict[str, Any]) -> Iterator[Path]:
    """Yield a folder to write to; on success it becomes ``folder``, with ``card``.

    Raises OutputError if it cannot be written.
    """
    folder = folder.resolve()
    require_writable_folder(folder)
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    versions = {"format": FORMAT_VERSION, "features_version": FEATURES_VERSION}
    try:
        new.mkdir(parents=True)
        yield new
        text = json.dumps({**versions, **card}, indent=1, default=_to_json)
        (new / CARD).write_text(text, encoding="utf-8")
        _replace_folder(new, folder)
    except (OSError, ValueError) as e:  # XGBoost's errors are ValueErrors
        reason = getattr(e, "strerror", None) or str(e).partition("\n")[0]
        raise OutputError(f"cannot write the predictor to {folder}: {reason}") from e
    finally:
        shutil.rmtree(new, ignore_errors=True)


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card that `atomic_folder` wrote.

    Raises PredictorError if there is none, or another version wrote it.
    """
    with translate_read_errors(
        folder, PredictorError, "holds no predictor ({}): train one with 'foretune train'"
    ):
        card: dict[str, Any] = read_json(folder / CARD)
    if (card.get("format"), card.get("features_version")) != (FORMAT_VERSION, FEATURES_VERSION):
        raise PredictorError(
            f"{folder} was written by another version of Foretune: train it again from its runs"
        )
    return card


def require_regular_files(folder: Path) -> None:
    """Raise `OSError` or `ValueError` if a predictor's file is a device, a pipe or too large."""
    for path in (p for p in folder.iterdir() if IS_OURS(p.name)):
        for file in path.rglob("*") if path.is_dir() else [path]:
            if not file.is_dir():
                require_regular_file(file)


def _replace_folder(new: Path, folder: Path) -> None:
    if not (folder / CARD).exists():
        new.replace(folder)
        return
    before = new.with_name(f"{new.name}.before")
    folder.replace(before)
    try:
        new.replace(folder)
    except OSError:
        before.replace(folder)
        raise
    for path in before.iterdir():
        if not IS_OURS(path.name):
            path.replace(folder / path.name)
    shutil.rmtree(before)


def _to_json(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"a parameter is {value!r}, not a number or text")
