"""Folder of tuned files for an engine, and the card with their origin."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foretune.errors import OutputError, UsageError
from foretune.files import atomic_write, read_json
from foretune.plan.engine_files.guesses import EngineFile
from foretune.plan.engine_files.layer import Engine, Layer
from foretune.plan.engine_files.tuned_layers import MANIFEST_NAME
from foretune.plan.engine_files.vllm import TunedLayer, write_layer

LINEAR_FOLDER = "linear"
"""Folder for files that engines read only from their own package."""
VERSION = re.compile(r"\d+(\.\d+)*")


def write_files(
    folder: Path, files: Sequence[EngineFile], engine: Engine, triton: str = ""
) -> dict[Path, EngineFile]:
    """Write tuned files as the engine reads them, and the card; return the written files.

    Files of linear layers go to `LINEAR_FOLDER`, since engines read them only from their own
    package. SGLang keeps expert files by ``triton`` version; without one, UsageError is raised.
    """
    card = read_card(folder / MANIFEST_NAME)
    found: dict[Path, EngineFile] = {}
    for file in files:
        if not file.configs:
            continue
        path = relative_path(file.layer, engine, triton)
        refuse_foreign_file(folder, path, card)
        found[path] = file
    if not found:
        return {}
    card |= {path.as_posix(): _card_entry(file) for path, file in found.items()}
    with atomic_write(folder / MANIFEST_NAME) as new:
        text = {"engine": engine, "files": card}
        new.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    for path, file in found.items():
        write_layer(folder / path, TunedLayer(file.layer, file.configs))
    return {folder / path: file for path, file in found.items()}


def relative_path(layer: Layer, engine: Engine, triton: str) -> Path:
    """Return the path of a layer's file in the folder."""
    name = layer.file_name_for(engine)
    if not layer.experts:
        return Path(LINEAR_FOLDER) / name
    if engine == "vllm":
        return Path(name)
    if not VERSION.fullmatch(triton):
        raise UsageError(
            "SGLang keeps tuned files by Triton version: add --triton VERSION, like 3.5.1"
        )
    return Path("configs") / f"triton_{triton.replace('.', '_')}" / name


def refuse_foreign_file(folder: Path, path: Path, card: dict[str, Any]) -> None:
    """Raise OutputError if the folder has a file at ``path`` that is not on the card."""
    if (folder / path).exists() and path.as_posix() not in card:
        raise OutputError(
            f"{folder / path} was not written by Foretune: choose another --out folder"
        )


def read_card(path: Path) -> dict[str, Any]:
    """Return the card's files; empty if there is no card."""
    try:
        return dict(read_json(path)["files"])
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise OutputError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, KeyError, TypeError) as e:
        raise OutputError(
            f"{path} is not a card of tuned files: choose another --out folder"
        ) from e


def _card_entry(file: EngineFile) -> dict[str, object]:
    return {
        "parts": file.parts,
        "measured": False,
        "agreement": {tokens: round(g.agreement, 3) for tokens, g in file.guesses.items()},
        "nearest": sorted({guess.nearest.file_name for guess in file.guesses.values()}),
    }
