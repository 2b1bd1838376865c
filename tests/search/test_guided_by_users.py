"""Models of users guide searches: fewer evaluations, in the guide's order, and every way in."""

import numpy as np
import optuna
import pytest
import toy_models
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution
from toy_models import BEST, PROBLEM, SPACE, TIMES

import foretune as ft
from foretune.errors import PredictorError, UsageError
from foretune.models.guides.guide import ANY_DEVICE, make_guide
from foretune.search import SurrogateSampler
from foretune.search.encoding import KernelRuns
from foretune.search.factory import make_searcher
from foretune.search.prior import predict_runs, prior_from_predictor
from foretune.space import SearchSpace

GUIDES = {
    "forest": toy_models.forest,
    "pipeline": toy_models.pipeline,
    "regressor": toy_models.regressor,
    "table": lambda: toy_models.by_table,
    "configuration": lambda: toy_models.by_configuration,
}
SEARCHERS = ("surrogate", "tpe", "random")


def evaluations(searcher, prior=None, seeds=range(3)):
    """Return how many configurations are measured until the best one is, on average."""
    needed = []
    for seed in seeds:
        search = make_searcher(searcher, SPACE, seed=seed, prior=prior, problem=PROBLEM)
        for _ in SPACE:
            (number,) = map(SPACE.index, search.ask(1))
            search.tell_values({number: float(TIMES[number])})
            if SPACE[number] == BEST:
                break
        needed.append(len(search.observed))
    return np.mean(needed)


@pytest.fixture(scope="module")
def alone():
    return {searcher: evaluations(searcher) for searcher in SEARCHERS}


@pytest.mark.parametrize("name", GUIDES)
def test_users_guide_needs_fewer_evaluations(name, alone):
    prior = prior_from_predictor(GUIDES[name](), PROBLEM, SPACE, ANY_DEVICE)
    needed = {searcher: evaluations(searcher, prior, range(1)) for searcher in SEARCHERS}
    assert all(needed[s] < alone[s] for s in SEARCHERS), (needed, alone)
    assert max(needed.values()) <= 15


@given(
    order=st.permutations(range(12)),
    unit=st.floats(1e-3, 1e3),
    searcher=st.sampled_from(("surrogate", "random")),
)
def test_users_guide_order_comes_first(order, unit, searcher):
    space = SearchSpace({"a": (1, 2, 3), "b": (1, 2, 4, 8)})
    rank = dict(zip(space, order, strict=True))

    def guide(config):
        return unit * (1 + rank[ft.Configuration(a=config["a"], b=config["b"])])

    prior = prior_from_predictor(guide, ft.Problem(), space, ANY_DEVICE)
    asked = make_searcher(searcher, space, prior=prior).ask(1)
    assert [rank[c] for c in asked] == [0]
    asked += make_searcher(searcher, space, prior=prior).ask(2)[1:]
    assert [rank[c] for c in asked] == [0, 1]


def test_users_guide_predicts_other_problems_row_by_row():
    model = make_guide(lambda rows: rows["M"] * 10.0 + rows["block_m"])
    configs = [SPACE[5], SPACE[9], SPACE[5]]
    problems = [ft.Problem(M=1), ft.Problem(M=2), ft.Problem(M=1)]
    predicted = predict_runs(model, KernelRuns(problems, configs, [{}] * 3))
    expected = [10.0 * p["M"] + c["block_m"] for p, c in zip(problems, configs, strict=True)]
    assert np.allclose(np.exp(predicted.log_mean), expected)
    assert list(predicted.p_valid) == [1.0] * 3


class TestWaysIn:
    """Wherever a predictor is taken, a model of the user's is."""

    def test_run_search(self):
        guided = ft.run_search(
            "surrogate",
            SPACE,
            toy_models.time_ms,
            budget=1,
            predictor=toy_models.pipeline(),
            problem=PROBLEM,
        )
        assert guided.best == BEST
        with pytest.raises(PredictorError, match="no M among block_m"):
            ft.run_search("surrogate", SPACE, toy_models.time_ms, predictor=toy_models.pipeline())
        with pytest.raises(UsageError, match="give its name or its class"):
            ft.run_search(
                make_searcher("random", SPACE), SPACE, toy_models.time_ms, predictor="guess.onnx"
            )

    def test_run_search_with_a_predictor(self, toy_runs, toy_device, matmul):
        predictor = ft.Predictor(parameters={"rounds": 30}).fit(toy_runs)
        problem = matmul.problem(M=384, N=384, K=256)
        space = matmul.space(problem)
        some = SearchSpace.from_configs(space[int(i)] for i in range(0, len(space), 5000))
        found = ft.run_search(
            "exhaustive",
            some,
            lambda config: 1.0,
            budget=1,
            predictor=predictor,
            problem=problem,
            device=toy_device,
        )
        predicted = predictor.predict_space(problem, some, toy_device)
        assert found.best == some[int(np.argmin(predicted["time_ms"] / predicted["p_valid"]))]

    def test_users_guide_in_optuna_study(self):
        space = {n: CategoricalDistribution(v) for n, v in SPACE.parameters.items()}
        sampler = SurrogateSampler(
            seed=0, predictor=toy_models.pipeline(), problem=PROBLEM, search_space=space
        )
        study = optuna.create_study(sampler=sampler)

        def objective(trial):
            config = {n: trial.suggest_categorical(n, d.choices) for n, d in space.items()}
            return toy_models.time_ms(config)

        study.optimize(objective, n_trials=2)
        assert study.best_params == BEST
