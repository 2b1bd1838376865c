"""How often guesses of `foretune engine-config aiter` are what AITER's own tuner chose.

    python benchmarks/aiter_tables.py AITER_FOLDER

The folder is that of the package ``aiter``, installed or an unpacked wheel. Each row is guessed
from the rows of all other layers; a layer's own rows on other devices have no vote. A guess is
right if it names the same kernel, with the same splits. Beside it: the kernel of the nearest row,
and the one that is chosen most often for the same device, formats and number of tokens in other
layers. Rules and weights are those for files of vLLM and SGLang; nothing was chosen on these rows.
Calls that get no guess count as wrong. No row says how much slower another kernel is.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from machine import heading, markdown

from foretune.collect import local_device
from foretune.plan.engine_files import aiter
from foretune.plan.engine_files.aiter import ARCHITECTURES, TunedTable
from foretune.plan.engine_files.aiter_tables import read_tables


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("aiter", type=Path)
    folder = parser.parse_args(argv).aiter
    rows = [line(name, table) for name, table in read_tables([folder]).items()]
    print(heading("Tables of AITER", local_device("cpu")))
    columns = (
        "table",
        "layers",
        "rows",
        "kernels",
        "guess",
        "nearest row",
        "commonest",
        "no guess",
    )
    print(markdown(columns, rows))


def line(name: str, table: TunedTable) -> list[str]:
    calls = list(calls_of(table))
    chosen = [
        tuple(table.rows[c].fillna("").iat[i] for c in table.kernel_columns) for i, *_ in calls
    ]
    right: dict[str, list[bool]] = {"guess": [], "nearest row": [], "commonest": []}
    silent = 0
    for (_, layer, tokens, units), kernel in zip(calls, chosen, strict=True):
        voted = guessed(table, layer, tokens, units, aiter.MAX_NEIGHBORS)
        silent += voted is None
        right["guess"].append(voted == kernel)
        right["nearest row"].append(guessed(table, layer, tokens, units, 1) == kernel)
        alike = (tokens, units, formats(table, layer))
        others = Counter(k for (_, other, n, on), k in zip(calls, chosen, strict=True)
                         if (n, on, formats(table, other)) == alike and other != layer)  # fmt: skip
        right["commonest"].append(bool(others) and others.most_common(1)[0][0] == kernel)
    layers = len({layer for _, layer, *_ in calls})
    shares = [f"{np.mean(right[way]):.3f}" for way in ("guess", "nearest row", "commonest")]
    return [name, str(layers), str(len(calls)), str(len(set(chosen))), *shares, str(silent)]


def calls_of(table: TunedTable):
    """Yield the number of each row, its layer, tokens and compute units."""
    for units in sorted(set(table.rows.cu_num)):
        mine = table.rows[table.rows.cu_num == units]
        for i, record in zip(mine.index, mine.to_dict("records"), strict=True):
            yield i, table.layer_of(record), int(record[table.kind.tokens]), int(units)


def formats(table: TunedTable, layer) -> tuple[object, ...]:
    return tuple(value for name, value in layer.items() if name not in table.kind.sizes)


def guessed(table: TunedTable, layer, tokens: int, units: int, voters: int):
    """Return the kernel that ``voters`` rows agree on."""
    kept, aiter.MAX_NEIGHBORS = aiter.MAX_NEIGHBORS, voters
    try:
        found = table.guess(layer, tokens, ARCHITECTURES[units], units, without=[layer])
    finally:
        aiter.MAX_NEIGHBORS = kept
    return found and tuple(found.values[c] for c in table.kernel_columns)


if __name__ == "__main__":
    main()
