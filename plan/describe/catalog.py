"""Finding models: by folder, or by name among those that are known without a network."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

from foretune.errors import MissingExtra, UnknownName, UsageError
from foretune.operator_package import package_home
from foretune.plan.describe.checkpoint import FOUR_BITS, SUFFIXES, format_in_name
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.huggingface import (
    CONFIG,
    QUANTIZATION,
    read_config,
    read_folder,
    read_json,
)
from foretune.plan.describe.parts import Indexer, LinearAttention, Mla

__all__ = ["ModelDescription", "describe_model", "known_models"]

_VARIANTS = {"instruct", "chat", "base", "it", "hf", "dynamic", "meta", *SUFFIXES}
"""Words of names that say how a model was trained on or stored, not how it is built."""


SAME_PUBLISHER = 0.85
"""How alike publishers are of which one is misspelt, 0 … 1."""


def describe_model(name: str) -> ModelDescription:
    """Return the model in the folder ``name``, or the one called so.

    A name is one of the shipped table's, or of those whose ``config.json`` aiconfigurator-core
    holds; the publisher, and words like ``Instruct`` or ``FP8``, need not match. A format in the
    name is that of the description. A publisher that is nearly a known one is taken for that.

    Raises:
        UsageError: the folder's ``config.json`` is missing or incomplete.
        UnknownName: nobody knows it; the nearest names are offered.
        MissingExtra: it is not in the shipped table, and aiconfigurator-core is not installed.
    """
    folder = Path(name).expanduser()
    if folder.name == CONFIG:
        return read_folder(folder.parent)
    if folder.is_dir():
        return read_folder(folder)
    shipped, configs = _shipped(), _configs()
    asked, name = name, _spelt(name, known_models())
    for same in (str.lower, _key):
        if found := _match(name, shipped, same):
            return _called(shipped[found], name, found)
        if found := _match(name, configs, same):
            return _called(_read(configs[found], found), name, found)
    known = known_models()
    close = get_close_matches(_key(name), [_key(k) for k in known], n=1)
    if _package() is None and not close:
        raise MissingExtra("aiconfigurator_core", "llm", f"describing {asked} without its folder")
    raise UnknownName("model", asked, known, "or give a folder with its config.json")


def known_models() -> list[str]:
    """Return the names that `describe_model` knows on this machine."""
    return sorted({*_shipped(), *_configs()}, key=str.lower)


def _match(name: str, known: Iterable[str], same: Callable[[str], str]) -> str | None:
    """Return which of ``known`` a name means, of which ``same`` has what must agree."""
    return next((candidate for candidate in known if same(candidate) == same(name)), None)


def _spelt(name: str, known: Iterable[str]) -> str:
    """Return a name with its publisher as it is known, where that is nearly so."""
    publisher, slash, model = name.partition("/")
    publishers = {k.partition("/")[0].lower(): k.partition("/")[0] for k in known}
    close = get_close_matches(publisher.lower(), publishers, n=1, cutoff=SAME_PUBLISHER)
    return f"{publishers[close[0]]}/{model}" if slash and close else name


def _key(name: str) -> str:
    """Return what of a name says how the model is built."""
    words = name.rpartition("/")[2].lower().replace("_", "-").split("-")
    return "-".join(word for word in words if word not in _VARIANTS)


def _called(model: ModelDescription, name: str, found: str) -> ModelDescription:
    """Return ``model`` under the name it was asked for, in the format which that says.

    Checkpoints of four bits keep attention in sixteen where there are experts to be small.
    """
    if name.lower() == found.lower():
        return model
    stored = format_in_name(name)
    if not stored:
        return replace(model, name=name)
    whole = not (model.is_moe and stored in FOUR_BITS)
    return replace(model, name=name, weight_format=stored if whole else "bf16", moe_format=stored)


@cache
def _shipped() -> dict[str, ModelDescription]:
    """Return the models of the shipped table, by name."""
    text = files("foretune.plan.describe").joinpath("models.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {row["name"]: _from_row(row) for row in rows}


def _from_row(row: dict[str, str]) -> ModelDescription:
    """Return the model of one row; ``mla``, ``linear`` and ``index`` hold their numbers, spaced."""
    values: dict[str, object] = {}
    parts = {"mla": Mla, "linear": LinearAttention, "index": Indexer}
    for field in fields(ModelDescription):
        text = row.get(field.name) or ""
        if not text:
            continue
        if field.name in parts:
            values[field.name] = parts[field.name](*map(int, text.split()))
        elif field.type is bool:
            values[field.name] = text == "yes"
        else:
            values[field.name] = int(text) if field.type is int else text
    return ModelDescription(**values)  # type: ignore[arg-type]


def _package() -> Path | None:
    """Return the folder of aiconfigurator-core's configurations, without importing it."""
    home = package_home()
    return home / "model_configs" if home and (home / "model_configs").is_dir() else None


@cache
def _configs() -> dict[str, Path]:
    """Return the configurations that aiconfigurator-core holds, by the model's name."""
    folder = _package()
    paths = sorted(folder.glob(f"*_{CONFIG}")) if folder else []
    return {_id_of(path): path for path in paths if not path.name.endswith(QUANTIZATION)}


def _id_of(path: Path) -> str:
    return path.name.removesuffix(f"_{CONFIG}").replace("--", "/", 1)


def _read(path: Path, name: str) -> ModelDescription:
    beside = path.with_name(path.name.replace(f"_{CONFIG}", f"_{QUANTIZATION}"))
    try:
        return read_config(read_json(path), name, read_json(beside) if beside.is_file() else {})
    except UsageError as e:
        raise UsageError(f"{e} (aiconfigurator-core's copy)") from e
