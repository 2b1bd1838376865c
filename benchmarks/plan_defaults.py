"""Models whose sizes are the defaults of their class in transformers, as rows of ``models.csv``.

Run with a Python that has transformers: ``python benchmarks/plan_defaults.py``; without it, it says
so and stops. A class names a checkpoint in its documentation, but its defaults may be those of
another one. A row is printed if the defaults have as many parameters as the checkpoint's name says,
or as ``--published NAME=BILLIONS``, up to `TOLERANCE`. A class with a window whose layers only the
file knows is left out. The classes without a row are counted; ``--left-out`` lists them.
"""

import argparse
import inspect
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

from foretune.errors import ForetuneError
from foretune.plan.describe import shipped_rows
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.huggingface import read_config

TOLERANCE = 0.01
"""Relative difference of parameters; a name's size is rounded, which may be more."""
CHECKPOINT = re.compile(r'@auto_docstring\(checkpoint="([\w./-]+)"')
SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[Bb](?![\w.])")
PARTS = ("mla", "linear", "index")
"""Fields that a row has as words with spaces between them."""


def main() -> None:
    """Print rows, and how many classes have none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", action="append", default=[], metavar="NAME=BILLIONS")
    parser.add_argument("--left-out", action="store_true")
    given = parser.parse_args()
    try:
        import transformers
    except ImportError as e:
        print(f"skipped: {e}: install transformers")
        return
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    published = {name: float(size) for name, _, size in (p.partition("=") for p in given.published)}

    columns = list(shipped_rows("models.csv")[0])
    rows = []
    left_out = []
    for family, config_class in sorted(transformers.CONFIG_MAPPING.items()):
        try:
            rows.append(_row(family, config_class, published, columns))
        except (ForetuneError, ValueError, TypeError, AttributeError) as e:
            left_out.append(f"{family}: {e}")
    for row in sorted(rows, key=str.lower):
        print(row)
    print(f"transformers {transformers.__version__}: {len(rows)} rows", file=sys.stderr)
    print(f"{len(left_out)} classes have none", file=sys.stderr)
    if given.left_out:
        print(*left_out, sep="\n", file=sys.stderr)


def _row(family: str, config_class: Any, published: Mapping[str, float], columns: list[str]) -> str:
    """Return the row of a class; raises ValueError if its defaults are those of no known model."""
    from transformers.models.auto import modeling_auto

    found = CHECKPOINT.findall(inspect.getsource(inspect.getmodule(config_class)))  # type: ignore[arg-type]
    if not found:
        raise ValueError("no checkpoint is named")
    name = found[-1]
    size = published.get(name) or _size_in(name)
    architectures = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(
        family
    ) or modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(family)
    if architectures is None:
        raise ValueError("it generates no text")
    architecture = architectures if isinstance(architectures, str) else architectures[0]
    file = {**config_class().to_dict(), "architectures": [architecture], "model_type": family}
    model = read_config(file, name)
    if file.get("sliding_window") and not model.windowed_layers:
        raise ValueError(f"which layers of {name} have a window is in its file only")
    if file.get("sliding_window") and not model.windowed_layers:
        raise ValueError(f"only the file of {name} says which layers have a window")
    billions = (model.parameters() + model.encoder_weights) / 1e9
    if abs(billions / size - 1.0) > TOLERANCE:
        raise ValueError(f"{name} has {size:g} billion weights, and the defaults {billions:.2f}")
    texts = {**_texts(model), "source": f"transformers {_version()}", "published": f"{size:g}"}
    return ",".join(texts.get(column, "") for column in columns)


def _size_in(name: str) -> float:
    sizes = SIZE.findall(name)
    if not sizes:
        raise ValueError(f"{name} does not say how large it is")
    return float(sizes[0])


def _texts(model: ModelDescription) -> dict[str, str]:
    """Return the fields of a model that differ from their defaults, as a row has them."""
    plain = ModelDescription("", 1, 1, 1, 1, 1, 1)
    representable = set(shipped_rows("models.csv")[0])
    texts = {}
    for field in fields(ModelDescription):
        value = getattr(model, field.name)
        if value == getattr(plain, field.name) and field.name != "intermediate":
            continue
        if field.name not in representable:
            raise ValueError(f"a row has no column {field.name}")
        if field.name in PARTS:
            texts[field.name] = " ".join(str(_plain(part)) for part in astuple(value))
        elif isinstance(value, bool):
            texts[field.name] = "yes" if value else ""
        else:
            texts[field.name] = str(value) if value else ""
    return texts


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _version() -> str:
    import transformers

    return ".".join(transformers.__version__.split(".")[:2])


if __name__ == "__main__":
    main()
