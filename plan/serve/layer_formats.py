"""A format per layer: assignments that lose no more than a uniform format, with fewer bytes.

`foretune.plan.describe.sensitivities` has the losses and the search. Here, assignments become
formats that plans know: a mixture of the projections' formats, and one of the MLPs' or experts'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any

from foretune.errors import UsageError
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.engines import ENGINES
from foretune.plan.describe.formats import Formats, base_format, find_format, supported
from foretune.plan.describe.sensitivities import (
    ATTENTION,
    MLP,
    Part,
    Sensitivities,
    part_weights,
    smallest_assignment,
)
from foretune.plan.describe.system import System

MIN_SAVING = 0.01
"""An assignment must save this share of the uniform format's bytes."""
TARGETS = {ATTENTION: "self_attn", MLP: "(mlp|block_sparse_moe|feed_forward)"}
"""Part of a layer -> its modules' path in checkpoints, as a regular expression."""


@dataclass(frozen=True)
class LayerFormats:
    """An assignment of formats to layers.

    Attributes:
        weights, moe: mixtures, as in `Formats`.
        assignment: part -> format.
        loss: what the assignment loses, by the file's losses.
        uniform: the uniform format that loses as much or more.
        uniform_loss: what that loses.
        source: the file of losses.
    """

    weights: str
    moe: str
    assignment: Mapping[Part, str]
    loss: float
    uniform: str
    uniform_loss: float
    source: str

    def is_of(self, formats: Formats) -> bool:
        """Return whether a deployment has these formats."""
        return (formats.weights, formats.moe) == (self.weights, self.moe)

    def __str__(self) -> str:
        described = []
        for module, title in ((ATTENTION, "attention"), (MLP, "MLPs")):
            layers_of: dict[str, list[int]] = {}
            for (layer, of_module), name in sorted(self.assignment.items()):
                if of_module == module:
                    layers_of.setdefault(name, []).append(layer)
            # The format of most layers needs no list of them.
            usual = max(layers_of, key=lambda name: len(layers_of[name]))
            others = [f"{_ranges(n)} in {name}" for name, n in layers_of.items() if name != usual]
            but = f", but layers {' and '.join(others)}" if others else ""
            described.append(f"{title} in {usual}{but}")
        return "; ".join(described)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; ``targets`` are patterns of modules for tools that quantize."""
        targets: dict[str, list[str]] = {}
        for module, path in TARGETS.items():
            layers_of: dict[str, list[str]] = {}
            for (layer, of_module), name in sorted(self.assignment.items()):
                if of_module == module:
                    layers_of.setdefault(name, []).append(str(layer))
            for name, layers in layers_of.items():
                pattern = rf"re:.*layers\.({'|'.join(layers)})\.{path}\..*"
                targets.setdefault(name, []).append(pattern)
        return {
            "loss": self.loss,
            "as_good_as": self.uniform,
            "uniform_loss": self.uniform_loss,
            "targets": targets,
        }


def formats_per_layer(
    model: ModelDescription,
    sensitivities: Sensitivities,
    systems: Sequence[System],
    engine: str,
    as_good_as: str = "",
) -> tuple[list[str], list[LayerFormats]]:
    """Return the uniform formats of a file that can run, and the assignments that beat one in size.

    Each assignment loses no more than its uniform format, and saves `MIN_SAVING` of its bytes. With
    ``as_good_as``, none of both loses more than that uniform format.

    Raises UsageError if the engine cannot run layers of different formats, fewer than two of the
    file's formats run on all systems, or ``as_good_as`` is none of them.
    """
    runnable: Sequence[str] = ENGINES[engine]["mixed_formats"]
    if not runnable:
        able = [name for name, facts in ENGINES.items() if facts["mixed_formats"]]
        raise UsageError(
            f"{ENGINES[engine]['name']} documents no checkpoint with a format per layer: use "
            f"--backend {' or '.join(able)}"
        )
    architectures = {system.device.architecture for system in systems}
    usable = [
        name
        for name in sensitivities.formats
        if base_format(name) in runnable
        and all(supported(name, architecture) == "native" for architecture in architectures)
    ]
    if len(usable) < 2:
        named = ", ".join(sensitivities.formats)
        raise UsageError(
            f"of the formats of {sensitivities.source} ({named}), fewer than two run natively on "
            f"{' and '.join(system.name for system in systems)} with {ENGINES[engine]['name']}"
        )

    # Only what is as good as the given format.
    losses = {name: sensitivities.total(sensitivities.uniform(name)) for name in usable}
    if as_good_as and as_good_as not in usable:
        raise UsageError(
            f"--formats auto:{as_good_as}: {sensitivities.source} has losses of "
            f"{', '.join(usable)} that run on these systems"
        )
    max_loss = losses[as_good_as] if as_good_as else inf
    uniform_formats = [name for name in usable if losses[name] <= max_loss]

    weights = part_weights(model)
    found: dict[tuple[str, str], LayerFormats] = {}
    for uniform in uniform_formats:
        alike = sensitivities.uniform(uniform)
        limit = losses[uniform]
        assignment = smallest_assignment(sensitivities, weights, usable, limit)
        if assignment is None or len(set(assignment.values())) < 2:
            continue
        if _bytes(assignment, weights) > (1.0 - MIN_SAVING) * _bytes(alike, weights):
            continue
        made = LayerFormats(
            weights=_mixture(uniform, assignment, ATTENTION),
            moe=_mixture(uniform, assignment, MLP),
            assignment=assignment,
            loss=sensitivities.total(assignment),
            uniform=uniform,
            uniform_loss=limit,
            source=sensitivities.source,
        )
        found[made.weights, made.moe] = made
    return uniform_formats, list(found.values())


def find_layer_formats(known: Sequence[LayerFormats], formats: Formats) -> LayerFormats | None:
    """Return the assignment that a deployment's formats stand for; None if they are uniform."""
    return next((made for made in known if made.is_of(formats)), None)


def _bytes(assignment: Mapping[Part, str], weights: Mapping[Part, float]) -> float:
    """Return the bytes of an assignment's weights."""
    return sum(find_format(name).bytes * weights[part] for part, name in assignment.items())


def _mixture(uniform: str, assignment: Mapping[Part, str], module: str) -> str:
    """Return the format of a kind of part: a mixture, ``uniform`` in front, whose quality it has.

    All parts of a kind are equally large, so shares count layers.
    """
    names = [name for (_, of_module), name in assignment.items() if of_module == module]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    if set(counts) == {uniform}:
        return uniform
    shares = [
        f"{100 * count / len(names):.1f}%{name}"
        for name, count in counts.items()
        if name != uniform
    ]
    return ":".join([uniform, *shares])


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: 0-3, 7."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    texts = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
    return ", ".join(texts)
