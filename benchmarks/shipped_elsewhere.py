"""Does the shipped predictor of an H100 help a search on another GPU?

    python benchmarks/shipped_elsewhere.py mm__A100.parquet

Products that PyTorch's Inductor timed on another device become problems of triton_gemm. Each list
is searched with and without the shipped predictor; measurements check and correct it.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from machine import markdown

from foretune.datasets.schema import validate
from foretune.device import find_device
from foretune.models.saved.lookup import read_model
from foretune.models.saved.pretrained import SHIPPED
from foretune.search.replay.recorded import recorded_spaces
from foretune.search.replay.replay import prior_from_source, replay

BUDGETS = (1, 2, 4, 8)
FORMATS = {"float16": "fp16", "bfloat16": "bf16"}
FIXED = {"GROUP_M": 8, "SPLIT_K": 1, "PERSISTENT": False}
"""Parameters that Inductor's template does not vary."""
VARIED = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="of Inductor's products, e.g. mm__A100.parquet")
    parser.add_argument(
        "--predictor",
        type=Path,
        help="default: of triton_gemm on an H100",
        default=SHIPPED / "triton_gemm" / "nvidia-h100-80gb",
    )
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(argv)
    runs = as_gemm(pd.read_parquet(options.table), options.problems)
    print(compared(runs, options.predictor, options.repeats))


def as_gemm(table: pd.DataFrame, problems: int) -> pd.DataFrame:
    """Return ``problems`` random products of Inductor's table as runs of triton_gemm.

    triton_gemm multiplies 16-bit matrices, A by rows, B by rows or columns.
    """
    named = table.rename(columns=lambda c: c.removeprefix("problem.").removeprefix("config."))
    named = named[named["mat1_dtype"].isin(FORMATS) & (named["mat1_stride_1"] == 1)]
    named = named[(named["mat2_stride_0"] == 1) | (named["mat2_stride_1"] == 1)]

    runs = pd.DataFrame({"kernel": "triton_gemm", "device": named["device"]}, index=named.index)
    runs = runs.assign(
        status=named["status"],
        time_ms=named["time_ms"],
        **{f"problem.{size}": named[size] for size in "MNK"},
        **{"problem.dtype": named["mat1_dtype"].map(FORMATS).astype(str)},
        **{"problem.layout": np.where(named["mat2_stride_0"] == 1, "nt", "nn")},
        **{"problem.cache": "cold"},
        **{f"config.{knob}": named[knob] for knob in VARIED},
        **{f"config.{knob}": value for knob, value in FIXED.items()},
    )
    device = find_device(str(runs["device"].iloc[0]))
    runs = runs.assign(**{f"device.{name}": value for name, value in device.specs.items()})

    keys = [name for name in runs if name.startswith("problem.")]
    problem = runs.groupby(keys, sort=False).ngroup().to_numpy()
    drawn = np.random.default_rng(0).permutation(problem.max() + 1)[:problems]
    runs = runs[np.isin(problem, drawn)]
    distinct = runs.drop_duplicates([*keys, *runs.filter(like="config.")])
    return validate(distinct.reset_index(drop=True))


def compared(runs: pd.DataFrame, predictor: Path, repeats: int) -> str:
    """Return the share of the best that searches keep, with and without the predictor."""
    guide = read_model(predictor)
    spaces = recorded_spaces(runs, "list")
    rows = []
    for name, source in (("with the shipped predictor", guide), ("without", None)):
        curves = []
        for space in spaces:
            prior = prior_from_source(source, space, 0).prior
            found = replay(space, "surrogate", max(BUDGETS), repeats, 0, prior, 1)
            curves.append(found.curves.mean(axis=0))
        kept = np.array(curves)
        rows.append(
            [name, *(f"{kept[:, b - 1].mean():.3f} / {kept[:, b - 1].min():.3f}" for b in BUDGETS)]
        )
    share = np.array([(space.optimum / space.values).mean() for space in spaces])
    rows.append(["one drawn", f"{share.mean():.3f} / {share.min():.3f}", *["–"] * 3])
    device = str(runs["device"].iloc[0])
    median = int(np.median([len(space) for space in spaces]))
    return (
        f"{device}; {len(spaces)} lists of {median} configurations (median); {repeats} searches of "
        "each; share of the best configuration's speed that is kept after so many measurements, "
        f"mean / worst list.\n\n{markdown(['search', *map(str, BUDGETS)], rows)}"
    )


if __name__ == "__main__":
    main()
