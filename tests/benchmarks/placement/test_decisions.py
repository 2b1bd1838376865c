"""Placement: legality, the exact optimum, latencies from a predictor."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement.decisions import Placement, PlacementDecisions, predicted_latencies

from foretune.errors import UsageError
from foretune.models import Predictor
from foretune.problem import Problem


def legal_placements(placement):
    """Return all of them, by trying every one."""
    operators, choices = placement.latency_ms.shape
    every = np.array(list(itertools.product(range(choices), repeat=operators)))
    use = placement.use[np.arange(operators), every].sum(axis=1)
    runs = np.isfinite(placement.latency_ms[np.arange(operators), every]).all(axis=1)
    return every[placement.fits(use) & runs]


@st.composite
def placements(draw):
    operators, choices = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    latency_ms = rng.integers(1, 9, (operators, choices)).astype(float)
    latency_ms[:, 1:][rng.random((operators, choices - 1)) < 0.2] = np.inf
    use = rng.integers(0, 4, (operators, choices)) / 10
    least = use[:, 0].sum()
    limit = least + draw(st.sampled_from([0.0, 0.3, 1.0, np.inf]))
    return Placement(latency_ms, rng.integers(0, 3, (choices, choices)), use, limit)


@given(placements())
def test_masks_allow_what_is_legal_and_nothing_else(placement):
    placing, begun = PlacementDecisions([placement]), np.zeros((1, 0), dtype=int)
    for _ in range(placing.steps):
        legal = placing.legal(np.zeros(len(begun), dtype=int), begun)
        assert legal.any(axis=1).all()  # never a dead end
        parents, choices = np.nonzero(legal)
        begun = np.column_stack([begun[parents], choices])
    assert np.array_equal(begun, legal_placements(placement))


@given(placements())
def test_the_optimum_is_the_best_of_all(placement):
    every = legal_placements(placement)
    best = placement.total_ms(every).min()
    assert placement.total_ms(placement.optimum()[None, :])[0] == pytest.approx(best)
    greedy = placement.greedy()
    assert (every == greedy).all(axis=1).any()
    assert placement.total_ms(greedy[None, :])[0] >= best - 1e-9


@given(placements())
def test_the_reward_compares_with_greedy(placement):
    placing, every = PlacementDecisions([placement]), legal_placements(placement)
    rewards = placing.reward(np.zeros(len(every), dtype=int), every)
    reference = placement.total_ms(placement.greedy()[None, :])[0]
    totals = placement.total_ms(every)
    assert rewards == pytest.approx(np.maximum(np.log(reference / totals), -np.log(10)))


def test_transfers_decide():
    latency_ms = [[1.0, 1.5], [1.5, 1.0], [1.0, 1.5]]
    assert Placement(latency_ms, 0.0).optimum().tolist() == [0, 1, 0]
    assert Placement(latency_ms, [[0, 1], [1, 0]]).optimum().tolist() == [0, 0, 0]


def test_a_limit_is_kept_where_it_hurts_least():
    precision = Placement([[4.0, 1.0], [9.0, 1.0]], 0.0, [[0, 1], [0, 1]], limit=1.0)
    assert precision.optimum().tolist() == [0, 1]
    assert precision.greedy().tolist() == [1, 0]


def test_shorter_chains_wait_for_the_longest():
    placing = PlacementDecisions([Placement(np.ones((3, 2)), 0.0), Placement([[1.0, 2.0]], 0.0)])
    assert [placing.length(0), placing.length(1), placing.steps] == [3, 1, 3]
    tasks, chosen = np.array([0, 1]), np.array([[0, 0], [1, 0]])
    assert placing.legal(tasks, chosen).tolist() == [[True, True], [True, False]]
    assert not placing.observe(tasks, chosen)[1].any()
    rewards = placing.reward(tasks, np.array([[0, 1, 0], [1, 0, 0]]))
    assert rewards == pytest.approx([0.0, -np.log(2)])


def test_what_is_no_placement():
    with pytest.raises(UsageError, match="a row per operator"):
        Placement([1.0, 2.0], 0.0)
    with pytest.raises(UsageError, match="transfer_ms must be 2 × 2 and use 1 × 2"):
        Placement([[1.0, 2.0]], np.zeros((3, 3)))
    with pytest.raises(UsageError, match="must be positive"):
        Placement([[1.0, -2.0]], 0.0)
    with pytest.raises(UsageError, match="transfer_ms holds a number"):
        Placement([[1.0, 2.0]], np.nan)
    with pytest.raises(UsageError, match="the least use is 2, the limit 1"):
        Placement([[1.0, 2.0]] * 2, 0.0, [[1, 2]] * 2, limit=1.0)
    with pytest.raises(UsageError, match="no placement is legal"):
        Placement([[np.inf, np.inf]], 0.0)
    with pytest.raises(UsageError, match=r"have \[2, 3\] choices"):
        PlacementDecisions([Placement([[1.0, 2.0]], 0.0), Placement([[1.0, 2.0, 3.0]], 0.0)])
    with pytest.raises(UsageError, match=r"have \[\] choices"):
        PlacementDecisions([])


def test_a_predictor_fills_in_the_latencies(matmul, toy_runs, toy_device):
    predictor = Predictor("random_forest", ("time_ms",)).fit(toy_runs)
    operators = [matmul.problem(M=128, N=n, K=512) for n in (64, 256, 1024)]
    default = matmul.default(operators[0])
    choices = [
        (type(default)({**default, "threads": n, "vector_bits": 512, "split": "m"}), toy_device)
        for n in (1, 2)
    ]
    latency_ms = predicted_latencies(predictor, operators, choices)
    assert latency_ms.shape == (3, 2)
    assert (latency_ms[:, 0] > latency_ms[:, 1]).all()  # two threads are faster
    assert Placement(latency_ms, 0.0).optimum().tolist() == [1, 1, 1]
    assert isinstance(operators[0], Problem)
