"""Finds models by folder, or by name without a network."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from foretune.errors import MissingExtra, UnknownName, UsageError
from foretune.operator_package import package_folder
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.description import Indexer, LinearAttention, Mla, ModelDescription
from foretune.plan.describe.huggingface import (
    CONFIG_FILE,
    FORMAT_OF_SUFFIX,
    FOUR_BIT_FORMATS,
    QUANTIZATION_FILE,
    format_in_name,
    read_config,
    read_folder,
    read_json,
)

_VARIANTS = {"instruct", "chat", "base", "it", "hf", "dynamic", "meta", *FORMAT_OF_SUFFIX}
"""Words in names that describe training or storage, not architecture."""
MIN_PUBLISHER_SIMILARITY = 0.85
"""Minimum similarity to correct a misspelled publisher, 0 … 1."""


def describe_model(name: str) -> ModelDescription:
    """Return the model in the folder ``name``, or the model with that name.

    Known names are those of the shipped table and of aiconfigurator-core's ``config.json`` files.
    The publisher, and words like ``Instruct`` or ``FP8``, may differ. A format in the name becomes
    the description's. A misspelled publisher is corrected.

    Raises:
        UsageError: the folder's ``config.json`` is missing or incomplete.
        UnknownName: the name is unknown; the message suggests similar ones.
        MissingExtra: the name is not in the shipped table, and aiconfigurator-core is not
            installed.
    """
    folder = Path(name).expanduser()
    if folder.name == CONFIG_FILE:
        return read_folder(folder.parent)
    if folder.is_dir():
        return read_folder(folder)
    shipped, configs = _shipped(), _configs()
    requested, name = name, _correct_publisher(name, known_models())
    for normalize in (str.lower, _architecture_key):
        if found := _match(name, shipped, normalize):
            return _with_requested_name(shipped[found], name, found)
        if found := _match(name, configs, normalize):
            return _with_requested_name(_read(configs[found], found), name, found)
    known = known_models()
    close = get_close_matches(_architecture_key(name), [_architecture_key(k) for k in known], n=1)
    if _package() is None and not close:
        raise MissingExtra(
            "aiconfigurator_core", "llm", f"describing {requested} without its folder"
        )
    raise UnknownName("model", requested, known, "or give a folder with its config.json")


def known_models() -> list[str]:
    """Return the names that `describe_model` knows on this machine."""
    return sorted({*_shipped(), *_configs()}, key=str.lower)


def _match(name: str, known: Iterable[str], normalize: Callable[[str], str]) -> str | None:
    """Return the known name equal to ``name`` after ``normalize``, if any."""
    return next((candidate for candidate in known if normalize(candidate) == normalize(name)), None)


def _correct_publisher(name: str, known: Iterable[str]) -> str:
    """Return a name with a misspelled publisher corrected."""
    publisher, slash, model = name.partition("/")
    publishers = {k.partition("/")[0].lower(): k.partition("/")[0] for k in known}
    close = get_close_matches(publisher.lower(), publishers, n=1, cutoff=MIN_PUBLISHER_SIMILARITY)
    return f"{publishers[close[0]]}/{model}" if slash and close else name


def _architecture_key(name: str) -> str:
    """Return the part of a name that identifies the architecture."""
    words = name.rpartition("/")[2].lower().replace("_", "-").split("-")
    return "-".join(word for word in words if word not in _VARIANTS)


def _with_requested_name(model: ModelDescription, name: str, found: str) -> ModelDescription:
    """Return ``model`` under the requested name, in the format that the name contains."""
    if name.lower() == found.lower():
        return model
    stored = format_in_name(name)
    if not stored:
        return replace(model, name=name)
    quantizes_attention = not (model.is_moe and stored in FOUR_BIT_FORMATS)
    return replace(
        model, name=name, weight_format=stored if quantizes_attention else "bf16", moe_format=stored
    )


@cache
def _shipped() -> dict[str, ModelDescription]:
    return {row["name"]: _from_row(row) for row in shipped_rows("models.csv")}


def _from_row(row: dict[str, str]) -> ModelDescription:
    """Return the model of a row; ``mla``, ``linear`` and ``index`` are space-separated numbers."""
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
    home = package_folder()
    return home / "model_configs" if home and (home / "model_configs").is_dir() else None


@cache
def _configs() -> dict[str, Path]:
    """Return aiconfigurator-core's configurations by model name."""
    folder = _package()
    paths = sorted(folder.glob(f"*_{CONFIG_FILE}")) if folder else []
    return {
        path.name.removesuffix(f"_{CONFIG_FILE}").replace("--", "/", 1): path
        for path in paths
        if not path.name.endswith(QUANTIZATION_FILE)
    }


def _read(path: Path, name: str) -> ModelDescription:
    quantization_path = path.with_name(
        path.name.replace(f"_{CONFIG_FILE}", f"_{QUANTIZATION_FILE}")
    )
    try:
        quantization = read_json(quantization_path) if quantization_path.is_file() else {}
        return read_config(read_json(path), name, quantization)
    except UsageError as e:
        raise UsageError(f"{e} (aiconfigurator-core's copy)") from e
