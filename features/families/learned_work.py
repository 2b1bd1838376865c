"""The inputs of a law for a kernel of which nothing is known, found in its columns.

A roofline is a sum (or a maximum) of powers of a problem's sizes. For an unknown kernel the
exponents can be learned (`foretune.models.power_laws`). Their inputs are logarithms:

- the sizes of the problem, and positive numbers of the configuration, in octaves;
- if several devices were measured, their rates, so that one law holds for all of them;
- an indicator per text of the problem or the configuration (a format, a library);
- if two columns are the edges of a tile, the tiles and their whole waves over the device's cores.

No name is known, so `LearnedWork.find_tile` tries pairs of columns: a pair tiles two sizes if waves
of such tiles explain held-out problems better. The edges may be inside a text, as in ``128x64``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any, Self

import numpy as np

from foretune.features.arrays import Rows
from foretune.features.families.tiles import cores_of, map_texts

RATE_COLUMNS = ("device.memory_gbps", "device.fp32_gflops", "device.cores")
"""Specs of devices that a law may depend on."""
MAX_TEXTS = 60
"""Columns with more texts are names of rows, not configuration."""
MIN_SIZE = 0.5
"""Smaller sizes, such as 0, count as this."""
MIN_EDGE = 4.0
MAX_EDGE = 1024.0
"""Edges of tiles are between these."""
MIN_TILED_SIZE = 32.0
"""Sizes that never reach this are not tiled."""
MAX_TILED_SIZES = 5
MAX_EDGES = 6
"""With more sizes or edges there are too many pairs to try."""
MAX_TILE_ROWS = 600
"""Rows on which pairs are tried."""
TILE_FOLDS = 3
TILE_GAIN = 0.97
"""A tile is taken if it lowers the error on held-out problems to this share."""
N_WAVE_INPUTS = 3
RIDGE = 1e-2
"""Strength of the pull towards zero exponents while pairs are tried."""
_NUMBER = re.compile(r"(?<![\w.])\d+|(?<=[_x])\d+(?=[_x]|$)")
"""A number in a text that may be an edge: it stands alone, or between ``_`` and ``x``."""
_INSIDE_TEXT = "#"
"""``config.kernel#1`` is the second number inside the texts of ``config.kernel``."""


@dataclass(frozen=True)
class LearnedWork:
    """The inputs of a learned law.

    Attributes:
        sizes: columns that count in octaves -> their mean in training, which replaces gaps.
        numbers: other numeric columns -> their mean and deviation in training.
        texts: text column -> its values in training.
        tile: column of a size -> column of the edge that tiles it; empty, or two of them.
    """

    sizes: Mapping[str, float]
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tile: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Rows) -> Self | None:
        """Return the inputs that vary in ``rows``, without a tile; None if no size does."""
        sizes: dict[str, float] = {}
        numbers: dict[str, tuple[float, float]] = {}
        texts: dict[str, list[str]] = {}
        for column in rows.columns:
            if not column.startswith(("problem.", "config.")) and column not in RATE_COLUMNS:
                continue
            values = rows[column]
            if values.dtype.kind == "U":
                distinct = sorted(set(values.tolist()))
                if 1 < len(distinct) <= MAX_TEXTS:
                    texts[column] = distinct
                continue
            known = values[np.isfinite(values)]
            if not len(known) or known.min() == known.max():
                continue
            is_size = known.min() >= 0.0 and column.startswith("problem.")
            if is_size or known.min() > 0.0:
                sizes[column] = float(_octaves(known).mean())
            else:
                numbers[column] = (float(known.mean()), float(known.std()))

        work = cls(sizes, numbers, texts)
        return work if work.problem_sizes else None

    @property
    def problem_sizes(self) -> list[str]:
        """The columns of the problem's sizes."""
        return [column for column in self.sizes if column.startswith("problem.")]

    @property
    def n_waves(self) -> int:
        """The number of the last inputs that tell of the tile's waves."""
        return N_WAVE_INPUTS if self.tile else 0

    def inputs(self, rows: Rows) -> np.ndarray:
        """Return the inputs of the law (rows, inputs); a gap counts as typical.

        Columns that ``rows`` lack count as typical, too. With a tile, the last three inputs are
        log2 of tiles and of whole waves, and how full the last wave is.
        """
        n_rows = len(rows)
        columns = []
        for column, mean in self.sizes.items():
            octaves = _octaves(rows[column]) if column in rows else np.full(n_rows, np.nan)
            columns.append(np.nan_to_num(octaves - mean, nan=0.0))
        for column, (mean, deviation) in self.numbers.items():
            values = rows[column] if column in rows else np.full(n_rows, np.nan)
            columns.append(np.nan_to_num((values - mean) / deviation, nan=0.0))
        for column, texts in self.texts.items():
            if column in rows:
                columns += [mask.astype(float) for mask in rows.text_masks(column, texts)]
            else:
                columns += [np.zeros(n_rows)] * len(texts)
        if self.tile:
            columns += list(_wave_inputs(rows, self.tile).T)
        return np.column_stack(columns)

    def octaves_of_sizes(self, rows: Rows) -> np.ndarray:
        """Return log2 of the problem's sizes (rows, sizes); NaN where unknown."""
        return np.column_stack([_octaves(rows[column]) for column in self.problem_sizes])

    def find_tile(self, rows: Rows, log_target: np.ndarray, problems: np.ndarray) -> Self:
        """Return the same inputs with the tile that explains held-out problems best, if one does.

        ``problems`` is the problem of each row. A linear law on logarithms judges the pairs.
        """
        rng = np.random.default_rng(0)
        sampled = rng.permutation(len(rows))[:MAX_TILE_ROWS]
        rows = rows.take(sampled)
        y = log_target[sampled]
        fold_of_problem = rng.permutation(int(problems.max()) + 1) % TILE_FOLDS
        folds = fold_of_problem[problems[sampled]]

        # Only a clear gain counts: many pairs are tried, and one may fit by chance.
        plain_inputs = self.inputs(rows)
        least_error = TILE_GAIN * _held_out_error(plain_inputs, y, folds)
        best = self
        for tile in self._possible_tiles(rows):
            waves = _wave_inputs(rows, tile)
            if not np.isfinite(waves).all():
                continue
            error = _held_out_error(np.hstack([plain_inputs, waves]), y, folds)
            if error < least_error:
                least_error = error
                best = replace(self, tile=tile)
        return best

    def _possible_tiles(self, rows: Rows) -> Iterator[dict[str, str]]:
        """Yield every assignment of two columns of edges to two sizes."""
        sizes = [c for c in self.problem_sizes if np.nanmax(rows[c]) >= MIN_TILED_SIZE]
        edges = _edge_columns(rows)
        if len(sizes) > MAX_TILED_SIZES or len(edges) > MAX_EDGES:
            return
        for two_sizes in combinations(sizes, 2):
            for two_edges in permutations(edges, 2):
                yield dict(zip(two_sizes, two_edges, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `from_json`."""
        return {
            "sizes": dict(self.sizes),
            "numbers": {column: list(pair) for column, pair in self.numbers.items()},
            "texts": {column: list(texts) for column, texts in self.texts.items()},
            "tile": dict(self.tile),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the inputs that `to_json` wrote."""
        numbers = {column: (pair[0], pair[1]) for column, pair in data["numbers"].items()}
        return cls(dict(data["sizes"]), numbers, dict(data["texts"]), dict(data["tile"]))


def _octaves(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.log2(np.maximum(values, MIN_SIZE)))


def _edge_columns(rows: Rows) -> list[str]:
    """Return the columns of the configuration, or of numbers in its texts, that may be edges."""
    columns = []
    for column in rows.columns:
        if not column.startswith("config."):
            continue
        if rows[column].dtype.kind == "U":
            texts = {str(text) for text in rows[column]}
            counts = {len(_NUMBER.findall(text)) for text in texts}
            if len(counts) == 1:
                columns += [f"{column}{_INSIDE_TEXT}{i}" for i in range(counts.pop())]
        else:
            columns.append(column)
    return [column for column in columns if _may_be_edge(_edges(rows, column))]


def _may_be_edge(values: np.ndarray) -> bool:
    return bool((values >= MIN_EDGE).all() and (values <= MAX_EDGE).all())


def _edges(rows: Rows, column: str) -> np.ndarray:
    """Return the numbers of a column of edges; NaN where a text lacks the number."""
    column, _, number = column.partition(_INSIDE_TEXT)
    if column not in rows:
        return np.full(len(rows), np.nan)
    if not number:
        values = rows[column]
        return values if values.dtype.kind != "U" else np.full(len(rows), np.nan)

    def edge(text: str) -> float:
        found = _NUMBER.findall(text)
        return float(found[int(number)]) if len(found) > int(number) else np.nan

    return np.asarray(map_texts(rows[column].astype(str), edge))


def _wave_inputs(rows: Rows, tile: Mapping[str, str]) -> np.ndarray:
    tiles = np.ones(len(rows))
    for size, edge in tile.items():
        tiles = tiles * np.ceil(np.maximum(rows[size], MIN_SIZE) / _edges(rows, edge))
    waves = tiles / cores_of(rows.group("device"))
    whole_waves = np.ceil(waves)
    columns = [np.log2(tiles), np.log2(whole_waves), waves / whole_waves]
    return np.nan_to_num(np.column_stack(columns), nan=0.0)


def _held_out_error(inputs: np.ndarray, y: np.ndarray, folds: np.ndarray) -> float:
    """Return the mean absolute error of a linear law on the folds that it did not see."""
    A = np.column_stack([np.ones(len(inputs)), inputs])
    errors = np.zeros(len(y))
    for fold in np.unique(folds):
        is_out = folds == fold
        known = A[~is_out]
        gram = known.T @ known + RIDGE * np.eye(A.shape[1])
        errors[is_out] = A[is_out] @ np.linalg.solve(gram, known.T @ y[~is_out]) - y[is_out]
    return float(np.abs(errors).mean())
