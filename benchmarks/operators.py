"""Operators on a GPU that nobody measured: how far off are they, by rule?

    python benchmarks/operators.py ROWS [--only gemm] [--data DATA] [--ship] [--json]

Every measured GPU of AIConfigurator's tables (Apache-2.0; the extra ``llm``) is left out in turn,
with all its engines and formats, and predicted from the other nine. ROWS is a folder of samples of
these tables; missing files are made. DATA holds ``neusight/`` (MIT), for norms, softmax and
elementwise operations.

- roofline: the larger limit at 70 % of peak rates, and a launch.
- nearest: trees learned on the nearest GPU alone, scaled by the rates.
- shipped: trees learned on all other GPUs with their specifications.
- 64 rows: the same, corrected by 64 random rows of the GPU.

Coverage is the share of rows inside the interval, whose width comes from the other GPUs' errors. A
GPU is near if another measured one of its generation has similar specifications. The last lines are
medians over all GPUs, and over the near ones. ``--ship`` writes the shipped models.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import heading, markdown

from foretune.collect import local_device
from foretune.device import Device, find_device
from foretune.plan.cost.kinds import KINDS
from foretune.plan.cost.measured_operators import MeasuredOperators
from foretune.plan.cost.tables import find_tables
from foretune.plan.describe.catalog import find_system
from foretune.plan.operators import shipped_model
from foretune.plan.operators.compact_trees import CompactTrees
from foretune.plan.operators.correction import Correction, nearest_rows
from foretune.plan.operators.operator_features import (
    LAUNCH_MS,
    OperatorFeatures,
    generation_number,
    operator_features,
)
from foretune.plan.operators.shipped_model import (
    NEAR_OCTAVES,
    nearest_systems,
    rates_of,
)

KERNELS = {
    "gemm": 300,
    "attention_prefill": 400,
    "attention_decode": 500,
    "mla_prefill": 400,
    "mla_decode": 400,
    "moe": 150,
    "all_reduce": 200,
    "all_to_all": 200,
    "all_gather": 200,
    "reduce_scatter": 200,
}
"""Kernel -> rows of each GPU, engine and format that are learned from and scored."""
SAMPLED_ROWS = 4000
"""Rows of a format in ROWS."""
ROOFLINE_SHARE = 0.7
SWEEP_ROWS = 64
SCORED_AFTER_SWEEP = 400
"""Rows of a GPU that are scored with a correction."""
TREES = {
    "tree_method": "hist",
    "max_depth": 7,
    "eta": 0.07,
    "subsample": 0.65,
    "colsample_bytree": 0.6,
    "min_child_weight": 4,
    "max_bin": 64,
    "nthread": 1,
    "seed": 0,
}
"""Parameters of XGBoost: those of the house's boosted trees, one level less and fewer columns."""
ROUNDS = 300
LEVEL = 0.9
ROWWISE = {"norm": ("ln",), "softmax": ("softmax",), "elementwise": ("add", "mul", "gelu", "relu")}
"""Kernel -> NeuSight's operators."""
SHIPPED = Path(shipped_model.__file__).parent / shipped_model.FOLDER


@dataclass(frozen=True)
class Table:
    """Measured operators of one kernel on all systems, and their features."""

    kernel: str
    runs: pd.DataFrame
    features: OperatorFeatures

    @property
    def y(self) -> np.ndarray:
        """Log(time / unit) of every row."""
        return np.log(self.runs["time_ms"].to_numpy(dtype=float)) - self.features.log_unit

    @property
    def systems(self) -> dict[str, Device]:
        """Measured systems and their GPUs."""
        return {name: find_system(name).device for name in sorted(self.runs["system"].unique())}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--only", default="", help="kernels, separated by commas")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ship", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    kernels = arguments.only.split(",") if arguments.only else [*KERNELS, *ROWWISE]

    results: dict[str, list[dict[str, Any]]] = {}
    if not arguments.json:
        print(heading("Operators on a GPU that was left out", local_device("cpu")))
    for kernel in kernels:
        if kernel in ROWWISE:
            results[kernel] = score_rowwise(kernel, arguments)
        else:
            table = read_table(kernel, arguments.rows)
            results[kernel] = leave_one_out(table)
            if arguments.ship:
                ship(table, results[kernel])
        if not arguments.json:
            show(kernel, results[kernel])
    if arguments.json:
        print(json.dumps(results))


def show(kernel: str, lines: list[dict[str, Any]]) -> None:
    """Print the table of one kernel."""
    names = ("left out", "near", "rows", *RULES, "coverage", "coverage, 64 rows")
    cells = []
    near_lines = [line for line in lines if line["near"]]
    summaries = [summary(lines, "all")] + ([summary(near_lines, "near")] if near_lines else [])
    for line in [*lines, *summaries]:
        errors = [f"{100 * line[rule]:.1f}" for rule in RULES]
        shares = [f"{100 * line[name]:.0f}" for name in ("coverage", "coverage_sweep")]
        near = {True: "yes", False: "no", None: ""}[line["near"]]
        cells.append([line["system"], near, f"{line['rows']:,}", *errors, *shares])
    print(f"\n{kernel}: median |error|, %\n")
    print(markdown(names, cells), flush=True)


RULES = ("roofline", "nearest", "shipped", "64 rows")


def summary(lines: list[dict[str, Any]], which: str) -> dict[str, Any]:
    """Return the medians over GPUs, and the mean coverage."""
    medians = {rule: float(np.nanmedian([line[rule] for line in lines])) for rule in RULES}
    shares = {
        name: float(np.nanmean([line[name] for line in lines]))
        for name in ("coverage", "coverage_sweep")
    }
    return {
        "system": f"median, {which} GPUs",
        "near": None,
        "rows": sum(line["rows"] for line in lines),
        **medians,
        **shares,
    }


def read_table(kernel: str, folder: Path) -> Table:
    """Return the measured operators of a kernel; samples that are missing are made."""
    parts = []
    for path in sample_files(kernel, folder):
        runs = pd.read_parquet(path)
        of_format = [rows for _, rows in runs.groupby("key", observed=True)]
        parts += [
            rows.sample(min(len(rows), KERNELS[kernel]), random_state=0) for rows in of_format
        ]
    runs = pd.concat(parts, ignore_index=True)
    return Table(kernel=kernel, runs=runs, features=features_of(kernel, runs))


def sample_files(kernel: str, folder: Path) -> Iterator[Path]:
    """Yield a file per system and engine; raises SystemExit without the tables."""
    tables = find_tables()
    if tables is None:
        raise SystemExit("the tables are missing: install the extra llm")
    folder.mkdir(parents=True, exist_ok=True)
    for system in tables.systems:
        for engine in tables.backends(system):
            path = folder / f"{kernel}-{system}-{engine}.parquet"
            if not path.exists():
                rows = tables.rows(kernel, system, engine)
                measured = None if rows is None else MeasuredOperators(kernel, rows, kernel)
                if measured is None or not measured.keys:
                    continue
                runs = measured.runs[measured.runs["time_ms"].notna()]
                of_format = [part for _, part in runs.groupby("key", observed=True)]
                sampled = [p.sample(min(len(p), SAMPLED_ROWS), random_state=0) for p in of_format]
                pd.concat(sampled).assign(system=system, engine=engine).to_parquet(path)
            yield path


def features_of(kernel: str, runs: pd.DataFrame) -> OperatorFeatures:
    """Return the features of measured operators."""
    systems = {name: find_system(name) for name in runs["system"].unique()}
    architecture = {name: generation_number(s.device.architecture) for name, s in systems.items()}
    links = runs["system"].map({name: s.intra_node_gbps for name, s in systems.items()})
    return operator_features(
        kernel,
        problem=columns(runs, "problem."),
        config=columns(runs, "config."),
        device=rates_of(kernel, columns(runs, "device."), links.to_numpy(dtype=float)),
        generation=runs["system"].map(architecture).to_numpy(dtype=float),
        engine=runs["engine"].to_numpy(dtype=str),
    )


def columns(runs: pd.DataFrame, prefix: str) -> dict[str, np.ndarray]:
    """Return the columns with a prefix, by short name: numbers or texts."""
    found = {}
    for name in runs:
        if name.startswith(prefix):
            is_number = runs[name].dtype.kind in "fiub"
            found[name.removeprefix(prefix)] = runs[name].to_numpy(float if is_number else str)
    return found


def fit(X: np.ndarray, y: np.ndarray) -> Any:
    """Return boosted trees."""
    import xgboost

    data = xgboost.QuantileDMatrix(X, y, max_bin=TREES["max_bin"], nthread=1)
    return xgboost.train(TREES, data, num_boost_round=ROUNDS)


def leave_one_out(table: Table) -> list[dict[str, Any]]:
    """Return the errors on each GPU, predicted from the others."""
    X = table.features.matrix
    y = table.y
    log_ms = y + table.features.log_unit
    of_system = table.runs["system"].to_numpy(dtype=str)
    predicted = np.zeros(len(y))
    from_nearest = np.zeros(len(y))
    octaves: dict[str, float] = {}
    for name, device in table.systems.items():
        left_out = of_system == name
        others = {other: gpu for other, gpu in table.systems.items() if other != name}
        nearest = nearest_systems(device, others)[0]
        octaves[name] = nearest.octaves
        predicted[left_out] = fit(X[~left_out], y[~left_out]).inplace_predict(X[left_out])
        of_nearest = of_system == nearest.name
        alone = fit(X[of_nearest], y[of_nearest])
        from_nearest[left_out] = alone.inplace_predict(X[left_out])

    error = predicted - y
    limits_ms = table.features.limits_ms.max(axis=1)
    roofline = np.log(LAUNCH_MS + limits_ms / ROOFLINE_SHARE) - log_ms
    lines = []
    for name in table.systems:
        left_out = of_system == name
        near = octaves[name] <= NEAR_OCTAVES
        width = half_width(error, of_system, octaves, near, without=name)
        swept = sweep(table, np.flatnonzero(left_out), predicted)
        lines.append(
            {
                "system": name,
                "near": near,
                "rows": int(left_out.sum()),
                "roofline": median_error(roofline[left_out]),
                "nearest": median_error((from_nearest - y)[left_out]),
                "shipped": median_error(error[left_out]),
                "coverage": float((np.abs(error[left_out]) <= width).mean()),
                "half_width": width,
                **swept,
            }
        )
    widths = {
        "near": half_width(error, of_system, octaves, near=True),
        "far": half_width(error, of_system, octaves, near=False),
    }
    return [{**line, "widths": widths} for line in lines]


def half_width(
    error: np.ndarray,
    of_system: np.ndarray,
    octaves: Mapping[str, float],
    near: bool,
    without: str = "",
) -> float:
    """Return the half width that holds for the errors of the near GPUs, or of the far ones.

    It is the mean over GPUs of each one's quantile: a GPU with many rows must not count for more.
    Without any near GPU, the far ones count.
    """
    of_kind = [name for name in octaves if (octaves[name] <= NEAR_OCTAVES) == near]
    used = [name for name in of_kind if name != without] or [n for n in octaves if n != without]
    quantiles = [np.quantile(np.abs(error[of_system == name]), LEVEL) for name in used]
    return float(np.mean(quantiles))


def sweep(table: Table, rows: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Return the errors on a GPU with `SWEEP_ROWS` of its rows known."""
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(rows)
    known = shuffled[:SWEEP_ROWS]
    scored = shuffled[SWEEP_ROWS:][:SCORED_AFTER_SWEEP]
    coordinates = KINDS[table.kernel].coordinates(table.runs)
    kinds = table.runs["key"].astype(str) + " " + table.runs["engine"].astype(str)
    groups = np.unique(kinds.to_numpy(dtype=str), return_inverse=True)[1]
    ratio = table.y - predicted

    inside = []
    errors = []
    for row in scored:
        of = known[nearest_rows(coordinates[known], groups[known], coordinates[row], groups[row])]
        correction = Correction(coordinates[of], groups[of], ratio[of])
        corrected = correction.at(coordinates[row], int(groups[row]))
        errors.append(corrected.log_ratio - ratio[row])
        inside.append(abs(errors[-1]) <= corrected.half_width)
    return {"64 rows": median_error(np.array(errors)), "coverage_sweep": float(np.mean(inside))}


def median_error(log_error: np.ndarray) -> float:
    """Return the median of |predicted / measured - 1|."""
    return float(np.median(np.abs(np.expm1(log_error))))


def ship(table: Table, lines: list[dict[str, Any]]) -> None:
    """Write the model of a kernel and its part of the card."""
    SHIPPED.mkdir(exist_ok=True)
    trees = CompactTrees.from_booster(fit(table.features.matrix, table.y))
    buffer = BytesIO()
    np.savez_compressed(buffer, **trees.to_arrays())  # type: ignore[arg-type]
    (SHIPPED / f"{table.kernel}.npz").write_bytes(buffer.getvalue())
    keys = table.runs["key"].astype(str).str.split("/").str[0]
    entry = {
        "columns": list(table.features.names),
        "rows": len(table.runs),
        "systems": list(table.systems),
        "formats": sorted(set(keys) - {""}),
        "half_width": {name: round(width, 4) for name, width in lines[0]["widths"].items()},
        "median_error_left_out": {line["system"]: round(line["shipped"], 4) for line in lines},
    }
    systems = {name: device.name for name, device in table.systems.items()}
    write_card(table.kernel, entry, systems)


def write_card(kernel: str, entry: dict[str, Any], systems: dict[str, str]) -> None:
    """Add a kernel to the card of the shipped models."""
    path = SHIPPED / shipped_model.CARD
    card = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    card["source"] = (
        "AIConfigurator's measured operators, package aiconfigurator-core 0.12 (Apache-2.0, "
        "https://github.com/ai-dynamo/aiconfigurator); norms, softmax and elementwise operations: "
        "NeuSight (MIT, https://github.com/sitar-lab/NeuSight)"
    )
    card["made_by"] = "benchmarks/operators.py --ship"
    card["systems"] = card.get("systems", {}) | systems
    card["models"] = card.get("models", {}) | {kernel: entry}
    path.write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def score_rowwise(kernel: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the errors of a law for rowwise kernels on GPUs of NeuSight's tables.

    Its two numbers are the time of a launch and the share of the bandwidth that is reached.
    """
    if arguments.data is None:
        raise SystemExit(f"{kernel} needs --data")
    runs = rowwise_runs(kernel, arguments.data / "neusight")
    devices = sorted(runs["device"].unique())
    lines = []
    for device in devices:
        left_out = (runs["device"] == device).to_numpy()
        launch_ms, share = rowwise_law(runs[~left_out])
        test = runs[left_out]
        log_ms = np.log(test["ms"].to_numpy())
        error = np.log(launch_ms + test["memory_ms"].to_numpy() / share) - log_ms
        roofline = np.log(LAUNCH_MS + test["memory_ms"].to_numpy() / ROOFLINE_SHARE) - log_ms
        lines.append(
            {
                "system": device,
                "near": False,
                "rows": int(left_out.sum()),
                "roofline": median_error(roofline),
                "nearest": float("nan"),
                "shipped": median_error(error),
                "64 rows": float("nan"),
                "coverage_sweep": float("nan"),
                "errors": float(np.quantile(np.abs(error), LEVEL)),
            }
        )
    for line in lines:
        others = [other for other in lines if other is not line]
        width = float(np.mean([other["errors"] for other in others]))
        test = runs[runs["device"] == line["system"]]
        launch_ms, share = rowwise_law(runs[runs["device"] != line["system"]])
        error = np.log((launch_ms + test["memory_ms"] / share) / test["ms"])
        line["coverage"] = float((np.abs(error) <= width).mean())
    if arguments.ship:
        launch_ms, share = rowwise_law(runs)
        width = round(float(np.mean([line["errors"] for line in lines])), 4)
        entry = {
            "launch_ms": round(launch_ms, 5),
            "bandwidth_share": round(share, 4),
            "rows": len(runs),
            "systems": devices,
            "half_width": {"near": width, "far": width},
            "median_error_left_out": {line["system"]: round(line["shipped"], 4) for line in lines},
        }
        write_card(kernel, entry, {name: name for name in devices})
    return lines


def rowwise_runs(kernel: str, folder: Path) -> pd.DataFrame:
    """Return NeuSight's rows of a kernel: device, milliseconds, and the roofline's milliseconds."""
    parts = []
    for name in ROWWISE[kernel]:
        table = pd.read_parquet(folder / f"{name}.parquet")
        operands = 3.0 if name in ("add", "mul") else 2.0
        gbps = table["Device"].map(
            {n: find_device(n).specs["memory_gbps"] for n in table["Device"].unique()}
        )
        moved = 4.0 * operands * table["B"].astype(float) * table["H"].astype(float)
        parts.append(
            pd.DataFrame(
                {"device": table["Device"], "ms": table["Latency"], "memory_ms": moved / gbps / 1e6}
            )
        )
    return pd.concat(parts, ignore_index=True)


def rowwise_law(runs: pd.DataFrame) -> tuple[float, float]:
    """Return the launch and the share of the bandwidth that fit best in log time."""
    log_ms = np.log(runs["ms"].to_numpy())
    memory_ms = runs["memory_ms"].to_numpy()
    launches = np.geomspace(0.001, 0.05, 40)
    shares = np.linspace(0.3, 1.2, 46)
    errors = [
        (np.abs(np.log(launch + memory_ms / share) - log_ms).mean(), launch, share)
        for launch in launches
        for share in shares
    ]
    _, launch_ms, share = min(errors)
    return float(launch_ms), float(share)


if __name__ == "__main__":
    main()
