"""Policies: what they learn, propose and keep; the searcher that asks one."""

import copy
import math
import sys

import numpy as np
import pytest
from toy_kernel import DEVICE, FakeRunner, Toy

from foretune.collect.collection import plan_configurations
from foretune.datasets import from_measurements
from foretune.device import Device
from foretune.errors import (
    MissingExtra,
    PredictorError,
    UsageError,
)
from foretune.models import Predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search import Prior, make_searcher
from foretune.search.policies.decisions import ConfigurationDecisions
from foretune.search.policies.tasks import Task, predicted_tasks, prior_task
from foretune.space import SearchSpace

torch = pytest.importorskip("torch")
from foretune.search.policies.agent import Agent, TrainingSchedule, reinforce
from foretune.search.policies.policy import Policy
from foretune.search.policies.searcher import PolicySearcher

SHORT = TrainingSchedule(updates=60, episodes=64, rate=1e-2)
SPACE = SearchSpace(
    {"tile_x": (1, 2, 4, 8, 16), "tile_y": (1, 2, 4, 8, 16), "pack": (False, True)},
    ["tile_x * tile_y <= 64", "not pack or tile_x > 1"],
)


def task(n, space=SPACE):
    """The larger ``n``, the larger the best tile; tiles are best square, packing pays."""
    columns = {k: v.astype(float) for k, v in space.columns().items()}
    wanted = np.log2(n) / 4
    log_ms = 0.5 * abs(np.log2(columns["tile_x"]) - wanted)
    log_ms += 0.5 * abs(np.log2(columns["tile_y"] / columns["tile_x"]))
    log_ms += 0.3 * (1 - columns["pack"])
    return prior_task(space, Prior(log_ms, 0.1, np.ones(len(space))), Problem(n=n))


def best(task):
    return task.space[int(np.argmax(task.reward(np.arange(len(task.space)))))]


SIZES = (16, 64, 256, 1024, 4096, 16, 2**9, 2**11)
UNSEEN = task(2**8)


@pytest.fixture(scope="module")
def policy():
    return Policy.train([task(n) for n in SIZES], schedule=SHORT)


def test_policy_learns_what_depends_on_problem(policy):
    assert policy.context.names == ("problem.n",)
    for n in (16, 256, 4096):
        ((proposed, p),) = policy.propose(task(n), 1)
        assert proposed == best(task(n))
        assert p > 0.3


def test_policy_proposes_for_unseen_problem(policy):
    unseen = task(2**7)
    (first, _), *_ = policy.propose(unseen, 5)
    rewards = unseen.reward(np.arange(len(SPACE)))
    assert unseen.reward(np.array([SPACE.index(first)]))[0] >= np.sort(rewards)[-3]


def test_proposals_are_legal_different_and_likeliest_first(policy):
    proposals = policy.propose(UNSEEN, 1000)
    assert {c for c, _ in proposals} == set(SPACE)
    assert len(proposals) == len(SPACE)
    chances = [p for _, p in proposals]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1, abs=1e-4)


def test_policy_space_with_unknown_values(policy):
    other = SearchSpace({**SPACE.parameters, "tile_x": (4, 32)}, ["tile_x * tile_y <= 64"])
    proposals = policy.propose(Task(other, Problem(n=256)), 1000)
    assert {c["tile_x"] for c, _ in proposals} == {4}
    searcher = PolicySearcher(other, policy=policy)
    assert {c["tile_x"] for c in searcher.ask(len(other))} == {4, 32}  # those too, in the end


def test_policy_same_seed_same_training():
    def train(seed):
        return Policy.train(
            [UNSEEN], schedule=TrainingSchedule(updates=5), seed=seed
        ).agent.network.state_dict()

    one = train(1)
    again = train(1)
    other = train(2)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_training_leaves_torch_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(1)
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    Policy.train([UNSEEN], schedule=TrainingSchedule(updates=2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads


def test_beam_search_is_exact_if_wide_enough():
    decisions = ConfigurationDecisions([UNSEEN])
    agent = Agent(decisions, seed=1)
    reinforce(agent, decisions, TrainingSchedule(updates=10))
    chosen, log_p = agent.beam_search(decisions, 0, len(SPACE))
    again = agent.log_likelihood(decisions, np.zeros(len(chosen), dtype=int), chosen)
    assert log_p == pytest.approx(again.detach().numpy(), abs=1e-4)
    narrow, _ = agent.beam_search(decisions, 0, 7)
    assert len(narrow) == 7
    assert np.array_equal(narrow[0], chosen[0])


def test_drawing_follows_the_probabilities():
    decisions = ConfigurationDecisions([UNSEEN])
    agent = Agent(decisions, seed=1)
    reinforce(agent, decisions, TrainingSchedule(updates=10))
    chosen, log_p = agent.beam_search(decisions, 0, len(SPACE))
    drawn, _ = agent.sample_episodes(decisions, np.zeros(4000, dtype=int), np.random.default_rng(0))
    counts = np.bincount(decisions.indices_of(0, drawn), minlength=len(SPACE))
    expected = 4000 * np.exp(log_p[np.argsort(decisions.indices_of(0, chosen))])
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - len(SPACE)) < 5 * math.sqrt(2 * len(SPACE))


def test_policy_unusable_tasks_are_refused():
    with pytest.raises(UsageError, match="there is no task"):
        Policy.train([])
    with pytest.raises(UsageError, match="task 0 has no reward"):
        Policy.train([Task(SPACE)])


def test_policy_without_torch_names_extra(monkeypatch):
    for name in ("agent", "policy", "searcher"):
        monkeypatch.delitem(sys.modules, f"foretune.search.policies.{name}")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[rl\]'"):
        make_searcher("policy", SPACE)


# Rewards


def test_predictions_are_the_reward():
    toy = Toy()
    problems = Toy().training_problems(6)
    plan = plan_configurations(toy, problems, 20, 0)
    rows = [m for p, configs in plan.items() for m in FakeRunner().run(toy, p, configs)]
    predictor = Predictor(targets=("time_ms",), kernel=toy).fit(from_measurements(rows, DEVICE))
    tasks = predicted_tasks(predictor, toy, problems[:3], DEVICE)
    assert tasks[0].space is tasks[1].space  # equal spaces are kept once
    predicted = predictor.predict_space(problems[1], tasks[1].space, DEVICE)
    cost = np.log(predicted["time_ms"] / predicted["p_valid"]).to_numpy()
    some = np.array([3, 0, 7, 3])
    assert tasks[1].reward(some) == pytest.approx(np.median(cost) - cost[some])
    with pytest.raises(PredictorError, match="power"):
        predicted_tasks(predictor, toy, problems[:1], DEVICE, Objective.ENERGY)


# Searching


def told(searcher, task, n):
    """Let a searcher measure ``n`` configurations of ``task``; return them."""
    from foretune.measurement import Measurement, Status

    asked = []
    for _ in range(n):
        (config,) = searcher.ask()
        reward = task.reward(np.array([task.space.index(config)]))[0]
        common = ("toy", task.problem, config, "Toy")
        searcher.tell([Measurement(*common, Status.OK, time_ms=float(np.exp(-reward)))])
        asked.append(config)
    return asked


def test_policy_searcher_starts_with_policys_proposals(policy):
    searcher = PolicySearcher(SPACE, problem=UNSEEN.problem, policy=policy)
    assert searcher.ask(6) == [c for c, _ in policy.propose(UNSEEN, 6)]


def test_searching_does_not_change_the_policy(policy):
    before = copy.deepcopy(policy.agent.network.state_dict())
    searcher = PolicySearcher(SPACE, problem=UNSEEN.problem, policy=policy)
    told(searcher, UNSEEN, 5)
    after = policy.agent.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_measurements_teach_a_policy_that_was_wrong():
    """It learned that packing pays; here it costs much."""
    wrong = Policy.train([UNSEEN], schedule=SHORT)
    columns = SPACE.columns()
    log_ms = np.where(columns["pack"], 2.0, 0.0) + 0.1 * np.log2(columns["tile_x"])
    here = prior_task(SPACE, Prior(log_ms, 0.1, np.ones(len(SPACE))), UNSEEN.problem)
    order = [c for c, _ in wrong.propose(here, len(SPACE))]
    packed = sum(c["pack"] for c in order[:16])
    asked = told(PolicySearcher(SPACE, problem=here.problem, policy=wrong), here, 16)
    assert asked[0] == order[0]
    assert sum(c["pack"] for c in asked) < packed


def test_policy_searcher_trains_on_prior():
    values = UNSEEN.reward(np.arange(len(SPACE)))
    searcher = make_searcher("policy", SPACE, prior=Prior(-values, 0.1, np.ones(len(SPACE))))
    assert searcher.ask() == [best(UNSEEN)]


def test_policy_of_other_kernel_is_refused(policy):
    with pytest.raises(UsageError, match="a policy is for one kernel"):
        PolicySearcher(SearchSpace({"x": (1, 2)}), policy=policy)
    assert policy.decisions(Task(SPACE, device=Device("New", "gpu"))).tasks == 1
