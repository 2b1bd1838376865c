"""The surrogate as a sampler: Optuna's own tests of samplers, then what ours promises."""

import math
import pickle
import subprocess
import sys

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import RandomSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState

from foretune.search import SurrogateSampler
from foretune.search.optuna.dimensions import Dimensions


class TestConformance(BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase):
    """Few trials each, so that the process is asked early."""

    @pytest.fixture
    def sampler(self):
        return lambda: SurrogateSampler(seed=0, n_startup_trials=2)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def run(objective, n_trials=25, seed=0, catch=(), n_jobs=1, sampler=None, **study):
    sampler = sampler or SurrogateSampler(seed=seed)
    study = optuna.create_study(sampler=sampler, **study)
    study.optimize(objective, n_trials=n_trials, catch=catch, n_jobs=n_jobs)
    return study


def test_sampler_space_of_more_than_64_bits():
    """NumPy's product of 256 to the eighth is 0."""
    study = run(lambda trial: sum(trial.suggest_int(f"x{i}", 1, 256) for i in range(8)), 3)
    assert len(study.trials) == 3


def bowl(trial):
    """Zero at (0.3, -0.6)."""
    x = trial.suggest_float("x", -1, 1)
    y = trial.suggest_float("y", -1, 1)
    return (x - 0.3) ** 2 + (y + 0.6) ** 2


def kernel_ms(trial):
    """Best, one millisecond, at a tile of 64, 4 warps, 3 stages, in order ``b``."""
    tile = trial.suggest_categorical("tile", [16, 32, 48, 64, 128, 256])
    warps = trial.suggest_categorical("warps", [1, 2, 4, 8])
    stages = trial.suggest_int("stages", 1, 6)
    order = trial.suggest_categorical("order", ["a", "b", None])
    slow = 1.4 ** abs(math.log2(tile / 64)) * 1.2 ** abs(math.log2(warps / 4) + stages - 3)
    return slow * (1.0 if order == "b" else 1.3) * (1.2 if tile == 48 else 1.0)


def mixed(trial):
    """Least, 1, on the branch ``wide`` at rate 1e-3, width 24, margin 0.5."""
    rate = trial.suggest_float("rate", 1e-6, 1, log=True)
    width = trial.suggest_int("width", 8, 64, step=8)
    count = trial.suggest_int("count", 1, 1000, log=True)
    loss = 1 + math.log10(rate / 1e-3) ** 2 + (width - 24) ** 2 / 64 + math.log10(count / 30) ** 2
    if trial.suggest_categorical("branch", ["narrow", "wide"]) == "narrow":
        return loss + 1
    return loss + (trial.suggest_float("margin", 0, 1, step=0.25) - 0.5) ** 2


def test_sampler_is_far_better_than_random():
    assert run(bowl).best_value < 5e-3
    assert run(bowl, sampler=RandomSampler(seed=0)).best_value > 1e-2
    ours = [run(kernel_ms, 30, seed).best_value for seed in range(3)]
    random = [run(kernel_ms, 30, sampler=RandomSampler(seed=s)).best_value for s in range(3)]
    assert np.median(ours) == 1.0
    assert np.median(random) > 1.1


def test_sampler_mixed_space_with_a_branch():
    study = run(mixed, 40)
    assert study.best_value < 1.2
    assert study.best_params["branch"] == "wide"
    assert study.best_params["width"] == 24
    distributions = study.best_trial.distributions
    assert study.sampler.infer_relative_search_space(study, study.trials[-1]).keys() == (
        distributions.keys() - {"margin"}
    )


def test_sampler_maximizes():
    assert run(lambda trial: -bowl(trial), direction="maximize").best_value > -5e-3
    assert run(lambda t: 1 / kernel_ms(t), 40, direction="maximize").best_value == 1.0


def test_sampler_same_seed_same_trials():
    trials = [[t.params for t in run(mixed, 20, seed).trials] for seed in (1, 1, 2)]
    assert trials[0] == trials[1]
    assert trials[0] != trials[2]


def test_sampler_satisfies_constraints():
    """The best without the constraint is at 0.3; the best that keeps it, 0.04, at 0.1."""

    def objective(trial):
        value = bowl(trial)
        trial.set_constraint("over", trial.params["x"] - 0.1)
        return value

    study = run(objective, 30)
    assert study.best_params["x"] <= 0.1
    assert study.best_value == pytest.approx(0.04, abs=0.005)
    broken = [t.params["x"] > 0.1 for t in study.trials]
    assert sum(broken[15:]) <= 7


def test_sampler_approaches_constraints_that_no_trial_satisfies():
    def objective(trial):
        value = bowl(trial)
        trial.set_constraint("x", 3 - trial.params["x"])
        return value

    study = run(objective, 20)
    assert np.median([t.params["x"] for t in study.trials[-5:]]) > 0.8


def test_sampler_avoids_failures():
    def objective(trial):
        value = kernel_ms(trial)
        if trial.params["tile"] >= 128:
            raise MemoryError
        return value

    study = run(objective, 50, catch=(MemoryError,))
    failed = [t.state == TrialState.FAIL for t in study.trials]
    assert any(failed)
    assert sum(failed[20:]) <= 5
    assert study.best_value == 1.0
    distinct = {tuple(t.params.values()) for t in study.trials}
    assert len(distinct) >= 49  # the first two may be alike: no parameter is known yet


def test_sampler_goes_on_if_all_trials_fail():
    def objective(trial):
        bowl(trial)
        raise RuntimeError

    study = run(objective, 15, catch=(RuntimeError,))
    assert len({t.params["x"] for t in study.trials}) == 15


def test_sampler_goes_on_after_one_success():
    def objective(trial):
        value = bowl(trial)
        if trial.number:
            raise RuntimeError
        return value

    assert len(run(objective, 15, catch=(RuntimeError,)).trials) == 15


@pytest.mark.parametrize("value", [0.0, 1.0, 1e308, math.inf, -math.inf])
def test_sampler_constant_objective(value):
    def objective(trial):
        bowl(trial)
        return value

    assert len({tuple(t.params.values()) for t in run(objective, 15).trials}) == 15


def test_sampler_infinite_values_are_failures():
    def objective(trial):
        value = bowl(trial)
        return (
            value if trial.params["x"] < 0.5 else [math.inf, sys.float_info.max][trial.number % 2]
        )

    assert run(objective).best_value < 5e-3


def test_sampler_repeats_only_in_an_exhausted_space():
    def objective(trial):
        a = trial.suggest_int("a", 0, 3)
        b = trial.suggest_categorical("b", [None, "x", 2])
        trial.suggest_float("one", 1.5, 1.5)
        return a + (b == "x")

    study = run(objective, 20)
    first = [tuple(t.params.values()) for t in study.trials[:12]]
    assert len(set(first)) == 12
    assert len(study.trials) == 20


def test_sampler_repeats_rows_with_conditional_parameters():
    def objective(trial):
        if trial.suggest_categorical("method", ["a", "b"]) == "a":
            return trial.suggest_float("a", 1, 2)
        return trial.suggest_float("b", 0, 2)

    study = run(objective, 30)
    methods = [t.params["method"] for t in study.trials]
    assert methods[10:].count("b") > methods[10:].count("a")


def test_sampler_counts_enqueued_trials_as_initial_design():
    study = optuna.create_study(sampler=SurrogateSampler(seed=0, n_startup_trials=4))
    for x in (-0.9, 0.2, 0.4, 0.9):
        study.enqueue_trial({"x": x, "y": -0.6})
    study.optimize(bowl, n_trials=6)
    assert study.best_value < 0.05
    assert min(abs(t.params["x"] - 0.3) for t in study.trials[4:]) < 0.2


def test_sampler_initial_design_is_spread():
    def apart(sampler):
        study = run(bowl, 8, sampler=sampler)
        places = np.array([list(t.params.values()) for t in study.trials])
        distances = np.linalg.norm(places[:, None] - places, axis=2)
        return distances[np.triu_indices(8, 1)].min()

    assert apart(SurrogateSampler(seed=0)) > 2 * apart(RandomSampler(seed=0))


def test_sampler_in_threads():
    study = run(kernel_ms, 40, n_jobs=2)
    assert len(study.trials) == 40
    assert len({tuple(t.params.values()) for t in study.trials}) >= 38
    assert study.best_value <= 1.2


def test_sampler_does_not_repeat_running_trials():
    study = optuna.create_study(sampler=SurrogateSampler(seed=0))
    study.optimize(kernel_ms, n_trials=10)
    trials = [study.ask() for _ in range(8)]
    for trial in trials:
        kernel_ms(trial)
    assert len({tuple(t.params.values()) for t in trials}) == 8


def test_sampler_workers_share_a_storage(tmp_path):
    def worker(seed):
        sampler = SurrogateSampler(seed=seed, n_startup_trials=3)
        return optuna.create_study(
            storage=f"sqlite:///{tmp_path / 'study.db'}",
            study_name="shared",
            sampler=sampler,
            load_if_exists=True,
        )

    worker(0).optimize(kernel_ms, n_trials=4)
    workers = [worker(1), worker(2)]
    for _ in range(3):
        trials = [(study, study.ask()) for study in workers]
        for study, trial in trials:  # both run at the same time
            study.tell(trial, kernel_ms(trial))
    trials = worker(3).trials
    assert len({tuple(t.params.values()) for t in trials[1:]}) == 9
    assert min(t.value for t in trials[4:]) < min(t.value for t in trials[:4])


def test_sampler_continues_when_unpickled(tmp_path):
    """Pickled, as Optuna's manual recommends: the same suggestions as if it had gone on here."""
    study = run(bowl, 12)
    copy = pickle.loads(pickle.dumps(study))
    for s in (study, copy):
        s.optimize(bowl, n_trials=3)
    assert [t.params for t in copy.trials] == [t.params for t in study.trials]


@pytest.mark.parametrize(
    "pruner", [optuna.pruners.MedianPruner(n_startup_trials=5), optuna.pruners.HyperbandPruner()]
)
def test_sampler_with_pruners(pruner):
    def objective(trial):
        value = bowl(trial)
        for step in range(9):
            trial.report(value + 1 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    study = run(objective, 50, pruner=pruner)
    assert any(t.state == TrialState.PRUNED for t in study.trials)
    assert study.best_value < 0.02


def test_sampler_several_objectives():
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        y = trial.suggest_float("y", 0, 1)
        return x + y**2, 1 - x + y**2

    study = run(objective, 30, directions=["minimize", "minimize"])
    front = sorted(t.params["x"] for t in study.best_trials if t.params["y"] < 0.2)
    assert len(front) >= 10
    assert front[0] < 0.15
    assert front[-1] > 0.85


def test_sampler_more_trials_than_are_fitted_to(monkeypatch):
    monkeypatch.setattr("foretune.search.surrogate_model.MAX_FITTED", 10)
    assert run(bowl, 25).best_value < 0.02


SPACE = {
    "rate": FloatDistribution(1e-5, 1, log=True),
    "share": FloatDistribution(-0.3, 0.4, step=0.1),
    "tile": IntDistribution(16, 256, step=16),
    "count": IntDistribution(1, 100, log=True),
    "size": CategoricalDistribution([64, 16, 32, 48]),
    "word": CategoricalDistribution(["x", None, True, 2]),
}


def test_dimensions_rows_are_configurations():
    dimensions = Dimensions(SPACE)
    rng = np.random.default_rng(0)
    rows = dimensions.random(200, rng)
    rows = np.vstack([rows, dimensions.neighbors(rows[:3], 200, rng)])
    assert np.array_equal(dimensions.from_cube(dimensions.to_cube(rows)), rows)
    points = dimensions.points(rows)
    assert points.min() >= 0
    assert points.max() <= 1
    for row in rows:
        for name, value in dimensions.params(row).items():
            assert SPACE[name]._contains(SPACE[name].to_internal_repr(value))
    assert list(dimensions.sizes) == [math.inf, 8, 16, 100, 4, 4]


def test_dimensions_order_numeric_choices():
    dimensions = Dimensions({"size": SPACE["size"]})
    size, alignment = dimensions.points(dimensions.grid()).T
    assert size[[1, 2, 0]] == pytest.approx([0, 0.5, 1])
    assert alignment == pytest.approx([1, 0, 0.5, 0])
    words = Dimensions({"word": SPACE["word"]})
    apart = np.linalg.norm(np.diff(words.points(words.grid()), axis=0), axis=1)
    assert apart == pytest.approx([math.sqrt(2)] * 3)


def test_dimensions_neighbors_differ():
    dimensions = Dimensions(SPACE)
    rng = np.random.default_rng(0)
    row = dimensions.random(1, rng)
    near = dimensions.neighbors(row, 500, rng) != row
    assert near.any(axis=0).all()
    assert near.any(axis=1).mean() > 0.6


def test_import_search_does_not_import_optuna():
    code = "import sys, foretune.search; print('optuna' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
