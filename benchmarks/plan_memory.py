"""Planned memory beside what engines report: the weights, and the room for the cache.

Run: ``python benchmarks/plan_memory.py``. ``kv_rooms.json`` holds what engines logged when they
started, with its source. Most rooms are of llm-d-planner (Apache-2.0), measured with vLLM 0.19 on
H100s; the constants of ``plan/cost/memory.py`` were fitted to these. Without a model's own rooms,
the constants are fitted to the others' errors. Nothing was fitted to the weights.

An error above zero leaves too much room: a room that is too large, or weights that are too small.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.plan.cost.memory import (
    GIB,
    activation_bytes,
    engine_bytes,
    expert_multiples,
    weight_bytes,
)
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, checkpoint_formats
from foretune.plan.describe.huggingface import read_config
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.model_catalog import describe_model

ROOMS = Path(__file__).with_name("kv_rooms.json")
FITTED = "llm-d-planner"
"""Source of the rooms to which the constants were fitted."""
NO_ADDRESS = "no address"
"""Begins the source of a figure that was found quoted, without the address of its log."""
STEP_TOKENS = 8192


def main() -> None:
    """Print the table."""
    data = json.loads(ROOMS.read_text(encoding="utf-8"))
    rooms = _planned_rooms(data)
    _print_rooms(rooms)
    print()
    weights_errors = _print_weights(data)
    errors = np.array([*(100 * rooms["off"]), *weights_errors])
    sources = [*rooms["source"], *(row["source"] for row in data["weights"])]
    has_address = np.array([not source.startswith(NO_ADDRESS) for source in sources])
    _print_summary("all", errors)
    _print_summary("with an address", errors[has_address])


def _print_summary(title: str, errors: np.ndarray) -> None:
    mean = np.abs(errors).mean()
    print(
        f"\n{title}: {len(errors)} figures, mean |error| {mean:.2f} %, too much room by at most "
        f"{errors.max():.1f} %"
    )


def _planned_rooms(data: dict[str, Any]) -> pd.DataFrame:
    """Return logged rooms with the planned ones, and both errors as shares of the logged one."""
    rooms = pd.DataFrame(data["rooms"])
    models = {name: _describe(name, data["configs"]) for name in rooms["model"].unique()}
    rooms["planned"] = [_room_gib(row, models[row["model"]]) for row in data["rooms"]]
    rooms["off"] = rooms["planned"] / rooms["room_gib"] - 1.0
    rooms["refitted"] = _without_own_model(rooms)
    return rooms


def _print_rooms(rooms: pd.DataFrame) -> None:
    print("| model | system | engine | ranks | logged, GiB | planned | off, % | refitted, % |")
    print("|---|---|---|---|---|---|---|---|")
    for _, row in rooms.iterrows():
        cells = [
            row["model"].split("/")[1],
            row["system"],
            row["engine"],
            f"tp{row['tp']} pp{row['pp']}",
            f"{row['room_gib']:.2f}",
            f"{row['planned']:.2f}",
            f"{100 * row['off']:+.1f}",
            f"{100 * row['refitted']:+.1f}",
        ]
        print(f"| {' | '.join(cells)} |")

    for is_fitted, part in rooms.groupby(rooms["source"] == FITTED):
        off = 100 * part["off"]
        refitted = 100 * part["refitted"]
        print(
            f"\n{'fitted' if is_fitted else 'others'}: {len(part)} rooms, mean |error| "
            f"{off.abs().mean():.2f} %, most {off.max():+.1f} %; without the model's own rooms "
            f"{refitted.abs().mean():.2f} %, most {refitted.max():+.1f} %"
        )


def _print_weights(data: dict[str, Any]) -> list[float]:
    """Print logged weights of a rank beside planned ones; return the room that is too much, %."""
    print("| model | ranks | format | logged, GiB | planned | too much room, % | source |")
    print("|---|---|---|---|---|---|---|")
    errors = []
    for row in data["weights"]:
        planned_gib = _weights_gib(row)
        error = 100 * (1.0 - planned_gib / row["logged_gib"])
        errors.append(error)
        cells = [
            row["model"].split("/")[1],
            f"tp{row['tp']}",
            row["weights"] or "as published",
            f"{row['logged_gib']:.2f}",
            f"{planned_gib:.2f}",
            f"{error:+.1f}",
            row["source"],
        ]
        print(f"| {' | '.join(cells)} |")
    worst = max(errors)
    mean = float(np.abs(errors).mean())
    print(f"\nweights: {len(errors)}, mean |error| {mean:.2f} %, too much room by {worst:.1f} %")
    return errors


def _weights_gib(row: dict[str, Any]) -> float:
    """Return the planned weights of one rank."""
    architecture = find_system(row["system"]).device.architecture
    described = describe_model(row["model"])
    model = replace(described, expert_multiples=expert_multiples(architecture))
    layout = Layout.from_labels(model, row["tp"], 1, 1, row["tp"], 1)
    named = row["weights"]
    formats = Formats(named, moe=named) if named else checkpoint_formats(model)
    return weight_bytes(model, layout, formats) / GIB


def _describe(name: str, configs: dict[str, Any]) -> ModelDescription:
    return read_config(configs[name], name) if name in configs else describe_model(name)


def _room_gib(row: dict[str, Any], model: ModelDescription) -> float:
    """Return the GiB that a plan leaves to the cache on one rank."""
    layout = Layout.from_labels(model, row["tp"], row["pp"], 1, row["tp"], 1)
    formats = Formats(row["weights"], moe=row["weights"])
    weights = weight_bytes(model, layout, formats) / GIB
    total = find_system(row["system"]).memory_gib
    engine = engine_bytes(layout) / GIB

    # SGLang takes a share of the memory that is free before loading, vLLM one of all memory.
    if row["engine"].startswith("SGLang"):
        return row["share"] * (total - engine) - weights
    step = activation_bytes(model, layout, STEP_TOKENS, row["requests"]) / GIB
    return row["share"] * total - weights - step - engine


def _without_own_model(rooms: pd.DataFrame) -> "pd.Series[float]":
    """Return the errors after moving rooms by the mean error of other models' fitted rooms.

    One rank and several have errors of their own.
    """
    error_gib = rooms["planned"] - rooms["room_gib"]
    has_ranks = rooms["tp"] > 1
    is_fitted = rooms["source"] == FITTED
    moved_gib = []
    for i, row in rooms.iterrows():
        others = is_fitted & (rooms["model"] != row["model"]) & (has_ranks == has_ranks[i])
        moved_gib.append(error_gib[others].mean())
    return (rooms["planned"] - moved_gib) / rooms["room_gib"] - 1.0


if __name__ == "__main__":
    main()
