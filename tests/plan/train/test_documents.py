"""Documents packed into sequences: their lengths, and what they change of a step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import ProblemError
from foretune.plan import describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.train.documents import MAX_KINDS, Documents
from foretune.plan.train.recipe import Recipe, TrainingLayout, TrainingTask
from foretune.plan.train.step import model_flops, predict_steps
from foretune.plan.train.training_operators import ATTENTION_KERNELS, micro_batch_operators

MODEL = describe_model("meta-llama/Llama-3.1-8B")
TASK = TrainingTask(batch=8, sequence=4096)
RECIPE = Recipe(layout=TrainingLayout(dp=8))
COUNTS = st.dictionaries(st.integers(1, 20_000), st.floats(0.01, 100.0), min_size=1, max_size=60)


def packed(counts, sequence=4096):
    return replace(TASK, documents=Documents.from_counts(counts, sequence))


def step_ms(task):
    system = find_system("h100_sxm")
    timer = StepTimerFactory(None)(system, "trtllm")
    return float(predict_steps(MODEL, system, [RECIPE], task, timer)["step_ms"][0])


@given(COUNTS)
def test_documents_keep_the_work_of_attention(counts):
    documents = Documents.from_counts(counts, 4096)
    pieces = [
        (size, number)
        for length, count in counts.items()
        for size, number in ((4096, length // 4096 * count), (length % 4096, count))
        if size and number
    ]
    sizes, numbers = np.array(pieces).T
    tokens = sizes * numbers
    assert len(documents.lengths) <= MAX_KINDS
    assert sum(documents.token_shares) == pytest.approx(1.0)
    assert max(documents.lengths) <= 4096
    assert documents.mean_length == pytest.approx(tokens.sum() / numbers.sum())
    # Kinds that are joined have whole tokens.
    assert documents.mean_keys == pytest.approx(tokens @ sizes / tokens.sum(), abs=0.5)


def test_document_of_a_whole_sequence_changes_nothing():
    whole = packed({4096: 3.0})
    assert step_ms(whole) == pytest.approx(step_ms(TASK))
    assert model_flops(MODEL, whole) == pytest.approx(model_flops(MODEL, TASK))


def test_documents_longer_than_a_sequence_are_cut():
    documents = Documents.from_counts({10_000: 1.0}, 4096)
    assert documents.lengths == (1808, 4096)
    assert documents.token_shares == pytest.approx((0.1808, 0.8192))


def test_short_documents_make_attention_faster_and_nothing_else():
    whole = micro_batch_operators(MODEL, RECIPE, TASK).forward
    short = micro_batch_operators(MODEL, RECIPE, packed({256: 1.0})).forward
    others = [[op for op in ops if op.kernel not in ATTENTION_KERNELS] for ops in (whole, short)]
    assert others[0] == others[1]
    (attention,) = [op for op in short if op.kernel in ATTENTION_KERNELS]
    assert attention.problem["batch"] == 16
    assert attention.problem["seq_len"] == 256
    assert attention.count == pytest.approx(MODEL.layers)
    assert step_ms(packed({256: 1.0})) < step_ms(TASK)


def test_each_length_takes_its_share_of_a_full_micro_batch():
    mixed = micro_batch_operators(MODEL, RECIPE, packed({1000: 4.0, 4000: 1.0})).forward
    counts = {op.problem["seq_len"]: op.count for op in mixed if op.kernel in ATTENTION_KERNELS}
    # Four documents of 1,000 tokens are 4,000 of the 4,096 tokens of a full one.
    assert counts[1000] == pytest.approx(MODEL.layers * 0.5 * 4096 / 4000)
    assert counts[4000] == pytest.approx(MODEL.layers * 0.5 * 4096 / 4000)


@pytest.mark.parametrize("counts", [{}, {100: 0.0}])
def test_no_documents_are_refused(counts):
    with pytest.raises(ProblemError, match="counts above 0"):
        Documents.from_counts(counts, 4096)


def test_unfused_attention_gains_nothing_from_documents_and_is_refused():
    with pytest.raises(ProblemError, match="pack documents with flash"):
        replace(packed({512: 1.0}), attention="unfused")
