"""How much quality each layer loses in each number format, and the formats that lose least.

The quality model is additive: the loss of an assignment is the sum of the losses of its parts, each
measured with that part alone in a format. For weights that are rounded, the linearity theorem says
so (HIGGS: Malinovskii et al., arXiv:2411.17525); NVIDIA's AutoQuantize assigns formats with the
same sum. Any loss does: a divergence, or what a perplexity or a score changes by.

A *part* is the attention or the MLP (or the experts) of a layer: engines fuse the projections of
each, so they must share a format.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from foretune.errors import RunTableError, UsageError
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import find_format
from foretune.plan.describe.user_tables import user_rows

ATTENTION = "attention"
MLP = "mlp"
MODULES = {
    ATTENTION: ATTENTION,
    "self_attn": ATTENTION,
    "attn": ATTENTION,
    MLP: MLP,
    "experts": MLP,
    "ffn": MLP,
}
"""Name in a file -> part of a layer; experts take the place of an MLP."""
COLUMNS = ("layer", "module", "format", "loss")
UNCHANGED = "bf16"
"""The format that loses nothing."""
SOLVER_GAP = 1e-4
"""Relative distance from the best assignment at which the solver may stop."""
SOLVER_S = 20.0
"""Seconds after which it must."""

Part = tuple[int, str]
"""Number of a layer, and its attention or MLP."""


@dataclass(frozen=True)
class Sensitivities:
    """Measured losses, complete: every part has a loss in every format.

    Attributes:
        losses: part -> format -> loss; `UNCHANGED` loses 0.
        source: the file.
    """

    losses: Mapping[Part, Mapping[str, float]]
    source: str

    @property
    def formats(self) -> list[str]:
        """The formats, as in the file, and `UNCHANGED`."""
        return list(next(iter(self.losses.values())))

    def total(self, assignment: Mapping[Part, str]) -> float:
        """Return the loss of an assignment of a format to every part."""
        return sum(self.losses[part][name] for part, name in assignment.items())

    def uniform(self, name: str) -> dict[Part, str]:
        """Return the assignment of one format to all parts."""
        return dict.fromkeys(self.losses, name)


def read_sensitivities(path: str | os.PathLike[str], layers: int) -> Sensitivities:
    """Return the losses in a CSV file with the columns `COLUMNS`, for a model with ``layers``.

    Layers count from 0. Raises RunTableError if the file cannot be read, has an invalid row, or
    lacks a part in a format.
    """
    losses: dict[Part, dict[str, float]] = {}
    for number, row in enumerate(user_rows(path, "sensitivities", COLUMNS), 1):
        part, name, loss = _parse_row(row, f"{path}, row {number}", layers)
        of_part = losses.setdefault(part, {UNCHANGED: 0.0})
        if name in of_part and name != UNCHANGED:
            raise RunTableError(f"{path}, row {number}: {name} of layer {part[0]} is there twice")
        of_part[name] = 0.0 if name == UNCHANGED else loss

    if not losses:
        raise RunTableError(f"{path} has no rows: it needs one per layer, module and format")

    # Every part in every format: else a missing loss would count as none.
    names = list(dict.fromkeys(name for of_part in losses.values() for name in of_part))
    for layer in range(layers):
        for module in (ATTENTION, MLP):
            missing = [name for name in names if name not in losses.get((layer, module), {})]
            if missing:
                raise RunTableError(
                    f"{path} has no loss of the {module} of layer {layer} in {missing[-1]}: it "
                    f"needs all of {layers} layers, from 0, in all of its formats"
                )
    ordered = {part: {name: losses[part][name] for name in names} for part in sorted(losses)}
    return Sensitivities(ordered, str(path))


def part_weights(model: ModelDescription) -> dict[Part, float]:
    """Return the number of weights of each part; layers of a kind have equal shares.

    Raises UsageError for models whose layers are of several kinds.
    """
    counts = model.weights()
    layers = model.layers
    mlps = counts.mlp + counts.shared + counts.experts
    is_uneven = model.without_mlp or model.without_attention or model.linear or model.draft_model
    if is_uneven or len(model.dense_widths) > 1 or (model.is_moe and model.mlp_layers):
        raise UsageError(
            f"{model.name}: its layers differ, so --formats auto cannot plan a format for each"
        )
    attention = counts.attention + counts.key_value + counts.replicated
    weights = {}
    for layer in range(layers):
        weights[layer, ATTENTION] = attention / layers
        weights[layer, MLP] = mlps / layers
    return weights


def smallest_assignment(
    sensitivities: Sensitivities,
    weights: Mapping[Part, float],
    formats: Sequence[str],
    max_loss: float,
) -> dict[Part, str] | None:
    """Return the assignment of formats with the fewest bytes whose losses add up to ``max_loss``.

    None if there is none. It is a knapsack with one choice per part, which HiGHS solves.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import coo_array

    # A variable for each part and format: whether the part has it.
    parts = list(sensitivities.losses)
    n_formats = len(formats)
    n_variables = len(parts) * n_formats
    part_bytes = [weights[part] * find_format(name).bytes for part in parts for name in formats]
    losses = np.array([sensitivities.losses[part][name] for part in parts for name in formats])
    part_of_variable = np.repeat(np.arange(len(parts)), n_formats)
    one_each = coo_array((np.ones(n_variables), (part_of_variable, np.arange(n_variables))))

    found = milp(
        c=np.array(part_bytes) / sum(weights.values()),
        constraints=[
            LinearConstraint(one_each.tocsr(), lb=1, ub=1),
            LinearConstraint(losses[None, :] / max(max_loss, 1e-12), lb=-inf, ub=1.0),
        ],
        integrality=np.ones(n_variables),
        bounds=(0, 1),
        options={"mip_rel_gap": SOLVER_GAP, "time_limit": SOLVER_S},
    )
    if found.x is None:
        return None
    chosen = found.x.reshape(len(parts), n_formats).argmax(axis=1)
    return {part: formats[number] for part, number in zip(parts, chosen, strict=True)}


def _parse_row(row: Mapping[str, str], where: str, layers: int) -> tuple[Part, str, float]:
    """Return the part, the format and the loss of a row; raises RunTableError."""
    try:
        layer = int(row["layer"])
        loss = float(row["loss"])
    except ValueError as error:
        raise RunTableError(f"{where}: layer and loss must be numbers ({error})") from error
    if not 0 <= layer < layers:
        raise RunTableError(f"{where}: the model has layers 0 to {layers - 1}, not {layer}")
    if not isfinite(loss):
        raise RunTableError(f"{where}: loss is {row['loss']}, which is no number")
    module = MODULES.get(row["module"].strip().lower())
    if module is None:
        raise RunTableError(
            f"{where}: module is one of {', '.join(MODULES)}, not {row['module']!r}"
        )
    name = row["format"].strip().lower()
    find_format(name)
    return (layer, module), name, max(loss, 0.0)
