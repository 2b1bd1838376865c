"""Models to deploy, found by folder, file, name or address without a network."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from foretune.errors import MissingExtra, UnknownName, UsageError
from foretune.plan.describe import shipped_json, shipped_rows
from foretune.plan.describe.description import Indexer, LinearAttention, Mla, ModelDescription
from foretune.plan.describe.huggingface import (
    CONFIG_FILE,
    QUANTIZATION_FILE,
    read_checkpoint,
    read_config,
    read_folder,
    read_json,
)
from foretune.plan.describe.names import (
    keeps_attention_wide,
    parse_name,
    relatives,
    repository_of,
    similar_names,
)
from foretune.support.operator_package import package_folder

CACHE_PREFIX = "models--"
"""Of a model's folder in Hugging Face's cache: ``models--PUBLISHER--NAME``."""
IMAGE_MODELS = (
    *("google/medgemma-4b", "google/translategemma", "internlm/Intern-S1", "llava-hf"),
    *("mistralai/Pixtral", "OpenGVLab/InternVL", "Qwen/QVQ"),
)
"""Beginnings of the names of models that read images, besides ``…-VL-…``."""
UNPLANNED_NAMES: dict[str, str] = shipped_json("config_fields.json")["unplanned_names"]
"""Beginning of a word in a name, in lower case -> what its model has that is not planned."""
GGUF_SUFFIX = ".gguf"
PATH_BEGINNINGS = ("./", "../", "~")
"""What begins so is no name."""
OTHER_FOLDERS = {
    "adapter_config.json": "an adapter: plan its base model",
    "model_index.json": "a pipeline of diffusers, which does not generate text",
    "*.gguf": "of GGUF files, which cannot be planned yet: plan the model with --formats",
    "params.json": "in its publisher's own format: use the config.json of the model's repository "
    "on Hugging Face",
    f"snapshots/*/{CONFIG_FILE}": "a cache: give the folder below snapshots",
}
"""File in a folder -> what the folder is, and what to do."""
MAX_SUGGESTIONS = 5
FOLDER_HINT = "or give a folder with its config.json"


class UnknownModel(UnknownName):
    """A model of that name is not known; names are suggested only if their sizes are the same."""

    def __init__(self, name: str, known: list[str]) -> None:
        suggestions = similar_names(name, known)[:MAX_SUGGESTIONS]
        hint = f"did you mean {suggestions[0]!r}? " if suggestions else ""
        listed = ""
        if len(suggestions) > 1:
            listed = f", among them {', '.join(suggestions)}"
        elif not suggestions:
            others = relatives(name, known)[:MAX_SUGGESTIONS]
            listed = f", in other sizes or releases {', '.join(others)}" if others else ""
        message = f"unknown model {name!r}: {hint}{len(known)} names are known{listed}"
        UsageError.__init__(self, f"{message}; {FOLDER_HINT}")


def describe_model(name: str) -> ModelDescription:
    """Return the model in the folder ``name``, in a file ``*.json``, or of that name.

    A folder of Hugging Face's cache (``models--PUBLISHER--NAME``) and an address of the model are
    understood; the description has the name that engines load.

    Known names are those of the shipped table, of aiconfigurator-core's ``config.json`` files, and
    of models in Hugging Face's cache. The publisher, words like ``Instruct`` or ``FP8``, and dates
    like ``2507`` may differ. A format in the name then becomes the description's, as a guess.

    Raises:
        UsageError: the folder's ``config.json`` is missing or incomplete.
        UnknownName: the name is unknown; the message suggests similar ones of the same size.
        MissingExtra: the name is not in the shipped table, and aiconfigurator-core is not
            installed.
    """
    folder = Path(name).expanduser()
    repository = name if folder.exists() else repository_of(name)
    if repository != name:
        return _named_model(repository)
    if folder.suffix == GGUF_SUFFIX:
        raise UsageError(f"{name}: GGUF files cannot be planned yet: plan the model with --formats")
    if not folder.exists() and (name.startswith(PATH_BEGINNINGS) or folder.is_absolute()):
        raise UsageError(f"{name}: there is no such file or folder")
    if folder.name == CONFIG_FILE:
        return read_folder(folder.parent)
    if folder.suffix == ".json" and folder.is_file():
        return read_config(read_json(folder), folder.stem)
    if folder.is_dir():
        if folder.name.startswith(CACHE_PREFIX):
            return _read_cached(folder)
        _require_config(folder)
        return read_folder(folder)
    if folder.is_file():
        raise UsageError(f"{name} is no {CONFIG_FILE}: give its folder, which has one")
    return _named_model(name)


def _require_config(folder: Path) -> None:
    """Raise UsageError, which says what a folder without a ``config.json`` is."""
    if (folder / CONFIG_FILE).exists():
        return
    for file, what in OTHER_FOLDERS.items():
        if any(folder.glob(file)):
            raise UsageError(f"{folder} has no {CONFIG_FILE}: it is {what}")
    raise UsageError(
        f"{folder} has no {CONFIG_FILE}: download it from the model's repository on Hugging Face"
    )


def known_models() -> list[str]:
    """Return the names that `describe_model` knows without Hugging Face's cache."""
    return sorted({*_shipped(), *_configs()}, key=str.lower)


def _named_model(name: str) -> ModelDescription:
    name = name.rstrip("/")
    # Exact names, then files in the cache, come before names that differ in words.
    exact = _look_up(name, str.lower)
    if exact is not None:
        return exact
    cached = _cache_folder() / (CACHE_PREFIX + name.replace("/", "--"))
    if "/" in name and cached.is_dir():
        return _read_cached(cached)

    parts = parse_name(name)
    if parts.refused:
        raise UsageError(
            f"{name}: checkpoints in {parts.refused} cannot be planned yet: plan the unquantized "
            "model with --formats"
        )
    same = _look_up(name, _publication) if "/" in name else None
    if same is not None:
        return same
    similar = _look_up(name, lambda each: parse_name(each).architecture)
    if similar is not None:
        return similar
    for beginning, what in UNPLANNED_NAMES.items():
        if re.search(rf"(^|-){re.escape(beginning)}", parts.architecture):
            raise UsageError(f"{name}: {what} cannot be planned yet")
    known = known_models()
    if _package() is None and not similar_names(name, known):
        raise MissingExtra("aiconfigurator_core", "llm", f"describing {name} without its folder")
    raise UnknownModel(name, known)


def _publication(name: str) -> str:
    """Return what a checkpoint's publisher may spell in several ways: Meta-Llama-3.1, Llama-3.1."""
    publisher, _, _ = name.lower().rpartition("/")
    parts = parse_name(name)
    formats = f"{parts.weights} {parts.cache}"
    return f"{publisher}/{parts.architecture} {sorted(parts.releases)} {formats}"


def _look_up(name: str, normalize: Callable[[str], str]) -> ModelDescription | None:
    """Return the known model whose name equals ``name`` after ``normalize``, if any."""
    shipped = _shipped()
    if found := _match(name, shipped, normalize):
        return _with_requested_name(shipped[found], name, found)
    configs = _configs()
    if found := _match(name, configs, normalize):
        return _with_requested_name(_read(configs[found], found), name, found)
    return None


def _match(name: str, known: Iterable[str], normalize: Callable[[str], str]) -> str | None:
    """Return the known name equal to ``name`` after ``normalize``, if any."""
    wanted = normalize(name)
    return next((candidate for candidate in known if normalize(candidate) == wanted), None)


def _with_requested_name(model: ModelDescription, name: str, found: str) -> ModelDescription:
    """Return ``model`` in the format that ``name`` contains; in 16 bits if only ``found`` does."""
    if name.lower() == found.lower():
        return model
    if _publication(name) == _publication(found):
        return replace(model, name=name)
    wanted = parse_name(name)
    known = parse_name(found)
    if wanted.releases - known.releases:  # later releases may read longer prompts
        model = replace(model, longest=0)
    weights = wanted.weights or ("bf16" if known.weights else "")
    if not weights:
        return replace(model, name=name)
    attention = "bf16" if model.is_moe and keeps_attention_wide(weights) else weights
    return replace(
        model,
        name=name,
        weight_format=attention,
        moe_format=weights,
        kv_format=wanted.cache or "bf16",
        format_guessed=bool(wanted.weights),
    )


def _cache_folder() -> Path:
    """Return the folder of Hugging Face's cache."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return Path(folder).expanduser()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    home = Path(os.environ.get("HF_HOME", user_cache / "huggingface"))
    return home.expanduser() / "hub"


def _read_cached(folder: Path) -> ModelDescription:
    """Return the model of a folder in Hugging Face's cache, by its name on the hub."""
    name = folder.name.removeprefix(CACHE_PREFIX).replace("--", "/", 1)
    revision = folder / "refs" / "main"
    snapshots = sorted((folder / "snapshots").glob(f"*/{CONFIG_FILE}"))
    if revision.is_file():
        current = folder / "snapshots" / revision.read_text(encoding="utf-8").strip()
        snapshots = [current / CONFIG_FILE] if (current / CONFIG_FILE).is_file() else snapshots
    if not snapshots:
        raise UsageError(f"{folder} has no snapshot with a {CONFIG_FILE}: download the model")
    config = snapshots[-1]
    return read_checkpoint(config, config.with_name(QUANTIZATION_FILE), name)


@cache
def _shipped() -> dict[str, ModelDescription]:
    """Return the models of the shipped tables by name."""
    models = {row["name"]: _from_row(row) for row in shipped_rows("models.csv")}
    for row in shipped_rows("model_aliases.csv"):
        # A relative may read longer or shorter prompts, and images.
        reads_images = "-VL-" in row["alias"] or row["alias"].startswith(IMAGE_MODELS)
        model = replace(models[row["name"]], name=row["alias"], longest=0)
        # An encoder of 0 weights is none: MedGemma has a variant for text alone.
        has_none = row["encoder_weights"] == "0"
        encoder = int(row["encoder_weights"] or model.encoder_weights)
        images = (model.images and not has_none) or reads_images
        models[row["alias"]] = replace(model, images=images, encoder_weights=encoder)
    return models


def _from_row(row: dict[str, str]) -> ModelDescription:
    """Return the model of a row.

    ``mla``, ``linear`` and ``index`` are the fields of their classes, with spaces between them.
    """
    values: dict[str, object] = {}
    parts = {"mla": Mla, "linear": LinearAttention, "index": Indexer}
    for field in fields(ModelDescription):
        text = row.get(field.name) or ""
        if not text:
            continue
        if field.name in parts:
            sizes = [int(word) if word.isdigit() else word for word in text.split()]
            values[field.name] = parts[field.name](*sizes)
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
    quantization = path.name.replace(f"_{CONFIG_FILE}", f"_{QUANTIZATION_FILE}")
    try:
        return read_checkpoint(path, path.with_name(quantization), name)
    except UsageError as e:
        raise UsageError(f"{e} (aiconfigurator-core's copy)") from e
