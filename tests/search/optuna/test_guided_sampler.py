"""Samplers of Optuna with a predictor: it proposes first, and what cannot be used is an error."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.samplers import TPESampler

from foretune.errors import PredictorError, UsageError
from foretune.search import GuidedSampler, SurrogateSampler

TELLING = ("micro_m", "micro_n", "pack_b", "vector_bits", "threads")
PROBLEM = {"M": 384, "N": 384, "K": 256, "dtype": "fp32"}


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def told(toy_measurements, toy_device):
    """A predictor of the toy runs, quickly trained, and the parameters as choices."""
    from foretune.datasets import from_measurements
    from foretune.models import Predictor

    runs = from_measurements(toy_measurements, toy_device)
    columns = [c for c in runs if c.startswith("config.")]
    space = {}
    for c in columns:
        name = c.removeprefix("config.")
        values = [v.item() if hasattr(v, "item") else v for v in sorted(runs[c].unique())]
        few = 3 if name in TELLING else 1  # all are predicted: some hundred are enough
        space[name] = CategoricalDistribution(values[:few])
    parameters = {"rounds": 30}
    return Predictor(targets=("time_ms",), parameters=parameters).fit(runs), space


@pytest.fixture(scope="module")
def law(matmul, toy_law, toy_device):
    problem = matmul.problem(**PROBLEM)

    def objective(space):
        def run(trial):
            config = {n: trial.suggest_categorical(n, d.choices) for n, d in space.items()}
            if toy_law.fails(config):
                raise optuna.TrialPruned
            return toy_law.time_ms(matmul, problem, config, toy_device)

        return run

    return objective


def search(sampler, objective, n):
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=n)
    return study


def test_with_a_predictor_the_first_trials_are_good(told, law):
    predictor, space = told
    named = {"predictor": predictor, "problem": PROBLEM, "search_space": space}
    guide = SurrogateSampler(seed=0, **named)
    first = search(guide, law(space), 1).best_value
    alone = search(SurrogateSampler(seed=0), law(space), 5)
    assert first < alone.best_value
    mixed = GuidedSampler(TPESampler(seed=0), SurrogateSampler(seed=0, **named))
    study = search(mixed, law(space), 14)
    assert study.trials[0].value == first
    assert study.best_value <= first


def test_what_cannot_be_used_is_an_error(told, tmp_path):
    predictor, _ = told
    with pytest.raises(UsageError, match="needs the problem"):
        SurrogateSampler(predictor=predictor)
    with pytest.raises(PredictorError, match="holds no predictor"):
        SurrogateSampler(predictor=tmp_path, problem=PROBLEM)
    with pytest.raises(UsageError, match="cannot be used here"):
        SurrogateSampler(predictor="auto", problem=PROBLEM)
    assert SurrogateSampler(predictor="none")


def test_parameters_that_it_did_not_learn_are_named(told):
    sampler = SurrogateSampler(predictor=told[0], problem=PROBLEM)
    with pytest.raises(PredictorError):
        search(sampler, lambda trial: trial.suggest_float("x", 1, 2), 3)


def test_one_objective(told):
    predictor, space = told
    sampler = SurrogateSampler(predictor=predictor, problem=PROBLEM, search_space=space)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    with pytest.raises(UsageError, match="one objective"):
        study.ask(space)
    assert np.isfinite(predictor.log_spread())
