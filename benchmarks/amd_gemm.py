"""The law of products on AMD's GPUs: fitted to the tunings that AMD ships, and its errors.

    python benchmarks/amd_gemm.py DATA [--ship]

DATA holds ``amd/gemm_aiter.parquet`` (ROCm/aiter, MIT): the best kernel's time per shape and format
on MI300X and MI355X. Half of the weight shapes (N, K) are held out. Beside the law stands the
roofline at 70 % of the peak rates. ``--ship`` writes the coefficients (fitted to all shapes).
"""

import argparse
import csv
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from machine import heading, markdown
from scipy.optimize import minimize

from foretune.collect import local_device
from foretune.datasets.runs import with_specs_of
from foretune.device import Device, find_device
from foretune.features.roofline import row_limits_ms
from foretune.plan.cost import product_law
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.product_law import TILE, ProductLaw

MIN_ROWS = 200
"""A format with fewer rows gets no law."""
FEW_ROWS = 64
"""Rows of the activations up to which a product counts as small."""
ROOFLINE_SHARE = 0.7
LAUNCH_MS = 0.002
STARTS = (
    {"launch_ms": 4e-3, "memory_share": 0.8, "compute_share": 0.55, "ramp": 1.0, "depth_ms": 3e-4},
    {"launch_ms": 3e-3, "memory_share": 0.5, "compute_share": 0.4, "ramp": 0.1, "depth_ms": 1e-3},
)
"""Where the fit starts; the better end counts."""
MAX_SHARE = 0.95
MAX_STEPS = 1500
SHIPPED = Path(product_law.__file__).parent / "product_laws.csv"
COMMENT = """\
# Products on GPUs without engines' tables: see plan/cost/product_law.py. Fitted by
# benchmarks/amd_gemm.py to the tuned kernels of ROCm/aiter e4048607 (MIT).
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--ship", action="store_true")
    arguments = parser.parse_args()
    runs = pd.read_parquet(arguments.data / "amd" / "gemm_aiter.parquet")
    runs = runs[runs["config.out_dtype"] != "float32"]

    cells = []
    shipped = []
    for (name, number_format), rows in runs.groupby(["device", "config.format"], sort=True):
        device = find_device(str(name))
        shapes = [f"problem.{axis}" for axis in "MNK"]
        fastest = rows.sort_values("time_ms").drop_duplicates(shapes).reset_index(drop=True)
        if len(fastest) < MIN_ROWS:
            continue
        held_out = pd.util.hash_pandas_object(fastest[shapes[1:]], index=False).to_numpy() % 2 == 0
        law = fit(fastest[~held_out].reset_index(drop=True), device)
        test = fastest[held_out].reset_index(drop=True)
        few = (test["problem.M"] <= FEW_ROWS).to_numpy()
        errors = [median_error(times(law, test, device), test, mask) for mask in (few, ~few)]
        roof_ms = LAUNCH_MS + limits(test, device).max(axis=1) / ROOFLINE_SHARE
        roof = [median_error(roof_ms, test, mask) for mask in (few, ~few)]
        texts = [f"{100 * e:.1f}" for e in (*errors, *roof)]
        cells.append([str(name), str(number_format), f"{len(fastest):,}", *texts])
        final = fit(fastest, device)
        numbers = {key: f"{value:.4g}" for key, value in asdict(final).items()}
        described = {"architecture": device.architecture, "format": number_format}
        shipped.append({**described, **numbers, "rows": len(fastest)})

    print(heading("Products on AMD's GPUs: weight shapes held out", local_device("cpu")))
    print(f"median |error|, %; few: up to {FEW_ROWS} rows\n")
    names = ("GPU", "format", "rows", "law, few", "law, more", "roofline, few", "roofline, more")
    print(markdown(names, cells))
    if arguments.ship:
        with SHIPPED.open("w", encoding="utf-8", newline="") as file:
            file.write(COMMENT)
            writer = csv.DictWriter(file, list(shipped[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(shipped)


def fit(rows: pd.DataFrame, device: Device) -> ProductLaw:
    """Return the law with the least mean |log error|; each octave of M counts equally."""
    octave = np.floor(np.log2(rows["problem.M"]))
    weight = 1.0 / octave.groupby(octave).transform("size").to_numpy()
    log_ms = np.log(rows["time_ms"].to_numpy(dtype=float))
    limits_ms = limits(rows, device)

    def loss(logs: np.ndarray) -> float:
        error = np.abs(np.log(_ms(_law(logs), rows, limits_ms, device)) - log_ms)
        return float((weight * error).sum())

    options = {"maxiter": MAX_STEPS, "maxfev": MAX_STEPS, "adaptive": True}
    ends = [
        minimize(loss, np.log(list(start.values())), method="Nelder-Mead", options=options)
        for start in STARTS
    ]
    return _law(min(ends, key=lambda end: end.fun).x)


def _law(logs: np.ndarray) -> ProductLaw:
    launch_ms, memory_share, compute_share, ramp, depth_ms = np.exp(np.clip(logs, -25.0, 5.0))
    return ProductLaw(
        launch_ms=float(launch_ms),
        memory_share=float(min(memory_share, MAX_SHARE)),
        compute_share=float(min(compute_share, MAX_SHARE)),
        ramp=float(ramp),
        depth_ms=float(depth_ms),
    )


def limits(rows: pd.DataFrame, device: Device) -> np.ndarray:
    """Return compute and memory time at peak rates."""
    return row_limits_ms(family_of("gemm"), with_specs_of(rows, device))


def times(law: ProductLaw, rows: pd.DataFrame, device: Device) -> np.ndarray:
    """Return the milliseconds of products by the law."""
    return _ms(law, rows, limits(rows, device), device)


def _ms(law: ProductLaw, rows: pd.DataFrame, limits_ms: np.ndarray, device: Device) -> np.ndarray:
    m, n, k = (rows[f"problem.{axis}"].to_numpy(dtype=float) for axis in "MNK")
    tiles = np.ceil(m / TILE) * np.ceil(n / TILE)
    return law.ms(limits_ms, tiles=tiles, depth=k, cores=device.specs["cores"])


def median_error(ms: np.ndarray, rows: pd.DataFrame, mask: np.ndarray) -> float:
    """Return the median of |predicted / measured - 1| of some rows."""
    ratio = ms / rows["time_ms"].to_numpy(dtype=float)
    return float(np.median(np.abs(ratio[mask] - 1.0)))


if __name__ == "__main__":
    main()
