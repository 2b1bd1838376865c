"""Arrangements of ranks: who computes what, and what a step is made of."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_parallel.arrangement import (
    Arrangement,
    StepProblem,
    arrangements,
    step_of,
    step_terms,
    undisturbed_ms,
)
from plan_parallel.parallel import small_model

from foretune.plan.cost.operator import Part

MODEL = small_model(256, 4, 2, 704)


class FakeClock:
    """Says that a step takes so many ms per request, and some of them for exchanges."""

    def __init__(self, per_request, exchanged):
        self.per_request = per_request
        self.exchanged = exchanged

    def times(self, steps):
        total = [self.per_request * step.part.batch + self.exchanged for step in steps]
        return pd.DataFrame({"total": total, "communication": self.exchanged})


CLOCKS = {"alone": FakeClock(10.0, 1.0), "together": FakeClock(16.0, 3.0)}


def terms(problem, **degrees):
    return step_terms(problem, Arrangement(**degrees), CLOCKS).tolist()


def test_one_rank_computes_alone():
    assert terms(StepProblem(MODEL, 4, 8)) == [40.0, 1.0, 4.0]


def test_ranks_of_tensor_and_data_parallelism_compute_together():
    assert terms(StepProblem(MODEL, 4, 8), tp=2) == [64.0, 3.0, 4.0]
    assert terms(StepProblem(MODEL, 4, 8), replicas=2) == [32.0, 3.0, 4.0]


def test_a_pipeline_takes_turns():
    # Two micro-batches of two requests, three turns of half the layers; both busy in the middle.
    assert terms(StepProblem(MODEL, 4, 8), pp=2) == pytest.approx(
        [2 * 20 / 2 + 32 / 2, 2 * 1 / 2 + 3 / 2, 3 * 2]
    )
    # One request passes all layers, one stage after the other.
    assert terms(StepProblem(MODEL, 1, 8), pp=2) == pytest.approx([10.0, 1.0, 4.0])


def test_the_phase_follows_from_the_cache():
    assert StepProblem(MODEL, 1, 8).phase == "prefill"
    decode = StepProblem(MODEL, 3, 1, 7)
    assert decode.phase == "decode"
    step = step_of(decode, Arrangement(tp=2))
    assert (step.part, step.layout.tp) == (Part(3, 1, 7, "decode"), 2)


def test_what_leaves_ranks_idle_is_not_compared():
    single = [a.name for a in arrangements(2) if a.is_applicable(StepProblem(MODEL, 1, 8))]
    assert single == ["one rank", "tp2", "pp2"]
    odd = small_model(192, 3, 3, 704)
    assert [a.name for a in arrangements(2) if a.is_applicable(StepProblem(odd, 2, 8))] == [
        "one rank",
        "dp2",
    ]


@given(batch=st.integers(1, 40), ranks=st.sampled_from([2, 4]))
def test_every_request_is_computed_once(batch, ranks):
    for each in arrangements(ranks):
        if not each.is_applicable(StepProblem(small_model(512, 4, 4, 64), batch, 1)):
            continue
        workers = range(each.replicas if each.replicas > 1 else 1)
        seen = [
            i
            for rank in workers
            for part in each.request_slices(rank, batch)
            for i in range(batch)[part]
        ]
        assert sorted(seen) == list(range(batch))


def test_disturbances_hardly_count():
    assert undisturbed_ms(np.array([5.0, 5.0, 5.0, 5.0, 50.0, 500.0])) == 5.0
