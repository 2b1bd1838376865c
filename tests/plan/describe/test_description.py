"""Sizes of a model: `plan/describe/description.py`."""

from dataclasses import replace

import pytest

from foretune.errors import ProblemError

# Two layers: 64 hidden, 4 heads of 16, 2 key heads, a vocabulary of 100.
ATTENTION = 2 * 64 * 64 + 2 * 64 * 32
"""Queries and output, keys and values."""
MLP = 3 * 64 * 128
NORMS = 5 * 64
EMBEDDING = 100 * 64


def test_parameters_of_a_small_model(small):
    assert small.parameters() == 2 * (ATTENTION + MLP) + NORMS + 2 * EMBEDDING == 86_848


def test_active_parameters_are_without_the_embedding(small):
    assert small.active_parameters() == 86_848 - EMBEDDING


def test_parameters_tied_embeddings_count_once(small):
    tied = replace(small, tied_embeddings=True)
    assert tied.parameters() == tied.active_parameters() == 86_848 - EMBEDDING


def test_parameters_of_a_mixture_of_experts(sparse):
    # Four routed experts, a shared one and a router instead of the second MLP.
    expert = 3 * 64 * 32
    router = 64 * 4
    assert sparse.parameters() == 86_848 - MLP + 5 * expert + router
    # A token goes to two of the four.
    assert sparse.active_parameters() == sparse.parameters() - 2 * expert - EMBEDDING


@pytest.mark.parametrize(
    "change",
    [
        {"heads": 0},
        {"heads": 3},
        {"experts_per_token": 5},
        {"dense_layers": 3},
        {"windowed_layers": 3},
    ],
)
def test_description_sizes_that_contradict_each_other_are_refused(sparse, change):
    with pytest.raises(ProblemError):
        replace(sparse, **change)
