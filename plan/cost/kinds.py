"""Kinds of operators: the columns that identify a measurement, and the cost model of a kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd

from foretune.family import Cells, Cost, Family
from foretune.plan.cost.latent_attention import (
    latent_decode_cost,
    latent_prefill_cost,
    latent_projection_cost,
)
from foretune.plan.cost.recurrent import RECURRENT, recurrent_cost, to_recurrent_rows
from foretune.plan.cost.sparse_attention import MODULES, sparse_attention_cost, to_module_rows
from foretune.plan.describe import shipped_rows
from foretune.registry import load, registered

LOG_OFFSETS = {"problem.prefix_len": 64.0, "problem.window": 64.0}
"""Added to sizes that may be 0, so that small differences do not matter."""
TILE = 128
MIN_TILED_SIZE = 8 * TILE
"""Smallest size that is rounded up to tiles."""
UNGATED_NAME = "nongated"
"""Marks implementations whose experts have no gate."""
MIN_LATENCY_NAME = "min_latency"
"""Marks implementations that TensorRT-LLM runs only on request (``enable_min_latency``, off by
default)."""
FORMAT_COLUMNS = ("config.format", "config.kv_format")
"""Columns of number formats."""


@dataclass(frozen=True)
class OperatorKind:
    """The columns that distinguish the operators of one kernel -> default if a table lacks them.

    Texts in ``exact`` must match; the most informative is first.
    """

    axes: Mapping[str, float]  # sizes
    exact: Mapping[str, str]
    load_axis: str = ""  # axis along which times should not fall, if any
    tiled: bool = False  # whether kernels compute whole tiles along the load axis
    splits: bool = False  # whether work can be split into equal parts along the load axis
    strict: bool = False  # whether measurements with other ``exact`` values are unrelated work

    def coordinates(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the coordinates of operators in octaves (rows, axes)."""
        offsets = [LOG_OFFSETS.get(column, 0.0) for column in self.axes]
        return np.log2(self._sizes(rows).to_numpy() + offsets)

    def keys(self, rows: pd.DataFrame) -> "pd.Series[str]":
        """Return the joined text of the exact columns, with defaults."""
        texts = [column for _, column in self._texts(rows).items()]
        if not texts:
            return pd.Series("", index=rows.index, dtype=object)
        return reduce(lambda left, right: left + "/" + right, texts)

    def fill_missing(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with all columns of the kind, with defaults."""
        return rows.assign(**self._sizes(rows), **self._texts(rows))

    def _sizes(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.reindex(columns=list(self.axes)).astype(float).fillna(dict(self.axes))

    def _texts(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.reindex(columns=list(self.exact)).astype(object).fillna(dict(self.exact))

    def round_up_to_tiles(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return ``rows`` with large sizes rounded up to whole tiles.

        Tables have sizes that fill tiles, and sizes just above them. A predictor would treat sizes
        in between like the latter, which are the slowest.
        """
        if not self.tiled:
            return rows
        size = rows[self.load_axis].to_numpy(dtype=float)
        rounded = TILE * np.ceil(size / TILE)
        return rows.assign(**{self.load_axis: np.where(size < MIN_TILED_SIZE, size, rounded)})


def _defaults(text: str) -> dict[str, str]:
    """Parse columns like ``heads head_dim=128 config.tp``: column -> default, empty if none."""
    parts = (part.partition("=") for part in text.split())
    return {name if "." in name else f"problem.{name}": default for name, _, default in parts}


KINDS = {
    row["kernel"]: OperatorKind(
        axes={name: float(default or 1) for name, default in _defaults(row["axes"]).items()},
        exact=_defaults(row["exact"]),
        load_axis=row["load_axis"] and f"problem.{row['load_axis']}",
        **dict.fromkeys(row["properties"].split(), True),
    )
    for row in shipped_rows("kinds.csv", "foretune.plan.cost")
}
"""Kernel -> its kind; other kernels use the roofline."""


class PlanFamily(Family):
    """A kernel that only plans know; ``cost_of`` returns the cost of a launch."""

    def __init__(self, name: str, cost_of: Callable[[Cells, Cells], Cost]) -> None:
        self.name = name
        self._cost_of = cost_of

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Return the work of one launch."""
        return self._cost_of(problem, config)


_COSTS = {
    "mla_prefill": latent_prefill_cost,
    "mla_decode": latent_decode_cost,
    "mla_bmm": latent_projection_cost,
    **dict.fromkeys(RECURRENT, recurrent_cost),
    **dict.fromkeys(MODULES, sparse_attention_cost),
}
"""Kernels that only plans know -> cost of a launch."""


def with_expert_kind(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ``rows`` with ``config.experts``: gated (three matrices) or plain (two).

    Engines' tables mark this only in the implementation's name. Implementations that engines do not
    run by default (`MIN_LATENCY_NAME`) are dropped.
    """
    if "config.implementation" not in rows:
        return rows
    names = rows["config.implementation"].astype(str)
    by_default = ~names.str.contains(MIN_LATENCY_NAME)
    plain = names.str.contains(UNGATED_NAME)
    return rows.assign(**{"config.experts": np.where(plain, "plain", "gated")})[by_default]


CONVERTERS = {
    "moe": with_expert_kind,
    **dict.fromkeys(RECURRENT, to_recurrent_rows),
    **dict.fromkeys(MODULES, to_module_rows),
}
"""Kernel -> function that completes an engine's table."""


def work_share(rows: pd.DataFrame) -> np.ndarray:
    """Return each operator's work relative to its family's cost.

    It is two thirds for experts without a gate. Their predictors are better without this factor,
    because they learn the difference.
    """
    if "config.experts" not in rows:
        return np.ones(len(rows))
    plain = rows["config.experts"] == "plain"
    return 1.0 - np.asarray(plain, dtype=float) / 3.0


def family_of(kernel: str) -> Family | None:
    """Return the family with the cost model of ``kernel``, or None."""
    if kernel in _COSTS:
        return PlanFamily(kernel, _COSTS[kernel])
    return load("families", kernel)() if kernel in registered("families") else None
