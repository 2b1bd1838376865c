"""AITER's tuned tables: the kernel for a number of tokens and a layer's weights.

ROCm's engines look kernels up in tables of the library AITER (``aiter/configs/*tuned*.csv``, read
by ``aiter.ops.gemm_op_a8w8`` and ``aiter.fused_moe``). A row is for a number of compute units,
sizes and formats. A layer without rows gets AITER's default. Here it gets the vote of similar
layers, as in `foretune.plan.engine_files.tuned_layers`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd

from foretune.datasets.importers.files import read_csv
from foretune.errors import StoreError
from foretune.plan.engine_files.tuned_layers import (
    DISTANCE_OFFSET,
    MAX_NEIGHBORS,
    OTHER_DEVICE_DISTANCE,
)
from foretune.problem import Problem
from foretune.values import Value

CATEGORY_COLUMNS = (
    "q_dtype_w", "act_type", "dtype", "q_dtype_a", "q_type", "use_g1u1", "doweight_stage1",
)  # fmt: skip
"""Columns that define a layer, besides its sizes."""
RESULT_COLUMNS = {"us", "us1", "us2", "err1", "err2", "errRatio", "err_ratio", "tflops", "bw"}
"""Columns with a winner's time and error; all others are its choice."""
ARCHITECTURES = {80: "gfx942", 228: "gfx942", 304: "gfx942", 128: "gfx950", 256: "gfx950"}
"""Compute units -> architecture, for versions of the tables without that column."""


@dataclass(frozen=True)
class TableKind:
    """One of AITER's tables.

    Attributes:
        name: of its file; files for single models contain it.
        variable: environment variable that names a replacement file.
        tokens: column with the number of tokens.
        sizes: columns with a layer's sizes -> distance between layers that differ by a factor of
            two.
    """

    name: str
    variable: str
    tokens: str
    sizes: Mapping[str, float]


_LINEAR = {"N": 0.5, "K": 0.5}
_EXPERTS = {"model_dim": 0.5, "inter_dim": 0.5, "expert": 1.0, "topk": 1.0}
TABLE_KINDS = {
    kind.name: kind
    for kind in (
        TableKind("a8w8_blockscale_tuned_gemm", "AITER_CONFIG_GEMM_A8W8_BLOCKSCALE", "M", _LINEAR),
        TableKind("a8w8_blockscale_bpreshuffle_tuned_gemm",
                  "AITER_CONFIG_GEMM_A8W8_BLOCKSCALE_BPRESHUFFLE", "M", _LINEAR),
        TableKind("a8w8_bpreshuffle_tuned_gemm", "AITER_CONFIG_GEMM_A8W8_BPRESHUFFLE", "M",
                  _LINEAR),
        TableKind("a8w8_tuned_gemm", "AITER_CONFIG_GEMM_A8W8", "M", _LINEAR),
        TableKind("tuned_fmoe", "AITER_CONFIG_FMOE", "token", _EXPERTS),
    )
}  # fmt: skip


@dataclass(frozen=True)
class KernelChoice:
    """The kernel that similar layers' rows vote for.

    ``values`` are the columns that name it, ``agreement`` its share of the votes, ``nearest`` the
    most similar layer.
    """

    values: Mapping[str, object]
    agreement: float
    nearest: Problem


class TunedTable:
    """The rows of one table, for all devices.

    A layer is a `Problem` with the sizes and formats in the table. If several rows are for the same
    call, the fastest counts. Raises StoreError if a column is missing.
    """

    def __init__(self, kind: TableKind, rows: pd.DataFrame) -> None:
        if missing := {kind.tokens, *kind.sizes, "cu_num", "us"} - set(rows.columns):
            raise StoreError(f"table {kind.name} lacks the column {', '.join(sorted(missing))}")
        self.kind = kind
        self._layer_columns = [c for c in (*kind.sizes, *CATEGORY_COLUMNS) if c in rows.columns]
        self._device_columns = [c for c in ("gfx", "cu_num") if c in rows.columns]
        keys = [*self._device_columns, kind.tokens, *self._layer_columns]
        rows = rows.sort_values("us", kind="stable").drop_duplicates(keys).sort_index()
        self.rows = rows.reset_index(drop=True)
        self.kernel_columns = [c for c in rows.columns if c not in {*keys, *RESULT_COLUMNS}]
        self._layers = [self.layer_of(row) for row in self.rows.to_dict("records")]
        sizes = self.rows[[kind.tokens, *kind.sizes]].to_numpy(dtype=float)
        self._sizes = np.log2(np.maximum(sizes, 1))
        self._units = self.rows["cu_num"].to_numpy(dtype=int)
        if "gfx" in rows.columns:
            self._architectures = self.rows["gfx"].astype(str).to_numpy()
        else:
            self._architectures = np.array([ARCHITECTURES.get(n, "") for n in self._units])
        self.architectures = {str(name) for name in self._architectures} - {""}
        self._kernels = list(
            self.rows[self.kernel_columns].fillna("").itertuples(index=False, name=None)
        )
        self._size_divisors = self._find_size_divisors()

    @classmethod
    def read(cls, folder: Path, kind: TableKind) -> Self | None:
        """Return the table of an installed AITER or its unpacked wheel; None if it has none.

        Like AITER, it merges the rows for single models (``model_configs``).
        """
        paths = [
            extra
            for path in sorted(folder.rglob(f"configs/{kind.name}.csv"))
            for extra in (path, *sorted((path.parent / "model_configs").glob(f"*{kind.name}*.csv")))
            if "untuned" not in extra.name
        ]
        try:
            tables = [read_csv(path) for path in paths]
        except (OSError, ValueError) as e:
            raise StoreError(f"cannot read {kind.name} in {folder}: {e}") from e
        alike = [table for table in tables if list(table.columns) == list(tables[0].columns)]
        return cls(kind, pd.concat(alike, ignore_index=True)) if alike else None

    def layer_of(self, row: Mapping[str, Value]) -> Problem:
        """Return the layer of a row, reduced to the columns of this table."""
        return Problem({name: row[name] for name in self._layer_columns})

    def tuned(self, architecture: str, units: int) -> dict[Problem, list[int]]:
        """Return the layers tuned on a device, with their numbers of tokens."""
        found: dict[Problem, list[int]] = defaultdict(list)
        for i in np.flatnonzero(self._architecture_mask(architecture) & (self._units == units)):
            found[self._layers[i]].append(int(self.rows[self.kind.tokens].iat[i]))
        return dict(found)

    def common_token_counts(self, architecture: str) -> list[int]:
        """Return the numbers of tokens that most layers of an architecture are tuned for.

        AITER rounds other numbers up to these.
        """
        counts = self.rows[self._architecture_mask(architecture)][self.kind.tokens].value_counts()
        return sorted(int(n) for n in counts.index[counts >= counts.max() / 2])

    def guess(
        self,
        layer: Problem,
        tokens: int,
        architecture: str,
        units: int,
        without: Iterable[Problem] = (),
    ) -> KernelChoice | None:
        """Return the kernel that similar layers vote for; None if no layer is similar.

        A kernel gets votes only if the layer's sizes are divisible by the powers of two that divide
        all sizes it was chosen for. Other sizes may make the kernel fail and the engine stop.
        Layers in ``without`` have no vote; ``units`` are the GPU's compute units.
        """
        excluded_layers = set(without)
        of_kind = self._categories(layer)
        fits = {k for k, steps in self._size_divisors.items() if _is_divisible(layer, steps)}
        may = self._architecture_mask(architecture) & np.array([
            kernel in fits and self._categories(other) == of_kind and other not in excluded_layers
            for kernel, other in zip(self._kernels, self._layers, strict=True)
        ], dtype=bool)  # fmt: skip
        sizes = np.log2([tokens, *(int(layer[name]) for name in self.kind.sizes)])
        away = (self._sizes - sizes) * [1.0, *self.kind.sizes.values()]
        distance = np.linalg.norm(away, axis=1) + OTHER_DEVICE_DISTANCE * (self._units != units)
        distance[~may] = np.inf
        nearest = np.argsort(distance, kind="stable")[:MAX_NEIGHBORS]
        nearest = nearest[np.isfinite(distance[nearest])]
        if not len(nearest):
            return None
        votes: dict[tuple[object, ...], float] = defaultdict(float)
        for i in nearest:
            votes[self._kernels[i]] += float((distance[i] + DISTANCE_OFFSET) ** -2.0)
        best = max(votes, key=votes.__getitem__)
        values = dict(zip(self.kernel_columns, best, strict=True))
        return KernelChoice(values, votes[best] / sum(votes.values()), self._layers[nearest[0]])

    def with_guesses(
        self, architecture: str, units: int, guesses: Mapping[tuple[Problem, int], KernelChoice]
    ) -> pd.DataFrame:
        """Return a device's rows, plus one row without a time per guess.

        The table is complete, because AITER drops rows as duplicates when it reads several files.
        """
        known = self.rows[self._architecture_mask(architecture) & (self._units == units)]
        device: dict[str, Value] = {"gfx": architecture, "cu_num": units}
        new = [
            {
                **{c: device[c] for c in self._device_columns},
                **layer,
                self.kind.tokens: n,
                **choice.values,
            }
            for (layer, n), choice in guesses.items()
        ]
        if not new:
            return known
        return pd.concat([known, pd.DataFrame(new, columns=self.rows.columns)], ignore_index=True)

    def _architecture_mask(self, architecture: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.asarray(self._architectures == architecture, dtype=bool)

    def _categories(self, layer: Problem) -> tuple[object, ...]:
        return tuple(layer.get(name) for name in self._layer_columns if name not in self.kind.sizes)

    def _find_size_divisors(self) -> dict[tuple[object, ...], dict[str, int]]:
        """Return the largest power of two that divides all sizes each kernel was chosen for."""
        steps: dict[tuple[object, ...], dict[str, int]] = {}
        for kernel, layer in zip(self._kernels, self._layers, strict=True):
            known = steps.setdefault(kernel, dict.fromkeys(self.kind.sizes, 0))
            for name, step in known.items():
                common = math.gcd(step, int(layer[name]))
                known[name] = common & -common
        for known in steps.values():  # numbers of experts are not tiled
            for name in {"expert", "topk"} & set(known):
                known[name] = 1
        return steps


def _is_divisible(layer: Problem, steps: Mapping[str, int]) -> bool:
    return all(int(layer[name]) % step == 0 for name, step in steps.items())
