"""The study behind the boosted model's defaults: prints its table.

Run: ``python benchmarks/hyperparameters.py DATA [--trials 30]``. Optuna's TPE over rounds, depth,
rate, shares and leaf weight; what is minimised is the mean, over four tables of DATA, of the error
on held-out groups relative to the present defaults'. The operator tables are of an L40S; the
convolution space is also one of those that ``benchmarks/predictors.py`` tests. Larger models are
not wanted: rounds end at 400.
"""

import argparse
from pathlib import Path

import numpy as np
import optuna
from machine import heading, markdown
from predictors import MODEL, held_out, operators

from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.features import FeatureSet, family_for
from foretune.models.target.targets import Unit, usable_rows
from foretune.models.trees.boosting import BoostingModel

L40S = "NVIDIA L40S"
ROWS = 15_000
NAMES = ("rounds", "depth", "rate", "rows", "columns", "least_weight")


def main() -> None:
    """Print the best trials and the defaults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--trials", type=int, default=30)
    arguments = parser.parse_args()
    tables = prepare(arguments.data)
    defaults = {name: BoostingModel().get_params()[name] for name in NAMES}
    base = errors(tables, defaults)

    def objective(trial: optuna.Trial) -> float:
        parameters = {
            "rounds": trial.suggest_int("rounds", 100, 400, step=50),
            "depth": trial.suggest_int("depth", 4, 9),
            "rate": trial.suggest_float("rate", 0.03, 0.3, log=True),
            "rows": trial.suggest_float("rows", 0.5, 1.0),
            "columns": trial.suggest_float("columns", 0.3, 1.0),
            "least_weight": trial.suggest_float("least_weight", 1.0, 20.0, log=True),
        }
        found = errors(tables, parameters)
        trial.set_user_attr("errors", found.tolist())
        return float(np.mean(found / base))

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial(defaults)
    study.optimize(objective, n_trials=arguments.trials)
    best = sorted(study.trials, key=lambda t: t.value or np.inf)[:5]
    rows = [["defaults", *map(shown, defaults.values()), *map(percent, base), "1.000"]]
    for trial in best:
        settings = [shown(trial.params[name]) for name in NAMES]
        measured = map(percent, trial.user_attrs["errors"])
        rows.append([f"trial {trial.number}", *settings, *measured, f"{trial.value:.3f}"])
    print(heading("Hyperparameters of the boosted model", local_device("cpu")))
    print(markdown(["", *NAMES, *tables, "relative"], rows))


def prepare(data: Path) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Return per table: training features and values, features and values of held-out groups."""
    gemm = operators(data, "gemm", device=L40S, backend="vllm")
    decode = operators(data, "generation_attention", device=L40S, backend="vllm")
    moe = operators(data, "moe", device=L40S, backend="vllm")
    space = read_runs(data / "spaces" / "convolution_milo__W6600.parquet")
    rng = np.random.default_rng(0)
    cases = {
        "GEMM (n, k)": (gemm, held_out(gemm, ["problem.N", "problem.K"])),
        "decode heads": (decode, held_out(decode, ["problem.heads", "problem.kv_heads"])),
        "MoE models": (moe, held_out(moe, MODEL)),
        "convolution, 10 %": (space, rng.random(len(space)) >= 0.1),
    }
    tables = {}
    for name, (runs, test) in cases.items():
        train = usable_rows("time_ms", runs[~test])
        train = train.sample(min(ROWS, len(train)), random_state=0).reset_index(drop=True)
        held = usable_rows("time_ms", runs[test])
        held = held.sample(min(ROWS, len(held)), random_state=0).reset_index(drop=True)
        features = FeatureSet(family_for(str(train["kernel"][0]), train)).fit(train)
        unit = Unit.fit("time_ms", features, train, np.log(train["time_ms"].to_numpy()))
        values = [np.log(r["time_ms"].to_numpy()) - unit.log(features, r) for r in (train, held)]
        inputs = [features.transform(r).to_numpy() for r in (train, held)]
        tables[name] = (inputs[0], values[0], inputs[1], values[1])
    return tables


def errors(tables: dict[str, tuple[np.ndarray, ...]], parameters: dict[str, float]) -> np.ndarray:
    """Return the mean absolute percentage error on each table's held-out rows."""
    found = []
    for X, y, X_held, y_held in tables.values():
        model = BoostingModel(**parameters).fit(X, y)  # type: ignore[arg-type]
        found.append(np.abs(np.expm1(model.predict(X_held) - y_held)).mean())
    return np.array(found)


def shown(value: float) -> str:
    """Return a setting in three digits."""
    return f"{value:.3g}"


def percent(fraction: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * fraction:.2f} %"


if __name__ == "__main__":
    main()
