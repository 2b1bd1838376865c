"""Folder of tuned files for an engine, and the card with their origin.

The card holds all measurements, also where the engine's default is best and no file is written.
Later runs with other numbers of tokens extend it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretune.errors import OutputError, UsageError
from foretune.files import atomic_write, read_json, require_writable
from foretune.plan.engine_files.guesses import EngineFile, MeasuredEntry
from foretune.plan.engine_files.layer import Engine, Layer
from foretune.plan.engine_files.tuned_layers import MANIFEST_NAME
from foretune.plan.engine_files.vllm import TunedLayer, write_layer
from foretune.space import Configuration

LINEAR_FOLDER = "linear"
"""Folder for files that engines read only from their own package."""
VERSION = re.compile(r"\d+(\.\d+)*")


def check_folder(
    folder: Path, layers: Iterable[Layer], engine: Engine, triton: str = ""
) -> None:  # fmt: skip
    """Check that files of these layers can be written; create the folder if needed.

    Raises OutputError if the folder is not writable or has other files of these layers.
    """
    card = read_card(folder / MANIFEST_NAME)
    for path in (relative_path(layer, engine, triton) for layer in layers):
        refuse_foreign_file(folder, path, card)
    require_writable(folder, "into")


def write_files(
    folder: Path, files: Sequence[EngineFile], engine: Engine, triton: str = ""
) -> dict[Path, EngineFile]:
    """Write tuned files as the engine reads them, and the card; return the written files.

    Files of linear layers go to `LINEAR_FOLDER`, since engines read them only from their own
    package. Earlier measurements are kept, and no guess replaces them. A guessed file is removed if
    nothing beats the default. SGLang keeps expert files by ``triton`` version; without one,
    UsageError is raised.
    """
    card = read_card(folder / MANIFEST_NAME)
    found: dict[Path, EngineFile] = {}
    for file in files:
        if not (file.configs or file.measured):
            continue
        path = relative_path(file.layer, engine, triton)
        refuse_foreign_file(folder, path, card)
        earlier = _read_entries(card.get(path.as_posix(), {}))
        found[path] = replace(file, measured={**earlier, **file.measured})
    if not found:
        return {}
    card |= {path.as_posix(): _card_entry(file) for path, file in found.items()}
    with atomic_write(folder / MANIFEST_NAME) as new:
        text = {"engine": engine, "files": card}
        new.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    for path, file in found.items():
        if file.configs:
            write_layer(folder / path, TunedLayer(file.layer, file.configs))
        else:
            (folder / path).unlink(missing_ok=True)
    return {folder / path: file for path, file in found.items() if file.configs}


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
    if not file.measured:
        return {
            "parts": file.parts,
            "measured": False,
            "agreement": {tokens: round(g.agreement, 3) for tokens, g in file.guesses.items()},
            "nearest": sorted({guess.nearest.file_name for guess in file.guesses.values()}),
        }
    entries = {
        tokens: {"config": dict(e.config), "gain": [e.speedup, e.speedup_low, e.speedup_high]}
        for tokens, e in sorted(file.measured.items())
    }
    return {"parts": file.parts, "measured": True, "entries": entries, "failed": dict(file.failed)}


def _read_entries(about: dict[str, Any]) -> dict[int, MeasuredEntry]:
    """Return the measured entries of a card."""
    return {
        int(tokens): MeasuredEntry(Configuration(entry["config"]), *entry["gain"])
        for tokens, entry in about.get("entries", {}).items()
    }
