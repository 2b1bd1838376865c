"""Tune a tile whose largest sizes do not fit."""

import optuna
import optunahub


def objective(trial: optuna.Trial) -> float:
    """Return the milliseconds of a made-up kernel."""
    rows = trial.suggest_categorical("rows", [16, 32, 64, 128, 256])
    columns = trial.suggest_categorical("columns", [16, 32, 64, 128, 256])
    stages = trial.suggest_int("stages", 1, 5)
    trial.set_constraint("shared memory", (rows + columns) * stages - 1000)
    return 1 + 4096 / (rows * columns) + abs(rows - columns) / 64 + 1 / stages


if __name__ == "__main__":
    module = optunahub.load_module("samplers/foretune")
    study = optuna.create_study(sampler=module.SurrogateSampler(seed=0))
    study.optimize(objective, n_trials=25)
    print(study.best_params, study.best_value)
